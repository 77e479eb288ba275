package redisdriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

const (
	// deadPage is how many dead letters are read at a time.
	deadPage = 64
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

// reportDropped reads the first two numbers of an answer.
func (q *queue) reportDropped(c *call) {
	if v, ok := c.cmd.Val().([]any); ok && len(v) >= 2 {
		q.drops.report(q, number(v[0]), number(v[1]), false)
	}
}

// ListDead implements drivers.DeadLetters.
func (q *queue) ListDead(ctx context.Context, after string, limit int) ([]drivers.DeadLetter, error) {
	from := "-inf"
	if after != "" {
		if _, err := strconv.ParseUint(after, 10, 63); err != nil {
			return nil, fmt.Errorf("dead letter %q: %w", after, drivers.ErrNotFound)
		}
		from = "(" + after
	}
	var found []drivers.DeadLetter
	err := q.eachDead(ctx, from, limit, func(l drivers.DeadLetter) { found = append(found, l) })
	return found, err
}

// eachDead reads at most limit dead letters in order, in pages.
func (q *queue) eachDead(ctx context.Context, from string, limit int, f func(l drivers.DeadLetter)) error {
	for limit > 0 {
		entries, err := q.deadEntries(ctx, from, min(limit, deadPage))
		if err != nil || len(entries) == 0 {
			return err
		}
		letters, err := q.readDead(ctx, entries)
		if err != nil {
			return err
		}
		for _, l := range letters {
			f(l)
		}
		from = "(" + entries[len(entries)-1]
		limit -= len(letters)
	}
	return nil
}

func (q *queue) deadEntries(ctx context.Context, from string, limit int) ([]string, error) {
	if q.isDone() {
		return nil, drivers.ErrClosed
	}
	c := redis.NewStringSliceCmd(ctx, "zrangebyscore", q.prefix+":dead", from, "+inf", "limit", 0, limit)
	q.d.do(ctx, c)
	return c.Val(), q.d.wrap("dead letters of "+q.o.Name, c.Err())
}

// readDead reads these entries; those that are gone by now are left out.
func (q *queue) readDead(ctx context.Context, entries []string) ([]drivers.DeadLetter, error) {
	cmds := make([]redis.Cmder, len(entries))
	for i, e := range entries {
		cmds[i] = redis.NewMapStringStringCmd(ctx, "hgetall", q.prefix+":d:"+e)
	}
	q.d.do(ctx, cmds...)
	var out []drivers.DeadLetter
	for i, c := range cmds {
		f, err := c.(*redis.MapStringStringCmd).Result()
		if err != nil {
			return nil, q.d.wrap("dead letter "+entries[i], err)
		}
		if len(f) > 0 {
			out = append(out, q.deadLetter(entries[i], f))
		}
	}
	return out, nil
}

// deadLetter reads a dead letter's hash. What cannot be decoded is left out: the payload and
// the reason are there all the same.
func (q *queue) deadLetter(entry string, f map[string]string) drivers.DeadLetter {
	t := &token{id: f["key"]}
	d := &drivers.Delivery{Job: f["job"], ID: f["id"]}
	var err error
	if d.Headers, err = decodeHeaders(f["headers"]); err != nil {
		q.log.Debug("headers of a dead letter", slog.String("entry", entry), slog.Any("error", err))
	}
	q.name(d, t)
	carry, err := decodeCarry(f["carry"])
	if err != nil {
		q.log.Debug("counts of a dead letter", slog.String("entry", entry), slog.Any("error", err))
	}
	carry.Stalls = int(number(f["stalls"]))
	l := drivers.DeadLetter{
		ID: d.ID, Entry: entry, Job: d.Job, Queue: f[abi.HeaderDeathQueue], Reason: f[abi.HeaderDeathReason],
		Outcome: f[abi.HeaderDeathOutcome], Cause: f[abi.HeaderDeathCause], Tally: carry.Tally,
		Enqueued: time.UnixMilli(number(f["at"])), Digest: f[abi.HeaderDeathDigest], Worker: f[abi.HeaderDeathWorker],
		Headers: d.Headers, Payload: []byte(f["payload"]), Errors: carry.Errors,
	}
	if died, err := time.Parse(time.RFC3339Nano, f[abi.HeaderDeathTime]); err == nil {
		l.Died = died
	}
	if v, ok := d.Headers.Get(abi.HeaderReplays); ok {
		l.Replays = int(max(0, number(v)))
	}
	for name := range l.Headers {
		if strings.HasPrefix(strings.ToLower(name), "guesthand-death-") {
			delete(l.Headers, name)
		}
	}
	return l
}

// GetDead implements drivers.DeadLetters.
func (q *queue) GetDead(ctx context.Context, entryOrID string) ([]drivers.DeadLetter, error) {
	if q.isDone() {
		return nil, drivers.ErrClosed
	}
	if l, err := q.oneDead(ctx, entryOrID); !errors.Is(err, drivers.ErrNotFound) {
		return []drivers.DeadLetter{l}, err
	}
	ids, err := q.deadWithID(ctx, entryOrID)
	if err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		return nil, fmt.Errorf("dead letter %q: %w", entryOrID, drivers.ErrNotFound)
	}
	return q.readDead(ctx, ids)
}

