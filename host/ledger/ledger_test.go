package ledger_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/guesthand/guesthand/host/ledger"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(childRole); role != "" {
		child(role)
		return
	}
	goleak.VerifyTestMain(m)
}

// start is when the rows of these tests begin to finish, far enough from now to tell apart.
var start = time.Now().Add(-time.Hour).UTC().Truncate(time.Millisecond)

// sample makes n rows of all kinds, a millisecond apart, in the order they finish.
func sample(n int) []ledger.Row {
	list := ids(n)
	rows := make([]ledger.Row, n)
	for i := range rows {
		r := ledger.Row{ID: list[i], Queue: "default", Job: "resize", Attempt: 1 + i%3, Outcome: "success", Cause: "returned",
			Finished: start.Add(time.Duration(i) * time.Millisecond), Settlement: ledger.Acked, Digest: "d1", Worker: "w"}
		r.Started = r.Finished.Add(-time.Duration(i) * time.Microsecond)
		switch i % 10 {
		case 1:
			r.Result = fmt.Appendf(nil, "result %d", i)
		case 3:
			r.Queue, r.Job = "mail", "send"
		case 5:
			r.Outcome, r.Code, r.Error, r.Settlement = "retry", 1, "upstream said 503", ledger.Retried
		case 7:
			r.Outcome, r.Code, r.Delay, r.Settlement = "delay", 11, time.Hour, ledger.Delayed
			r.Result = []byte{0xff, 0, 0xfe}
		case 9:
			r.Outcome, r.Cause, r.Code, r.Settlement, r.Started = "stalled", "", -1, ledger.None, time.Time{}
		}
		rows[i] = r
	}
	rows[n/2].Job = "rare"
	return rows
}

func flush(tb testing.TB, l *ledger.Ledger) {
	tb.Helper()
	if err := l.Flush(tb.Context()); err != nil {
		tb.Fatalf("flush: %v", err)
	}
}

func closed(tb testing.TB, l *ledger.Ledger) {
	tb.Helper()
	if err := l.Close(context.WithoutCancel(tb.Context())); err != nil {
		tb.Errorf("close: %v", err)
	}
}

func runs(tb testing.TB, l *ledger.Ledger, f ledger.Filter) []ledger.Row {
	tb.Helper()
	rows, err := l.Runs(tb.Context(), f)
	if err != nil {
		tb.Fatalf("runs: %v", err)
	}
	return rows
}

