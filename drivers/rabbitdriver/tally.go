package rabbitdriver

import (
	"encoding/json"
	"fmt"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/guesthand/guesthand/drivers"
)

// headerTally is the one header that a copy has more than its original.
const headerTally = "guesthand-tally"

const recordVersion = 1

// record is what a copy carries, as JSON. Its names are short because every failure writes one.
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

	ID       string `json:"id,omitempty"`  // of a message that brought none
	Job      string `json:"job,omitempty"` // of a message that had it in its routing key
	Enqueued int64  `json:"e,omitempty"`   // Unix ms
	Out      bool   `json:"o,omitempty"`   // it was handed out before
	Rest     int64  `json:"nb,omitempty"`  // not before, Unix ms
	Whole    int64  `json:"w,omitempty"`   // the whole delay, ms
	Fresh    int    `json:"k,omitempty"`   // stalls nobody was told of yet
}

func (r *record) carry() drivers.Carry {
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

// rest sets a delay that begins now.
func (r *record) rest(d time.Duration) {
	r.Rest, r.Whole = 0, 0
	if d > 0 {
		r.Rest = time.Now().Add(d + time.Millisecond - 1).UnixMilli()
		r.Whole = d.Milliseconds()
	}
}

// readRecord returns nil where a message has none.
func readRecord(h amqp.Table) (*record, error) {
	var text []byte
	switch v := h[headerTally].(type) {
	case nil:
		return nil, nil
	case string:
		text = []byte(v)
	case []byte:
		text = v
	default:
		return nil, fmt.Errorf("header %s is a %T", headerTally, v)
	}
	r := &record{}
	if err := json.Unmarshal(text, r); err != nil && r.V <= recordVersion {
		return nil, fmt.Errorf("header %s: %w", headerTally, err)
	}
	return r, nil
}

func (r *record) text() (string, error) {
	r.V = recordVersion
	b, err := json.Marshal(r)
	return string(b), err
}
