package admin

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/guesthand/guesthand/host/config"
)

// pause is POST /v1/queues/Q/pause?job=J&for=10m; without for it holds until it is resumed.
func (s *Server) pause(w http.ResponseWriter, r *http.Request) {
	p := Pause{Queue: r.PathValue("queue"), Job: r.URL.Query().Get("job")}
	if v := r.URL.Query().Get("for"); v != "" {
		d, err := config.ParseDuration(v)
		if err == nil && d <= 0 {
			err = fmt.Errorf("%q is not above 0; write 30s, 5m, 2h or 1d", v)
		}
		if err != nil {
			s.fail(w, http.StatusBadRequest, fmt.Errorf("for: %w", err))
			return
		}
		p.Until = time.Now().Add(d)
	}
	respond(s, w, struct{}{}, s.host.Pause(r.Context(), p))
}

// resume is POST /v1/queues/Q/resume?job=J.
func (s *Server) resume(w http.ResponseWriter, r *http.Request) {
	respond(s, w, struct{}{}, s.host.Resume(r.Context(), r.PathValue("queue"), r.URL.Query().Get("job")))
}

// Pause implements Service.
func (c *Client) Pause(ctx context.Context, p Pause) error {
	q := url.Values{}
	if p.Job != "" {
		q.Set("job", p.Job)
	}
	if !p.Until.IsZero() {
		q.Set("for", max(time.Millisecond, time.Until(p.Until)).String())
	}
	return c.do(ctx, http.MethodPost, "/v1/queues/"+url.PathEscape(p.Queue)+"/pause?"+q.Encode(), nil, nil)
}

// Resume implements Service.
func (c *Client) Resume(ctx context.Context, queue, job string) error {
	q := url.Values{}
	if job != "" {
		q.Set("job", job)
	}
	return c.do(ctx, http.MethodPost, "/v1/queues/"+url.PathEscape(queue)+"/resume?"+q.Encode(), nil, nil)
}
