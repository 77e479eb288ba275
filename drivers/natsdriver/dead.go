package natsdriver

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

// Headers of a dead letter that only this driver needs.
const (
	headerDeathSubject = "Guesthand-Death-Subject" // where the message came in
	headerDeathStamp   = "Guesthand-Death-Stamp"   // when the stream took it, Unix ns: with the sequence its identity
	headerDeathID      = "Guesthand-Death-Id"      // the id as it was handed out
	headerDeathJob     = "Guesthand-Death-Job"
	headerDeathPrefix  = "Guesthand-Death-"
)

// maxDeathReason bounds the reason in a header.
const maxDeathReason = 4 << 10

var errOtherDead = errors.New("the dead letter's place is taken by another message")

// bury stores the dead letter, then acknowledges the message.
func (q *queue) bury(ctx context.Context, t *token, s *drivers.Settlement) error {
	err := q.storeDead(ctx, t, s)
	if errors.Is(err, errOtherDead) {
		// The stream was made anew and counts from 1 again: learn its new name in time.
		if err = q.setupConsumer(ctx, false); err == nil {
			err = q.storeDead(ctx, t, s)
		}
	}
	if err != nil {
		return err
	}
	if err := q.finish(ctx, t, ackBody); err != nil {
		return fmt.Errorf("acknowledge: %w", err)
	}
	q.acked.add([]*token{t}, 2*time.Duration(q.ackWait.Load()))
	q.dropTallies(ctx, []*token{t})
	q.bounds.check(ctx, q)
	return nil
}

// storeDead returns when the dead letter of this very message is in its stream.
func (q *queue) storeDead(ctx context.Context, t *token, s *drivers.Settlement) error {
	subject := q.n.deadPrefix + strconv.FormatInt(q.inc.Load().stream, 10) + "." + number(t.seq)
	// The caller owns the delivery's bytes; the stream has the original's.
	original, err := q.d.rawMessage(ctx, q.n.stream, byNumber(t.seq))
	if isAPIError(err, codeNoMessage) || err == nil && original.Time.UnixNano() != t.stamp {
		if stored, err := q.isStored(ctx, subject, t); err != nil || stored {
			return err
		}
		return drivers.ErrLeaseLost // somebody finished it otherwise
	}
	if err != nil {
		return fmt.Errorf("read the message: %w", err)
	}
	m, err := q.deadMessage(subject, original, t, s)
	if err != nil {
		return err
	}
	_, err = q.d.publish(ctx, m)
	if !isConflict(err) {
		return wrap(err, "store the dead letter")
	}
	stored, err := q.isStored(ctx, subject, t)
	if err == nil && !stored {
		err = errOtherDead
	}
	return err
}

// isStored reports whether a subject holds the dead letter of this message.
func (q *queue) isStored(ctx context.Context, subject string, t *token) (bool, error) {
	m, err := q.d.rawMessage(ctx, q.n.deadStream, lastOf(subject))
	if isAPIError(err, codeNoMessage) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read the dead letter: %w", err)
	}
	id := unescapeText(m.Header.Get(headerDeathID))
	return m.Header.Get(headerDeathStamp) == strconv.FormatInt(t.stamp, 10) && id == t.messageID, nil
}

func (q *queue) deadMessage(subject string, original *storedMessage, t *token, s *drivers.Settlement) (*nats.Msg, error) {
	m := nats.NewMsg(subject)
	m.Data = original.Data
	for name, values := range original.Header {
		// Commands to the server were meant for the work stream; a message id would
		// make the dead letter a duplicate of an earlier one.
		if !hasFoldedPrefix(name, "Nats-") && !hasFoldedPrefix(name, headerDeathPrefix) {
			m.Header[name] = values
		}
	}
	q.deathHeaders(m.Header, original, t, s)
	errs := s.Carry.Errors
	for {
		if err := setErrors(m.Header, errs); err != nil {
			return nil, err
		}
		if q.fits(m) {
			return m, nil
		}
		if len(errs) == 0 {
			break
		}
		errs = errs[1:]
	}
	return q.shed(m)
}

func (q *queue) fits(m *nats.Msg) bool { return msgSize(m)+512 <= int(q.d.nc.MaxPayload()) }

// shed drops what can be missed most until the dead letter fits: at last the producer's own
// headers, never a byte of the payload.
func (q *queue) shed(m *nats.Msg) (*nats.Msg, error) {
	for _, name := range []string{abi.HeaderDeathDigest, abi.HeaderDeathWorker, abi.HeaderDeathCause, abi.HeaderEnqueued} {
		if m.Header.Del(name); q.fits(m) {
			return m, nil
		}
	}
	if r := m.Header.Get(abi.HeaderDeathReason); len(r) > 256 {
		m.Header[abi.HeaderDeathReason] = []string{strings.ToValidUTF8(r[:256], "")}
	}
	for name := range m.Header {
		if q.fits(m) {
			q.log.Warn("a dead letter has no room for all of its headers", slog.String("id", m.Header.Get(headerDeathID)))
			return m, nil
		}
		if !hasFoldedPrefix(name, abi.HeaderPrefix) {
			m.Header.Del(name)
		}
	}
	if q.fits(m) {
		return m, nil
	}
	return nil, fmt.Errorf("dead letter of %d bytes, the server takes %d: %w", msgSize(m), q.d.nc.MaxPayload(), drivers.ErrTooLarge)
}

