package sqsdriver

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
)

// Names of ours on a message.
const (
	// HeaderGroup is the message group of a message, SQS's MessageGroupId.
	HeaderGroup = "Sqs-Message-Group-Id"

	attributePacked   = "Guesthand-Packed"
	attributeEncoding = "Guesthand-Encoding"
	// headerUnreadable keeps a packed attribute that could not be read.
	headerUnreadable = "Guesthand-Unreadable"

	encodingBase64 = "base64"
	encodingEmpty  = "empty"
	emptyBody      = "-"
)

const (
	packedVersion = 1
	// attributesMax is SQS's limit for one message.
	attributesMax = 10
	// reserve is room that Send leaves for counts, state, errors and a death, so that a message
	// of ours can always be copied.
	reserve = 16 << 10
)

// packed is the one attribute with what has no attribute of its own. Its names are short,
// since they count against the message's size.
type packed struct {
	V             int                `json:"v"`
	Failures      int                `json:"f,omitempty"`
	Delays        int                `json:"d,omitempty"`
	Stalls        int                `json:"s,omitempty"`
	Interruptions int                `json:"i,omitempty"`
	Unrouted      int                `json:"u,omitempty"`
	Prior         int                `json:"p,omitempty"`
	State         []byte             `json:"state,omitempty"`
	Errors        []drivers.RunError `json:"errors,omitempty"`

	ID        string              `json:"id,omitempty"` // the first copy's, of a message that names none
	Enqueued  int64               `json:"t,omitempty"`  // Unix ms; of the first copy
	NotBefore int64               `json:"nb,omitempty"` // Unix ms; the end of a delay that hops
	Again     bool                `json:"r,omitempty"`  // it was handed out before
	Headers   map[string][]string `json:"h,omitempty"`  // that no attribute can hold
	Attrs     map[string]attr     `json:"a,omitempty"`  // there was no place for
	Death     *death              `json:"death,omitempty"`
}

// attr is a packed attribute, with its type.
type attr struct {
	Type  string `json:"t"`
	Text  string `json:"s,omitempty"`
	Bytes []byte `json:"b,omitempty"`
}

func (p *packed) carry() drivers.Carry {
	return drivers.Carry{
		Tally: drivers.Tally{
			Failures: p.Failures, Delays: p.Delays, Stalls: p.Stalls,
			Interruptions: p.Interruptions, Unrouted: p.Unrouted, Prior: p.Prior,
		},
		State: slices.Clone(p.State), Errors: slices.Clone(p.Errors),
	}
}

func (p *packed) setCarry(c drivers.Carry) {
	p.Failures, p.Delays, p.Stalls = c.Failures, c.Delays, c.Stalls
	p.Interruptions, p.Unrouted, p.Prior = c.Interruptions, c.Unrouted, c.Prior
	p.State, p.Errors = c.State, c.Errors
}

// text is the attribute's value, "" where there is nothing to say.
func (p packed) text() (string, error) {
	p.V = 0
	b, err := json.Marshal(p)
	if err != nil {
		return "", err
	}
	if string(b) == `{"v":0}` {
		return "", nil
	}
	p.V = packedVersion
	if b, err = json.Marshal(p); err != nil {
		return "", err
	}
	// JSON leaves two characters as they are that XML does not have.
	return strings.NewReplacer("\ufffe", `\ufffe`, "\uffff", `\uffff`).Replace(string(b)), nil
}

// attributes are a message's, by name.
type attributes map[string]types.MessageAttributeValue

func textAttribute(s string) types.MessageAttributeValue {
	return types.MessageAttributeValue{DataType: aws.String("String"), StringValue: aws.String(s)}
}

// size is what attributes count for in SQS: name, type and value.
func (a attributes) size() int {
	n := 0
	for name, v := range a {
		n += len(name) + len(deref(v.DataType)) + len(deref(v.StringValue)) + len(v.BinaryValue)
	}
	return n
}

// envelope is a message as SQS carries it, with the packed attribute taken apart.
type envelope struct {
	body  string
	attrs attributes // without the packed one
	p     packed
	group string // MessageGroupId
	trace string // AWSTraceHeader
}

