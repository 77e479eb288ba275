//go:build wasip1

// Command goguest is the Go guest of the tests: JSON work, a byte sum, a loop and a
// recursion without end.
package main

import (
	"encoding/json"
	"fmt"
	"strings"
)

func main() {}

var document = func() []byte {
	fields := make([]string, 40)
	for i := range fields {
		fields[i] = fmt.Sprintf(`"key%d":{"n":%d,"s":"value %d"}`, i, i, i*7)
	}
	return []byte("{" + strings.Join(fields, ",") + "}")
}()

// jsonWork decodes and encodes a document and answers the length of the result.
//
//go:wasmexport json_work
func jsonWork() int64 {
	var v map[string]any
	if err := json.Unmarshal(document, &v); err != nil {
		return -1
	}
	out, err := json.Marshal(v)
	if err != nil {
		return -1
	}
	return int64(len(out))
}

var buf = make([]byte, 64<<10)

//go:wasmexport sum
func sum(start int32) int64 {
	var s int64
	for i := range buf {
		buf[i] += byte(start)
		s += int64(buf[i])
	}
	return s
}

//go:wasmexport spin
func spin() {
	for {
	}
}

//go:noinline
func deeper(n int64) int64 {
	if n < 0 {
		return 0
	}
	return deeper(n+1) + 1
}

//go:wasmexport deep
func deep() int64 { return deeper(0) }
