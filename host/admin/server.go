package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/config"
	"github.com/guesthand/guesthand/host/ledger"
)

const (
	maxBody     = 32 << 20 // of one request
	maxMessages = 1000     // of one request
	maxPage     = 1000     // dead letters or runs of one answer
	pingBudget  = 2 * time.Second
	// fullPage is where an answer is long enough, bytes of payload, and deadChunk how many
	// dead letters are read at once to see that.
	fullPage  = 32 << 20
	deadChunk = 8
	// Clients that are slower than this are not waited for.
	readBudget  = time.Minute
	writeBudget = 5 * time.Minute
	stopBudget  = 3 * time.Second
)

// Server answers the API.
type Server struct {
	host  Host
	log   *slog.Logger
	token string
	mux   *http.ServeMux

	lives    chan struct{} // a token for each page that is open
	stopping chan struct{} // closed when Serve is told to stop
}

// NewServer makes a server for a host. A token, where there is one, is asked for on every
// address but not on the socket, whose file mode says who may.
func NewServer(h Host, token string, log *slog.Logger) *Server {
	s := &Server{host: h, log: log, token: token, mux: http.NewServeMux(),
		lives: make(chan struct{}, maxLive), stopping: make(chan struct{})}
	s.mux.HandleFunc("GET /{$}", s.page)
	s.mux.HandleFunc("GET /healthz", s.healthz)
	s.mux.HandleFunc("GET /readyz", s.readyz)
	s.mux.Handle("GET /metrics", h.Metrics())
	s.mux.HandleFunc("GET /v1/overview", s.overview)
	s.mux.HandleFunc("GET /v1/live", s.live)
	s.mux.HandleFunc("GET /v1/setup", s.setup)
	s.mux.HandleFunc("GET /v1/messages/{id}", s.message)
	s.mux.HandleFunc("GET /v1/queues", s.queues)
	s.mux.HandleFunc("GET /v1/handlers", s.handlers)
	s.mux.HandleFunc("GET /v1/runs", s.runs)
	s.mux.HandleFunc("POST /v1/queues/{queue}/jobs/{job}", s.enqueue)
	s.mux.HandleFunc("POST /v1/queues/{queue}/messages", s.send)
	s.mux.HandleFunc("POST /v1/queues/{queue}/messages/{id}/cancel", s.cancel)
	s.mux.HandleFunc("POST /v1/queues/{queue}/pause", s.pause)
	s.mux.HandleFunc("POST /v1/queues/{queue}/resume", s.resume)
	s.mux.HandleFunc("GET /v1/queues/{queue}/dead", s.deadList)
	s.mux.HandleFunc("GET /v1/queues/{queue}/dead/{id}", s.deadGet)
	s.mux.HandleFunc("POST /v1/queues/{queue}/dead/{id}/replay", s.deadReplay)
	s.mux.HandleFunc("DELETE /v1/queues/{queue}/dead/{id}", s.deadDrop)
	return s
}

// Serve answers on the listeners until ctx ends, then lets requests finish for a moment.
func (s *Server) Serve(ctx context.Context, listeners ...net.Listener) error {
	failed := make(chan error, len(listeners))
	servers := make([]*http.Server, len(listeners))
	for i, l := range listeners {
		_, local := l.Addr().(*net.UnixAddr)
		handler := http.Handler(s.mux)
		if !local {
			handler = s.guard(l.Addr(), handler)
		}
		servers[i] = &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, ReadTimeout: readBudget,
			WriteTimeout: writeBudget, IdleTimeout: 2 * time.Minute,
			ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug)}
		go func() { failed <- servers[i].Serve(l) }()
	}
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
	}
	close(s.stopping)
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopBudget)
	defer cancel()
	for _, server := range servers {
		shut := server.Shutdown(stop)
		if errors.Is(shut, context.DeadlineExceeded) { // somebody who does not finish a request
			shut = server.Close()
		}
		err = errors.Join(err, shut)
	}
	return err
}

