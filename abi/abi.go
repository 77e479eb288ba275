// Package abi is the vocabulary shared by handlers and the host: outcome codes and
// their packing, the ways a run can end, import and attribute names, header names and
// host-call errors. It does no I/O and depends on nothing.
//
// ABI.md beside this file is the same contract for handler authors.
package abi

import (
	"fmt"
	"math"
	"time"
)

// Code is the low byte of a handler's outcome number.
type Code uint8

// The outcome codes. 2 to 9 stay free: language runtimes exit with small numbers when
// they crash (a Go panic exits with 2), and a crash must be an ordinary retry.
const (
	CodeSuccess    Code = 0
	CodeRetry      Code = 1
	CodeRetryAfter Code = 10
	CodeDelay      Code = 11
	CodePermanent  Code = 12
	CodeReject     Code = 13
	CodePause      Code = 14
)

// Kind is what an outcome number means. The zero Kind is no outcome and never the
// result of decoding.
type Kind uint8

// The kinds a handler can ask for.
const (
	Success Kind = iota + 1
	Retry
	RetryAfter
	Delay
	Permanent
	Reject
	Pause
)

var kindNames = [...]string{"", "success", "retry", "retry-after", "delay", "permanent", "reject", "pause"}

// String is the outcome's word, as the outcome table and --json print it.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// code is the inverse of kindOf for the kinds above.
func (k Kind) code() Code {
	switch k {
	case Success:
		return CodeSuccess
	case RetryAfter:
		return CodeRetryAfter
	case Delay:
		return CodeDelay
	case Permanent:
		return CodePermanent
	case Reject:
		return CodeReject
	case Pause:
		return CodePause
	}
	return CodeRetry
}

// MaxDelay is the longest delay a handler may ask for. A longer one is a bug (a wrong
// unit, an overflow), so the outcome becomes a retry that says so.
const MaxDelay = 365 * 24 * time.Hour

// Outcome is a decoded outcome number.
type Outcome struct {
	Kind Kind
	// Code is the number's low byte as the handler gave it, also where it means
	// nothing and Kind is therefore Retry.
	Code Code
	// Delay is what the handler asked for; zero for kinds that take none, and where
	// it asked for zero or less.
	Delay time.Duration
	// Text says what was wrong with the number; empty for a well-formed one.
	Text string
}

// DecodeNative decodes what a native module's handle returned: the code in the low 8
// bits, the delay in milliseconds above them, read with an arithmetic shift. It is
// total: every number means something.
func DecodeNative(v int64) Outcome {
	return decode(Code(v&0xff), v>>8, time.Millisecond)
}

// DecodeExit decodes a command's exit code: the code in the low 8 bits, the delay in
// seconds above them. It is total.
func DecodeExit(v uint32) Outcome {
	return decode(Code(v&0xff), int64(v>>8), time.Second)
}

func decode(code Code, delay int64, unit time.Duration) Outcome {
	kind, delayed := kindOf(code)
	switch {
	case kind == 0:
		return Outcome{Kind: Retry, Code: code, Text: fmt.Sprintf("unknown outcome code %d", code)}
	case !delayed && delay != 0:
		return Outcome{Kind: Retry, Code: code, Text: fmt.Sprintf("outcome %d with delay bits", code)}
	case !delayed || delay <= 0:
		return Outcome{Kind: kind, Code: code}
	case delay > int64(MaxDelay/unit):
		return Outcome{Kind: Retry, Code: code,
			Text: fmt.Sprintf("%s of %d %s is over the limit of 365 days", kind, delay, unitName(unit))}
	}
	return Outcome{Kind: kind, Code: code, Delay: time.Duration(delay) * unit}
}

func kindOf(code Code) (kind Kind, delayed bool) {
	switch code {
	case CodeSuccess:
		return Success, false
	case CodeRetry:
		return Retry, false
	case CodeRetryAfter:
		return RetryAfter, true
	case CodeDelay:
		return Delay, true
	case CodePermanent:
		return Permanent, false
	case CodeReject:
		return Reject, false
	case CodePause:
		return Pause, true
	}
	return 0, false
}

func unitName(unit time.Duration) string {
	if unit == time.Second {
		return "s"
	}
	return "ms"
}

// EncodeNative packs an outcome for a native module. A delay is rounded up to whole
// milliseconds, since it is a lower bound; kinds that take none ignore it.
func EncodeNative(k Kind, delay time.Duration) int64 {
	return int64(k.code()) | delayUnits(k, delay, time.Millisecond, math.MaxInt64>>8)<<8
}

// EncodeExit packs an outcome into a command's exit code. A delay is rounded up to
// whole seconds and saturates at 16777215 s, all that an exit code can hold.
func EncodeExit(k Kind, delay time.Duration) uint32 {
	return uint32(k.code()) | uint32(delayUnits(k, delay, time.Second, 1<<24-1))<<8
}

func delayUnits(k Kind, delay, unit time.Duration, limit int64) int64 {
	if _, delayed := kindOf(k.code()); !delayed || delay <= 0 {
		return 0
	}
	n := int64(delay / unit)
	if delay%unit != 0 {
		n++
	}
	return min(n, limit)
}

// Cause is how a run came to its end, decided only by what the host itself did or saw:
// a guest cannot forge one.
type Cause string

// The causes. All but Returned are without a return code; all but the last four are
// failures of the run.
const (
	Returned Cause = "returned" // the handler returned, or a command exited
	Exit     Cause = "exit"     // a native module called proc_exit
	Trap     Cause = "trap"     // unreachable, out of bounds, stack overflow, division by zero
	Memory   Cause = "memory"   // the memory limit
	Limit    Cause = "limit"    // another limit: result size, call depth, payload
	Timeout  Cause = "timeout"  // the deadline
	Load     Cause = "load"     // an instance that could not start

	Interrupted Cause = "interrupted" // the host stopped and the drain time was over
	Stalled     Cause = "stalled"     // an earlier worker died or lost the lease mid-run
	LeaseLost   Cause = "lease-lost"  // the broker took the message back while it ran
	Cancelled   Cause = "cancelled"   // an operator stopped the run
)

// End is what a run came to.
type End struct {
	Cause Cause
	// Outcome is set when Cause is Returned and zero otherwise.
	Outcome Outcome
	// Text is the run's error text: the handler's own, or what the host saw. Empty
	// for a success.
	Text string
}

// Word is the outcome as logs, ledger and --json name it: the table's word, or
// interrupted, stalled, lease-lost, cancelled.
func (e End) Word() string {
	switch e.Cause {
	case Returned:
		return e.Outcome.Kind.String()
	case Interrupted, Stalled, LeaseLost, Cancelled:
		return string(e.Cause)
	}
	return Retry.String()
}

// CodeOrNone is the outcome's low byte, or -1 where the run returned none.
func (e End) CodeOrNone() int {
	if e.Cause == Returned {
		return int(e.Outcome.Code)
	}
	return -1
}

// CauseWord is the cause for --json, empty for the ends that are no run's own.
func (e End) CauseWord() string {
	switch e.Cause {
	case Interrupted, Stalled, LeaseLost, Cancelled:
		return ""
	}
	return string(e.Cause)
}
