package plugindir_test

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/guesthand/guesthand/host/plugindir"
)

// slowly writes a file in place in steps over about two seconds. The file is a valid module
// each time it is as long as one of the stops, where the writer rests.
func (f *fixture) slowly(name string, data []byte, stops ...int) {
	f.t.Helper()
	w, err := os.Create(f.path(name))
	if err != nil {
		f.t.Fatal(err)
	}
	const steps = 80
	for at := 0; at < len(data); {
		end := min(at+max(1, len(data)/steps), len(data))
		for _, stop := range stops {
			if at < stop && stop < end {
				end = stop
			}
		}
		if _, err := w.Write(data[at:end]); err != nil {
			f.t.Fatal(err)
		}
		at = end
		time.Sleep(2 * time.Second / steps)
	}
	if err := w.Close(); err != nil {
		f.t.Fatal(err)
	}
}

// TestReplace runs messages without a pause while a version takes over from another.
func TestReplace(t *testing.T) {
	tests := []struct {
		name    string
		replace func(f *fixture, b []byte)
	}{
		{"overwritten", func(f *fixture, b []byte) { f.write("job.wasm", b) }},
		{"renamed into place", func(f *fixture, b []byte) { f.rename("job.wasm", b) }},
		{"removed and written", func(f *fixture, b []byte) {
			f.remove("job.wasm")
			time.Sleep(150 * time.Millisecond) // seen to be gone
			f.write("job.wasm", b)
		}},
		{"copied slowly", func(f *fixture, b []byte) {
			b = padded(b, 100_000)
			f.slowly("job.wasm", b, len(b)-(0x70-dataStart))
		}},
		{"a truncated copy that is a valid module, then the rest", func(f *fixture, b []byte) {
			f.write("job.wasm", b[:dataStart])
			time.Sleep(100 * time.Millisecond) // seen, and less than still
			f.write("job.wasm", b)
		}},
		{"with the time of the one before", func(f *fixture, b []byte) {
			then := f.modTime("job.wasm")
			f.write("job.wasm", b)
			if err := os.Chtimes(f.path("job.wasm"), then, then); err != nil {
				f.t.Fatal(err)
			}
		}},
		{"together with its sidecar", func(f *fixture, b []byte) {
			f.write("job.toml", []byte("concurrency = 7\n"))
			f.write("job.wasm", b)
		}},
		{"by a symbolic link", func(f *fixture, b []byte) {
			target := filepath.Join(f.t.TempDir(), "new")
			if err := os.WriteFile(target, b, 0o644); err != nil {
				f.t.Fatal(err)
			}
			f.symlink(target, ".job.wasm")
			if err := os.Rename(f.path(".job.wasm"), f.path("job.wasm")); err != nil {
				f.t.Fatal(err)
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := setUp(t)
			f.old("job.wasm", version(t, 'A'))
			o := f.options()
			o.Still = 500 * time.Millisecond
			f.open(o)
			f.await("job", plugindir.Loaded)
			f.serves("job", "version A")
			stop := f.traffic("job")
			defer stop()

			tt.replace(f, version(t, 'B'))

			c := f.await("job", plugindir.Loaded)
			f.serves("job", "version B")
			if s := f.status("job"); s.Digest != c.Digest || c.Old == c.Digest || s.Error != "" {
				t.Errorf("change %+v, status %+v", c, s)
			}
			f.nothing()
			for got := range stop() {
				if got != "version A" && got != "version B" {
					t.Errorf("a message got %q", got)
				}
			}
		})
	}
}

func (f *fixture) modTime(name string) time.Time {
	fi, err := os.Stat(f.path(name))
	if err != nil {
		f.t.Fatal(err)
	}
	return fi.ModTime()
}

// TestSidecarComesWithItsModule checks that no message sees a module under the settings of
// the other version.
func TestSidecarComesWithItsModule(t *testing.T) {
	f := start(t, map[string][]byte{"job.wasm": version(t, 'A'), "job.toml": []byte("concurrency = 1\n")})
	f.await("job", plugindir.Loaded)
	seen := func() (string, int) {
		p, _ := f.Acquire("job")
		defer p.Release()
		return p.Digest(), p.Handler().Concurrency
	}
	old, n := seen()
	if n != 1 {
		t.Fatalf("concurrency %d", n)
	}
	f.rename("job.wasm", version(t, 'B'))
	time.Sleep(50 * time.Millisecond)
	f.rename("job.toml", []byte("concurrency = 2\n"))
	for deadline := time.Now().Add(patience); ; {
		digest, n := seen()
		if (digest == old) != (n == 1) {
			t.Fatalf("version %s with concurrency %d", digest, n)
		}
		if n == 2 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the new version does not serve")
		}
	}
}

