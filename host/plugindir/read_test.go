package plugindir

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestReadOneVersion changes a job's files after they were looked at: what is read then must
// not pass for the version that was seen.
func TestReadOneVersion(t *testing.T) {
	tests := []struct {
		name   string
		change func(module, sidecar string) error
		want   error
	}{
		{"unchanged", func(string, string) error { return nil }, nil},
		{"module rewritten", func(m, _ string) error { return os.WriteFile(m, []byte("MODULE"), 0o644) }, errMoved},
		{"module longer", func(m, _ string) error { return os.WriteFile(m, []byte("module and more"), 0o644) }, errMoved},
		{"module shorter", func(m, _ string) error { return os.Truncate(m, 1) }, errMoved},
		{"module gone", func(m, _ string) error { return os.Remove(m) }, errMoved},
		{"module replaced by one like it", func(m, _ string) error {
			fi, err := os.Stat(m)
			if err != nil {
				return err
			}
			return errors.Join(os.WriteFile(m+"2", []byte("MODULE"), 0o644), os.Chtimes(m+"2", fi.ModTime(), fi.ModTime()), os.Rename(m+"2", m))
		}, errMoved},
		{"sidecar rewritten", func(_, s string) error { return os.WriteFile(s, []byte("SIDE"), 0o644) }, errMoved},
		{"sidecar gone", func(_, s string) error { return os.Remove(s) }, errMoved},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			module, sidecar := filepath.Join(dir, "job.wasm"), filepath.Join(dir, "job.toml")
			then := time.Now().Add(-time.Minute)
			for path, text := range map[string]string{module: "module", sidecar: "side"} {
				if err := errors.Join(os.WriteFile(path, []byte(text), 0o644), os.Chtimes(path, then, then)); err != nil {
					t.Fatal(err)
				}
			}
			seen := stampOf(dir, "job")
			if err := tt.change(module, sidecar); err != nil {
				t.Fatal(err)
			}
			src, err := read(dir, "job", seen)
			if !errors.Is(err, tt.want) {
				t.Fatalf("read %q, %v; want %v", src.module, err, tt.want)
			}
			if err == nil && (string(src.module) != "module" || string(src.sidecar) != "side") {
				t.Errorf("read %q and %q", src.module, src.sidecar)
			}
		})
	}
}

// TestReadSidecarThatCame: a sidecar that was not there before makes another version.
func TestReadSidecarThatCame(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "job.wasm"), []byte("module"), 0o644); err != nil {
		t.Fatal(err)
	}
	seen := stampOf(dir, "job")
	if src, err := read(dir, "job", seen); err != nil || src.sidecar != nil {
		t.Fatalf("read %+v, %v", src, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "job.toml"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := read(dir, "job", seen); !errors.Is(err, errMoved) {
		t.Errorf("read: %v", err)
	}
}
