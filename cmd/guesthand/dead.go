package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/guesthand/guesthand/drivers"
)

// deadPage is how many dead letters are asked for at once. They may be large.
const deadPage = 25

func newDead(g *globals) *cobra.Command {
	c := &cobra.Command{
		Use: "dead", Short: "List, show, replay or drop dead letters", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newDeadList(g), newDeadShow(g), newDeadChange(g, "replay", "Run dead letters again, each with a fresh budget", "replayed", drivers.DeadLetters.ReplayDead),
		newDeadChange(g, "drop", "Remove dead letters for good", "dropped", drivers.DeadLetters.DropDead))
	return c
}

// withDead opens a queue's dead letters for one command.
func (g *globals) withDead(ctx context.Context, queue string, f func(drivers.DeadLetters) error) error {
	s, done, err := g.connect(ctx)
	if err != nil {
		return err
	}
	defer done()
	d, err := s.Dead(ctx, queue)
	if err != nil {
		return err
	}
	return f(d)
}

// eachDead walks the dead letters, oldest first.
func eachDead(ctx context.Context, d drivers.DeadLetters, f func(drivers.DeadLetter) error) error {
	after := ""
	for {
		page, err := d.ListDead(ctx, after, deadPage)
		if err != nil {
			return err
		}
		for _, l := range page {
			if err := f(l); err != nil {
				return err
			}
			after = l.Entry
		}
		if len(page) == 0 { // a page that is not full is no end: a host cuts large ones
			return nil
		}
	}
}

var errEnough = errors.New("enough")

func newDeadList(g *globals) *cobra.Command {
	limit := 0
	c := &cobra.Command{
		Use: "list QUEUE", Short: "List a queue's dead letters, oldest first", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return g.withDead(c.Context(), args[0], func(d drivers.DeadLetters) error {
				n := 0
				each := func(print func(drivers.DeadLetter) error) error {
					err := eachDead(c.Context(), d, func(l drivers.DeadLetter) error {
						if n++; limit > 0 && n > limit {
							return errEnough
						}
						return print(l)
					})
					if errors.Is(err, errEnough) {
						return nil
					}
					return err
				}
				if g.json {
					return each(func(l drivers.DeadLetter) error { return jsonLine(c.OutOrStdout(), l) })
				}
				var failed error
				err := table(c.OutOrStdout(), "DIED JOB ATTEMPT REASON ID ENTRY", func(add func(...any)) {
					failed = each(func(l drivers.DeadLetter) error {
						add(clock(l.Died), orDash(l.Job), l.LastAttempt(), firstLine(l.Reason), l.ID, l.Entry)
						return nil
					})
				})
				return errors.Join(failed, err)
			})
		},
	}
	c.Flags().IntVarP(&limit, "limit", "n", 0, "at most this `many`; 0 for all")
	return c
}

func firstLine(s string) string {
	line, _, more := strings.Cut(s, "\n")
	if len(line) > 120 {
		line, more = strings.ToValidUTF8(line[:120], ""), true
	}
	if more {
		line += " ..."
	}
	return line
}

