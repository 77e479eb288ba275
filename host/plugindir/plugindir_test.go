package plugindir_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/host/config"
	"github.com/guesthand/guesthand/host/engine"
	"github.com/guesthand/guesthand/host/plugindir"
)

func TestOpen(t *testing.T) {
	f := setUp(t)
	f.old("good.wasm", version(t, 'A'))
	f.old("with.settings.wasm", version(t, 'B'))
	f.old("with.settings.toml", []byte("timeout = \"7s\"\n"))
	f.old("bad.wasm", []byte("garbage"))
	f.write("fresh.wasm", version(t, 'C')) // Open waits for it
	f.open(f.options())

	f.serves("good", "version A")
	f.serves("with.settings", "version B")
	f.serves("fresh", "version C")
	p, _ := f.Acquire("with.settings")
	if h := p.Handler(); h.Timeout != 7*time.Second || h.Job != "with.settings" {
		t.Errorf("handler %+v", h)
	}
	if c := p.Module().Config(); c.Timeout != 7*time.Second || c.Job != "with.settings" {
		t.Errorf("engine %+v", c)
	}
	p.Release()
	if p, state := f.Acquire("bad"); p != nil || state != plugindir.Broken {
		t.Errorf("bad is %s", state)
	}
	if p, state := f.Acquire("none"); p != nil || state != plugindir.Absent {
		t.Errorf("none is %s", state)
	}
	var jobs []string
	for _, s := range f.Status() {
		jobs = append(jobs, s.Job+" "+s.State.String())
		if s.File != f.path(s.Job+".wasm") || s.Pending || (s.State == plugindir.Ready) != (s.Error == "") {
			t.Errorf("status %+v", s)
		}
	}
	if want := []string{"bad broken", "fresh ready", "good ready", "with.settings ready"}; !slices.Equal(jobs, want) {
		t.Errorf("status of %v, want %v", jobs, want)
	}
	s := f.status("good")
	if s.Dialect != engine.Native || s.Instances != engine.Fresh || s.Size != len(version(t, 'A')) || s.Loaded.IsZero() {
		t.Errorf("status %+v", s)
	}
	b, err := json.Marshal(s)
	var back plugindir.Status
	if err != nil || json.Unmarshal(b, &back) != nil || back.State != plugindir.Ready || back.Digest != s.Digest {
		t.Errorf("status as JSON: %s, %v, %+v", b, err, back)
	}
}

// TestOpenDoesNotWaitForOldFiles holds the start to well under the time files must be still.
func TestOpenDoesNotWaitForOldFiles(t *testing.T) {
	f := setUp(t)
	f.old("job.wasm", version(t, 'A'))
	o := f.options()
	o.Still = time.Minute
	f.open(o)
	f.serves("job", "version A")
}

func TestOpenErrors(t *testing.T) {
	f := setUp(t)
	o := f.options()
	f.write("file", nil)
	for dir, want := range map[string]string{
		f.path("none"): "plugin directory " + f.path("none") + " does not exist: create it or set plugins to another one",
		f.path("file"): "plugin directory " + f.path("file") + " is a file",
		"":             "plugin directory: Dir is needed",
	} {
		o.Dir = dir
		if _, err := plugindir.Open(t.Context(), o); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", dir, err, want)
		}
	}
	if _, err := plugindir.Open(t.Context(), plugindir.Options{Dir: f.dir, Engine: o.Engine}); err == nil {
		t.Error("no error without Config")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f.old("job.wasm", version(t, 'A'))
	o.Dir = f.dir
	if _, err := plugindir.Open(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of ctx: %v", err)
	}
}

func TestAddAndRemove(t *testing.T) {
	f := start(t, nil)
	f.write("job.wasm", version(t, 'A'))
	if c := f.await("job", plugindir.Loaded); c.Old != "" || c.Digest == "" {
		t.Errorf("change %+v", c)
	}
	f.serves("job", "version A")

	p, _ := f.Acquire("job")
	f.remove("job.wasm")
	if c := f.await("job", plugindir.Removed); c.Old != p.Digest() {
		t.Errorf("change %+v", c)
	}
	if _, state := f.Acquire("job"); state != plugindir.Absent || len(f.Status()) != 0 {
		t.Errorf("removed, it is %s", state)
	}
	// A run that began before still has its module, until it releases it.
	if r := p.Module().Run(&engine.Call{}); r.End.Cause != abi.Returned || string(r.Output) != "version A" {
		t.Errorf("the run in flight: %+v", r.End)
	}
	p.Release()
	if r := p.Module().Run(&engine.Call{}); r.End.Cause != abi.Load {
		t.Errorf("after its release: %+v", r.End)
	}

	f.write("job.wasm", version(t, 'B'))
	f.await("job", plugindir.Loaded)
	f.serves("job", "version B")
}

