package engine_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

//go:generate sh -c "for f in testdata/*.wat testdata/refused/*.wat; do wat2wasm --enable-memory64 $f -o ${f%.wat}.wasm; done"

// The modules in testdata are made from the text beside them, by wat2wasm of wabt; run
// go generate after a change.
func TestGuestsAreCurrent(t *testing.T) {
	tool, err := exec.LookPath("wat2wasm")
	if err != nil {
		t.Skip("no wat2wasm")
	}
	for _, pattern := range []string{"testdata/*.wat", "testdata/refused/*.wat"} {
		texts, err := filepath.Glob(pattern)
		if err != nil || len(texts) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(texts), err)
		}
		for _, text := range texts {
			out := filepath.Join(t.TempDir(), "out.wasm")
			if b, err := exec.Command(tool, "--enable-memory64", text, "-o", out).CombinedOutput(); err != nil {
				t.Errorf("%s: %v: %s", text, err, b)
				continue
			}
			want, err := os.ReadFile(out)
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(strings.TrimSuffix(text, ".wat") + ".wasm")
			if err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s is not what its module was made from (%v): run go generate", text, err)
			}
		}
	}
}
