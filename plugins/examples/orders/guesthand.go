//go:build wasip1

package main

import "unsafe"

// What this handler uses of the import module guesthand_v1. A string goes to the host as its
// address and length.

//go:wasmimport guesthand_v1 payload_size
func payloadSize() int32

//go:wasmimport guesthand_v1 payload_read
func payloadRead(dst unsafe.Pointer, size, offset uint32) int32

//go:wasmimport guesthand_v1 attribute_read
func attributeRead(name string, dst unsafe.Pointer, size uint32) int32

//go:wasmimport guesthand_v1 result_write
func resultWrite(text string) int32

//go:wasmimport guesthand_v1 error_write
func errorWrite(text string) int32

//go:wasmimport guesthand_v1 log_write
func logWrite(level int32, text string)

// The outcome codes, with how long to wait in milliseconds above the low 8 bits.
const (
	success    = 0
	retry      = 1
	retryAfter = 10
	delay      = 11
	permanent  = 12
	reject     = 13
	pause      = 14
)

// levelInfo is log/slog's number for it.
const levelInfo = 0

func payload() []byte {
	b := make([]byte, payloadSize())
	if len(b) > 0 {
		payloadRead(unsafe.Pointer(&b[0]), uint32(len(b)), 0)
	}
	return b
}

// attribute is what the host knows of the message under a name, "" for nothing.
func attribute(name string) string {
	var buf [256]byte
	n := attributeRead(name, unsafe.Pointer(&buf[0]), uint32(len(buf)))
	return string(buf[:max(0, min(int(n), len(buf)))])
}