// oneDead reads the dead letter of an entry.
func (q *queue) oneDead(ctx context.Context, entry string) (drivers.DeadLetter, error) {
	missing := fmt.Errorf("dead letter %q: %w", entry, drivers.ErrNotFound)
	if _, err := strconv.ParseUint(entry, 10, 63); err != nil {
		return drivers.DeadLetter{}, missing
	}
	letters, err := q.readDead(ctx, []string{entry})
	if err == nil && len(letters) == 0 {
		err = missing
	}
	if err != nil {
		return drivers.DeadLetter{}, err
	}
	return letters[0], nil
}

// deadWithID looks through all dead letters without their payloads.
func (q *queue) deadWithID(ctx context.Context, id string) ([]string, error) {
	var found []string
	for from := "-inf"; ; {
		entries, err := q.deadEntries(ctx, from, 10*deadPage)
		if err != nil || len(entries) == 0 {
			return found, err
		}
		cmds := make([]redis.Cmder, len(entries))
		for i, e := range entries {
			cmds[i] = redis.NewSliceCmd(ctx, "hmget", q.prefix+":d:"+e, "id", "headers", "key")
		}
		q.d.do(ctx, cmds...)
		for i, c := range cmds {
			f, err := c.(*redis.SliceCmd).Result()
			if err != nil {
				return nil, q.d.wrap("dead letter "+entries[i], err)
			}
			d := &drivers.Delivery{ID: text(f[0])}
			d.Headers, _ = decodeHeaders(text(f[1])) // one that cannot be decoded names nobody
			if q.name(d, &token{id: text(f[2])}); d.ID == id {
				found = append(found, entries[i])
			}
		}
		from = "(" + entries[len(entries)-1]
	}
}

// ReplayDead implements drivers.DeadLetters.
func (q *queue) ReplayDead(ctx context.Context, entry string) error {
	if q.isDone() {
		return drivers.ErrClosed
	}
	l, err := q.oneDead(ctx, entry)
	if err != nil {
		return err
	}
	h := l.Headers.Clone()
	h.Del(abi.HeaderNotBefore)
	tally := l.Tally.Replayed()
	h.Set(abi.HeaderReplays, strconv.Itoa(l.Replays+1))
	h.Set(abi.HeaderPrior, strconv.Itoa(tally.Prior))
	headers, err := encodeHeaders(h)
	if err != nil {
		return fmt.Errorf("replay %q: %w", entry, err)
	}
	carry, err := encodeCarry(drivers.Carry{Tally: tally})
	if err != nil {
		return fmt.Errorf("replay %q: %w", entry, err)
	}
	return q.onDead(ctx, "replay", entry, q.call(replayScript, entry, headers, carry))
}

// DropDead implements drivers.DeadLetters.
func (q *queue) DropDead(ctx context.Context, entry string) error {
	if q.isDone() {
		return drivers.ErrClosed
	}
	return q.onDead(ctx, "drop", entry, q.call(dropScript, entry))
}

func (q *queue) onDead(ctx context.Context, what, entry string, c *call) error {
	q.d.run(ctx, c)
	n, err := c.cmd.Int64()
	if err == nil && n != done {
		err = drivers.ErrNotFound
	}
	return q.d.wrap(fmt.Sprintf("%s dead letter %q", what, entry), err)
}