// maxSocketPath is what every system takes, bytes; Linux has four more.
const maxSocketPath = 103

// ListenSocket listens on the socket in the data directory, mode 0600. One that a dead
// host left behind is replaced, one that answers is an error.
func ListenSocket(ctx context.Context, path string) (net.Listener, error) {
	var d net.Dialer
	if conn, err := d.DialContext(ctx, "unix", path); err == nil {
		conn.Close()
		return nil, fmt.Errorf("another host answers on %s; only one can run on a data directory", path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("socket left behind: %w", err)
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "unix", path)
	switch {
	case err != nil && len(path) > maxSocketPath:
		return nil, fmt.Errorf("%w: systems take %d bytes, this has %d; choose a shorter data directory", err, maxSocketPath, len(path))
	case err != nil:
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// guard checks what a browser or a stranger could send to an address. On loopback no token
// is needed, so a page of another site must not be able to use the API: Host has to be
// loopback and Origin, where there is one, our own.
func (s *Server) guard(addr net.Addr, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// The page holds no data: it asks for a token itself.
		probe := r.URL.Path == "/healthz" || r.URL.Path == "/readyz" || r.URL.Path == "/"
		switch {
		case s.token != "" && !probe && !s.authorized(r):
			w.Header().Set("WWW-Authenticate", "Bearer")
			s.fail(w, http.StatusUnauthorized, errors.New("a bearer token is needed: Authorization: Bearer TOKEN"))
		case isLoopback(addr.String()) && !isLoopback(r.Host):
			s.fail(w, http.StatusForbidden, fmt.Errorf("host %q is not this machine", r.Host))
		case !sameOrigin(r):
			s.fail(w, http.StatusForbidden, fmt.Errorf("origin %q is not this host", r.Header.Get("Origin")))
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// authorized compares digests, so that the time taken says nothing about the token.
func (s *Server) authorized(r *http.Request) bool {
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	a, b := sha256.Sum256([]byte(given)), sha256.Sum256([]byte(s.token))
	return ok && subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

func isLoopback(hostport string) bool {
	host, _, err := net.SplitHostPort(hostport)
	if err != nil {
		host = hostport
	}
	host = strings.Trim(host, "[]")
	addr, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || (err == nil && addr.IsLoopback())
}

func sameOrigin(r *http.Request) bool {
	origin := r.Header.Get("Origin")
	if origin == "" {
		return true
	}
	u, err := url.Parse(origin)
	return err == nil && u.Host == r.Host
}

func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) {
	if err := s.host.Alive(); err != nil {
		s.answer(w, http.StatusServiceUnavailable, map[string]string{"status": err.Error()})
		return
	}
	s.answer(w, http.StatusOK, map[string]string{"status": "ok"})
}

func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), pingBudget)
	defer cancel()
	why := s.host.Unready(ctx)
	status, word := http.StatusOK, "ready"
	if len(why) > 0 {
		status, word = http.StatusServiceUnavailable, "not ready"
	}
	s.answer(w, status, map[string]any{"status": word, "reasons": orEmpty(why).Items})
}

func (s *Server) queues(w http.ResponseWriter, r *http.Request) {
	qs, err := s.host.Queues(r.Context())
	respond(s, w, orEmpty(qs), err)
}

func (s *Server) handlers(w http.ResponseWriter, r *http.Request) {
	hs, err := s.host.Handlers(r.Context())
	respond(s, w, orEmpty(hs), err)
}

func (s *Server) runs(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	f := ledger.Filter{Queue: q.Get("queue"), Job: q.Get("job"), Outcome: q.Get("outcome"), ID: q.Get("id")}
	var err error
	for name, t := range map[string]*time.Time{"since": &f.Since, "before": &f.Before} {
		if v := q.Get(name); v != "" {
			if *t, err = time.Parse(time.RFC3339Nano, v); err != nil {
				s.fail(w, http.StatusBadRequest, fmt.Errorf("%s: %w", name, err))
				return
			}
		}
	}
	if f.Limit, err = limitOf(q); err != nil {
		s.fail(w, http.StatusBadRequest, err)
		return
	}
	rows, err := s.host.Runs(r.Context(), f)
	respond(s, w, orEmpty(rows), err)
}

func limitOf(q url.Values) (int, error) {
	v := q.Get("limit")
	if v == "" {
		return 100, nil
	}
	n, err := strconv.Atoi(v)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("limit: %q is no positive number", v)
	}
	return min(n, maxPage), nil
}

// enqueue takes the body as the payload, whatever its content type, so that curl is a
// producer. Guesthand-*, ce-* and x-* headers, traceparent and the content type travel with
// the message; Idempotency-Key and ?delay= are for us.
func (s *Server) enqueue(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		s.badBody(w, err)
		return
	}
	m := drivers.Message{Job: r.PathValue("job"), Payload: body, Headers: drivers.Header{},
		ID: r.Header.Get(abi.HeaderID), Key: r.Header.Get("Idempotency-Key")}
	if m.Key == "" {
		m.Key = r.Header.Get(abi.HeaderKey)
	}
	for name, values := range r.Header {
		if carried(name) {
			m.Headers[name] = values
		}
	}
	if v := r.URL.Query().Get("delay"); v != "" {
		d, err := config.ParseDuration(v)
		if err == nil && d < 0 {
			err = fmt.Errorf("%q is negative; write 500ms, 10s, 5m, 2h or 1d", v)
		}
		if err != nil {
			s.fail(w, http.StatusBadRequest, fmt.Errorf("delay: %w", err))
			return
		}
		if d > 0 {
			m.NotBefore = time.Now().Add(d)
		}
	}
	ids, errs, err := s.host.Send(r.Context(), r.PathValue("queue"), []drivers.Message{m})
	if err == nil {
		err = errs[0]
	}
	if err != nil {
		s.fail(w, statusOf(err), err)
		return
	}
	s.answer(w, http.StatusAccepted, map[string]string{"id": ids[0]})
}

