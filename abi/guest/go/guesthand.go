//go:build wasip1

// Package guesthand is the guest SDK for Go: what a handler uses of its host. It is one file
// without dependencies; import it, or copy it into a project.
//
// A handler is a function that gets a message and returns an error. It becomes a module in one
// of two forms. The native one is a reactor whose instances serve many messages, built with
// GOOS=wasip1 GOARCH=wasm go build -buildmode=c-shared:
//
//	func main() {} // needed by the compiler, never called
//
//	//go:wasmexport handle
//	func export() int64 { return guesthand.Run(handle) }
//
//	func handle(m *guesthand.Message) error {
//		var o Order
//		if err := m.JSON(&o); err != nil {
//			return err // a payload that is no Order: permanent
//		}
//		if err := charge(o); errors.Is(err, errBusy) {
//			return guesthand.RetryAfter(err, 30*time.Second)
//		} else if err != nil {
//			return err // a retry
//		}
//		return m.WriteJSON(receipt{o.ID})
//	}
//
// The command form is an ordinary program, built without -buildmode, which runs once for each
// message; a file has one form or the other:
//
//	func main() { guesthand.Main(handle) }
//
// # Outcomes
//
// A nil error is success and any other error a retry with the policy's backoff, unless it was
// marked: [Permanent], [Reject], [RetryAfter], [Delay], [Pause], [Retry]. A marked error stays
// marked when it is wrapped, and of several marks the outermost wins. A panic is a retry whose
// error text is the panic's.
//
// # What the host grants
//
// [Fetch], [Send] and the KV functions answer [ErrNotGranted] until the host's configuration
// grants them to this handler.
package guesthand

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
	"unsafe"
)

// Run handles the message that the host is asking about and returns the outcome as a native
// module's handle must.
func Run(handle func(*Message) error) int64 {
	code, delay := finish(handle(&Message{}))
	return int64(code) | milliseconds(delay)<<8
}

// Main handles the message and exits with its outcome, as a command must. An exit code holds
// whole seconds: a delay is rounded up, and one over 194 days is a retry that says so.
func Main(handle func(*Message) error) {
	const max = 1<<24 - 1
	code, delay := finish(handle(&Message{}))
	seconds := (milliseconds(delay) + 999) / 1000
	if seconds > max {
		errorWrite("a delay of " + delay.String() + " does not fit a command's exit code")
		code, seconds = codeRetry, 0
	}
	os.Exit(int(code) | int(seconds)<<8)
}

// finish tells the host the error's text.
func finish(err error) (Code, time.Duration) {
	if err == nil {
		return codeSuccess, 0
	}
	if o, bare := err.(*Outcome); !bare || o.Err != nil {
		errorWrite(err.Error())
	}
	var o *Outcome
	if errors.As(err, &o) {
		return o.Code, o.Delay
	}
	return codeRetry, 0
}

// milliseconds rounds up: a delay is never shortened.
func milliseconds(d time.Duration) int64 {
	ms := d.Milliseconds()
	if d > time.Duration(ms)*time.Millisecond {
		ms++
	}
	return max(0, ms)
}

// Code is an outcome's number.
type Code uint8

// The codes of marked errors.
const (
	codeSuccess    Code = 0
	codeRetry      Code = 1
	codeRetryAfter Code = 10
	codeDelay      Code = 11
	codePermanent  Code = 12
	codeReject     Code = 13
	codePause      Code = 14
)

var words = map[Code]string{
	codeRetry: "retry", codeRetryAfter: "retry-after", codeDelay: "delay",
	codePermanent: "permanent", codeReject: "reject", codePause: "pause",
}

// Outcome is a marked error: it says what is to become of the message. Make one with
// [Permanent] and the others; find one with [errors.As].
type Outcome struct {
	Code  Code
	Delay time.Duration // of retry-after, delay and pause
	Err   error         // the cause, may be nil
}

