package embeddeddriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

const (
	hostUser     = "host"
	producerUser = "producer"
	startWait    = 2 * time.Minute // a large store takes its time
	startPoll    = 20 * time.Millisecond
)

// accounts keeps producers apart from the store: their account has no JetStream, and the
// one thing it can reach of the other is what is exported here: to send work, and to be
// answered. The passwords are set in code.
const accounts = `
accounts {
  GUESTHAND {
    jetstream: enabled
    users: [ { user: "host", password: "host" } ]
    exports: [ { service: "guesthand.*.>" }, { stream: "_INBOX.>" } ]
  }
  PRODUCERS {
    users: [ { user: "producer", password: "producer", permissions: {
      publish: { allow: ["guesthand.*.>"], deny: ["guesthand.dead.>"] }
      subscribe: { allow: ["_INBOX.>"] }
    } } ]
    imports: [
      { service: { account: GUESTHAND, subject: "guesthand.*.>" } },
      { stream: { account: GUESTHAND, subject: "_INBOX.>" } }
    ]
  }
}
`

func serverOptions(o Options, secret string) (*server.Options, error) {
	opts := &server.Options{}
	if err := opts.ProcessConfigString(accounts); err != nil {
		return nil, fmt.Errorf("accounts: %w", err)
	}
	for _, u := range opts.Users {
		switch u.Username {
		case hostUser:
			u.Password = secret
		case producerUser:
			u.Password = secret
			if o.User != "" {
				u.Username, u.Password = o.User, o.Password
			} else if o.Listen != "" {
				opts.NoAuthUser = producerUser
			}
		}
	}
	opts.ServerName = "guesthand"
	opts.JetStream, opts.StoreDir = true, o.Dir
	opts.SyncAlways, opts.SyncInterval = o.SyncAlways, o.Sync
	opts.MaxPayload = MaxPayload
	opts.NoSigs, opts.DisableJetStreamBanner = true, true
	opts.DontListen = o.Listen == ""
	if opts.DontListen {
		return opts, nil
	}
	return opts, listen(opts, o)
}

func listen(opts *server.Options, o Options) error {
	host, port, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	n, err := strconv.Atoi(port)
	if err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("listen %q: %q is no port", o.Listen, port)
	}
	if (o.User == "") != (o.Password == "") {
		return errors.New("listen: user and password go together")
	}
	if o.User == hostUser {
		return fmt.Errorf("listen: the user %q is the host's own, choose another", hostUser)
	}
	if o.User == "" && !loopback(host) {
		return fmt.Errorf("listen %q: everybody who reaches this address could send work: set user and password, or listen on 127.0.0.1", o.Listen)
	}
	opts.Host, opts.Port = host, n
	if n == 0 {
		opts.Port = server.RANDOM_PORT
	}
	return nil
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

func startServer(ctx context.Context, o Options, secret string) (*server.Server, error) {
	opts, err := serverOptions(o, secret)
	if err != nil {
		return nil, err
	}
	s, err := server.NewServer(opts)
	if err != nil {
		return nil, err
	}
	log := &serverLog{log: o.Logger.With(slog.String("component", "nats-server"))}
	s.SetLoggerV2(log, false, false, false)
	started := make(chan struct{})
	go func() {
		defer close(started)
		s.Start()
	}()
	ready := false
	for end := time.Now().Add(startWait); !ready && !log.failed() && ctx.Err() == nil && time.Now().Before(end); {
		ready = s.ReadyForConnections(startPoll)
	}
	if ready && s.JetStreamEnabled() {
		return s, nil
	}
	if err = ctx.Err(); err == nil || log.failed() {
		err = log.reason()
	}
	s.Shutdown()
	s.WaitForShutdown()
	<-started
	return nil, fmt.Errorf("start on the store %s: %w", o.Dir, err)
}

// serverLog passes the server's log on, and keeps why it could not start.
type serverLog struct {
	log   *slog.Logger
	fatal atomic.Bool

	mu   sync.Mutex
	last string
}

func (l *serverLog) failed() bool { return l.fatal.Load() }

func (l *serverLog) reason() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.last == "" {
		return errors.New("the server was not ready in time")
	}
	return errors.New(l.last)
}

func (l *serverLog) keep(format string, v []any) string {
	text := strings.TrimSpace(fmt.Sprintf(format, v...))
	l.mu.Lock()
	l.last = text
	l.mu.Unlock()
	return text
}

// Noticef implements server.Logger.
func (l *serverLog) Noticef(format string, v ...any) { l.log.Debug(fmt.Sprintf(format, v...)) }

// ourOwn begin the warnings about what this package chose itself: passwords that never leave
// the process, and room for payloads of 8 MiB.
var ourOwn = []string{"Plaintext passwords detected", "Maximum payloads over"}

// Warnf implements server.Logger.
func (l *serverLog) Warnf(format string, v ...any) {
	text := fmt.Sprintf(format, v...)
	if slices.ContainsFunc(ourOwn, func(p string) bool { return strings.HasPrefix(text, p) }) {
		l.log.Debug(text)
		return
	}
	l.log.Warn(text)
}

// Errorf implements server.Logger.
func (l *serverLog) Errorf(format string, v ...any) { l.log.Error(l.keep(format, v)) }

// Fatalf implements server.Logger. The server returns after it.
func (l *serverLog) Fatalf(format string, v ...any) {
	l.keep(format, v)
	l.fatal.Store(true)
}

// Debugf implements server.Logger.
func (l *serverLog) Debugf(format string, v ...any) {}

// Tracef implements server.Logger.
func (l *serverLog) Tracef(format string, v ...any) {}
