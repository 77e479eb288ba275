package rewrite_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/tetratelabs/wazero"

	"github.com/guesthand/guesthand/host/engine/rewrite"
)

// compiles says whether wazero accepts the module.
func compiles(ctx context.Context, wasm []byte) error {
	rt := wazero.NewRuntimeWithConfig(ctx, wazero.NewRuntimeConfigInterpreter())
	defer rt.Close(ctx)
	_, err := rt.CompileModule(ctx, wasm)
	return err
}

func known(err error) bool {
	return errors.Is(err, rewrite.ErrMalformed) || errors.Is(err, rewrite.ErrUnknown)
}

func addSeeds(f *testing.F) {
	f.Helper()
	for _, wasm := range modules(f) {
		f.Add(wasm)
	}
	f.Add(asm())
	f.Add(asm(typeVoid, oneFunc, oneBody))
	f.Add(body(0x03, 0x40, 0x41, 0, 0x0d, 0, 0x0b, 0xfc, 0x0b, 0))
}

// FuzzMeter checks that what wazero accepts is not unknown and is still accepted metered,
// and that nothing becomes valid by it.
func FuzzMeter(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, wasm []byte) {
		// What Meter does not call malformed is safe to decode: its counts are backed.
		core, _, err := rewrite.Strip(wasm)
		if err != nil {
			if !known(err) {
				t.Fatalf("error of no kind: %v", err)
			}
			return
		}
		sameVerdict(t, core)
	})
}

// FuzzStrip checks that stripping is stable and loses nothing but custom sections.
func FuzzStrip(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, wasm []byte) {
		core, sections, err := rewrite.Strip(wasm)
		if err != nil {
			if !known(err) {
				t.Fatalf("error of no kind: %v", err)
			}
			return
		}
		if len(core) > len(wasm) || len(sections) == 0 && len(core) != len(wasm) {
			t.Fatalf("%d bytes became %d", len(wasm), len(core))
		}
		again, none, err := rewrite.Strip(core)
		if err != nil || len(none) != 0 || !bytes.Equal(again, core) {
			t.Fatalf("a second time: %d sections, %v", len(none), err)
		}
	})
}