// Error is the cause's text, or the outcome's word where there is no cause.
func (o *Outcome) Error() string {
	switch {
	case o.Err != nil:
		return o.Err.Error()
	case o.Delay > 0:
		return words[o.Code] + " " + o.Delay.String()
	}
	return words[o.Code]
}

// Unwrap returns the cause.
func (o *Outcome) Unwrap() error { return o.Err }

// Is reports whether target asks for the same outcome, whatever its delay and cause:
// errors.Is(err, guesthand.Permanent(nil)).
func (o *Outcome) Is(target error) bool {
	t, ok := target.(*Outcome)
	return ok && t.Err == nil && t.Code == o.Code
}

// Retry marks err as an ordinary failure, retried after the policy's backoff. Errors without a
// mark are that already; it takes back a mark that err has.
func Retry(err error) error { return &Outcome{Code: codeRetry, Err: err} }

// RetryAfter marks err as a failure to be retried in d instead of the policy's backoff; d of 0
// or less means the backoff.
func RetryAfter(err error, d time.Duration) error { return &Outcome{codeRetryAfter, d, err} }

// Delay asks for another run in d, 1 s at the least. Nothing failed, no attempt is spent; err
// says what is waited for and may be nil.
func Delay(err error, d time.Duration) error { return &Outcome{codeDelay, d, err} }

// Permanent marks err as one that no retry can help: the message becomes a dead letter. A nil
// err is permanent all the same.
func Permanent(err error) error { return &Outcome{Code: codePermanent, Err: err} }

// Reject leaves the message to the broker's own rejection.
func Reject(err error) error { return &Outcome{Code: codeReject, Err: err} }

// Pause is Delay, and this job takes no new message on this host for d either.
func Pause(err error, d time.Duration) error { return &Outcome{codePause, d, err} }

// Message is the message being handled. What it wraps is read from the host when it is asked
// for. It is of no use once the handler has returned.
type Message struct {
	payload []byte
	read    bool
}

// Payload is the producer's bytes. They are the handler's to change.
func (m *Message) Payload() []byte {
	if !m.read {
		m.payload = readAll(payloadSize(), payloadRead)
		m.read = true
	}
	return m.payload
}

// JSON decodes the payload into v as [json.Unmarshal] does. Its error is permanent.
func (m *Message) JSON(v any) error {
	if err := json.Unmarshal(m.Payload(), v); err != nil {
		return Permanent(fmt.Errorf("decode the payload: %w", err))
	}
	return nil
}

// Write appends to the run's result, which the host uses when the run succeeds. ErrTooLarge
// where it is over the handler's limit.
func (m *Message) Write(p []byte) (int, error) {
	if err := resultError("write the result", resultWrite(addr(p), uint32(len(p)))); err != nil {
		return 0, err
	}
	return len(p), nil
}

// WriteString is Write for a string.
func (m *Message) WriteString(s string) (int, error) {
	return m.Write(unsafe.Slice(unsafe.StringData(s), len(s)))
}

// WriteJSON appends v as JSON to the run's result.
func (m *Message) WriteJSON(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	_, err = m.Write(b)
	return err
}

// ID is the message's id, the same in every run of it.
func (m *Message) ID() string { return text("id") }

// Job is what was asked for, Queue where it came from.
func (m *Message) Job() string   { return text("job") }
func (m *Message) Queue() string { return text("queue") }

// Attempt is the number of this run, from 1. It counts every run; Failures, Delays, Stalls and
// Interruptions say how the earlier ones ended.
func (m *Message) Attempt() int       { return int(number("attempt")) }
func (m *Message) Failures() int      { return int(number("failures")) }
func (m *Message) Delays() int        { return int(number("delays")) }
func (m *Message) Stalls() int        { return int(number("stalls")) }
func (m *Message) Interruptions() int { return int(number("interruptions")) }

// MaxAttempts is how many failures the message may have in all, 0 for no cap.
func (m *Message) MaxAttempts() int { return int(number("max_attempts")) }

// EnqueuedAt is when the message was sent; the zero time where that is not known.
func (m *Message) EnqueuedAt() time.Time { return instant("enqueued_at") }

