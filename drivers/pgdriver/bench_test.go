package pgdriver_test

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/pgdriver"
	"github.com/guesthand/guesthand/drivers/pgdriver/pgtest"
)

const (
	drainTotal       = 50_000
	drainConcurrency = 16
	payloadSize      = 1 << 10
)

// BenchmarkDrain drains 50,000 messages of 1 KiB with a handler that does nothing, in turn
// through the driver and with plain pgx as a table queue is written with it: claim 100 with SKIP
// LOCKED, delete them in one statement. Both use one server, in one run, at one concurrency;
// only the ratio tells.
func BenchmarkDrain(b *testing.B) {
	s := pgtest.Start(b, "fsync=on")
	var driver, plain time.Duration
	n := 0
	for b.Loop() {
		driver += drainDriver(b, s)
		plain += drainPlain(b, s)
		n += drainTotal
	}
	b.ReportMetric(float64(n)/driver.Seconds(), "driver-msg/s")
	b.ReportMetric(float64(n)/plain.Seconds(), "pgx-msg/s")
	b.ReportMetric(plain.Seconds()/driver.Seconds(), "driver/pgx")
}

func drainDriver(b *testing.B, s *pgtest.Server) time.Duration {
	d := open(b, s, pgdriver.Options{})
	q := openQueue(b, d, drivers.QueueOptions{})
	ms := make([]drivers.Message, 500)
	for i := range ms {
		ms[i] = drivers.Message{Job: "job", Payload: bytes.Repeat([]byte("x"), payloadSize)}
	}
	for left := drainTotal; left > 0; left -= len(ms) {
		send(b, q, ms...)
	}
	s.Exec("CHECKPOINT")
	begun := time.Now()
	run := make(chan *drivers.Delivery, 512)
	ended := make(chan *drivers.Delivery, 512)
	var workers, settlers sync.WaitGroup
	for range drainConcurrency {
		workers.Go(func() {
			for d := range run {
				ended <- d // the handler
			}
		})
	}
	for range 2 {
		settlers.Go(func() { settleBatches(b, q, ended) })
	}
	for n := 0; n < drainTotal; {
		ds, err := q.Receive(b.Context(), 256)
		if err != nil {
			b.Fatal(err)
		}
		n += len(ds)
		for _, d := range ds {
			run <- d
		}
	}
	close(run)
	workers.Wait()
	close(ended)
	settlers.Wait()
	took := time.Since(begun)
	hasCounts(b, q, drivers.Counts{})
	closeAll(b, d)
	return took
}

// settleBatches acknowledges what has ended by now, together.
func settleBatches(b *testing.B, q drivers.Queue, ended <-chan *drivers.Delivery) {
	for d := range ended {
		ss := []drivers.Settlement{{Delivery: d, Verdict: drivers.Ack}}
		for more := true; more && len(ss) < 256; {
			select {
			case d, ok := <-ended:
				if more = ok; ok {
					ss = append(ss, drivers.Settlement{Delivery: d, Verdict: drivers.Ack})
				}
			default:
				more = false
			}
		}
		for _, err := range q.Settle(b.Context(), ss) {
			if err != nil {
				b.Error(err)
			}
		}
	}
}

func drainPlain(b *testing.B, s *pgtest.Server) time.Duration {
	s.Exec(`CREATE TABLE plain (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, run_at timestamptz NOT NULL DEFAULT now(), state text NOT NULL DEFAULT 'ready', payload bytea NOT NULL);
CREATE INDEX plain_ready ON plain (run_at, id) WHERE state = 'ready'`)
	s.Exec(`INSERT INTO plain (payload) SELECT convert_to(repeat('x', 1024), 'UTF8') FROM generate_series(1, 50000); ANALYZE plain; CHECKPOINT`)
	pool, err := pgxpool.New(b.Context(), s.URL+"&pool_max_conns=16")
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	begun := time.Now()
	var wg sync.WaitGroup
	for range drainConcurrency {
		wg.Go(func() {
			for {
				more, err := claimAndDelete(b.Context(), pool)
				if err != nil {
					b.Error(err)
				}
				if !more {
					return
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(begun)
	s.Exec("DROP TABLE plain")
	return took
}

func claimAndDelete(ctx context.Context, pool *pgxpool.Pool) (more bool, err error) {
	rows, err := pool.Query(ctx, `WITH due AS MATERIALIZED (
	SELECT id FROM plain WHERE state = 'ready' AND run_at <= now() ORDER BY run_at, id LIMIT 100 FOR UPDATE SKIP LOCKED
) UPDATE plain p SET state = 'running' FROM due WHERE p.id = due.id RETURNING p.id, p.payload`)
	if err != nil {
		return false, err
	}
	var id int64
	var payload []byte
	var ids []int64
	_, err = pgx.ForEachRow(rows, []any{&id, &payload}, func() error {
		ids = append(ids, id)
		return nil
	})
	if err != nil || len(ids) == 0 {
		return false, err
	}
	_, err = pool.Exec(ctx, "DELETE FROM plain WHERE id = ANY ($1) AND state = 'running'", ids)
	return true, err
}
