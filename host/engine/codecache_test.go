package engine_test

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/guesthand/guesthand/host/engine"
)

// cached makes a cache directory with the code of one module and returns its entry.
func cached(t *testing.T, dir string) string {
	t.Helper()
	e, err := engine.New(engine.Options{CacheDir: dir, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	load(t, e, wat(t, "echo"), engine.Config{})
	entries := engine.CacheEntries(e)
	if len(entries) != 1 {
		t.Skipf("%d entries: no compiler on this platform", len(entries))
	}
	if err := e.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	return entries[0]
}

func TestCodeCacheHeals(t *testing.T) {
	damage := map[string]func(b []byte) []byte{
		"empty":             func([]byte) []byte { return nil },
		"half":              func(b []byte) []byte { return b[:len(b)/2] },
		"header only":       func(b []byte) []byte { return b[:7] },
		"no checksum":       func(b []byte) []byte { return b[:len(b)-10] },
		"flipped code":      func(b []byte) []byte { b[len(b)/2] ^= 0x40; return b },
		"flipped magic":     func(b []byte) []byte { b[0] ^= 0x40; return b },
		"garbage":           func(b []byte) []byte { return bytes.Repeat([]byte{0xff}, len(b)) },
		"absurd count":      func(b []byte) []byte { at := countAt(b); copy(b[at:], "\xff\xff\xff\x7f"); return b },
		"absurd offset":     func(b []byte) []byte { at := countAt(b) + 4; copy(b[at:], "\xff\xff\xff\xff\xff"); return b },
		"older than wazero": func(b []byte) []byte { return append(append(b[:6:6], 3), append([]byte("0.1"), b[countAt(b):]...)...) },
	}
	for name, hurt := range damage {
		for _, when := range []string{"before the start", "while running"} {
			t.Run(name+"/"+when, func(t *testing.T) {
				dir := t.TempDir()
				entry := cached(t, dir)
				spoil := func() {
					b, err := os.ReadFile(entry)
					if err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(entry, hurt(b), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				var log records
				if when == "before the start" {
					spoil()
				}
				e := newEngine(t, engine.Options{CacheDir: dir, Logger: slog.New(&log)})
				if when == "while running" {
					// wazero believes a count or a length it reads while it runs, and may
					// ask for more memory than there is; only what it checks is spoiled.
					if strings.HasPrefix(name, "absurd") || name == "garbage" {
						t.Skip("found at the start only")
					}
					spoil()
				}
				healthy(t, e)
				if b, err := os.ReadFile(entry); err != nil || len(b) == 0 {
					t.Errorf("the entry was not made anew: %v", err)
				}
				if n := len(log.take()); n > 1 {
					t.Errorf("%d log records, want one at most", n)
				}
				again := newEngine(t, engine.Options{CacheDir: dir, Logger: slog.New(&log)})
				healthy(t, again)
				if list := log.take(); len(list) != 0 {
					t.Errorf("the new entry is damaged too: %v", list[0].Message)
				}
			})
		}
	}
}

// countAt is where an entry's number of functions is: after magic and version.
func countAt(b []byte) int { return 7 + int(b[6]) }

func TestCodeCacheIsPrivate(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no modes")
	}
	dir := filepath.Join(t.TempDir(), "new")
	cached(t, dir)
	info, err := os.Stat(dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
}

func TestCodeCacheUnusable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var log records
	e := newEngine(t, engine.Options{CacheDir: file, Logger: slog.New(&log)})
	healthy(t, e)
	if list := log.take(); len(list) != 1 || list[0].Message != "compiled code is not kept" {
		t.Errorf("log: %v", list)
	}
}