// await polls until a condition holds.
func await(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 30*time.Second)
	defer cancel()
	for !ok() {
		select {
		case <-ctx.Done():
			tb.Fatalf("still not: %s", what)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// The same rows must be found whether they were written one by one, as plain rows, or all at
// once, packed, or partly so.
func TestFilters(t *testing.T) {
	rows := sample(5000)
	everyOther := func(i int) bool { return i%20 == 19 }
	for _, tt := range []struct {
		name  string
		n     int
		flush func(i int) bool // after this row
	}{
		{"plain", 600, everyOther},
		{"packed", 5000, func(int) bool { return false }},
		{"mixed", 3000, func(i int) bool { return i > 1000 && i < 1200 && everyOther(i) || i == 2000 }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			rows := slices.Clone(rows[:tt.n])
			rows[tt.n/2].Job = "rare"
			l := open(t)
			defer closed(t, l)
			for i, r := range rows {
				l.Record(r)
				if tt.flush(i) {
					flush(t, l)
				}
			}
			someID := rows[tt.n/3].ID
			since := rows[tt.n-45].Finished
			for _, f := range []ledger.Filter{
				{}, {Limit: 1}, {Limit: 37}, {Limit: 100_000},
				{Queue: "mail"}, {Queue: "mail", Limit: 3}, {Queue: "none"},
				{Job: "resize", Limit: 100_000}, {Job: "rare"}, {Queue: "mail", Job: "resize"},
				{Outcome: "success"}, {Outcome: "retry", Limit: 100_000}, {Outcome: "stalled", Limit: 5}, {Outcome: "permanent"},
				{ID: someID}, {ID: "no such id"}, {ID: someID, Queue: "none"},
				{Since: since}, {Since: since, Outcome: "delay"}, {Since: since.Add(time.Hour)},
				{Since: since, Limit: 2, Queue: "default"},
				{Before: since}, {Before: since, Limit: 10}, {Before: since, Outcome: "success", Limit: 100_000},
				{Since: since, Before: rows[tt.n-20].Finished, Limit: 100_000}, {Before: since.Add(-time.Hour)},
			} {
				got, want := runs(t, l, f), expect(rows, f)
				if len(got) != len(want) {
					t.Errorf("%+v: %d rows, want %d", f, len(got), len(want))
					continue
				}
				for i := range got {
					if !reflect.DeepEqual(got[i], want[i]) {
						t.Errorf("%+v: row %d:\n got %+v\nwant %+v", f, i, got[i], want[i])
						break
					}
				}
			}
		})
	}
}

// expect filters rows, which are in the order they finished, the plain way.
func expect(rows []ledger.Row, f ledger.Filter) []ledger.Row {
	var list []ledger.Row
	limit := f.Limit
	if limit == 0 {
		limit = 1000
	}
	for _, r := range slices.Backward(rows) {
		if (f.Queue == "" || f.Queue == r.Queue) && (f.Job == "" || f.Job == r.Job) && (f.ID == "" || f.ID == r.ID) &&
			(f.Outcome == "" || f.Outcome == r.Outcome) && !r.Finished.Before(f.Since) &&
			(f.Before.IsZero() || r.Finished.Before(f.Before)) && len(list) < limit {
			list = append(list, r)
		}
	}
	return list
}

// The order is by the time of finishing even where rows were recorded in another one.
func TestOrder(t *testing.T) {
	l := open(t)
	defer closed(t, l)
	rows := sample(3000)
	for i := range rows { // two interleaved halves, each packed
		l.Record(rows[i*1543%3000])
	}
	if got := runs(t, l, ledger.Filter{Limit: 50}); !reflect.DeepEqual(got, expect(rows, ledger.Filter{Limit: 50})) {
		t.Errorf("first of 50 finished %v, want %v", got[0].Finished, rows[2999].Finished)
	}
}

func TestReopenedKeepsEverything(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sub", "ledger.db")
	at := func(o *ledger.Options) { o.Path = path }
	rows := sample(500)
	for part := range slices.Chunk(rows, 100) {
		l := open(t, at)
		for _, r := range part {
			l.Record(r)
		}
		closed(t, l)
		closed(t, l)
	}
	l := open(t, at)
	defer closed(t, l)
	if got := runs(t, l, ledger.Filter{}); !reflect.DeepEqual(got, expect(rows, ledger.Filter{})) {
		t.Errorf("%d rows of 500", len(got))
	}
	if runtime.GOOS == "windows" {
		return
	}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		info, err := os.Stat(path + suffix)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s%s has mode %v", filepath.Base(path), suffix, info.Mode())
		}
	}
}

func TestReadOnly(t *testing.T) {
	path := filepath.Join(t.TempDir(), "with space & 100%?.db")
	reading := func(o *ledger.Options) { o.Path, o.ReadOnly = path, true }
	if _, err := ledger.Open(t.Context(), ledger.Options{Path: path, ReadOnly: true}); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("opened a file that is not there: %v", err)
	}
	writer := open(t, func(o *ledger.Options) { o.Path = path })
	reader := open(t, reading)
	rows := sample(200)
	for _, r := range rows {
		writer.Record(r)
	}
	flush(t, writer)
	if got := runs(t, reader, ledger.Filter{}); len(got) != 200 {
		t.Errorf("beside the writer: %d rows of 200", len(got))
	}
	closed(t, writer)
	if got := runs(t, reader, ledger.Filter{}); len(got) != 200 {
		t.Errorf("after the writer: %d rows of 200", len(got))
	}
	reader.Record(rows[0])
	if s, o := reader.Dropped(); s+o != 1 {
		t.Errorf("a read-only ledger took a row: %d, %d", s, o)
	}
	closed(t, reader)
	closed(t, reader)

	alone := open(t, reading)
	defer closed(t, alone)
	if got := runs(t, alone, ledger.Filter{Outcome: "retry"}); len(got) != 20 {
		t.Errorf("with no writer about: %d rows of 20", len(got))
	}
}

