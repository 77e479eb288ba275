package hosttest

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
)

// HTTP is a small native module that makes the request its payload says, as Asking makes one.
func HTTP(t testing.TB) []byte {
	t.Helper()
	wasm, err := os.ReadFile(filepath.Join(Root(), "host", "engine", "testdata", "http.wasm"))
	if err != nil {
		t.Fatal(err)
	}
	return wasm
}

// Asking is a payload for HTTP: the head and body of http_send, which is called so many times,
// and the header to read of the last response.
func Asking(times byte, head, header, body string) string {
	out := binary.LittleEndian.AppendUint16([]byte{times}, uint16(len(head)))
	out = binary.LittleEndian.AppendUint16(out, uint16(len(header)))
	return string(out) + head + header + body
}

// Answer is what HTTP's result says.
type Answer struct {
	Status       int32 // or an error
	HeaderSize   int32 // of its value, or an error
	Size         int32 // of the body, or an error
	Header, Body string
}

// Answered reads a result of HTTP; false where it is none.
func Answered(output []byte) (a Answer, ok bool) {
	if len(output) < 12 {
		return a, false
	}
	number := func(at int) int32 { return int32(binary.LittleEndian.Uint32(output[at:])) }
	a.Status, a.HeaderSize, a.Size = number(0), number(4), number(8)
	n := min(max(int(a.HeaderSize), 0), len(output)-12)
	a.Header, a.Body = string(output[12:12+n]), string(output[12+n:])
	return a, true
}
