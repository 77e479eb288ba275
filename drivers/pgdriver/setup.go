package pgdriver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/guesthand/guesthand/drivers"
)

// server is what the server says about itself when the driver opens.
type server struct {
	version  int // as 150018
	encoding string
	pooled   bool // a pooler stands between
	shared   bool // which gives a server connection for one transaction only
	settings map[string]string
}

// inspect looks at the server over a connection of its own, and refuses one that cannot
// serve.
func inspect(ctx context.Context, c *pgx.ConnConfig) (s server, err error) {
	conn, err := pgx.ConnectConfig(ctx, withMode(c, pgx.QueryExecModeSimpleProtocol))
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	var version string
	var standby bool
	var pid uint32
	err = conn.QueryRow(ctx, "SELECT current_setting('server_version_num'), current_setting('server_encoding'), pg_is_in_recovery(), pg_backend_pid()").
		Scan(&version, &s.encoding, &standby, &pid)
	if err != nil {
		return s, err
	}
	if s.version, err = strconv.Atoi(version); err != nil {
		return s, fmt.Errorf("the server's version %q: %w", version, err)
	}
	switch {
	case s.version/10000 < MinimumServer:
		return s, fmt.Errorf("the server is version %d; guesthand needs %d or newer", s.version/10000, MinimumServer)
	case standby:
		return s, errors.New("the server is a standby and takes no writes: name the primary, or several hosts with target_session_attrs=read-write")
	}
	if s.pooled = pid != conn.PgConn().PID(); s.pooled {
		if s.shared, err = sharesConnections(ctx, conn, c); err != nil {
			return s, fmt.Errorf("look at the pooler: %w", err)
		}
	}
	s.settings, err = readSettings(ctx, conn)
	return s, err
}

func withMode(c *pgx.ConnConfig, mode pgx.QueryExecMode) *pgx.ConnConfig {
	c = c.Copy()
	c.DefaultQueryExecMode = mode
	return c
}

// sharesConnections finds out whether a pooler gives a server connection to one client or to
// one transaction: b leaves a mark on its server connection, a takes that one for a
// transaction if it is to be had, and then b has another one, without the mark.
func sharesConnections(ctx context.Context, a *pgx.Conn, c *pgx.ConnConfig) (shared bool, err error) {
	b, err := pgx.ConnectConfig(ctx, withMode(c, pgx.QueryExecModeSimpleProtocol))
	if err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, b.Close(context.WithoutCancel(ctx))) }()
	var pids [2]int
	if err := b.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pids[0]); err != nil {
		return false, err
	}
	err = pgx.BeginFunc(ctx, a, func(pgx.Tx) error {
		return b.QueryRow(ctx, "SELECT pg_backend_pid()").Scan(&pids[1])
	})
	return pids[0] != pids[1], err
}

// readSettings reads what findings are about.
func readSettings(ctx context.Context, conn *pgx.Conn) (map[string]string, error) {
	rows, err := conn.Query(ctx, "SELECT name, setting FROM pg_settings WHERE name IN ('autovacuum', 'fsync', 'synchronous_commit', 'full_page_writes')")
	if err != nil {
		return nil, err
	}
	out := map[string]string{}
	var name, value string
	_, err = pgx.ForEachRow(rows, []any{&name, &value}, func() error {
		out[name] = value
		return nil
	})
	return out, err
}

// findings are what the server's settings and its other clients do to messages.
func (d *Driver) findings(ctx context.Context) []drivers.Finding {
	var out []drivers.Finding
	warn := func(format string, args ...any) {
		out = append(out, drivers.Finding{Warning: true, Text: fmt.Sprintf(format, args...)})
	}
	s := d.server
	if s.shared {
		warn("a pooler in transaction mode stands between: no NOTIFY, so waiting workers look every second, and no statement_timeout; " +
			"name the server itself or a pool in session mode")
	}
	if s.settings["fsync"] == "off" {
		warn("fsync is off: a crash of the machine can destroy the database; set fsync = on")
	}
	if s.settings["synchronous_commit"] == "off" {
		warn("synchronous_commit is off: a crash of the server loses what it confirmed within its last moments, and what was finished then comes back; " +
			"set synchronous_commit = on for this user or database")
	}
	if s.encoding != "UTF8" {
		warn("the database's encoding is %s: text that it cannot hold is refused; use a database in UTF8", s.encoding)
	}
	if s.settings["autovacuum"] == "off" {
		warn("autovacuum is off: the tables of a queue grow without end and claims get slower; set autovacuum = on")
	} else if off, err := d.vacuumOff(ctx); err == nil && off {
		warn("autovacuum_enabled is off for %s.messages: it grows without end and claims get slower; ALTER TABLE %s.messages RESET (autovacuum_enabled)", d.o.Schema, d.o.Schema)
	}
	return append(out, d.pinned(ctx)...)
}

