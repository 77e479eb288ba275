package rewrite_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/guesthand/guesthand/host/engine/rewrite"
)

// frame makes a module around the instructions of one function () -> (), with one of
// everything they can refer to.
func frame(instrs []byte) []byte {
	entry := append([]byte{1, 2, 0x7f}, instrs...) // two i32 locals
	code := append(binary.AppendUvarint([]byte{1}, uint64(len(entry))), entry...)
	out := asm(
		typeVoid,
		oneFunc,
		[]byte{4, 1, 0x70, 0, 1},
		[]byte{5, 1, 0, 1},
		[]byte{6, 1, 0x7f, 1, 0x41, 0, 0x0b},
		[]byte{9, 1, 1, 0, 1, 0}, // passive, function 0
		[]byte{12, 1},
	)
	out = binary.AppendUvarint(append(out, 10), uint64(len(code)))
	out = append(out, code...)
	return append(out, 11, 3, 1, 1, 0) // one passive data segment
}

// sameVerdict meters the module and fails unless wazero thinks the same of both.
func sameVerdict(t *testing.T, wasm []byte) {
	t.Helper()
	out, err := rewrite.Meter(wasm, rewrite.Options{Every: 3, MaxDepth: 10})
	if err != nil && !known(err) {
		t.Fatalf("error of no kind: %v", err)
	}
	if errors.Is(err, rewrite.ErrMalformed) {
		return
	}
	before := compiles(t.Context(), wasm)
	if err != nil {
		if before == nil {
			t.Fatalf("wazero knows it: %v", err)
		}
		return
	}
	if after := compiles(t.Context(), out); (before == nil) != (after == nil) {
		t.Fatalf("before: %v\nafter: %v", before, after)
	}
}

// TestOpcodes gives every opcode every number of bytes 0 or 3 as immediates, and a loop
// after them, whose opcode is 3 too: taking one byte too many or too few shows as a different verdict, or as a
// refusal of what wazero knows.
func TestOpcodes(t *testing.T) {
	var opcodes [][]byte
	for op := range 0xfc {
		opcodes = append(opcodes, []byte{byte(op)})
	}
	for sub := range 0x20 {
		opcodes = append(opcodes, []byte{0xfc, byte(sub)})
	}
	for sub := range 0x100 {
		opcodes = append(opcodes, binary.AppendUvarint([]byte{0xfd}, uint64(sub)))
	}
	accepted := 0
	for _, op := range opcodes {
		for n := range 19 {
			for _, fill := range [][]byte{
				bytes.Repeat([]byte{0}, n),
				bytes.Repeat([]byte{3}, n),
				append([]byte{0}, bytes.Repeat([]byte{3}, n)...), // an alignment fit for all
			} {
				instrs := slices.Concat([]byte{0}, op, fill, []byte{0x03, 0x40, 0x0b, 0x00, 0x0b})
				if opcode(t, frame(instrs)) {
					accepted++
				}
			}
		}
	}
	if accepted < 5000 {
		t.Errorf("wazero accepted only %d bodies", accepted)
	}
}

// opcode says whether wazero accepts the module, and fails unless Meter agrees and finds
// the loop.
func opcode(t *testing.T, wasm []byte) bool {
	t.Helper()
	before := compiles(t.Context(), wasm)
	out, err := rewrite.Meter(wasm, rewrite.Options{})
	switch {
	case err != nil && before == nil:
		t.Errorf("%x: wazero knows it: %v", wasm, err)
	case err == nil:
		if after := compiles(t.Context(), out); (before == nil) != (after == nil) {
			t.Errorf("%x: before: %v; after: %v", wasm, before, after)
		}
	}
	loop := []byte{0x03, 0x40}
	if err == nil && before == nil && bytes.Count(out, loop) != bytes.Count(wasm, loop) {
		t.Errorf("%x: loops went missing", wasm)
	}
	return before == nil
}

// FuzzBody is FuzzMeter on one function's instructions.
func FuzzBody(f *testing.F) {
	f.Add([]byte{0x0b})
	f.Add([]byte{0x03, 0x40, 0x41, 0, 0x0d, 0, 0x03, 0x7f, 0x20, 0, 0x0b, 0x21, 1, 0x0b, 0x0b})
	f.Add([]byte{0x41, 0, 0x04, 0x40, 0x10, 0, 0x05, 0x41, 0, 0x11, 0, 0, 0x0b, 0x0b})
	f.Add([]byte{0x41, 0, 0xfd, 0, 4, 0, 0xfd, 0xae, 1, 0x1a, 0xfc, 8, 0, 0, 0xd2, 0, 0x1a, 0x0b})
	f.Add([]byte{0x02, 0x40, 0x41, 1, 0x0e, 2, 0, 0, 1, 0x0b, 0xd0, 0x70, 0x1a, 0x00, 0x0b})
	f.Fuzz(func(t *testing.T, instrs []byte) { sameVerdict(t, frame(instrs)) })
}
