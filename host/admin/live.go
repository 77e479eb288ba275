package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/ledger"
)

const (
	// liveTick is how often a page hears how things stand, maxLive how many pages at once.
	liveTick = time.Second
	maxLive  = 32
)

func (s *Server) overview(w http.ResponseWriter, r *http.Request) {
	s.answer(w, http.StatusOK, s.host.Overview(r.Context()))
}

func (s *Server) setup(w http.ResponseWriter, _ *http.Request) {
	s.answer(w, http.StatusOK, s.host.Setup())
}

// live is the overview again and again, as server-sent events, until the reader leaves or the
// host stops.
func (s *Server) live(w http.ResponseWriter, r *http.Request) {
	select {
	case s.lives <- struct{}{}:
		defer func() { <-s.lives }()
	default:
		s.fail(w, http.StatusServiceUnavailable, fmt.Errorf("%d pages are open already", maxLive))
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	out := http.NewResponseController(w)
	tick := time.NewTicker(liveTick)
	defer tick.Stop()
	for {
		b, err := json.Marshal(s.host.Overview(r.Context()))
		if err == nil {
			// The server's own limit is for one answer, and this one has no end.
			err = out.SetWriteDeadline(time.Now().Add(10 * liveTick))
		}
		if err == nil {
			_, err = fmt.Fprintf(w, "event: overview\ndata: %s\n\n", b)
		}
		if err != nil || out.Flush() != nil {
			return // the reader has gone
		}
		select {
		case <-r.Context().Done():
			return
		case <-s.stopping:
			return
		case <-tick.C:
		}
	}
}

// Fate is what became of a message, as far as this host can tell.
type Fate struct {
	ID string `json:"id"`
	// State is succeeded, cancelled, dead, rejected, pending (it ran and is to run again) or unknown: it has
	// not run on this host, or that was too long ago.
	State string               `json:"state"`
	Runs  []ledger.Row         `json:"runs"` // newest first, stalls and interruptions included
	Dead  []drivers.DeadLetter `json:"dead"` // as they are kept now; none where listing would consume
}

// message is GET /v1/messages/ID.
func (s *Server) message(w http.ResponseWriter, r *http.Request) {
	f, err := s.fate(r.Context(), r.PathValue("id"))
	respond(s, w, f, err)
}

func (s *Server) fate(ctx context.Context, id string) (Fate, error) {
	f := Fate{ID: id, State: "unknown", Runs: []ledger.Row{}, Dead: []drivers.DeadLetter{}}
	rows, err := s.host.Runs(ctx, ledger.Filter{ID: id, Limit: maxPage})
	if err != nil {
		return f, err
	}
	f.Runs = append(f.Runs, rows...)
	asked := map[string]bool{}
	for _, row := range rows {
		if asked[row.Queue] || row.Settlement != ledger.DeadLtr {
			continue
		}
		asked[row.Queue] = true
		letters, err := s.letters(ctx, row.Queue, id)
		if err != nil {
			return f, err
		}
		f.Dead = append(f.Dead, letters...)
	}
	if len(rows) > 0 {
		f.State = stateOf(rows[0])
	}
	return f, nil
}

// letters are a message's dead letters, none where they are gone or cannot be looked at.
func (s *Server) letters(ctx context.Context, queue, id string) ([]drivers.DeadLetter, error) {
	d, err := s.host.Dead(ctx, queue)
	if err == nil {
		var ls []drivers.DeadLetter
		if ls, err = d.GetDead(ctx, id); err == nil {
			return ls, nil
		}
	}
	var unknown interface{ NotFound() bool } // a queue of an earlier configuration
	if errors.Is(err, drivers.ErrNotFound) || errors.Is(err, drivers.ErrUnsupported) || errors.As(err, &unknown) && unknown.NotFound() {
		return nil, nil
	}
	return nil, err
}

// stateOf is the state that a message's latest run left it in.
func stateOf(r ledger.Row) string {
	if r.Settlement == ledger.Acked && r.Outcome == string(abi.Cancelled) {
		return r.Outcome
	}
	switch r.Settlement {
	case ledger.Acked:
		return "succeeded"
	case ledger.DeadLtr:
		return "dead"
	case ledger.Rejected:
		return "rejected"
	}
	return "pending"
}
