package natsdriver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

const (
	recordVersion = 1
	// casTries is how often a write is tried against writers of older deliveries.
	casTries = 4
	// tallyKeep is how long a forgotten tally stays: longer than any delay, and each return of
	// a message writes its tally anew.
	tallyKeep = abi.MaxDelay + 35*24*time.Hour
	// headerRest shows a tally's not-before time, Unix ms, to those who count.
	headerRest = "Guesthand-Tally-Not-Before"
)

// record is a message's tally as the bucket keeps it. Its names are short because every
// failure writes one.
type record struct {
	V             int                `json:"v"`
	Failures      int                `json:"f,omitempty"`
	Delays        int                `json:"d,omitempty"`
	Stalls        int                `json:"s,omitempty"`
	Interruptions int                `json:"i,omitempty"`
	Unrouted      int                `json:"u,omitempty"`
	Prior         int                `json:"p,omitempty"`
	State         []byte             `json:"state,omitempty"`
	Errors        []drivers.RunError `json:"errors,omitempty"`

	N     uint64 `json:"n"`            // deliveries accounted for, as the server counts them
	C     int64  `json:"c,omitempty"`  // the consumer's creation, Unix ns: whose count n is
	E     uint64 `json:"e,omitempty"`  // the journal's epoch n belongs to, 0 without one
	W     string `json:"w,omitempty"`  // who wrote it
	Rest  int64  `json:"nb,omitempty"` // not before, Unix ns
	Fresh int    `json:"k,omitempty"`  // stalls nobody was told of yet
}

func (r *record) carry() drivers.Carry {
	if r == nil {
		return drivers.Carry{}
	}
	return drivers.Carry{
		Tally: drivers.Tally{
			Failures: r.Failures, Delays: r.Delays, Stalls: r.Stalls,
			Interruptions: r.Interruptions, Unrouted: r.Unrouted, Prior: r.Prior,
		},
		State: r.State, Errors: r.Errors,
	}
}

func (r *record) setCarry(c drivers.Carry) {
	r.Failures, r.Delays, r.Stalls = c.Failures, c.Delays, c.Stalls
	r.Interruptions, r.Unrouted, r.Prior = c.Interruptions, c.Unrouted, c.Prior
	r.State, r.Errors = c.State, c.Errors
}

// tally is the bucket of one stream, as one consumer uses it.
type tally struct {
	d      *Driver
	stream string // KV_<bucket>
	prefix string // $KV.<bucket>.<consumer>.
	log    *slog.Logger
}

func newTally(d *Driver, n names, log *slog.Logger) *tally {
	return &tally{
		d: d, stream: "KV_" + n.bucket, log: log,
		prefix: "$KV." + n.bucket + "." + keyToken(n.consumer) + ".",
	}
}

// key is a message's: sequence and time stored name it even where the stream was made anew.
func (t *tally) key(seq uint64, stamp int64) string {
	return t.prefix + number(seq) + "." + stampToken(stamp)
}

// get returns a key's record and revision: nil and 0 for none. A record that cannot be read
// is reported and counts as empty; its revision allows to replace it.
func (t *tally) get(ctx context.Context, key string) (*record, uint64, error) {
	m, err := t.d.rawMessage(ctx, t.stream, lastOf(key))
	if isAPIError(err, codeNoMessage) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("tally %s: %w", key, err)
	}
	if len(m.Data) == 0 {
		return nil, m.Seq, nil // deleted by an operator's tool, which leaves a mark
	}
	r := &record{}
	if err := json.Unmarshal(m.Data, r); err != nil && r.V <= recordVersion {
		t.log.Error("a message's tally cannot be read and is taken for empty", slog.String("key", key), slog.Any("error", err))
		return &record{}, m.Seq, nil
	}
	return r, m.Seq, nil
}

// put writes a record over the revision given, 0 for none, and returns the new one.
func (t *tally) put(ctx context.Context, key string, r *record, revision uint64) (uint64, error) {
	r.V = recordVersion
	body, err := json.Marshal(r)
	if err != nil {
		return 0, err
	}
	m := nats.NewMsg(key)
	m.Data = body
	m.Header[headerExpectSubjectSeq] = []string{number(revision)}
	m.Header[headerExpectStream] = []string{t.stream}
	if r.Rest > 0 {
		m.Header[headerRest] = []string{strconv.FormatInt(r.Rest/1e6, 10)}
	}
	rev, err := t.d.publish(ctx, m)
	if err != nil {
		return 0, fmt.Errorf("tally %s: %w", key, err)
	}
	return rev, nil
}

// drop removes a finished message's record. One that stays is found by nobody again and
// goes with the bucket's age.
func (t *tally) drop(ctx context.Context, revision uint64) {
	if err := t.d.deleteMessage(ctx, t.stream, revision); err != nil {
		t.log.Debug("the tally of a finished message stays", slog.Uint64("revision", revision), slog.Any("error", err))
	}
}

// birth is what the bucket knows about the consumer: messages up to Seq may have tallies
// though the consumer hands them out for the first time.
type birth struct {
	Seq      uint64 `json:"seq"`
	Consumer int64  `json:"consumer"` // its creation, Unix ns
	Stream   int64  `json:"stream"`
	Server   string `json:"server"` // the server process that was seen last
}

// readBirth returns nil where no consumer was seen yet.
func (t *tally) readBirth(ctx context.Context) (*birth, uint64, error) {
	m, err := t.d.rawMessage(ctx, t.stream, lastOf(t.prefix+"birth"))
	if isAPIError(err, codeNoMessage) {
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, fmt.Errorf("birth mark: %w", err)
	}
	b := &birth{}
	if err := json.Unmarshal(m.Data, b); err != nil {
		return &birth{Seq: math.MaxUint64}, m.Seq, nil // unknown: look everything up until it is written anew
	}
	return b, m.Seq, nil
}

// updateBirth changes the mark; change returns false to leave it.
func (t *tally) updateBirth(ctx context.Context, change func(b *birth) bool) (birth, error) {
	for range 8 * casTries {
		b, rev, err := t.readBirth(ctx)
		if err != nil {
			return birth{}, err
		}
		if b == nil {
			b = &birth{}
		}
		if !change(b) {
			return *b, nil
		}
		body, err := json.Marshal(b)
		if err != nil {
			return birth{}, err
		}
		m := nats.NewMsg(t.prefix + "birth")
		m.Data = body
		m.Header[headerExpectSubjectSeq] = []string{number(rev)}
		if _, err = t.d.publish(ctx, m); err == nil {
			return *b, nil
		}
		if !isConflict(err) {
			return birth{}, fmt.Errorf("birth mark: %w", err)
		}
	}
	return birth{}, errors.New("birth mark: changed by others all the time")
}
