package engine_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/host/engine"
)

// runs are the counter's results for a series of payloads: how many runs its instance had
// seen each time.
func runs(m *engine.Module, payloads ...string) string {
	var b strings.Builder
	for _, p := range payloads {
		b.Write(run(m, p).Output)
	}
	return b.String()
}

func TestInstances(t *testing.T) {
	e := newEngine(t, engine.Options{})
	tests := []struct {
		name string
		cfg  engine.Config
		runs []string
		want string
	}{
		{"fresh", engine.Config{Instances: engine.Fresh}, []string{"", "", ""}, "111"},
		{"reuse", engine.Config{Instances: engine.Reuse}, []string{"", "", "r", ""}, "1234"},
		{"recycled", engine.Config{Instances: engine.Reuse, Recycle: 2}, []string{"", "", "", ""}, "1212"},
		{"after a trap", engine.Config{Instances: engine.Reuse}, []string{"", "t", "", ""}, "1212"},
		{"after growing", engine.Config{Instances: engine.Reuse}, []string{"", "g", "", ""}, "1212"},
		{"cheap to start", engine.Config{}, []string{"", ""}, "11"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := runs(load(t, e, wat(t, "counter"), tt.cfg), tt.runs...); got != tt.want {
				t.Errorf("runs seen: %s, want %s", got, tt.want)
			}
		})
	}
}

func TestChosenInstances(t *testing.T) {
	e := newEngine(t, engine.Options{})
	tests := []struct {
		guest string
		cfg   engine.Config
		want  engine.Instances
		why   string
	}{
		{"echo", engine.Config{Instances: engine.Fresh}, engine.Fresh, "configured"},
		{"init_random", engine.Config{}, engine.Reuse, "random numbers"},
		{"init_random", engine.Config{Instances: engine.Fresh}, engine.Fresh, "configured"},
		{"command", engine.Config{Instances: engine.Reuse}, engine.Fresh, "a command"},
	}
	for _, tt := range tests {
		m := load(t, e, wat(t, tt.guest), tt.cfg)
		if err := m.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if info := m.Info(); info.Instances != tt.want || !strings.Contains(info.InstancesWhy, tt.why) {
			t.Errorf("%s: %s, %s", tt.guest, info.Instances, info.InstancesWhy)
		}
	}
}

func TestInfo(t *testing.T) {
	e := newEngine(t, engine.Options{})
	info, err := e.Inspect(withSection(wat(t, "starting"), "x", "abc"))
	if err != nil {
		t.Fatal(err)
	}
	if info.Dialect != engine.Native || !info.Metered || info.MinMemory != 64<<10 || info.MaxMemory != 0 ||
		info.Sections["x"] != 3 || len(info.Imports) != 9 || info.Imports[0] != "guesthand_v1.payload_size" ||
		strings.Join(info.Exports, " ") != "memory _initialize handle" {
		t.Errorf("%+v", info)
	}
}

// Loads of the same bytes share code; each has its own limits and settings.
func TestLoadsShareCode(t *testing.T) {
	e := newEngine(t, engine.Options{})
	wasm := wat(t, "echo")
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 5 {
				m, err := e.Load(t.Context(), wasm, engine.Config{})
				if err != nil {
					t.Error(err)
					return
				}
				if r := run(m, "x"); string(r.Output) != "x" {
					t.Errorf("%+v", r)
				}
				m.Close()
			}
		})
	}
	wg.Wait()
	small := load(t, e, wasm, engine.Config{Result: 10})
	large := load(t, e, wasm, engine.Config{})
	payload := strings.Repeat("x", 100)
	if a, b := run(small, payload), run(large, payload); a.End.Word() != "permanent" || b.End.Word() != "success" {
		t.Errorf("%+v, %+v", a.End, b.End)
	}
}

// Runs, loads and closes at the same time, with guests that trap, loop and are stopped.
func TestParallel(t *testing.T) {
	e := newEngine(t, engine.Options{})
	payloads := []string{"R\x00\x00\x00\x00\x00\x00\x00\x00", "u", "l", "r", "G", exitWith(3), "s", "T", "k"}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for round := range 3 {
				mode := []engine.Instances{engine.Fresh, engine.Reuse}[(i+round)%2]
				m, err := e.Load(t.Context(), wat(t, "hazard"), engine.Config{Timeout: 30 * time.Millisecond, Instances: mode, MaxIdle: 2})
				if err != nil {
					t.Error(err)
					return
				}
				var inner sync.WaitGroup
				for j := range 4 {
					inner.Go(func() {
						var c engine.Call
						for k := range payloads {
							c.Reset(engine.Input{Payload: []byte(payloads[(j+k)%len(payloads)])})
							stopped := make(chan struct{})
							go func() { c.Stop(abi.Cancelled); c.SetDrainEnd(time.Now()); close(stopped) }()
							m.Run(&c)
							<-stopped
						}
					})
				}
				inner.Wait()
				m.Close()
			}
		})
	}
	wg.Wait()
	healthy(t, e)
}

