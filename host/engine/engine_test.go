package engine_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/host/engine"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// wat reads a small guest from testdata.
func wat(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name+".wasm"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func newEngine(t testing.TB, o engine.Options) *engine.Engine {
	t.Helper()
	if o.Logger == nil {
		o.Logger = quiet
	}
	e, err := engine.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			t.Errorf("close engine: %v", err)
		}
	})
	return e
}

func load(t testing.TB, e *engine.Engine, wasm []byte, cfg engine.Config) *engine.Module {
	t.Helper()
	m, err := e.Load(t.Context(), wasm, cfg)
	if err != nil {
		t.Fatalf("load: %v", err)
	}
	t.Cleanup(m.Close)
	return m
}

func run(m *engine.Module, payload string) engine.Result {
	c := engine.Call{Input: engine.Input{Payload: []byte(payload)}}
	return m.Run(&c)
}

// healthy runs a message through another module of the same engine.
func healthy(t testing.TB, e *engine.Engine) {
	t.Helper()
	m := load(t, e, wat(t, "echo"), engine.Config{})
	if r := run(m, "still here"); r.End.Cause != abi.Returned || string(r.Output) != "still here" {
		t.Fatalf("the engine did not survive: %+v", r)
	}
}

func TestEcho(t *testing.T) {
	e := newEngine(t, engine.Options{})
	m := load(t, e, wat(t, "echo"), engine.Config{Job: "echo"})
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{0, 1, 999, 1000, 1001, 70000, 1 << 20} {
		payload := bytes.Repeat([]byte{'x'}, n)
		r := run(m, string(payload))
		if r.End.Cause != abi.Returned || r.End.Outcome.Kind != abi.Success || !bytes.Equal(r.Output, payload) {
			t.Errorf("%d bytes: %+v, %d bytes of output", n, r.End, len(r.Output))
		}
		if r.Memory != 64<<10 || r.Started.IsZero() || r.Duration <= 0 {
			t.Errorf("%d bytes: memory %d, started %v, took %v", n, r.Memory, r.Started, r.Duration)
		}
	}
	if r := run(m, string(make([]byte, 1<<20+1))); r.End.Outcome.Kind != abi.Permanent {
		t.Errorf("a result over the limit: %+v", r.End)
	}
}

