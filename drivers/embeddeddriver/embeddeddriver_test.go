package embeddeddriver_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/embeddeddriver"
)

func TestStoreIsLocked(t *testing.T) {
	dir := t.TempDir()
	d, _ := openStore(t, dir)
	_, err := embeddeddriver.Open(t.Context(), embeddeddriver.Options{Dir: dir})
	want := fmt.Sprintf("store %s is in use by process %d; ", dir, os.Getpid())
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %q", err, want)
	}
	opened := make(chan error, 1)
	go func() {
		d, err := embeddeddriver.Open(context.WithoutCancel(t.Context()), embeddeddriver.Options{Dir: dir, LockWait: time.Minute})
		if err == nil {
			err = d.Close(context.WithoutCancel(t.Context()))
		}
		opened <- err
	}()
	select {
	case err := <-opened:
		t.Fatalf("opened while locked: %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	closeAll(t, d)
	if err := <-opened; err != nil {
		t.Errorf("waiting for the lock: %v", err)
	}
}

func TestUnusableStore(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		o    embeddeddriver.Options
		want string
	}{
		{embeddeddriver.Options{}, "set dir"},
		{embeddeddriver.Options{Dir: file}, file},
		{embeddeddriver.Options{Dir: t.TempDir(), Listen: "nowhere"}, "listen"},
		{embeddeddriver.Options{Dir: t.TempDir(), Listen: "127.0.0.1:x"}, "no port"},
		{embeddeddriver.Options{Dir: t.TempDir(), Listen: "0.0.0.0:0"}, "user and password"},
		{embeddeddriver.Options{Dir: t.TempDir(), Listen: ":0"}, "user and password"},
		{embeddeddriver.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0", User: "u"}, "go together"},
	} {
		d, err := embeddeddriver.Open(t.Context(), c.o)
		if err == nil {
			closeAll(t, d)
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.o, err, c.want)
		}
	}
}

// TestFailedOpenUnlocks: what could not be opened leaves nothing behind.
func TestFailedOpenUnlocks(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	dir := t.TempDir()
	taken := openListening(t, t.TempDir(), "", "")
	if _, err := embeddeddriver.Open(t.Context(), embeddeddriver.Options{Dir: dir, Listen: taken.Addr()}); err == nil {
		t.Fatal("opened on an address that is taken")
	}
	closeAll(t, taken)
	d, _ := openStore(t, dir)
	closeAll(t, d)
}

func openListening(t *testing.T, dir, user, password string) *embeddeddriver.Driver {
	t.Helper()
	d, err := embeddeddriver.Open(t.Context(), embeddeddriver.Options{Dir: dir, Listen: "127.0.0.1:0", User: user, Password: password})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeAll(t, d) })
	return d
}

