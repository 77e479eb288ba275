package embeddeddriver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// lockRetry is how often a lock that another process holds is tried.
const lockRetry = 50 * time.Millisecond

// errLocked: another process has it.
var errLocked = errors.New("locked")

// lock is the store's: the server itself does not guard it, and two would destroy it.
type lock struct{ f *os.File }

// acquire takes the lock, waiting at most wait for its holder to end.
func acquire(ctx context.Context, dir string, wait time.Duration) (*lock, error) {
	path := filepath.Join(dir, lockFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	end := time.Now().Add(wait)
	for {
		err := lockExclusive(f)
		if err == nil {
			if err = writePID(dir); err != nil {
				return nil, errors.Join(err, unlock(f), f.Close())
			}
			return &lock{f}, nil
		}
		if !errors.Is(err, errLocked) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
		}
		if !time.Now().Before(end) {
			return nil, errors.Join(inUse(dir), f.Close())
		}
		select {
		case <-time.After(lockRetry):
		case <-ctx.Done():
			return nil, errors.Join(inUse(dir), ctx.Err(), f.Close())
		}
	}
}

func inUse(dir string) error {
	who := "another process"
	if b, err := os.ReadFile(filepath.Join(dir, pidFile)); err == nil {
		if pid, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil {
			who = fmt.Sprintf("process %d", pid)
		}
	}
	return fmt.Errorf("store %s is in use by %s; stop it, or give each its own dir", dir, who)
}

// pidFile is beside the lock, since a locked file cannot be read everywhere.
const pidFile = "guesthand.pid"

func writePID(dir string) error {
	p := filepath.Join(dir, pidFile)
	if err := os.WriteFile(p, []byte(strconv.Itoa(os.Getpid())+"\n"), 0o600); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	return nil
}

func (l *lock) release() error {
	if l == nil || l.f == nil {
		return nil
	}
	f := l.f
	l.f = nil
	return errors.Join(unlock(f), f.Close())
}
