package config_test

import (
	"math"
	"testing"
	"time"

	"github.com/guesthand/guesthand/host/config"
)

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"500ms": 500 * time.Millisecond, "10s": 10 * time.Second, "5 m": 5 * time.Minute, "2h": 2 * time.Hour,
		"1d": 24 * time.Hour, "0": 0, "0s": 0, "-5s": -5 * time.Second, "1h30m": 90 * time.Minute, "1.5s": 1500 * time.Millisecond,
		"10us": 10 * time.Microsecond, "106751d": 106751 * 24 * time.Hour,
	} {
		if got, err := config.ParseDuration(text); got != want || err != nil {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "soon", "10", "s", "1w", "1d12h", "5  minutes", " 5m", "5m ", "106752d", "9223372036854775808ms", "none", "∞s"} {
		if got, err := config.ParseDuration(text); err == nil {
			t.Errorf("%q: got %v, want an error", text, got)
		}
	}
}

func TestParseSize(t *testing.T) {
	for text, want := range map[string]uint64{
		"0": 0, "1024": 1024, "16KiB": 16 << 10, "64 MiB": 64 << 20, "1GiB": 1 << 30, "18446744073709551615": math.MaxUint64,
	} {
		if got, err := config.ParseSize(text); got != want || err != nil {
			t.Errorf("%q: got %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "MiB", "64MB", "64M", "64mib", "-1", "1.5GiB", "18446744073709551616", "17179869184GiB"} {
		if got, err := config.ParseSize(text); err == nil {
			t.Errorf("%q: got %d, want an error", text, got)
		}
	}
}

func TestParseRate(t *testing.T) {
	for text, want := range map[string]config.Rate{
		"10/s": {N: 10, Per: time.Second}, "100/m": {N: 100, Per: time.Minute}, "1 / h": {N: 1, Per: time.Hour},
	} {
		if got, err := config.ParseRate(text); got != want || err != nil {
			t.Errorf("%q: got %v, %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"", "10", "/s", "10/", "0/s", "-1/s", "1.5/s", "10/d", "5/2s", "1000001/s", "1/s/s"} {
		if got, err := config.ParseRate(text); err == nil {
			t.Errorf("%q: got %v, want an error", text, got)
		}
	}
}

func TestFormat(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 90 * time.Second: "90s", 48 * time.Hour: "2d", 90 * time.Minute: "90m", 1500 * time.Microsecond: "1.5ms",
	} {
		if got := config.FormatDuration(d); got != want {
			t.Errorf("%v: got %s, want %s", d, got, want)
		}
	}
	for n, want := range map[uint64]string{0: "0", 1000: "1000", 64 << 20: "64MiB", 1 << 40: "1024GiB"} {
		if got := config.FormatSize(n); got != want {
			t.Errorf("%d: got %s, want %s", n, got, want)
		}
	}
}

// Nothing panics, and what is read prints as something that is read the same.
func FuzzUnits(f *testing.F) {
	for _, s := range []string{"500ms", "5 m", "1h30m", "-1d", "64MiB", "10/s", "9223372036854775807ms", "1/h", "", "0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if d, err := config.ParseDuration(s); err == nil {
			for _, printed := range []string{config.FormatDuration(d), d.String()} {
				if again, err := config.ParseDuration(printed); again != d || err != nil {
					t.Errorf("%q is %v, its %q is %v, %v", s, d, printed, again, err)
				}
			}
		}
		if n, err := config.ParseSize(s); err == nil {
			if again, err := config.ParseSize(config.FormatSize(n)); again != n || err != nil {
				t.Errorf("%q is %d, its %q is %d, %v", s, n, config.FormatSize(n), again, err)
			}
		}
		if r, err := config.ParseRate(s); err == nil {
			if again, err := config.ParseRate(r.String()); again != r || err != nil {
				t.Errorf("%q is %v, read again %v, %v", s, r, again, err)
			}
		}
	})
}
