// Package guest holds the guest SDKs, one folder for each language, for the command to put
// into handlers' projects. Modules never import it.
package guest

import "embed"

// Files are the SDKs as LANGUAGE/FILE.
//
//go:embed go/guesthand.go rust/guesthand.rs c/guesthand.h assemblyscript/guesthand.ts zig/guesthand.zig wat/handler.wat
var Files embed.FS
