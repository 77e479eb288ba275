package main

import (
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/memdriver"
	"github.com/guesthand/guesthand/host/config"
	"github.com/guesthand/guesthand/host/engine"
)

// invokedSend is a message that a run asked to be sent.
type invokedSend struct {
	Queue         string         `json:"queue"`
	Job           string         `json:"job"`
	DelayMS       int64          `json:"delay_ms"`
	Key           string         `json:"key"`
	Headers       drivers.Header `json:"headers"`
	Payload       string         `json:"payload"`
	PayloadBase64 string         `json:"payload_base64"` // where it is not UTF-8
}

func invokedSends(sends []engine.Send) []invokedSend {
	out := make([]invokedSend, len(sends))
	for i, s := range sends {
		v := invokedSend{Queue: s.Queue, Job: s.Message.Job, DelayMS: s.Delay.Milliseconds(), Key: s.Message.Key, Headers: s.Message.Headers.Clone()}
		if utf8.Valid(s.Message.Payload) {
			v.Payload = string(s.Message.Payload)
		} else {
			v.PayloadBase64 = base64.StdEncoding.EncodeToString(s.Message.Payload)
		}
		out[i] = v
	}
	return out
}

func printSends(w io.Writer, v invocation) {
	label := "send     "
	if v.Outcome != abi.Success.String() {
		label = "not sent "
	}
	for _, s := range v.Sends {
		var b strings.Builder
		fmt.Fprintf(&b, "%s %s", s.Queue, s.Job)
		if s.DelayMS > 0 {
			fmt.Fprintf(&b, " in %s", time.Duration(s.DelayMS)*time.Millisecond)
		}
		if s.Key != "" {
			fmt.Fprintf(&b, " key %s", s.Key)
		}
		for _, name := range s.Headers.Names() {
			fmt.Fprintf(&b, " %s=%s", name, strings.Join(s.Headers[name], ","))
		}
		payload := s.Payload
		if s.PayloadBase64 != "" {
			payload = "base64 " + s.PayloadBase64
		}
		fmt.Fprintf(w, "%s %s: %s\n", label, printableLines(b.String()), printableLines(payload))
	}
}

// memoryBucket is an empty bucket for one run; nil where the handler has none.
func memoryBucket(ctx context.Context, h config.Handler) (drivers.Bucket, error) {
	if h.KV == nil {
		return nil, nil
	}
	d, err := memdriver.Open(ctx, memdriver.Options{})
	if err != nil {
		return nil, err
	}
	return d.OpenBucket(ctx, drivers.BucketOptions{Name: h.KV.BucketName(h.Job), MaxKeys: h.KV.MaxKeys, MaxBytes: h.KV.MaxBytes})
}
