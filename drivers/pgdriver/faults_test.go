package pgdriver_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/pgdriver"
	"github.com/guesthand/guesthand/drivers/pgdriver/pgtest"
)

// quick are options under which a lost worker is noticed at once.
var quick = pgdriver.Options{MaintainEvery: 50 * time.Millisecond}

// failed is a settlement as after a failure.
func failed(d *drivers.Delivery) drivers.Settlement {
	carry := d.Carry
	carry.Failures++
	return drivers.Settlement{Delivery: d, Verdict: drivers.Requeue, Carry: carry}
}

// TestRescueOverwritesNothing: riverqueue/river#1302, a rescue overwrote a job that had been
// completed meanwhile. What is put back is decided together with the row's own state.
func TestRescueOverwritesNothing(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	a := worker(t, s, pgdriver.Options{MaintainEvery: time.Hour}, drivers.QueueOptions{Lease: time.Minute})
	b := worker(t, s, quick, drivers.QueueOptions{})
	c := client(t, s.URL)
	send(t, a, drivers.Message{ID: "done"}, drivers.Message{ID: "held"})
	ds := receive(t, a, 2)
	// The completion is under way, and not committed, when the worker's row expires.
	tx, err := c.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sql(t, tx, "DELETE FROM guesthand.messages WHERE id = 'done'")
	sql(t, client(t, s.URL), "UPDATE guesthand.workers SET expires_at = now() - interval '1 s' WHERE worker = (SELECT worker FROM guesthand.messages WHERE id = 'held')")
	other := client(t, s.URL)
	eventually(t, "the rescue waits for the completion", func() bool {
		return value[int](t, other, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%RETURNING m.queue%'") > 0
	})
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	d := receive(t, b, 1)[0]
	if d.ID != "held" || d.Carry.Stalls != 1 || !d.Held {
		t.Errorf("got %s with %+v, held %t", d.ID, d.Carry.Tally, d.Held)
	}
	settle(t, b, drivers.Ack, d)
	hasCounts(t, b, drivers.Counts{})
	if err := a.Settle(t.Context(), []drivers.Settlement{failed(ds[0])})[0]; !errors.Is(err, drivers.ErrLeaseLost) {
		t.Errorf("settlement of what is gone: %v", err)
	}
}

// TestStaleWorkerCannotOverwrite: whatever a worker asks for that has lost its lease, nothing
// changes for the one that has the message now, or after it.
func TestStaleWorkerCannotOverwrite(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	a := worker(t, s, pgdriver.Options{MaintainEvery: time.Hour}, drivers.QueueOptions{Lease: time.Minute})
	b := worker(t, s, quick, drivers.QueueOptions{})
	send(t, a, drivers.Message{ID: "m"})
	old := receive(t, a, 1)[0]
	c := client(t, s.URL)
	sql(t, c, "UPDATE guesthand.workers SET expires_at = now() - interval '1 s' WHERE worker = (SELECT worker FROM guesthand.messages)")
	now := receive(t, b, 1)[0]
	row := func() string { return value[string](t, c, "SELECT m::text FROM guesthand.messages m") }
	before := row()
	stale := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, drivers.ErrLeaseLost) {
			t.Errorf("%s by a stale worker: %v", what, err)
		}
		if after := row(); after != before {
			t.Errorf("%s by a stale worker changed the message:\n%s\n%s", what, before, after)
		}
	}
	stale("renewal", a.Renew(t.Context(), []*drivers.Delivery{old})[0])
	death := &drivers.Death{Reason: "stale"}
	for _, v := range []drivers.Verdict{drivers.Ack, drivers.Requeue, drivers.Dead, drivers.Reject} {
		copied := *old // once refused, a delivery is not asked about again
		stale(v.String(), a.Settle(t.Context(), []drivers.Settlement{{Delivery: &copied, Verdict: v, Death: death}})[0])
	}
	settle(t, b, drivers.Ack, now)
	hasCounts(t, b, drivers.Counts{})
}

