package abi_test

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/guesthand/guesthand/abi"
)

var kinds = []abi.Kind{abi.Success, abi.Retry, abi.RetryAfter, abi.Delay, abi.Permanent, abi.Reject, abi.Pause}

func takesDelay(k abi.Kind) bool { return k == abi.RetryAfter || k == abi.Delay || k == abi.Pause }

func TestDecodeNative(t *testing.T) {
	malformed := func(code abi.Code, text string) abi.Outcome {
		return abi.Outcome{Kind: abi.Retry, Code: code, Text: text}
	}
	const year = 365 * 24 * 3600 * 1000 // ms
	tests := []struct {
		v    int64
		want abi.Outcome
	}{
		{0, abi.Outcome{Kind: abi.Success}},
		{1, abi.Outcome{Kind: abi.Retry, Code: 1}},
		{10, abi.Outcome{Kind: abi.RetryAfter, Code: 10}},
		{11, abi.Outcome{Kind: abi.Delay, Code: 11}},
		{12, abi.Outcome{Kind: abi.Permanent, Code: 12}},
		{13, abi.Outcome{Kind: abi.Reject, Code: 13}},
		{14, abi.Outcome{Kind: abi.Pause, Code: 14}},
		{30000<<8 | 10, abi.Outcome{Kind: abi.RetryAfter, Code: 10, Delay: 30 * time.Second}},
		{1<<8 | 11, abi.Outcome{Kind: abi.Delay, Code: 11, Delay: time.Millisecond}},
		{60000<<8 | 14, abi.Outcome{Kind: abi.Pause, Code: 14, Delay: time.Minute}},

		// A delay of zero or less is none. The shift is arithmetic.
		{-1<<8 | 10, abi.Outcome{Kind: abi.RetryAfter, Code: 10}},
		{math.MinInt64 | 11, abi.Outcome{Kind: abi.Delay, Code: 11}},
		{-256 | 14, abi.Outcome{Kind: abi.Pause, Code: 14}},

		// Every other code is a retry that says so.
		{2, malformed(2, "unknown outcome code 2")},
		{9, malformed(9, "unknown outcome code 9")},
		{15, malformed(15, "unknown outcome code 15")},
		{255, malformed(255, "unknown outcome code 255")},
		{-1, malformed(255, "unknown outcome code 255")},
		{math.MaxInt64, malformed(255, "unknown outcome code 255")},
		{30000<<8 | 2, malformed(2, "unknown outcome code 2")},

		// Delay bits where none belong.
		{256, malformed(0, "outcome 0 with delay bits")},
		{257, malformed(1, "outcome 1 with delay bits")},
		{256 | 12, malformed(12, "outcome 12 with delay bits")},
		{256 | 13, malformed(13, "outcome 13 with delay bits")},
		{-256, malformed(0, "outcome 0 with delay bits")},
		{math.MinInt64, malformed(0, "outcome 0 with delay bits")},
		{-244, malformed(12, "outcome 12 with delay bits")},

		// The longest delay, and too long ones.
		{year<<8 | 11, abi.Outcome{Kind: abi.Delay, Code: 11, Delay: abi.MaxDelay}},
		{(year+1)<<8 | 11, malformed(11, "delay of 31536000001 ms is over the limit of 365 days")},
		{1<<54<<8 | 10, malformed(10, "retry-after of 18014398509481984 ms is over the limit of 365 days")},
		{math.MaxInt64&^0xff | 14, malformed(14, "pause of 36028797018963967 ms is over the limit of 365 days")},
	}
	for _, tt := range tests {
		if got := abi.DecodeNative(tt.v); got != tt.want {
			t.Errorf("DecodeNative(%d) = %+v, want %+v", tt.v, got, tt.want)
		}
	}
}

func TestDecodeExit(t *testing.T) {
	tests := []struct {
		v    uint32
		want abi.Outcome
	}{
		{0, abi.Outcome{Kind: abi.Success}},
		{1, abi.Outcome{Kind: abi.Retry, Code: 1}},
		{2, abi.Outcome{Kind: abi.Retry, Code: 2, Text: "unknown outcome code 2"}},
		{12, abi.Outcome{Kind: abi.Permanent, Code: 12}},
		{30<<8 | 10, abi.Outcome{Kind: abi.RetryAfter, Code: 10, Delay: 30 * time.Second}},
		{11, abi.Outcome{Kind: abi.Delay, Code: 11}},
		{256, abi.Outcome{Kind: abi.Retry, Text: "outcome 0 with delay bits"}},
		{0xffffffff, abi.Outcome{Kind: abi.Retry, Code: 255, Text: "unknown outcome code 255"}},
		{0xefffffff, abi.Outcome{Kind: abi.Retry, Code: 255, Text: "unknown outcome code 255"}},
		// The largest delay of an exit code, 194 days, is under the limit, and never negative.
		{0xffffff<<8 | 11, abi.Outcome{Kind: abi.Delay, Code: 11, Delay: 16777215 * time.Second}},
		{0x800000<<8 | 14, abi.Outcome{Kind: abi.Pause, Code: 14, Delay: 8388608 * time.Second}},
	}
	for _, tt := range tests {
		if got := abi.DecodeExit(tt.v); got != tt.want {
			t.Errorf("DecodeExit(%#x) = %+v, want %+v", tt.v, got, tt.want)
		}
	}
}

