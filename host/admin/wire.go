package admin

import (
	"errors"
	"time"

	"github.com/guesthand/guesthand/drivers"
)

// The API's own forms; everything else goes over the wire as --json prints it.

// message is one message of POST /v1/queues/Q/messages.
type message struct {
	ID        string         `json:"id,omitempty"`
	Job       string         `json:"job"`
	Key       string         `json:"key,omitempty"`
	NotBefore time.Time      `json:"not_before,omitzero"`
	Headers   drivers.Header `json:"headers,omitempty"`
	Payload   []byte         `json:"payload_base64,omitempty"`
}

type sendRequest struct {
	Messages []message `json:"messages"`
}

// sent is the fate of one message.
type sent struct {
	ID    string     `json:"id"`
	Error *wireError `json:"error,omitempty"`
}

type sendResponse struct {
	Messages []sent `json:"messages"`
}

// wireError carries an error's text and, for those that callers tell apart, its name.
type wireError struct {
	Code string `json:"code,omitempty"`
	Text string `json:"text"`
	Hint string `json:"hint,omitempty"`
}

var wireCodes = map[string]error{
	"not_found":   drivers.ErrNotFound,
	"unsupported": drivers.ErrUnsupported,
	"too_large":   drivers.ErrTooLarge,
	"closed":      drivers.ErrClosed,
	"invalid":     drivers.ErrInvalid,
}

func toWire(err error) *wireError {
	if err == nil {
		return nil
	}
	w := &wireError{Text: err.Error()}
	for code, known := range wireCodes {
		if errors.Is(err, known) {
			w.Code = code
		}
	}
	return w
}

// RemoteError is an error that a running host answered.
type RemoteError struct {
	Status int // HTTP
	Text   string
	known  error
}

func (e *RemoteError) Error() string { return e.Text }
func (e *RemoteError) Unwrap() error { return e.known }

func (w *wireError) toError(status int) error {
	if w == nil {
		return nil
	}
	return &RemoteError{Status: status, Text: w.Text, known: wireCodes[w.Code]}
}

type errorResponse struct {
	Error *wireError `json:"error"`
}

// list is an answer with many items.
type list[T any] struct {
	Items []T `json:"items"`
}

// orEmpty makes an absent list a list.
func orEmpty[T any](items []T) list[T] {
	if items == nil {
		items = []T{}
	}
	return list[T]{items}
}
