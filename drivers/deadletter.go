package drivers

import (
	"encoding/base64"
	"encoding/json"
	"time"
	"unicode/utf8"
)

// DeadLetter is the one view of a dead letter on every broker: what `guesthand dead` prints,
// the API answers and the page shows.
type DeadLetter struct {
	ID       string // the message's id; may repeat
	Entry    string // the dead letter's own name in its store; does not repeat
	Job      string
	Queue    string
	Reason   string
	Outcome  string
	Cause    string
	Tally    Tally
	Replays  int
	Enqueued time.Time
	Died     time.Time
	Digest   string
	Worker   string
	Headers  Header // the original's own, as it was delivered; no Guesthand-Death-*
	Payload  []byte
	Errors   []RunError
}

type deadLetterJSON struct {
	ID            string     `json:"id"`
	Entry         string     `json:"entry"`
	Job           string     `json:"job"`
	Queue         string     `json:"queue"`
	Reason        string     `json:"reason"`
	Outcome       string     `json:"outcome"`
	Cause         string     `json:"cause"`
	Failures      int        `json:"failures"`
	Delays        int        `json:"delays"`
	Stalls        int        `json:"stalls"`
	Interruptions int        `json:"interruptions"`
	Attempt       int        `json:"attempt"`
	Replays       int        `json:"replays"`
	Enqueued      time.Time  `json:"enqueued"`
	Died          time.Time  `json:"died"`
	Digest        string     `json:"digest"`
	Worker        string     `json:"worker"`
	Headers       Header     `json:"headers"`
	Payload       *string    `json:"payload,omitempty"`
	PayloadBase64 *string    `json:"payload_base64,omitempty"`
	Errors        []RunError `json:"errors"`
}

// LastAttempt is the number of the run the message died of. A message that died without a
// run counts none.
func (d DeadLetter) LastAttempt() int { return d.Tally.Attempt() - 1 }

// MarshalJSON writes the form of the specification: the payload as text where it is UTF-8,
// as base64 otherwise.
func (d DeadLetter) MarshalJSON() ([]byte, error) {
	j := deadLetterJSON{
		ID: d.ID, Entry: d.Entry, Job: d.Job, Queue: d.Queue, Reason: d.Reason,
		Outcome: d.Outcome, Cause: d.Cause,
		Failures: d.Tally.Failures, Delays: d.Tally.Delays, Stalls: d.Tally.Stalls,
		Interruptions: d.Tally.Interruptions, Attempt: d.LastAttempt(), Replays: d.Replays,
		Enqueued: d.Enqueued.UTC(), Died: d.Died.UTC(), Digest: d.Digest, Worker: d.Worker,
		Headers: d.Headers, Errors: d.Errors,
	}
	if j.Headers == nil {
		j.Headers = Header{}
	}
	if j.Errors == nil {
		j.Errors = []RunError{}
	}
	if utf8.Valid(d.Payload) {
		s := string(d.Payload)
		j.Payload = &s
	} else {
		s := base64.StdEncoding.EncodeToString(d.Payload)
		j.PayloadBase64 = &s
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (d *DeadLetter) UnmarshalJSON(b []byte) error {
	var j deadLetterJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	counts := Tally{Failures: j.Failures, Delays: j.Delays, Stalls: j.Stalls, Interruptions: j.Interruptions}
	counts.Prior = max(0, j.Attempt-(counts.Attempt()-1))
	*d = DeadLetter{
		ID: j.ID, Entry: j.Entry, Job: j.Job, Queue: j.Queue, Reason: j.Reason,
		Outcome: j.Outcome, Cause: j.Cause, Tally: counts, Replays: j.Replays,
		Enqueued: j.Enqueued, Died: j.Died, Digest: j.Digest, Worker: j.Worker,
		Headers: j.Headers, Errors: j.Errors,
	}
	switch {
	case j.PayloadBase64 != nil:
		p, err := base64.StdEncoding.DecodeString(*j.PayloadBase64)
		if err != nil {
			return err
		}
		d.Payload = p
	case j.Payload != nil:
		d.Payload = []byte(*j.Payload)
	}
	return nil
}
