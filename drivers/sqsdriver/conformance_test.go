package sqsdriver_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/drivertest"
	"github.com/guesthand/guesthand/drivers/memdriver"
	"github.com/guesthand/guesthand/drivers/sqsdriver"
	"github.com/guesthand/guesthand/drivers/sqsdriver/sqstest"
)

// broker is what a harness needs of either server.
type broker struct {
	url    string
	server *sqstest.Server // nil for the emulator
	store  drivers.KeyValue
}

func (b *broker) harness(isFIFO bool) *drivertest.Harness {
	suffix := ""
	h := &drivertest.Harness{
		Caps: sqsdriver.Caps(), Lease: 3 * time.Second, Hammer: 600,
		RejectReturns: true, DeadBounds: "SQS drops dead letters by age only, and keeps them for a minute at least",
	}
	if isFIFO {
		suffix = ".fifo"
		h.Caps, h.DelayedInFlight = sqsdriver.FIFOCaps(true), true
	}
	h.Open = func(t *testing.T, worker string, o drivertest.Tuning) drivers.Driver {
		d := open(t, b.url, sqsdriver.Options{Worker: worker, MaxDelay: o.MaxDelay, Store: b.store})
		if isFIFO {
			return fifo{d}
		}
		return d
	}
	h.Native = func(t *testing.T, queue string, payload []byte, headers drivers.Header) {
		sendNative(t, b.url, "guesthand_"+queue+suffix, payload, headers)
	}
	return h
}

func TestConformanceEmulator(t *testing.T) {
	e := sqstest.StartEmulator(t)
	run := func(isFIFO bool) func(t *testing.T) {
		return func(t *testing.T) {
			b := &broker{url: e.URL}
			if isFIFO {
				b.store = store(t)
			}
			drivertest.Run(t, func(*testing.T, bool) *drivertest.Harness { return b.harness(isFIFO) })
		}
	}
	t.Run("Standard", run(false))
	t.Run("FIFO", run(true))
}

func TestConformanceServer(t *testing.T) {
	run := func(isFIFO bool) func(t *testing.T) {
		return func(t *testing.T) {
			start := func(t *testing.T) *broker {
				s := sqstest.Start(t)
				s.WaitSecond(200 * time.Millisecond)
				b := &broker{url: s.URL, server: s}
				if isFIFO {
					b.store = store(t)
				}
				return b
			}
			shared := start(t)
			drivertest.Run(t, func(t *testing.T, exclusive bool) *drivertest.Harness {
				if !exclusive {
					return shared.harness(isFIFO)
				}
				b := start(t)
				h := b.harness(isFIFO)
				h.Restart = func(t *testing.T) { b.server.Restart(t) }
				h.Kill = h.Restart
				open, proxies := h.Open, map[drivers.Driver]*sqstest.Proxy{}
				h.Open = func(t *testing.T, worker string, o drivertest.Tuning) drivers.Driver {
					p := sqstest.Through(t, b.server.Addr())
					url := b.url
					b.url = p.URL
					d := open(t, worker, o)
					b.url = url
					proxies[d] = p
					return d
				}
				h.Disconnect = func(_ *testing.T, d drivers.Driver) { proxies[d].Cut() }
				return h
			})
		}
	}
	t.Run("Standard", run(false))
	t.Run("FIFO", run(true))
}

// store is a [store] in memory.
func store(t testing.TB) drivers.KeyValue {
	t.Helper()
	d, err := memdriver.Open(t.Context(), memdriver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAll(t, d) })
	kv, ok := any(d).(drivers.KeyValue)
	if !ok {
		t.Fatal("the memory driver keeps no values by key")
	}
	return kv
}

// client is a plain client of the SDK.
func client(t testing.TB, url string) *sqs.Client {
	t.Helper()
	cfg, err := config.LoadDefaultConfig(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return sqs.NewFromConfig(cfg, func(o *sqs.Options) { o.BaseEndpoint = aws.String(url) })
}

func urlOf(t testing.TB, c *sqs.Client, name string) *string {
	t.Helper()
	out, err := c.GetQueueUrl(context.Background(), &sqs.GetQueueUrlInput{QueueName: aws.String(name)})
	if err != nil {
		t.Fatal(err)
	}
	return out.QueueUrl
}

// sendNative publishes as a foreign producer does that knows how to say base64.
func sendNative(t testing.TB, url, queue string, payload []byte, headers drivers.Header) {
	t.Helper()
	c := client(t, url)
	in := &sqs.SendMessageInput{
		QueueUrl: urlOf(t, c, queue), MessageAttributes: map[string]types.MessageAttributeValue{},
	}
	set := func(name, kind, value string) {
		in.MessageAttributes[name] = types.MessageAttributeValue{DataType: aws.String(kind), StringValue: aws.String(value)}
	}
	body, err := json.Marshal(payload) // base64 in quotes
	if err != nil {
		t.Fatal(err)
	}
	in.MessageBody = aws.String(string(body[1 : len(body)-1]))
	set("Guesthand-Encoding", "String", "base64")
	for name, values := range headers {
		if len(values) == 1 {
			set(name, "String", values[0])
			continue
		}
		b, err := json.Marshal(values)
		if err != nil {
			t.Fatal(err)
		}
		set(name, "String.Array", string(b))
	}
	if len(queue) > 5 && queue[len(queue)-5:] == ".fifo" {
		in.MessageGroupId = aws.String("group")
		in.MessageDeduplicationId = aws.String(fmt.Sprint(time.Now().UnixNano()))
	}
	if _, err := c.SendMessage(context.Background(), in); err != nil {
		t.Fatal(err)
	}
}
