package cfdriver

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

const (
	envelopeVersion = 1
	// maxMessage is Cloudflare's limit, 128 KB of 1000 bytes each, and metadataBytes what it
	// counts for itself.
	maxMessage    = 128_000
	metadataBytes = 100
	// reserve is room that Send leaves for counts, state, errors and a death, so that a message
	// of ours can always be copied.
	reserve = 16_000
)

// Content types as Cloudflare names them. json and bytes come in base64.
const (
	contentText  = "text"
	contentJSON  = "json"
	contentBytes = "bytes"
)

// values are one header's: a text, or a list of texts.
type values []string

// UnmarshalJSON implements json.Unmarshaler.
func (v *values) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '[' {
		return json.Unmarshal(b, (*[]string)(v))
	}
	var one string
	if err := json.Unmarshal(b, &one); err != nil {
		return err
	}
	*v = values{one}
	return nil
}

// MarshalJSON implements json.Marshaler.
func (v values) MarshalJSON() ([]byte, error) {
	if len(v) == 1 {
		return marshal(v[0])
	}
	return marshal([]string(v))
}

// envelope is the body of a message of ours. What the producer may write stands first; the rest
// is the driver's, with short names since they count against the message's size.
type envelope struct {
	Version int               `json:"guesthand"`
	ID      string            `json:"id,omitempty"`
	Job     string            `json:"job,omitempty"`
	Headers map[string]values `json:"headers,omitempty"`
	Text    *string           `json:"text,omitempty"`
	Base64  *string           `json:"base64,omitempty"`
	JSON    json.RawMessage   `json:"json,omitempty"`

	packed
	Death *death `json:"death,omitempty"`
}

// packed is what a message carries from one run to the next.
type packed struct {
	Failures      int                `json:"f,omitempty"`
	Delays        int                `json:"d,omitempty"`
	Stalls        int                `json:"s,omitempty"`
	Interruptions int                `json:"i,omitempty"`
	Unrouted      int                `json:"u,omitempty"`
	Prior         int                `json:"p,omitempty"`
	State         []byte             `json:"state,omitempty"`
	Errors        []drivers.RunError `json:"errors,omitempty"`
	Enqueued      int64              `json:"t,omitempty"`  // Unix ms; of the first copy
	NotBefore     int64              `json:"nb,omitempty"` // Unix ms; the end of a delay that hops
	Again         bool               `json:"r,omitempty"`  // it was handed out before
}

func (p *packed) carry() drivers.Carry {
	return cloneCarry(drivers.Carry{
		Tally: drivers.Tally{
			Failures: p.Failures, Delays: p.Delays, Stalls: p.Stalls,
			Interruptions: p.Interruptions, Unrouted: p.Unrouted, Prior: p.Prior,
		},
		State: p.State, Errors: p.Errors,
	})
}

func (p *packed) setCarry(c drivers.Carry) {
	c = cloneCarry(c)
	p.Failures, p.Delays, p.Stalls = c.Failures, c.Delays, c.Stalls
	p.Interruptions, p.Unrouted, p.Prior = c.Interruptions, c.Unrouted, c.Prior
	p.State, p.Errors = c.State, c.Errors
}

func cloneCarry(c drivers.Carry) drivers.Carry {
	c.State, c.Errors = slices.Clone(c.State), slices.Clone(c.Errors)
	return c
}

// content is a message as it came: its envelope, made up for a body that is none, and the payload.
type content struct {
	e       envelope
	payload []byte
	raw     []byte // the body's own bytes
	kind    string // its content type
	broken  bool   // and must be found so by everybody
}

var (
	// errNewer is an envelope of a later version than ours.
	errNewer = errors.New("an envelope of a newer version")
	mark     = []byte(`"guesthand"`)
)

// open takes a message apart. An error other than errNewer says what is broken; the content is
// usable all the same.
func open(m *message) (*content, error) {
	c := &content{kind: m.Metadata.ContentType, raw: []byte(m.Body)}
	err := c.open(m.Body)
	c.broken = err != nil
	return c, err
}

// open reads the body of one content type.
func (c *content) open(body string) error {
	c.payload = c.raw
	switch c.kind {
	case contentText, "":
	case contentJSON, contentBytes:
		b, err := base64.StdEncoding.DecodeString(body)
		if err != nil {
			return fmt.Errorf("body of content type %s: %w", c.kind, err)
		}
		c.raw, c.payload = b, b
	default:
		return fmt.Errorf("content type %q cannot be read outside Workers; send text, json or bytes", c.kind)
	}
	if !bytes.HasPrefix(bytes.TrimLeft(c.raw, " \t\r\n"), []byte("{")) || !bytes.Contains(c.raw, mark) {
		return nil
	}
	return c.unwrap()
}

