package pgdriver

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
)

// sweepEvery is how often everything is looked at that is seldom amiss.
const sweepEvery = 30 * time.Second

// maintenance puts back what dead workers held, and applies the bounds.
func (d *Driver) maintenance() {
	tick := time.NewTicker(d.o.MaintainEvery)
	defer tick.Stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-d.done
		cancel()
	}()
	var swept time.Time
	for {
		full := time.Since(swept) >= sweepEvery
		if err := d.lookAfter(ctx, full); err != nil {
			d.log.Debug("maintenance", slog.Any("error", err))
		} else if full {
			swept = time.Now()
		}
		select {
		case <-d.done:
			return
		case <-tick.C:
		case <-d.maintain:
		}
	}
}

// maintainNow makes the maintenance look at once.
func (d *Driver) maintainNow() {
	select {
	case d.maintain <- struct{}{}:
	default:
	}
}

func (d *Driver) lookAfter(ctx context.Context, full bool) error {
	for _, q := range d.openQueues() {
		if q.o.SendOnly {
			continue
		}
		if err := q.releaseNeglected(ctx); err != nil {
			return err
		}
		if (q.o.DeadMax > 0 || q.o.DeadKeep > 0) && (full || q.buried.Load() || q.o.DeadKeep > 0 && q.o.DeadKeep < sweepEvery) {
			q.buried.Store(false)
			if err := q.boundDead(ctx); err != nil {
				q.buried.Store(true)
				return err
			}
		}
	}
	if err := d.putBack(ctx, d.sql.reclaim); err != nil || !full {
		return err
	}
	if err := d.putBack(ctx, d.sql.sweep); err != nil {
		return err
	}
	return d.expire(ctx)
}

// putBack runs a statement that puts back what dead workers held.
func (d *Driver) putBack(ctx context.Context, sql string) error {
	back := map[string]int{}
	err := d.each(ctx, sql, nil, func(rows pgx.Rows) error {
		var name string
		var n int
		err := rows.Scan(&name, &n)
		back[name] = n
		return err
	})
	for name, n := range back {
		d.log.Info("messages of a lost worker put back", slog.String("queue", name), slog.Int("count", n))
		d.wakeLocal(name)
		d.announce(name)
	}
	return err
}

// releaseNeglected puts back what the host neither renewed nor settled, though it renews
// others: the worker's row would keep it for ever.
func (q *queue) releaseNeglected(ctx context.Context) error {
	ts := q.neglected()
	if len(ts) == 0 {
		return nil
	}
	entries, claims := make([]int64, len(ts)), make([]int32, len(ts))
	for i, t := range ts {
		entries[i], claims[i] = t.entry, t.claims
	}
	n, err := q.d.exec(ctx, q.d.sql.release, q.worker, entries, claims)
	if err != nil {
		return err
	}
	q.forget(ts...)
	if n > 0 {
		q.d.wakeLocal(q.name)
		q.d.announce(q.name)
	}
	return nil
}

// expire removes keys, answers and values whose time is over, a bounded number of each.
func (d *Driver) expire(ctx context.Context) error {
	const most = 20 * batch
	for _, sql := range []string{d.sql.expireKeys, d.sql.expireReplies} {
		if _, err := d.exec(ctx, sql, most); err != nil {
			return err
		}
	}
	var buckets []string
	err := d.each(ctx, d.sql.expiredBuckets, []any{most}, func(rows pgx.Rows) error {
		var b string
		err := rows.Scan(&b)
		buckets = append(buckets, b)
		return err
	})
	for _, b := range buckets {
		if err == nil {
			_, err = d.exec(ctx, d.sql.kvPurge, b)
		}
	}
	return err
}
