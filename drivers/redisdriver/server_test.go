package redisdriver_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/redisdriver"
	"github.com/guesthand/guesthand/drivers/redisdriver/redistest"
)

func TestFindings(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		config []string
		want   []string // a part of each warning
	}{
		"fine":       {},
		"lru":        {[]string{"maxmemory-policy allkeys-lru", "maxmemory 100mb"}, []string{"maxmemory-policy is allkeys-lru: a full server throws away messages, counts or leases (maxmemory is 100.00M); set maxmemory-policy noeviction"}},
		"ttl":        {[]string{"maxmemory-policy volatile-ttl"}, []string{"maxmemory is 0 now, so nothing is evicted yet"}},
		"snapshots":  {[]string{"appendonly no", "save 60 1"}, []string{"since its last snapshot"}},
		"nothing":    {[]string{"appendonly no"}, []string{"a restart of the server loses every message; set appendonly yes"}},
		"never sync": {[]string{"appendfsync no"}, []string{"appendfsync is no"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := redistest.Start(t, c.config...)
			q := worker(t, s, redisdriver.Options{}, drivers.QueueOptions{})
			var warnings []string
			for _, f := range q.Info().Findings {
				if f.Warning {
					warnings = append(warnings, f.Text)
				}
			}
			if len(warnings) != len(c.want) {
				t.Fatalf("warnings %q, want %d", warnings, len(c.want))
			}
			for i, want := range c.want {
				if !strings.Contains(warnings[i], want) {
					t.Errorf("warning %q, want %q", warnings[i], want)
				}
			}
		})
	}
}

// oldServer answers as a server of a version does: enough of the protocol to be asked.
func oldServer(t *testing.T, info string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go answerOld(c, info)
		}
	}()
	return "redis://" + l.Addr().String()
}

func answerOld(c net.Conn, info string) {
	defer func() { _ = c.Close() }()
	r := bufio.NewReader(c)
	for {
		var n, size int
		if _, err := fmt.Fscanf(r, "*%d\r\n", &n); err != nil {
			return
		}
		args := make([]string, n)
		for i := range args {
			if _, err := fmt.Fscanf(r, "$%d\r\n", &size); err != nil {
				return
			}
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			args[i] = strings.TrimSpace(line)
		}
		answer := "+OK\r\n"
		if strings.EqualFold(args[0], "info") {
			answer = fmt.Sprintf("$%d\r\n%s\r\n", len(info), info)
		} else if strings.EqualFold(args[0], "hello") {
			answer = "-ERR unknown command 'HELLO'\r\n"
		}
		if _, err := fmt.Fprint(c, answer); err != nil {
			return
		}
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	locked := redistest.Start(t, "requirepass secret")
	cluster := redistest.Start(t, "cluster-enabled yes", fmt.Sprintf("cluster-port %d", redistest.FreePort(t)))
	primary := redistest.Start(t)
	replica := redistest.Start(t, "replicaof 127.0.0.1 "+primary.Addr[strings.LastIndex(primary.Addr, ":")+1:])
	for name, c := range map[string]struct {
		o    redisdriver.Options
		want string
	}{
		"old":            {redisdriver.Options{URL: oldServer(t, "redis_version:6.2.14\r\n")}, "version 6.2.14; guesthand needs 7.0 or newer"},
		"older":          {redisdriver.Options{URL: oldServer(t, "redis_version:5.0.7\r\n")}, "upgrade Redis"},
		"no password":    {redisdriver.Options{URL: locked.URL}, "NOAUTH"},
		"wrong password": {redisdriver.Options{URL: strings.Replace(locked.URL, "redis://", "redis://:hunter2@", 1)}, "WRONGPASS"},
		"cluster":        {redisdriver.Options{URL: cluster.URL}, "part of a cluster"},
		"replica":        {redisdriver.Options{URL: replica.URL}, "is a replica of 127.0.0.1"},
		"nobody":         {redisdriver.Options{URL: "redis://127.0.0.1:1"}, "refused"},
		"no address":     {redisdriver.Options{URL: "http://user:hunter2@127.0.0.1"}, "url"},
		"nonsense":       {redisdriver.Options{URL: "redis://user:hunter2@127.0.0.1:x"}, "url"},
	} {
		t.Run(name, func(t *testing.T) {
			d, err := redisdriver.Open(t.Context(), c.o)
			if err == nil {
				closeAll(t, d)
				t.Fatal("opened")
			}
			if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
				t.Errorf("error %q, want %q in it and no password", err, c.want)
			}
		})
	}
	worker(t, locked, redisdriver.Options{Password: "secret"}, drivers.QueueOptions{})
}

