package pgtest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// Pooler is the environment variable that names a pgbouncer. `make test` sets it.
const Pooler = "GUESTHAND_TEST_PGBOUNCER"

// Pooled starts a pgbouncer before s in a mode, "session" or "transaction", until the test ends,
// and returns its URL for the superuser. Without pgbouncer the test is skipped.
func Pooled(t testing.TB, s *Server, mode string) string {
	t.Helper()
	binary := os.Getenv(Pooler)
	if binary == "" {
		var err error
		if binary, err = exec.LookPath("pgbouncer"); err != nil {
			t.Skipf("no pgbouncer in $%s or PATH; `make test` unpacks Debian's", Pooler)
		}
	}
	dir, err := os.MkdirTemp("", "pgtest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	_, serverPort, err := net.SplitHostPort(s.Addr)
	if err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	// Whoever comes is the superuser: auth_type any has no user of its own.
	text := fmt.Sprintf("[databases]\nguesthand = user=postgres host=127.0.0.1 port=%s\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = %d\nunix_socket_dir =\nauth_type = any\n"+
		"pool_mode = %s\ndefault_pool_size = 20\n", serverPort, port, mode)
	file := filepath.Join(dir, "pgbouncer.ini")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := own(dir); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, file)
	asOther(cmd)
	var said bytes.Buffer
	cmd.Stderr, cmd.WaitDelay = &said, time.Second
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	url := strings.Replace(s.URL, s.Addr, fmt.Sprintf("127.0.0.1:%d", port), 1)
	for end := time.Now().Add(upWait); ; time.Sleep(10 * time.Millisecond) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		conn, err := pgx.Connect(ctx, url)
		if err == nil {
			_ = conn.Close(ctx)
		}
		cancel()
		if err == nil {
			return url
		}
		if time.Now().After(end) {
			t.Fatalf("pgbouncer does not answer: %v", err)
		}
	}
}
