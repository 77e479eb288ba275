package pgdriver

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/guesthand/guesthand/drivers"
)

// Renew implements drivers.Queue: the worker's row goes on, and the answer says which of the
// messages are still the worker's.
func (q *queue) Renew(ctx context.Context, ds []*drivers.Delivery) []error {
	errs := make([]error, len(ds))
	for from := 0; from < len(ds); from += batch {
		to := min(from+batch, len(ds))
		q.renew(ctx, ds[from:to], errs[from:to])
	}
	return errs
}

func (q *queue) renew(ctx context.Context, ds []*drivers.Delivery, errs []error) {
	var entries []int64
	var claims []int32
	for i, d := range ds {
		t, err := q.tokenOf(d)
		switch {
		case err != nil:
			errs[i] = err
		case q.closing.Load():
			errs[i] = drivers.ErrClosed
		default:
			entries, claims = append(entries, t.entry), append(claims, t.claims)
		}
	}
	if len(entries) == 0 {
		return
	}
	until := time.Now().Add(q.o.Lease).UnixNano()
	ours, err := q.entries(ctx, q.d.sql.renew, q.worker, q.o.Lease.Microseconds(), entries, claims)
	for i, d := range ds {
		if errs[i] != nil {
			continue
		}
		t := d.Token.(*token)
		switch {
		case err != nil:
			errs[i] = q.d.wrap("renew "+t.id, err)
		case !ours[t.entry]:
			errs[i] = drivers.ErrLeaseLost
			q.forget(t)
		default:
			t.until.Store(until)
		}
	}
}

// entries runs a statement that returns the entries it was good for.
func (q *queue) entries(ctx context.Context, sql string, args ...any) (map[int64]bool, error) {
	found := map[int64]bool{}
	err := q.d.each(ctx, sql, args, func(rows pgx.Rows) error {
		var e int64
		err := rows.Scan(&e)
		found[e] = true
		return err
	})
	return found, err
}

// group is settlements that one statement carries out.
type group struct {
	sql     string
	places  []int
	entries []int64
	claims  []int32
	tallies tallies
	delays  []int64
	states  [][]byte
	errors  []*string
	died    []time.Time
	fates   []string
	reasons []string
	outcome []string
	causes  []string
	digests []string
	workers []string
	ids     []string
	jobs    []string
}

// Settle implements drivers.Queue.
func (q *queue) Settle(ctx context.Context, ss []drivers.Settlement) []error {
	errs := make([]error, len(ss))
	if len(ss) == 0 {
		return errs
	}
	q.settling.RLock()
	defer q.settling.RUnlock()
	var groups []*group
	open := map[string]*group{}
	for i, s := range ss {
		sql, err := q.statement(s)
		if err != nil || sql == "" {
			errs[i] = err
			continue
		}
		g := open[sql]
		if g == nil || len(g.places) == batch {
			g = &group{sql: sql}
			open[sql] = g
			groups = append(groups, g)
		}
		if errs[i] = q.add(g, s); errs[i] != nil {
			s.Delivery.Token.(*token).state.Store(tokenHeld)
			continue
		}
		g.places = append(g.places, i)
	}
	for _, g := range groups {
		q.carryOut(ctx, g, ss, errs)
	}
	return errs
}

// statement checks a settlement and returns its SQL, or "" where there is nothing left to
// do. The token is busy from then on.
func (q *queue) statement(s drivers.Settlement) (sql string, err error) {
	t, err := q.tokenOf(s.Delivery)
	if err != nil {
		return "", err
	}
	if state := t.state.Load(); state >= settledAs {
		if state == settledAs+uint32(s.Verdict) {
			return "", nil
		}
		return "", drivers.ErrLeaseLost
	}
	switch {
	case q.closing.Load():
		return "", drivers.ErrClosed
	case s.Verdict == drivers.Ack:
		sql = q.d.sql.ack
	case s.Verdict == drivers.Requeue:
		sql = q.d.sql.requeue
	case s.Verdict == drivers.Dead && s.Death == nil:
		return "", fmt.Errorf("settle %s: a dead letter without a death", t.id)
	case s.Verdict == drivers.Dead, s.Verdict == drivers.Reject:
		sql = q.d.sql.bury
	default:
		return "", fmt.Errorf("settle %s: %s", t.id, s.Verdict)
	}
	if !t.state.CompareAndSwap(tokenHeld, tokenBusy) {
		return "", fmt.Errorf("settle %s: it is being settled", t.id)
	}
	return sql, nil
}

