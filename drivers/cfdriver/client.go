package cfdriver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cloudflare/cloudflare-go/v6/option"
	"github.com/cloudflare/cloudflare-go/v6/queues"

	"github.com/guesthand/guesthand/drivers"
)

const (
	// batchMax is how many messages Cloudflare takes in one request, and gives in one answer.
	batchMax = 100
	// batchBytes bounds the bodies of one push: 256 KB, of 1000 bytes each.
	batchBytes = 256_000
	// answerMax bounds an answer: a full pull in base64 and more.
	answerMax = 64 << 20
	// parallel is how many requests of a kind a queue has on their way at a time.
	parallel = 4
)

// client speaks to one account.
type client struct {
	account string
	timeout time.Duration
	service *queues.QueueService
	http    *http.Client
}

func newClient(o Options) *client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.DialContext = (&net.Dialer{Timeout: o.CallTimeout, KeepAlive: 15 * time.Second}).DialContext
	t.MaxIdleConnsPerHost = 4 * parallel
	// On HTTP/2 a request that times out does not end a connection that has gone silent.
	t.HTTP2 = &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 10 * time.Second}
	h := &http.Client{Transport: bounded{t}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return &client{
		account: o.Account, timeout: o.CallTimeout, http: h,
		service: queues.NewQueueService(
			option.WithBaseURL(o.URL), option.WithAPIToken(o.Token), option.WithHTTPClient(h),
			// A repeated pull leases a second batch and leaves the first unseen, a repeated push
			// makes a second message: the caller decides what is worth another try.
			option.WithMaxRetries(0),
		),
	}
}

// bounded limits what an answer may be, since the SDK reads all of it.
type bounded struct{ *http.Transport }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := b.Transport.RoundTrip(r)
	if err == nil {
		res.Body = http.MaxBytesReader(nil, res.Body, answerMax)
	}
	return res, err
}

// answer is what every call is answered with. The SDK's own types leave out whether it succeeded.
type answer[T any] struct {
	Success bool `json:"success"`
	Errors  []struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	} `json:"errors"`
	Result T `json:"result"`
}

func (a *answer[T]) err() error {
	if a.Success {
		return nil
	}
	texts := []string{"the answer does not say that it succeeded"}
	for _, e := range a.Errors {
		texts = append(texts, fmt.Sprintf("%s (%d)", e.Message, e.Code))
	}
	return errors.New(strings.Join(texts, ": "))
}

// call carries out one request within the time for one.
func call[T any](ctx context.Context, c *client, do func(context.Context, option.RequestOption) error) (T, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	var a answer[T]
	err := do(ctx, option.WithResponseBodyInto(&a))
	if err == nil {
		err = a.err()
	}
	return a.Result, apiError(err)
}

// callWith is call with a body of our own: the SDK builds lists in a time that grows with the
// square of their length.
func callWith[T any](ctx context.Context, c *client, body any, do func(context.Context, ...option.RequestOption) error) (T, error) {
	b, err := marshal(body)
	if err != nil {
		var none T
		return none, err
	}
	return call[T](ctx, c, func(ctx context.Context, o option.RequestOption) error {
		return do(ctx, o, option.WithRequestBody("application/json", b))
	})
}

// refusal is an answer that says no.
type refusal struct {
	status int
	text   string
	after  time.Duration // Retry-After, 0 for none
}

func (r *refusal) Error() string { return r.text }

// apiError makes the SDK's error readable: its own text repeats the URL, with the account.
func apiError(err error) error {
	var e *queues.Error
	if !errors.As(err, &e) {
		return err
	}
	r := &refusal{status: e.StatusCode}
	texts := []string{fmt.Sprintf("Cloudflare answers %d %s", e.StatusCode, http.StatusText(e.StatusCode))}
	for _, d := range e.Errors {
		texts = append(texts, fmt.Sprintf("%s (%d)", d.Message, d.Code))
	}
	r.text = strings.Join(texts, ": ")
	if e.Response != nil {
		if s, bad := strconv.Atoi(e.Response.Header.Get("Retry-After")); bad == nil && s > 0 {
			r.after = min(time.Duration(min(s, 3600))*time.Second, time.Hour)
		}
	}
	return r
}

func statusOf(err error) int {
	var r *refusal
	if errors.As(err, &r) {
		return r.status
	}
	return 0
}

// isRefused tells an answer that says for certain that nothing was done.
func isRefused(err error) bool {
	s := statusOf(err)
	return s >= 400 && s < 500 && s != http.StatusRequestTimeout
}

func isMissing(err error) bool { return statusOf(err) == http.StatusNotFound }

// message is one that was pulled.
type message struct {
	ID        string  `json:"id"`
	Body      string  `json:"body"`
	Attempts  float64 `json:"attempts"`
	LeaseID   string  `json:"lease_id"`
	Timestamp float64 `json:"timestamp_ms"`
	Metadata  struct {
		ContentType string `json:"CF-Content-Type"`
	} `json:"metadata"`
}

