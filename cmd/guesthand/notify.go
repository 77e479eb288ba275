package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"time"
)

// notifier tells systemd how the host stands, by the protocol of sd_notify(3). The zero value,
// for a process that systemd does not watch, tells nobody.
type notifier struct {
	conn *net.UnixConn
	log  *slog.Logger
	// every is how often the watchdog is fed; 0: there is none.
	every time.Duration
}

// openNotifier connects to the socket that systemd names in the environment. A socket that is
// named and not there is no reason to run nothing: it is logged.
func openNotifier(log *slog.Logger) *notifier {
	n := &notifier{log: log}
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return n
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		log.Warn("systemd is not told how the host stands", "error", err)
		return n
	}
	n.conn, n.every = conn, watchdogInterval(os.Getenv("WATCHDOG_USEC"), os.Getenv("WATCHDOG_PID"), os.Getpid())
	return n
}

// watchdogInterval is a third of the time after which systemd would restart us, so that one
// late feeding does not; 0 where the watchdog is off or another process's.
func watchdogInterval(usec, pid string, self int) time.Duration {
	n, err := strconv.ParseInt(usec, 10, 64)
	if err != nil || n <= 0 || n > int64(time.Hour*24/time.Microsecond) || pid != "" && pid != strconv.Itoa(self) {
		return 0
	}
	return time.Duration(n) * time.Microsecond / 3
}

func (n *notifier) tell(state string) {
	if n.conn == nil {
		return
	}
	if _, err := n.conn.Write([]byte(state)); err != nil {
		n.log.Warn("systemd is not told how the host stands", "state", state, "error", err)
	}
}

func (n *notifier) ready() { n.tell("READY=1") }

func (n *notifier) reloading() {
	if n.conn != nil {
		n.tell(fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", monotonic().Microseconds()))
	}
}

// stopping asks for as long as a stop may take: the unit's own limit need not know of drain.
func (n *notifier) stopping(within time.Duration) {
	n.tell(fmt.Sprintf("STOPPING=1\nEXTEND_TIMEOUT_USEC=%d", within.Microseconds()))
}

// feed feeds the watchdog until ctx ends, and leaves a feeding out while alive says that
// something is stuck, or does not come back with an answer.
func (n *notifier) feed(ctx context.Context, alive func() error) {
	if n.every == 0 {
		return
	}
	tick := time.NewTicker(n.every)
	defer tick.Stop()
	for {
		if err := alive(); err == nil {
			n.tell("WATCHDOG=1")
		} else {
			n.log.Error("the watchdog is not fed", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (n *notifier) close() {
	if n.conn != nil {
		n.conn.Close()
	}
}
