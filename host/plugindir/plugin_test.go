package plugindir

import (
	"testing"

	"github.com/guesthand/guesthand/host/engine"
)

// TestVersionReferences: a version that has been given up is never handed out again, or a
// run could meet a closed module.
func TestVersionReferences(t *testing.T) {
	e, err := engine.New(engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := e.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	m, err := e.Load(t.Context(), []byte("\x00asm\x01\x00\x00\x00"+
		"\x01\x05\x01\x60\x00\x01\x7e"+ // type: () -> i64
		"\x03\x02\x01\x00"+ // function
		"\x05\x03\x01\x00\x01"+ // memory
		"\x07\x13\x02\x06memory\x02\x00\x06handle\x00\x00"+ // exports
		"\x0a\x06\x01\x04\x00\x42\x00\x0b"), engine.Config{}) // code: 0
	if err != nil {
		t.Fatal(err)
	}
	v := newVersion(m, engine.Config{}, func() {})
	if !v.acquire() {
		t.Fatal("a live version cannot be acquired")
	}
	v.release()
	v.release() // the directory's own
	if v.acquire() {
		t.Fatal("a version that has been given up was acquired")
	}
	defer func() {
		if recover() == nil {
			t.Error("one release too many goes unnoticed")
		}
	}()
	v.release()
}
