// Package embeddeddriver is the driver for a NATS JetStream server inside this process, with
// its store in a directory: a durable broker that needs nothing to be installed.
//
// # Mapping, Delivery, Retry and dead letters
//
// As in package natsdriver. The store belongs to one process at a time, which a lock file
// guards. It is synced to the disk every second by default: the end of the process loses
// nothing, a power cut at most that second.
//
// The server dies together with the host, and with it what it knew of the last deliveries.
// A journal of started messages, a shared memory map in the directory, survives that: after an
// unclean end every started run is counted as a stall, and what was merely held is not.
//
// # Listening
//
// With Listen the server takes connections from producers. They live in an account of
// their own, which sees nothing but the subjects guesthand.QUEUE.JOB, and may publish there
// and read the answers. Without user and password the address must be a loopback one.
//
// # Limits
//
// As in package natsdriver; payloads up to 9 MiB less the headers.
package embeddeddriver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/natsdriver"
)

// DefaultSync is how often the store is written to the disk.
const DefaultSync = time.Second

// MaxPayload is the server's limit for a message, headers included.
const MaxPayload = 9 << 20

const lockFile = "guesthand.lock"

// Options say where the store is and who may reach it.
type Options struct {
	// Dir is the store's directory, made where it is missing. Required.
	Dir string
	// SyncAlways writes to the disk before each confirmation; Sync is the interval
	// otherwise, default DefaultSync.
	SyncAlways bool
	Sync       time.Duration
	// Listen is a host:port for producers; empty for none. User and Password are
	// theirs, and needed where the address is not a loopback one.
	Listen         string
	User, Password string
	// LockWait is how long to wait for another process that holds the store.
	LockWait time.Duration
	// Worker names this host in dead letters and logs.
	Worker string
	// Logger takes what has no caller to go to; default none.
	Logger *slog.Logger
	// MaxDelay, if not 0, is the longest delay given to the server at once.
	MaxDelay time.Duration
}

func (o Options) withDefaults() Options {
	if o.Sync <= 0 {
		o.Sync = DefaultSync
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Caps is what every embedded queue can do.
func Caps() drivers.Caps { return natsdriver.Caps() }

// Driver is an embedded server and the connection to it.
type Driver struct {
	*natsdriver.Driver
	o      Options
	server *server.Server
	lock   *lock

	mu       sync.Mutex
	journals map[string]*journal
	closing  sync.Once
	closeErr error
}

var _ drivers.Driver = (*Driver)(nil)

// Open locks the store, starts the server and connects to it.
func Open(ctx context.Context, o Options) (*Driver, error) {
	o = o.withDefaults()
	d, err := open(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("embedded broker: %w", err)
	}
	return d, nil
}

func open(ctx context.Context, o Options) (_ *Driver, err error) {
	if o.Dir == "" {
		return nil, errors.New("no directory for the store: set dir")
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return nil, err
	}
	o.Dir = dir
	if err := os.MkdirAll(filepath.Join(dir, journalDir), 0o700); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	d := &Driver{o: o, journals: map[string]*journal{}}
	if d.lock, err = acquire(ctx, dir, o.LockWait); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.shutdown())
		}
	}()
	secret := rand.Text()
	if d.server, err = startServer(ctx, o, secret); err != nil {
		return nil, err
	}
	d.Driver, err = natsdriver.Open(ctx, natsdriver.Options{
		URL: "nats://embedded", User: hostUser, Password: secret, Name: "guesthand",
		// Producers may read below _INBOX; what the host is sent is not theirs to read.
		InboxPrefix: "_HOST." + rand.Text(),
		InProcess:   d.server, Journal: d.journal,
		Worker: o.Worker, Logger: o.Logger, MaxDelay: o.MaxDelay,
	})
	if err != nil {
		return nil, err
	}
	return d, nil
}

// Addr is where producers connect, empty where the server does not listen.
func (d *Driver) Addr() string {
	if d.o.Listen == "" {
		return ""
	}
	return d.server.Addr().String()
}

// Close gives everything back, stops the server and unlocks the store.
func (d *Driver) Close(ctx context.Context) error {
	d.closing.Do(func() {
		d.closeErr = errors.Join(d.Driver.Close(ctx), d.shutdown())
	})
	return d.closeErr
}

// shutdown ends server, journals and lock. A journal is marked clean only when the server has
// written what it knows.
func (d *Driver) shutdown() error {
	if d.server != nil {
		d.server.Shutdown()
		d.server.WaitForShutdown()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var errs []error
	for _, j := range d.journals {
		errs = append(errs, j.end())
	}
	d.journals = nil
	return errors.Join(append(errs, d.lock.release())...)
}

// journal opens the journal of a consumer, or hands out the one that is open.
func (d *Driver) journal(stream, consumer string) (natsdriver.Journal, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	name := journalName(stream, consumer)
	if j := d.journals[name]; j != nil {
		j.reopen()
		return j, nil
	}
	j, err := openJournal(filepath.Join(d.o.Dir, journalDir, name), d.o.Logger)
	if err != nil {
		return nil, err
	}
	d.journals[name] = j
	return j, nil
}