func carried(name string) bool {
	lower := strings.ToLower(name)
	switch lower {
	case strings.ToLower(abi.HeaderID), strings.ToLower(abi.HeaderKey), strings.ToLower(abi.HeaderJob):
		return false
	}
	return strings.HasPrefix(lower, "guesthand-") || strings.HasPrefix(lower, "ce-") ||
		strings.HasPrefix(lower, "x-") || lower == abi.HeaderTraceparent || lower == "content-type"
}

func (s *Server) send(w http.ResponseWriter, r *http.Request) {
	var req sendRequest
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	d.DisallowUnknownFields() // what we do not know would not be sent
	if err := d.Decode(&req); err != nil {
		s.badBody(w, err)
		return
	}
	if len(req.Messages) == 0 || len(req.Messages) > maxMessages {
		s.fail(w, http.StatusBadRequest, fmt.Errorf("%d messages; send 1 to %d at once", len(req.Messages), maxMessages))
		return
	}
	ms := make([]drivers.Message, len(req.Messages))
	for i, m := range req.Messages {
		ms[i] = drivers.Message{ID: m.ID, Job: m.Job, Key: m.Key, NotBefore: m.NotBefore, Headers: m.Headers, Payload: m.Payload}
	}
	ids, errs, err := s.host.Send(r.Context(), r.PathValue("queue"), ms)
	if err != nil {
		s.fail(w, statusOf(err), err)
		return
	}
	var res sendResponse
	for i, id := range ids {
		res.Messages = append(res.Messages, sent{ID: id, Error: toWire(errs[i])})
	}
	s.answer(w, http.StatusOK, res)
}

