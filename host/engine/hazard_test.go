package engine_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/host/engine"
)

// late is how much over its deadline a run may come back before it counts as not stopped.
const late = 5 * time.Second

func exitWith(code uint32) string {
	return "e" + string([]byte{byte(code), byte(code >> 8), byte(code >> 16), byte(code >> 24)})
}

// Whatever a guest does, its run comes to an end of the right cause, and the engine, the
// module and the other handlers go on.
func TestHazards(t *testing.T) {
	const timeout = 100 * time.Millisecond
	overTime := "deadline of 100ms exceeded"
	tests := []struct {
		name, payload string
		cause         abi.Cause
		text          string
	}{
		{"unreachable", "u", abi.Trap, "trap: unreachable in function 54"},
		{"out of bounds", "o", abi.Trap, "trap: out of bounds memory access in handle"},
		{"division by zero", "d", abi.Trap, "trap: integer divide by zero in handle"},
		{"null table entry", "n", abi.Trap, "trap: invalid table access in handle"},
		{"endless loop", "l", abi.Timeout, overTime},
		{"fib", "f", abi.Timeout, overTime},
		{"loop-free chain", "c", abi.Timeout, overTime},
		{"endless recursion", "r", abi.Limit, "call depth of 10000 exceeded"},
		{"memory full, then fine", "g", abi.Returned, ""},
		{"memory full, then a trap", "G", abi.Memory, "memory limit of 64 MiB reached"},
		{"memory full, then proc_exit", "X", abi.Memory, "memory limit of 64 MiB reached"},
		{"memory full, then a loop", "L", abi.Timeout, overTime + ", after its memory limit was reached"},
		{"proc_exit(0)", exitWith(0), abi.Exit, "proc_exit(0): a native module returns its outcome from handle"},
		{"forged cancellation", exitWith(0xffffffff), abi.Exit, "proc_exit(4294967295): a native module returns its outcome from handle"},
		{"forged timeout", exitWith(0xefffffff), abi.Exit, "proc_exit(4026531839): a native module returns its outcome from handle"},
		{"sleep", "s", abi.Timeout, overTime},
		{"short sleeps", "S", abi.Timeout, overTime},
		{"results over the limit", "w", abi.Returned, ""},
		{"logging without end", "p", abi.Timeout, overTime},
		{"stderr without end", "P", abi.Timeout, overTime},
		{"error text, then a trap", "E", abi.Trap, "out of patience (trap: unreachable in handle)"},
		{"error text, then retry", "T", abi.Returned, "out of patience"},
		{"panic on stderr", "k", abi.Trap, "panic: boom (trap: unreachable in handle)"},
		{"fills memory without end", "m", abi.Timeout, overTime},
		{"grows a table without end", "t", abi.Timeout, overTime},
		{"random numbers without end", "q", abi.Timeout, overTime},
		{"reads without end", "i", abi.Timeout, overTime},
		{"host call outside memory", "h", abi.Trap, "trap: out of bounds memory access in result_write"},
		{"absurd descriptor", "b", abi.Returned, ""},
		{"absurd buffers", "v", abi.Timeout, overTime},
	}
	for _, mode := range []engine.Instances{engine.Fresh, engine.Reuse} {
		e := newEngine(t, engine.Options{})
		hasty := load(t, e, wat(t, "hazard"), engine.Config{Job: "hazard", Timeout: timeout, Instances: mode})
		patient := load(t, e, wat(t, "hazard"), engine.Config{Job: "hazard", Timeout: time.Minute, Instances: mode})
		for _, tt := range tests {
			t.Run(fmt.Sprintf("%s/%s", mode, tt.name), func(t *testing.T) {
				m := patient
				if tt.cause == abi.Timeout {
					m = hasty
				}
				r := run(m, tt.payload)
				if r.End.Cause != tt.cause || r.End.Text != tt.text {
					t.Errorf("got  %s %q\nwant %s %q", r.End.Cause, r.End.Text, tt.cause, tt.text)
				}
				if tt.cause == abi.Timeout && r.Duration > timeout+late {
					t.Errorf("took %s", r.Duration)
				}
				if again := run(patient, "R\x00\x00\x00\x00\x00\x00\x00\x00"); again.End.Word() != "success" {
					t.Errorf("the next run: %+v", again.End)
				}
				healthy(t, e)
			})
		}
	}
}

func TestStartHazards(t *testing.T) {
	const timeout = 100 * time.Millisecond
	tests := []struct {
		guest string
		cause abi.Cause
		text  string
	}{
		{"init_loop", abi.Timeout, "deadline of 100ms exceeded"},
		{"init_sleep", abi.Timeout, "deadline of 100ms exceeded"},
		{"init_trap", abi.Load, "an instance cannot start: trap: unreachable in _initialize"},
		{"init_exit", abi.Load, "an instance cannot start: proc_exit(0) while starting"},
		{"init_grow", abi.Memory, "memory limit of 64 MiB reached"},
		{"start_loop", abi.Timeout, "deadline of 100ms exceeded"},
		{"start_trap", abi.Load, "an instance cannot start: trap: unreachable in function 3"},
		{"command_start_trap", abi.Load, "an instance cannot start: trap: unreachable in function 0"},
	}
	for _, tt := range tests {
		t.Run(tt.guest, func(t *testing.T) {
			e := newEngine(t, engine.Options{})
			cfg := engine.Config{Job: tt.guest, Timeout: time.Minute}
			if tt.cause == abi.Timeout {
				cfg.Timeout = timeout
			}
			m := load(t, e, wat(t, tt.guest), cfg)
			began := time.Now()
			var failed *engine.StartError
			if err := m.Start(t.Context()); !errors.As(err, &failed) || failed.End.Cause != tt.cause || failed.End.Text != tt.text {
				t.Errorf("start: %v", err)
			}
			r := run(m, "")
			if r.End.Cause != tt.cause || r.End.Text != tt.text {
				t.Errorf("got  %s %q\nwant %s %q", r.End.Cause, r.End.Text, tt.cause, tt.text)
			}
			if took := time.Since(began); tt.cause == abi.Timeout && took > 2*(timeout+late) {
				t.Errorf("took %s", took)
			}
			healthy(t, e)
		})
	}
}

func TestAssemblyScriptAbort(t *testing.T) {
	e := newEngine(t, engine.Options{})
	r := run(load(t, e, wat(t, "as_abort"), engine.Config{}), "")
	if r.End.Cause != abi.Trap || r.End.Text != "trap: abort: oops at h.ts:7:3" {
		t.Errorf("%+v", r.End)
	}
}

func TestReturnedNumbers(t *testing.T) {
	e := newEngine(t, engine.Options{})
	m := load(t, e, wat(t, "hazard"), engine.Config{})
	for _, v := range []int64{0, 1, 2, 12, 255, 256, -1, -256, 10 | 5000<<8, 11 | 1<<54<<8, 14 | -3<<8} {
		payload := "R"
		for i := range 8 {
			payload += string([]byte{byte(v >> (8 * i))})
		}
		r := run(m, payload)
		want := abi.DecodeNative(v)
		if r.End.Cause != abi.Returned || r.End.Outcome != want || !strings.Contains(r.End.Text, want.Text) {
			t.Errorf("%d: %+v, want %+v", v, r.End, want)
		}
	}
}
