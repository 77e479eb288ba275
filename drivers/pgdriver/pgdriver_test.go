package pgdriver_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/pgdriver"
	"github.com/guesthand/guesthand/drivers/pgdriver/pgtest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// patience bounds every wait for something that must happen.
const patience = 60 * time.Second

func open(t testing.TB, s *pgtest.Server, o pgdriver.Options) *pgdriver.Driver {
	t.Helper()
	if o.URL == "" {
		o.URL = s.URL
	}
	d, err := pgdriver.Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// client is a plain connection, as others have one.
func client(t testing.TB, url string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(context.WithoutCancel(t.Context())) })
	return c
}

// executor is a connection or a transaction.
type executor interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// sql runs a statement as a producer or an administrator would.
func sql(t testing.TB, c executor, statement string, args ...any) {
	t.Helper()
	if _, err := c.Exec(t.Context(), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// value reads one value.
func value[T any](t testing.TB, c *pgx.Conn, statement string, args ...any) T {
	t.Helper()
	var v T
	if err := c.QueryRow(t.Context(), statement, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	return v
}

func openQueue(t testing.TB, d *pgdriver.Driver, o drivers.QueueOptions) drivers.Queue {
	t.Helper()
	if o.Name == "" {
		o.Name = "q"
	}
	o.Create = true
	q, err := d.OpenQueue(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// worker is a queue on connections of its own, closed with the test.
func worker(t testing.TB, s *pgtest.Server, o pgdriver.Options, qo drivers.QueueOptions) drivers.Queue {
	t.Helper()
	d := open(t, s, o)
	t.Cleanup(func() { closeAll(t, d) })
	return openQueue(t, d, qo)
}

func closeAll(t testing.TB, c interface{ Close(context.Context) error }) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
	defer cancel()
	if err := c.Close(ctx); err != nil {
		t.Error(err)
	}
}

func send(t testing.TB, q drivers.Queue, ms ...drivers.Message) {
	t.Helper()
	for i := range ms {
		if ms[i].Job == "" {
			ms[i].Job = "job"
		}
	}
	for _, err := range q.Send(t.Context(), ms) {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func receive(t testing.TB, q drivers.Queue, n int) []*drivers.Delivery {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var got []*drivers.Delivery
	for len(got) < n {
		ds, err := q.Receive(ctx, n-len(got))
		if err != nil {
			t.Fatalf("receive: %v after %d of %d", err, len(got), n)
		}
		got = append(got, ds...)
	}
	return got
}

func settle(t testing.TB, q drivers.Queue, v drivers.Verdict, ds ...*drivers.Delivery) {
	t.Helper()
	ss := make([]drivers.Settlement, len(ds))
	for i, d := range ds {
		ss[i] = drivers.Settlement{Delivery: d, Verdict: v, Carry: d.Carry}
		if v == drivers.Dead {
			ss[i].Death = &drivers.Death{Reason: "because", Outcome: "permanent", Cause: "returned"}
		}
	}
	for i, err := range q.Settle(t.Context(), ss) {
		if err != nil {
			t.Fatalf("%s of %s: %v", v, ds[i].ID, err)
		}
	}
}

// hasCounts compares what the queue holds.
func hasCounts(t testing.TB, q drivers.Queue, want drivers.Counts) {
	t.Helper()
	got, err := q.Counts(t.Context())
	got.Oldest = time.Time{}
	if err != nil || got != want {
		t.Errorf("counts %+v, %v, want %+v", got, err, want)
	}
}

// empty fails where a message comes within d.
func empty(t testing.TB, q drivers.Queue, d time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	if ds, err := q.Receive(ctx, 10); len(ds) > 0 || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("received %d messages, %v, want none", len(ds), err)
	}
}

// eventually waits for what must come true within patience.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}
