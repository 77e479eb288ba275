package main

import (
	"fmt"
	"strings"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/guesthand/guesthand/drivers/rabbitdriver/rabbittest"
	"github.com/guesthand/guesthand/drivers/redisdriver/redistest"
	"github.com/guesthand/guesthand/drivers/sqsdriver/sqstest"
)

// check holds a broker's own limits against a policy of ten attempts: a warning names both
// numbers and what to change.
func TestCheckNamesLimitsOfBrokers(t *testing.T) {
	check := func(t *testing.T, broker, names string, want ...string) {
		t.Helper()
		s := newSite(t, broker+"[queues.q]\nbroker = \"b\"\nretry = { max_attempts = 10 }\n"+names)
		s.puppet("puppet")
		out := s.must("check")
		for line := range strings.Lines(out) {
			if !strings.HasPrefix(line, "warning") {
				continue
			}
			missing := false
			for _, text := range want {
				missing = missing || !strings.Contains(line, text)
			}
			if !missing {
				return
			}
		}
		t.Errorf("no warning with %q in\n%s", want, out)
	}
	t.Run("rabbitmq", func(t *testing.T) {
		node := rabbittest.Start(t, rabbittest.Options{})
		c, err := amqp.Dial(node.URL)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ch, err := c.Channel()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ch.QueueDeclare("theirs", true, false, false, false, amqp.Table{"x-queue-type": "quorum", "x-delivery-limit": 3}); err != nil {
			t.Fatal(err)
		}
		check(t, fmt.Sprintf("[brokers.b]\ndriver = \"rabbitmq\"\nurl = %q\n", node.URL), "[queues.q.rabbitmq]\nqueue = \"theirs\"\n",
			"delivery-limit", "is 3", "10 attempts and 5 stalls", "raise the limit to at least 6")
	})
	t.Run("redis", func(t *testing.T) {
		server := redistest.Start(t, "maxmemory 100mb", "maxmemory-policy allkeys-lru")
		check(t, fmt.Sprintf("[brokers.b]\ndriver = \"redis\"\nurl = %q\n", server.URL), "", "allkeys-lru", "noeviction")
	})
	t.Run("sqs", func(t *testing.T) {
		sqstest.Credentials()
		server := sqstest.Start(t)
		broker := fmt.Sprintf("[brokers.b]\ndriver = \"sqs\"\nregion = \"us-east-1\"\nurl = %q\n", server.URL)
		s := newSite(t, broker+"[queues.q]\nbroker = \"b\"\nretry = {}\n")
		s.must("check") // makes the queues
		server.Set(t, "guesthand_q", "RedrivePolicy", `{"deadLetterTargetArn":"arn:aws:sqs:us-east-1:000000000000:guesthand_q_dead","maxReceiveCount":2}`)
		check(t, broker, "", "maxReceiveCount", "is 2", "10 attempts and 5 stalls", "raise the limit to at least 6")
	})
}
