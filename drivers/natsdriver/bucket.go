package natsdriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/guesthand/guesthand/drivers"
)

const (
	bucketPrefix = "guesthand-kv_"
	// ttlServer is the first server that removes single messages by itself.
	ttlServer = "2.11.0"
	headerTTL = "Nats-TTL"
	// headerExpires is when a value ends, Unix ms: the server's own time is in whole
	// seconds, and older servers have none.
	headerExpires = "Guesthand-Expires"
	// longestTTL stands for ever: the server's arithmetic overflows beyond 292 years from 1970.
	longestTTL = 100 * 365 * 24 * time.Hour
	// keyCost is what a stream counts for a message beside key and value.
	keyCost = 256
)

var bucketRule = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,127}$`)

var _ drivers.KeyValue = (*Driver)(nil)

// OpenBucket implements drivers.KeyValue: a stream that NATS' own tools know as the bucket
// guesthand-kv_NAME, a dot of the name written DOT. The quota of a stream that is ours is that
// of the latest opening; others' are used as they are.
func (d *Driver) OpenBucket(ctx context.Context, o drivers.BucketOptions) (drivers.Bucket, error) {
	if !bucketRule.MatchString(o.Name) {
		return nil, fmt.Errorf("bucket %q: %w: a name is up to 128 of a-z, 0-9, ., _ and -", o.Name, drivers.ErrInvalid)
	}
	name := bucketPrefix + strings.ReplaceAll(o.Name, ".", "DOT")
	b := &bucket{d: d, o: o, stream: "KV_" + name, prefix: "$KV." + name + ".", log: d.log.With(slog.String("bucket", name))}
	if err := b.setup(ctx); err != nil {
		return nil, fmt.Errorf("bucket %s: %w", o.Name, b.named(err))
	}
	return b, nil
}

// bucket implements drivers.Bucket on a stream that keeps one message for each subject.
type bucket struct {
	d      *Driver
	o      drivers.BucketOptions
	stream string
	prefix string // of the subjects
	log    *slog.Logger
	// direct: the stream has one replica, which answers reads without the way through the API.
	direct atomic.Bool
	// ttl: the server removes what has expired.
	ttl atomic.Bool
	// swept is when what has expired was last looked for, Unix ns.
	swept atomic.Int64
}

func (b *bucket) wanted() jetstream.StreamConfig {
	c := jetstream.StreamConfig{
		Name: b.stream, Subjects: []string{b.prefix + ">"},
		Description: "values that the guesthand handler " + b.o.Name + " keeps",
		Storage:     jetstream.FileStorage, Discard: jetstream.DiscardNew,
		MaxMsgsPerSubject: 1, MaxMsgs: -1, MaxBytes: -1, AllowRollup: true, AllowDirect: true,
		AllowMsgTTL: atLeast(b.d.nc.ConnectedServerVersion(), ttlServer),
		Metadata:    ourMetadata(),
	}
	if b.o.MaxKeys > 0 {
		c.MaxMsgs = int64(b.o.MaxKeys)
	}
	if b.o.MaxBytes > 0 {
		room := b.o.MaxBytes / 4
		if b.o.MaxKeys > 0 {
			room = min(b.o.MaxBytes, int64(b.o.MaxKeys)*keyCost)
		}
		c.MaxBytes = b.o.MaxBytes + room
	}
	return c
}

// setup finds or creates the stream, and sets the quota of one that is ours.
func (b *bucket) setup(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	want := b.wanted()
	s, err := b.d.js.Stream(ctx, b.stream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		s, err = b.d.js.CreateStream(ctx, want)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) { // another host, with another quota
			s, err = b.d.js.Stream(ctx, b.stream)
		}
	}
	if err != nil {
		return fmt.Errorf("stream %s: %w", b.stream, err)
	}
	have := s.CachedInfo().Config
	if !coveredBy(have.Subjects, b.prefix+">") || have.MaxMsgsPerSubject != 1 {
		return fmt.Errorf("stream %s is no bucket with a history of 1 on %s>: remove or rename it", b.stream, b.prefix)
	}
	if ours(have.Metadata) && (have.MaxMsgs != want.MaxMsgs || have.MaxBytes != want.MaxBytes || have.AllowMsgTTL != want.AllowMsgTTL && want.AllowMsgTTL) {
		have.MaxMsgs, have.MaxBytes, have.AllowMsgTTL = want.MaxMsgs, want.MaxBytes, have.AllowMsgTTL || want.AllowMsgTTL
		if s, err = b.d.js.UpdateStream(ctx, have); err != nil {
			return fmt.Errorf("set the quota of stream %s: %w", b.stream, err)
		}
		have = s.CachedInfo().Config
	}
	// A follower may not have the latest value yet, so with several only the leader is asked.
	b.direct.Store(have.AllowDirect && have.Replicas <= 1)
	b.ttl.Store(have.AllowMsgTTL)
	return nil
}

// named gives an error of the connection its name in the contract.
func (b *bucket) named(err error) error {
	if err != nil && b.d.isClosed() {
		return drivers.ErrClosed
	}
	return err
}

// do runs one operation, once more where the stream turns out to be gone: then there are no
// values, and it is made again.
func (b *bucket) do(ctx context.Context, what string, key []byte, op func(subject string) error) error {
	if len(key) == 0 || len(key) > drivers.MaxKey {
		return fmt.Errorf("key of %d bytes: %w: a key has 1 to %d", len(key), drivers.ErrInvalid, drivers.MaxKey)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	b.d.awaitConnection(ctx, requestTimeout)
	subject := b.prefix + escapeKey(key)
	err := op(subject)
	if errors.Is(err, nats.ErrNoResponders) || isAPIError(err, codeStreamNotFound) {
		if err = b.setup(ctx); err == nil {
			err = op(subject)
		}
	}
	if err == nil || errors.Is(err, drivers.ErrNotFound) || errors.Is(err, drivers.ErrExists) {
		return err
	}
	return fmt.Errorf("%s %s: %w", what, b.o.Name, b.named(err))
}

// stored is a value and where it stands.
type stored struct {
	value   []byte
	seq     uint64
	expires int64 // Unix ms; 0: never
}

func (s *stored) expired() bool { return s.expires != 0 && time.Now().UnixMilli() >= s.expires }

// find returns what a subject holds, expired or not, or nil.
func (b *bucket) find(ctx context.Context, subject string) (*stored, error) {
	if b.direct.Load() {
		return b.findDirect(ctx, subject)
	}
	m, err := b.d.rawMessage(ctx, b.stream, lastOf(subject))
	if isAPIError(err, codeNoMessage) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if marks(m.Header) {
		return nil, nil
	}
	return &stored{value: m.Data, seq: m.Seq, expires: expiry(m.Header)}, nil
}

// findDirect asks the stream itself, which answers with the message as it is.
func (b *bucket) findDirect(ctx context.Context, subject string) (*stored, error) {
	m, err := b.d.request(ctx, "$JS.API.DIRECT.GET."+b.stream+"."+subject, nil)
	if err != nil {
		return nil, err
	}
	switch status := m.Header.Get("Status"); status {
	case "":
	case "404":
		return nil, nil
	default:
		return nil, fmt.Errorf("answer of the server: %s %s", status, m.Header.Get("Description"))
	}
	seq, err := parseNumber(m.Header.Get(jetstream.SequenceHeader))
	if err != nil {
		return nil, fmt.Errorf("answer of the server: %w", err)
	}
	if marks(m.Header) {
		return nil, nil
	}
	return &stored{value: m.Data, seq: seq, expires: expiry(m.Header)}, nil
}

// marks tells a deletion by an operator's tool, which leaves a mark.
func marks(h nats.Header) bool { return h.Get("KV-Operation") != "" }

func expiry(h nats.Header) int64 {
	ms, err := strconv.ParseInt(h.Get(headerExpires), 10, 64)
	if err != nil {
		return 0
	}
	return ms
}

// Get implements drivers.Bucket.
func (b *bucket) Get(ctx context.Context, key []byte) ([]byte, error) {
	var s *stored
	err := b.do(ctx, "get from", key, func(subject string) (err error) {
		s, err = b.find(ctx, subject)
		return err
	})
	if err != nil {
		return nil, err
	}
	if s == nil || s.expired() {
		return nil, drivers.ErrNotFound
	}
	return s.value, nil
}

// Put implements drivers.Bucket.
func (b *bucket) Put(ctx context.Context, key, value []byte, ttl time.Duration) error {
	return b.do(ctx, "put into", key, func(subject string) error {
		return b.write(ctx, subject, value, ttl, "")
	})
}

// Create implements drivers.Bucket.
func (b *bucket) Create(ctx context.Context, key, value []byte, ttl time.Duration) error {
	return b.do(ctx, "create in", key, func(subject string) error {
		// That there is none is decided by the server; the look only tells what has expired.
		revision := uint64(0)
		for range casTries {
			err := b.write(ctx, subject, value, ttl, number(revision))
			if !isConflict(err) {
				return err
			}
			s, err := b.find(ctx, subject)
			switch {
			case err != nil:
				return err
			case s == nil:
				revision, err = b.marked(ctx, subject)
				if err != nil {
					return err
				}
			case !s.expired():
				return drivers.ErrExists
			default:
				revision = s.seq
			}
		}
		return errors.New("changed by others all the time")
	})
}

// marked is the revision of the mark that an operator's tool left, 0 for none.
func (b *bucket) marked(ctx context.Context, subject string) (uint64, error) {
	m, err := b.d.rawMessage(ctx, b.stream, lastOf(subject))
	if isAPIError(err, codeNoMessage) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return m.Seq, nil
}

// write stores a value, over the revision given if one is.
func (b *bucket) write(ctx context.Context, subject string, value []byte, ttl time.Duration, revision string) error {
	err := b.writeOnce(ctx, subject, value, ttl, revision)
	if errors.Is(err, drivers.ErrQuota) && !b.ttl.Load() && b.sweep(ctx) {
		return b.writeOnce(ctx, subject, value, ttl, revision)
	}
	return err
}

func (b *bucket) writeOnce(ctx context.Context, subject string, value []byte, ttl time.Duration, revision string) error {
	m := &nats.Msg{Subject: subject, Header: nats.Header{headerExpectStream: {b.stream}}, Data: slices.Clone(value)}
	if revision != "" {
		m.Header[headerExpectSubjectSeq] = []string{revision}
	}
	if ttl > 0 && ttl < longestTTL {
		m.Header[headerExpires] = []string{strconv.FormatInt(time.Now().Add(ttl+time.Millisecond-1).UnixMilli(), 10)}
		if b.ttl.Load() {
			m.Header[headerTTL] = []string{strconv.FormatInt(int64((ttl+time.Second-1)/time.Second), 10) + "s"}
		}
	}
	if size := msgSize(m); size > int(b.d.nc.MaxPayload()) {
		return fmt.Errorf("value of %d bytes, the server takes %d: %w", len(value), b.d.nc.MaxPayload()-headerRoom, drivers.ErrTooLarge)
	}
	_, err := b.d.publish(ctx, m)
	return quotaError(err)
}

// Error codes for a stream that is at its limit, and for a message over a stream's own.
const (
	codeStoreFailed = 10077
	codeTooLarge    = 10054
)

// quotaError names what the server refused for want of room. Its code for that is the one for
// every failure of the store, so that the text has to tell.
func quotaError(err error) error {
	var e *apiError
	if !errors.As(err, &e) {
		return err
	}
	switch {
	case e.ErrCode == codeStoreFailed && (e.Description == "maximum messages exceeded" || e.Description == "maximum bytes exceeded"):
		return fmt.Errorf("%w: %s", drivers.ErrQuota, e.Description)
	case e.ErrCode == codeTooLarge:
		return fmt.Errorf("%w: %s", drivers.ErrTooLarge, e.Description)
	}
	return err
}

// Delete implements drivers.Bucket: it removes the message itself, so that nothing stays.
func (b *bucket) Delete(ctx context.Context, key []byte) error {
	return b.do(ctx, "delete from", key, func(subject string) error {
		for range casTries {
			s, err := b.find(ctx, subject)
			if err != nil {
				return err
			}
			if s == nil || s.expired() {
				return drivers.ErrNotFound
			}
			removed, err := b.remove(ctx, s.seq)
			if removed || err != nil {
				return err
			}
		}
		return errors.New("changed by others all the time")
	})
}

// remove deletes one message; false where it was gone already.
func (b *bucket) remove(ctx context.Context, seq uint64) (bool, error) {
	in := struct {
		Seq     uint64 `json:"seq"`
		NoErase bool   `json:"no_erase"`
	}{seq, true}
	err := b.d.api(ctx, "STREAM.MSG.DELETE."+b.stream, in, nil)
	if isAPIError(err, codeNoMessage) {
		return false, nil
	}
	if isAPIError(err, codeDeleteFailed) {
		if _, look := b.d.rawMessage(ctx, b.stream, byNumber(seq)); isAPIError(look, codeNoMessage) {
			return false, nil
		}
	}
	return err == nil, err
}

// codeDeleteFailed is the server's for any deletion that failed, of what is not there too.
const codeDeleteFailed = 10043

// sweepEvery is how often a full bucket on a server without a time to live is looked
// through for what has expired.
const sweepEvery = 10 * time.Second

// sweep removes what has expired, and tells whether it removed anything.
func (b *bucket) sweep(ctx context.Context) bool {
	last, now := b.swept.Load(), time.Now().UnixNano()
	if now-last < int64(sweepEvery) || !b.swept.CompareAndSwap(last, now) {
		return false
	}
	swept := 0
	for seq := uint64(1); ; seq++ {
		m, err := b.d.rawMessage(ctx, b.stream, getRequest{Seq: seq, NextFor: b.prefix + ">"})
		if err != nil {
			if !isAPIError(err, codeNoMessage) {
				b.log.Warn("a full bucket could not be looked through for what has expired", slog.Any("error", err))
			}
			return swept > 0
		}
		seq = m.Seq
		if s := (&stored{expires: expiry(m.Header)}); s.expired() {
			if removed, err := b.remove(ctx, seq); err == nil && removed {
				swept++
			}
		}
	}
}

// escapeKey makes any bytes one token of a subject that NATS' own tools take for a key:
// what is not a letter, digit, - or _ becomes = and two hex digits.
func escapeKey(key []byte) string {
	const hex = "0123456789ABCDEF"
	var out strings.Builder
	out.Grow(len(key) + 16)
	for _, c := range key {
		switch {
		case c >= '0' && c <= '9', c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c == '_', c == '-':
			out.WriteByte(c)
		default:
			out.WriteByte('=')
			out.WriteByte(hex[c>>4])
			out.WriteByte(hex[c&15])
		}
	}
	return out.String()
}