func TestNilLedgerDoesNothing(t *testing.T) {
	var l *ledger.Ledger
	l.Record(success("a"))
	flush(t, l)
	if rows := runs(t, l, ledger.Filter{}); rows != nil {
		t.Errorf("rows from nowhere: %v", rows)
	}
	if s, o := l.Dropped(); s+o != 0 {
		t.Errorf("dropped %d, %d", s, o)
	}
	closed(t, l)
}

// hold takes the file's write lock from the ledger until the returned function is called.
func hold(t *testing.T, path string) (release func()) {
	t.Helper()
	db, err := sql.Open("sqlite", path+"?_txlock=immediate&_busy_timeout=10000")
	if err != nil {
		t.Fatal(err)
	}
	tx, err := db.Begin()
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := errors.Join(tx.Rollback(), db.Close()); err != nil {
			t.Error(err)
		}
	}
}

func TestSuccessesAreDroppedFirst(t *testing.T) {
	var log logBuffer
	path := filepath.Join(t.TempDir(), "ledger.db")
	l := open(t, func(o *ledger.Options) { o.Path, o.Logger = path, log.logger() })
	flush(t, l)
	release := hold(t, path)
	const failures, successes = 20_000, 200_000
	list := ids(failures)
	began := time.Now()
	for i := range successes {
		l.Record(success("s"))
		if i%(successes/failures) == 0 {
			l.Record(failure(list[i/(successes/failures)]))
		}
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("recording took %v while the writer was blocked", took)
	}
	dropped, others := l.Dropped()
	if dropped == 0 || others != 0 {
		t.Fatalf("dropped %d successes and %d others", dropped, others)
	}
	release()
	flush(t, l)
	if got := runs(t, l, ledger.Filter{Outcome: "retry", Limit: 10 * failures}); len(got) != failures {
		t.Errorf("%d failures of %d were kept", len(got), failures)
	}
	if got := runs(t, l, ledger.Filter{Outcome: "success", Limit: 10 * successes}); len(got)+int(dropped) != successes {
		t.Errorf("%d successes in the file and %d dropped make no %d", len(got), dropped, successes)
	}
	closed(t, l)
	if got := log.count("cannot keep up"); got != 1 {
		t.Errorf("drops were logged %d times:\n%s", got, log.String())
	}
}

func TestOthersAreBoundedToo(t *testing.T) {
	var log logBuffer
	path := filepath.Join(t.TempDir(), "ledger.db")
	l := open(t, func(o *ledger.Options) { o.Path, o.Logger = path, log.logger() })
	flush(t, l)
	release := hold(t, path)
	row := failure("f")
	row.Result = make([]byte, 1<<20)
	const n = 100
	for range n {
		l.Record(row)
	}
	_, dropped := l.Dropped()
	if dropped == 0 || dropped == n {
		t.Fatalf("dropped %d of %d rows of 1 MiB", dropped, n)
	}
	release()
	flush(t, l)
	if got := runs(t, l, ledger.Filter{}); len(got)+int(dropped) != n {
		t.Errorf("%d rows in the file and %d dropped make no %d", len(got), dropped, n)
	}
	closed(t, l)
	if log.count("level=ERROR") != 1 || log.count("no successes") != 1 {
		t.Errorf("log:\n%s", log.String())
	}
	l.Record(row)
	if _, after := l.Dropped(); after != dropped+1 {
		t.Errorf("a row after Close was not counted as dropped")
	}
}

// A Close that cannot write gives up with its context and counts what it loses.
func TestCloseGivesUp(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	var log logBuffer
	l := open(t, func(o *ledger.Options) { o.Path, o.Logger = path, log.logger() })
	flush(t, l)
	release := hold(t, path)
	defer release()
	for range 100 {
		l.Record(failure("f"))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := l.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("close: %v", err)
	}
	if _, others := l.Dropped(); others != 100 {
		t.Errorf("counted %d of 100 lost rows", others)
	}
}

