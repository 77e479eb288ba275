package redisdriver

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

func text(v any) string {
	s, _ := v.(string)
	return s
}

// number reads an integer, as itself or as text; 0 for anything else.
func number(v any) int64 {
	switch v := v.(type) {
	case int64:
		return v
	case string:
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return 0
		}
		return n
	}
	return 0
}

// decodeHeaders reads the JSON object: name to a list of values, or to one.
func decodeHeaders(s string) (drivers.Header, error) {
	h := drivers.Header{}
	if s == "" {
		return h, nil
	}
	if json.Unmarshal([]byte(s), &h) == nil && h != nil {
		return h, nil
	}
	var loose map[string]any
	if err := json.Unmarshal([]byte(s), &loose); err != nil {
		return drivers.Header{}, err
	}
	h = drivers.Header{}
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

// encodeHeaders is the JSON object, without job and id, which have fields of their own; ""
// for none.
func encodeHeaders(h drivers.Header) (string, error) {
	own := make(drivers.Header, len(h))
	for name, values := range h {
		if !strings.EqualFold(name, abi.HeaderJob) && !strings.EqualFold(name, abi.HeaderID) {
			own[name] = values
		}
	}
	if len(own) == 0 {
		return "", nil
	}
	b, err := json.Marshal(own)
	return string(b), err
}

// carryJSON is a carry in the hash, without stalls and state, which have fields of their own.
type carryJSON struct {
	Failures      int                `json:"failures,omitempty"`
	Delays        int                `json:"delays,omitempty"`
	Interruptions int                `json:"interruptions,omitempty"`
	Unrouted      int                `json:"unrouted,omitempty"`
	Prior         int                `json:"prior,omitempty"`
	Errors        []drivers.RunError `json:"errors,omitempty"`
}

func decodeCarry(s string) (drivers.Carry, error) {
	if s == "" || s == "{}" {
		return drivers.Carry{}, nil
	}
	var j carryJSON
	if err := json.Unmarshal([]byte(s), &j); err != nil {
		return drivers.Carry{}, err
	}
	return drivers.Carry{Errors: j.Errors, Tally: drivers.Tally{Failures: j.Failures, Delays: j.Delays,
		Interruptions: j.Interruptions, Unrouted: j.Unrouted, Prior: j.Prior}}, nil
}

func encodeCarry(c drivers.Carry) (string, error) {
	b, err := json.Marshal(carryJSON{Failures: c.Failures, Delays: c.Delays, Interruptions: c.Interruptions,
		Unrouted: c.Unrouted, Prior: c.Prior, Errors: c.Errors})
	return string(b), err
}