// clone is a copy whose attributes and maps may be changed.
func (e *envelope) clone() *envelope {
	c := *e
	c.attrs = maps.Clone(e.attrs)
	if c.attrs == nil {
		c.attrs = attributes{}
	}
	c.p.Headers, c.p.Attrs = maps.Clone(e.p.Headers), maps.Clone(e.p.Attrs)
	return &c
}

// pack lays out the attributes as they are sent: at most ten, the packed one among them where
// there is anything to pack. e is not changed.
func (e *envelope) pack() (attributes, error) {
	out, p := maps.Clone(e.attrs), e.p
	if out == nil {
		out = attributes{}
	}
	text, err := p.text()
	if err != nil {
		return nil, err
	}
	if text != "" && len(out) >= attributesMax || len(out) > attributesMax {
		p.Attrs = maps.Clone(p.Attrs)
		if p.Attrs == nil {
			p.Attrs = map[string]attr{}
		}
		for _, name := range packingOrder(out)[attributesMax-1:] {
			v := out[name]
			p.Attrs[name] = attr{Type: deref(v.DataType), Text: deref(v.StringValue), Bytes: v.BinaryValue}
			delete(out, name)
		}
		if text, err = p.text(); err != nil {
			return nil, err
		}
	}
	if text != "" {
		out[attributePacked] = textAttribute(text)
	}
	return out, nil
}

// packingOrder lists names with those first that keep an attribute of their own longest: how
// to read the body, id and job, then the producer's, then our other ones.
func packingOrder(a attributes) []string {
	rank := func(name string) int {
		switch {
		case name == attributeEncoding:
			return 0
		case strings.EqualFold(name, abi.HeaderJob), strings.EqualFold(name, abi.HeaderID):
			return 1
		case strings.EqualFold(name, abi.HeaderTraceparent):
			return 2
		case hasFoldedPrefix(name, abi.HeaderPrefix):
			return 4
		}
		return 3
	}
	names := slices.Sorted(maps.Keys(a))
	slices.SortStableFunc(names, func(x, y string) int { return rank(x) - rank(y) })
	return names
}

// errNewer is a packed attribute of a later version than ours.
var errNewer = errors.New("packed by a newer version")

// open takes a received message apart. An error other than errNewer says what is broken; the
// envelope is usable all the same.
func open(m *types.Message) (*envelope, error) {
	e := &envelope{
		body: deref(m.Body), attrs: attributes{},
		group: m.Attributes[string(types.MessageSystemAttributeNameMessageGroupId)],
		trace: m.Attributes[string(types.MessageSystemAttributeNameAWSTraceHeader)],
	}
	for name, v := range m.MessageAttributes {
		if name != attributePacked {
			e.attrs[name] = v
		}
	}
	raw, ok := m.MessageAttributes[attributePacked]
	if !ok {
		return e, nil
	}
	text := deref(raw.StringValue)
	if err := json.Unmarshal([]byte(text), &e.p); err != nil {
		if e.p.V > packedVersion {
			return e, errNewer
		}
		e.p = packed{Headers: map[string][]string{headerUnreadable: {text}}}
		return e, fmt.Errorf("attribute %s: %w", attributePacked, err)
	}
	if e.p.V > packedVersion {
		return e, errNewer
	}
	for name, v := range e.p.Attrs {
		a := types.MessageAttributeValue{DataType: aws.String(v.Type)}
		if strings.HasPrefix(v.Type, "Binary") {
			a.BinaryValue = v.Bytes
		} else {
			a.StringValue = aws.String(v.Text)
		}
		e.attrs[name] = a
	}
	e.p.Attrs = nil
	return e, nil
}

// headers are the message's as the contract has them.
func (e *envelope) headers() drivers.Header {
	h := make(drivers.Header, len(e.attrs)+len(e.p.Headers)+1)
	for name, v := range e.attrs {
		if name != attributeEncoding {
			h[name] = valuesOf(v)
		}
	}
	for name, values := range e.p.Headers {
		h[name] = slices.Clone(values)
	}
	if e.group != "" {
		h[HeaderGroup] = []string{e.group}
	}
	return h
}

const arrayType = "String.Array"