// TestFullServer: a server whose memory is full takes no message, and every one it has can
// still be finished, retried and buried.
func TestFullServer(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t, "maxmemory 12mb")
	q := worker(t, s, redisdriver.Options{}, drivers.QueueOptions{})
	sent := 0
	payload := bytes.Repeat([]byte("x"), 64<<10)
	var err error
	for ; err == nil && sent < 1000; sent++ {
		err = q.Send(t.Context(), []drivers.Message{{ID: fmt.Sprint(sent), Job: "job", Payload: payload}})[0]
	}
	if err == nil || !strings.Contains(err.Error(), "OOM") {
		t.Fatalf("after %d messages: %v", sent, err)
	}
	sent--
	c := client(t, s)
	raw(t, c, "config", "set", "maxmemory", "1mb") // worse than full
	ds := receive(t, q, 3)
	if err := q.Renew(t.Context(), ds)[0]; err != nil {
		t.Error(err)
	}
	settle(t, q, drivers.Requeue, ds[0])
	settle(t, q, drivers.Dead, ds[1])
	settle(t, q, drivers.Ack, ds[2])
	hasCounts(t, q, drivers.Counts{Depth: sent - 2, Dead: 1})
}

// TestNarrowUser: a user that may not subscribe, publish or read the configuration is served by
// polling.
func TestNarrowUser(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	raw(t, client(t, s), "acl", "setuser", "worker", "on", ">pw", "~guesthand*", "resetchannels", "+@all", "-@dangerous", "+info", "-@pubsub", "+publish")
	q := worker(t, s, redisdriver.Options{User: "worker", Password: "pw"}, drivers.QueueOptions{})
	received := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		ds, err := q.Receive(ctx, 1)
		if err == nil {
			err = q.Settle(ctx, []drivers.Settlement{{Delivery: ds[0], Verdict: drivers.Ack}})[0]
		}
		received <- err
	}()
	send(t, q, drivers.Message{ID: "m"})
	if err := <-received; err != nil {
		t.Fatal(err)
	}
}

// TestDocumentedUser: the rights that the documentation gives a user are enough for all, and
// nothing is reported as missing.
func TestDocumentedUser(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../../docs/drivers/redis.md")
	if err != nil {
		t.Fatal(err)
	}
	_, line, ok := strings.Cut(string(doc), "\nACL SETUSER ")
	if !ok {
		t.Fatal("no ACL SETUSER in the documentation")
	}
	line, _, _ = strings.Cut(line, "\n")
	args := []any{"acl", "setuser"}
	for _, word := range strings.Fields(line) {
		args = append(args, word)
	}
	s := redistest.Start(t)
	raw(t, client(t, s), args...)
	var log bytes.Buffer
	o := quickReap
	o.User, o.Password, o.Logger = "guesthand", "secret", slog.New(slog.NewTextHandler(&log, nil))
	d := open(t, s, o)
	q := openQueue(t, d, drivers.QueueOptions{DeadKeep: time.Hour})
	if fs := q.Info().Findings; len(fs) != 1 || fs[0].Warning {
		t.Errorf("findings %+v, want the one that needs config|get", fs)
	}
	send(t, q, drivers.Message{ID: "m", Key: "k", Headers: drivers.Header{"Guesthand-Reply-To": {"guesthand:reply:x"}}})
	m := receive(t, q, 1)
	if err := errors.Join(q.Renew(t.Context(), m)[0], q.(drivers.Replier).Reply(t.Context(), m[0], drivers.Reply{})); err != nil {
		t.Error(err)
	}
	settle(t, q, drivers.Dead, m...)
	dead := q.(drivers.DeadLetters)
	ls, err := dead.GetDead(t.Context(), "m")
	if err != nil {
		t.Fatal(err)
	}
	if err := dead.ReplayDead(t.Context(), ls[0].Entry); err != nil {
		t.Error(err)
	}
	b, err := d.OpenBucket(t.Context(), drivers.BucketOptions{Name: "b"})
	if err == nil {
		err = b.Put(t.Context(), []byte("k"), []byte("v"), time.Hour)
	}
	if err != nil {
		t.Error(err)
	}
	eventually(t, "a step of the scan", func() bool { return raw(t, client(t, s), "exists", "guesthand:{q}:scanned") == int64(1) })
	closeAll(t, d)
	if log.Len() > 0 {
		t.Errorf("log:\n%s", log.String())
	}
}

