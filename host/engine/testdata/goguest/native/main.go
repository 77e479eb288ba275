//go:build wasip1

// A native handler in plain Go, for the engine's tests. The payload's first word chooses.
package main

import (
	"runtime"
	"strings"
	"time"
	"unsafe"
)

//go:wasmimport guesthand_v1 payload_size
func payloadSize() int32

//go:wasmimport guesthand_v1 payload_read
func payloadRead(dst unsafe.Pointer, n, offset uint32) int32

//go:wasmimport guesthand_v1 result_write
func resultWrite(ptr unsafe.Pointer, n uint32) int32

var seen int

//go:wasmexport handle
func handle() int64 {
	seen++
	payload := make([]byte, payloadSize()+1)
	n := payloadRead(unsafe.Pointer(unsafe.SliceData(payload)), uint32(len(payload)), 0)
	switch word := string(payload[:n]); word {
	case "panic":
		panic("boom")
	case "nil":
		var p *int
		return int64(*p)
	case "loop":
		for {
		}
	case "sleep":
		time.Sleep(time.Hour)
	case "nap":
		time.Sleep(time.Millisecond)
	case "recurse":
		return int64(recurse(1))
	case "hog":
		for hog := [][]byte(nil); ; {
			hog = append(hog, make([]byte, 1<<20))
		}
	case "block":
		<-make(chan int)
	case "churn":
		churn()
	default:
		upper := []byte(strings.ToUpper(word))
		if len(upper) > 0 {
			resultWrite(unsafe.Pointer(unsafe.SliceData(upper)), uint32(len(upper)))
		}
	}
	return 0
}

func recurse(n int) int {
	var pad [64]byte
	pad[n%64] = byte(n)
	return recurse(n+1) + int(pad[(n+1)%64])
}

// churn makes garbage on several goroutines without end.
func churn() {
	for range 4 {
		go func() {
			for {
				_ = make([]byte, 64<<10)
				runtime.Gosched()
			}
		}()
	}
	for {
		runtime.Gosched()
	}
}

func main() {}