// TestLongRunIsNotRescued: riverqueue/river#682 and #1258, a job longer than the rescue time ran
// twice, since nobody said that its worker lives. And one that stays behind while its worker lives
// is not stuck for ever.
func TestLongRunIsNotRescued(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	const lease = 2 * time.Second
	a := worker(t, s, quick, drivers.QueueOptions{Lease: lease})
	b := worker(t, s, quick, drivers.QueueOptions{Lease: lease})
	send(t, a, drivers.Message{ID: "long"}, drivers.Message{ID: "neglected"})
	ds := receive(t, a, 2)
	var back *drivers.Delivery
	for end := time.Now().Add(3 * lease); time.Now().Before(end); {
		ctx, cancel := context.WithTimeout(t.Context(), lease/6)
		got, err := b.Receive(ctx, 1)
		cancel()
		for _, d := range got {
			if d.ID != "neglected" || back != nil {
				t.Fatalf("%s came back", d.ID)
			}
			back = d
		}
		if back != nil {
			_ = b.Renew(t.Context(), []*drivers.Delivery{back})
		}
		if err := a.Renew(t.Context(), ds[:1])[0]; err != nil {
			t.Fatalf("renew: %v (%v)", err, got)
		}
		if err != nil && ctx.Err() == nil {
			t.Fatal(err)
		}
	}
	if back == nil || back.Carry.Stalls != 1 {
		t.Fatalf("the neglected message came as %+v", back)
	}
	settle(t, a, drivers.Ack, ds[0])
	settle(t, b, drivers.Ack, back)
}

// TestSettlementsThroughALock: riverqueue/river#917, a batch of completions timed out and was
// lost. Each gets the error, and all can be given again.
func TestSettlementsThroughALock(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	q := worker(t, s, pgdriver.Options{AnswerTimeout: time.Second}, drivers.QueueOptions{Lease: time.Hour})
	var ms []drivers.Message
	for i := range 100 {
		ms = append(ms, drivers.Message{ID: fmt.Sprint(i)})
	}
	send(t, q, ms...)
	ds := receive(t, q, len(ms))
	tx, err := client(t, s.URL).Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sql(t, tx, "LOCK TABLE guesthand.messages IN ACCESS EXCLUSIVE MODE")
	ss := make([]drivers.Settlement, len(ds))
	for i, d := range ds {
		ss[i] = drivers.Settlement{Delivery: d, Verdict: drivers.Ack}
	}
	for i, err := range q.Settle(t.Context(), ss) {
		if err == nil || errors.Is(err, drivers.ErrLeaseLost) {
			t.Fatalf("settlement %d behind a lock: %v", i, err)
		}
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	settle(t, q, drivers.Ack, ds...)
	hasCounts(t, q, drivers.Counts{})
}

// TestLostAnswers: what the server did and could not say is found out: no message is lost,
// none is counted twice, and the settlement is a success.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	p := pgtest.Through(t, s)
	q := worker(t, s, pgdriver.Options{URL: p.URL, AnswerTimeout: time.Second}, drivers.QueueOptions{Lease: time.Hour})
	other := worker(t, s, pgdriver.Options{}, drivers.QueueOptions{})
	send(t, other, drivers.Message{ID: "ack"}, drivers.Message{ID: "requeue"}, drivers.Message{ID: "dead"}, drivers.Message{ID: "reject"})
	ds := receive(t, q, 4)
	verdicts := []drivers.Verdict{drivers.Ack, drivers.Requeue, drivers.Dead, drivers.Reject}
	ss := make([]drivers.Settlement, len(ds))
	for i, d := range ds {
		ss[i] = failed(d)
		ss[i].Verdict, ss[i].Death = verdicts[i], &drivers.Death{Reason: "because"}
	}
	p.LoseAnswers()
	for i, st := range ss {
		if err := q.Settle(t.Context(), []drivers.Settlement{st})[0]; err == nil {
			t.Fatalf("settlement %d without an answer is a success", i)
		}
		p.Cut()
		p.LoseAnswers()
	}
	p.Cut()
	for i, err := range q.Settle(t.Context(), ss) {
		if errors.Is(err, drivers.ErrLeaseLost) {
			t.Errorf("%s, repeated: %v", verdicts[i], err)
		}
	}
	eventually(t, "all are settled", func() bool {
		return errors.Join(q.Settle(t.Context(), ss)...) == nil
	})
	d := receive(t, other, 1)[0]
	if d.ID != "requeue" || d.Carry.Tally != (drivers.Tally{Failures: 1}) {
		t.Errorf("came back: %s, %+v", d.ID, d.Carry.Tally)
	}
	settle(t, other, drivers.Ack, d)
	hasCounts(t, other, drivers.Counts{Dead: 1})
}

