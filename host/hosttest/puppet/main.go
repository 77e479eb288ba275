//go:build wasip1

// Puppet is a handler that does what its payload says, for tests. The payload is a list of
// steps separated by "|"; run number n does step n, and the last step holds for all later
// runs. A step is one of
//
//	N            return N (any number)
//	N DELAY      return outcome code N with a delay in milliseconds
//	trap         crash
//	loop         never return
//	sleep MS     sleep, then return 0
//	hang         log "puppet hangs", then sleep for an hour
//	exit N       call proc_exit(N)
//	state        return 1 with one more byte of state, 0 once there are three
//	headers      return 0 with the message's headers as the result: NAME=VALUE lines
//
// Anything behind ";" in a step is the error text.
package main

import (
	"os"
	"strconv"
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

//go:wasmimport guesthand_v1 error_write
func errorWrite(p unsafe.Pointer, n int32) int32

//go:wasmimport guesthand_v1 result_write
func resultWrite(p unsafe.Pointer, n int32) int32

//go:wasmimport guesthand_v1 state_read
func stateRead(dst unsafe.Pointer, n int32) int32

//go:wasmimport guesthand_v1 state_write
func stateWrite(p unsafe.Pointer, n int32) int32

//go:wasmimport guesthand_v1 log_write
func logWrite(level int32, p unsafe.Pointer, n int32)

//go:wasmexport handle
func handle() int64 {
	payload := make([]byte, payloadSize())
	if len(payload) > 0 {
		payloadRead(unsafe.Pointer(&payload[0]), int32(len(payload)), 0)
	}
	attempt, err := strconv.Atoi(attribute("attempt"))
	if err != nil {
		panic(err)
	}
	steps := strings.Split(string(payload), "|")
	step, text, _ := strings.Cut(steps[min(attempt, len(steps))-1], ";")
	if text != "" {
		b := []byte(text)
		errorWrite(unsafe.Pointer(&b[0]), int32(len(b)))
	}
	words := strings.Fields(step)
	if len(words) > 0 && words[0] == "headers" {
		write(headers())
		return 0
	}
	write("attempt " + strconv.Itoa(attempt))
	return do(words)
}

func write(result string) {
	if b := []byte(result); len(b) > 0 {
		resultWrite(unsafe.Pointer(&b[0]), int32(len(b)))
	}
}

func headers() string {
	var b strings.Builder
	for name := range strings.Lines(attribute("headers")) {
		name = strings.TrimSuffix(name, "\n")
		b.WriteString(name + "=" + attribute("header."+name) + "\n")
	}
	return b.String()
}

func do(words []string) int64 {
	if len(words) == 0 {
		return 0
	}
	switch words[0] {
	case "trap":
		panic("puppet: trap")
	case "loop":
		for {
		}
	case "sleep":
		time.Sleep(time.Duration(number(words, 1)) * time.Millisecond)
		return 0
	case "hang":
		text := []byte("puppet hangs")
		logWrite(4, unsafe.Pointer(&text[0]), int32(len(text)))
		time.Sleep(time.Hour)
	case "exit":
		os.Exit(int(number(words, 1)))
	case "state":
		return state()
	}
	return number(words, 0) | number(words, 1)<<8
}

func state() int64 {
	var b [8]byte
	n := stateRead(unsafe.Pointer(&b[0]), int32(len(b)))
	if n == 3 {
		return 0
	}
	stateWrite(unsafe.Pointer(&b[0]), n+1)
	return 1
}

func number(words []string, i int) int64 {
	if i >= len(words) {
		return 0
	}
	n, err := strconv.ParseInt(words[i], 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

// attribute sizes and reads again where the first try was too short.
func attribute(name string) string {
	n, b := []byte(name), make([]byte, 64)
	for {
		k := attributeRead(unsafe.Pointer(&n[0]), int32(len(n)), unsafe.Pointer(&b[0]), int32(len(b)))
		switch {
		case k < 0:
			return ""
		case int(k) <= len(b):
			return string(b[:k])
		}
		b = make([]byte, k)
	}
}

func main() {}
