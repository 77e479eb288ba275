package config

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// day is the largest unit of a duration.
const day = 24 * time.Hour

type unit[N int64 | uint64] struct {
	name string
	size N
}

// The units, largest first. "ms" stands before "m" and "s" only by size; a unit is matched
// whole.
var (
	durationUnits = []unit[int64]{
		{"d", int64(day)}, {"h", int64(time.Hour)}, {"m", int64(time.Minute)},
		{"s", int64(time.Second)}, {"ms", int64(time.Millisecond)},
	}
	sizeUnits = []unit[uint64]{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}}
	rateUnits = []unit[int64]{
		{"s", int64(time.Second)}, {"m", int64(time.Minute)}, {"h", int64(time.Hour)},
	}
)

// MaxRate is the largest N of a rate.
const MaxRate = 1_000_000

// What is wrong with a text, and what would be right.
const (
	noDuration   = "no duration; write 500ms, 10s, 5m, 2h or 1d"
	longDuration = "over the longest duration, 292 years"
	noSize       = "no size; write a number of bytes, 64KiB, 64MiB or 1GiB"
	largeSize    = "over the largest size, 16 EiB"
	noRate       = "no rate; write 10/s, 100/m or 1000/h"
	largeRate    = "out of range; a rate is from 1/h to 1000000/s"
)

// valueError keeps the text apart from what is wrong with it: the configuration shows the
// text as it was written, not what the environment made of it.
type valueError struct{ value, reason string }

func (e *valueError) Error() string { return fmt.Sprintf("%q is %s", e.value, e.reason) }

// ParseDuration reads an integer followed by ms, s, m, h or d ("5 m" is fine), or a Go
// duration. Zero and negative ones are read too: whoever cannot use them says so.
func ParseDuration(s string) (time.Duration, error) {
	digits, name := splitUnit(s)
	for _, u := range durationUnits {
		if u.name != name {
			continue
		}
		n, err := strconv.ParseInt(digits, 10, 64)
		if errors.Is(err, strconv.ErrSyntax) {
			break // 1h30m ends in a unit too
		}
		if err != nil || n > math.MaxInt64/u.size || n < -math.MaxInt64/u.size {
			return 0, &valueError{s, longDuration}
		}
		return time.Duration(n * u.size), nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, &valueError{s, noDuration}
	}
	return d, nil
}

// splitUnit cuts "5 m" into "5" and "m".
func splitUnit(s string) (number, name string) {
	i := strings.LastIndexAny(s, "0123456789") + 1
	return s[:i], strings.TrimLeft(s[i:], " ")
}

// FormatDuration prints a duration in the largest unit that holds it exactly: 1d, 90s, 1500ms.
// ParseDuration reads it back.
func FormatDuration(d time.Duration) string {
	for _, u := range durationUnits {
		if d != 0 && int64(d)%u.size == 0 {
			return strconv.FormatInt(int64(d)/u.size, 10) + u.name
		}
	}
	return d.String()
}

// ParseSize reads a number of bytes, alone or followed by KiB, MiB or GiB.
func ParseSize(s string) (uint64, error) {
	digits, name := splitUnit(s)
	size := uint64(1)
	for _, u := range sizeUnits {
		if u.name == name {
			size = u.size
		}
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange) || err == nil && n > math.MaxUint64/size:
		return 0, &valueError{s, largeSize}
	case err != nil || size == 1 && name != "":
		return 0, &valueError{s, noSize}
	}
	return n * size, nil
}

// FormatSize prints a size in the largest unit that holds it exactly. ParseSize reads it back.
func FormatSize(n uint64) string {
	for _, u := range sizeUnits {
		if n != 0 && n%u.size == 0 {
			return strconv.FormatUint(n/u.size, 10) + u.name
		}
	}
	return strconv.FormatUint(n, 10)
}

// ParseRate reads N/s, N/m or N/h with N from 1 to MaxRate.
func ParseRate(s string) (Rate, error) {
	digits, name, _ := strings.Cut(s, "/")
	n, err := strconv.Atoi(strings.TrimSpace(digits))
	for _, u := range rateUnits {
		if err != nil || u.name != strings.TrimSpace(name) {
			continue
		}
		if n < 1 || n > MaxRate {
			return Rate{}, &valueError{s, largeRate}
		}
		return Rate{N: n, Per: time.Duration(u.size)}, nil
	}
	return Rate{}, &valueError{s, noRate}
}

// String is the rate as ParseRate reads it, "none" for no limit.
func (r Rate) String() string {
	if r.N == 0 {
		return "none"
	}
	return strconv.Itoa(r.N) + "/" + strings.TrimPrefix(FormatDuration(r.Per), "1")
}
