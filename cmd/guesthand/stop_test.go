package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/guesthand/guesthand/drivers/natsdriver/natstest"
	"github.com/guesthand/guesthand/host/hosttest"
)

const plainConfig = `
[brokers.b]
driver = "memory"
[queues.q]
broker = "b"
[admin]
listen = "none"
`

// launch starts a host and does not wait for it.
func (s *site) launch() *process {
	s.t.Helper()
	p := &process{t: s.t, cmd: s.command("run"), done: make(chan struct{}), seen: make(chan struct{}, 1)}
	talk, err := p.cmd.StderrPipe()
	if err != nil {
		s.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	go p.read(talk)
	s.t.Cleanup(p.kill)
	return p
}

// slowStart is a broker address that takes connections and says nothing, and tells of the first.
func slowStart(t *testing.T) (url string, met <-chan struct{}) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	first := make(chan struct{}, 1)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { conn.Close() })
			select {
			case first <- struct{}{}:
			default:
			}
		}
	}()
	return "nats://" + l.Addr().String(), first
}

func TestStopWhileOpening(t *testing.T) {
	url, met := slowStart(t)
	s := newSite(t, fmt.Sprintf("[brokers.b]\ndriver = \"nats\"\nurl = %q\n[queues.q]\nbroker = \"b\"\n", url))
	p := s.launch()
	<-met
	p.signal(syscall.SIGTERM)
	if status := p.wait(); status != 0 {
		t.Errorf("status %d\n%s", status, p.tail())
	}
}

func TestSecondSignal(t *testing.T) {
	t.Run("while runs drain", func(t *testing.T) {
		s := newSite(t, plainConfig)
		s.puppet("puppet")
		p := s.start()
		s.must("send", "q", "puppet", "--payload", "hang")
		p.waitFor("puppet hangs")
		p.signal(syscall.SIGTERM)
		p.waitFor("draining")
		p.signal(syscall.SIGTERM)
		if status := p.wait(); status != 128+15 {
			t.Errorf("status %d", status)
		}
	})
	t.Run("while a reload takes its time", func(t *testing.T) {
		s := newSite(t, plainConfig+"[handlers.slow]\ntimeout = \"1s\"\n")
		slow, err := os.ReadFile(filepath.Join(hosttest.Root(), "host", "engine", "testdata", "init_loop.wasm"))
		if err != nil {
			t.Fatal(err)
		}
		p := s.start()
		hosttest.Install(t, filepath.Join(s.dir, "plugins"), "slow", slow)
		hosttest.Eventually(t, patience, "the module to be refused", func() bool {
			status, err := s.get("/v1/handlers")
			return err == nil && strings.Contains(status, `"pending":false`) && strings.Contains(status, "deadline")
		})
		s.write("config.toml", plainConfig+"[handlers.slow]\ntimeout = \"10m\"\n")
		p.signal(syscall.SIGHUP)
		p.waitFor("reloading")
		p.signal(syscall.SIGINT)
		p.waitFor("draining")
		p.signal(syscall.SIGINT)
		if status := p.wait(); status != 128+2 {
			t.Errorf("status %d\n%s", status, p.tail())
		}
	})
}

// A module that is being started does not keep the host from stopping.
func TestStopWhileAModuleStarts(t *testing.T) {
	s := newSite(t, plainConfig+"[handlers.slow]\ntimeout = \"10m\"\n")
	slow, err := os.ReadFile(filepath.Join(hosttest.Root(), "host", "engine", "testdata", "init_loop.wasm"))
	if err != nil {
		t.Fatal(err)
	}
	p := s.start()
	hosttest.Install(t, filepath.Join(s.dir, "plugins"), "slow", slow)
	hosttest.Eventually(t, patience, "the module to be loading", func() bool {
		status, err := s.get("/v1/handlers")
		return err == nil && strings.Contains(status, `"pending":true`)
	})
	p.stop()
}

func TestRefusalsExitAlikeWithAndWithoutAHost(t *testing.T) {
	embedded := strings.Replace(plainConfig, `driver = "memory"`, "driver = \"embedded\"\ndir = \"data/b\"", 1)
	s := newSite(t, embedded+"[ledger]\ndriver = \"none\"\n")
	asked := map[string][]string{
		"an unknown queue":     {"dead", "list", "nosuch"},
		"an unknown queue too": {"send", "nosuch", "j"},
		"no such letter":       {"dead", "show", "q", "nosuch"},
		"no ledger":            {"runs"},
		"waiting on no ledger": {"send", "q", "j", "--wait", "--timeout", "1s"},
	}
	without := map[string]int{}
	for what, args := range asked {
		_, _, without[what] = s.do(args...)
	}
	s.start()
	for what, args := range asked {
		_, talk, status := s.do(args...)
		if status != without[what] || status == 0 || status == exitUnreachable {
			t.Errorf("%s: status %d with a host, %d without: %s", what, status, without[what], talk)
		}
	}
	if depth := s.queue("q").Depth; depth != 0 {
		t.Errorf("%d messages were sent that nothing can be waited for", depth)
	}
}

func TestCheckOfABadConfiguration(t *testing.T) {
	s := newSite(t, "[queues.q]\nbroker = \"nowhere\"\n")
	for _, args := range [][]string{{"check"}, {"check", "--json"}} {
		if _, _, status := s.do(args...); status != exitUsage {
			t.Errorf("%v: status %d", args, status)
		}
	}
}

// A consumer that others made, and that gives up before the policy does.
func TestCheckSeesMaxDeliver(t *testing.T) {
	server := natstest.Start(t)
	nc, err := nats.Connect(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "ORDERS", Subjects: []string{"orders.>"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateConsumer(t.Context(), "ORDERS", jetstream.ConsumerConfig{Durable: "workers", AckPolicy: jetstream.AckExplicitPolicy, MaxDeliver: 3}); err != nil {
		t.Fatal(err)
	}
	s := newSite(t, fmt.Sprintf("[brokers.b]\ndriver = \"nats\"\nurl = %q\n[queues.q]\nbroker = \"b\"\nretry = { max_attempts = 10 }\n[queues.q.nats]\nstream = \"ORDERS\"\nsubject = \"orders.>\"\nconsumer = \"workers\"\n", server.URL))
	if out := s.must("check"); !strings.Contains(out, "max_deliver of consumer workers is 3, and the policy allows 10 attempts") {
		t.Errorf("check says nothing of it:\n%s", out)
	}
}

// get asks the running host's API through its socket.
func (s *site) get(path string) (string, error) {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", filepath.Join(s.dir, "data", "guesthand.sock"))
		}}}
	res, err := client.Get("http://localhost" + path)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return string(b), err
}
