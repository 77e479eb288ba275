package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/guesthand/guesthand/drivers/pgdriver/pgtest"
)

func TestMigrate(t *testing.T) {
	t.Parallel()
	server := pgtest.Start(t)
	s := newSite(t, fmt.Sprintf("[brokers.db]\ndriver = \"postgres\"\nurl = %q\nschema = \"work\"\n[brokers.m]\ndriver = \"memory\"\n[queues.q]\nbroker = \"db\"\n", server.URL))
	out, _, status := s.do("migrate")
	if status != 0 || !strings.Contains(out, "db: schema work: step 1 tables") {
		t.Errorf("first: %d, %q", status, out)
	}
	out, _, status = s.do("migrate", "db", "--json")
	var line migrated
	if err := json.Unmarshal([]byte(out), &line); err != nil || status != 0 || line.Applied || line.Version < 1 || line.Schema != "work" || line.Broker != "db" {
		t.Errorf("again: %d, %q, %v", status, out, err)
	}
	out, _, status = s.do("migrate", "--print")
	if status != 0 || !strings.Contains(out, `CREATE TABLE "work".messages`) || !strings.HasSuffix(out, "COMMIT;\n") {
		t.Errorf("print: %d, %d bytes", status, len(out))
	}
	for _, c := range []struct {
		broker, want string
		status       int
	}{{"nobody", "no broker", exitUsage}, {"m", "only postgres has tables", exitUsage}} {
		if _, said, status := s.do("migrate", c.broker); status != c.status || !strings.Contains(said, c.want) {
			t.Errorf("migrate %s: %d, %q", c.broker, status, said)
		}
	}
	if _, said, status := s.do("queues"); status != 0 {
		t.Errorf("queues: %d, %q", status, said)
	}
	server.Kill()
	if _, said, status := s.do("migrate"); status != exitUnreachable || !strings.Contains(said, "db") {
		t.Errorf("nobody there: %d, %q", status, said)
	}
}
