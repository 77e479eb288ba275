//go:build wasip1

// Charge is the recipe of docs/kv.md: it charges an order once, however often its message is
// delivered and however many messages there are for it. The payload is the order's number. It
// logs each step, and the test that reads the log is the payment service.
package main

import (
	"fmt"
	"strings"
	"time"
	"unsafe"
)

//go:wasmimport guesthand_v1 payload_size
func payloadSize() int32

//go:wasmimport guesthand_v1 payload_read
func payloadRead(dst unsafe.Pointer, n, offset int32) int32

//go:wasmimport guesthand_v1 attribute_read
func attributeRead(name unsafe.Pointer, nameLen int32, dst unsafe.Pointer, n int32) int32

//go:wasmimport guesthand_v1 log_write
func logWrite(level int32, p unsafe.Pointer, n int32)

//go:wasmimport guesthand_v1 kv_get
func kvGet(key unsafe.Pointer, keyLen int32, dst unsafe.Pointer, n int32) int32

//go:wasmimport guesthand_v1 kv_put
func kvPut(key unsafe.Pointer, keyLen int32, val unsafe.Pointer, n int32, ttl int64) int32

//go:wasmimport guesthand_v1 kv_create
func kvCreate(key unsafe.Pointer, keyLen int32, val unsafe.Pointer, n int32, ttl int64) int32

const (
	success = 0
	retry   = 1
	keep    = 30 * 24 * time.Hour // longer than a message for the order may still come
)

//go:wasmexport handle
func handle() int64 {
	order := payload()
	claim := "charge/" + order
	// One of all runs for the order chooses the idempotency key, and all of them use it.
	key := attribute("id")
	switch create(claim, "key "+key) {
	case 0:
		step("claimed %s %s", order, key)
	case 1:
		value, ok := get(claim)
		if !ok {
			return retry
		}
		if strings.HasPrefix(value, "done ") {
			return success
		}
		key = strings.TrimPrefix(value, "key ")
	default:
		return retry
	}
	// Whether an earlier run got as far as this is not known. The service does: it charges
	// once for each key.
	step("charge %s %s", order, key)
	if put(claim, "done "+key) != 0 {
		return retry
	}
	step("recorded %s %s", order, key)
	return success
}

// step logs, and leaves a moment in which the host can die.
func step(format string, args ...any) {
	b := []byte(fmt.Sprintf(format, args...))
	logWrite(0, unsafe.Pointer(&b[0]), int32(len(b)))
	time.Sleep(3 * time.Millisecond)
}

func payload() string {
	b := make([]byte, max(1, payloadSize()))
	return string(b[:payloadRead(unsafe.Pointer(&b[0]), int32(len(b)), 0)])
}

func attribute(name string) string {
	n, b := []byte(name), make([]byte, 256)
	return string(b[:max(0, attributeRead(unsafe.Pointer(&n[0]), int32(len(n)), unsafe.Pointer(&b[0]), int32(len(b))))])
}

func get(key string) (string, bool) {
	k, b := []byte(key), make([]byte, 256)
	n := kvGet(unsafe.Pointer(&k[0]), int32(len(k)), unsafe.Pointer(&b[0]), int32(len(b)))
	return string(b[:max(0, n)]), n >= 0
}

func create(key, value string) int32 {
	k, v := []byte(key), []byte(value)
	return kvCreate(unsafe.Pointer(&k[0]), int32(len(k)), unsafe.Pointer(&v[0]), int32(len(v)), keep.Milliseconds())
}

func put(key, value string) int32 {
	k, v := []byte(key), []byte(value)
	return kvPut(unsafe.Pointer(&k[0]), int32(len(k)), unsafe.Pointer(&v[0]), int32(len(v)), keep.Milliseconds())
}

func main() {}