func newDeadShow(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "show QUEUE ID", Short: "Show a dead letter by entry or message id, payload included", Args: cobra.ExactArgs(2),
		RunE: func(c *cobra.Command, args []string) error {
			return g.withDead(c.Context(), args[0], func(d drivers.DeadLetters) error {
				letters, err := getDead(c.Context(), d, args[0], args[1])
				if err != nil {
					return err
				}
				for _, l := range letters {
					if g.json {
						err = jsonLine(c.OutOrStdout(), l)
					} else {
						err = printLetter(c.OutOrStdout(), l)
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}

func getDead(ctx context.Context, d drivers.DeadLetters, queue, id string) ([]drivers.DeadLetter, error) {
	letters, err := d.GetDead(ctx, id)
	if errors.Is(err, drivers.ErrNotFound) {
		return nil, fail(exitNotFine, "see: guesthand dead list "+queue, fmt.Errorf("queue %s has no dead letter %s", queue, id))
	}
	return letters, err
}

func printLetter(w io.Writer, l drivers.DeadLetter) error {
	t := l.Tally
	fmt.Fprintf(w, "id            %s\nentry         %s\njob           %s\nqueue         %s\nreason        %s\noutcome       %s\ncause         %s\n",
		printable(l.ID), l.Entry, printable(l.Job), l.Queue, printable(l.Reason), orDash(l.Outcome), orDash(l.Cause))
	fmt.Fprintf(w, "failures      %d\ndelays        %d\nstalls        %d\ninterruptions %d\nattempt       %d\nreplays       %d\n",
		t.Failures, t.Delays, t.Stalls, t.Interruptions, l.LastAttempt(), l.Replays)
	fmt.Fprintf(w, "enqueued      %s\ndied          %s\ndigest        %s\nworker        %s\n", clock(l.Enqueued), clock(l.Died), orDash(l.Digest), orDash(l.Worker))
	for _, name := range l.Headers.Names() {
		for _, v := range l.Headers[name] {
			fmt.Fprintf(w, "header        %s: %s\n", printable(name), printable(v))
		}
	}
	for _, e := range l.Errors {
		fmt.Fprintf(w, "error         attempt %d, %s, %s: %s\n", e.Attempt, clock(e.At), e.Outcome, printable(e.Text))
	}
	if utf8.Valid(l.Payload) {
		_, err := fmt.Fprintf(w, "payload       %d bytes\n%s\n", len(l.Payload), printableLines(string(l.Payload)))
		return err
	}
	_, err := fmt.Fprintf(w, "payload       %d bytes, not text; --json has it in base64\n", len(l.Payload))
	return err
}

// newDeadChange is replay and drop: the same walk with another end.
func newDeadChange(g *globals, verb, short, done string, change func(drivers.DeadLetters, context.Context, string) error) *cobra.Command {
	all := false
	c := &cobra.Command{
		Use: verb + " QUEUE ID...", Short: short,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) == 0:
				return errors.New("name a queue")
			case all && len(args) > 1:
				return errors.New("give ids or --all, not both")
			case !all && len(args) == 1:
				return errors.New("name dead letters by entry or message id, or give --all")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			return g.withDead(c.Context(), args[0], func(d drivers.DeadLetters) error {
				entries, err := deadEntries(c.Context(), d, args[0], args[1:], all)
				if err != nil {
					return err
				}
				p := newProgress(done)
				n, err := changeAll(entries, all, func(l drivers.DeadLetter) error {
					return change(d, c.Context(), l.Entry)
				}, func(n int, l drivers.DeadLetter) error {
					p.at(n, len(entries))
					if !g.json {
						return nil
					}
					return jsonLine(c.OutOrStdout(), map[string]string{"id": l.ID, "entry": l.Entry})
				})
				p.end()
				fmt.Fprintf(os.Stderr, "%s %d of %d\n", done, n, len(entries))
				return err
			})
		},
	}
	c.Flags().BoolVar(&all, "all", false, "every dead letter there is now")
	return c
}

// changeAll changes one dead letter after the other up to the first error, reports each and
// returns how many there were. With all, one that is gone by now was changed by somebody else.
func changeAll(entries []drivers.DeadLetter, all bool, change func(drivers.DeadLetter) error, report func(int, drivers.DeadLetter) error) (n int, err error) {
	for _, l := range entries {
		err := change(l)
		if all && errors.Is(err, drivers.ErrNotFound) {
			continue
		}
		if err != nil {
			return n, err
		}
		n++
		if err := report(n, l); err != nil {
			return n, err
		}
	}
	return n, nil
}

// deadEntries are the dead letters that a command names. With --all they are listed before
// the first is changed: one that dies again meanwhile is not taken twice.
func deadEntries(ctx context.Context, d drivers.DeadLetters, queue string, ids []string, all bool) (out []drivers.DeadLetter, err error) {
	keep := func(l drivers.DeadLetter) error {
		out = append(out, drivers.DeadLetter{ID: l.ID, Entry: l.Entry})
		return nil
	}
	if all {
		err = eachDead(ctx, d, keep)
		return out, err
	}
	for _, id := range ids {
		letters, err := getDead(ctx, d, queue, id)
		if err != nil {
			return nil, err
		}
		for _, l := range letters {
			if err := keep(l); err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// readLetter reads a dead letter as `dead show --json` prints it.
func readLetter(file string) (l drivers.DeadLetter, err error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return l, err
	}
	if err := json.Unmarshal(b, &l); err != nil {
		return l, fmt.Errorf("%s is no dead letter as `guesthand dead show --json` prints it: %w", file, err)
	}
	return l, nil
}