func (s *Server) badBody(w http.ResponseWriter, err error) {
	var large *http.MaxBytesError
	if errors.As(err, &large) {
		s.fail(w, http.StatusRequestEntityTooLarge, fmt.Errorf("body is over the limit of %d bytes", large.Limit))
		return
	}
	s.fail(w, http.StatusBadRequest, fmt.Errorf("body: %w", err))
}

func (s *Server) deadList(w http.ResponseWriter, r *http.Request) {
	limit, err := limitOf(r.URL.Query())
	if err != nil {
		s.fail(w, http.StatusBadRequest, err)
		return
	}
	s.withDead(w, r, func(d drivers.DeadLetters) (any, error) {
		ls, err := deadPage(r.Context(), d, r.URL.Query().Get("after"), limit)
		return orEmpty(ls), err
	})
}

// deadPage is a page of at most limit dead letters, and fewer where they are large. Only an
// empty page is the end.
func deadPage(ctx context.Context, d drivers.DeadLetters, after string, limit int) (page []drivers.DeadLetter, err error) {
	for size := 0; len(page) < limit && size < fullPage; {
		most := min(deadChunk, limit-len(page))
		ls, err := d.ListDead(ctx, after, most)
		if err != nil {
			return nil, err
		}
		page = append(page, ls...)
		if len(ls) < most {
			break
		}
		for _, l := range ls {
			size += len(l.Payload)
		}
		after = ls[len(ls)-1].Entry
	}
	return page, nil
}

func (s *Server) deadGet(w http.ResponseWriter, r *http.Request) {
	s.withDead(w, r, func(d drivers.DeadLetters) (any, error) {
		ls, err := d.GetDead(r.Context(), r.PathValue("id"))
		return orEmpty(ls), err
	})
}

func (s *Server) deadReplay(w http.ResponseWriter, r *http.Request) {
	s.withDead(w, r, func(d drivers.DeadLetters) (any, error) {
		return map[string]string{"entry": r.PathValue("id")}, d.ReplayDead(r.Context(), r.PathValue("id"))
	})
}

func (s *Server) deadDrop(w http.ResponseWriter, r *http.Request) {
	s.withDead(w, r, func(d drivers.DeadLetters) (any, error) {
		return map[string]string{"entry": r.PathValue("id")}, d.DropDead(r.Context(), r.PathValue("id"))
	})
}

func (s *Server) withDead(w http.ResponseWriter, r *http.Request, f func(drivers.DeadLetters) (any, error)) {
	d, err := s.host.Dead(r.Context(), r.PathValue("queue"))
	if err != nil {
		s.fail(w, statusOf(err), err)
		return
	}
	v, err := f(d)
	respond(s, w, v, err)
}

func respond[T any](s *Server, w http.ResponseWriter, v T, err error) {
	if err != nil {
		s.fail(w, statusOf(err), err)
		return
	}
	s.answer(w, http.StatusOK, v)
}

// statusOf is the HTTP status for an error. A 5xx means that the outcome is not known.
func statusOf(err error) int {
	switch {
	case errors.Is(err, drivers.ErrNotFound):
		return http.StatusNotFound
	case errors.Is(err, drivers.ErrInvalid):
		return http.StatusBadRequest
	case errors.Is(err, drivers.ErrUnsupported):
		return http.StatusUnprocessableEntity
	case errors.Is(err, ErrNoLedger), errors.Is(err, ErrNotCancelled):
		return http.StatusConflict
	case errors.Is(err, drivers.ErrTooLarge):
		return http.StatusRequestEntityTooLarge
	}
	var unknown interface{ NotFound() bool }
	if errors.As(err, &unknown) && unknown.NotFound() {
		return http.StatusNotFound
	}
	return http.StatusBadGateway
}

func (s *Server) fail(w http.ResponseWriter, status int, err error) {
	s.answer(w, status, errorResponse{toWire(err)})
}

func (s *Server) answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(v); err != nil {
		s.log.Debug("answer", "error", err)
	}
}