// TestLostClaim: a claim whose answer was lost is handed out all the same, once and uncounted,
// however long the lease.
func TestLostClaim(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	p := pgtest.Through(t, s)
	q := worker(t, s, pgdriver.Options{URL: p.URL, AnswerTimeout: time.Second}, drivers.QueueOptions{Lease: time.Hour})
	other := worker(t, s, pgdriver.Options{}, drivers.QueueOptions{})
	c := client(t, s.URL)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	send(t, other, drivers.Message{ID: "first"}, drivers.Message{ID: "m"})
	settle(t, q, drivers.Ack, receive(t, q, 1)...) // the worker is known, and its connection warm
	p.LoseAnswers()
	received := make(chan []*drivers.Delivery, 1)
	go func() {
		ds, err := q.Receive(ctx, 1)
		if err != nil {
			t.Error(err)
		}
		received <- ds
	}()
	eventually(t, "it is claimed", func() bool {
		return value[int](t, c, "SELECT count(*) FROM guesthand.messages WHERE worker IS NOT NULL") == 1
	})
	p.Cut()
	ds := <-received
	if len(ds) != 1 || ds[0].ID != "m" || ds[0].Carry.Stalls != 0 {
		t.Fatalf("received %+v", ds)
	}
	settle(t, q, drivers.Ack, ds...)
	hasCounts(t, other, drivers.Counts{})
}

// TestHalfOpen: a connection whose packets vanish is given up, the listening one too, and
// work goes on over new ones.
func TestHalfOpen(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	p := pgtest.Through(t, s)
	q := worker(t, s, pgdriver.Options{URL: p.URL, AnswerTimeout: time.Second, PingEvery: 200 * time.Millisecond}, drivers.QueueOptions{Lease: time.Hour})
	other := worker(t, s, pgdriver.Options{}, drivers.QueueOptions{})
	send(t, other, drivers.Message{ID: "1"}, drivers.Message{ID: "2"})
	ds := receive(t, q, 1)
	c := client(t, s.URL)
	cut := value[time.Time](t, c, "SELECT now()")
	p.HalfOpen()
	eventually(t, "renewed over a new connection", func() bool { return q.Renew(t.Context(), ds)[0] == nil })
	ds = append(ds, receive(t, q, 1)...)
	eventually(t, "settled over a new connection", func() bool {
		return errors.Join(q.Settle(t.Context(), []drivers.Settlement{{Delivery: ds[0], Verdict: drivers.Ack}, {Delivery: ds[1], Verdict: drivers.Ack}})...) == nil
	})
	eventually(t, "a new connection listens", func() bool {
		return value[int](t, c, `SELECT count(*) FROM pg_stat_activity WHERE backend_start > $1 AND (query LIKE 'LISTEN%' OR query = '-- ping')`, cut) > 0
	})
	hasCounts(t, other, drivers.Counts{})
}

// TestPoison: a message that kills its workers is handed out with a stall for each, alone
// among its neighbours.
func TestPoison(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	sender := worker(t, s, quick, drivers.QueueOptions{})
	send(t, sender, drivers.Message{ID: "poison"})
	for n := 1; n <= 6; n++ {
		dying := open(t, s, pgdriver.Options{MaintainEvery: time.Hour})
		q := openQueue(t, dying, drivers.QueueOptions{Lease: 300 * time.Millisecond})
		d := receive(t, q, 1)[0]
		if d.Carry.Stalls != n-1 || d.Carry.Attempt() != n {
			t.Fatalf("delivery %d has %+v", n, d.Carry.Tally)
		}
		dying.Abandon()
	}
	send(t, sender, drivers.Message{ID: "neighbour"})
	for _, d := range receive(t, sender, 2) {
		want := map[string]int{"poison": 6}[d.ID]
		if d.Carry.Stalls != want || d.Stalled != min(want, 1) {
			t.Errorf("%s came with %+v, stalled %d", d.ID, d.Carry.Tally, d.Stalled)
		}
		settle(t, sender, drivers.Dead, d)
	}
	hasCounts(t, sender, drivers.Counts{Dead: 2})
}

