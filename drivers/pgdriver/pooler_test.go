package pgdriver_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/pgdriver"
	"github.com/guesthand/guesthand/drivers/pgdriver/pgtest"
)

// TestPooler: behind pgbouncer everything works, in transaction mode without wake-ups, which is
// said.
func TestPooler(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	for _, mode := range []string{"session", "transaction"} {
		o := pgdriver.Options{URL: pgtest.Pooled(t, s, mode), Schema: mode}
		d := open(t, s, o)
		t.Cleanup(func() { closeAll(t, d) })
		q := openQueue(t, d, drivers.QueueOptions{Lease: time.Minute})
		warned := false
		for _, f := range q.Info().Findings {
			warned = warned || f.Warning && strings.Contains(f.Text, "a pooler in transaction mode")
		}
		if warned != (mode == "transaction") {
			t.Errorf("%s: findings %+v", mode, q.Info().Findings)
		}
		for round := range 20 { // over whatever server connections there are
			send(t, q, drivers.Message{ID: fmt.Sprint(round)}, drivers.Message{ID: "dead", Key: fmt.Sprint(round)})
			ds := receive(t, q, 2)
			for _, err := range q.Renew(t.Context(), ds) {
				if err != nil {
					t.Error(err)
				}
			}
			carry := drivers.Carry{Tally: drivers.Tally{Failures: 1}, State: []byte("state"), Errors: []drivers.RunError{{Text: "text"}}}
			if err := q.Settle(t.Context(), []drivers.Settlement{{Delivery: ds[0], Verdict: drivers.Requeue, Carry: carry}})[0]; err != nil {
				t.Fatal(err)
			}
			settle(t, q, drivers.Ack, receive(t, q, 1)...)
			settle(t, q, drivers.Dead, ds[1])
		}
		hasCounts(t, q, drivers.Counts{Dead: 20})
	}
}
