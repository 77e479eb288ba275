//go:build unix

package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/guesthand/guesthand/host/ledger"
)

const canFillDisk = true

// fillDisk stands in for a full disk with a limit on the size of files.
func fillDisk(l *ledger.Ledger) error {
	ctx := context.Background()
	signal.Ignore(syscall.SIGXFSZ)
	if err := l.Flush(ctx); err != nil {
		return err
	}
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
		return err
	}
	limit := old
	limit.Cur = 128 << 10
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		return err
	}
	const n = 3000
	for i := range n {
		row := failure(fmt.Sprint(i))
		row.Result = make([]byte, 300)
		l.Record(row)
	}
	if err := l.Flush(ctx); err == nil {
		return errors.New("everything fitted into 128 KiB")
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
		return err
	}
	for deadline := time.Now().Add(20 * time.Second); l.Flush(ctx) != nil; {
		if time.Now().After(deadline) {
			return errors.New("never written again")
		}
	}
	rows, err := l.Runs(ctx, ledger.Filter{Limit: 2 * n})
	if err != nil {
		return err
	}
	if _, others := l.Dropped(); len(rows) != n || others != 0 {
		return fmt.Errorf("%d rows of %d, %d dropped", len(rows), n, others)
	}
	if err := l.Close(ctx); err != nil {
		return err
	}
	_, err = fmt.Fprintln(os.Stdout, "fine")
	return err
}