// TestBrokenFromTheStart: a file of which nothing was ever loaded is told from no file.
func TestBrokenFromTheStart(t *testing.T) {
	f := start(t, nil)
	f.write("job.wasm", []byte("garbage"))
	f.await("job", plugindir.Refused)
	if _, state := f.Acquire("job"); state != plugindir.Broken {
		t.Errorf("it is %s", state)
	}
	f.remove("job.wasm")
	f.await("job", plugindir.Removed)
	if _, state := f.Acquire("job"); state != plugindir.Absent {
		t.Errorf("removed, it is %s", state)
	}
}

func TestTouchedFilesStay(t *testing.T) {
	f := start(t, map[string][]byte{"job.wasm": version(t, 'A')})
	f.await("job", plugindir.Loaded)
	before := f.status("job").Loaded
	f.rename("job.wasm", version(t, 'A'))
	f.write("notes.txt", []byte("not for us"))
	f.nothing()
	if s := f.status("job"); !s.Loaded.Equal(before) || s.Pending || f.loads.Load() != 1 {
		t.Errorf("status %+v after %d loads", s, f.loads.Load())
	}
}

func TestNames(t *testing.T) {
	f := setUp(t)
	for _, name := range []string{
		"a.wasm", "0-9_x.y.wasm", // good ones
		".hidden.wasm", ".wasm", ".toml", "README.md", "a.wasm.tmp", "a.wat", // none of ours
		"Upper.wasm", "-dash.wasm", "spa ce.wasm", "ünicode.wasm", // bad names
		"stray.toml",
	} {
		f.old(name, version(t, 'A'))
	}
	if err := os.Mkdir(f.path("folder.wasm"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(f.path("examples"), 0o755); err != nil {
		t.Fatal(err)
	}
	f.symlink("folder.wasm", "link.wasm")
	f.open(f.options())
	var jobs []string
	for _, s := range f.Status() {
		jobs = append(jobs, s.Job)
	}
	if want := []string{"0-9_x.y", "a"}; !slices.Equal(jobs, want) {
		t.Errorf("jobs %q, want %q", jobs, want)
	}
	notes := f.Notes()
	for i, want := range []string{`"-dash.wasm" is ignored`, `"Upper.wasm" is ignored`, `"spa ce.wasm" is ignored`,
		`"stray.toml" have no module`, `"ünicode.wasm" is ignored`} {
		if len(notes) != 5 || !strings.Contains(notes[i], want) {
			t.Fatalf("notes %q, want %q at %d", notes, want, i)
		}
	}
}

func TestPin(t *testing.T) {
	f := setUp(t)
	f.old("job.wasm", version(t, 'A'))
	good := func() string {
		plain := start(t, map[string][]byte{"job.wasm": version(t, 'A')})
		return plain.status("job").Digest
	}()
	f.configure("[handlers.job]\nsha256 = \"" + good + "\"\n")
	f.open(f.options())
	f.await("job", plugindir.Loaded)
	f.serves("job", "version A")

	f.write("job.wasm", version(t, 'B'))
	c := f.await("job", plugindir.Refused)
	if want := "the file's sha256 is " + c.Digest + ", and the configuration wants " + good; c.Err.Error() != want {
		t.Errorf("error %q, want %q", c.Err, want)
	}
	f.serves("job", "version A")

	f.configure("[handlers.job]\nsha256 = \"" + c.Digest + "\"\n")
	if errs := f.Reconfigure(t.Context()); errs != nil {
		t.Errorf("reconfigure: %v", errs)
	}
	f.await("job", plugindir.Loaded)
	f.serves("job", "version B")
}

func TestReconfigure(t *testing.T) {
	f := setUp(t)
	f.old("job.wasm", version(t, 'A'))
	f.old("job.toml", []byte("concurrency = 2\n"))
	f.old("other.wasm", version(t, 'B'))
	f.old("broken.wasm", []byte("garbage"))
	f.open(f.options())
	for range 3 {
		<-f.changes
	}
	module := func() (*engine.Module, plugindir.Status) {
		p, _ := f.Acquire("job")
		defer p.Release()
		return p.Module(), f.status("job")
	}
	first, _ := module()
	loads := f.loads.Load()

	// Nothing changed: nothing is loaded but what was refused, which is said again.
	errs := f.Reconfigure(t.Context())
	if len(errs) != 1 || !strings.HasPrefix(errs[0].Error(), "plugin broken: this is no WebAssembly") {
		t.Errorf("reconfigure: %v", errs)
	}
	if n := f.loads.Load() - loads; n != 1 {
		t.Errorf("%d loads, want the broken one's", n)
	}
	f.remove("broken.wasm")
	f.await("broken", plugindir.Removed)

	// Settings that the engine has nothing to do with keep the module.
	f.configure("[handlers.job]\nretry = { max_attempts = 9 }\n")
	if errs := f.Reconfigure(t.Context()); errs != nil {
		t.Errorf("reconfigure: %v", errs)
	}
	f.await("job", plugindir.Loaded)
	p, _ := f.Acquire("job")
	if h := p.Handler(); h.Retry == nil || h.Retry.MaxAttempts != 9 || h.Concurrency != 2 || p.Module() != first {
		t.Errorf("handler %+v", h)
	}
	p.Release()

	// Others make a new one.
	f.configure("[handlers.job]\ntimeout = \"3s\"\n")
	if errs := f.Reconfigure(t.Context()); errs != nil {
		t.Errorf("reconfigure: %v", errs)
	}
	f.await("job", plugindir.Loaded)
	if m, _ := module(); m == first || m.Config().Timeout != 3*time.Second {
		t.Errorf("timeout %s", m.Config().Timeout)
	}
	f.serves("job", "version A")
	f.nothing()
}

// TestSlowCompile holds the loading of two jobs up, and sees others come and go meanwhile.
func TestSlowCompile(t *testing.T) {
	f := setUp(t)
	f.old("gone.wasm", version(t, 'A'))
	o := f.options()
	load := o.Load
	gate := make(chan struct{})
	var running, most atomic.Int64
	o.Load = func(ctx context.Context, wasm []byte, c engine.Config) (*engine.Module, error) {
		n := running.Add(1)
		defer running.Add(-1)
		for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
		}
		if strings.HasPrefix(c.Job, "slow") {
			<-gate
		}
		return load(ctx, wasm, c)
	}
	f.open(o)
	f.await("gone", plugindir.Loaded)
	for _, job := range []string{"slow1", "slow2", "slow3", "slow4"} {
		f.write(job+".wasm", version(t, 'B'))
	}
	for deadline := time.Now().Add(patience); running.Load() < 2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("nothing is loaded")
		}
	}
	f.remove("gone.wasm")
	f.await("gone", plugindir.Removed)
	if _, state := f.Acquire("slow1"); state != plugindir.Broken || !f.status("slow1").Pending {
		t.Errorf("while it loads it is %s", state)
	}
	f.remove("slow1.wasm") // its load is under way, and its result is thrown away
	f.await("slow1", plugindir.Removed)
	close(gate)
	for range 3 {
		if c := <-f.changes; c.Kind != plugindir.Loaded || c.Job == "slow1" {
			t.Errorf("change %+v", c)
		}
	}
	if n := most.Load(); n != 2 {
		t.Errorf("%d loads at once, want 2", n)
	}
	f.nothing()
}

