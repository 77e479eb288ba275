package pgdriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

const (
	// maxSameID bounds how many dead letters of one message id are returned.
	maxSameID = 1000
	// dropReportEvery is how often a queue says that it drops dead letters.
	dropReportEvery = time.Minute
)

// dropLog says what the bounds took, at once and then not more often than dropReportEvery.
type dropLog struct {
	mu               sync.Mutex
	dropped, expired int64
	reported         time.Time
}

func (l *dropLog) report(q *queue, dropped, expired int64, force bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropped += dropped
	l.expired += expired
	if l.dropped+l.expired == 0 || !force && time.Since(l.reported) < dropReportEvery {
		return
	}
	if l.dropped > 0 {
		q.log.Warn("oldest dead letters dropped: the bound is reached", slog.Int64("count", l.dropped), slog.Int("max", q.o.DeadMax))
	}
	if l.expired > 0 {
		q.log.Info("dead letters dropped: older than dead.keep", slog.Int64("count", l.expired))
	}
	l.dropped, l.expired, l.reported = 0, 0, time.Now()
}

// boundDead applies the bounds. Rejected messages have the same ones.
func (q *queue) boundDead(ctx context.Context) error {
	var dropped, expired int64
	for _, state := range []string{"dead", "rejected"} {
		if q.o.DeadMax > 0 {
			n, err := q.d.exec(ctx, q.d.sql.boundMax, q.name, state, q.o.DeadMax)
			if err != nil {
				return err
			}
			dropped += n
		}
		if q.o.DeadKeep > 0 {
			n, err := q.d.exec(ctx, q.d.sql.boundKeep, q.name, state, q.o.DeadKeep.Microseconds(), 10*batch)
			if err != nil {
				return err
			}
			expired += n
		}
	}
	q.drops.report(q, dropped, expired, false)
	return nil
}

// readDead runs a statement that returns dead letters.
func (q *queue) readDead(ctx context.Context, what, sql string, args ...any) ([]drivers.DeadLetter, error) {
	if q.isDone() {
		return nil, drivers.ErrClosed
	}
	var found []drivers.DeadLetter
	err := q.d.each(ctx, sql, append([]any{q.name}, args...), func(rows pgx.Rows) error {
		l, err := q.scanDead(rows)
		found = append(found, l)
		return err
	})
	if err != nil {
		return nil, q.d.wrap(what, err)
	}
	return found, nil
}

// scanDead reads a row of the columns letter. What cannot be decoded is left out: the payload
// and the reason are there all the same.
func (q *queue) scanDead(rows pgx.Rows) (drivers.DeadLetter, error) {
	var l drivers.DeadLetter
	var entry int64
	var headers string
	var errs *string
	var c [6]int32
	err := rows.Scan(&entry, &l.ID, &l.Job, &l.Payload, &headers, &l.Enqueued, &l.Died, &c[0], &c[1], &c[2], &c[3], &c[4], &c[5],
		&errs, &l.Reason, &l.Outcome, &l.Cause, &l.Digest, &l.Worker)
	if err != nil {
		return l, err
	}
	l.Entry, l.Queue, l.Tally = strconv.FormatInt(entry, 10), q.o.Name, tallyOf(c)
	if l.Headers, err = decodeHeaders(headers); err != nil {
		q.log.Debug("headers of a dead letter", slog.String("entry", l.Entry), slog.Any("error", err))
	}
	if l.Errors, err = decodeErrors(errs); err != nil {
		q.log.Debug("errors of a dead letter", slog.String("entry", l.Entry), slog.Any("error", err))
	}
	if l.Job != "" {
		l.Headers.Set(abi.HeaderJob, l.Job)
	}
	l.Headers.Set(abi.HeaderID, l.ID)
	if v, ok := l.Headers.Get(abi.HeaderReplays); ok {
		if n, err := strconv.Atoi(v); err == nil {
			l.Replays = max(0, n)
		}
	}
	for name := range l.Headers {
		if strings.HasPrefix(strings.ToLower(name), "guesthand-death-") {
			delete(l.Headers, name)
		}
	}
	return l, nil
}

