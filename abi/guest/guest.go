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
	wasm := appendSection(slices.Clone(runtime), "guesthand.script", script)
	return appendSection(wasm, "guesthand.script.name", []byte(name))
}

// appendSection adds a custom section at a module's end.
func appendSection(wasm []byte, name string, data []byte) []byte {
	body := append(binary.AppendUvarint(nil, uint64(len(name))), name...)
	body = append(body, data...)
	wasm = binary.AppendUvarint(append(wasm, 0), uint64(len(body)))
	return append(wasm, body...)
}
