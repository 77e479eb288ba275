package main

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"
	"time"
)

// systemd is the other end of the notify protocol.
type systemd struct {
	t    *testing.T
	conn *net.UnixConn
	path string
}

func listenAsSystemd(t *testing.T) *systemd {
	t.Helper()
	dir, err := os.MkdirTemp("", "notify") // t.TempDir's names may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Skipf("no unix datagram sockets here: %v", err)
	}
	t.Cleanup(func() { conn.Close() })
	return &systemd{t, conn, path}
}

// expect reads until a message begins with the word, and returns that one and those before.
func (s *systemd) expect(word string) (message string, before []string) {
	s.t.Helper()
	buf := make([]byte, 4096)
	for {
		if err := s.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
			s.t.Fatal(err)
		}
		n, err := s.conn.Read(buf)
		if err != nil {
			s.t.Fatalf("waiting for %s after %q: %v", word, before, err)
		}
		if m := string(buf[:n]); strings.HasPrefix(m, word) {
			return m, before
		} else {
			before = append(before, m)
		}
	}
}

// systemd hears of start, reload and stop in that order, and the watchdog is fed meanwhile.
func TestNotify(t *testing.T) {
	d := listenAsSystemd(t)
	t.Setenv("NOTIFY_SOCKET", d.path)
	t.Setenv("WATCHDOG_USEC", fmt.Sprint((30 * time.Millisecond).Microseconds()))
	s := newSite(t, plainConfig)
	p := s.start()
	if _, before := d.expect("READY=1"); len(strings.ReplaceAll(strings.Join(before, ""), "WATCHDOG=1", "")) != 0 {
		t.Errorf("before it was ready it said %q", before)
	}
	for range 3 {
		d.expect("WATCHDOG=1")
	}
	p.signal(syscall.SIGHUP)
	if m, _ := d.expect("RELOADING=1"); !strings.Contains(m, "\nMONOTONIC_USEC=") || strings.HasSuffix(m, "=0") {
		t.Errorf("reloading: %q", m)
	}
	d.expect("READY=1")
	p.signal(syscall.SIGTERM)
	m, before := d.expect("STOPPING=1")
	if want := fmt.Sprintf("EXTEND_TIMEOUT_USEC=%d", (25*time.Second + time.Minute).Microseconds()); !strings.Contains(m, want) {
		t.Errorf("stopping: %q, want %s in it", m, want)
	}
	for _, m := range before {
		if m != "WATCHDOG=1" {
			t.Errorf("between ready and stopping it said %q", m)
		}
	}
	if status := p.wait(); status != 0 {
		t.Errorf("status %d", status)
	}
}

// A socket that is named and gone does not keep the host from its work.
func TestNotifyWithoutASocket(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "gone"))
	s := newSite(t, plainConfig)
	p := s.start()
	if p.count("systemd is not told") != 1 {
		t.Error("it says nothing of it")
	}
	p.stop()
}

func TestWatchdogIsNotFedByTheStuck(t *testing.T) {
	d := listenAsSystemd(t)
	t.Setenv("NOTIFY_SOCKET", d.path)
	t.Setenv("WATCHDOG_USEC", "3000")
	n := openNotifier(slog.New(slog.DiscardHandler))
	defer n.close()
	asked := make(chan struct{})
	go n.feed(t.Context(), func() error {
		select {
		case asked <- struct{}{}:
		case <-t.Context().Done():
		}
		return fmt.Errorf("stuck")
	})
	for range 5 {
		<-asked
	}
	n.tell("END")
	if _, before := d.expect("END"); len(before) != 0 {
		t.Errorf("fed with %q", before)
	}
}

func TestWatchdogInterval(t *testing.T) {
	for _, tc := range []struct {
		usec, pid string
		want      time.Duration
	}{
		{"30000000", "", 10 * time.Second},
		{"30000000", "7", 10 * time.Second},
		{"30000000", "8", 0}, // another process's
		{"", "", 0},
		{"0", "", 0},
		{"-1", "", 0},
		{"soon", "", 0},
		{"9223372036854775807", "", 0},
	} {
		if got := watchdogInterval(tc.usec, tc.pid, 7); got != tc.want {
			t.Errorf("%q of %q: %s, want %s", tc.usec, tc.pid, got, tc.want)
		}
	}
}

func TestVersionOf(t *testing.T) {
	vcs := func(modified string) []debug.BuildSetting {
		return []debug.BuildSetting{{Key: "vcs.revision", Value: "0123456789abcdef0123"}, {Key: "vcs.modified", Value: modified}}
	}
	for _, tc := range []struct {
		info debug.BuildInfo
		want string
	}{
		{debug.BuildInfo{}, "dev"},
		{debug.BuildInfo{Main: debug.Module{Version: "v1.2.3"}, Settings: vcs("true")}, "v1.2.3"},
		{debug.BuildInfo{Main: debug.Module{Version: "(devel)"}}, "dev"},
		{debug.BuildInfo{Main: debug.Module{Version: "(devel)"}, Settings: vcs("false")}, "dev-0123456789ab"},
		{debug.BuildInfo{Settings: vcs("true")}, "dev-0123456789ab-dirty"},
	} {
		if got := versionOf(&tc.info); got != tc.want {
			t.Errorf("%+v: %s, want %s", tc.info, got, tc.want)
		}
	}
}