func (q *queue) deathHeaders(h nats.Header, original *storedMessage, t *token, s *drivers.Settlement) {
	death, died := s.Death, s.Death.Time
	if died.IsZero() {
		died = time.Now()
	}
	worker := death.Worker
	if worker == "" {
		worker = q.o.Worker
	}
	set := func(name, value string) {
		if value != "" {
			h[name] = []string{escapeText(value)}
		}
	}
	count := func(name string, n int) { h[name] = []string{strconv.Itoa(n)} }
	reason := death.Reason
	if len(reason) > maxDeathReason {
		reason = strings.ToValidUTF8(reason[:maxDeathReason], "")
	}
	set(abi.HeaderDeathReason, reason)
	set(abi.HeaderDeathOutcome, death.Outcome)
	set(abi.HeaderDeathCause, death.Cause)
	set(abi.HeaderDeathQueue, q.n.queue)
	set(abi.HeaderDeathDigest, death.Digest)
	set(abi.HeaderDeathWorker, worker)
	set(abi.HeaderDeathTime, died.UTC().Format(time.RFC3339Nano))
	set(abi.HeaderEnqueued, original.Time.UTC().Format(time.RFC3339Nano))
	set(headerDeathSubject, original.Subject)
	set(headerDeathID, t.messageID)
	set(headerDeathJob, t.job)
	h[headerDeathStamp] = []string{strconv.FormatInt(t.stamp, 10)}
	count(abi.HeaderDeathFailures, s.Carry.Failures)
	count(abi.HeaderDeathDelays, s.Carry.Delays)
	count(abi.HeaderDeathStalls, s.Carry.Stalls)
	count(abi.HeaderDeathInterruptions, s.Carry.Interruptions)
	count(abi.HeaderDeathAttempt, s.Carry.Attempt()-1)
	h[abi.HeaderPrior] = []string{strconv.Itoa(s.Carry.Prior)}
	h[headerExpectSubjectSeq] = []string{"0"}
	h[headerExpectStream] = []string{q.n.deadStream}
}

func setErrors(h nats.Header, errs []drivers.RunError) error {
	delete(h, abi.HeaderDeathErrors)
	if len(errs) == 0 {
		return nil
	}
	b, err := json.Marshal(errs)
	if err != nil {
		return err
	}
	h[abi.HeaderDeathErrors] = []string{string(b)}
	return nil
}

// escapeText makes any text a header value: control characters, the percent sign and
// spaces at the ends are percent-encoded, everything else stays readable.
func escapeText(s string) string {
	plain := true
	for i := range len(s) {
		plain = plain && s[i] > ' ' && s[i] != '%' && s[i] != 0x7f
	}
	if plain {
		return s
	}
	var b strings.Builder
	for i := range len(s) {
		c, edge := s[i], i == 0 || i == len(s)-1
		if c < ' ' || c == '%' || c == 0x7f || c == ' ' && edge {
			b.WriteString("%" + strings.ToUpper(hex.EncodeToString([]byte{c})))
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

func unescapeText(s string) string { return unescapeJob(s) }

// deadBounds says when the dead letters are at their bounds.
type deadBounds struct {
	mu     sync.Mutex
	looked time.Time
	warned time.Time
}

const (
	boundsEvery = 5 * time.Second
	boundsWarn  = 10 * time.Minute
)

// check looks now and then whether the stream of dead letters is at its bound: then each new
// one pushes an old one out.
func (b *deadBounds) check(ctx context.Context, q *queue) {
	now := time.Now()
	b.mu.Lock()
	due := now.Sub(b.looked) >= boundsEvery && now.Sub(b.warned) >= boundsWarn
	if due {
		b.looked = now
	}
	b.mu.Unlock()
	if !due {
		return
	}
	s, err := q.d.js.Stream(ctx, q.n.deadStream)
	if err != nil {
		q.log.Debug("bounds of the dead letters", slog.Any("error", err))
		return
	}
	info := s.CachedInfo()
	full := info.Config.MaxMsgs > 0 && info.State.Msgs >= uint64(info.Config.MaxMsgs)
	full = full || info.Config.MaxBytes > 0 && info.State.Bytes >= uint64(info.Config.MaxBytes)*9/10
	old := info.Config.MaxAge > 0 && info.State.Msgs > 0 && now.Sub(info.State.FirstTime) > info.Config.MaxAge*9/10
	if !full && !old {
		return
	}
	b.mu.Lock()
	b.warned = now
	b.mu.Unlock()
	if full {
		q.log.Warn("the dead letters are at their bound, the oldest are dropped: replay or drop some, or raise dead.max",
			slog.String("stream", q.n.deadStream), slog.Uint64("count", info.State.Msgs), slog.Int64("max", info.Config.MaxMsgs))
		return
	}
	q.log.Warn("the oldest dead letters are about to be dropped for their age: replay them, or raise dead.keep",
		slog.String("stream", q.n.deadStream), slog.Duration("keep", info.Config.MaxAge))
}
