package hosttest

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
)

// Effects is a small native module whose payload is a list of operations, as Op makes them:
// what it keeps, sends and returns is up to each message.
func Effects(t testing.TB) []byte {
	t.Helper()
	wasm, err := os.ReadFile(filepath.Join(Root(), "host", "engine", "testdata", "effects.wasm"))
	if err != nil {
		t.Fatal(err)
	}
	return wasm
}

// Op is one operation: g, p, c and d are kv_get, kv_put, kv_create and kv_delete of the key a
// with the value b and a ttl of n ms; s is message_send of the head a with the body b; r
// returns n. t counts the runs of the message in its state, and returns a delay of 1 ms until
// there were n before. The result is what each of them returned, 4 bytes, and the value after
// that of g.
func Op(letter byte, a string, n int64, b string) string {
	out := binary.LittleEndian.AppendUint16([]byte{letter}, uint16(len(a)))
	out = binary.LittleEndian.AppendUint64(out, uint64(n))
	out = binary.LittleEndian.AppendUint32(out, uint32(len(b)))
	return string(out) + a + b
}

// Results are what the operations of a run returned, but for those of g with a value.
func Results(output []byte) (codes []int32) {
	for ; len(output) >= 4; output = output[4:] {
		codes = append(codes, int32(binary.LittleEndian.Uint32(output)))
	}
	return codes
}