func TestEncode(t *testing.T) {
	tests := []struct {
		kind   abi.Kind
		delay  time.Duration
		native int64
		exit   uint32
	}{
		{abi.Success, 0, 0, 0},
		{abi.Success, time.Hour, 0, 0},
		{abi.Retry, time.Hour, 1, 1},
		{abi.Permanent, time.Hour, 12, 12},
		{abi.Reject, time.Hour, 13, 13},
		{abi.RetryAfter, 30 * time.Second, 30000<<8 | 10, 30<<8 | 10},
		{abi.Delay, 0, 11, 11},
		{abi.Delay, -time.Hour, 11, 11},
		{abi.Delay, math.MinInt64, 11, 11},
		{abi.Delay, 1, 1<<8 | 11, 1<<8 | 11}, // rounded up
		{abi.Delay, time.Second + 1, 1001<<8 | 11, 2<<8 | 11},
		{abi.Pause, math.MaxInt64, 9223372036855<<8 | 14, 16777215<<8 | 14}, // saturated
		{0, time.Hour, 1, 1},                                                // no kind is a retry
		{200, time.Hour, 1, 1},                                              // nor is nonsense
		{abi.Pause + 1, 0, 1, 1},
	}
	for _, tt := range tests {
		if got := abi.EncodeNative(tt.kind, tt.delay); got != tt.native {
			t.Errorf("EncodeNative(%v, %v) = %d, want %d", tt.kind, tt.delay, got, tt.native)
		}
		if got := abi.EncodeExit(tt.kind, tt.delay); got != tt.exit {
			t.Errorf("EncodeExit(%v, %v) = %d, want %d", tt.kind, tt.delay, got, tt.exit)
		}
	}
}

func TestKindString(t *testing.T) {
	want := []string{"success", "retry", "retry-after", "delay", "permanent", "reject", "pause"}
	for i, k := range kinds {
		if k.String() != want[i] {
			t.Errorf("kind %d is %q, want %q", k, k, want[i])
		}
	}
	if got := abi.Kind(99).String(); got != "kind 99" {
		t.Errorf("kind 99 is %q", got)
	}
}

func TestEnd(t *testing.T) {
	tests := []struct {
		end         abi.End
		word, cause string
		code        int
	}{
		{abi.End{Cause: abi.Returned, Outcome: abi.DecodeNative(0)}, "success", "returned", 0},
		{abi.End{Cause: abi.Returned, Outcome: abi.DecodeNative(11)}, "delay", "returned", 11},
		{abi.End{Cause: abi.Returned, Outcome: abi.DecodeNative(77)}, "retry", "returned", 77},
		{abi.End{Cause: abi.Exit}, "retry", "exit", -1},
		{abi.End{Cause: abi.Trap}, "retry", "trap", -1},
		{abi.End{Cause: abi.Memory}, "retry", "memory", -1},
		{abi.End{Cause: abi.Limit}, "retry", "limit", -1},
		{abi.End{Cause: abi.Timeout}, "retry", "timeout", -1},
		{abi.End{Cause: abi.Load}, "retry", "load", -1},
		{abi.End{Cause: abi.Interrupted}, "interrupted", "", -1},
		{abi.End{Cause: abi.Stalled}, "stalled", "", -1},
		{abi.End{Cause: abi.LeaseLost}, "lease-lost", "", -1},
		{abi.End{Cause: abi.Cancelled}, "cancelled", "", -1},
	}
	for _, tt := range tests {
		if w, c, n := tt.end.Word(), tt.end.CauseWord(), tt.end.CodeOrNone(); w != tt.word || c != tt.cause || n != tt.code {
			t.Errorf("%s: %q, %q, %d, want %q, %q, %d", tt.end.Cause, w, c, n, tt.word, tt.cause, tt.code)
		}
	}
}

