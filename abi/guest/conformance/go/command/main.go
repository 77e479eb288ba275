//go:build wasip1

// Command is the conformance handler as a program.
package main

import (
	conformance "github.com/guesthand/guesthand/abi/guest/conformance/go"
	guesthand "github.com/guesthand/guesthand/abi/guest/go"
)

func main() { guesthand.Main(conformance.Handle) }
