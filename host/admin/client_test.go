package admin_test

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host/admin"
	"github.com/guesthand/guesthand/host/ledger"
)

func TestClientComesBackToARestartedHost(t *testing.T) {
	f := &fake{}
	path := filepath.Join(t.TempDir(), "s")
	asked := make(chan struct{}, 100)
	first := listen(t, path, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		asked <- struct{}{}
		panic(http.ErrAbortHandler) // as a host that is killed while it answers
	}))
	c, running := admin.DialSocket(t.Context(), path)
	if !running {
		t.Fatal("nothing answers")
	}
	got := make(chan error, 1)
	go func() {
		_, err := c.Queues(t.Context())
		got <- err
	}()
	<-asked
	first.Close()
	l, err := admin.ListenSocket(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- newServer(f).Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if err := <-got; err != nil {
		t.Errorf("asked again of the new host: %v", err)
	}
}

// A message that may have been taken is not sent a second time.
func TestClientDoesNotRepeatASend(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	asked := make(chan struct{}, 10)
	listen(t, path, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		asked <- struct{}{}
		panic(http.ErrAbortHandler)
	}))
	c, _ := admin.DialSocket(t.Context(), path)
	_, _, err := c.Send(t.Context(), "q", []drivers.Message{{Job: "j"}})
	var away *admin.UnreachableError
	if !errors.As(err, &away) || away.NotSent {
		t.Errorf("%v", err)
	}
	if len(asked) != 1 {
		t.Errorf("sent %d times", len(asked))
	}
}

func TestClientThatNeverMetAHostDoesNotWait(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	c, err := admin.NewClient("http://"+l.Addr().String(), "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), admin.ReconnectBudget/2)
	defer cancel()
	var away *admin.UnreachableError
	if _, err := c.Queues(ctx); !errors.As(err, &away) || !away.NotSent || ctx.Err() != nil {
		t.Errorf("%v", err)
	}
	for _, bad := range []string{"", "localhost:7070", "ftp://x", "http://"} {
		if _, err := admin.NewClient(bad, ""); err == nil {
			t.Errorf("%q is taken for an address", bad)
		}
	}
}

func TestSendInSeveralRequests(t *testing.T) {
	f := &fake{}
	_, socket, _ := serve(t, f, "")
	c, _ := admin.DialSocket(t.Context(), socket)
	ms := make([]drivers.Message, 1500)
	for i := range ms {
		ms[i] = drivers.Message{Job: "j", Key: "k", Headers: drivers.Header{"a": {"b"}}, Payload: make([]byte, 40<<10)}
	}
	ids, errs, err := c.Send(t.Context(), "q", ms)
	if err != nil || len(ids) != len(ms) || len(errs) != len(ms) || len(f.sent) != len(ms) {
		t.Fatalf("%d ids, %d errors, %d sent, %v", len(ids), len(errs), len(f.sent), err)
	}
	if m := f.sent[1499]; m.Key != "k" || m.Headers["a"][0] != "b" || len(m.Payload) != 40<<10 {
		t.Errorf("%+v", m)
	}
}

func TestErrorsKeepTheirMeaning(t *testing.T) {
	f := &fake{}
	_, socket, _ := serve(t, f, "")
	c, _ := admin.DialSocket(t.Context(), socket)
	for _, want := range []error{drivers.ErrTooLarge, drivers.ErrInvalid, drivers.ErrUnsupported} {
		f.sendErr = want
		_, errs, err := c.Send(t.Context(), "q", []drivers.Message{{Job: "j"}})
		if err != nil || !errors.Is(errs[0], want) {
			t.Errorf("%v came as %v, %v", want, errs, err)
		}
	}
}

func TestRunsCrossTheWire(t *testing.T) {
	f := &fake{rows: []ledger.Row{{ID: "1", Queue: "q", Job: "j", Attempt: 2, Outcome: "delay", Cause: "returned", Code: 11, Delay: time.Hour,
		Error: "e", Result: []byte{0xff}, Started: time.Unix(1, 2).UTC(), Finished: time.Unix(3, 4).UTC(), Settlement: ledger.Delayed, Digest: "d", Worker: "w"},
		{ID: "2", Outcome: "stalled", Code: -1, Finished: time.Unix(5, 0).UTC(), Settlement: ledger.None}}}
	_, socket, _ := serve(t, f, "")
	c, _ := admin.DialSocket(t.Context(), socket)
	since := time.Unix(7, 8)
	rows, err := c.Runs(t.Context(), ledger.Filter{Queue: "q", Job: "j", Outcome: "delay", ID: "1", Since: since, Limit: 5})
	if err != nil || !reflect.DeepEqual(rows, f.rows) {
		t.Errorf("%+v, %v", rows, err)
	}
	if !f.filter.Since.Equal(since) || f.filter.Queue != "q" || f.filter.Job != "j" || f.filter.Outcome != "delay" || f.filter.ID != "1" || f.filter.Limit != 5 {
		t.Errorf("filter %+v", f.filter)
	}
}

// listen serves a handler on a socket until the test ends.
func listen(t *testing.T, path string, h http.Handler) *http.Server {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0)}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return s
}