func TestOldRowsGo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	at := func(o *ledger.Options) { o.Path = path }
	l := open(t, at)
	rows := sample(3000)
	for _, r := range rows {
		r.Finished = r.Finished.Add(-48 * time.Hour)
		l.Record(r)
	}
	flush(t, l)
	l.Record(rows[0])
	for _, r := range rows[1:30] {
		r.Finished = r.Finished.Add(-48 * time.Hour)
		l.Record(r) // as plain rows
	}
	closed(t, l)

	l = open(t, at, func(o *ledger.Options) { o.Keep = 24 * time.Hour })
	defer closed(t, l)
	await(t, "only the young row is left", func() bool { return len(runs(t, l, ledger.Filter{Limit: 10_000})) == 1 })
	if got := runs(t, l, ledger.Filter{}); got[0].ID != rows[0].ID {
		t.Errorf("kept %v", got[0])
	}
}

func TestSizeIsBounded(t *testing.T) {
	const limit = 1 << 20
	path := filepath.Join(t.TempDir(), "ledger.db")
	l := open(t, func(o *ledger.Options) { o.Path, o.MaxBytes = path, limit })
	failed := failure("failed")
	failed.Finished = start.Add(-time.Minute)
	l.Record(failed)
	flush(t, l)
	last := ""
	for range 20 {
		for _, id := range ids(4096) {
			l.Record(success(id))
			last = id
		}
		flush(t, l)
	}
	size := func() int64 {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Size()
	}
	await(t, "room", func() bool { return len(runs(t, l, ledger.Filter{Limit: 1 << 20})) < 40_000 })
	if got := runs(t, l, ledger.Filter{ID: last}); len(got) != 1 {
		t.Error("the latest row is gone")
	}
	if got := runs(t, l, ledger.Filter{ID: "failed"}); len(got) != 1 {
		t.Error("the failure went before the successes")
	}
	closed(t, l) // writes everything back into the file itself
	if got := size(); got > limit+limit/8 {
		t.Errorf("the file has %d bytes, limit %d", got, limit)
	}

	// With no successes to drop the oldest failures go.
	l = open(t, func(o *ledger.Options) { o.Path, o.MaxBytes = path, limit })
	big := failure("big")
	for i := range 40 {
		big.Result = bytes.Repeat([]byte{byte(i)}, 128<<10)
		l.Record(big)
		flush(t, l)
	}
	await(t, "room", func() bool { return len(runs(t, l, ledger.Filter{})) < 12 })
	got := runs(t, l, ledger.Filter{})
	if len(got) == 0 || got[0].Result[0] != 39 {
		t.Errorf("%d rows left, not the latest", len(got))
	}
	closed(t, l)
	if got := size(); got > limit+limit/8 {
		t.Errorf("the file has %d bytes, limit %d", got, limit)
	}
}

func TestConcurrentUse(t *testing.T) {
	l := open(t, func(o *ledger.Options) { o.Keep = 24 * time.Hour })
	const workers, each = 8, 400
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				r := success(fmt.Sprintf("%d-%d", w, i))
				if i%7 == 0 {
					r = failure(r.ID)
				}
				l.Record(r)
				switch i % 100 {
				case 50:
					if _, err := l.Runs(t.Context(), ledger.Filter{Limit: 10, Job: "resize"}); err != nil {
						t.Error(err)
					}
				case 99:
					if err := l.Flush(t.Context()); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	wg.Wait()
	if got := runs(t, l, ledger.Filter{Limit: 1 << 20}); len(got) != workers*each {
		t.Errorf("%d rows of %d", len(got), workers*each)
	}
	if s, o := l.Dropped(); s+o != 0 {
		t.Errorf("dropped %d and %d", s, o)
	}
	closed(t, l)
	if _, err := l.Runs(t.Context(), ledger.Filter{}); err == nil {
		t.Error("runs from a closed ledger")
	}
}

// What was recorded reaches the file by itself.
func TestWrittenWithoutFlush(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	l := open(t, func(o *ledger.Options) { o.Path = path })
	defer closed(t, l)
	reader := open(t, func(o *ledger.Options) { o.Path, o.ReadOnly = path, true })
	defer closed(t, reader)
	for _, id := range []string{"a", "b"} {
		began := time.Now()
		l.Record(success(id))
		await(t, "the row in the file", func() bool { return len(runs(t, reader, ledger.Filter{ID: id})) == 1 })
		if took := time.Since(began); took > 5*time.Second { // a fifth of a second, ordinarily
			t.Errorf("written after %v", took)
		}
	}
}

// logBuffer keeps what was logged.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logBuffer) count(s string) int { return strings.Count(l.String(), s) }

func (l *logBuffer) logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}