// wellFormed checks what holds for every decoded number.
func wellFormed(t *testing.T, number string, o abi.Outcome, code byte) {
	t.Helper()
	switch {
	case o.Kind < abi.Success || o.Kind > abi.Pause:
		t.Errorf("%s means nothing: %+v", number, o)
	case byte(o.Code) != code:
		t.Errorf("%s has code %d: %+v", number, code, o)
	case o.Delay < 0 || o.Delay > abi.MaxDelay:
		t.Errorf("%s has a delay out of bounds: %+v", number, o)
	case o.Delay > 0 && !takesDelay(o.Kind):
		t.Errorf("%s has a delay where none belongs: %+v", number, o)
	case o.Text != "" && (o.Kind != abi.Retry || o.Delay != 0):
		t.Errorf("%s is malformed and yet no plain retry: %+v", number, o)
	case o.Kind == abi.Success && (o.Text != "" || code != 0):
		t.Errorf("%s passes for a success: %+v", number, o)
	}
}

// Any number means something, and the meaning of a well-formed one packs into a number with
// the same meaning.
func FuzzDecode(f *testing.F) {
	for _, v := range []int64{0, 1, 255, 256, -1, 7680010, 30<<8 | 10, 0xffffffff, 0xefffffff, math.MinInt64, math.MaxInt64, 1<<62 | 11} {
		f.Add(v)
	}
	f.Fuzz(func(t *testing.T, v int64) {
		native := abi.DecodeNative(v)
		wellFormed(t, fmt.Sprint(v), native, byte(v))
		if native.Text == "" {
			if again := abi.DecodeNative(abi.EncodeNative(native.Kind, native.Delay)); again != native {
				t.Errorf("%d is %+v, packed again %+v", v, native, again)
			}
		}
		exit := abi.DecodeExit(uint32(v))
		wellFormed(t, fmt.Sprint("exit ", uint32(v)), exit, byte(v))
		if exit.Text == "" {
			if again := abi.DecodeExit(abi.EncodeExit(exit.Kind, exit.Delay)); again != exit {
				t.Errorf("exit %d is %+v, packed again %+v", uint32(v), exit, again)
			}
		}
	})
}

// What is packed comes back: the kind, and a delay that is never shorter than what was asked
// for but where it cannot be held, and at most a unit longer.
func FuzzEncode(f *testing.F) {
	for _, d := range []int64{0, 1, -1, int64(time.Second), int64(abi.MaxDelay), math.MinInt64, math.MaxInt64} {
		f.Add(byte(abi.Delay), d)
	}
	f.Fuzz(func(t *testing.T, kind byte, delay int64) {
		k, d := kinds[int(kind)%len(kinds)], time.Duration(delay)
		check := func(dialect string, o abi.Outcome, unit, most time.Duration) {
			want := time.Duration(0)
			if takesDelay(k) {
				want = max(0, d)
			}
			if want > abi.MaxDelay && most > abi.MaxDelay {
				if o.Kind != abi.Retry || o.Text == "" {
					t.Errorf("%s: %v of %v became %+v", dialect, k, d, o)
				}
				return
			}
			low := min(want, most)
			if o.Kind != k || o.Text != "" || o.Delay < low || o.Delay >= low+unit {
				t.Errorf("%s: %v of %v became %+v", dialect, k, d, o)
			}
		}
		check("native", abi.DecodeNative(abi.EncodeNative(k, d)), time.Millisecond, math.MaxInt64)
		check("exit", abi.DecodeExit(abi.EncodeExit(k, d)), time.Second, (1<<24-1)*time.Second)
	})
}

// The numbers that ABI.md gives as examples mean what it says.
func TestExamplesInABI(t *testing.T) {
	b, err := os.ReadFile("ABI.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := regexp.MustCompile("(?m)^\\| (native|command) \\| `(-?\\d+)`.* \\| `([^`]+)` \\|$").FindAllStringSubmatch(string(b), -1)
	if len(rows) < 17 {
		t.Fatalf("found %d examples", len(rows))
	}
	for _, row := range rows {
		v, err := strconv.ParseInt(row[2], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		o := abi.DecodeNative(v)
		if row[1] == "command" {
			o = abi.DecodeExit(uint32(v))
		}
		got := o.Kind.String()
		switch {
		case o.Text != "":
			got += ": " + o.Text
		case takesDelay(o.Kind):
			got += " " + o.Delay.String()
		}
		if got != row[3] {
			t.Errorf("%s %d means %q, and ABI.md says %q", row[1], v, got, row[3])
		}
	}
}