// add puts a settlement into its group.
func (q *queue) add(g *group, s drivers.Settlement) error {
	t := s.Delivery.Token.(*token)
	if s.Verdict != drivers.Ack {
		last, err := encodeErrors(s.Carry.Errors)
		if err != nil {
			return fmt.Errorf("settle %s: %w", t.id, err)
		}
		g.errors = append(g.errors, last)
		g.tallies.add(s.Carry.Tally)
	}
	g.entries, g.claims = append(g.entries, t.entry), append(g.claims, t.claims)
	switch s.Verdict {
	case drivers.Requeue:
		g.delays, g.states = append(g.delays, ceilMicro(s.Delay)), append(g.states, s.Carry.State)
	case drivers.Dead:
		q.addDeath(g, t, "dead", *s.Death)
	case drivers.Reject:
		q.addDeath(g, t, "rejected", drivers.Death{Reason: s.Reason, Outcome: "reject"})
	}
	return nil
}

func (q *queue) addDeath(g *group, t *token, fate string, d drivers.Death) {
	if d.Time.IsZero() {
		d.Time = time.Now()
	}
	if d.Worker == "" {
		d.Worker = q.o.Worker
	}
	g.fates, g.died = append(g.fates, fate), append(g.died, d.Time)
	g.reasons, g.outcome, g.causes = append(g.reasons, clean(d.Reason)), append(g.outcome, clean(d.Outcome)), append(g.causes, clean(d.Cause))
	g.digests, g.workers = append(g.digests, clean(d.Digest)), append(g.workers, clean(d.Worker))
	g.ids, g.jobs = append(g.ids, t.id), append(g.jobs, t.job)
}

// args are the statement's arguments.
func (g *group) args(s statements, worker int64) []any {
	c := g.tallies
	switch g.sql {
	case s.requeue:
		return []any{worker, g.entries, g.claims, g.delays, c[0], c[1], c[2], c[3], c[4], c[5], g.states, g.errors}
	case s.bury:
		return []any{worker, g.entries, g.claims, g.fates, c[0], c[1], c[2], c[3], c[4], c[5], g.errors,
			g.reasons, g.outcome, g.causes, g.digests, g.workers, g.died, g.ids, g.jobs}
	}
	return []any{worker, g.entries, g.claims}
}

// carryOut runs a group's statement and reads what it came to.
func (q *queue) carryOut(ctx context.Context, g *group, ss []drivers.Settlement, errs []error) {
	if len(g.places) == 0 {
		return
	}
	settled, err := q.entries(ctx, g.sql, g.args(q.d.sql, q.worker)...)
	ended := make([]*token, 0, len(g.places))
	for _, i := range g.places {
		s := ss[i]
		t := s.Delivery.Token.(*token)
		done := err == nil && settled[t.entry]
		tried := t.tried.Load()
		if err == nil && !done && tried != 0 {
			done, errs[i] = q.fate(ctx, t, s.Verdict, tried)
		}
		switch {
		case err != nil:
			if uncertain(err) {
				t.tried.Or(1 << s.Verdict)
			}
			errs[i] = q.d.wrap("settle "+t.id, err)
			t.state.Store(tokenHeld)
			continue
		case errs[i] != nil:
			t.state.Store(tokenHeld)
			continue
		case done:
			t.state.Store(settledAs + uint32(s.Verdict))
		default:
			t.state.Store(settledAs) // as nothing
			errs[i] = drivers.ErrLeaseLost
		}
		ended = append(ended, t)
	}
	q.forget(ended...)
	q.after(g)
}

// after tells those whom a settlement concerns.
func (q *queue) after(g *group) {
	switch g.sql {
	case q.d.sql.bury:
		q.buried.Store(true)
		q.d.maintainNow()
	case q.d.sql.requeue:
		q.d.wakeLocal(q.name)
		for _, delay := range g.delays {
			if delay == 0 {
				q.d.announce(q.name)
				return
			}
		}
	}
}

// fate asks what became of a claim whose settlement got no answer, and is true where it was
// settled by this verdict.
func (q *queue) fate(ctx context.Context, t *token, v drivers.Verdict, tried uint32) (done bool, err error) {
	var there, requeued bool
	var buried string
	if err := q.d.row(ctx, q.d.sql.fate, []any{t.entry, t.claims}, &there, &requeued, &buried); err != nil {
		return false, q.d.wrap("settle "+t.id, err)
	}
	switch v {
	case drivers.Ack:
		return !there && buried == "" && tried&(1<<v) != 0, nil
	case drivers.Requeue:
		return requeued, nil
	case drivers.Dead:
		return buried == "dead", nil
	}
	return buried == "rejected", nil
}
