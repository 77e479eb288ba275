package engine_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/host/engine"
)

// FuzzLoad: whatever the bytes, they are refused with a reason or run to an end.
func FuzzLoad(f *testing.F) {
	for _, pattern := range []string{"testdata/*.wasm", "testdata/refused/*.wasm"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, path := range paths {
			b, err := os.ReadFile(path)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(b, []byte("l"))
		}
	}
	e := newEngine(f, engine.Options{})
	f.Fuzz(func(t *testing.T, wasm, payload []byte) {
		m, err := e.Load(t.Context(), wasm, engine.Config{Memory: 4 << 20, Timeout: 20 * time.Millisecond, Log: 1000})
		if err != nil {
			var refused *engine.RefusedError
			if !errors.As(err, &refused) || refused.Reason == "" {
				t.Fatalf("neither loaded nor refused: %v", err)
			}
			return
		}
		defer m.Close()
		for range 2 {
			r := run(m, string(payload))
			if r.End.Cause == "" || (r.End.Cause == abi.Returned) != (r.End.Outcome.Kind != 0) {
				t.Fatalf("no end: %+v", r.End)
			}
			if r.Duration > late {
				t.Fatalf("took %s: %+v", r.Duration, r.End)
			}
		}
	})
}