func valuesOf(v types.MessageAttributeValue) []string {
	if v.StringValue == nil {
		return []string{base64.StdEncoding.EncodeToString(v.BinaryValue)}
	}
	if deref(v.DataType) == arrayType {
		var values []string
		if json.Unmarshal([]byte(*v.StringValue), &values) == nil && len(values) > 0 {
			return values
		}
	}
	return []string{*v.StringValue}
}

// setHeader gives a header an attribute, or packs it where SQS has no place for such a name or
// value.
func (e *envelope) setHeader(name string, values []string) error {
	if len(values) == 0 {
		return nil
	}
	value := types.MessageAttributeValue{}
	if len(values) == 1 {
		value = textAttribute(values[0])
	} else {
		b, err := json.Marshal(values)
		if err != nil {
			return err
		}
		value.DataType, value.StringValue = aws.String(arrayType), aws.String(string(b))
	}
	if legalName(name) && *value.StringValue != "" && !slices.ContainsFunc(values, notXML) {
		e.attrs[name] = value
		return nil
	}
	if e.p.Headers == nil {
		e.p.Headers = map[string][]string{}
	}
	e.p.Headers[name] = slices.Clone(values)
	return nil
}

// legalName follows SQS's rules for the names of attributes.
func legalName(name string) bool {
	if name == "" || len(name) > 256 || hasFoldedPrefix(name, "AWS.") || hasFoldedPrefix(name, "Amazon.") ||
		name[0] == '.' || name[len(name)-1] == '.' || strings.Contains(name, "..") {
		return false
	}
	for i := range len(name) {
		c := name[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.') {
			return false
		}
	}
	return true
}

func hasFoldedPrefix(s, prefix string) bool {
	return len(s) >= len(prefix) && strings.EqualFold(s[:len(prefix)], prefix)
}

// notXML tells whether a text has bytes or characters that a message cannot hold.
func notXML(s string) bool {
	if !utf8.ValidString(s) {
		return true
	}
	return strings.ContainsFunc(s, func(r rune) bool {
		return r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == 0xfffe || r == 0xffff
	})
}

// xmlText replaces what a message cannot hold.
func xmlText(s string) string {
	return strings.Map(func(r rune) rune {
		if notXML(string(r)) {
			return utf8.RuneError
		}
		return r
	}, strings.ToValidUTF8(s, string(utf8.RuneError)))
}

// setPayload makes a body of any bytes.
func (e *envelope) setPayload(p []byte) {
	switch {
	case len(p) == 0:
		e.body = emptyBody
		e.attrs[attributeEncoding] = textAttribute(encodingEmpty)
	case notXML(string(p)):
		e.body = base64.StdEncoding.EncodeToString(p)
		e.attrs[attributeEncoding] = textAttribute(encodingBase64)
	default:
		e.body = string(p)
		delete(e.attrs, attributeEncoding)
	}
}

// payload is the producer's bytes; with an error, the raw ones.
func (e *envelope) payload() ([]byte, error) {
	v, ok := e.attrs[attributeEncoding]
	if !ok {
		return []byte(e.body), nil
	}
	switch encoding := deref(v.StringValue); encoding {
	case encodingEmpty:
		return nil, nil
	case encodingBase64:
		p, err := base64.StdEncoding.DecodeString(e.body)
		if err != nil {
			return []byte(e.body), fmt.Errorf("body: %w", err)
		}
		return p, nil
	default:
		return []byte(e.body), fmt.Errorf("attribute %s: unknown encoding %q", attributeEncoding, encoding)
	}
}

// notBefore is when the message may be handed out, the zero time for now.
func (e *envelope) notBefore() time.Time {
	var due time.Time
	for name, v := range e.attrs {
		if strings.EqualFold(name, abi.HeaderNotBefore) {
			if t, err := time.Parse(time.RFC3339Nano, deref(v.StringValue)); err == nil && t.After(due) {
				due = t
			}
		}
	}
	if nb := time.UnixMilli(e.p.NotBefore); e.p.NotBefore > 0 && nb.After(due) {
		due = nb
	}
	return due
}

// unixMilliUp rounds up, so that a due time is never early.
func unixMilliUp(t time.Time) int64 {
	return (t.UnixNano() + int64(time.Millisecond) - 1) / int64(time.Millisecond)
}
