package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/guesthand/guesthand/host/config"
	"github.com/guesthand/guesthand/host/ledger"
)

func newRuns(g *globals) *cobra.Command {
	var f ledger.Filter
	var since string
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
	fl.IntVarP(&f.Limit, "limit", "n", 100, "at most this `many`, up to 1000")
	return c
}

func tookMS(r ledger.Row) any {
	if r.Started.IsZero() {
		return "-"
	}
	return millis(r.Finished.Sub(r.Started))
}
