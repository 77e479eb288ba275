//go:build wasip1

// Package conformance is the conformance handler in Go; its two forms are the commands below.
// README.md one folder up says what it does.
package conformance

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unsafe"

	guesthand "github.com/guesthand/guesthand/abi/guest/go"
)

// Handle does what the payload says.
func Handle(m *guesthand.Message) error {
	if m.Header("decode") != "" {
		return decode(m)
	}
	op, rest, _ := strings.Cut(string(m.Payload()), "\n")
	arg := strings.SplitN(rest+"\n\n", "\n", 4)
	switch op {
	case "":
		return write(m, "empty")
	case "echo":
		return write(m, rest)
	case "sum":
		return write(m, strconv.FormatUint(uint64(sum(rest)), 10))
	case "fail":
		return fail(arg[0], arg[1], arg[2])
	case "wrap":
		return fmt.Errorf("outer: %w", fail(arg[0], arg[1], arg[2]))
	case "remark":
		return guesthand.RetryAfter(fmt.Errorf("outer: %w", fail("permanent", "0", "inner")), 5*time.Second)
	case "unmark":
		return guesthand.Retry(fmt.Errorf("outer: %w", fail("permanent", "0", "inner")))
	case "attributes":
		return attributes(m)
	case "result":
		return errors.Join(write(m, "one"), write(m, "two"))
	case "big":
		return big(m, arg[0])
	case "log":
		guesthand.Logf(guesthand.LevelDebug, "debug")
		guesthand.Logf(guesthand.LevelInfo, "info")
		guesthand.Logf(guesthand.LevelWarn, "warn")
		guesthand.Logf(guesthand.LevelError, "error")
		return nil
	case "remaining":
		return write(m, strconv.FormatInt(guesthand.Remaining().Milliseconds(), 10))
	case "state":
		if err := m.SetState(append(m.State(), 'x')); err != nil {
			return err
		}
		return guesthand.Delay(nil, time.Second)
	case "state-big":
		return m.SetState(make([]byte, 4097))
	case "retry-after":
		return write(m, strconv.FormatInt(guesthand.ParseRetryAfter(arg[0], arg[1]).Milliseconds(), 10))
	case "http":
		return fetch(m, arg[0])
	case "kv":
		return write(m, strings.Join(kv(), ","))
	case "send":
		return write(m, answer(send("yes"), "ok"))
	case "send-broken":
		return write(m, answer(send("yes\nno"), "ok"))
	}
	return crash(op)
}

func write(m *guesthand.Message, s string) error {
	_, err := m.WriteString(s)
	return err
}

func decode(m *guesthand.Message) error {
	var n int64
	if err := m.JSON(&n); err != nil {
		return err
	}
	return m.WriteJSON(n + 1)
}

func sum(s string) (n uint32) {
	for _, b := range []byte(s) {
		n += uint32(b)
	}
	return n
}

func fail(kind, ms, text string) error {
	n, err := strconv.Atoi(ms)
	if err != nil {
		return guesthand.Permanent(err)
	}
	d := time.Duration(n) * time.Millisecond
	var cause error
	if text != "" {
		cause = errors.New(text)
	}
	switch kind {
	case "retry":
		return guesthand.Retry(cause)
	case "retry-after":
		return guesthand.RetryAfter(cause, d)
	case "delay":
		return guesthand.Delay(cause, d)
	case "permanent":
		return guesthand.Permanent(cause)
	case "reject":
		return guesthand.Reject(cause)
	case "pause":
		return guesthand.Pause(cause, d)
	}
	return cause
}

func attributes(m *guesthand.Message) error {
	absent := "absent"
	if _, ok := guesthand.Attribute("config.none"); ok {
		absent = "present"
	}
	deadline := "none"
	if m.Deadline().After(m.EnqueuedAt()) {
		deadline = "later"
	}
	_, err := fmt.Fprintf(m, "id=%s\njob=%s\nqueue=%s\nattempt=%d\nfailures=%d\ndelays=%d\nstalls=%d\ninterruptions=%d\n"+
		"max_attempts=%d\nenqueued_at=%d\ndeadline=%s\nheaders=%s\nheader=%s\nconfig=%s\nsecret=%s\nsection=%s\n"+
		"traceparent=%s\nnone=%s\n",
		m.ID(), m.Job(), m.Queue(), m.Attempt(), m.Failures(), m.Delays(), m.Stalls(), m.Interruptions(),
		m.MaxAttempts(), m.EnqueuedAt().UnixMilli(), deadline, strings.Join(m.Headers(), ","), m.Header("x-tag"),
		guesthand.Config("color"), guesthand.Secret("key"), guesthand.Section("conformance"), m.Traceparent(), absent)
	return err
}

func big(m *guesthand.Message, size string) error {
	n, err := strconv.Atoi(size)
	if err != nil {
		return guesthand.Permanent(err)
	}
	piece := []byte(strings.Repeat("x", 64<<10))
	for ; n > 0; n -= len(piece) {
		if _, err := m.Write(piece[:min(n, len(piece))]); err != nil {
			return err
		}
	}
	return nil
}

func fetch(m *guesthand.Message, url string) error {
	r, err := guesthand.Fetch(guesthand.Request{URL: url})
	if err != nil {
		return err
	}
	if err := r.Err(); err != nil {
		return err
	}
	return write(m, fmt.Sprintf("%d %s %s", r.Status, r.Header("X-Test"), r.Body))
}

func kv() []string {
	get := func() string {
		value, err := guesthand.KVGet("k")
		return answer(err, string(value))
	}
	create := func(value string) string {
		created, err := guesthand.KVCreate("k", []byte(value), time.Hour)
		if created {
			return "created"
		}
		return answer(err, "exists")
	}
	put := func(value string) string { return answer(guesthand.KVPut("k", []byte(value), 0), "ok") }
	remove := func() string { return answer(guesthand.KVDelete("k"), "ok") }
	return []string{get(), create("1"), create("2"), get(), put("3"), get(), remove(), remove()}
}

func send(header string) error {
	return guesthand.Send(guesthand.Outgoing{
		Queue: "next", Job: "conform", Payload: []byte("hello"), Key: "k1", Delay: 30 * time.Second,
		Header: map[string]string{"X-Test": header},
	})
}

// answer is the host's error by its word, else ok.
func answer(err error, ok string) string {
	var host guesthand.HostError
	if errors.As(err, &host) {
		return host.Error()
	}
	return ok
}

//go:wasmimport guesthand_v1 payload_read
func payloadRead(dst unsafe.Pointer, size, offset uint32) int32

// hold keeps what grow takes from being collected.
var hold [][]byte

func crash(op string) error {
	switch op {
	case "panic":
		panic("boom")
	case "bounds":
		one := make([]int, len(op)-5)
		return fmt.Errorf("read %d", one[len(op)])
	case "trap": // Go has no instruction for it; a range outside the memory is one
		var b byte
		payloadRead(unsafe.Pointer(&b), 1<<32-1, 0)
	case "loop":
		for {
		}
	case "grow":
		for {
			hold = append(hold, make([]byte, 1<<20))
		}
	}
	return guesthand.Permanent(fmt.Errorf("unknown operation %s", op))
}
