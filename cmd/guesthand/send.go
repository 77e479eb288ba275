package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/admin"
	"github.com/guesthand/guesthand/host/config"
)

// sendBatch is how many messages one call carries.
const sendBatch = 500

type sendFlags struct {
	payload, delay, key, timeout string
	headers                      []string
	count                        int
	wait                         bool
}

func newSend(g *globals) *cobra.Command {
	var f sendFlags
	c := &cobra.Command{
		Use: "send QUEUE JOB", Short: "Send a message and print its id once the broker has it", Args: cobra.ExactArgs(2),
		Example: `  guesthand send default orders --payload '{"id": 1}'
  guesthand send default orders --payload @order.json --delay 5m
  guesthand send default orders --payload @- --wait < order.json`,
		RunE: func(c *cobra.Command, args []string) error {
			return g.send(c.Context(), c.OutOrStdout(), f, args[0], args[1])
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.payload, "payload", "", "the payload: `TEXT`, @FILE or @- for standard input")
	fl.StringArrayVar(&f.headers, "header", nil, "a header `NAME=VALUE`; may be repeated")
	fl.StringVar(&f.delay, "delay", "", "run it no sooner than after this `duration`")
	fl.StringVar(&f.key, "key", "", "let the broker drop it if it has seen this `key` lately")
	fl.IntVar(&f.count, "count", 1, "send it this `many` times, each with an id of its own")
	fl.BoolVar(&f.wait, "wait", false, "wait for its end and print the result; exit status 1 unless it succeeded")
	fl.StringVar(&f.timeout, "timeout", "5m", "how long --wait waits")
	return c
}

func (f sendFlags) message(job string) (m drivers.Message, timeout time.Duration, err error) {
	m = drivers.Message{Job: job, Key: f.key}
	if f.count < 1 {
		return m, 0, fail(exitUsage, "", fmt.Errorf("count: %d is less than 1", f.count))
	}
	if f.wait && f.count > 1 {
		return m, 0, fail(exitUsage, "", errors.New("--wait takes one message, without --count"))
	}
	if f.key != "" && f.count > 1 {
		return m, 0, fail(exitUsage, "", errors.New("--count with --key would send one message and drop the others"))
	}
	if f.delay != "" {
		d, err := config.ParseDuration(f.delay)
		if err == nil && d < 0 {
			err = fmt.Errorf("%q is negative; write 500ms, 10s, 5m, 2h or 1d", f.delay)
		}
		if err != nil {
			return m, 0, fail(exitUsage, "", fmt.Errorf("delay: %w", err))
		}
		if d > 0 {
			m.NotBefore = time.Now().Add(d)
		}
	}
	if timeout, err = config.ParseDuration(f.timeout); err != nil {
		return m, 0, fail(exitUsage, "", fmt.Errorf("timeout: %w", err))
	}
	if m.Headers, err = readHeaders(f.headers); err != nil {
		return m, 0, err
	}
	m.Payload, err = readPayload(f.payload)
	return m, timeout, err
}

func (g *globals) send(ctx context.Context, out io.Writer, f sendFlags, queue, job string) error {
	m, timeout, err := f.message(job)
	if err != nil {
		return err
	}
	s, done, err := g.connect(ctx)
	if err != nil {
		return err
	}
	defer done()
	var w *waiter
	if f.wait {
		if w, err = g.newWaiter(ctx, s, queue); err != nil {
			return err
		}
		defer w.close(ctx)
		w.ask(&m)
	}
	accepted, last := 0, ""
	p := newProgress("sent")
	for accepted < f.count && err == nil {
		n := min(sendBatch, f.count-accepted)
		var ids []string
		ids, err = sendSome(ctx, s, queue, m, n)
		for _, id := range ids {
			last = id
			if f.wait {
				break
			}
			if printErr := printID(out, g.json, id); printErr != nil {
				return printErr
			}
		}
		accepted += len(ids)
		p.at(accepted, f.count)
	}
	p.end()
	if err != nil {
		if f.count > 1 {
			fmt.Fprintf(os.Stderr, "guesthand: %d of %d were accepted\n", accepted, f.count)
		}
		return sendError(err)
	}
	if f.wait {
		return g.printFate(ctx, out, w, last, timeout)
	}
	return nil
}

// sendSome sends n copies and returns the ids of those that the broker confirmed, and an
// error if that was not all of them.
func sendSome(ctx context.Context, s admin.Service, queue string, m drivers.Message, n int) ([]string, error) {
	ms := make([]drivers.Message, n)
	for i := range ms {
		ms[i] = m
	}
	ids, errs, err := s.Send(ctx, queue, ms)
	confirmed := ids[:0]
	for i, e := range errs {
		if e == nil {
			confirmed = append(confirmed, ids[i])
		} else if err == nil {
			err = e
		}
	}
	return confirmed, err
}

// sendError gives an error of sending its exit status: what cannot be sent is the caller's
// to mend, everything else leaves it open whether the broker has the message.
func sendError(err error) error {
	var remote *admin.RemoteError
	switch {
	case errors.Is(err, drivers.ErrInvalid), errors.Is(err, drivers.ErrTooLarge), errors.Is(err, drivers.ErrUnsupported),
		errors.As(err, &remote) && remote.Status < 500:
		return fail(exitUsage, "", err)
	}
	// A host that answered with a fault of its own may have handed the message on before.
	if code, _ := classify(err); code != exitNotFine && (remote == nil || code != exitUnreachable) {
		return err
	}
	return fail(exitUnreachable, "whether the broker has the last one is not known; with --key it can be sent again without harm", err)
}

func printID(w io.Writer, asJSON bool, id string) error {
	if asJSON {
		return jsonLine(w, map[string]string{"id": id})
	}
	_, err := fmt.Fprintln(w, id)
	return err
}