// TestRefused puts versions that cannot serve in the place of one that does.
func TestRefused(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(f *fixture)
		want  string // in the error
	}{
		{"garbage", func(f *fixture) { f.write("job.wasm", []byte("garbage")) }, "this is no WebAssembly module"},
		{"empty", func(f *fixture) { f.write("job.wasm", nil) }, "the file is empty"},
		{"truncated", func(f *fixture) { f.rename("job.wasm", version(f.t, 'B')[:dataStart-3]) }, "not a valid module"},
		{"truncated in place", func(f *fixture) {
			if err := os.Truncate(f.path("job.wasm"), dataStart-3); err != nil {
				f.t.Fatal(err)
			}
		}, "not a valid module"},
		{"traps at its start", func(f *fixture) { f.write("job.wasm", guest(f.t, "start_trap")) }, "start: "},
		{"too large", func(f *fixture) {
			if err := os.Truncate(f.path("job.wasm"), 256<<20+1); err != nil {
				f.t.Fatal(err)
			}
		}, "job.wasm has 268435457 bytes, over the limit of 268435456"},
		{"a link to nothing", func(f *fixture) {
			f.remove("job.wasm")
			f.symlink("nothing", "job.wasm")
		}, "no such file"},
		{"a link to itself", func(f *fixture) {
			f.remove("job.wasm")
			f.symlink("job.wasm", "job.wasm")
		}, "too many"},
		{"no permission", func(f *fixture) {
			if os.Geteuid() == 0 || runtime.GOOS == "windows" {
				f.t.Skip("this user may read everything")
			}
			if err := os.Chmod(f.path("job.wasm"), 0); err != nil {
				f.t.Fatal(err)
			}
		}, "permission denied"},
		{"a pipe", func(f *fixture) {
			f.remove("job.wasm")
			if err := mkfifo(f.path("job.wasm")); err != nil {
				f.t.Skipf("no pipes here: %v", err)
			}
		}, "job.wasm is not a regular file"},
		{"a sidecar that is no TOML", func(f *fixture) { f.write("job.toml", []byte("timeout = ")) }, "job.toml"},
		{"a sidecar that grants itself something", func(f *fixture) {
			f.write("job.toml", []byte("secrets = { KEY = \"env:KEY\" }\n"))
		}, "trust_sidecars"},
		{"a sidecar over the ceiling", func(f *fixture) { f.write("job.toml", []byte("memory = \"3GiB\"\n")) }, "memory"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := start(t, map[string][]byte{"job.wasm": version(t, 'A')})
			first := f.await("job", plugindir.Loaded)
			stop := f.traffic("job")
			defer stop()

			tt.spoil(f)
			c := f.await("job", plugindir.Refused)
			if !strings.Contains(c.Err.Error(), tt.want) || c.Old != first.Digest {
				t.Errorf("change %+v, want %q in the error", c, tt.want)
			}
			s := f.status("job")
			if s.State != plugindir.Ready || s.Digest != first.Digest || s.Error != c.Err.Error() || s.RefusedDigest != c.Digest {
				t.Errorf("status %+v after %+v", s, c)
			}
			loads := f.loads.Load()
			f.nothing() // it is not told again
			if n := f.loads.Load(); n != loads {
				t.Errorf("a version that was refused is compiled again")
			}
			for got := range stop() {
				if got != "version A" {
					t.Errorf("a message got %q", got)
				}
			}

			_ = os.Remove(f.path("job.toml")) // most have none
			f.rename("job.wasm", version(t, 'C'))
			f.await("job", plugindir.Loaded)
			f.serves("job", "version C")
			if s := f.status("job"); s.Error != "" || s.RefusedDigest != "" {
				t.Errorf("status %+v of a mended one", s)
			}
		})
	}
}

// TestMendedByTheSameVersion puts the version that serves back in the place of a broken one.
func TestMendedByTheSameVersion(t *testing.T) {
	f := start(t, map[string][]byte{"job.wasm": version(t, 'A')})
	f.await("job", plugindir.Loaded)
	f.write("job.wasm", []byte("garbage"))
	f.await("job", plugindir.Refused)
	f.rename("job.wasm", version(t, 'A'))
	f.await("job", plugindir.Loaded)
	if s := f.status("job"); s.Error != "" || f.loads.Load() != 2 {
		t.Errorf("status %+v after %d loads", s, f.loads.Load())
	}
	f.write("job.wasm", []byte("garbage"))
	f.await("job", plugindir.Refused) // told again, since it was mended meanwhile
}

// TestMountedFolder swaps the link that all files of a mounted Kubernetes volume go through.
func TestMountedFolder(t *testing.T) {
	f := setUp(t)
	version1, version2 := f.path("..2024_1"), f.path("..2024_2")
	for dir, letter := range map[string]byte{version1: 'A', version2: 'B'} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(filepath.Base(dir), "job.wasm")
		f.old(name, version(t, letter))
	}
	f.symlink(filepath.Base(version1), "..data")
	f.symlink(filepath.Join("..data", "job.wasm"), "job.wasm")
	f.open(f.options())
	f.await("job", plugindir.Loaded)
	stop := f.traffic("job")
	defer stop()

	f.symlink(filepath.Base(version2), "..data_tmp")
	if err := os.Rename(f.path("..data_tmp"), f.path("..data")); err != nil {
		t.Fatal(err)
	}
	f.await("job", plugindir.Loaded)
	f.serves("job", "version B")
	for got := range stop() {
		if got != "version A" && got != "version B" {
			t.Errorf("a message got %q", got)
		}
	}
}

// TestLinkTargetElsewhere changes a file that the directory's own events say nothing of.
func TestLinkTargetElsewhere(t *testing.T) {
	f := setUp(t)
	target := filepath.Join(t.TempDir(), "module")
	if err := os.WriteFile(target, version(t, 'A'), 0o644); err != nil {
		t.Fatal(err)
	}
	f.symlink(target, "job.wasm")
	f.open(f.options())
	f.await("job", plugindir.Loaded)
	if err := os.WriteFile(target, version(t, 'B'), 0o644); err != nil {
		t.Fatal(err)
	}
	f.await("job", plugindir.Loaded)
	f.serves("job", "version B")
}
