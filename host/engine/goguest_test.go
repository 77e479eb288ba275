package engine_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/host/engine"
)

// goGuest builds one of the guests in testdata/goguest with the Go that runs the tests.
func goGuest(t testing.TB, name string) []byte {
	t.Helper()
	wasm, err := goGuests[name]()
	if err != nil {
		t.Fatal(err)
	}
	return wasm
}

var goGuests = map[string]func() ([]byte, error){
	"native":  sync.OnceValues(func() ([]byte, error) { return buildGuest("native", "-buildmode=c-shared") }),
	"command": sync.OnceValues(func() ([]byte, error) { return buildGuest("command") }),
}

func buildGuest(name string, flags ...string) ([]byte, error) {
	dir, err := os.MkdirTemp("", "goguest")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, name+".wasm")
	args := append([]string{"build", "-o", out}, flags...)
	cmd := exec.Command("go", append(args, "./testdata/goguest/"+name)...)
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "CGO_ENABLED=0", "GOFLAGS=")
	cmd.Stderr = os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, err
	}
	return os.ReadFile(out)
}

func TestGoNative(t *testing.T) {
	e := newEngine(t, engine.Options{})
	cfg := engine.Config{Job: "go", Timeout: time.Minute}
	m := load(t, e, goGuest(t, "native"), cfg)
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if info := m.Info(); info.Instances != engine.Reuse || !info.Metered {
		t.Errorf("%s: %s, %s", info.Instances, info.InstancesWhy, info.Note)
	}
	cfg.Timeout = 300 * time.Millisecond
	hasty := load(t, e, goGuest(t, "native"), cfg)
	if err := hasty.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		payload string
		cause   abi.Cause
		text    string
	}{
		{"hello", abi.Returned, ""},
		{"nap", abi.Returned, ""},
		{"panic", abi.Trap, "panic: boom (trap: unreachable"},
		{"nil", abi.Trap, "panic: runtime error: invalid memory address or nil pointer dereference"},
		{"recurse", abi.Limit, "call depth of 10000 exceeded"},
		{"hog", abi.Memory, "memory limit of 64 MiB reached: fatal error: out of memory"},
		{"block", abi.Trap, "fatal error: all goroutines are asleep - deadlock!"},
		{"loop", abi.Timeout, "deadline of 300ms exceeded"},
		{"sleep", abi.Timeout, "deadline of 300ms exceeded"},
		{"churn", abi.Timeout, "deadline of 300ms exceeded"},
	}
	for _, tt := range tests {
		t.Run(tt.payload, func(t *testing.T) {
			m := m
			if tt.cause == abi.Timeout {
				m = hasty
			}
			r := run(m, tt.payload)
			if r.End.Cause != tt.cause || !strings.HasPrefix(r.End.Text, tt.text) {
				t.Errorf("got  %s %q\nwant %s %q", r.End.Cause, r.End.Text, tt.cause, tt.text)
			}
			if tt.cause == abi.Timeout && r.Duration > cfg.Timeout+late {
				t.Errorf("took %s", r.Duration)
			}
			if r := run(m, "again"); string(r.Output) != "AGAIN" {
				t.Errorf("the next run: %+v", r.End)
			}
		})
	}
}

func TestGoCommand(t *testing.T) {
	e := newEngine(t, engine.Options{})
	m := load(t, e, goGuest(t, "command"), engine.Config{Job: "go", Timeout: time.Minute})
	tests := []struct {
		payload string
		cause   abi.Cause
		word    string
		text    string
		output  string
	}{
		{"hello", abi.Returned, "success", "", "go HELLO"},
		{"panic", abi.Returned, "retry", "unknown outcome code 2: panic: boom", ""},
		{"hog", abi.Memory, "retry", "memory limit of 64 MiB reached: fatal error: out of memory", ""},
		{"flood", abi.Limit, "retry", "result limit of 1 MiB exceeded", ""},
		{"later", abi.Returned, "delay", "not yet", ""},
		{"files", abi.Returned, "success", "", "open /: "},
	}
	for _, tt := range tests {
		t.Run(tt.payload, func(t *testing.T) {
			r := run(m, tt.payload)
			if r.End.Cause != tt.cause || r.End.Word() != tt.word || !strings.HasPrefix(r.End.Text, tt.text) {
				t.Errorf("%+v", r.End)
			}
			if r.End.Cause == abi.Returned && !strings.HasPrefix(string(r.Output), tt.output) {
				t.Errorf("output %q", r.Output)
			}
		})
	}
	if a, b := run(m, "random"), run(m, "random"); string(a.Output) == string(b.Output) {
		t.Errorf("the same random number twice: %s", a.Output)
	}
}

// While guests compute on every processor the rest of the process goes on, and garbage is
// collected: compiled guest code cannot be preempted, so a guest without yields would stop
// the first collection, and everything with it.
func TestLiveness(t *testing.T) {
	e := newEngine(t, engine.Options{})
	const timeout = 500 * time.Millisecond
	hazard := load(t, e, wat(t, "hazard"), engine.Config{Timeout: timeout})
	gone := load(t, e, goGuest(t, "native"), engine.Config{Timeout: timeout})
	for _, tt := range []struct {
		m       *engine.Module
		payload string
	}{{hazard, "l"}, {hazard, "f"}, {hazard, "c"}, {gone, "churn"}} {
		var ended atomic.Int32
		guests := runtime.GOMAXPROCS(0)
		for range guests {
			go func() { run(tt.m, tt.payload); ended.Add(1) }()
		}
		worst, last := time.Duration(0), time.Now()
		var garbage []byte
		for ended.Load() < int32(guests) {
			time.Sleep(time.Millisecond)
			garbage = make([]byte, 1<<20)
			runtime.GC()
			worst = max(worst, time.Since(last))
			last = time.Now()
		}
		runtime.KeepAlive(garbage)
		if worst > 5*time.Second {
			t.Errorf("%s: the process stood still for %s", tt.payload, worst)
		}
	}
}
