package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/admin"
	"github.com/guesthand/guesthand/host/hosttest"
	"github.com/guesthand/guesthand/host/ledger"
	"github.com/guesthand/guesthand/host/plugindir"
)

const pluginConfig = `
[brokers.b]
driver = "embedded"
[queues.q]
broker = "b"
unknown_job = { wait = "100ms", tries = %d }
%s
[admin]
listen = "none"
`

// dataStart is where the data of the module version.wasm begin: cut off there it is valid
// too, with a result of nothing but zeros.
const dataStart = 0x5f

// testdata reads a module that another package's tests are made with.
func testdata(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(hosttest.Root(), filepath.FromSlash(path)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// lettered is a module whose result is "version " and the letter.
func lettered(t *testing.T, letter byte) []byte {
	t.Helper()
	return bytes.Replace(testdata(t, "host/plugindir/testdata/version.wasm"), []byte("version A"), []byte{'v', 'e', 'r', 's', 'i', 'o', 'n', ' ', letter}, 1)
}

// padded puts a custom section of size bytes before the data. Wherever such a file is cut,
// but for the section's two ends, it is no valid module.
func padded(wasm []byte, size int) []byte {
	section := append([]byte{3, 'p', 'a', 'd'}, make([]byte, size)...)
	head := binary.AppendUvarint([]byte{0}, uint64(len(section)))
	return bytes.Join([][]byte{wasm[:dataStart], head, section, wasm[dataStart:]}, nil)
}

// hungry asks for two pages of memory instead of one.
func hungry(t *testing.T, wasm []byte) []byte {
	t.Helper()
	one, two := []byte{5, 3, 1, 0, 1}, []byte{5, 3, 1, 0, 2}
	if !bytes.Contains(wasm, one) {
		t.Fatal("the module has no memory of one page")
	}
	return bytes.Replace(wasm, one, two, 1)
}

func digestOf(wasm []byte) string {
	sum := sha256.Sum256(wasm)
	return hex.EncodeToString(sum[:])
}

func (s *site) plugin(name string) string { return filepath.Join(s.dir, "plugins", name) }

// put writes a file into the plug-in directory in place, as cp does.
func (s *site) put(name string, data []byte) {
	s.t.Helper()
	if err := os.WriteFile(s.plugin(name), data, 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// rename puts a file into the plug-in directory whole at once, as mv does.
func (s *site) rename(name string, data []byte) {
	s.t.Helper()
	s.put("."+name+".tmp", data)
	if err := os.Rename(s.plugin("."+name+".tmp"), s.plugin(name)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) remove(name string) {
	s.t.Helper()
	if err := os.Remove(s.plugin(name)); err != nil {
		s.t.Fatal(err)
	}
}

// client is a client of the host on the socket.
func (s *site) client() *admin.Client {
	s.t.Helper()
	c, ok := admin.DialSocket(s.t.Context(), filepath.Join(s.dir, "data", "guesthand.sock"))
	if !ok {
		s.t.Fatal("no host on the socket")
	}
	return c
}

// handler is what the host says of a job in GET /v1/handlers; zero where it knows none.
func (s *site) handler(job string) plugindir.Status {
	s.t.Helper()
	all, err := s.client().Handlers(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, h := range all {
		if h.Job == job {
			return h
		}
	}
	return plugindir.Status{}
}

// serves waits until the job's version is the one with the digest.
func (s *site) serves(job, digest string) {
	s.t.Helper()
	hosttest.Eventually(s.t, patience, job+" to be served by "+digest, func() bool { return s.handler(job).Digest == digest })
}

// refused waits until the host says why the newest version of a job's file does not serve.
func (s *site) refused(job, why string) plugindir.Status {
	s.t.Helper()
	hosttest.Eventually(s.t, patience, job+" to be refused: "+why, func() bool { return strings.Contains(s.handler(job).Error, why) })
	return s.handler(job)
}

// one is a message's only run.
func (s *site) one(id string) ledger.Row {
	s.t.Helper()
	rows := s.runs("--id", id)
	if len(rows) != 1 {
		s.t.Fatalf("message %s has %d runs, want 1: %+v", id, len(rows), rows)
	}
	return rows[0]
}

// answered sends to a job and checks that its version answers in the first attempt.
func (s *site) answered(job string, wasm []byte, letter byte) {
	s.t.Helper()
	out := s.must("send", "q", job, "--wait", "--json")
	rows := lines[ledger.Row](s.t, out)
	if len(rows) != 1 || string(rows[0].Result) != "version "+string(letter) || rows[0].Digest != digestOf(wasm) || rows[0].Attempt != 1 {
		s.t.Errorf("want version %c: %s", letter, out)
	}
}

// What `make run` promises: a file that is dropped in serves, garbage does not, and what is
// removed puts its messages back.
func TestHandlerComesAndGoes(t *testing.T) {
	s := newSite(t, fmt.Sprintf(pluginConfig, 0, ""))
	p := s.start()
	waiting := strings.TrimSpace(s.must("send", "q", "late"))
	p.waitFor("no handler; the message is put back")
	a, b := lettered(t, 'A'), lettered(t, 'B')

	s.put("late.wasm", a)
	s.idle()
	if r := s.one(waiting); r.Outcome != "success" || r.Attempt != 1 || r.Digest != digestOf(a) {
		t.Errorf("what had waited: %+v", r)
	}
	s.answered("late", a, 'A')

	s.put("late.wasm", []byte("this is no module"))
	p.waitFor("plugin refused, the version before serves on")
	if h := s.refused("late", "this is no WebAssembly module"); h.Digest != digestOf(a) || h.State != plugindir.Ready {
		t.Errorf("with garbage in the file: %+v", h)
	}
	s.answered("late", a, 'A')

	s.remove("late.wasm")
	p.waitFor("plugin removed")
	back := strings.TrimSpace(s.must("send", "q", "late"))
	time.Sleep(500 * time.Millisecond) // several rounds of 100 ms, which leave no trace
	if rows := s.runs("--id", back); len(rows) != 0 {
		t.Errorf("run without a handler: %+v", rows)
	}
	if q := s.queue("q"); q.Depth != 1 || q.Dead != 0 {
		t.Errorf("%+v", q)
	}
	s.put("late.wasm", b)
	s.idle()
	if r := s.one(back); r.Outcome != "success" || r.Attempt != 1 || r.Digest != digestOf(b) {
		t.Errorf("put back and served: %+v", r)
	}
}

// A message whose job nobody knows is dead-lettered once the tries are spent, and runs when
// it is replayed after its handler has come.
func TestUnknownJob(t *testing.T) {
	s := newSite(t, fmt.Sprintf(pluginConfig, 2, ""))
	s.start()
	id := strings.TrimSpace(s.must("send", "q", "nobody"))
	hosttest.Eventually(t, patience, "the dead letter", func() bool { return len(s.dead("q")) == 1 })
	l := s.dead("q")[0]
	if l.ID != id || !strings.Contains(l.Reason, "nobody") || !strings.Contains(l.Reason, "2") || l.Tally.Attempt() != 1 {
		t.Errorf("%+v", l)
	}
	a := lettered(t, 'A')
	s.put("nobody.wasm", a)
	s.serves("nobody", digestOf(a))
	s.must("dead", "replay", "q", id)
	s.idle()
	if rows := s.runs("--id", id, "--outcome", "success"); len(rows) != 1 || rows[0].Attempt != 1 {
		t.Errorf("%+v", rows)
	}
}

// traffic sends to a job until it is stopped, and returns the ids.
func (s *site) traffic(job string) (stop func() []string) {
	client := s.client()
	quit, done := make(chan struct{}), make(chan error, 1)
	var ids []string
	go func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for len(ids) < 900 { // the ledger's answers hold 1000
			select {
			case <-quit:
				done <- nil
				return
			case <-tick.C:
			}
			some, errs, err := client.Send(s.t.Context(), "q", []drivers.Message{{Job: job}})
			if err = errors.Join(append(errs, err)...); err != nil {
				done <- err
				return
			}
			ids = append(ids, some...)
		}
		done <- nil
	}()
	return func() []string {
		s.t.Helper()
		close(quit)
		if err := <-done; err != nil {
			s.t.Fatal(err)
		}
		return ids
	}
}

// Whatever happens to the file while messages flow, every run is one of a whole version.
func TestReplacedUnderTraffic(t *testing.T) {
	s := newSite(t, fmt.Sprintf(pluginConfig, 0, "[limits]\nmemory = \"64KiB\"\n"))
	a, b, c := lettered(t, 'A'), padded(lettered(t, 'B'), 64<<10), lettered(t, 'C')
	d := hungry(t, lettered(t, 'D'))
	s.put("v.wasm", a)
	s.start()
	s.serves("v", digestOf(a))
	stop := s.traffic("v")

	// A truncated copy of itself.
	s.put("v.wasm", a[:len(a)-3])
	if h := s.refused("v", "not a valid module"); h.Digest != digestOf(a) {
		t.Errorf("%+v", h)
	}
	// A slow cp.
	file, err := os.Create(s.plugin("v.wasm"))
	if err != nil {
		t.Fatal(err)
	}
	const chunks = 20
	for i := range chunks {
		if _, err := file.Write(b[i*len(b)/chunks : (i+1)*len(b)/chunks]); err != nil {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond) // the slowness is the subject
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	s.serves("v", digestOf(b))
	// A rename.
	s.rename("v.wasm", c)
	s.serves("v", digestOf(c))
	// A version that traps at start.
	s.rename("v.wasm", testdata(t, "host/plugindir/testdata/start_trap.wasm"))
	if h := s.refused("v", "start: trap"); h.Digest != digestOf(c) {
		t.Errorf("%+v", h)
	}
	// One that needs what only its sidecar gives, together with it.
	s.rename("v.toml", []byte("memory = \"128KiB\"\n"))
	s.rename("v.wasm", d)
	s.serves("v", digestOf(d))
	s.answered("v", d, 'D')

	ids := stop()
	s.idle()
	results := map[string]string{digestOf(a): "version A", digestOf(b): "version B", digestOf(c): "version C", digestOf(d): "version D"}
	ran, seen := map[string]int{}, map[string]bool{}
	for _, r := range s.runs("-n", "1000") {
		if want, ok := results[r.Digest]; !ok || string(r.Result) != want || r.Outcome != "success" || r.Attempt != 1 {
			t.Errorf("a run of no whole version: %+v", r)
		}
		ran[r.Digest]++
		seen[r.ID] = true
	}
	for _, id := range ids {
		if !seen[id] {
			t.Errorf("message %s has no run", id)
		}
	}
	if len(ran) != len(results) {
		t.Errorf("runs by version: %v", ran)
	}
	if dead := s.dead("q"); len(dead) != 0 {
		t.Errorf("%+v", dead)
	}
}

// A pin lets nothing but its own version serve; messages of a module that is refused wait
// without limit.
func TestPin(t *testing.T) {
	a, b := lettered(t, 'A'), lettered(t, 'B')
	s := newSite(t, fmt.Sprintf(pluginConfig, 1, fmt.Sprintf("[handlers.v]\nsha256 = %q\n", digestOf(a))))
	s.put("v.wasm", b)
	p := s.start()
	p.waitFor("plugin refused")
	why := fmt.Sprintf("the file's sha256 is %s, and the configuration wants %s", digestOf(b), digestOf(a))
	if h := s.refused("v", why); h.Digest != "" || h.RefusedDigest != digestOf(b) || h.State != plugindir.Broken {
		t.Errorf("%+v", h)
	}
	id := strings.TrimSpace(s.must("send", "q", "v"))
	p.waitFor("handler cannot be loaded; its messages are put back")
	time.Sleep(500 * time.Millisecond) // several rounds of 100 ms, which leave no trace
	s.rename("v.wasm", a)
	s.idle()
	if r := s.one(id); r.Outcome != "success" || r.Attempt != 1 || r.Digest != digestOf(a) {
		t.Errorf("%+v", r)
	}
	s.rename("v.wasm", b)
	if h := s.refused("v", why); h.Digest != digestOf(a) {
		t.Errorf("%+v", h)
	}
	s.answered("v", a, 'A')
}

// SIGHUP puts what can change in force, and a broken configuration changes nothing.
func TestReload(t *testing.T) {
	const before = "[handlers.puppet]\ntimeout = \"30s\"\n"
	const after = "[handlers.puppet]\ntimeout = \"250ms\"\nretry = { max_attempts = 2, base = \"10ms\" }\n"
	s := newSite(t, fmt.Sprintf(pluginConfig, 0, before))
	s.puppet("puppet")
	p := s.start()
	dead := s.send("1;once|0")
	s.idle()
	if l := of(s.dead("q"), dead); len(l) != 1 || !strings.HasPrefix(l[0].Reason, "max attempts (1) exhausted") {
		t.Errorf("before: %+v", l)
	}

	check := func(when string) {
		t.Helper()
		retried, late := s.send("1;once|0"), s.send("loop")
		s.idle()
		if rows := s.runs("--id", retried); len(rows) != 2 || rows[0].Outcome != "success" {
			t.Errorf("%s: retry: %+v", when, rows)
		}
		if rows := s.runs("--id", late); len(rows) != 2 || rows[0].Cause != "timeout" || !strings.Contains(rows[0].Error, "250ms") {
			t.Errorf("%s: timeout: %+v", when, rows)
		}
	}
	s.write("config.toml", fmt.Sprintf(pluginConfig, 0, after))
	p.signal(syscall.SIGHUP)
	p.waitFor(`"msg":"reloaded"`)
	check("reloaded")

	s.write("config.toml", fmt.Sprintf(pluginConfig, 0, before+"tiemout = \"1s\"\n"))
	p.signal(syscall.SIGHUP)
	p.waitFor("reload: the configuration in force stays")
	if p.count("config.toml:9: handlers.puppet.tiemout: unknown key; did you mean timeout?") != 1 {
		t.Errorf("the log does not say what is wrong:\n%s", p.tail())
	}
	s.write("config.toml", fmt.Sprintf(pluginConfig, 0, after)) // commands read the file too
	check("broken")
}