// unwrap reads an envelope, where the body is one.
func (c *content) unwrap() error {
	var e envelope
	err := json.Unmarshal(c.raw, &e)
	if err != nil || e.Version != envelopeVersion {
		switch version := versionOf(c.raw); {
		case version < 1:
			return nil // somebody else's member of that name, or none
		case version > envelopeVersion:
			return errNewer
		}
	}
	if err != nil {
		return fmt.Errorf("envelope: %w", err)
	}
	payload, err := e.payload()
	if err != nil {
		return fmt.Errorf("envelope: %w", err)
	}
	c.e, c.payload = e, payload
	c.e.Text, c.e.Base64, c.e.JSON = nil, nil, nil
	return nil
}

// versionOf is an envelope's version, whatever else is wrong with it; 0 for what is none.
func versionOf(body []byte) (version int) {
	var probe struct {
		Version json.RawMessage `json:"guesthand"`
	}
	if json.Unmarshal(body, &probe) != nil || json.Unmarshal(probe.Version, &version) != nil {
		return 0
	}
	return version
}

func (e *envelope) payload() ([]byte, error) {
	switch {
	case e.Base64 != nil:
		b, err := base64.StdEncoding.DecodeString(*e.Base64)
		return b, wrap(err, "base64")
	case e.Text != nil:
		return []byte(*e.Text), nil
	}
	return slices.Clone(e.JSON), nil
}

// pack lays out an envelope with its payload, in the shorter of the two forms. e is not changed.
func (e envelope) pack(payload []byte) (string, error) {
	e.Version = envelopeVersion
	if len(payload) > 0 {
		if text, ok := plain(payload); ok {
			e.Text = &text
		} else {
			b := base64.StdEncoding.EncodeToString(payload)
			e.Base64 = &b
		}
	}
	b, err := marshal(e)
	return string(b), err
}

// plain is the payload as a JSON text, where that is not longer than base64.
func plain(payload []byte) (string, bool) {
	if !utf8.Valid(payload) {
		return "", false
	}
	escapes := 0
	for _, c := range payload {
		switch {
		case c == '"' || c == '\\' || c == '\n' || c == '\r' || c == '\t':
			escapes++
		case c < ' ':
			escapes += 5
		}
	}
	escapes += 3 * bytes.Count(payload, []byte("\u2028")) // JSON written by Go escapes these two
	escapes += 3 * bytes.Count(payload, []byte("\u2029"))
	return string(payload), escapes <= len(payload)/3
}

// marshal is json.Marshal without escapes that only HTML needs.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// headers are the message's as the contract has them: id and job stand among them.
func (e *envelope) headers() drivers.Header {
	h := make(drivers.Header, len(e.Headers)+4)
	for name, v := range e.Headers {
		h[name] = slices.Clone([]string(v))
	}
	if e.ID != "" {
		h.Set(abi.HeaderID, e.ID)
	}
	if e.Job != "" {
		h.Set(abi.HeaderJob, e.Job)
	}
	return h
}

// setHeaders takes the headers over; id and job have places of their own.
func (e *envelope) setHeaders(h drivers.Header) {
	e.Headers = make(map[string]values, len(h))
	for name, v := range h {
		if len(v) > 0 && !strings.EqualFold(name, abi.HeaderID) && !strings.EqualFold(name, abi.HeaderJob) {
			e.Headers[name] = slices.Clone(v)
		}
	}
}

// clone is a copy whose headers may be changed.
func (e envelope) clone() envelope {
	e.Headers = maps.Clone(e.Headers)
	e.setCarry(e.carry())
	return e
}

// notBefore is when the message may be handed out, the zero time for now.
func (e *envelope) notBefore() (due time.Time) {
	for name, v := range e.Headers {
		if strings.EqualFold(name, abi.HeaderNotBefore) && len(v) > 0 {
			if t, err := time.Parse(time.RFC3339Nano, v[0]); err == nil && t.After(due) {
				due = t
			}
		}
	}
	if nb := time.UnixMilli(e.NotBefore); e.NotBefore > 0 && nb.After(due) {
		due = nb
	}
	return due
}

// unixMilliUp rounds up, so that a due time is never early.
func unixMilliUp(t time.Time) int64 {
	return (t.UnixNano() + int64(time.Millisecond) - 1) / int64(time.Millisecond)
}
