package ledger_test

import (
	"bytes"
	"database/sql"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/guesthand/guesthand/host/ledger"
)

func TestCorruptFileIsSetAside(t *testing.T) {
	for _, tt := range []struct {
		name  string
		bytes func(good []byte) []byte
	}{
		{"garbage", func([]byte) []byte { return bytes.Repeat([]byte("not a database "), 1000) }},
		{"a good start", func(good []byte) []byte { return append(good[:100:100], bytes.Repeat([]byte{0xaa}, 8000)...) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "ledger.db")
			at := func(o *ledger.Options) { o.Path = path }
			l := open(t, at)
			closed(t, l)
			good, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			bad := tt.bytes(good)
			if err := os.WriteFile(path, bad, 0o600); err != nil {
				t.Fatal(err)
			}
			if _, err := ledger.Open(t.Context(), ledger.Options{Path: path, ReadOnly: true}); err == nil {
				t.Error("a reader opened the damaged file")
			}
			var log logBuffer
			l = open(t, at, func(o *ledger.Options) { o.Logger = log.logger() })
			defer closed(t, l)
			l.Record(success("a"))
			if got := runs(t, l, ledger.Filter{}); len(got) != 1 {
				t.Errorf("%d rows in the new file", len(got))
			}
			if kept := aside(t, path); !bytes.Equal(kept, bad) {
				t.Error("the damaged file was not kept as it was")
			}
			if log.count("set aside") != 1 {
				t.Errorf("log:\n%s", log.String())
			}
		})
	}
}

// aside is the content of the one file that was set aside.
func aside(t *testing.T, path string) []byte {
	t.Helper()
	list, err := filepath.Glob(path + ".corrupt-*")
	if err != nil || len(list) != 1 {
		t.Fatalf("set aside: %v, %v", list, err)
	}
	b, err := os.ReadFile(list[0])
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Damage deep in the file shows only when it is read. The host goes on with a new file.
func TestDamageFoundWhileRunning(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	at := func(o *ledger.Options) { o.Path = path }
	l := open(t, at)
	rows := sample(3000)
	for part := range slices.Chunk(rows, 50) { // plain rows
		for _, r := range part {
			l.Record(r)
		}
		flush(t, l)
	}
	closed(t, l)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := 20 * 4096; i < len(b); i++ {
		b[i] = 0xaa
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	var log logBuffer
	l = open(t, at, func(o *ledger.Options) { o.Logger = log.logger() })
	defer closed(t, l)
	for _, f := range rows[:60] {
		l.Record(f) // the writer may be the first to find out
	}
	await(t, "a new file", func() bool {
		l.Record(failure("later"))
		rows, err := l.Runs(t.Context(), ledger.Filter{ID: "later"})
		return err == nil && len(rows) > 0 && log.count("set aside") == 1
	})
	aside(t, path)
}

func TestNewerFileIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.db")
	l := open(t, func(o *ledger.Options) { o.Path = path })
	closed(t, l)
	execute(t, path, "PRAGMA user_version = 9")
	for _, readOnly := range []bool{false, true} {
		_, err := ledger.Open(t.Context(), ledger.Options{Path: path, ReadOnly: readOnly})
		want := "ledger version 9 and this guesthand knows 1: use the newer guesthand or another path"
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("read-only %v: %v", readOnly, err)
		}
	}
}

func TestForeignDatabaseIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "other.db")
	execute(t, path, "CREATE TABLE runs (mine)")
	_, err := ledger.Open(t.Context(), ledger.Options{Path: path})
	if err == nil || !strings.Contains(err.Error(), "is no ledger") {
		t.Errorf("opened somebody else's database: %v", err)
	}
}

func execute(t *testing.T, path, statement string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(statement); err != nil {
		t.Fatal(err)
	}
}
