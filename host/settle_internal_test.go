package host

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/guesthand/guesthand/drivers"
)

// broker is a queue of which only the settlements are real.
type broker struct {
	drivers.Queue
	settle func(ctx context.Context, s drivers.Settlement) error
}

func (broker) Info() drivers.Info { return drivers.Info{Lease: time.Hour} }

func (b broker) Settle(ctx context.Context, ss []drivers.Settlement) []error {
	errs := make([]error, len(ss))
	for i, s := range ss {
		errs[i] = b.settle(ctx, s)
	}
	return errs
}

// desk is a settler on a broker, and what became of everything that went through it.
type desk struct {
	*settler
	l *leases

	mu    sync.Mutex
	ended map[string]error
	when  map[string]time.Duration
}

func newDesk(settle func(context.Context, drivers.Settlement) error) *desk {
	b := broker{settle: settle}
	d := &desk{l: newLeases(b, nil, nil), ended: map[string]error{}, when: map[string]time.Duration{}}
	began := time.Now()
	d.settler = newSettler(b, d.l, func(f finished, err error) {
		d.mu.Lock()
		defer d.mu.Unlock()
		if _, again := d.ended[f.h.d.ID]; again {
			panic("settled twice: " + f.h.d.ID)
		}
		d.ended[f.h.d.ID], d.when[f.h.d.ID] = err, time.Since(began)
	})
	return d
}

func (d *desk) hand(id string, v drivers.Verdict) {
	h := &d.l.add([]*drivers.Delivery{{ID: id, Received: time.Now()}})[0]
	d.settler.settle(finished{h: h, s: drivers.Settlement{Delivery: h.d, Verdict: v}})
}

// A dead letter that the broker does not take must not keep a retry waiting.
func TestRefusedSettlementsDoNotHoldUpOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(func(_ context.Context, s drivers.Settlement) error {
			if s.Verdict == drivers.Dead {
				return errors.New("no room for dead letters")
			}
			return nil
		})
		for i := range 8 {
			d.hand("dead"+strconv.Itoa(i), drivers.Dead)
			synctest.Wait() // a group of its own
		}
		d.hand("retry", drivers.Requeue)
		time.Sleep(time.Second)
		d.mu.Lock()
		if _, ok := d.ended["retry"]; !ok {
			t.Error("a retry waits behind dead letters that the broker refuses")
		}
		d.mu.Unlock()
		time.Sleep(settleBudget)
		d.close()
		if len(d.ended) != 9 || d.l.n != 0 {
			t.Errorf("%d of 9 ended, %d still held", len(d.ended), d.l.n)
		}
		if err := d.ended["dead3"]; err == nil || err.Error() != "no room for dead letters" {
			t.Errorf("the error is %v, not the broker's", err)
		}
	})
}

func TestFailedSettlementsAreTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		d := newDesk(func(context.Context, drivers.Settlement) error {
			if time.Since(began) < 10*time.Second {
				return errors.New("broker is away")
			}
			return nil
		})
		n := 4 * settleBacklog // workers wait, nothing is given up
		for i := range n {
			d.hand(strconv.Itoa(i), drivers.Verdict(i%4+1))
		}
		d.close()
		for id, err := range d.ended {
			if err != nil {
				t.Fatalf("%s: %v", id, err)
			}
		}
		if len(d.ended) != n || d.l.n != 0 {
			t.Errorf("%d of %d ended, %d still held", len(d.ended), n, d.l.n)
		}
	})
}

// However much is to be settled, a stop takes no longer than one settlement may.
func TestCloseIsBounded(t *testing.T) {
	for name, answer := range map[string]func(context.Context) error{
		"the broker does not answer": func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		"the broker refuses":         func(context.Context) error { return errors.New("broker is away") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newDesk(func(ctx context.Context, _ drivers.Settlement) error { return answer(ctx) })
				n := settleBacklog
				for i := range n {
					d.hand(strconv.Itoa(i), drivers.Ack)
					d.hand("r"+strconv.Itoa(i), drivers.Requeue)
				}
				began := time.Now()
				d.close()
				if took := time.Since(began); took > settleBudget+longestWait {
					t.Errorf("close took %s", took)
				}
				if len(d.ended) != 2*n || d.l.n != 0 {
					t.Errorf("%d of %d ended, %d still held", len(d.ended), 2*n, d.l.n)
				}
			})
		})
	}
}

// The successes among what is given up late are still settled; nothing else is.
func TestPastTheLeaseOnlySuccessIsSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []drivers.Verdict
		d := newDesk(func(_ context.Context, s drivers.Settlement) error {
			asked = append(asked, s.Verdict)
			return nil
		})
		for i, v := range []drivers.Verdict{drivers.Requeue, drivers.Dead, drivers.Reject, drivers.Ack} {
			h := &d.l.add([]*drivers.Delivery{{ID: strconv.Itoa(i), Received: time.Now().Add(-2 * time.Hour)}})[0]
			d.settler.settle(finished{h: h, s: drivers.Settlement{Delivery: h.d, Verdict: v}})
		}
		d.close()
		if len(asked) != 1 || asked[0] != drivers.Ack {
			t.Errorf("the broker was asked for %v", asked)
		}
		if !errors.Is(d.ended["0"], drivers.ErrLeaseLost) || d.ended["3"] != nil {
			t.Errorf("%v", d.ended)
		}
	})
}
