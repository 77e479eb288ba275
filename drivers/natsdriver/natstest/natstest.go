// Package natstest runs nats-server as a process of its own for tests, so that they can kill
// it. The binary is built once from the module's own dependency.
package natstest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// OldBinary is the environment variable that names a nats-server below the minimum. `make
// test` sets it, to Debian's own.
const OldBinary = "GUESTHAND_TEST_NATS_OLD"

const (
	serverModule = "github.com/nats-io/nats-server/v2"
	upWait       = 60 * time.Second
)

// Server is a nats-server with JetStream on a loopback port and a store of its own.
type Server struct {
	// URL is where it listens; it stays the same over a restart.
	URL string

	t      testing.TB
	binary string
	port   int
	config string

	mu  sync.Mutex
	cmd *exec.Cmd
	log *bytes.Buffer
}

// Options change a server.
type Options struct {
	// Binary is the program; empty for the module's own version.
	Binary string
	// Config is more lines for the configuration file.
	Config string
}

// Start runs the module's version of nats-server until the test ends.
func Start(t testing.TB) *Server { return StartWith(t, Options{}) }

// StartWith is Start with options.
func StartWith(t testing.TB, o Options) *Server {
	t.Helper()
	if o.Binary == "" {
		o.Binary = build(t)
	}
	s := &Server{t: t, binary: o.Binary, port: freePort(t)}
	s.URL = fmt.Sprintf("nats://127.0.0.1:%d", s.port)
	s.config = filepath.Join(t.TempDir(), "nats.conf")
	text := fmt.Sprintf("listen: \"127.0.0.1:%d\"\njetstream { store_dir: %q }\n%s\n", s.port, filepath.Join(filepath.Dir(s.config), "store"), o.Config)
	if err := os.WriteFile(s.config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.up()
	t.Cleanup(func() { s.end(os.Kill) })
	return s
}

// Kill ends the server without a warning.
func (s *Server) Kill() {
	s.t.Helper()
	s.end(os.Kill)
}

// Stop ends the server orderly.
func (s *Server) Stop() {
	s.t.Helper()
	s.end(os.Interrupt)
}

// Restart starts the server again on its data, after stopping it orderly if it still runs.
func (s *Server) Restart() {
	s.t.Helper()
	s.end(os.Interrupt)
	s.up()
}

// Pause stops the server's process without ending it; Resume lets it go on.
func (s *Server) Pause() { s.signal(syscall.Signal(stopSignal)) }

// Resume undoes Pause.
func (s *Server) Resume() { s.signal(syscall.Signal(contSignal)) }

func (s *Server) signal(sig os.Signal) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		s.t.Fatal("nats-server does not run")
	}
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatalf("signal nats-server: %v", err)
	}
}

func (s *Server) end(sig os.Signal) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return
	}
	if runtime.GOOS == "windows" {
		sig = os.Kill
	}
	if err := s.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		s.t.Errorf("end nats-server: %v", err)
	}
	// It ends by a signal, which is no failure here.
	_ = s.cmd.Wait()
	s.cmd = nil
}

func (s *Server) up() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = &bytes.Buffer{}
	cmd := exec.Command(s.binary, "-c", s.config)
	cmd.Stdout, cmd.Stderr = s.log, s.log
	if err := cmd.Start(); err != nil {
		s.t.Fatalf("start nats-server: %v", err)
	}
	s.cmd = cmd
	ctx, cancel := context.WithTimeout(context.Background(), upWait)
	defer cancel()
	for !answers(ctx, s.port) {
		if ctx.Err() != nil {
			s.t.Fatalf("nats-server does not answer")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// answers reports whether the server greets.
func answers(ctx context.Context, port int) bool {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return false
	}
	defer func() { _ = c.Close() }()
	if err := c.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return false
	}
	b := make([]byte, 4)
	n, _ := c.Read(b)
	return string(b[:n]) == "INFO"
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return port
}

var built struct {
	once sync.Once
	path string
	err  error
}

// build makes the server from the module's source, once per process; the build cache makes
// later ones quick.
func build(t testing.TB) string {
	t.Helper()
	built.once.Do(func() { built.path, built.err = buildServer() })
	if built.err != nil {
		t.Fatalf("build nats-server: %v", built.err)
	}
	return built.path
}

func buildServer() (string, error) {
	version, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", serverModule).Output()
	if err != nil {
		return "", fmt.Errorf("go list: %w", err)
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	name := "nats-server-" + strings.TrimSpace(string(version))
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	path := filepath.Join(cache, "guesthand-test", name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return "", err
	}
	// Several test processes may build at a time: each its own file, then into place.
	temporary := fmt.Sprintf("%s.%d", path, os.Getpid())
	cmd := exec.Command("go", "build", "-o", temporary, serverModule)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, os.Rename(temporary, path)
}

// Old returns the path of a nats-server 2.9, or skips the test: what OldBinary names, or the
// one in PATH.
func Old(t testing.TB) string {
	t.Helper()
	tried := []string{os.Getenv(OldBinary)}
	if p, err := exec.LookPath("nats-server"); err == nil {
		tried = append(tried, p)
	}
	for _, p := range tried {
		out, err := exec.Command(p, "--version").Output()
		if err == nil && strings.Contains(string(out), "v2.9.") {
			return p
		}
	}
	t.Skipf("no nats-server 2.9 in $%s or PATH; `make test` unpacks Debian's", OldBinary)
	return ""
}