// TestXminPinned: que-rb/que#297, throughput collapsed under a transaction that was left open,
// since each claim passed all rows finished before. It is a finding, and a busy queue steps over
// them.
func TestXminPinned(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	admin := client(t, s.URL)
	d := open(t, s, pgdriver.Options{LongTransaction: time.Millisecond})
	t.Cleanup(func() { closeAll(t, d) })
	q := openQueue(t, d, drivers.QueueOptions{})
	sql(t, admin, "BEGIN ISOLATION LEVEL REPEATABLE READ")
	sql(t, admin, "SELECT count(*) FROM guesthand.messages")
	time.Sleep(2 * time.Millisecond)
	pinned := openQueue(t, d, drivers.QueueOptions{Name: "other"})
	warned := false
	for _, f := range pinned.Info().Findings {
		warned = warned || f.Warning && strings.Contains(f.Text, "a transaction of user postgres") && strings.Contains(f.Text, "cannot be cleaned")
	}
	if !warned {
		t.Errorf("findings %+v", pinned.Info().Findings)
	}
	round := func() time.Duration {
		ms := make([]drivers.Message, 2000)
		send(t, q, ms...)
		begun := time.Now()
		for n := 0; n < len(ms); n += 100 {
			settle(t, q, drivers.Ack, receive(t, q, 100)...)
		}
		return time.Since(begun)
	}
	first := round()
	for range 3 {
		round()
	}
	last := round()
	t.Logf("2,000 messages: %s, and after 8,000 that cannot be cleaned %s", first, last)
	if last > 10*max(first, time.Second) {
		t.Errorf("2,000 messages took %s at first and %s later", first, last)
	}
	sql(t, admin, "COMMIT")
}

// TestManyScheduled: riverqueue/river#785, a large set of scheduled jobs made each look slow. Only
// what is due is looked at.
func TestManyScheduled(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	q := worker(t, s, pgdriver.Options{}, drivers.QueueOptions{})
	c := client(t, s.URL)
	sql(t, c, "INSERT INTO guesthand.messages (queue, job, run_at) SELECT 'q', 'j', now() + n * interval '1 hour' FROM generate_series(1, 50000) AS n")
	send(t, q, drivers.Message{ID: "due"})
	if d := receive(t, q, 1)[0]; d.ID != "due" {
		t.Errorf("received %s", d.ID)
	}
	empty(t, q, 100*time.Millisecond)
	// Statistics are flushed late; what is counted is at most a few rows for each look.
	eventually(t, "the reads are counted", func() bool {
		return value[int](t, c, "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'messages_waiting'") > 0
	})
	if n := value[int](t, c, "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE indexrelname = 'messages_waiting'"); n > 1000 {
		t.Errorf("%d entries of the index were read for one message", n)
	}
}

