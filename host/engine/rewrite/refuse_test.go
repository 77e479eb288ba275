package rewrite_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/guesthand/guesthand/host/engine/rewrite"
)

// asm puts sections together; each is its id and its body.
func asm(sections ...[]byte) []byte {
	out := []byte("\x00asm\x01\x00\x00\x00")
	for _, s := range sections {
		out = append(out, s[0], byte(len(s)-1))
		out = append(out, s[1:]...)
	}
	return out
}

// body makes a module of one function () -> () with the instructions and nothing else but
// a memory, a table and one global.
func body(instrs ...byte) []byte {
	return asm(
		[]byte{1, 1, 0x60, 0, 0},
		[]byte{3, 1, 0},
		[]byte{4, 1, 0x70, 0, 1},
		[]byte{5, 1, 0, 1},
		[]byte{6, 1, 0x7f, 1, 0x41, 0, 0x0b},
		append([]byte{10, 1, byte(len(instrs) + 2), 0}, append(slices.Clone(instrs), 0x0b)...),
	)
}

var (
	typeVoid = []byte{1, 1, 0x60, 0, 0}
	oneFunc  = []byte{3, 1, 0}
	oneBody  = []byte{10, 1, 2, 0, 0x0b}
)

func TestRefusals(t *testing.T) {
	tests := []struct {
		name string
		wasm []byte
		want error
		text string
	}{
		{"empty", nil, rewrite.ErrMalformed, "core module"},
		{"component", []byte("\x00asm\x0d\x00\x01\x00"), rewrite.ErrMalformed, "core module"},
		{"section id", asm([]byte{14}), rewrite.ErrUnknown, "section id 14"},
		{"section order", asm(oneFunc, typeVoid), rewrite.ErrMalformed, "out of order"},
		{"section twice", asm(typeVoid, typeVoid), rewrite.ErrMalformed, "out of order"},
		{"section cut", asm(typeVoid)[:11], rewrite.ErrMalformed, "beyond the section"},
		{"section too long", asm(append(slices.Clone(typeVoid), 0)), rewrite.ErrMalformed, "1 bytes too many"},
		{"count", asm([]byte{1, 0xff, 0xff, 0xff, 0xff, 0x0f}), rewrite.ErrMalformed, "beyond the section"},
		{"long integer", asm([]byte{1, 0x80, 0x80, 0x80, 0x80, 0x80, 0}), rewrite.ErrMalformed, "over 5 bytes"},
		{"wide integer", asm([]byte{1, 0xff, 0xff, 0xff, 0xff, 0x1f}), rewrite.ErrMalformed, "over 32 bits"},
		{"type index", asm(typeVoid, []byte{3, 1, 1}, oneBody), rewrite.ErrMalformed, "type 1 of 1"},
		{"no code", asm(typeVoid, oneFunc), rewrite.ErrMalformed, "without code"},
		{"more code", asm(typeVoid, oneFunc, []byte{10, 2, 2, 0, 0x0b, 2, 0, 0x0b}), rewrite.ErrMalformed, "1 functions but 2 bodies"},
		{"locals", asm(typeVoid, oneFunc, []byte{10, 1, 8, 1, 0xff, 0xff, 0xff, 0xff, 0x0f, 0x7f, 0x0b}), rewrite.ErrMalformed, "locals, at most 50000"},
		{"large table", asm([]byte{4, 1, 0x70, 0, 0x81, 0x80, 0x40}), rewrite.ErrMalformed, "table of 1048577"},
		{"memory", asm([]byte{5, 1, 0, 0x81, 0x80, 0x04}), rewrite.ErrMalformed, "pages"},
		{"two memories", asm([]byte{5, 2, 0, 1, 0, 1}), rewrite.ErrUnknown, "2 memories"},
		{"shared memory", asm([]byte{5, 1, 3, 1, 1}), rewrite.ErrUnknown, "shared"},
		{"memory64", asm([]byte{5, 1, 4, 1}), rewrite.ErrUnknown, "limits"},
		{"tags", asm(typeVoid, []byte{13, 1, 0, 0}), rewrite.ErrUnknown, "tag"},
		{"malformed after unknown", asm([]byte{5, 2, 0, 1, 0, 1}, []byte{11, 9, 0}), rewrite.ErrMalformed, "beyond the section"},
		{"element count", asm(typeVoid, oneFunc, []byte{9, 1, 1, 0, 0xff, 0xff, 0x03}, oneBody), rewrite.ErrMalformed, "beyond the section"},
		{"element kind", asm([]byte{9, 1, 8, 0}), rewrite.ErrMalformed, "kind 8"},
		{"data count", asm([]byte{11, 1, 1, 0xff, 0xff, 0xff, 0xff, 0x0f}), rewrite.ErrMalformed, "beyond the section"},
		{"own import", asm(typeVoid, append(append([]byte{2, 1, 14}, rewrite.YieldModule...), 1, 'x', 0, 0)), rewrite.ErrMalformed, "host's own"},
		{"extended constant", asm([]byte{6, 1, 0x7f, 0, 0x41, 1, 0x41, 1, 0x6a, 0x0b}), rewrite.ErrUnknown, "arithmetic"},
		{"later global", asm([]byte{6, 1, 0x7f, 0, 0x23, 1, 0x0b}), rewrite.ErrMalformed, "global 1 of 1"},
		{"exported function", asm(typeVoid, oneFunc, []byte{7, 1, 1, 'f', 0, 1}, oneBody), rewrite.ErrMalformed, "function 1 of 1"},

		// One more would be the counters' own.
		{"counter by global.set", body(0x41, 0, 0x24, 1), rewrite.ErrMalformed, "global 1 of 1"},
		{"counter by global.get", body(0x23, 1, 0x1a), rewrite.ErrMalformed, "global 1 of 1"},
		{"counter by export", asm([]byte{6, 1, 0x7f, 1, 0x41, 0, 0x0b}, []byte{7, 1, 1, 'g', 3, 1}), rewrite.ErrMalformed, "global 1 of 1"},
		{"local of the counter", body(0x03, 0x40, 0x41, 0, 0x21, 0, 0x0b), rewrite.ErrMalformed, "local 0 of 0"},
		{"function of the counter", body(0x10, 1), rewrite.ErrMalformed, "function 1 of 1"},
		{"reference to the counter", body(0xd2, 1, 0x1a), rewrite.ErrMalformed, "function 1 of 1"},
		{"type of the counter", body(0x02, 1, 0x0b), rewrite.ErrMalformed, "type 1 of 1"},
		{"indirect type", body(0x41, 0, 0x11, 1, 0), rewrite.ErrMalformed, "type 1 of 1"},

		{"else", body(0x02, 0x40, 0x05, 0x0b), rewrite.ErrMalformed, "else without if"},
		{"second else", body(0x41, 0, 0x04, 0x40, 0x05, 0x05, 0x0b), rewrite.ErrMalformed, "else without if"},
		{"not closed", body(0x02, 0x40), rewrite.ErrMalformed, "unexpected end"},
		{"closed twice", body(0x0b), rewrite.ErrMalformed, "too many"},
		{"wide constant", body(0x41, 0xff, 0xff, 0xff, 0xff, 0x4f, 0x1a), rewrite.ErrMalformed, "over 32 bits"},
		{"wide long constant", body(0x42, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x01, 0x1a), rewrite.ErrMalformed, "over 64 bits"},
		{"branch table", body(0x0e, 0xff, 0x7f, 0), rewrite.ErrMalformed, "beyond the section"},
		// Decoders disagree on these, so loops could be hidden in them.
		{"long form of a misc opcode", body(0xfc, 0x8b, 0x00), rewrite.ErrMalformed, "0xfc 0x8b"},
		{"long form of a vector opcode", body(0xfd, 0x8c, 0x00), rewrite.ErrMalformed, "0xfd 0x8c 0x0"},
		{"relaxed vector opcode", body(0xfd, 0x80, 0x02), rewrite.ErrMalformed, "0xfd 0x80 0x2"},
		{"vector opcode without meaning", body(0xfd, 0x9a, 0x01), rewrite.ErrUnknown, "0xfd 0x9a"},
		{"memory index", body(0x3f, 1, 0x1a), rewrite.ErrUnknown, "memory index"},
		{"try", body(0x06, 0x40, 0x0b), rewrite.ErrUnknown, "opcode 0x6"},
		{"try_table", body(0x1f, 0x40, 0, 0x0b), rewrite.ErrUnknown, "opcode 0x1f"},
		{"tail call", body(0x12, 0), rewrite.ErrUnknown, "opcode 0x12"},
		{"atomics", body(0xfe, 3, 0), rewrite.ErrUnknown, "opcode 0xfe"},
		{"typed reference", body(0x02, 0x63, 0x70, 0x0b), rewrite.ErrUnknown, "block type"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := rewrite.Meter(test.wasm, rewrite.Options{MaxDepth: 10})
			if !errors.Is(err, test.want) {
				t.Fatalf("got %v, want %v", err, test.want)
			}
			if !strings.Contains(err.Error(), test.text) {
				t.Errorf("%q does not mention %q", err, test.text)
			}
		})
	}
}

func TestAccepted(t *testing.T) {
	for name, wasm := range map[string][]byte{
		"nothing":          asm(),
		"one function":     asm(typeVoid, oneFunc, oneBody),
		"limits of an i32": body(0x41, 0x80, 0x80, 0x80, 0x80, 0x78, 0x1a, 0x41, 0xff, 0xff, 0xff, 0xff, 0x07, 0x1a),
		"limits of an i64": body(0x42, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x7f, 0x1a),
		"padded index":     body(0x10, 0x80, 0x80, 0x80, 0x80, 0x00),
		"padded constant":  body(0x41, 0xff, 0xff, 0xff, 0xff, 0x7f, 0x1a),
	} {
		out, err := rewrite.Meter(wasm, rewrite.Options{MaxDepth: 10})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if err := compiles(t.Context(), out); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
