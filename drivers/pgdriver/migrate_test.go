package pgdriver_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/drivers/pgdriver"
	"github.com/guesthand/guesthand/drivers/pgdriver/pgtest"
)

func TestMigrate(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	o := pgdriver.Options{URL: s.URL, Schema: "user"} // a word that SQL reserves
	var wg sync.WaitGroup
	var mu sync.Mutex
	steps := 0
	for range 6 {
		wg.Go(func() {
			done, err := pgdriver.Migrate(t.Context(), o)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			steps += len(done)
		})
	}
	wg.Wait()
	if steps != pgdriver.SchemaVersion() {
		t.Errorf("six at once took %d steps together, want %d", steps, pgdriver.SchemaVersion())
	}
	d := open(t, s, o)
	t.Cleanup(func() { closeAll(t, d) })
	q := openQueue(t, d, drivers.QueueOptions{})
	send(t, q, drivers.Message{ID: "m", Key: "k"})
	settle(t, q, drivers.Ack, receive(t, q, 1)...)

	c := client(t, s.URL)
	sql(t, c, `INSERT INTO "user".migrations (version, name) VALUES (99, 'later')`)
	_, err := pgdriver.Migrate(t.Context(), o)
	_, err2 := d.OpenQueue(t.Context(), drivers.QueueOptions{Name: "other", Create: true})
	for _, err := range []error{err, err2} {
		if err == nil || !strings.Contains(err.Error(), "version 99") || !strings.Contains(err.Error(), "up to 1:") {
			t.Errorf("a newer schema: %v", err)
		}
	}
}

// TestMigrationSQL: what is printed does the same as Migrate, by psql.
func TestMigrationSQL(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	script, err := pgdriver.MigrationSQL("by_hand")
	if err != nil {
		t.Fatal(err)
	}
	s.Exec(script)
	done, err := pgdriver.Migrate(t.Context(), pgdriver.Options{URL: s.URL, Schema: "by_hand"})
	if err != nil || len(done) != 0 {
		t.Errorf("after the script: steps %v, %v", done, err)
	}
	if _, err := pgdriver.MigrationSQL("no schema"); err == nil {
		t.Error("printed for a name that is none")
	}
}

// TestNotAllowedToMigrate: an account without the right is told who has to do what.
func TestNotAllowedToMigrate(t *testing.T) {
	t.Parallel()
	s := pgtest.Start(t)
	s.Exec("CREATE ROLE worker LOGIN")
	d := open(t, s, pgdriver.Options{URL: s.As("worker", "")})
	t.Cleanup(func() { closeAll(t, d) })
	for _, create := range []bool{true, false} {
		_, err := d.OpenQueue(t.Context(), drivers.QueueOptions{Name: "q", Create: create})
		if err == nil || !strings.Contains(err.Error(), "run guesthand migrate") {
			t.Errorf("create %t: %v", create, err)
		}
	}
}