// TestFindings: what bends a policy or loses messages is said.
func TestFindings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		settings []string
		sql      string
		want     string // a part of one warning
	}{
		"autovacuum":         {[]string{"autovacuum=off"}, "SELECT 1", "autovacuum is off"},
		"synchronous_commit": {[]string{"synchronous_commit=off"}, "SELECT 1", "synchronous_commit is off"},
		"table":              {nil, "ALTER TABLE guesthand.messages SET (autovacuum_enabled = off)", "autovacuum_enabled is off for guesthand.messages"},
		"prepared":           {nil, "BEGIN; CREATE TABLE x (); PREPARE TRANSACTION 'forgotten'", `the prepared transaction "forgotten"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := pgtest.Start(t, c.settings...)
			if _, err := pgdriver.Migrate(t.Context(), pgdriver.Options{URL: s.URL}); err != nil {
				t.Fatal(err)
			}
			s.Exec(c.sql)
			q := worker(t, s, pgdriver.Options{LongTransaction: time.Nanosecond}, drivers.QueueOptions{})
			found := false
			for _, f := range q.Info().Findings {
				found = found || f.Warning && strings.Contains(f.Text, c.want)
			}
			if !found {
				t.Errorf("findings %+v, want %q", q.Info().Findings, c.want)
			}
		})
	}
}

// TestRefusals: what cannot work is said at once, without secrets.
func TestRefusals(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	for name, c := range map[string]struct {
		o    pgdriver.Options
		want string
	}{
		"nobody":   {pgdriver.Options{URL: "postgres://u:hunter2@127.0.0.1:1/x?sslmode=disable"}, "refused"},
		"nonsense": {pgdriver.Options{URL: "postgres://u:hunter2@127.0.0.1:x/y"}, "port"},
		"database": {pgdriver.Options{URL: strings.Replace(s.URL, "/guesthand", "/nothere", 1)}, "nothere"},
		"schema":   {pgdriver.Options{URL: s.URL, Schema: "a b"}, "schema"},
	} {
		d, err := pgdriver.Open(t.Context(), c.o)
		if err == nil {
			closeAll(t, d)
			t.Fatalf("%s: opened", name)
		}
		if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: error %q, want %q in it and no password", name, err, c.want)
		}
	}
	d := open(t, s, pgdriver.Options{})
	t.Cleanup(func() { closeAll(t, d) })
	for _, o := range []drivers.QueueOptions{{Name: "A B"}, {Name: "q", Names: map[string]string{"stream": "x"}}} {
		if _, err := d.OpenQueue(t.Context(), o); err == nil {
			t.Errorf("opened %+v", o)
		}
	}
	q := openQueue(t, d, drivers.QueueOptions{Names: map[string]string{pgdriver.NameQueue: "Billing 2"}})
	send(t, q, drivers.Message{ID: "m"})
	if n := value[int](t, client(t, s.URL), "SELECT count(*) FROM guesthand.messages WHERE queue = 'Billing 2'"); n != 1 {
		t.Errorf("%d messages under the name", n)
	}
}

// TestRightsTakenAway: waiting does not bring a user's rights back.
func TestRightsTakenAway(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	q := worker(t, s, pgdriver.Options{}, drivers.QueueOptions{})
	s.Exec("ALTER TABLE guesthand.messages RENAME TO elsewhere")
	if _, err := q.Receive(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "messages") {
		t.Errorf("receive without a table: %v", err)
	}
	s.Exec("ALTER TABLE guesthand.elsewhere RENAME TO messages")
}

// TestDeadBoundsAreSaid: what the bounds take is in the log.
func TestDeadBoundsAreSaid(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	var log bytes.Buffer
	o := quick
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	d := open(t, s, o)
	q := openQueue(t, d, drivers.QueueOptions{DeadMax: 2})
	for i := range 5 {
		send(t, q, drivers.Message{ID: fmt.Sprint(i)})
		settle(t, q, drivers.Dead, receive(t, q, 1)...)
	}
	count := func(q drivers.Queue, want int) {
		eventually(t, "the bound holds", func() bool {
			c, err := q.Counts(t.Context())
			return err == nil && c.Dead == want
		})
	}
	count(q, 2)
	closeAll(t, q)
	kept := openQueue(t, d, drivers.QueueOptions{DeadKeep: time.Millisecond})
	count(kept, 0)
	closeAll(t, d)
	// What goes at once and what together is up to the moment; together it is all.
	for what, want := range map[string]int{`the bound is reached" queue=q count=(\d+) max=2`: 3, `older than dead.keep" queue=q count=(\d+)`: 2} {
		got := 0
		for _, m := range regexp.MustCompile(what).FindAllStringSubmatch(log.String(), -1) {
			n, err := strconv.Atoi(m[1])
			if err != nil {
				t.Fatal(err)
			}
			got += n
		}
		if got != want {
			t.Errorf("%s: %d said to be dropped, want %d:\n%s", what, got, want, log.String())
		}
	}
}