func TestRefused(t *testing.T) {
	echo := wat(t, "echo")
	tests := []struct {
		name string
		wasm []byte // nil: testdata/refused/name.wasm
		want string
	}{
		{"empty file", []byte{}, "the file is empty: a WebAssembly module is needed"},
		{"garbage", []byte("hello, world"), "this is no WebAssembly module: it begins with 68 65 6c 6c, a module with 00 61 73 6d"},
		{"text", []byte("  (module (memory 1))"), "this is WebAssembly text: translate it first, with wat2wasm for example"},
		{"five bytes", echo[:5], "the file ends after 5 bytes: it is incomplete"},
		{"component", []byte("\x00asm\x0d\x00\x01\x00\x00\x00"), "this is a WebAssembly component: a core module is needed, built for WASI preview 1 (wasip1)"},
		{"version 2", []byte("\x00asm\x02\x00\x00\x00"), "the module's format version is unknown: version 1 is needed"},
		{"header only", echo[:8], "neither handle nor _start is exported: a native module exports handle: () -> i64, a command _start: () -> ()"},
		{"no_entry", nil, "neither handle nor _start is exported: a native module exports handle: () -> i64, a command _start: () -> ()"},
		{"no_memory", nil, "the module has no memory: it must export one named memory"},
		{"hidden_memory", nil, "the module's memory is not exported: it must be exported under the name memory"},
		{"handle_i32", nil, "the exported function handle is () -> i32: () -> i64 is needed"},
		{"handle_param", nil, "the exported function handle is (i32, i32) -> i64: () -> i64 is needed"},
		{"handle_global", nil, "the export handle is no function: handle: () -> i64 is needed"},
		{"initialize_param", nil, "the exported function _initialize is (i32) -> (): () -> () is needed"},
		{"start_param", nil, "the exported function _start is (i32) -> (): () -> () is needed"},
		{"unknown_module", nil, "the import spin.go is unknown: there are guesthand_v1, extism:host/env, wasi_snapshot_preview1 and env.abort"},
		{"unknown_name", nil, "the import guesthand_v1.payload_len is unknown: guesthand_v1 has attribute_read, error_write, http_body_read, " +
			"http_body_size, http_header_read, http_send, kv_create, kv_delete, kv_get, kv_put, log_write, message_send, " +
			"payload_read, payload_size, remaining, result_write, state_read, state_write"},
		{"wrong_import", nil, "the import guesthand_v1.payload_size is declared as () -> i64: it is () -> i32"},
		{"unstable", nil, "the import module wasi_unstable is WASI's obsolete first snapshot: compile for wasi_snapshot_preview1 (wasip1)"},
		{"host_yield", nil, "the import module guesthand_host is the host's own"},
		{"import_memory", nil, "the import env.memory is a memory: only functions can be imported, a module brings its own memory and tables"},
		{"import_table", nil, "the import env.table is a table: only functions can be imported, a module brings its own memory and tables"},
		{"import_global", nil, "the import env.g is a global: only functions can be imported, a module brings its own memory and tables"},
		{"big_memory", nil, "the module needs 125 MiB of memory to start, the limit is 64 MiB: raise the handler's memory"},
		{"big_table", nil, "a table of 100000000 elements is over the limit of 1048576"},
		{"memory64", nil, "memory64 is not supported: compile for wasm32"},
		{"extism_user", nil, "the import extism:host/user.lookup is a function of the application that the plug-in was made for: " +
			"guesthand offers those of extism:host/env and guesthand_v1"},
		{"extism_none", nil, "the plug-in exports no function () -> i32: function = NAME under [handlers.JOB] names another that takes nothing"},
		{"extism_name", nil, "the import extism:host/env.input is unknown: extism:host/env has alloc, config_get, error_get, error_set, free, " +
			"get_log_level, http_headers, http_request, http_status_code, input_length, input_load_u64, input_load_u8, input_offset, " +
			"input_set, length, length_unsafe, load_u64, load_u8, log_debug, log_error, log_info, log_trace, log_warn, memory_bytes, " +
			"output_length, output_offset, output_set, reset, store_u64, store_u8, var_get, var_set"},
	}
	e := newEngine(t, engine.Options{})
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			wasm := tt.wasm
			if wasm == nil {
				wasm = wat(t, "refused/"+tt.name)
			}
			_, err := e.Load(t.Context(), wasm, engine.Config{})
			var refused *engine.RefusedError
			if !errors.As(err, &refused) || refused.Reason != tt.want {
				t.Errorf("load: %v\nwant: %s", err, tt.want)
			}
			info, err := e.Inspect(wasm)
			if tt.name == "big_memory" { // may be granted
				if err != nil || info.MinMemory != 125<<20 {
					t.Errorf("inspect: %+v, %v", info, err)
				}
				return
			}
			if !errors.As(err, &refused) || refused.Reason != tt.want {
				t.Errorf("inspect: %v\nwant: %s", err, tt.want)
			}
			if len(info.Digest) != 64 || info.Size != len(wasm) {
				t.Errorf("inspect knows nothing: %+v", info)
			}
		})
	}
	healthy(t, e)
}

// A part of a file is refused with a reason, unless the part is a module by itself: without
// its data, for one.
func TestHalfAFile(t *testing.T) {
	e := newEngine(t, engine.Options{})
	whole := wat(t, "hazard")
	for n := range whole {
		m, err := e.Load(t.Context(), whole[:n], engine.Config{})
		var refused *engine.RefusedError
		if err != nil {
			if !errors.As(err, &refused) || refused.Reason == "" {
				t.Errorf("%d bytes: %v", n, err)
			}
			continue
		}
		if r := run(m, "u"); r.End.Cause != abi.Trap {
			t.Errorf("%d of %d bytes were loaded and do not run: %+v", n, len(whole), r.End)
		}
		m.Close()
	}
}