// number reads an entry, which is a number of the table.
func number(entry string) (int64, error) {
	n, err := strconv.ParseInt(entry, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("dead letter %q: %w", entry, drivers.ErrNotFound)
	}
	return n, nil
}

// deadPage bounds what one statement returns.
const deadPage = 64

// ListDead implements drivers.DeadLetters.
func (q *queue) ListDead(ctx context.Context, after string, limit int) ([]drivers.DeadLetter, error) {
	from := int64(-1)
	if after != "" {
		n, err := number(after)
		if err != nil {
			return nil, err
		}
		from = n
	}
	var all []drivers.DeadLetter
	for limit > 0 {
		page, err := q.readDead(ctx, "dead letters of "+q.o.Name, q.d.sql.listDead, from, min(limit, deadPage))
		if err != nil {
			return nil, err
		}
		if len(page) == 0 {
			break
		}
		all = append(all, page...)
		limit -= len(page)
		if from, err = number(page[len(page)-1].Entry); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// GetDead implements drivers.DeadLetters.
func (q *queue) GetDead(ctx context.Context, entryOrID string) ([]drivers.DeadLetter, error) {
	what := fmt.Sprintf("dead letter %q", entryOrID)
	if n, err := number(entryOrID); err == nil {
		if ls, err := q.readDead(ctx, what, q.d.sql.getDead, n); err != nil || len(ls) > 0 {
			return ls, err
		}
	}
	if !isText(entryOrID) {
		return nil, fmt.Errorf("%s: %w", what, drivers.ErrNotFound)
	}
	ls, err := q.readDead(ctx, what, q.d.sql.getDeadID, entryOrID, maxSameID)
	if err == nil && len(ls) == 0 {
		err = fmt.Errorf("%s: %w", what, drivers.ErrNotFound)
	}
	return ls, err
}

// ReplayDead implements drivers.DeadLetters.
func (q *queue) ReplayDead(ctx context.Context, entry string) error {
	n, err := number(entry)
	if err != nil {
		return err
	}
	ls, err := q.readDead(ctx, fmt.Sprintf("replay %q", entry), q.d.sql.getDead, n)
	if err != nil {
		return err
	}
	if len(ls) == 0 {
		return fmt.Errorf("dead letter %q: %w", entry, drivers.ErrNotFound)
	}
	l := ls[0]
	h := l.Headers.Clone()
	h.Del(abi.HeaderNotBefore)
	prior := l.Tally.Replayed().Prior
	h.Set(abi.HeaderReplays, strconv.Itoa(l.Replays+1))
	h.Set(abi.HeaderPrior, strconv.Itoa(prior))
	headers, err := encodeHeaders(h)
	if err != nil {
		return fmt.Errorf("replay %q: %w", entry, err)
	}
	err = q.onDead(ctx, "replay", entry, q.d.sql.replay, n, headers, prior)
	if err == nil {
		q.d.wakeLocal(q.name)
		q.d.announce(q.name)
	}
	return err
}

// DropDead implements drivers.DeadLetters.
func (q *queue) DropDead(ctx context.Context, entry string) error {
	n, err := number(entry)
	if err != nil {
		return err
	}
	return q.onDead(ctx, "drop", entry, q.d.sql.drop, n)
}

// onDead runs a statement that must find its dead letter.
func (q *queue) onDead(ctx context.Context, what, entry, sql string, args ...any) error {
	if q.isDone() {
		return drivers.ErrClosed
	}
	n, err := q.d.exec(ctx, sql, append([]any{q.name}, args...)...)
	if err == nil && n == 0 {
		err = drivers.ErrNotFound
	}
	if errors.Is(err, drivers.ErrNotFound) {
		return fmt.Errorf("%s dead letter %q: %w", what, entry, err)
	}
	return q.d.wrap(fmt.Sprintf("%s dead letter %q", what, entry), err)
}