// Deadline is when the host stops this run. See [Remaining].
func (m *Message) Deadline() time.Time { return instant("deadline") }

// Headers are the names of the message's headers.
func (m *Message) Headers() []string {
	return strings.FieldsFunc(text("headers"), func(r rune) bool { return r == '\n' })
}

// Header is a header's first value, its name without regard to case; "" where there is none,
// which [Attribute] of "header.NAME" tells apart.
func (m *Message) Header(name string) string { return text("header." + name) }

// Traceparent is the W3C trace context the message came with, or "".
func (m *Message) Traceparent() string { return text("traceparent") }

// State is what an earlier run of this message, or this one, left with SetState.
func (m *Message) State() []byte {
	b, _ := sized(func(dst unsafe.Pointer, size uint32) int32 { return stateRead(dst, size) })
	return b
}

// SetState keeps up to 4 KiB for the next run of this message, on whatever worker. It is kept
// when the handler returns a retry, retry-after, delay or pause, and not after a panic.
func (m *Message) SetState(b []byte) error {
	return resultError("write the state", stateWrite(addr(b), uint32(len(b))))
}

// Config is a value from the handler's configuration, "" where there is none. It works in a
// package variable's initialiser too.
func Config(name string) string { return text("config." + name) }

// Secret is a secret that the configuration gives this handler, or "".
func Secret(name string) string { return text("secret." + name) }

// Section is a custom section of this module, nil where there is none.
func Section(name string) []byte {
	b, _ := attribute("section." + name)
	return b
}

// Attribute is any attribute by its name in the ABI, and whether it is there.
func Attribute(name string) (value string, ok bool) {
	b, ok := attribute(name)
	return string(b), ok
}

// Remaining is the time until the run's deadline or, once the host is stopping, until the end
// of its drain. At 0 or less it is time to return.
func Remaining() time.Duration { return time.Duration(remaining()) * time.Millisecond }

// Level is a log line's severity, with the numbers of log/slog.
type Level int32

// The levels.
const (
	LevelDebug Level = -4
	LevelInfo  Level = 0
	LevelWarn  Level = 4
	LevelError Level = 8
)

// Logf writes a line to the host's log. What is written to standard output and error arrives
// there as well, at LevelInfo (a command's standard output is its result instead).
func Logf(level Level, format string, args ...any) {
	logWrite(int32(level), fmt.Sprintf(format, args...))
}

// HostError is what a host call answered. Compare with [errors.Is].
type HostError int32

// The answers.
const (
	ErrAbsent      HostError = -1
	ErrNotGranted  HostError = -2
	ErrTooLarge    HostError = -3 // or over a quota
	ErrUnavailable HostError = -4 // an I/O error
	ErrMalformed   HostError = -5
	ErrTimedOut    HostError = -6
)

func (e HostError) Error() string {
	switch e {
	case ErrAbsent:
		return "absent"
	case ErrNotGranted:
		return "not granted"
	case ErrTooLarge:
		return "too large"
	case ErrUnavailable:
		return "not available"
	case ErrMalformed:
		return "malformed"
	case ErrTimedOut:
		return "timed out"
	}
	return "host error " + strconv.Itoa(int(e))
}

// resultError is a host call's answer as an error, nil unless it is negative.
func resultError(what string, n int32) error {
	if n >= 0 {
		return nil
	}
	return fmt.Errorf("%s: %w", what, HostError(n))
}

// Request is an HTTP request that the host is to make.
type Request struct {
	Method string // GET
	URL    string
	Header map[string]string
	Body   []byte
}

// Response is what a server answered.
type Response struct {
	Status int
	Body   []byte
}

// latest is the response whose headers the host still has.
var latest *Response

