package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/admin"
	"github.com/guesthand/guesthand/host/hosttest"
	"github.com/guesthand/guesthand/host/ledger"
)

// beMain makes the test binary the command itself: tests run it as a user would, in
// processes that they can kill.
const beMain = "GUESTHAND_TEST_BE_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(beMain) != "" {
		os.Exit(command())
	}
	testscript.Main(m, map[string]func(){"guesthand": main})
}

// patience bounds every wait of these tests.
const patience = 60 * time.Second

// site is a directory with a configuration, as a user has one.
type site struct {
	t   testing.TB
	dir string
}

func newSite(t testing.TB, config string) *site {
	t.Helper()
	s := &site{t: t, dir: t.TempDir()}
	if err := os.Mkdir(filepath.Join(s.dir, "plugins"), 0o700); err != nil {
		t.Fatal(err)
	}
	hosttest.ShareCache(t, filepath.Join(s.dir, "data"))
	s.write("config.toml", config)
	return s
}

func (s *site) write(name, text string) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) puppet(job string) {
	hosttest.Install(s.t, filepath.Join(s.dir, "plugins"), job, hosttest.Puppet(s.t))
}

func (s *site) command(args ...string) *exec.Cmd {
	c := exec.Command(os.Args[0], args...)
	c.Dir = s.dir
	c.Env = append(os.Environ(), beMain+"=1", "GUESTHAND_CONFIG=")
	return c
}

// do runs the command to its end.
func (s *site) do(args ...string) (stdout, stderr string, status int) {
	s.t.Helper()
	c := s.command(args...)
	var out, talk bytes.Buffer
	c.Stdout, c.Stderr = &out, &talk
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.t.Fatal(err)
	}
	return out.String(), talk.String(), c.ProcessState.ExitCode()
}

// must runs the command, which must end with 0, and returns its data.
func (s *site) must(args ...string) string {
	s.t.Helper()
	out, talk, status := s.do(args...)
	if status != 0 {
		s.t.Fatalf("guesthand %s: status %d\n%s", strings.Join(args, " "), status, talk)
	}
	return out
}

// lines decodes JSON lines.
func lines[T any](t testing.TB, text string) []T {
	t.Helper()
	var all []T
	d := json.NewDecoder(strings.NewReader(text))
	for {
		var v T
		switch err := d.Decode(&v); {
		case errors.Is(err, io.EOF):
			return all
		case err != nil:
			t.Fatalf("%v in %s", err, text)
		}
		all = append(all, v)
	}
}

func (s *site) runs(args ...string) []ledger.Row {
	s.t.Helper()
	return lines[ledger.Row](s.t, s.must(append([]string{"runs", "--json"}, args...)...))
}

func (s *site) dead(queue string) []drivers.DeadLetter {
	s.t.Helper()
	return lines[drivers.DeadLetter](s.t, s.must("dead", "list", queue, "--json"))
}

func (s *site) queue(name string) admin.QueueStatus {
	s.t.Helper()
	for _, q := range lines[admin.QueueStatus](s.t, s.must("queues", "--json")) {
		if q.Queue == name {
			return q
		}
	}
	s.t.Fatalf("no queue %s", name)
	return admin.QueueStatus{}
}

// process is a host in a process of its own.
type process struct {
	t    testing.TB
	cmd  *exec.Cmd
	done chan struct{}

	mu    sync.Mutex
	lines []string
	seen  chan struct{} // a token for each new line
}

// start starts a host and waits until it is ready.
func (s *site) start() *process {
	s.t.Helper()
	return s.startWith(s.command("run"))
}

// startWith is start with a command of the caller's that becomes the host.
func (s *site) startWith(c *exec.Cmd) *process {
	s.t.Helper()
	p := &process{t: s.t, cmd: c, done: make(chan struct{}), seen: make(chan struct{}, 1)}
	talk, err := p.cmd.StderrPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go p.read(talk)
	s.t.Cleanup(func() {
		p.kill()
		if s.t.Failed() {
			s.t.Logf("the end of the host's log:\n%s", p.tail())
		}
	})
	p.waitFor(`"msg":"ready"`)
	return p
}

func (p *process) read(talk io.Reader) {
	r := bufio.NewScanner(talk)
	r.Buffer(nil, 1<<20)
	for r.Scan() {
		p.mu.Lock()
		p.lines = append(p.lines, r.Text())
		p.mu.Unlock()
		select {
		case p.seen <- struct{}{}:
		default:
		}
	}
	p.cmd.Wait() // the state tells
	close(p.done)
}

// tail is the last of the log, for a person to read.
func (p *process) tail() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines[max(0, len(p.lines)-20):], "\n")
}

// count is how many log lines hold the text.
func (p *process) count(text string) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lines {
		if strings.Contains(l, text) {
			n++
		}
	}
	return n
}

// waitFor waits until a log line holds the text.
func (p *process) waitFor(text string) {
	p.t.Helper()
	timeout := time.After(patience)
	for p.count(text) == 0 {
		select {
		case <-p.seen:
		case <-time.After(20 * time.Millisecond):
		case <-p.done:
			if p.count(text) == 0 {
				p.t.Fatalf("the host ended before it logged %s:\n%s", text, p.tail())
			}
		case <-timeout:
			p.t.Fatalf("not logged within %s: %s\n%s", patience, text, p.tail())
		}
	}
}

// kill ends the process as kill -9 does, and waits.
func (p *process) kill() {
	p.cmd.Process.Kill() // it may have ended by itself
	<-p.done
}

// signal sends a signal.
func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

// wait waits for the end and returns the exit status.
func (p *process) wait() int {
	p.t.Helper()
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		p.t.Fatalf("the host did not stop within %s\n%s", patience, p.tail())
		return -1
	}
}

// stop is a plain SIGTERM and a drain.
func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	if status := p.wait(); status != 0 {
		p.t.Fatalf("status %d after a drain\n%s", status, p.tail())
	}
}

func TestScripts(t *testing.T) {
	puppet := hosttest.Puppet(t)
	testscript.Run(t, testscript.Params{Dir: "testdata/script", Cmds: map[string]func(*testscript.TestScript, bool, []string){"status": cmdStatus}, Setup: func(e *testscript.Env) error {
		e.Setenv("HOME", e.WorkDir)
		return os.WriteFile(filepath.Join(e.WorkDir, "puppet.wasm"), puppet, 0o600)
	}})
}

// cmdStatus is `status N command args...`: the command must end with exit status N.
func cmdStatus(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N command args...")
	}
	err := ts.Exec(args[1], args[2:]...)
	status := 0
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		status = exit.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if strconv.Itoa(status) != args[0] {
		ts.Fatalf("exit status %d, want %s", status, args[0])
	}
}
