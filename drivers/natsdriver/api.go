package natsdriver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// Error codes of the JetStream API, from the server's errors.json.
const (
	codeNoMessage          = 10037
	codeStreamNotFound     = 10059
	codeWrongLastSequence  = 10071
	codeWrongLastSequence2 = 10164
)

// parallel is how many requests of one batch are on their way at a time.
const parallel = 32

// requestTimeout bounds one request whose caller set no nearer deadline.
const requestTimeout = 5 * time.Second

// apiError is the server's answer to a request it refused.
type apiError struct {
	Code        int    `json:"code"`
	ErrCode     int    `json:"err_code"`
	Description string `json:"description"`
}

func (e *apiError) Error() string { return fmt.Sprintf("%s (%d)", e.Description, e.ErrCode) }

func isAPIError(err error, code int) bool {
	var e *apiError
	return errors.As(err, &e) && e.ErrCode == code
}

// isConflict reports whether a write was refused because the subject had moved on.
func isConflict(err error) bool {
	return isAPIError(err, codeWrongLastSequence) || isAPIError(err, codeWrongLastSequence2)
}

// link lives as long as one connection: what was asked over it is not answered over the next.
type link struct {
	ctx   context.Context
	sever context.CancelFunc
}

func newLink() *link {
	ctx, sever := context.WithCancel(context.Background())
	return &link{ctx, sever}
}

var errSevered = errors.New("the connection was lost before the answer came")

// asking bounds one request by time and by its connection's life. done turns the error of a
// lost connection into its name.
func (d *Driver) asking(ctx context.Context) (bounded context.Context, done func(error) error) {
	l := d.link.Load()
	bounded, cancel := context.WithTimeout(ctx, requestTimeout)
	stop := context.AfterFunc(l.ctx, cancel)
	return bounded, func(err error) error {
		severed := !stop() && ctx.Err() == nil
		cancel()
		if err != nil && severed {
			return errSevered
		}
		return err
	}
}

// request sends a message and waits for the one answer.
func (d *Driver) request(ctx context.Context, subject string, body []byte) (*nats.Msg, error) {
	ctx, done := d.asking(ctx)
	m, err := d.nc.RequestWithContext(ctx, subject, body)
	return m, done(err)
}

// api asks the JetStream API and decodes the answer.
func (d *Driver) api(ctx context.Context, subject string, in, out any) error {
	body, err := json.Marshal(in)
	if err != nil {
		return err
	}
	m, err := d.request(ctx, "$JS.API."+subject, body)
	if err != nil {
		return err
	}
	return decodeAnswer(m.Data, out)
}

func decodeAnswer(data []byte, out any) error {
	var failed struct {
		Error *apiError `json:"error"`
	}
	if err := json.Unmarshal(data, &failed); err != nil {
		return fmt.Errorf("answer of the server: %w", err)
	}
	if failed.Error != nil {
		return failed.Error
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(data, out)
}

// storedMessage is a message as a stream keeps it.
type storedMessage struct {
	Subject string    `json:"subject"`
	Seq     uint64    `json:"seq"`
	Hdrs    []byte    `json:"hdrs"`
	Data    []byte    `json:"data"`
	Time    time.Time `json:"time"`

	Header nats.Header `json:"-"` // nil where the block cannot be decoded
}

// getRequest selects one message of a stream.
type getRequest struct {
	Seq     uint64 `json:"seq,omitempty"`
	LastFor string `json:"last_by_subj,omitempty"`
	NextFor string `json:"next_by_subj,omitempty"` // the first from Seq on
}

func byNumber(seq uint64) getRequest       { return getRequest{Seq: seq} }
func lastOf(subject string) getRequest     { return getRequest{LastFor: subject} }
func number(n uint64) string               { return strconv.FormatUint(n, 10) }
func stampToken(unixNano int64) string     { return strconv.FormatInt(unixNano, 36) }
func parseStamp(s string) (int64, error)   { return strconv.ParseInt(s, 36, 64) }
func parseNumber(s string) (uint64, error) { return strconv.ParseUint(s, 10, 64) }

// rawMessage reads from the stream's leader, so that what was just written is seen.
func (d *Driver) rawMessage(ctx context.Context, stream string, r getRequest) (*storedMessage, error) {
	var out struct {
		Message *storedMessage `json:"message"`
	}
	if err := d.api(ctx, "STREAM.MSG.GET."+stream, r, &out); err != nil {
		return nil, err
	}
	if out.Message == nil {
		return nil, errors.New("the server's answer has no message")
	}
	if len(out.Message.Hdrs) > 0 {
		// A broken block is no error here: the caller sees that Header is nil.
		out.Message.Header, _ = nats.DecodeHeadersMsg(out.Message.Hdrs)
	}
	return out.Message, nil
}

// deleteMessage removes one message of a stream; one that is gone already is no error.
func (d *Driver) deleteMessage(ctx context.Context, stream string, seq uint64) error {
	in := struct {
		Seq     uint64 `json:"seq"`
		NoErase bool   `json:"no_erase"`
	}{seq, true}
	err := d.api(ctx, "STREAM.MSG.DELETE."+stream, in, nil)
	if isAPIError(err, codeNoMessage) || isAPIError(err, 10043) {
		return nil
	}
	return err
}

const (
	headerExpectSubjectSeq = "Nats-Expected-Last-Subject-Sequence"
	headerExpectStream     = "Nats-Expected-Stream"
	headerMsgID            = "Nats-Msg-Id"
)

// publish stores one message and returns its sequence after the server's confirmation.
func (d *Driver) publish(ctx context.Context, m *nats.Msg) (uint64, error) {
	ctx, done := d.asking(ctx)
	answer, err := d.nc.RequestMsgWithContext(ctx, m)
	if err = done(err); err != nil {
		return 0, err
	}
	var ack struct {
		Stream string `json:"stream"`
		Seq    uint64 `json:"seq"`
	}
	if err := decodeAnswer(answer.Data, &ack); err != nil {
		return 0, err
	}
	if ack.Stream == "" {
		return 0, fmt.Errorf("%q was answered, but not by a stream", m.Subject)
	}
	return ack.Seq, nil
}

// inParallel runs f for every index, at most parallel at a time, and returns the first error.
func inParallel(n int, f func(i int) error) error {
	var (
		wg    sync.WaitGroup
		mu    sync.Mutex
		first error
		next  = make(chan int)
	)
	for range min(n, parallel) {
		wg.Go(func() {
			for i := range next {
				if err := f(i); err != nil {
					mu.Lock()
					if first == nil {
						first = err
					}
					mu.Unlock()
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	return first
}