// TestRightsTakenAway: waiting does not bring a user's rights back.
func TestRightsTakenAway(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	c := client(t, s)
	raw(t, c, "acl", "setuser", "worker", "on", ">pw", "~guesthand*", "allchannels", "+@all")
	q := worker(t, s, redisdriver.Options{User: "worker", Password: "pw"}, drivers.QueueOptions{})
	raw(t, c, "acl", "setuser", "worker", "-evalsha")
	if _, err := q.Receive(t.Context(), 1); err == nil || !strings.Contains(err.Error(), "NOPERM") {
		t.Errorf("receive without the right to: %v", err)
	}
	raw(t, c, "acl", "setuser", "worker", "+evalsha")
}

func TestNames(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	d := open(t, s, redisdriver.Options{})
	t.Cleanup(func() { closeAll(t, d) })
	for prefix, ok := range map[string]bool{
		"thumbs:{a}": true, "{a}": true, "a{b}c": true,
		"thumbs": false, "{}": false, "{a}{b}": false, "{a": false, "guesthand:reply:{a}": false, "guesthand-kv:{a}": false, "a b{c}": false,
	} {
		q, err := d.OpenQueue(t.Context(), drivers.QueueOptions{Name: "q", Create: true, Names: map[string]string{redisdriver.NamePrefix: prefix}})
		if (err == nil) != ok {
			t.Errorf("prefix %q: %v", prefix, err)
		}
		if err == nil {
			send(t, q, drivers.Message{ID: "m"})
			if n := raw(t, client(t, s), "llen", prefix+":ready"); n != int64(1) {
				t.Errorf("prefix %q: %v messages under it", prefix, n)
			}
			settle(t, q, drivers.Ack, receive(t, q, 1)...)
		}
	}
	for _, o := range []drivers.QueueOptions{{Name: "A B"}, {Name: "q", Names: map[string]string{"stream": "x"}}} {
		if _, err := d.OpenQueue(t.Context(), o); err == nil {
			t.Errorf("opened %+v", o)
		}
	}
	raw(t, client(t, s), "hset", "guesthand:{newer}:meta", "format", 2)
	if _, err := d.OpenQueue(t.Context(), drivers.QueueOptions{Name: "newer", Create: true}); err == nil || !strings.Contains(err.Error(), "newer guesthand") {
		t.Errorf("opened a queue of a newer version: %v", err)
	}
}

// TestLargestPayload: what is as large as the server takes goes through every station.
func TestLargestPayload(t *testing.T) {
	t.Parallel()
	const most = 1 << 20 // the smallest limit that can be set
	s := redistest.Start(t, "proto-max-bulk-len 1mb")
	q := worker(t, s, redisdriver.Options{}, drivers.QueueOptions{})
	if got := q.Info().MaxPayload; got != most {
		t.Fatalf("MaxPayload %d", got)
	}
	payload := bytes.Repeat([]byte("x"), most)
	if err := q.Send(t.Context(), []drivers.Message{{Job: "job", Payload: append(payload, 'x')}})[0]; !errors.Is(err, drivers.ErrTooLarge) {
		t.Errorf("one byte more: %v", err)
	}
	send(t, q, drivers.Message{ID: "m", Payload: payload, Headers: drivers.Header{"X-A": {strings.Repeat("a", 10_000)}}})
	settle(t, q, drivers.Requeue, receive(t, q, 1)...)
	settle(t, q, drivers.Dead, receive(t, q, 1)...)
	dead := q.(drivers.DeadLetters)
	ls, err := dead.ListDead(t.Context(), "", 1)
	if err != nil || len(ls) != 1 || !bytes.Equal(ls[0].Payload, payload) || len(ls[0].Headers["X-A"]) != 1 {
		t.Fatalf("%d dead letters, %v", len(ls), err)
	}
	if err := dead.ReplayDead(t.Context(), ls[0].Entry); err != nil {
		t.Fatal(err)
	}
	d := receive(t, q, 1)
	if !bytes.Equal(d[0].Payload, payload) {
		t.Errorf("payload of %d bytes", len(d[0].Payload))
	}
	settle(t, q, drivers.Ack, d...)
}

