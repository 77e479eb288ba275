package main

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/admin"
	"github.com/guesthand/guesthand/host/config"
)

func newPause(g *globals) *cobra.Command {
	var length string
	c := &cobra.Command{
		Use: "pause QUEUE[/JOB]", Short: "Keep this host from a queue, or from one job of it, until it is resumed", Args: cobra.ExactArgs(1),
		Long: "Keep this host from a queue, or from one job of it, also over a restart. Runs that\nhave begun go on to their end; what has not begun is put back uncounted, for other hosts.",
		Example: `  guesthand pause default
  guesthand pause default/orders --for 10m`,
		RunE: func(c *cobra.Command, args []string) error {
			p := admin.Pause{}
			var err error
			if p.Queue, p.Job, err = queueAndJob(args[0]); err != nil {
				return err
			}
			if length != "" {
				d, err := config.ParseDuration(length)
				if err == nil && d <= 0 {
					err = fmt.Errorf("%q is not above 0; write 30s, 5m, 2h or 1d", length)
				}
				if err != nil {
					return fail(exitUsage, "", fmt.Errorf("for: %w", err))
				}
				p.Until = time.Now().Add(d)
			}
			s, done, err := g.connect(c.Context())
			if err != nil {
				return err
			}
			defer done()
			if err := s.Pause(c.Context(), p); errors.Is(err, drivers.ErrInvalid) {
				return fail(exitUsage, "", err)
			} else if err != nil {
				return err
			}
			fmt.Fprintf(os.Stderr, "paused %s; resume it with: guesthand resume %s\n", args[0], args[0])
			return nil
		},
	}
	c.Flags().StringVar(&length, "for", "", "resume by itself after this `duration`")
	return c
}

func newResume(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "resume QUEUE[/JOB]", Short: "End the pauses of a queue, or of one job of it", Args: cobra.ExactArgs(1),
		Long: "End the pauses of a queue, or of one job of it, those included that a handler asked for.",
		RunE: func(c *cobra.Command, args []string) error {
			queue, job, err := queueAndJob(args[0])
			if err != nil {
				return err
			}
			s, done, err := g.connect(c.Context())
			if err != nil {
				return err
			}
			defer done()
			if err := s.Resume(c.Context(), queue, job); err != nil {
				return err
			}
			fmt.Fprintf(os.Stderr, "resumed %s\n", args[0])
			return nil
		},
	}
}

// queueAndJob reads QUEUE or QUEUE/JOB.
func queueAndJob(arg string) (queue, job string, err error) {
	queue, job, both := strings.Cut(arg, "/")
	if queue == "" || both && job == "" {
		return "", "", fail(exitUsage, "", errors.New(arg+" names no queue; write QUEUE or QUEUE/JOB"))
	}
	return queue, job, nil
}