// Fetch makes a request. An error means that there was no answer, whatever status one would
// have had; see [Response.Err].
func Fetch(r Request) (*Response, error) {
	if r.Method == "" {
		r.Method = "GET"
	}
	what := r.Method + " " + r.URL
	head, err := heads(what, r.Header)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	status := httpSend(head, addr(r.Body), uint32(len(r.Body)))
	if err := resultError(what, status); err != nil {
		return nil, err
	}
	latest = &Response{Status: int(status), Body: readAll(httpBodySize(), httpBodyRead)}
	return latest, nil
}

// Header is a header's value, or "". The host keeps the headers of the latest response only;
// for an earlier one it is "".
func (r *Response) Header(name string) string {
	if r != latest {
		return ""
	}
	b, _ := sized(func(dst unsafe.Pointer, size uint32) int32 { return httpHeaderRead(name, dst, size) })
	return string(b)
}

// Err is nil for a status below 400. Of 429 and 503 with Retry-After it makes a [RetryAfter],
// and an error without a mark of everything else, so that a client's whole care is
//
//	if err := response.Err(); err != nil {
//		return err
//	}
func (r *Response) Err() error {
	if r.Status < 400 {
		return nil
	}
	err := fmt.Errorf("the server answered %d", r.Status)
	if wait := r.Header("Retry-After"); wait != "" && (r.Status == 429 || r.Status == 503) {
		return RetryAfter(err, ParseRetryAfter(wait, r.Header("Date")))
	}
	return err
}

// ParseRetryAfter reads a Retry-After header: seconds, or a date, which counts from the
// response's own Date, since clocks differ. It is 0, the policy's backoff, for anything else.
func ParseRetryAfter(value, date string) time.Duration {
	const year = 365 * 24 * 3600
	if seconds, err := strconv.ParseUint(value, 10, 64); err == nil {
		return time.Duration(min(seconds, year)) * time.Second
	}
	const imf = "Mon, 02 Jan 2006 15:04:05 GMT"
	until, err := time.Parse(imf, value)
	now, err2 := time.Parse(imf, date)
	if err != nil || err2 != nil {
		return 0
	}
	return min(max(0, until.Sub(now)), year*time.Second)
}

// KVGet is a key's value, or [ErrAbsent]. Keys are up to 256 bytes; the host gives each handler
// keys of its own, shared by all hosts.
func KVGet(key string) ([]byte, error) {
	b, n := sized(func(dst unsafe.Pointer, size uint32) int32 { return kvGet(key, dst, size) })
	return b, resultError("kv get", n)
}

// KVPut stores a value for ttl, 0 for good.
func KVPut(key string, value []byte, ttl time.Duration) error {
	return resultError("kv put", kvPut(key, addr(value), uint32(len(value)), milliseconds(ttl)))
}

// KVCreate stores a value only where there is none. Of all that try at once, on any host, one
// is told true.
func KVCreate(key string, value []byte, ttl time.Duration) (created bool, err error) {
	n := kvCreate(key, addr(value), uint32(len(value)), milliseconds(ttl))
	return n == 0, resultError("kv create", n)
}

// KVDelete removes a key, or returns [ErrAbsent].
func KVDelete(key string) error { return resultError("kv delete", kvDelete(key)) }

// Outgoing is a message to send when the run succeeds.
type Outgoing struct {
	Queue, Job string
	Payload    []byte
	Key        string        // asks the broker to drop a second message with this key
	Delay      time.Duration // how long it waits before its first run
	Header     map[string]string
}

// Send hands a message to the host, which publishes it if this run succeeds, before the
// acknowledgement, and drops it if not.
func Send(o Outgoing) error {
	lines := map[string]string{}
	for name, value := range o.Header {
		lines[name] = value
	}
	if o.Key != "" {
		lines["Key"] = o.Key
	}
	if o.Delay > 0 {
		lines["Delay"] = strconv.FormatInt(milliseconds(o.Delay), 10) + "ms"
	}
	what := "send to " + o.Queue
	head, err := heads(o.Queue+" "+o.Job, lines)
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return resultError(what, messageSend(head, addr(o.Payload), uint32(len(o.Payload))))
}

