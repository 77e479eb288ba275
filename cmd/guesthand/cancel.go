package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
)

func newCancel(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "cancel QUEUE ID...", Short: "Stop messages that run on this host, or drop them where they wait", Args: cobra.MinimumNArgs(2),
		Long: "Cancel messages. One that this host has in its hands is stopped, even in the middle of\na run, acknowledged, and recorded with the outcome cancelled; it is not retried and becomes no\ndead letter. One that waits at the broker is dropped where the broker can find it by its id,\nwhich a memory broker can; on all others it is said that it cannot be done.",
		RunE: func(c *cobra.Command, args []string) error {
			s, done, err := g.connect(c.Context())
			if err != nil {
				return err
			}
			defer done()
			var errs []error
			n := 0
			for _, id := range args[1:] {
				if err := s.Cancel(c.Context(), args[0], id); err != nil {
					errs = append(errs, err)
					continue
				}
				n++
				if g.json {
					errs = append(errs, jsonLine(c.OutOrStdout(), map[string]string{"id": id}))
				}
			}
			fmt.Fprintf(os.Stderr, "cancelled %d of %d\n", n, len(args)-1)
			return errors.Join(errs...)
		},
	}
}
