package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host"
	"github.com/guesthand/guesthand/host/admin"
	"github.com/guesthand/guesthand/host/ledger"
)

// waiter learns of a message's end: by a reply, where the broker carries one to this
// process whatever host runs the message, and from the ledger of the host at hand.
type waiter struct {
	s       admin.Service
	ledger  bool
	inbox   drivers.Inbox // nil: no replies
	brokers *host.Brokers // the inbox's own
}

// newWaiter opens an inbox at the queue's broker. A broker that is inside a host cannot be
// reached by two processes: there the ledger knows of every run.
func (g *globals) newWaiter(ctx context.Context, s admin.Service, queue string) (*waiter, error) {
	w := &waiter{s: s}
	_, noLedger := s.Runs(ctx, ledger.Filter{Limit: 1})
	w.ledger = noLedger == nil
	err := g.openInbox(ctx, w, queue)
	switch {
	case w.inbox != nil, w.ledger && (err == nil || errors.Is(err, drivers.ErrUnsupported)):
		return w, nil
	case err == nil || errors.Is(err, drivers.ErrUnsupported): // what nobody records cannot be waited for
		err = noLedger
	}
	w.close(ctx)
	return nil, err
}

func (g *globals) openInbox(ctx context.Context, w *waiter, queue string) error {
	if g.host != "" {
		return nil
	}
	c, err := g.load()
	if err != nil {
		return err
	}
	switch c.Brokers[c.Queues[queue].Broker].Driver {
	case "", "embedded", "memory":
		return nil
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	w.brokers = host.NewBrokers(c, openers, host.OpenOptions{Worker: host.WorkerName(), Logger: log}, true)
	w.inbox, err = w.brokers.OpenInbox(ctx, queue)
	return err
}

func (w *waiter) close(ctx context.Context) {
	var errs []error
	if w.inbox != nil {
		errs = append(errs, w.inbox.Close())
	}
	if w.brokers != nil {
		errs = append(errs, w.brokers.Close(context.WithoutCancel(ctx)))
	}
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintf(os.Stderr, "guesthand: close: %v\n", err)
	}
}

// ask makes a message want a reply here, unless its sender named another address.
func (w *waiter) ask(m *drivers.Message) {
	if _, own := m.Headers.Get(abi.HeaderReplyTo); own || w.inbox == nil {
		return
	}
	if m.Headers == nil {
		m.Headers = drivers.Header{}
	}
	m.Headers.Set(abi.HeaderReplyTo, w.inbox.Address())
}

const (
	ledgerTick = 100 * time.Millisecond
	// slowTick is how often the ledger is looked at beside an inbox: a reply may be lost.
	slowTick = time.Second
)

// end waits until the message has ended or ctx is over, in which case there is no row.
func (w *waiter) end(ctx context.Context, id string) (*ledger.Row, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan drivers.Answer)
	every := ledgerTick
	if w.inbox != nil {
		every = slowTick
		go w.listen(ctx, answers)
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		row, err := w.look(ctx, id)
		if row != nil || err != nil {
			return row, err
		}
		select {
		case a := <-answers:
			if a.ID == id || a.ID == "" {
				return answered(id, a), nil
			}
		case <-ctx.Done():
			return nil, nil
		case <-tick.C:
		}
	}
}

func (w *waiter) listen(ctx context.Context, answers chan<- drivers.Answer) {
	for {
		a, err := w.inbox.Next(ctx)
		if err != nil {
			return
		}
		select {
		case answers <- a:
		case <-ctx.Done():
			return
		}
	}
}

// look asks the ledger for the row that ended the message.
func (w *waiter) look(ctx context.Context, id string) (*ledger.Row, error) {
	if !w.ledger {
		return nil, nil
	}
	rows, err := w.s.Runs(ctx, ledger.Filter{ID: id, Limit: 1})
	switch {
	case err != nil && ctx.Err() == nil && w.inbox == nil:
		return nil, err
	case err == nil && len(rows) > 0 && final(rows[0]):
		return &rows[0], nil
	}
	return nil, nil
}

// answered is the end as the reply tells it, which knows less than the ledger of whoever ran
// the message.
func answered(id string, a drivers.Answer) *ledger.Row {
	row := &ledger.Row{ID: id, Outcome: a.Outcome, Code: -1, Finished: time.Now(), Settlement: ledger.DeadLtr, Error: string(a.Payload)}
	switch a.Outcome {
	case abi.Success.String():
		row.Settlement, row.Code, row.Result, row.Error = ledger.Acked, 0, a.Payload, ""
	case abi.Reject.String():
		row.Settlement = ledger.Rejected
	}
	return row
}

// printFate prints what became of a message.
func (g *globals) printFate(ctx context.Context, out io.Writer, w *waiter, id string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	row, err := w.end(ctx, id)
	switch {
	case err != nil:
		return err
	case row == nil:
		return fail(exitUnreachable, "it may still run; see: guesthand runs --id "+id,
			fmt.Errorf("message %s has not ended within %s", id, timeout))
	}
	return g.printEnd(out, *row)
}

func final(r ledger.Row) bool {
	switch r.Settlement {
	case ledger.Acked, ledger.DeadLtr, ledger.Rejected:
		return true
	}
	return false
}

func (g *globals) printEnd(out io.Writer, r ledger.Row) error {
	ok := r.Settlement == ledger.Acked
	switch {
	case g.json:
		if err := jsonLine(out, r); err != nil {
			return err
		}
	case ok:
		if _, err := out.Write(r.Result); err != nil {
			return err
		}
	default:
		fmt.Fprintf(os.Stderr, "guesthand: message %s ended in %s: %s\n", r.ID, r.Outcome, printableLines(r.Error))
	}
	if !ok {
		return notFine
	}
	return nil
}