func TestStopInEachPhase(t *testing.T) {
	e := newEngine(t, engine.Options{})
	cfg := engine.Config{Timeout: time.Minute}
	hazard := load(t, e, wat(t, "hazard"), cfg)
	tests := []struct {
		phase   string
		m       *engine.Module
		payload string
		cause   abi.Cause
	}{
		{"loop", hazard, "l", abi.Interrupted},
		{"recursion", hazard, "f", abi.LeaseLost},
		{"sleep", hazard, "s", abi.Cancelled},
		{"_initialize", load(t, e, wat(t, "init_loop"), cfg), "", abi.Interrupted},
		{"sleep in _initialize", load(t, e, wat(t, "init_sleep"), cfg), "", abi.LeaseLost},
		{"start section", load(t, e, wat(t, "start_loop"), cfg), "", abi.Cancelled},
		{"command", load(t, e, wat(t, "command"), cfg), "l", abi.Interrupted},
	}
	for _, tt := range tests {
		for _, when := range []string{"before", "during"} {
			t.Run(tt.phase+"/"+when, func(t *testing.T) {
				c := engine.Call{Input: engine.Input{Payload: []byte(tt.payload)}}
				if when == "before" {
					c.Stop(tt.cause)
				} else {
					time.AfterFunc(20*time.Millisecond, func() { c.Stop(tt.cause) })
				}
				r := tt.m.Run(&c)
				if r.End.Cause != tt.cause || r.End.Word() != string(tt.cause) || r.Duration > late {
					t.Errorf("%+v after %s", r.End, r.Duration)
				}
			})
		}
	}
}

func TestFirstStopWins(t *testing.T) {
	e := newEngine(t, engine.Options{})
	m := load(t, e, wat(t, "hazard"), engine.Config{})
	var c engine.Call
	c.Reset(engine.Input{Payload: []byte("l")})
	c.Stop(abi.LeaseLost)
	c.Stop(abi.Interrupted)
	if r := m.Run(&c); r.End.Cause != abi.LeaseLost {
		t.Errorf("%+v", r.End)
	}
	// A stop after the end has no effect, and Reset makes the call new.
	c.Reset(engine.Input{Payload: []byte("T")})
	r := m.Run(&c)
	c.Stop(abi.Interrupted)
	if r.End.Cause != abi.Returned {
		t.Errorf("%+v", r.End)
	}
}

func TestRemaining(t *testing.T) {
	e := newEngine(t, engine.Options{})
	m := load(t, e, wat(t, "hazard"), engine.Config{Timeout: time.Minute})
	c := engine.Call{Input: engine.Input{Payload: []byte("z")}}
	time.AfterFunc(20*time.Millisecond, func() { c.SetDrainEnd(time.Now()) })
	if r := m.Run(&c); r.End.Word() != "success" || r.Duration > late {
		t.Errorf("%+v after %s", r.End, r.Duration)
	}
}

func TestStartIsCancelled(t *testing.T) {
	e := newEngine(t, engine.Options{})
	m := load(t, e, wat(t, "init_loop"), engine.Config{})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	var failed *engine.StartError
	if err := m.Start(ctx); !errors.As(err, &failed) || failed.End.Cause != abi.Cancelled {
		t.Errorf("start: %v", err)
	}
}

// Closing a module lets its runs finish, and closing the engine waits for them.
func TestCloseWithRunsInFlight(t *testing.T) {
	e, err := engine.New(engine.Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	m, err := e.Load(t.Context(), wat(t, "hazard"), engine.Config{Timeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	c := engine.Call{Input: engine.Input{Payload: []byte("z")}}
	ended := make(chan engine.Result)
	go func() { ended <- m.Run(&c) }()
	for engine.Running(m) == 0 {
		runtime.Gosched()
	}
	m.Close()
	m.Close()
	if r := run(m, ""); r.End.Cause != abi.Load {
		t.Errorf("a run after Close: %+v", r.End)
	}
	if err := m.Start(t.Context()); !errors.Is(err, engine.ErrClosed) {
		t.Errorf("a start after Close: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := e.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("close with a run in flight: %v", err)
	}
	c.SetDrainEnd(time.Now())
	if r := <-ended; r.End.Word() != "success" {
		t.Errorf("the run in flight: %+v", r.End)
	}
	if err := e.Close(t.Context()); err != nil {
		t.Errorf("close: %v", err)
	}
	if err := e.Close(t.Context()); err != nil {
		t.Errorf("close again: %v", err)
	}
	if _, err := e.Load(t.Context(), wat(t, "echo"), engine.Config{}); !errors.Is(err, engine.ErrClosed) {
		t.Errorf("a load after Close: %v", err)
	}
}

// A module that cannot be metered runs all the same, and is stopped by wazero.
func TestNotMetered(t *testing.T) {
	e := newEngine(t, engine.Options{})
	engine.NotUnderstood(e)
	for _, mode := range []engine.Instances{engine.Fresh, engine.Reuse} {
		m := load(t, e, wat(t, "hazard"), engine.Config{Timeout: 200 * time.Millisecond, Instances: mode})
		if info := m.Info(); info.Metered || info.Note == "" {
			t.Fatalf("%+v", info)
		}
		tests := []struct {
			payload string
			cause   abi.Cause
		}{
			{"", abi.Returned}, {"l", abi.Timeout}, {"", abi.Returned}, {"u", abi.Trap}, {"s", abi.Timeout},
			{"S", abi.Timeout}, {exitWith(0xefffffff), abi.Exit}, {"t", abi.Timeout}, {"", abi.Returned},
		}
		for _, tt := range tests {
			if r := run(m, tt.payload); r.End.Cause != tt.cause || r.Duration > late {
				t.Errorf("%q: %+v after %s", tt.payload, r.End, r.Duration)
			}
		}
		c := engine.Call{Input: engine.Input{Payload: []byte("l")}}
		time.AfterFunc(10*time.Millisecond, func() { c.Stop(abi.Interrupted) })
		if r := m.Run(&c); r.End.Cause != abi.Interrupted {
			t.Errorf("%+v after %s", r.End, r.Duration)
		}
	}
}
