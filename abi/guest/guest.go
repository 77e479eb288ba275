// Package guest holds the guest SDKs, one folder for each language, for the command to put
// into handlers' projects. Modules never import it.
package guest

import (
	"embed"
	"encoding/binary"
	"slices"
)

// Files are the SDKs as LANGUAGE/FILE.
//
//go:embed go/guesthand.go rust/guesthand.rs c/guesthand.h assemblyscript/guesthand.ts zig/guesthand.zig wat/handler.wat javascript/guesthand.d.ts
var Files embed.FS

//go:embed javascript/runtime.wasm
var runtime []byte

// JavaScript makes a module of a script: the runtime with the script as the custom section
// guesthand.script, and beside it the name that the script's errors show.
func JavaScript(name string, script []byte) []byte {
	wasm := appendSection(slices.Clone(runtime), scriptSection, script)
	return appendSection(wasm, "guesthand.script.name", []byte(name))
}

const scriptSection = "guesthand.script"

// Script is the script within a module that JavaScript made, and false for any other module.
func Script(wasm []byte) ([]byte, bool) {
	const header = 8
	for rest := wasm[min(header, len(wasm)):]; len(rest) > 1; {
		id := rest[0]
		body, after, ok := sized(rest[1:])
		if !ok {
			return nil, false
		}
		if name, data, ok := sized(body); id == 0 && ok && string(name) == scriptSection {
			return data, true
		}
		rest = after
	}
	return nil, false
}

// sized cuts off what a length stands before.
func sized(b []byte) (body, after []byte, ok bool) {
	size, n := binary.Uvarint(b)
	if n <= 0 || size > uint64(len(b)-n) {
		return nil, nil, false
	}
	return b[n : n+int(size)], b[n+int(size):], true
}

// appendSection adds a custom section at a module's end.
func appendSection(wasm []byte, name string, data []byte) []byte {
	body := append(binary.AppendUvarint(nil, uint64(len(name))), name...)
	body = append(body, data...)
	wasm = binary.AppendUvarint(append(wasm, 0), uint64(len(body)))
	return append(wasm, body...)
}