// TestDirectoryReplaced moves the whole directory away and puts another in its place.
func TestDirectoryReplaced(t *testing.T) {
	f := setUp(t)
	f.dir = f.path("plugins")
	if err := os.Mkdir(f.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f.old("job.wasm", version(t, 'A'))
	f.open(f.options())
	f.await("job", plugindir.Loaded)
	if err := os.Rename(f.dir, f.dir+".away"); err != nil {
		t.Skipf("a directory in use cannot be renamed here: %v", err)
	}
	f.nothing()
	f.serves("job", "version A")
	if err := os.MkdirAll(f.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	f.write("job.wasm", version(t, 'B'))
	f.await("job", plugindir.Loaded)
	f.serves("job", "version B")
	f.write("new.wasm", version(t, 'C'))
	f.await("new", plugindir.Loaded)
}

// TestHammer replaces a version over and over under concurrent runs.
func TestHammer(t *testing.T) {
	f := setUp(t)
	f.old("job.wasm", version(t, 'A'))
	o := f.options()
	o.Still, o.Poll = 10*time.Millisecond, 10*time.Millisecond
	f.open(o)
	f.await("job", plugindir.Loaded)
	quit := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-quit:
					return
				default:
				}
				if got, _, err := f.result("job"); err != nil || !strings.HasPrefix(got, "version ") {
					t.Errorf("a message got %q, %v", got, err)
					return
				}
			}
		})
	}
	for i := range 20 {
		f.rename("job.wasm", version(t, "BC"[i%2]))
		f.await("job", plugindir.Loaded)
	}
	close(quit)
	wg.Wait()
}

func TestClose(t *testing.T) {
	f := start(t, map[string][]byte{"job.wasm": version(t, 'A')})
	p, _ := f.Acquire("job")
	f.stop()
	f.Close()
	if _, state := f.Acquire("job"); state != plugindir.Absent {
		t.Errorf("closed, it is %s", state)
	}
	if r := p.Module().Run(&engine.Call{}); r.End.Cause != abi.Returned {
		t.Errorf("the run in flight: %+v", r.End)
	}
	p.Release()
	if r := p.Module().Run(&engine.Call{}); r.End.Cause != abi.Load {
		t.Errorf("after the last release: %+v", r.End)
	}
}

func TestAcquireDoesNotAllocate(t *testing.T) {
	f := start(t, map[string][]byte{"job.wasm": version(t, 'A')})
	if n := testing.AllocsPerRun(100, func() {
		p, _ := f.Acquire("job")
		p.Release()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkAcquire(b *testing.B) {
	e, err := engine.New(engine.Options{Logger: quiet})
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close(context.Background())
	dir := b.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "job.wasm"), version(b, 'A'), 0o644); err != nil {
		b.Fatal(err)
	}
	d, err := plugindir.Open(b.Context(), plugindir.Options{Dir: dir, Engine: e, Config: config.Defaults, Logger: quiet})
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			p, _ := d.Acquire("job")
			p.Release()
		}
	})
}
