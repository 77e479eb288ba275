package plugindir_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/host/config"
	"github.com/guesthand/guesthand/host/engine"
	"github.com/guesthand/guesthand/host/plugindir"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// patience is how long a test waits for what should take well under a second.
const patience = 20 * time.Second

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// dataStart is where the data section of testdata/version.wasm begins. The file is a valid
// module up to there.
const dataStart = 0x5f

func guest(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name+".wasm"))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// version is a module whose result is "version " and the letter.
func version(t testing.TB, letter byte) []byte {
	return bytes.Replace(guest(t, "version"), []byte("version A"), []byte{'v', 'e', 'r', 's', 'i', 'o', 'n', ' ', letter}, 1)
}

// padded puts a custom section of size bytes before the data, so that it takes a while to
// copy.
func padded(wasm []byte, size int) []byte {
	section := append([]byte{3, 'p', 'a', 'd'}, make([]byte, size)...)
	head := binary.AppendUvarint([]byte{0}, uint64(len(section)))
	return bytes.Join([][]byte{wasm[:dataStart], head, section, wasm[dataStart:]}, nil)
}

// fixture is a Directory that runs on a folder of the test's own.
type fixture struct {
	*plugindir.Directory
	t       *testing.T
	dir     string
	changes chan plugindir.Change
	config  atomic.Pointer[config.Config]
	loads   atomic.Int64
	stop    func()
}

// setUp is a fixture that is not open yet.
func setUp(t *testing.T) *fixture {
	f := &fixture{t: t, dir: t.TempDir(), changes: make(chan plugindir.Change, 1000)}
	f.config.Store(config.Defaults())
	return f
}

func (f *fixture) options() plugindir.Options {
	e, err := engine.New(engine.Options{Logger: quiet})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := e.Close(ctx); err != nil {
			f.t.Errorf("close the engine: %v", err)
		}
	})
	return plugindir.Options{
		Dir: f.dir, Engine: e, Config: f.config.Load, Logger: quiet,
		Still: 200 * time.Millisecond, Poll: 100 * time.Millisecond,
		OnChange: func(c plugindir.Change) { f.changes <- c },
		Load: func(ctx context.Context, wasm []byte, c engine.Config) (*engine.Module, error) {
			f.loads.Add(1)
			return e.Load(ctx, wasm, c)
		},
	}
}

// open opens the directory and runs it until the test ends.
func (f *fixture) open(o plugindir.Options) *fixture {
	f.t.Helper()
	d, err := plugindir.Open(f.t.Context(), o)
	if err != nil {
		f.t.Fatal(err)
	}
	f.Directory = d
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	f.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			f.t.Errorf("run: %v", err)
		}
		d.Close()
	})
	f.t.Cleanup(f.stop)
	return f
}

// start opens a directory with what is in it.
func start(t *testing.T, files map[string][]byte) *fixture {
	t.Helper()
	f := setUp(t)
	for name, data := range files {
		f.old(name, data)
	}
	f.open(f.options())
	return f
}

func (f *fixture) path(name string) string { return filepath.Join(f.dir, name) }

// write writes a file in place, as cp does.
func (f *fixture) write(name string, data []byte) {
	f.t.Helper()
	if err := os.WriteFile(f.path(name), data, 0o644); err != nil {
		f.t.Fatal(err)
	}
}

// old writes a file that was last changed long ago.
func (f *fixture) old(name string, data []byte) {
	f.t.Helper()
	f.write(name, data)
	then := time.Now().Add(-time.Hour)
	if err := os.Chtimes(f.path(name), then, then); err != nil {
		f.t.Fatal(err)
	}
}

// rename writes a file under a dot-name and renames it into place.
func (f *fixture) rename(name string, data []byte) {
	f.t.Helper()
	f.write("."+name, data)
	if err := os.Rename(f.path("."+name), f.path(name)); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) remove(name string) {
	f.t.Helper()
	if err := os.Remove(f.path(name)); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) symlink(target, name string) {
	f.t.Helper()
	if err := os.Symlink(target, f.path(name)); err != nil {
		f.t.Skipf("no symbolic links here: %v", err)
	}
}

// configure parses a configuration and makes it the one in force.
func (f *fixture) configure(text string) {
	f.t.Helper()
	text = "[brokers.b]\ndriver = \"memory\"\n[queues.q]\nbroker = \"b\"\n" + text
	c, err := config.Parse(filepath.Join(f.dir, "config.toml"), []byte(text), func(string) (string, bool) { return "", false })
	if err != nil {
		f.t.Fatal(err)
	}
	f.config.Store(c)
}

// await waits for the next change and checks its kind and job.
func (f *fixture) await(job string, kind plugindir.Kind) plugindir.Change {
	f.t.Helper()
	select {
	case c := <-f.changes:
		if c.Job != job || c.Kind != kind {
			f.t.Fatalf("change %+v, want kind %d of %s", c, kind, job)
		}
		return c
	case <-time.After(patience):
		f.t.Fatalf("no change of %s", job)
	}
	panic("not reached")
}

// nothing checks that nothing changes while the directory is looked at several times.
func (f *fixture) nothing() {
	f.t.Helper()
	select {
	case c := <-f.changes:
		f.t.Fatalf("change %+v, want none", c)
	case <-time.After(600 * time.Millisecond):
	}
}

// result runs the job once and returns its result and the digest that served.
func (f *fixture) result(job string) (output, digest string, err error) {
	p, state := f.Acquire(job)
	if state != plugindir.Ready {
		return "", "", errors.New(state.String())
	}
	defer p.Release()
	r := p.Module().Run(&engine.Call{Input: engine.Input{Job: job}})
	if r.End.Cause != abi.Returned {
		return "", p.Digest(), errors.New(r.End.Text)
	}
	return string(r.Output), p.Digest(), nil
}

func (f *fixture) serves(job, want string) {
	f.t.Helper()
	if got, _, err := f.result(job); err != nil || got != want {
		f.t.Fatalf("%s gives %q, %v; want %q", job, got, err, want)
	}
}

func (f *fixture) status(job string) plugindir.Status {
	f.t.Helper()
	for _, s := range f.Status() {
		if s.Job == job {
			return s
		}
	}
	f.t.Fatalf("no status of %s", job)
	panic("not reached")
}

// traffic runs messages through a job until it is stopped, and returns how often each result
// came. A run that fails, or a result that its digest does not belong to, fails the test.
func (f *fixture) traffic(job string) (stop func() map[string]int) {
	quit := make(chan struct{})
	seen := map[string]int{}
	digests := map[string]string{}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-quit:
				return
			default:
			}
			output, digest, err := f.result(job)
			if err != nil {
				f.t.Errorf("a message met: %v", err)
				return
			}
			if was, ok := digests[digest]; ok && was != output {
				f.t.Errorf("version %s gives %q and %q", digest, was, output)
				return
			}
			digests[digest] = output
			seen[output]++
			time.Sleep(time.Millisecond) // leave the processor to the one who copies
		}
	})
	return sync.OnceValue(func() map[string]int {
		close(quit)
		wg.Wait()
		return seen
	})
}
