package ledger_test

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/guesthand/guesthand/host/ledger"
)

func TestRowJSON(t *testing.T) {
	finished := time.Date(2026, 3, 1, 12, 0, 0, 120_000_000, time.UTC)
	tests := []struct {
		name string
		row  ledger.Row
		want string
	}{
		{"success", ledger.Row{ID: "01", Queue: "default", Job: "resize", Attempt: 1, Outcome: "success", Cause: "returned",
			Result: []byte(`{"ok":true}`), Started: finished.Add(-1500 * time.Microsecond), Finished: finished,
			Settlement: ledger.Acked, Digest: "abc", Worker: "w1"},
			`{"id":"01","queue":"default","job":"resize","attempt":1,"outcome":"success","cause":"returned","code":0,` +
				`"delay_ms":0,"error":"","started":"2026-03-01T12:00:00.118500000Z","finished":"2026-03-01T12:00:00.120000000Z",` +
				`"settlement":"acked","digest":"abc","worker":"w1","result":"{\"ok\":true}"}`},
		{"delay", ledger.Row{ID: "02", Queue: "q", Job: "j", Attempt: 4, Outcome: "delay", Cause: "returned", Code: 11,
			Delay: 6 * time.Hour, Error: "waiting", Started: finished, Finished: finished, Settlement: ledger.Delayed},
			`{"id":"02","queue":"q","job":"j","attempt":4,"outcome":"delay","cause":"returned","code":11,` +
				`"delay_ms":21600000,"error":"waiting","started":"2026-03-01T12:00:00.120000000Z","finished":"2026-03-01T12:00:00.120000000Z",` +
				`"settlement":"delayed","digest":"","worker":"","result":""}`},
		{"stalled, with a result that is no text", ledger.Row{ID: "03", Outcome: "stalled", Code: -1, Result: []byte{0xff, 0}, Finished: finished, Settlement: ledger.None},
			`{"id":"03","queue":"","job":"","attempt":0,"outcome":"stalled","cause":"","code":-1,` +
				`"delay_ms":0,"error":"","started":null,"finished":"2026-03-01T12:00:00.120000000Z",` +
				`"settlement":"none","digest":"","worker":"","result":"","result_base64":"/wA="}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := json.Marshal(tt.row)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != tt.want {
				t.Errorf("JSON:\n got %s\nwant %s", got, tt.want)
			}
			var back ledger.Row
			if err := json.Unmarshal(got, &back); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(back, tt.row) {
				t.Errorf("read back:\n got %+v\nwant %+v", back, tt.row)
			}
		})
	}
	for _, bad := range []string{`{"started":"yesterday"}`, `{"finished":"1"}`, `{"result_base64":"*"}`, `{"code":"1"}`} {
		var r ledger.Row
		if err := json.Unmarshal([]byte(bad), &r); err == nil {
			t.Errorf("read %s", bad)
		}
	}
}
