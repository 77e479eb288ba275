//go:build wasip1

// Native is the conformance handler as a reactor.
package main

import (
	conformance "github.com/guesthand/guesthand/abi/guest/conformance/go"
	guesthand "github.com/guesthand/guesthand/abi/guest/go"
)

func main() {} // needed by the compiler, never called

//go:wasmexport handle
func handle() int64 { return guesthand.Run(conformance.Handle) }
