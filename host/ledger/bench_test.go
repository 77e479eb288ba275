package ledger_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/guesthand/guesthand/host/ledger"
)

func success(id string) ledger.Row {
	now := time.Now()
	return ledger.Row{ID: id, Queue: "default", Job: "resize", Attempt: 1, Outcome: "success", Cause: "returned",
		Started: now.Add(-37 * time.Microsecond), Finished: now, Settlement: ledger.Acked,
		Digest: "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", Worker: "host-1234"}
}

func failure(id string) ledger.Row {
	r := success(id)
	r.Outcome, r.Code, r.Error, r.Settlement = "retry", 1, "upstream said 503", ledger.Retried
	return r
}

func ids(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = uuid.Must(uuid.NewV7()).String()
	}
	return list
}

func open(tb testing.TB, change ...func(*ledger.Options)) *ledger.Ledger {
	tb.Helper()
	o := ledger.Options{Path: filepath.Join(tb.TempDir(), "ledger.db")}
	for _, c := range change {
		c(&o)
	}
	l, err := ledger.Open(tb.Context(), o)
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// BenchmarkRecord is what a run pays: the call alone, the writer at work beside it.
func BenchmarkRecord(b *testing.B) {
	l := open(b)
	row := success("0193b1c0-0000-7000-8000-000000000000")
	b.ReportAllocs()
	for b.Loop() {
		l.Record(row)
	}
	b.StopTimer()
	if err := l.Close(b.Context()); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkSustained is how many rows a second reach the file, none dropped, and what each
// costs in processor time, retention included.
func BenchmarkSustained(b *testing.B) {
	for _, kind := range []struct {
		name string
		row  func(string) ledger.Row
	}{{"success", success}, {"failure", failure}} {
		for _, limit := range []int64{0, 8 << 20} {
			b.Run(fmt.Sprintf("%s/max=%dMiB", kind.name, limit>>20), func(b *testing.B) {
				l := open(b, func(o *ledger.Options) { o.MaxBytes = limit })
				list := ids(8192)
				rows := 0
				before := cpuTime()
				for b.Loop() {
					for i, id := range list {
						l.Record(kind.row(id))
						if i%2048 == 2047 { // no faster than the writer
							if err := l.Flush(b.Context()); err != nil {
								b.Fatal(err)
							}
						}
					}
					rows += len(list)
				}
				used := cpuTime() - before
				if s, o := l.Dropped(); s+o > 0 {
					b.Fatalf("dropped %d and %d", s, o)
				}
				b.ReportMetric(float64(rows)/b.Elapsed().Seconds(), "rows/s")
				if used > 0 {
					b.ReportMetric(float64(used.Nanoseconds())/float64(rows), "cpu-ns/row")
				}
				b.ReportMetric(0, "ns/op")
				if err := l.Close(b.Context()); err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}

// BenchmarkRuns is what a look at a ledger of two million runs takes.
func BenchmarkRuns(b *testing.B) {
	l := open(b)
	var some string
	for range 2_000_000 / 8192 {
		for i, id := range ids(8192) {
			l.Record(success(id))
			if i%4096 == 4095 {
				if err := l.Flush(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
			some = id
		}
		if some[len(some)-1] == '0' {
			l.Record(failure(some))
		}
	}
	for _, q := range []struct {
		name string
		f    ledger.Filter
	}{
		{"latest", ledger.Filter{}},
		{"id", ledger.Filter{ID: some}},
		{"absent", ledger.Filter{ID: "absent"}},
		{"outcome", ledger.Filter{Outcome: "retry"}},
		{"job", ledger.Filter{Job: "absent"}},
	} {
		b.Run(q.name, func(b *testing.B) {
			for b.Loop() {
				runs(b, l, q.f)
			}
		})
	}
	closed(b, l)
}