func (m *message) sent() time.Time { return time.UnixMilli(int64(m.Timestamp)) }

// pull leases at most n messages.
func (c *client) pull(ctx context.Context, queue string, n int, lease time.Duration) ([]message, error) {
	type pulled struct {
		Messages []message `json:"messages"`
	}
	var p queues.MessagePullParams
	p.AccountID.Value = c.account
	p.BatchSize.Value, p.BatchSize.Present = float64(min(n, batchMax)), true
	p.VisibilityTimeoutMs.Value, p.VisibilityTimeoutMs.Present = float64(lease.Milliseconds()), true
	r, err := call[pulled](ctx, c, func(ctx context.Context, o option.RequestOption) error {
		_, err := c.service.Messages.Pull(ctx, queue, p, o)
		return err
	})
	return r.Messages, err
}

// release is what ends one lease.
type release struct {
	lease string
	retry bool
	delay time.Duration // of a retry
}

// ending is a release as the API has it.
type ending struct {
	Lease string `json:"lease_id"`
	Delay *int   `json:"delay_seconds,omitempty"`
}

// warning is what Cloudflare says of one lease in an answer that succeeded.
type warning struct{ text string }

func (w *warning) Error() string { return "Cloudflare warns: " + w.text }

// settle acknowledges and retries up to batchMax leases, an error for each.
func (c *client) settle(ctx context.Context, queue string, rs []release) []error {
	type settled struct {
		Warnings map[string]string `json:"warnings"`
	}
	var body struct {
		Acks    []ending `json:"acks,omitempty"`
		Retries []ending `json:"retries,omitempty"`
	}
	for _, r := range rs {
		if !r.retry {
			body.Acks = append(body.Acks, ending{Lease: r.lease})
			continue
		}
		// Without a word about it the consumer's retry_delay would hold.
		delay := seconds(r.delay)
		body.Retries = append(body.Retries, ending{Lease: r.lease, Delay: &delay})
	}
	var p queues.MessageAckParams
	p.AccountID.Value = c.account
	res, err := callWith[settled](ctx, c, body, func(ctx context.Context, o ...option.RequestOption) error {
		_, err := c.service.Messages.Ack(ctx, queue, p, o...)
		return err
	})
	errs := make([]error, len(rs))
	for i, r := range rs {
		errs[i] = err
		if text, warned := res.Warnings[r.lease]; err == nil && warned {
			errs[i] = &warning{text}
		}
	}
	return errs
}

// outgoing is a message on its way into a queue.
type outgoing struct {
	body  string
	json  bool // the body is JSON that is sent as such, not a text
	delay time.Duration
	err   error
}

// size is what Cloudflare counts for it.
func (o *outgoing) size() int { return len(o.body) + metadataBytes }

// push sends messages that fit into one request.
func (c *client) push(ctx context.Context, queue string, outs []*outgoing) error {
	type pushed struct {
		Body any    `json:"body"`
		Type string `json:"content_type"`
		// Without a word about it the queue's delivery_delay would hold.
		Delay int `json:"delay_seconds"`
	}
	var body struct {
		Messages []pushed `json:"messages"`
	}
	for _, out := range outs {
		m := pushed{Body: out.body, Type: contentText, Delay: seconds(out.delay)}
		if out.json {
			m.Body, m.Type = json.RawMessage(out.body), contentJSON
		}
		body.Messages = append(body.Messages, m)
	}
	var p queues.MessageBulkPushParams
	p.AccountID.Value = c.account
	_, err := callWith[struct{}](ctx, c, body, func(ctx context.Context, o ...option.RequestOption) error {
		_, err := c.service.Messages.BulkPush(ctx, queue, p, o...)
		return err
	})
	return err
}

// metrics are Cloudflare's figures of one queue, which it calls approximate.
type metrics struct {
	Count  float64 `json:"backlog_count"`
	Oldest float64 `json:"oldest_message_timestamp_ms"`
}

// metrics asks for them. The SDK has no method for it, and the path is one below the queue's.
func (c *client) metrics(ctx context.Context, queue string) (metrics, error) {
	var p queues.QueueGetParams
	p.AccountID.Value = c.account
	return call[metrics](ctx, c, func(ctx context.Context, o option.RequestOption) error {
		_, err := c.service.Get(ctx, queue+"/metrics", p, o)
		return err
	})
}

// wrap names what was done; nil stays nil.
func wrap(err error, what string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// seconds rounds up, since what we ask for is a least time.
func seconds(d time.Duration) int {
	return int(min(max(0, (d+time.Second-1)/time.Second), math.MaxInt32))
}

// all is the same error for every message.
func all(n int, err error) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
	}
	return errs
}

// lostLease marks an error of a delivery whose lease is over.
func lostLease(err error) error { return fmt.Errorf("%w: %w", drivers.ErrLeaseLost, err) }
