package redisdriver

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// scanStep is how many keys one step of the search looks at.
	scanStep = 1000
	// maxSuspects bounds what is remembered between two looks.
	maxSuspects = 10_000
)

// maintain applies the bounds of dead letters, and searches for messages that no set names.
func (q *queue) maintain() {
	tick := time.NewTicker(q.d.o.ReapEvery)
	defer tick.Stop()
	suspects := map[string]time.Time{}
	for {
		select {
		case <-q.done:
			return
		case <-tick.C:
		}
		ctx, cancel := context.WithTimeout(context.Background(), q.d.o.AnswerTimeout)
		q.dropLost()
		err := q.boundDead(ctx)
		if err == nil {
			err = q.reap(ctx, suspects)
		}
		cancel()
		if err != nil {
			q.log.Debug("maintenance", slog.Any("error", err))
		}
	}
}

func (q *queue) boundDead(ctx context.Context) error {
	if q.o.DeadMax <= 0 && q.o.DeadKeep <= 0 {
		return nil
	}
	c := q.call(boundScript, q.o.DeadMax, q.o.DeadKeep.Milliseconds())
	q.d.run(ctx, c)
	if err := c.cmd.Err(); err != nil {
		return err
	}
	q.reportDropped(c)
	return nil
}

// reap takes one step of the search and puts back what is still an orphan one lease later: a
// worker that lives has renewed by then, which makes a lost entry anew, and a producer that does
// not use MULTI has a moment between its commands, too.
func (q *queue) reap(ctx context.Context, suspects map[string]time.Time) error {
	ids, err := q.scan(ctx)
	if err != nil {
		return err
	}
	if len(ids) > 0 {
		found, err := q.orphans(ctx, "look", ids)
		if err != nil {
			return err
		}
		for _, id := range found {
			if _, known := suspects[id]; !known && len(suspects) < maxSuspects {
				suspects[id] = time.Now()
			}
		}
	}
	var due []string
	for id, since := range suspects {
		if time.Since(since) >= q.o.Lease && len(due) < batch {
			due = append(due, id)
			delete(suspects, id)
		}
	}
	if len(due) == 0 {
		return nil
	}
	put, err := q.orphans(ctx, "put", due)
	if len(put) > 0 {
		q.log.Warn("messages that no list or set named were put back: the server has evicted or lost keys of this queue",
			slog.Int("count", len(put)))
	}
	return err
}

func (q *queue) orphans(ctx context.Context, how string, ids []string) ([]string, error) {
	c := q.call(reapScript, how)
	for _, id := range ids {
		c.args = append(c.args, id)
	}
	q.d.run(ctx, c)
	return c.cmd.StringSlice()
}

// scan takes one step through the keys, for all workers of the queue together: a lock lets one
// of them go on from where the last one was.
func (q *queue) scan(ctx context.Context) ([]string, error) {
	lock := redis.NewStatusCmd(ctx, "set", q.prefix+":scan", q.owner, "nx", "px", max(1, q.d.o.ReapEvery.Milliseconds()*9/10))
	at := redis.NewStringCmd(ctx, "get", q.prefix+":scanned")
	q.d.do(ctx, lock, at)
	if errors.Is(lock.Err(), redis.Nil) {
		return nil, nil
	}
	if lock.Err() != nil {
		return nil, lock.Err()
	}
	cursor, err := strconv.ParseUint(at.Val(), 10, 64)
	if err != nil {
		cursor = 0
	}
	step := redis.NewScanCmd(ctx, nil, "scan", cursor, "match", globEscape.Replace(q.prefix)+":m:*", "count", scanStep)
	q.d.do(ctx, step)
	keys, next, err := step.Result()
	if err != nil {
		return nil, err
	}
	q.d.do(ctx, redis.NewStatusCmd(ctx, "set", q.prefix+":scanned", next))
	for i, k := range keys {
		keys[i] = strings.TrimPrefix(k, q.prefix+":m:")
	}
	return keys, nil
}
