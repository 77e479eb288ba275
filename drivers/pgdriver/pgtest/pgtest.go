// Package pgtest runs PostgreSQL as a process of its own for tests, so that they can kill it.
package pgtest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Binaries is the environment variable that names the directory with initdb and postgres.
// `make test` sets it.
const Binaries = "GUESTHAND_TEST_POSTGRES"

const upWait = 60 * time.Second

// Server is a PostgreSQL on a loopback port with data of its own.
type Server struct {
	// Addr is host:port. URL names the superuser and the database guesthand. Both stay over
	// a restart.
	Addr, URL string

	t    testing.TB
	bin  string
	data string
	args []string

	mu    sync.Mutex
	cmd   *exec.Cmd     // nil: it does not run
	ended chan struct{} // closed when it has ended
	said  *bytes.Buffer
}

// Start runs a server until the test ends, with settings such as "autovacuum=off". It does not
// wait for disks, but killing its processes loses nothing. Without PostgreSQL the test is skipped.
func Start(t testing.TB, settings ...string) *Server {
	t.Helper()
	s := &Server{t: t, bin: find(t)}
	dir, err := os.MkdirTemp("", "pgtest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s.data = filepath.Join(dir, "data")
	if err := own(dir); err != nil {
		t.Skipf("PostgreSQL does not run as root, and there is no other user to run it as: %v", err)
	}
	s.initdb()
	port := freePort(t)
	s.Addr = fmt.Sprintf("127.0.0.1:%d", port)
	s.URL = s.As("postgres", "")
	s.args = []string{"-D", s.data, "-p", fmt.Sprint(port), "-h", "127.0.0.1", "-k", ""}
	for _, set := range append([]string{"fsync=off", "max_connections=200", "shared_buffers=32MB", "max_wal_size=512MB", "max_prepared_transactions=4",
		"dynamic_shared_memory_type=mmap", "log_min_messages=warning"}, settings...) {
		s.args = append(s.args, "-c", set)
	}
	t.Cleanup(s.Kill)
	s.up()
	s.Exec("CREATE DATABASE guesthand", "postgres")
	return s
}

// As is the server's URL for a user.
func (s *Server) As(user, password string) string {
	if password != "" {
		user += ":" + password
	}
	return "postgres://" + user + "@" + s.Addr + "/guesthand?sslmode=disable"
}

// find returns the directory of the programs, or skips the test.
func find(t testing.TB) string {
	t.Helper()
	if dir := os.Getenv(Binaries); dir != "" {
		return dir
	}
	dirs := filepath.SplitList(os.Getenv("PATH"))
	for _, pattern := range []string{"/usr/lib/postgresql/*/bin", "/opt/homebrew/opt/postgresql*/bin"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, found...)
	}
	for _, dir := range dirs {
		if isFile(filepath.Join(dir, "initdb")) && isFile(filepath.Join(dir, "postgres")) {
			return dir
		}
	}
	t.Skipf("no initdb and postgres in $%s, PATH or /usr/lib/postgresql; `make test` unpacks Debian's", Binaries)
	return ""
}

func isFile(path string) bool {
	i, err := os.Stat(path)
	return err == nil && i.Mode().IsRegular()
}

// program is one of the server's programs, as the user that it runs as.
func (s *Server) program(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(s.bin, name), args...)
	cmd.Dir = filepath.Dir(s.data)
	cmd.Env = append(os.Environ(), "LC_ALL=C", "TZ=UTC", "HOME="+cmd.Dir)
	asOther(cmd)
	cmd.WaitDelay = 5 * time.Second // a child that outlives the server holds the pipe
	return cmd
}

// template is a fresh data directory that servers of one test process copy, since making one
// takes seconds.
var template struct {
	dir  string // set by Main
	once sync.Once
	made bool
}

// Main runs a package's tests and makes their servers start faster: TestMain calls it.
func Main(m *testing.M) {
	os.Exit(withTemplate(m))
}

