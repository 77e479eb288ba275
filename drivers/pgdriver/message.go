package pgdriver

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

// name settles job and id, and shows both as headers.
func name(d *drivers.Delivery, entry int64) {
	for _, v := range []struct {
		field              *string
		header, cloudevent string
	}{
		{&d.Job, abi.HeaderJob, abi.HeaderCEType},
		{&d.ID, abi.HeaderID, abi.HeaderCEID},
	} {
		if *v.field != "" {
			d.Headers.Set(v.header, *v.field)
		} else if own, ok := d.Headers.Get(v.header); ok {
			*v.field = own
		} else if own, ok := d.Headers.Get(v.cloudevent); ok {
			*v.field = own
		}
	}
	if d.ID == "" {
		d.ID = strconv.FormatInt(entry, 10)
	}
}

// decodeHeaders reads the JSON object: name to a list of values, or to one.
func decodeHeaders(s string) (drivers.Header, error) {
	h := drivers.Header{}
	if s == "" || s == "{}" {
		return h, nil
	}
	if json.Unmarshal([]byte(s), &h) == nil && h != nil {
		return h, nil
	}
	h = drivers.Header{}
	var loose map[string]any
	if err := json.Unmarshal([]byte(s), &loose); err != nil {
		return h, err
	}
	for name, v := range loose {
		values, ok := v.([]any)
		if !ok {
			values = []any{v}
		}
		for _, v := range values {
			one, ok := v.(string)
			if !ok {
				return drivers.Header{}, fmt.Errorf("the value of %q is no text", name)
			}
			h[name] = append(h[name], one)
		}
	}
	return h, nil
}

// encodeHeaders is the JSON object, without job and id, which have columns of their own.
func encodeHeaders(h drivers.Header) (string, error) {
	own := make(drivers.Header, len(h))
	for name, values := range h {
		if !strings.EqualFold(name, abi.HeaderJob) && !strings.EqualFold(name, abi.HeaderID) {
			own[name] = values
		}
	}
	if len(own) == 0 {
		return "{}", nil
	}
	b, err := json.Marshal(own)
	return string(b), err
}

func decodeErrors(s *string) ([]drivers.RunError, error) {
	if s == nil {
		return nil, nil
	}
	var es []drivers.RunError
	err := json.Unmarshal([]byte(*s), &es)
	return es, err
}

// encodeErrors is nil for none.
func encodeErrors(es []drivers.RunError) (*string, error) {
	if len(es) == 0 {
		return nil, nil
	}
	b, err := json.Marshal(es)
	s := string(b)
	return &s, err
}

// tallyOf reads the columns failures to prior.
func tallyOf(c [6]int32) drivers.Tally {
	return drivers.Tally{Failures: int(c[0]), Delays: int(c[1]), Stalls: int(c[2]), Interruptions: int(c[3]), Unrouted: int(c[4]), Prior: int(c[5])}
}

// tallies are the columns failures to prior of a batch.
type tallies [6][]int32

func (t *tallies) add(v drivers.Tally) {
	for i, n := range []int{v.Failures, v.Delays, v.Stalls, v.Interruptions, v.Unrouted, v.Prior} {
		t[i] = append(t[i], int32(min(max(n, 0), 1<<31-1)))
	}
}

// isText tells whether a text column takes s.
func isText(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

// clean makes text that a column takes.
func clean(s string) string {
	if isText(s) {
		return s
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\ufffd"), "\x00", "\ufffd")
}

// ceilMicro rounds up, so that no delay is shortened.
func ceilMicro(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	return int64((d-1)/time.Microsecond) + 1
}

// ceilTime rounds up to the server's microseconds.
func ceilTime(t time.Time) time.Time { return t.Add(time.Microsecond - 1).Truncate(time.Microsecond) }
