package admin

import (
	"context"
	"errors"
	"net/http"
	"net/url"
)

// ErrNotCancelled is the answer where a message was found and came to another end.
var ErrNotCancelled = errors.New("not cancelled")

// cancel is POST /v1/queues/Q/messages/ID/cancel.
func (s *Server) cancel(w http.ResponseWriter, r *http.Request) {
	respond(s, w, map[string]string{"id": r.PathValue("id")}, s.host.Cancel(r.Context(), r.PathValue("queue"), r.PathValue("id")))
}

// Cancel implements Service.
func (c *Client) Cancel(ctx context.Context, queue, id string) error {
	return c.do(ctx, http.MethodPost, "/v1/queues/"+url.PathEscape(queue)+"/messages/"+url.PathEscape(id)+"/cancel", nil, nil)
}
