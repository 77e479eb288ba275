package guest_test

import (
	"bytes"
	"os"
	"testing"

	"github.com/guesthand/guesthand/abi/guest"
)

func TestScript(t *testing.T) {
	script := bytes.Repeat([]byte("export default () => {};\n"), 100)
	module := guest.JavaScript("h.js", script)
	if got, ok := guest.Script(module); !ok || !bytes.Equal(got, script) {
		t.Errorf("%v, %d bytes of script", ok, len(got))
	}
	for cut := range 64 { // broken modules are no reason to break
		guest.Script(module[:cut])
		guest.Script(module[:len(module)-cut])
	}
	if _, ok := guest.Script([]byte("\x00asm\x01\x00\x00\x00")); ok {
		t.Error("a script in an empty module")
	}
}

// The runtime is built by hand, so that a change of the SDK may be left out of it.
func TestRuntimeHasSDK(t *testing.T) {
	sdk, err := os.ReadFile("javascript/guesthand.js")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(guest.JavaScript("h.js", nil), sdk) {
		t.Error("runtime.wasm holds another guesthand.js; run abi/guest/javascript/build.sh")
	}
}
