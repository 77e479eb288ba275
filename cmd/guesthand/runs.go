package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/guesthand/guesthand/host/admin"
	"github.com/guesthand/guesthand/host/config"
	"github.com/guesthand/guesthand/host/ledger"
)

func newRuns(g *globals) *cobra.Command {
	var f ledger.Filter
	var since string
	var follow bool
	c := &cobra.Command{
		Use: "runs", Short: "Show what was run, newest first", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if since != "" {
				d, err := config.ParseDuration(since)
				if err != nil {
					return fail(exitUsage, "", err)
				}
				f.Since = time.Now().Add(-d)
			}
			s, done, err := g.connect(c.Context())
			if err != nil {
				return err
			}
			defer done()
			if follow {
				return g.follow(c.Context(), c.OutOrStdout(), s, f)
			}
			rows, err := s.Runs(c.Context(), f)
			if err != nil {
				return err
			}
			if g.json {
				for _, r := range rows {
					if err := jsonLine(c.OutOrStdout(), r); err != nil {
						return err
					}
				}
				return nil
			}
			return table(c.OutOrStdout(), "FINISHED QUEUE JOB ATTEMPT OUTCOME CAUSE SETTLEMENT MS ID ERROR", func(add func(...any)) {
				for _, r := range rows {
					add(clock(r.Finished), r.Queue, orDash(r.Job), r.Attempt, r.Outcome, orDash(r.Cause), r.Settlement,
						tookMS(r), r.ID, firstLine(r.Error))
				}
			})
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.Queue, "queue", "", "only this `queue`")
	fl.StringVar(&f.Job, "job", "", "only this `job`")
	fl.StringVar(&f.Outcome, "outcome", "", "only this `outcome`: success, retry, retry-after, delay, permanent, reject, pause, interrupted, stalled, lease-lost")
	fl.StringVar(&f.ID, "id", "", "only the message with this `id`")
	fl.StringVar(&since, "since", "", "only runs that finished in the last `duration`, for example 10m")
	fl.BoolVarP(&follow, "follow", "f", false, "go on with runs as they end, oldest first, until it is interrupted")
	fl.IntVarP(&f.Limit, "limit", "n", 100, "at most this `many`, up to 1000")
	return c
}

// followTick is how often new runs are asked for.
const followTick = 500 * time.Millisecond

// follow prints runs in the order they end until ctx or an interrupt ends it.
func (g *globals) follow(ctx context.Context, out io.Writer, s admin.Service, f ledger.Filter) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	type run struct {
		id       string
		attempt  int
		finished time.Time
	}
	seen := map[run]bool{} // those that the next answer may repeat
	for {
		rows, err := s.Runs(ctx, f)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return err
		}
		now := map[run]bool{}
		for _, r := range slices.Backward(rows) {
			at := run{r.ID, r.Attempt, r.Finished}
			now[at] = true
			if seen[at] {
				continue
			}
			if err := g.printRun(out, r); err != nil {
				return err
			}
			// A little earlier: hosts write rows in batches, not quite in order.
			if later := r.Finished.Add(-2 * followTick); later.After(f.Since) {
				f.Since = later
			}
		}
		seen, f.Limit = now, 1000
		if !sleepFor(ctx, followTick) {
			return nil
		}
	}
}

func (g *globals) printRun(out io.Writer, r ledger.Row) error {
	if g.json {
		return jsonLine(out, r)
	}
	_, err := fmt.Fprintf(out, "%s  %s  %s  attempt %d  %s  %s  %v ms  %s  %s\n", clock(r.Finished), r.Queue, printable(orDash(r.Job)), r.Attempt,
		r.Outcome, r.Settlement, tookMS(r), printable(r.ID), firstLine(r.Error))
	return err
}

func sleepFor(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

func tookMS(r ledger.Row) any {
	if r.Started.IsZero() {
		return "-"
	}
	return millis(r.Finished.Sub(r.Started))
}