// TestProducersOnlyPublish: whoever connects from outside can send work and read the answer,
// and nothing else.
func TestProducersOnlyPublish(t *testing.T) {
	for _, user := range []string{"", "me"} {
		t.Run("user="+user, func(t *testing.T) {
			password := strings.Repeat("secret", len(user))
			d := openListening(t, t.TempDir(), user, password)
			q, err := d.OpenQueue(t.Context(), queueOptions())
			if err != nil {
				t.Fatal(err)
			}
			nc, err := nats.Connect("nats://"+d.Addr(), nats.UserInfo(user, password),
				nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // it is told what it may not do
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(nc.Close)
			publishes(t, nc, q)
			mischief(t, nc, q)
		})
	}
}

func publishes(t *testing.T, nc *nats.Conn, q drivers.Queue) {
	t.Helper()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	m := &nats.Msg{Subject: "guesthand.q.resize", Data: []byte("payload"), Header: nats.Header{"X-A": {"a"}, "Nats-Msg-Id": {"1"}}}
	for range 2 {
		if a, err := js.PublishMsg(t.Context(), m); err != nil || a.Stream != "guesthand_q" {
			t.Fatalf("publish: %+v, %v", a, err)
		}
	}
	got := receive(t, q, 1)[0]
	if got.Job != "resize" || string(got.Payload) != "payload" || got.Headers["X-A"][0] != "a" {
		t.Errorf("received %+v", got)
	}
	settle(t, q, drivers.Dead, got)
}

// mischief tries what a producer may not do, and looks whether it had any effect.
func mischief(t *testing.T, nc *nats.Conn, q drivers.Queue) {
	t.Helper()
	read := make(chan *nats.Msg, 100)
	for _, subject := range []string{">", "guesthand.>", "guesthand.q.>", "_HOST.>", "$JS.>", "$KV.>", "_INBOX.>", "$SYS.>"} {
		if _, err := nc.ChanSubscribe(subject, read); err != nil {
			t.Fatal(err)
		}
	}
	for _, subject := range []string{
		"$JS.API.STREAM.PURGE.guesthand_q", "$JS.API.STREAM.DELETE.guesthand_q", "$JS.API.STREAM.NAMES", "$JS.API.INFO",
		"$JS.API.CONSUMER.MSG.NEXT.guesthand_q.guesthand", "$KV.guesthand-tally_q.guesthand.birth",
		"guesthand.dead.q.1.1", "$JS.ACK.guesthand_q.guesthand.1.2.2.1.0",
	} {
		if m, err := nc.Request(subject, []byte("{}"), 100*time.Millisecond); err == nil {
			t.Errorf("%s was answered: %s", subject, m.Data)
		}
		// The answer to a message must not become a request either.
		reply := &nats.Msg{Subject: "guesthand.q.job", Reply: subject, Data: []byte("work")}
		if err := nc.PublishMsg(reply); err != nil {
			t.Fatal(err)
		}
	}
	rollup := &nats.Msg{Subject: "guesthand.q.job", Data: []byte("work"), Header: nats.Header{"Nats-Rollup": {"all"}}}
	if err := nc.PublishMsg(rollup); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil && !errors.Is(err, nats.ErrPermissionViolation) {
		t.Fatal(err)
	}
	// A message sent and read by the host meanwhile is not seen outside.
	send(t, q, drivers.Message{ID: "secret", Job: "job", Payload: []byte("secret")})
	for found := false; !found; {
		m := receive(t, q, 1)[0]
		found = m.ID == "secret"
		settle(t, q, drivers.Ack, m)
	}
	c, err := q.Counts(t.Context())
	if err != nil || c.Dead != 1 {
		t.Errorf("counts %+v, %v: the dead letter is gone, or there are more", c, err)
	}
	for {
		select {
		case m := <-read:
			if strings.Contains(string(m.Data), "secret") || !strings.HasPrefix(m.Subject, "_INBOX.") {
				t.Errorf("read %s: %s", m.Subject, m.Data)
			}
			continue
		case <-time.After(200 * time.Millisecond):
		}
		return
	}
}

// TestLargest: what the host takes fits, and so does its dead letter.
func TestLargest(t *testing.T) {
	_, q := openStore(t, t.TempDir())
	if got := q.Info().MaxPayload; got < 8<<20 {
		t.Fatalf("MaxPayload %d", got)
	}
	payload := bytes.Repeat([]byte("0123456789abcdef"), 8<<20/16)
	send(t, q, drivers.Message{ID: "big", Job: "job", Payload: payload})
	settle(t, q, drivers.Requeue, receive(t, q, 1)...)
	settle(t, q, drivers.Dead, receive(t, q, 1)...)
	dl := q.(drivers.DeadLetters)
	dead, err := dl.GetDead(t.Context(), "big")
	if err != nil || len(dead) != 1 || !bytes.Equal(dead[0].Payload, payload) {
		t.Fatalf("%d dead letters, %v", len(dead), err)
	}
	if err := dl.ReplayDead(t.Context(), dead[0].Entry); err != nil {
		t.Fatal(err)
	}
	if d := receive(t, q, 1)[0]; !bytes.Equal(d.Payload, payload) {
		t.Errorf("replayed %d bytes", len(d.Payload))
	}
}

// TestCleanReopen: an orderly end leaves nothing to recover, and started runs that were given
// back are no stalls.
func TestCleanReopen(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	dir := t.TempDir()
	d, q := openStore(t, dir)
	for i := range 10 {
		send(t, q, drivers.Message{ID: fmt.Sprint(i), Job: "job"})
	}
	for range 3 {
		for _, m := range receive(t, q, 10) {
			if m.Carry.Attempt() != 1 || m.Stalled != 0 {
				t.Errorf("%s: %+v, stalled %d", m.ID, m.Carry.Tally, m.Stalled)
			}
			q.(drivers.StartRecorder).RecordStart(m)
		}
		closeAll(t, d)
		d, q = openStore(t, dir)
	}
	closeAll(t, d)
}

// TestRecordStartIsCheap: it is on the path of every run.
func TestRecordStartIsCheap(t *testing.T) {
	_, q := openStore(t, t.TempDir())
	send(t, q, drivers.Message{Job: "job"})
	m := receive(t, q, 1)[0]
	if n := testing.AllocsPerRun(100, func() { q.(drivers.StartRecorder).RecordStart(m) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