func withTemplate(m *testing.M) int {
	dir, err := os.MkdirTemp("", "pgtest-template-")
	if err == nil && own(dir) == nil {
		template.dir = dir
	}
	defer func() { _ = os.RemoveAll(dir) }()
	return m.Run()
}

// initdb makes the data directory, as a copy where that can be.
func (s *Server) initdb() {
	s.t.Helper()
	if template.dir != "" {
		from := filepath.Join(template.dir, "data")
		template.once.Do(func() {
			s.makeData(from)
			template.made = true
		})
		if template.made {
			cmd := exec.Command("cp", "-a", from, s.data)
			asOther(cmd)
			if cmd.Run() == nil {
				return
			}
			if err := os.RemoveAll(s.data); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	s.makeData(s.data)
}

func (s *Server) makeData(dir string) {
	s.t.Helper()
	cmd := s.program("initdb", "-D", dir, "-N", "-A", "trust", "-U", "postgres", "-E", "UTF8", "--locale=C", "--wal-segsize=4", "--no-instructions")
	said, err := cmd.CombinedOutput()
	if errors.Is(err, os.ErrPermission) {
		s.t.Skipf("PostgreSQL does not run as root, and the user it runs as may not run %s: %v", cmd.Path, err)
	}
	if err != nil {
		s.t.Fatalf("initdb: %v\n%s", err, said)
	}
}

// Exec runs statements as the superuser, in another database if one is named.
func (s *Server) Exec(sql string, database ...string) {
	s.t.Helper()
	url := s.URL
	if len(database) > 0 {
		url = strings.Replace(url, "/guesthand?", "/"+database[0]+"?", 1)
	}
	ctx, cancel := context.WithTimeout(context.Background(), upWait)
	defer cancel()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		s.t.Fatalf("%s: %v", sql, err)
	}
}

// Kill ends the server's processes without a warning.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return
	}
	// Its children notice by themselves, but busy ones only after a while.
	all := append(children(s.cmd.Process.Pid), s.cmd.Process.Pid)
	for _, pid := range all {
		kill(pid)
	}
	<-s.ended
	for _, pid := range all {
		for end := time.Now().Add(10 * time.Second); alive(pid) && time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		}
	}
	s.cmd = nil
}

// Restart starts the server again on its data, after stopping it orderly if it still runs:
// sessions are ended, transactions rolled back.
func (s *Server) Restart() {
	s.t.Helper()
	s.mu.Lock()
	if s.cmd != nil {
		if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
			_ = s.cmd.Process.Kill() // where there is no such signal
		}
		<-s.ended
		s.cmd = nil
	}
	s.mu.Unlock()
	s.up()
}

// up starts the server and waits until it takes connections. The shared memory of a killed one
// may be in use for a moment still.
func (s *Server) up() {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	end := time.Now().Add(upWait)
	for {
		s.said = &bytes.Buffer{}
		s.cmd = s.program("postgres", s.args...)
		s.cmd.Stdout, s.cmd.Stderr = s.said, s.said
		if err := s.cmd.Start(); err != nil {
			s.t.Fatalf("start postgres: %v", err)
		}
		cmd, ended := s.cmd, make(chan struct{})
		s.ended = ended
		go func() {
			_ = cmd.Wait() // what it said is the reason
			close(ended)
		}()
		if s.answers(ended, end) {
			return
		}
		_ = cmd.Process.Kill() // one that has ended is no matter
		<-ended
		if time.Now().After(end) {
			s.cmd = nil
			s.t.Fatalf("postgres does not answer: %s", s.said)
		}
	}
}

// answers waits for a server that takes connections, until it has ended.
func (s *Server) answers(ended <-chan struct{}, end time.Time) bool {
	url := strings.Replace(s.URL, "/guesthand?", "/postgres?", 1)
	for time.Now().Before(end) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		conn, err := pgx.Connect(ctx, url)
		if err == nil {
			_ = conn.Close(ctx)
		}
		cancel()
		if err == nil {
			return true
		}
		select {
		case <-ended:
			time.Sleep(50 * time.Millisecond)
			return false
		case <-time.After(10 * time.Millisecond):
		}
	}
	return false
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
