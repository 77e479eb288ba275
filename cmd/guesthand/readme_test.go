package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/cfdriver"
	"github.com/guesthand/guesthand/drivers/embeddeddriver"
	"github.com/guesthand/guesthand/drivers/memdriver"
	"github.com/guesthand/guesthand/drivers/natsdriver"
	"github.com/guesthand/guesthand/drivers/pgdriver"
	"github.com/guesthand/guesthand/drivers/rabbitdriver"
	"github.com/guesthand/guesthand/drivers/redisdriver"
	"github.com/guesthand/guesthand/drivers/sqsdriver"
)

// The README's table of brokers says what the drivers say of themselves.
func TestReadmeShowsCaps(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	caps := []drivers.Caps{embeddeddriver.Caps(), natsdriver.Caps(), redisdriver.Caps(), pgdriver.Caps(), rabbitdriver.Caps(),
		sqsdriver.Caps(), cfdriver.Caps(), memdriver.Caps()}
	row := func(name string, cell func(drivers.Caps) string) {
		line := "| " + name + " |"
		for _, c := range caps {
			line += " " + cell(c) + " |"
		}
		if !strings.Contains(string(readme), line+"\n") {
			t.Errorf("README.md lacks the row\n%s", line)
		}
	}
	flag := func(f func(drivers.Caps) bool) func(drivers.Caps) string {
		return func(c drivers.Caps) string {
			if f(c) {
				return "yes"
			}
			return "no"
		}
	}
	duration := func(f func(drivers.Caps) time.Duration, zero string) func(drivers.Caps) string {
		return func(c drivers.Caps) string {
			if d := f(c); d != 0 {
				return fmt.Sprint(d)
			}
			return zero
		}
	}
	row("longest native delay", duration(func(c drivers.Caps) time.Duration { return c.MaxDelay }, "any"))
	row("granularity", duration(func(c drivers.Caps) time.Duration { return c.Granularity }, "none"))
	row("renewable lease", flag(func(c drivers.Caps) bool { return c.Renewable }))
	row("fenced by the broker", flag(func(c drivers.Caps) bool { return c.Fenced }))
	row("exact counts", flag(func(c drivers.Caps) bool { return c.ExactCounts }))
	row("rejects are counted", flag(func(c drivers.Caps) bool { return c.RejectCounted }))
	row("atomic dead-lettering", flag(func(c drivers.Caps) bool { return c.AtomicDead }))
	row("dead letters can be browsed", flag(func(c drivers.Caps) bool { return c.BrowseDead }))
	row("stable ids", flag(func(c drivers.Caps) bool { return c.StableIDs }))
	row("ordered first deliveries", flag(func(c drivers.Caps) bool { return c.Ordered }))
	row("durable", flag(func(c drivers.Caps) bool { return c.Durable }))
	row("keys", flag(func(c drivers.Caps) bool { return c.Keys }))
}