func (d *Driver) vacuumOff(ctx context.Context) (off bool, err error) {
	err = d.row(ctx, `SELECT coalesce('autovacuum_enabled=false' = ANY (reloptions) OR 'autovacuum_enabled=off' = ANY (reloptions), false)
FROM pg_class WHERE oid = to_regclass($1)`, []any{`"` + d.o.Schema + `".messages`}, &off)
	return off, err
}

// pinned looks for what keeps dead rows from being cleaned. What cannot be read is said, or
// left out where it is of little weight.
func (d *Driver) pinned(ctx context.Context) []drivers.Finding {
	var out []drivers.Finding
	const advice = "rows that were finished since cannot be cleaned, and claims get slower and slower; "
	var pid int
	var who, state string
	var age float64
	err := d.row(ctx, `SELECT pid, coalesce(usename, ''), coalesce(state, ''), extract(epoch FROM now() - xact_start)::float8 FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL)
AND xact_start < now() - $1::bigint * interval '1 microsecond' ORDER BY xact_start LIMIT 1`,
		[]any{d.o.LongTransaction.Microseconds()}, &pid, &who, &state, &age)
	if err == nil {
		out = append(out, drivers.Finding{Warning: true, Text: fmt.Sprintf("a transaction of user %s (process %d, %s) is open for %s: %send it, or set idle_in_transaction_session_timeout",
			who, pid, state, time.Duration(age*float64(time.Second)).Round(time.Second), advice)})
	}
	var gid string
	err = d.row(ctx, `SELECT gid, extract(epoch FROM now() - prepared)::float8 FROM pg_prepared_xacts WHERE database = current_database()
AND prepared < now() - $1::bigint * interval '1 microsecond' ORDER BY prepared LIMIT 1`, []any{d.o.LongTransaction.Microseconds()}, &gid, &age)
	if err == nil {
		out = append(out, drivers.Finding{Warning: true, Text: fmt.Sprintf("the prepared transaction %q waits for %s: %sCOMMIT PREPARED or ROLLBACK PREPARED it",
			gid, time.Duration(age*float64(time.Second)).Round(time.Second), advice)})
	}
	var sees bool
	if err = d.row(ctx, "SELECT pg_has_role(current_user, 'pg_read_all_stats', 'USAGE')", nil, &sees); err == nil && !sees {
		out = append(out, drivers.Finding{Text: "old transactions of other users cannot be seen by this one; GRANT pg_read_all_stats to have check look at them"})
	}
	return out
}

// ready looks at the schema, and makes it where that is wanted and allowed.
func (d *Driver) ready(ctx context.Context, create bool) error {
	version, err := d.schemaVersion(ctx)
	switch want := SchemaVersion(); {
	case err != nil:
		return err
	case version > want:
		return tooNew(d.o.Schema, version)
	case version == want:
		return nil
	case !create && version == 0:
		return fmt.Errorf("there is no schema %s with guesthand's tables: run guesthand migrate", d.o.Schema)
	case !create:
		return fmt.Errorf("schema %s has version %d, this guesthand needs %d: run guesthand migrate", d.o.Schema, version, want)
	}
	o := d.o
	done, err := Migrate(ctx, o)
	if err != nil {
		return fmt.Errorf("schema %s has version %d of %d, and this user could not bring it up: run guesthand migrate as one who may (%w)",
			d.o.Schema, version, SchemaVersion(), err)
	}
	for _, m := range done {
		d.log.Info("migrated", slog.String("schema", d.o.Schema), slog.String("step", m.String()))
	}
	return nil
}

// schemaVersion is 0 where there is none.
func (d *Driver) schemaVersion(ctx context.Context) (version int, err error) {
	var there bool
	if err := d.row(ctx, sqlHasTable, []any{`"` + d.o.Schema + `".migrations`}, &there); err != nil || !there {
		return 0, err
	}
	err = d.row(ctx, inSchema(sqlVersion, d.o.Schema), nil, &version)
	return version, err
}

// setup makes the queue's row, or looks for it.
func (q *queue) setup(ctx context.Context) error {
	if err := q.d.ready(ctx, q.o.Create); err != nil {
		return err
	}
	var there bool
	err := q.d.row(ctx, q.d.sql.hasQueue, []any{q.name}, &there)
	switch {
	case err != nil || there:
		return err
	case !q.o.Create:
		return fmt.Errorf("there is no queue %s in %s.queues: set create = true, or correct the name", q.name, q.d.o.Schema)
	}
	_, err = q.d.exec(ctx, q.d.sql.makeQueue, q.name)
	return err
}
