// Package redistest runs redis-server as a process of its own for tests, so that they can kill
// it.
package redistest

import (
	"bufio"
	"bytes"
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

// Binary is the environment variable that names a redis-server from 7.0 on. `make test` sets
// it.
const Binary = "GUESTHAND_TEST_REDIS"

const upWait = 20 * time.Second

// Server is a redis-server on a loopback port with data of its own.
type Server struct {
	// Addr is host:port, URL the same with the scheme; both stay over a restart.
	Addr, URL string

	t      testing.TB
	binary string
	args   []string

	mu  sync.Mutex
	cmd *exec.Cmd
}

// Start runs a server until the test ends, with lines for its configuration such as
// "maxmemory 10mb". Every write is in its log before it answers, so that killing it loses
// nothing. Without a redis-server the test is skipped.
func Start(t testing.TB, config ...string) *Server {
	t.Helper()
	s := &Server{t: t, binary: find(t)}
	port := FreePort(t)
	s.Addr = fmt.Sprintf("127.0.0.1:%d", port)
	s.URL = "redis://" + s.Addr + "/0"
	dir := t.TempDir()
	text := fmt.Sprintf("bind 127.0.0.1\nport %d\ndir %q\nsave \"\"\nappendonly yes\nappendfsync everysec\n%s\n", port, dir, strings.Join(config, "\n"))
	file := filepath.Join(dir, "redis.conf")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	s.args = []string{file}
	s.up()
	t.Cleanup(func() { s.end(os.Kill) })
	return s
}

// find returns the program, or skips the test.
func find(t testing.TB) string {
	t.Helper()
	if p := os.Getenv(Binary); p != "" {
		return p
	}
	p, err := exec.LookPath("redis-server")
	if err != nil {
		t.Skipf("no redis-server in $%s or PATH; `make test` unpacks Debian's", Binary)
	}
	return p
}

// Kill ends the server without a warning.
func (s *Server) Kill() {
	s.t.Helper()
	s.end(os.Kill)
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
		s.t.Fatal("redis-server does not run")
	}
	if err := s.cmd.Process.Signal(sig); err != nil {
		s.t.Fatalf("signal redis-server: %v", err)
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
		s.t.Errorf("end redis-server: %v", err)
	}
	// It ends by a signal, which is no failure here.
	_ = s.cmd.Wait()
	s.cmd = nil
}

func (s *Server) up() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	cmd := exec.Command(s.binary, s.args...)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		s.t.Fatalf("start redis-server: %v", err)
	}
	for end := time.Now().Add(upWait); !answers(s.Addr); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // it was killed; what it said is the reason
			s.t.Fatalf("redis-server does not answer: %s", said.String())
		}
	}
	s.cmd = cmd
}

// answers reports whether the server has loaded its data.
func answers(addr string) bool {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return false
	}
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return false
	}
	if _, err := fmt.Fprint(c, "PING\r\n"); err != nil {
		return false
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	return err == nil && (line == "+PONG\r\n" || strings.HasPrefix(line, "-NOAUTH"))
}

// FreePort is a port on this machine that nobody listens at now.
func FreePort(t testing.TB) int {
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
