package ledger

import (
	"math"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func genRow() *rapid.Generator[Row] {
	return rapid.Custom(func(t *rapid.T) Row {
		text := rapid.OneOf(rapid.SampledFrom([]string{"", "default", "resize"}), rapid.String())
		number := rapid.OneOf(rapid.IntRange(-1, 300), rapid.Int())
		when := rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(1, math.MaxInt64), rapid.Int64Range(1<<60, 1<<60+1000))
		r := Row{ID: text.Draw(t, "id"), Queue: text.Draw(t, "queue"), Job: text.Draw(t, "job"),
			Attempt: number.Draw(t, "attempt"), Outcome: text.Draw(t, "outcome"), Cause: text.Draw(t, "cause"),
			Code: number.Draw(t, "code"), Delay: time.Duration(rapid.Int64().Draw(t, "delay")), Error: text.Draw(t, "error"),
			Result:  rapid.SliceOf(rapid.Byte()).Draw(t, "result"),
			Started: fromUnixNano(when.Draw(t, "started")), Finished: fromUnixNano(when.Draw(t, "finished")),
			Settlement: text.Draw(t, "settlement"), Digest: text.Draw(t, "digest"), Worker: text.Draw(t, "worker")}
		if len(r.Result) == 0 {
			r.Result = nil
		}
		return r
	})
}

func TestPackedRowsComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rows := rapid.SliceOfN(genRow(), 1, 20).Draw(t, "rows")
		p := pack(rows)
		got, err := unpack(p.data)
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, rows) {
			t.Fatalf("got %+v\nwant %+v", got, rows)
		}
		for _, r := range rows {
			if !mayHaveID(p.ids, r.ID) {
				t.Fatalf("id %q is not found", r.ID)
			}
			if ns := unixNano(r.Finished); ns < p.first || ns > p.last {
				t.Fatalf("finished %d is outside %d to %d", ns, p.first, p.last)
			}
		}
	})
}

func TestIDFilterIsSelective(t *testing.T) {
	ids := newIDs(1000)
	for i := range 1000 {
		addID(ids, time.Unix(int64(i), 0).String())
	}
	found := 0
	for i := range 10_000 {
		if mayHaveID(ids, time.Unix(int64(1_000_000+i), 0).String()) {
			found++
		}
	}
	if found > 500 {
		t.Errorf("%d of 10000 foreign ids seem to be there", found)
	}
	if mayHaveID(nil, "a") {
		t.Error("an id in no filter")
	}
}

// Whatever the bytes, unpack answers with rows or an error, and takes no more memory than
// the bytes justify.
func FuzzUnpack(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{packVersion, 0, 0})
	f.Add([]byte{packVersion, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Add(pack([]Row{{ID: "a", Queue: "q", Finished: time.Unix(1, 1), Started: time.Unix(1, 0), Result: []byte("x")}, {}}).data)
	f.Fuzz(func(t *testing.T, data []byte) {
		rows, err := unpack(data)
		if err != nil && rows != nil {
			t.Error("rows beside an error")
		}
		if len(rows) > len(data) {
			t.Errorf("%d rows from %d bytes", len(rows), len(data))
		}
	})
}
