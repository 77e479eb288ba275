package pgdriver_test

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/pgdriver"
	"github.com/guesthand/guesthand/drivers/pgdriver/pgtest"
)

// TestOutbox: a message is sent by an INSERT in the producer's own transaction, and is there
// if and only if that commits.
func TestOutbox(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	q := worker(t, s, pgdriver.Options{}, drivers.QueueOptions{})
	c := client(t, s.URL)
	sql(t, c, "CREATE TABLE orders (id int)")
	for _, commit := range []bool{false, true} {
		tx, err := c.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		sql(t, tx, "INSERT INTO orders VALUES (7)")
		sql(t, tx, "INSERT INTO guesthand.messages (queue, job, payload) VALUES ('q', 'ship', $1)", []byte("order 7"))
		if !commit {
			empty(t, q, 100*time.Millisecond) // nothing that is not committed is seen
			if err := tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
			empty(t, q, 1500*time.Millisecond)
			continue
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	d := receive(t, q, 1)[0]
	if d.Job != "ship" || string(d.Payload) != "order 7" || d.ID == "" || d.Redelivered || d.EnqueuedAt.IsZero() {
		t.Errorf("got %+v", d)
	}
	settle(t, q, drivers.Ack, d)
	hasCounts(t, q, drivers.Counts{})
}

// TestInsertColumns: what a producer may say beside queue, job and payload.
func TestInsertColumns(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	q := worker(t, s, pgdriver.Options{}, drivers.QueueOptions{})
	c := client(t, s.URL)
	const json = `{"path":"C:\\x\n","n":[1,"ü"]}`
	sql(t, c, "INSERT INTO guesthand.messages (queue, job, body, id, headers) VALUES ('q', 'a', $1, 'own', $2)", json, `{"X-One":"1","X-Two":["2","3"]}`)
	d := receive(t, q, 1)[0]
	if string(d.Payload) != json || d.ID != "own" || d.Headers["X-One"][0] != "1" || len(d.Headers["X-Two"]) != 2 {
		t.Errorf("got payload %q, id %q, headers %v", d.Payload, d.ID, d.Headers)
	}
	settle(t, q, drivers.Dead, d)
	ls, err := q.(drivers.DeadLetters).GetDead(t.Context(), "own")
	if err != nil || len(ls) != 1 || string(ls[0].Payload) != json {
		t.Errorf("dead letters %+v, %v", ls, err)
	}
	begun := time.Now()
	sql(t, c, "INSERT INTO guesthand.messages (queue, job, run_at) VALUES ('q', 'a', now() + interval '700 ms')")
	settle(t, q, drivers.Ack, receive(t, q, 1)...)
	if took := time.Since(begun); took < 700*time.Millisecond {
		t.Errorf("came after %s", took)
	}
	begun = time.Now()
	sql(t, c, "INSERT INTO guesthand.messages (queue, job, headers) VALUES ('q', 'a', $1)",
		`{"Guesthand-Not-Before":"`+begun.Add(700*time.Millisecond).Format(time.RFC3339Nano)+`"}`)
	settle(t, q, drivers.Ack, receive(t, q, 1)...)
	if took := time.Since(begun); took < 700*time.Millisecond {
		t.Errorf("with a header, came after %s", took)
	}
	// A header's value that is no text breaks the envelope, and nothing else.
	sql(t, c, "INSERT INTO guesthand.messages (queue, job, payload, headers) VALUES ('q', 'a', 'raw', '[1]')")
	if d := receive(t, q, 1)[0]; d.Broken == "" || string(d.Payload) != "raw" {
		t.Errorf("broken %q, payload %q", d.Broken, d.Payload)
	}
}

// TestInsertedKey: the key of an INSERT is kept like that of Send, rolled back with its
// transaction, and remembered after the message's end.
func TestInsertedKey(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	q := worker(t, s, pgdriver.Options{}, drivers.QueueOptions{})
	c := client(t, s.URL)
	const insert = "INSERT INTO guesthand.messages (queue, job, key) VALUES ('q', 'a', 'k')"
	tx, err := c.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sql(t, tx, insert)
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int64{1, 0, 0} {
		tag, err := c.Exec(t.Context(), insert)
		if err != nil || tag.RowsAffected() != want {
			t.Errorf("insert %d: %d rows, %v, want %d", i, tag.RowsAffected(), err, want)
		}
		if i == 1 {
			settle(t, q, drivers.Ack, receive(t, q, 1)...)
		}
	}
	send(t, q, drivers.Message{Key: "k"}, drivers.Message{Key: "other"})
	settle(t, q, drivers.Ack, receive(t, q, 1)...)
	hasCounts(t, q, drivers.Counts{})
	sql(t, c, "UPDATE guesthand.keys SET expires_at = now() - interval '1 s'")
	sql(t, c, insert)
	settle(t, q, drivers.Ack, receive(t, q, 1)...)
}

// TestDocumentedAccounts: the rights that the documentation gives to a worker and to a producer
// are enough, and those of a producer not for more.
func TestDocumentedAccounts(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	if _, err := pgdriver.Migrate(t.Context(), pgdriver.Options{URL: s.URL}); err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("../../docs/drivers/postgres.md")
	if err != nil {
		t.Fatal(err)
	}
	_, grants, ok := strings.Cut(string(doc), "CREATE ROLE guesthand")
	grants, _, ok2 := strings.Cut(grants, "```")
	if !ok || !ok2 {
		t.Fatal("no CREATE ROLE in the documentation")
	}
	s.Exec("CREATE ROLE app LOGIN; CREATE ROLE guesthand" + grants)
	q := worker(t, s, pgdriver.Options{URL: s.As("guesthand", "secret")}, drivers.QueueOptions{DeadMax: 1, DeadKeep: time.Hour, Lease: time.Second})
	for _, f := range q.Info().Findings {
		if f.Warning && !strings.Contains(f.Text, "fsync") {
			t.Errorf("finding %q", f.Text)
		}
	}
	app := client(t, s.As("app", ""))
	sql(t, app, "INSERT INTO guesthand.messages (queue, job, payload, key) VALUES ('q', 'a', 'x', 'k')")
	if _, err := app.Exec(t.Context(), "SELECT * FROM guesthand.messages"); err == nil {
		t.Error("a producer may read messages")
	}
	d := receive(t, q, 1)
	if err := q.Renew(t.Context(), d)[0]; err != nil {
		t.Error(err)
	}
	d[0].ReplyTo = "somebody"
	if err := q.(drivers.Replier).Reply(t.Context(), d[0], drivers.Reply{}); err != nil {
		t.Error(err)
	}
	settle(t, q, drivers.Dead, d...)
	dl := q.(drivers.DeadLetters)
	ls, err := dl.ListDead(t.Context(), "", 1)
	if err != nil || len(ls) != 1 {
		t.Fatalf("%d dead letters, %v", len(ls), err)
	}
	if err := dl.ReplayDead(t.Context(), ls[0].Entry); err != nil {
		t.Error(err)
	}
	settle(t, q, drivers.Ack, receive(t, q, 1)...)
}

// TestReply: an answer is a row until its time is over, told on a channel, and one that nobody
// reads does not grow without end.
func TestReply(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	q := worker(t, s, pgdriver.Options{}, drivers.QueueOptions{})
	c := client(t, s.URL)
	sql(t, c, "LISTEN guesthand_replies")
	send(t, q, drivers.Message{ID: "m", Headers: drivers.Header{"Guesthand-Reply-To": {"answers/1"}}})
	d := receive(t, q, 1)[0]
	r := q.(drivers.Replier)
	if err := r.Reply(t.Context(), d, drivers.Reply{Outcome: "success", Payload: []byte("\x00done")}); err != nil {
		t.Fatal(err)
	}
	n, err := c.WaitForNotification(t.Context())
	if err != nil || n.Payload != "answers/1" {
		t.Errorf("told %+v, %v", n, err)
	}
	var id, outcome string
	var payload []byte
	err = c.QueryRow(t.Context(), "DELETE FROM guesthand.replies WHERE address = 'answers/1' RETURNING id, outcome, payload").Scan(&id, &outcome, &payload)
	if err != nil || id != "m" || outcome != "success" || string(payload) != "\x00done" {
		t.Errorf("answer %q %q %q, %v", id, outcome, payload, err)
	}
	for range 120 {
		if err := r.Reply(t.Context(), d, drivers.Reply{}); err != nil {
			t.Fatal(err)
		}
	}
	if n := value[int](t, c, "SELECT count(*) FROM guesthand.replies"); n != 100 {
		t.Errorf("%d answers wait", n)
	}
	for _, address := range []string{"", strings.Repeat("x", 1001), "a\x00b"} {
		d.ReplyTo = address
		if err := r.Reply(t.Context(), d, drivers.Reply{}); !errors.Is(err, drivers.ErrInvalid) {
			t.Errorf("address %q: %v", address, err)
		}
	}
}

// TestLargestPayload: what is as large as can be goes through every station, and a claim is
// bounded in bytes.
func TestLargestPayload(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	q := worker(t, s, pgdriver.Options{AnswerTimeout: patience}, drivers.QueueOptions{})
	payload := bytes.Repeat([]byte("x"), pgdriver.MaxPayload)
	send(t, q, drivers.Message{ID: "m", Payload: payload})
	settle(t, q, drivers.Requeue, receive(t, q, 1)...)
	settle(t, q, drivers.Dead, receive(t, q, 1)...)
	dl := q.(drivers.DeadLetters)
	ls, err := dl.ListDead(t.Context(), "", 1)
	if err != nil || len(ls) != 1 || !bytes.Equal(ls[0].Payload, payload) {
		t.Fatalf("%d dead letters, %v", len(ls), err)
	}
	if err := dl.ReplayDead(t.Context(), ls[0].Entry); err != nil {
		t.Fatal(err)
	}
	d := receive(t, q, 1)
	if !bytes.Equal(d[0].Payload, payload) {
		t.Errorf("payload of %d bytes", len(d[0].Payload))
	}
	settle(t, q, drivers.Ack, d...)
	for range 8 {
		send(t, q, drivers.Message{Payload: payload[:3<<20]})
	}
	ds, err := q.Receive(t.Context(), 8)
	if err != nil || len(ds) < 2 || len(ds) > 6 {
		t.Errorf("the first claim has %d of 8 messages of 3 MiB, %v", len(ds), err)
	}
}