// TestManyLargeMessages: one answer is bounded in bytes, too, and nothing is lost or out of
// order by that.
func TestManyLargeMessages(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	q := worker(t, s, redisdriver.Options{}, drivers.QueueOptions{})
	payload := bytes.Repeat([]byte("x"), 3<<20)
	for i := range 8 {
		send(t, q, drivers.Message{ID: fmt.Sprint(i), Payload: payload})
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	first, err := q.Receive(ctx, 8)
	if err != nil || len(first) < 2 || len(first) > 6 {
		t.Fatalf("the first answer has %d of 8 messages of 3 MiB, %v", len(first), err)
	}
	for i, d := range append(first, receive(t, q, 8-len(first))...) {
		if d.ID != fmt.Sprint(i) {
			t.Errorf("message %d is %s", i, d.ID)
		}
		settle(t, q, drivers.Ack, d)
	}
}

// TestHops: a delay over the longest one hops, each hop within the limit, and comes in time.
func TestHops(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	const most = 300 * time.Millisecond
	q := worker(t, s, redisdriver.Options{MaxDelay: most}, drivers.QueueOptions{})
	if got := q.Info().Caps.MaxDelay; got != most {
		t.Errorf("Caps.MaxDelay %s", got)
	}
	send(t, q, drivers.Message{ID: "m"})
	d := receive(t, q, 1)[0]
	carry := drivers.Carry{Tally: drivers.Tally{Delays: 1}}
	const delay = 1000 * time.Millisecond
	due := time.Now().Add(delay)
	if err := q.Settle(t.Context(), []drivers.Settlement{{Delivery: d, Verdict: drivers.Requeue, Delay: delay, Carry: carry}})[0]; err != nil {
		t.Fatal(err)
	}
	hops := map[string]bool{}
	received := make(chan *drivers.Delivery)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		ds, err := q.Receive(ctx, 1)
		if err != nil {
			t.Error(err)
			ds = []*drivers.Delivery{nil}
		}
		received <- ds[0]
	}()
	c := client(t, s)
	for {
		select {
		case got := <-received:
			if got == nil {
				return
			}
			if early := time.Until(due); early > 0 {
				t.Errorf("came %s early", early)
			}
			if got.Carry.Tally != carry.Tally {
				t.Errorf("tally %+v", got.Carry.Tally)
			}
			if len(hops) < 3 {
				t.Errorf("%d hops, want 3 or more", len(hops))
			}
			settle(t, q, drivers.Ack, got)
			return
		case <-time.After(5 * time.Millisecond):
			if list, ok := raw(t, c, "zrange", "guesthand:{q}:delayed", 0, 0, "withscores").([]any); ok && len(list) > 0 {
				hops[fmt.Sprint(list...)] = true
			}
		}
	}
}

// TestDeadBoundsAreSaid: what the bounds take is in the log.
func TestDeadBoundsAreSaid(t *testing.T) {
	t.Parallel()
	s := redistest.Start(t)
	var log bytes.Buffer
	o := quickReap
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	d := open(t, s, o)
	q := openQueue(t, d, drivers.QueueOptions{DeadMax: 2})
	for i := range 5 {
		send(t, q, drivers.Message{ID: fmt.Sprint(i)})
		settle(t, q, drivers.Dead, receive(t, q, 1)...)
	}
	hasCounts(t, q, drivers.Counts{Dead: 2})
	closeAll(t, q)
	kept := openQueue(t, d, drivers.QueueOptions{DeadKeep: time.Millisecond})
	eventually(t, "old dead letters are gone", func() bool {
		c, err := kept.Counts(t.Context())
		return err == nil && c.Dead == 0
	})
	closeAll(t, d)
	for _, want := range []string{"oldest dead letters dropped: the bound is reached\" queue=q count=1 max=2", "older than dead.keep\" queue=q count=2"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("no %q in\n%s", want, log.String())
		}
	}
}
