package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/ledger"
	"github.com/guesthand/guesthand/host/plugindir"
)

// ReconnectBudget is how long a command waits for a host that went away.
const ReconnectBudget = 30 * time.Second

// Client is a Service on a running host.
type Client struct {
	http  *http.Client
	base  string
	token string
	met   atomic.Bool // the host answered once: from then on it is worth waiting for
}

var _ Service = (*Client)(nil)

// UnreachableError: the host did not answer. Whether it did what was asked is not known
// unless NotSent is true.
type UnreachableError struct {
	Where   string
	NotSent bool
	Err     error
}

func (e *UnreachableError) Error() string { return fmt.Sprintf("host at %s: %v", e.Where, e.Err) }
func (e *UnreachableError) Unwrap() error { return e.Err }

// DialSocket returns a client of the host that serves the socket, and whether there is one.
func DialSocket(ctx context.Context, path string) (*Client, bool) {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", path)
	}
	conn, err := dial(ctx, "", "")
	if err != nil {
		return nil, false
	}
	conn.Close()
	c := &Client{base: "http://localhost", http: &http.Client{Transport: &http.Transport{DialContext: dial}}}
	c.met.Store(true)
	return c, true
}

// NewClient is a client of the host at a URL such as http://127.0.0.1:7070.
func NewClient(base, token string) (*Client, error) {
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || (u.Scheme != "http" && u.Scheme != "https") {
		return nil, fmt.Errorf("%q is no address of a host; write http://127.0.0.1:7070", base)
	}
	return &Client{base: u.Scheme + "://" + u.Host, token: token, http: &http.Client{}}, nil
}

// do asks once. Where a host that was there has gone away, it asks again until there is one
// once more, if the request certainly did not arrive or may as well be asked twice.
func (c *Client) do(ctx context.Context, method, path string, in, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return err
		}
	}
	deadline := time.Now().Add(ReconnectBudget)
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 2*time.Second) {
		err := c.once(ctx, method, path, body, out)
		var away *UnreachableError
		if !errors.As(err, &away) || !(away.NotSent || method == http.MethodGet) || !c.met.Load() || ctx.Err() != nil || time.Now().Add(wait).After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

func (c *Client) once(ctx context.Context, method, path string, body []byte, out any) error {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return &UnreachableError{Where: c.base, NotSent: notSent(err), Err: err}
	}
	defer res.Body.Close()
	c.met.Store(true)
	answer, err := io.ReadAll(io.LimitReader(res.Body, 256<<20))
	if err != nil {
		return &UnreachableError{Where: c.base, Err: err}
	}
	if res.StatusCode >= 300 {
		var e errorResponse
		if json.Unmarshal(answer, &e) != nil || e.Error == nil {
			return &RemoteError{Status: res.StatusCode, Text: fmt.Sprintf("host answered %s", res.Status)}
		}
		return e.Error.toError(res.StatusCode)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(answer, out)
}

// notSent tells whether the request certainly never reached the host.
func notSent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" ||
		errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist)
}

// Send implements Service.
func (c *Client) Send(ctx context.Context, queue string, ms []drivers.Message) ([]string, []error, error) {
	var ids []string
	var errs []error
	for len(ms) > 0 {
		req, n := batch(ms)
		ms = ms[n:]
		var res sendResponse
		if err := c.do(ctx, http.MethodPost, "/v1/queues/"+url.PathEscape(queue)+"/messages", req, &res); err != nil {
			return ids, errs, err
		}
		for _, m := range res.Messages {
			ids, errs = append(ids, m.ID), append(errs, m.Error.toError(http.StatusBadGateway))
		}
	}
	return ids, errs, nil
}

// batch takes as many messages as one request may hold.
func batch(ms []drivers.Message) (req sendRequest, n int) {
	size := 0
	for _, m := range ms {
		// base64 makes four bytes of three; headers are small beside it.
		size += len(m.Payload)*4/3 + 4096
		if n > 0 && (n == maxMessages || size > maxBody/2) {
			break
		}
		req.Messages = append(req.Messages, message{ID: m.ID, Job: m.Job, Key: m.Key, NotBefore: m.NotBefore, Headers: m.Headers, Payload: m.Payload})
		n++
	}
	return req, n
}

func get[T any](ctx context.Context, c *Client, path string) ([]T, error) {
	var l list[T]
	err := c.do(ctx, http.MethodGet, path, nil, &l)
	return l.Items, err
}

// Queues implements Service.
func (c *Client) Queues(ctx context.Context) ([]QueueStatus, error) {
	return get[QueueStatus](ctx, c, "/v1/queues")
}

// Handlers implements Service.
func (c *Client) Handlers(ctx context.Context) ([]plugindir.Status, error) {
	return get[plugindir.Status](ctx, c, "/v1/handlers")
}

// Runs implements Service.
func (c *Client) Runs(ctx context.Context, f ledger.Filter) ([]ledger.Row, error) {
	q := url.Values{}
	for name, v := range map[string]string{"queue": f.Queue, "job": f.Job, "outcome": f.Outcome, "id": f.ID} {
		if v != "" {
			q.Set(name, v)
		}
	}
	if !f.Since.IsZero() {
		q.Set("since", f.Since.Format(time.RFC3339Nano))
	}
	if !f.Before.IsZero() {
		q.Set("before", f.Before.Format(time.RFC3339Nano))
	}
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	return get[ledger.Row](ctx, c, "/v1/runs?"+q.Encode())
}

// Dead implements Service.
func (c *Client) Dead(_ context.Context, queue string) (drivers.DeadLetters, error) {
	return remoteDead{c, "/v1/queues/" + url.PathEscape(queue) + "/dead"}, nil
}

type remoteDead struct {
	c    *Client
	path string
}

func (d remoteDead) ListDead(ctx context.Context, after string, limit int) ([]drivers.DeadLetter, error) {
	q := url.Values{"limit": {strconv.Itoa(limit)}}
	if after != "" {
		q.Set("after", after)
	}
	return get[drivers.DeadLetter](ctx, d.c, d.path+"?"+q.Encode())
}

func (d remoteDead) GetDead(ctx context.Context, id string) ([]drivers.DeadLetter, error) {
	return get[drivers.DeadLetter](ctx, d.c, d.path+"/"+url.PathEscape(id))
}

func (d remoteDead) ReplayDead(ctx context.Context, entry string) error {
	return d.c.do(ctx, http.MethodPost, d.path+"/"+url.PathEscape(entry)+"/replay", nil, nil)
}

func (d remoteDead) DropDead(ctx context.Context, entry string) error {
	return d.c.do(ctx, http.MethodDelete, d.path+"/"+url.PathEscape(entry), nil, nil)
}