// heads writes a first line and `Name: value` lines. A line break within would make a line of
// the caller's input.
func heads(first string, lines map[string]string) (string, error) {
	var b strings.Builder
	b.WriteString(first)
	broken := strings.ContainsAny(first, "\r\n")
	for name, value := range lines {
		broken = broken || strings.ContainsAny(name+value, "\r\n") || strings.Contains(name, ":")
		b.WriteString("\n" + name + ": " + value)
	}
	if broken {
		return "", ErrMalformed
	}
	return b.String(), nil
}

func addr(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

// readAll reads what has a known size by an offset read.
func readAll(size int32, read func(dst unsafe.Pointer, size, offset uint32) int32) []byte {
	b := make([]byte, max(0, size))
	for n := 0; n < len(b); {
		k := read(addr(b[n:]), uint32(len(b)-n), uint32(n))
		if k <= 0 {
			return b[:n]
		}
		n += int(k)
	}
	return b
}

// sized reads what has no known size: the host returns the full size and copies what fits.
// A negative n is the host's error.
func sized(read func(dst unsafe.Pointer, size uint32) int32) (b []byte, n int32) {
	b = make([]byte, 256)
	for {
		n = read(addr(b), uint32(len(b)))
		switch {
		case n < 0:
			return nil, n
		case int(n) <= len(b):
			return b[:n], n
		}
		b = make([]byte, n)
	}
}

func attribute(name string) ([]byte, bool) {
	b, n := sized(func(dst unsafe.Pointer, size uint32) int32 { return attributeRead(name, dst, size) })
	return b, n >= 0
}

func text(name string) string {
	b, _ := attribute(name)
	return string(b)
}

func number(name string) int64 {
	n, err := strconv.ParseInt(text(name), 10, 64)
	if err != nil {
		return 0 // absent
	}
	return n
}

func instant(name string) time.Time {
	if ms := number(name); ms != 0 {
		return time.UnixMilli(ms)
	}
	return time.Time{}
}

// The import module. A string goes to the host as its address and length.

//go:wasmimport guesthand_v1 payload_size
func payloadSize() int32

//go:wasmimport guesthand_v1 payload_read
func payloadRead(dst unsafe.Pointer, size, offset uint32) int32

//go:wasmimport guesthand_v1 attribute_read
func attributeRead(name string, dst unsafe.Pointer, size uint32) int32

//go:wasmimport guesthand_v1 result_write
func resultWrite(src unsafe.Pointer, size uint32) int32

//go:wasmimport guesthand_v1 error_write
func errorWrite(text string) int32

//go:wasmimport guesthand_v1 log_write
func logWrite(level int32, text string)

//go:wasmimport guesthand_v1 remaining
func remaining() int64

//go:wasmimport guesthand_v1 state_read
func stateRead(dst unsafe.Pointer, size uint32) int32

//go:wasmimport guesthand_v1 state_write
func stateWrite(src unsafe.Pointer, size uint32) int32

//go:wasmimport guesthand_v1 http_send
func httpSend(head string, body unsafe.Pointer, size uint32) int32

//go:wasmimport guesthand_v1 http_header_read
func httpHeaderRead(name string, dst unsafe.Pointer, size uint32) int32

//go:wasmimport guesthand_v1 http_body_size
func httpBodySize() int32

//go:wasmimport guesthand_v1 http_body_read
func httpBodyRead(dst unsafe.Pointer, size, offset uint32) int32

//go:wasmimport guesthand_v1 kv_get
func kvGet(key string, dst unsafe.Pointer, size uint32) int32

//go:wasmimport guesthand_v1 kv_put
func kvPut(key string, value unsafe.Pointer, size uint32, ttl int64) int32

//go:wasmimport guesthand_v1 kv_create
func kvCreate(key string, value unsafe.Pointer, size uint32, ttl int64) int32

//go:wasmimport guesthand_v1 kv_delete
func kvDelete(key string) int32

//go:wasmimport guesthand_v1 message_send
func messageSend(head string, body unsafe.Pointer, size uint32) int32
