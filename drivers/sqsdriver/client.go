package sqsdriver

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"sync"
	"time"

	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/aws/smithy-go"

	"github.com/guesthand/guesthand/drivers"
)

// batchMax is how many entries SQS takes in one request.
const batchMax = 10

// pooled is an HTTP client with the SDK's transport, that keeps enough connections for
// batches side by side and can let go of them; the SDK's own client only shows copies.
func pooled(b *awshttp.BuildableClient) *http.Client {
	t := b.GetTransport()
	t.MaxIdleConnsPerHost = 4 * parallel
	t.MaxIdleConns = max(t.MaxIdleConns, 4*parallel)
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// closeIdle lets go of pooled connections.
func (d *Driver) closeIdle() {
	if c, ok := d.c.Options().HTTPClient.(*http.Client); ok {
		c.CloseIdleConnections()
	}
}

// entryError is why SQS refused one entry of a batch.
type entryError struct {
	code, text string
}

func (e *entryError) Error() string {
	if e.text == "" {
		return e.code
	}
	return e.code + ": " + e.text
}

// codes of errors that mean something to us, as the JSON protocol names them.
const (
	codeInvalidContents = "InvalidMessageContents"
	codeInvalidHandle   = "ReceiptHandleIsInvalid"
	codeNotInflight     = "MessageNotInflight"
	codeInvalidValue    = "InvalidParameterValue"
	codeMissing         = "QueueDoesNotExist"
	codeMissingQuery    = "AWS.SimpleQueueService.NonExistentQueue"
	codeNameExists      = "QueueNameExists"
	codeNameExistsQuery = "QueueAlreadyExists"
)

// codeOf is an error's code, of a request or of an entry; "" for an error that is no answer.
func codeOf(err error) string {
	var entry *entryError
	if errors.As(err, &entry) {
		return entry.code
	}
	var api smithy.APIError
	if errors.As(err, &api) {
		return api.ErrorCode()
	}
	return ""
}

func isMissing(err error) bool {
	var missing *types.QueueDoesNotExist
	code := codeOf(err)
	return errors.As(err, &missing) || code == codeMissing || code == codeMissingQuery
}

func isDenied(err error) bool {
	switch codeOf(err) {
	case "AccessDenied", "AccessDeniedException", "AccessDenied.Exception":
		return true
	}
	return false
}

// isLost tells that a receipt handle no longer stands for a lease. On a delete the handle is
// the only value there is to be invalid: so SQS answers for an expired one of a FIFO queue.
func isLost(err error, deleting bool) bool {
	var inflight *types.MessageNotInflight
	var handle *types.ReceiptHandleIsInvalid
	if errors.As(err, &inflight) || errors.As(err, &handle) {
		return true
	}
	switch codeOf(err) {
	case codeNotInflight, codeInvalidHandle, "AWS.SimpleQueueService." + codeNotInflight:
		return true
	case codeInvalidValue:
		return deleting
	}
	return false
}

// wrap names what was done; nil stays nil.
func wrap(err error, what string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// leaseLost turns a refused receipt handle into the contract's error.
func leaseLost(err error, deleting bool) error {
	if err != nil && isLost(err, deleting) {
		return fmt.Errorf("%w: %w", drivers.ErrLeaseLost, err)
	}
	return err
}

// call bounds one request.
func (q *queue) call(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, q.d.o.CallTimeout)
}

// batches calls f for each run of at most batchMax indexes, some of them side by side, and
// waits. f answers for every index it got.
func batches(n int, f func(from, to int)) {
	if n <= batchMax {
		if n > 0 {
			f(0, n)
		}
		return
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, parallel)
	for from := 0; from < n; from += batchMax {
		slots <- struct{}{}
		wg.Go(func() {
			f(from, min(n, from+batchMax))
			<-slots
		})
	}
	wg.Wait()
}

// entryID names an entry by its place, so that ids are distinct whatever the messages are.
func entryID(i int) string { return strconv.Itoa(i) }

// results are the outcomes of one batch request by entry: SQS answers 200 with some of them
// failed, and what it does not mention is not known to have happened.
func results(n int, succeeded []string, failed []types.BatchResultErrorEntry, err error) []error {
	errs := make([]error, n)
	for i := range errs {
		errs[i] = err
		if err == nil {
			errs[i] = errors.New("the answer does not mention this entry")
		}
	}
	if err != nil {
		return errs
	}
	for _, id := range succeeded {
		if i, bad := strconv.Atoi(id); bad == nil && i >= 0 && i < n {
			errs[i] = nil
		}
	}
	for _, f := range failed {
		if i, bad := strconv.Atoi(deref(f.Id)); bad == nil && i >= 0 && i < n {
			errs[i] = &entryError{code: deref(f.Code), text: deref(f.Message)}
		}
	}
	return errs
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// seconds rounds up, since what we ask for is a least time.
func seconds(d time.Duration) int32 {
	s := d / time.Second
	if d%time.Second > 0 {
		s++
	}
	return int32(min(max(0, s), math.MaxInt32))
}
