package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/guesthand/guesthand/host/admin"
)

func newQueues(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "queues", Short: "Show what the queues hold", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s, done, err := g.connect(c.Context())
			if err != nil {
				return err
			}
			defer done()
			queues, err := s.Queues(c.Context())
			if err != nil {
				return err
			}
			away := false
			for _, q := range queues {
				if q.Error != "" {
					away = true
					fmt.Fprintf(os.Stderr, "guesthand: queue %s: %s\n", q.Queue, q.Error)
				}
			}
			if err := printQueues(c.OutOrStdout(), g.json, queues); err != nil {
				return err
			}
			if away {
				return &exitError{code: exitUnreachable}
			}
			return nil
		},
	}
}

func printQueues(w io.Writer, asJSON bool, queues []admin.QueueStatus) error {
	if asJSON {
		for _, q := range queues {
			if err := jsonLine(w, q); err != nil {
				return err
			}
		}
		return nil
	}
	return table(w, "QUEUE BROKER DRIVER DEPTH IN-FLIGHT DELAYED DEAD PAUSED", func(add func(...any)) {
		for _, q := range queues {
			add(q.Queue, q.Broker, q.Driver, q.Depth, q.InFlight, q.Delayed, q.Dead, pausedText(q))
		}
	})
}

// pausedText is no, yes with its end, or the jobs that are paused.
func pausedText(q admin.QueueStatus) string {
	if len(q.Pauses) == 0 {
		return "no"
	}
	var parts []string
	for _, p := range q.Pauses {
		text := p.Job
		if p.Job == "" {
			text = "yes"
		}
		if !p.Until.IsZero() {
			text += " until " + clock(p.Until)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, ", ")
}
