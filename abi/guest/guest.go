// Package guest holds the guest SDKs, one folder for each language, for the command to put
// into handlers' projects. Modules never import it.
package guest

import "embed"

// Files are the SDKs as LANGUAGE/FILE.
//
//go:embed go/guesthand.go rust/guesthand.rs c/guesthand.h assemblyscript/guesthand.ts zig/guesthand.zig wat/handler.wat javascript/guesthand.d.ts
var Files embed.FS

//go:embed javascript/runtime.wasm
var runtime []byte

// Runtime is the module that a JavaScript handler's script is attached to. It is not to be
// written to.
func Runtime() []byte { return runtime }
