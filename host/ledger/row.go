package ledger

import (
	"encoding/base64"
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/guesthand/guesthand/abi"
)

// plainSuccess is true for the rows that are many and tell little: they are packed, and
// dropped first. A success that the broker did not confirm is not one of them.
func (r *Row) plainSuccess() bool {
	return r.Outcome == abi.Success.String() && r.Settlement == Acked
}

// size is about what a buffered row keeps in memory, bytes.
func (r *Row) size() int {
	const fixed = 256
	return fixed + len(r.ID) + len(r.Error) + len(r.Result)
}

// timeFormat is RFC 3339 with nanoseconds, all nine digits.
const timeFormat = "2006-01-02T15:04:05.000000000Z07:00"

type rowJSON struct {
	ID           string  `json:"id"`
	Queue        string  `json:"queue"`
	Job          string  `json:"job"`
	Attempt      int     `json:"attempt"`
	Outcome      string  `json:"outcome"`
	Cause        string  `json:"cause"`
	Code         int     `json:"code"`
	DelayMS      int64   `json:"delay_ms"`
	Error        string  `json:"error"`
	Started      *string `json:"started"`
	Finished     *string `json:"finished"`
	Settlement   string  `json:"settlement"`
	Digest       string  `json:"digest"`
	Worker       string  `json:"worker"`
	Result       string  `json:"result"`
	ResultBase64 *string `json:"result_base64,omitempty"`
}

// MarshalJSON writes every field always: times in UTC, or null where not known, the delay in
// milliseconds, a result that is not UTF-8 as result_base64 beside an empty result.
func (r Row) MarshalJSON() ([]byte, error) {
	j := rowJSON{
		ID: r.ID, Queue: r.Queue, Job: r.Job, Attempt: r.Attempt, Outcome: r.Outcome, Cause: r.Cause,
		Code: r.Code, DelayMS: r.Delay.Milliseconds(), Error: r.Error,
		Started: timeText(r.Started), Finished: timeText(r.Finished),
		Settlement: r.Settlement, Digest: r.Digest, Worker: r.Worker,
	}
	if utf8.Valid(r.Result) {
		j.Result = string(r.Result)
	} else {
		s := base64.StdEncoding.EncodeToString(r.Result)
		j.ResultBase64 = &s
	}
	return json.Marshal(j)
}

// UnmarshalJSON reads what MarshalJSON writes.
func (r *Row) UnmarshalJSON(b []byte) error {
	var j rowJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	row := Row{
		ID: j.ID, Queue: j.Queue, Job: j.Job, Attempt: j.Attempt, Outcome: j.Outcome, Cause: j.Cause,
		Code: j.Code, Delay: time.Duration(j.DelayMS) * time.Millisecond, Error: j.Error,
		Settlement: j.Settlement, Digest: j.Digest, Worker: j.Worker,
	}
	var err error
	if row.Started, err = parseTime(j.Started); err != nil {
		return err
	}
	if row.Finished, err = parseTime(j.Finished); err != nil {
		return err
	}
	switch {
	case j.ResultBase64 != nil:
		if row.Result, err = base64.StdEncoding.DecodeString(*j.ResultBase64); err != nil {
			return err
		}
	case j.Result != "":
		row.Result = []byte(j.Result)
	}
	*r = row
	return nil
}

func timeText(t time.Time) *string {
	if t.IsZero() {
		return nil
	}
	s := t.UTC().Format(timeFormat)
	return &s
}

func parseTime(s *string) (time.Time, error) {
	if s == nil {
		return time.Time{}, nil
	}
	return time.Parse(time.RFC3339Nano, *s)
}
