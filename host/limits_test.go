package host_test

import (
	"strings"
	"testing"
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host"
	"github.com/guesthand/guesthand/host/config"
	"github.com/guesthand/guesthand/host/policy"
)

func TestLimits(t *testing.T) {
	retry := func(attempts, stalls int) *policy.Policy {
		p := policy.Default()
		p.MaxAttempts, p.MaxStalls = attempts, stalls
		return &p
	}
	limit := func(n int, perCopy bool) drivers.DeliveryLimit {
		return drivers.DeliveryLimit{Deliveries: n, Setting: "delivery-limit of queue work", PerCopy: perCopy}
	}
	for name, tt := range map[string]struct {
		retry *policy.Policy
		limit drivers.DeliveryLimit
		want  []string // in the one warning; none: no warning
	}{
		"no limit":                {retry(10, 5), limit(0, false), nil},
		"limit above":             {retry(5, 5), limit(6, false), nil},
		"limit below attempts":    {retry(10, 1), limit(3, false), []string{"delivery-limit of queue work is 3", "10 attempts and 1 stalls", "at least 10"}},
		"limit below stalls":      {retry(2, 5), limit(3, false), []string{"is 3", "5 stalls", "at least 6"}},
		"attempts without cap":    {retry(0, 1), limit(1000, false), []string{"is 1000", "attempts without cap", "cap max_attempts"}},
		"per copy, limit below":   {retry(10, 5), limit(3, true), []string{"is 3", "10 attempts and 5 stalls", "at least 6", "max_stalls to 2"}},
		"per copy, limit above":   {retry(10, 2), limit(3, true), nil},
		"per copy, without a cap": {retry(0, 2), limit(3, true), nil},
	} {
		t.Run(name, func(t *testing.T) {
			c := config.Defaults()
			c.Queues["work"] = config.Queue{Name: "work", Retry: tt.retry}
			info := drivers.Info{Caps: drivers.Caps{Renewable: true}, DeliveryLimit: tt.limit}
			got, err := host.Limits(c, "work", info, nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(got) > 1 || (len(got) == 1) != (tt.want != nil) {
				t.Fatalf("warnings %q", got)
			}
			for _, want := range tt.want {
				if !strings.Contains(got[0], want) {
					t.Errorf("warning %q lacks %q", got[0], want)
				}
			}
		})
	}
}

func TestLimitsOfALeaseThatCannotBeRenewed(t *testing.T) {
	c := config.Defaults()
	c.Queues["all"] = config.Queue{Name: "all"}
	c.Queues["one"] = config.Queue{Name: "one", Handler: "quick"}
	handlers := map[string]config.Handler{
		"quick": {Job: "quick", Timeout: 20 * time.Second},
		"slow":  {Job: "slow", Timeout: 5 * time.Minute},
	}
	for _, tt := range []struct {
		queue string
		lease time.Duration
		want  string
	}{
		{"all", 5*time.Minute + 40*time.Second, ""},
		{"all", 5 * time.Minute, `the lease is 5m and handler "slow" may run 5m; set lease = "340s"`},
		{"one", time.Minute, ""},
		{"one", 59 * time.Second, `the lease is 59s and handler "quick" may run 20s; set lease = "1m"`},
	} {
		_, err := host.Limits(c, tt.queue, drivers.Info{Lease: tt.lease}, handlers)
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%s with a lease of %s: %v", tt.queue, tt.lease, err)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s with a lease of %s: %v, want %q", tt.queue, tt.lease, err, tt.want)
		}
	}
}
