// Package hosttest has what tests of a whole host share: the puppet, a handler that does
// what its payload says, and waiting for conditions.
package hosttest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"
)

var built struct {
	once sync.Once
	wasm []byte
	err  error
}

// Puppet is the puppet's module, built once for each test process.
func Puppet(t testing.TB) []byte {
	t.Helper()
	built.once.Do(func() { built.wasm, built.err = build("./host/hosttest/puppet", true) })
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.wasm
}

func build(pkg string, reactor bool) ([]byte, error) {
	dir, err := os.MkdirTemp("", "guesthand-guest")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "guest.wasm")
	args := []string{"build", "-o", out}
	if reactor {
		args = append(args, "-buildmode=c-shared")
	}
	c := exec.Command("go", append(args, pkg)...)
	c.Dir = Root()
	c.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	if text, err := c.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build %s: %w\n%s", pkg, err, text)
	}
	return os.ReadFile(out)
}

var cache struct {
	once sync.Once
	dir  string
	err  error
}

// ShareCache makes a data directory with the compiled code of earlier tests in it: what
// compiling a Go guest takes is no test's subject.
func ShareCache(t testing.TB, data string) {
	t.Helper()
	cache.once.Do(func() {
		if cache.dir, cache.err = os.UserCacheDir(); cache.err == nil {
			cache.dir = filepath.Join(cache.dir, "guesthand", "test-compiled")
			cache.err = os.MkdirAll(cache.dir, 0o700)
		}
	})
	if cache.err != nil {
		t.Fatal(cache.err)
	}
	if err := os.MkdirAll(data, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(cache.dir, filepath.Join(data, "cache")); err != nil {
		t.Fatal(err)
	}
}

// Root is the repository's directory.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..")
}

// Eventually waits until ok holds. The bound is for a test that would otherwise hang: no
// test depends on how soon it is.
func Eventually(t testing.TB, within time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", within, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Install puts a module into a plug-in directory, whole at once, with a time that counts
// as still.
func Install(t testing.TB, dir, job string, wasm []byte) {
	t.Helper()
	tmp := filepath.Join(dir, "."+job+".tmp")
	if err := os.WriteFile(tmp, wasm, 0o600); err != nil {
		t.Fatal(err)
	}
	old := time.Now().Add(-time.Minute)
	if err := os.Chtimes(tmp, old, old); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(dir, job+".wasm")); err != nil {
		t.Fatal(err)
	}
}

// Noop is a native module that reads its payload and succeeds.
func Noop(t testing.TB) []byte {
	t.Helper()
	wasm, err := os.ReadFile(filepath.Join(Root(), "host", "engine", "testdata", "noop.wasm"))
	if err != nil {
		t.Fatal(err)
	}
	return wasm
}
