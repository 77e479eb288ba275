package ledger

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// schemaVersion is the user_version of files this code writes.
const schemaVersion = 1

// Times are Unix nanoseconds, durations nanoseconds. The table runs is for everybody to read;
// blocks and block_rows are as pack.go says, apart so that a search need not read the rows.
const schema = `
CREATE TABLE runs (
	n          INTEGER PRIMARY KEY,
	id         TEXT NOT NULL,
	queue      TEXT NOT NULL,
	job        TEXT NOT NULL,
	attempt    INTEGER NOT NULL,
	outcome    TEXT NOT NULL,
	cause      TEXT NOT NULL,
	code       INTEGER NOT NULL,
	delay      INTEGER NOT NULL,
	error      TEXT NOT NULL,
	result     BLOB,
	started    INTEGER,
	finished   INTEGER NOT NULL,
	settlement TEXT NOT NULL,
	digest     TEXT NOT NULL,
	worker     TEXT NOT NULL
) STRICT;
CREATE INDEX runs_id ON runs (id);
CREATE INDEX runs_finished ON runs (finished);
CREATE INDEX runs_job ON runs (queue, job, finished);
CREATE INDEX runs_outcome ON runs (outcome, finished);
CREATE TABLE blocks (
	n         INTEGER PRIMARY KEY,
	first     INTEGER NOT NULL,
	last      INTEGER NOT NULL,
	rows      INTEGER NOT NULL,
	successes INTEGER NOT NULL,
	names     TEXT NOT NULL
) STRICT;
CREATE INDEX blocks_last ON blocks (last);
CREATE INDEX blocks_successes ON blocks (successes, last);
CREATE TABLE block_rows (
	n    INTEGER PRIMARY KEY,
	ids  BLOB NOT NULL,
	rows BLOB NOT NULL
) STRICT;
`

const columns = `id, queue, job, attempt, outcome, cause, code, delay, error, result, started, finished, settlement, digest, worker`

// store is an open file: one connection that writes, and a few that read.
type store struct {
	path   string
	write  *sql.DB // nil when opened for reading only
	read   *sql.DB
	insert *sql.Stmt
	block  *sql.Stmt
	rows   *sql.Stmt
}

// openStore opens the file, makes or checks its tables, and prepares the statements.
func openStore(ctx context.Context, path string, readOnly bool) (s *store, err error) {
	s = &store{path: path}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if readOnly {
		return s, s.openReader(ctx)
	}
	if err := createFile(path); err != nil {
		return s, err
	}
	if s.write, err = sql.Open("sqlite", dsn(path,
		"_auto_vacuum=incremental", "_busy_timeout=5000", "_txlock=immediate",
		"_pragma=journal_mode(wal)", "_pragma=cache_size(-8000)", "_pragma=synchronous(normal)", "_pragma=journal_size_limit(16777216)")); err != nil {
		return s, err
	}
	s.write.SetMaxOpenConns(1)
	if err := s.migrate(ctx); err != nil {
		return s, err
	}
	if err := s.prepare(ctx); err != nil {
		return s, err
	}
	return s, s.openReader(ctx)
}

// openReader opens the connections that read. The version is checked there too: a command may
// be older than the host that wrote the file.
func (s *store) openReader(ctx context.Context) (err error) {
	if _, err := os.Stat(s.path); err != nil {
		return err
	}
	if s.read, err = sql.Open("sqlite", dsn(s.path, "mode=ro", "_busy_timeout=5000")); err != nil {
		return err
	}
	s.read.SetMaxOpenConns(4)
	v, err := version(ctx, s.read)
	if err != nil {
		return err
	}
	if v != schemaVersion {
		return versionError(s.path, v)
	}
	return nil
}

func (s *store) close() error {
	var errs []error
	for _, db := range []*sql.DB{s.read, s.write} {
		if db != nil {
			errs = append(errs, db.Close())
		}
	}
	return errors.Join(errs...)
}

// createFile makes an empty file that only its owner may read: results and errors can be
// confidential. SQLite gives its side files the same mode.
func createFile(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return os.Chmod(path, 0o600)
	}
	if err != nil {
		return err
	}
	return f.Close()
}

func dsn(path string, options ...string) string {
	p := filepath.ToSlash(path)
	if !strings.HasPrefix(p, "/") {
		p = "/" + p // C:/data becomes file:///C:/data
	}
	u := url.URL{Scheme: "file", Path: p, RawQuery: strings.Join(options, "&")}
	return u.String()
}

// migrate makes the tables in a new file, and refuses one of a version it does not know.
func (s *store) migrate(ctx context.Context) error {
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // does nothing after Commit
	v, err := version(ctx, tx)
	if err != nil {
		return err
	}
	switch v {
	case schemaVersion:
		return nil
	case 0:
		var tables int
		if err := tx.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master").Scan(&tables); err != nil {
			return err
		}
		if tables > 0 { // somebody else's database
			return versionError(s.path, v)
		}
		if _, err := tx.ExecContext(ctx, schema+fmt.Sprintf("PRAGMA user_version = %d", schemaVersion)); err != nil {
			return err
		}
		return tx.Commit()
	}
	return versionError(s.path, v)
}

func version(ctx context.Context, q interface {
	QueryRowContext(context.Context, string, ...any) *sql.Row
}) (v int, err error) {
	err = q.QueryRowContext(ctx, "PRAGMA user_version").Scan(&v)
	return v, err
}

func versionError(path string, v int) error {
	if v == 0 {
		return fmt.Errorf("%s is no ledger", path)
	}
	return fmt.Errorf("%s has ledger version %d and this guesthand knows %d: use the newer guesthand or another path",
		path, v, schemaVersion)
}

func (s *store) prepare(ctx context.Context) (err error) {
	for _, p := range []struct {
		to  **sql.Stmt
		sql string
	}{
		{&s.insert, "INSERT INTO runs (" + columns + ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"},
		{&s.block, "INSERT INTO blocks (first, last, rows, successes, names) VALUES (?, ?, ?, ?, ?)"},
		{&s.rows, "INSERT INTO block_rows (n, ids, rows) VALUES (?, ?, ?)"},
	} {
		if *p.to, err = s.write.PrepareContext(ctx, p.sql); err != nil {
			return err
		}
	}
	return nil
}

// Below packFrom rows of a kind in a batch each becomes a plain row. A block ends at blockRows
// rows or blockBytes of texts and results.
const (
	packFrom   = 64
	blockRows  = 1024
	blockBytes = 1 << 20
)

// add writes a batch in one transaction.
func (s *store) add(ctx context.Context, b batch) error {
	tx, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // does nothing after Commit
	for _, kind := range []struct {
		rows      []Row
		successes bool
	}{{b.others, false}, {b.successes, true}} {
		if len(kind.rows) < packFrom {
			err = s.addRows(ctx, tx, kind.rows)
		} else {
			err = s.addBlocks(ctx, tx, kind.rows, kind.successes)
		}
		if err != nil {
			return err
		}
	}
	return tx.Commit()
}

func (s *store) addRows(ctx context.Context, tx *sql.Tx, rows []Row) error {
	insert := tx.StmtContext(ctx, s.insert)
	for i := range rows {
		if _, err := insert.ExecContext(ctx, values(&rows[i])...); err != nil {
			return err
		}
	}
	return nil
}

func values(r *Row) []any {
	var started any
	if !r.Started.IsZero() {
		started = r.Started.UnixNano()
	}
	return []any{r.ID, r.Queue, r.Job, r.Attempt, r.Outcome, r.Cause, r.Code, int64(r.Delay), r.Error,
		r.Result, started, unixNano(r.Finished), r.Settlement, r.Digest, r.Worker}
}

func (s *store) addBlocks(ctx context.Context, tx *sql.Tx, rows []Row, successes bool) error {
	for len(rows) > 0 {
		n, bytes := 0, 0
		for n < min(len(rows), blockRows) && bytes < blockBytes {
			bytes += rows[n].size()
			n++
		}
		if err := s.addBlock(ctx, tx, pack(rows[:n]), successes); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

func (s *store) addBlock(ctx context.Context, tx *sql.Tx, p packed, successes bool) error {
	list := make([]name, 0, len(p.names))
	for n := range p.names {
		list = append(list, n)
	}
	names, err := json.Marshal(list)
	if err != nil {
		return err
	}
	result, err := tx.StmtContext(ctx, s.block).ExecContext(ctx, p.first, p.last, p.rows, successes, string(names))
	if err != nil {
		return err
	}
	n, err := result.LastInsertId()
	if err != nil {
		return err
	}
	_, err = tx.StmtContext(ctx, s.rows).ExecContext(ctx, n, p.ids, p.data)
	return err
}

// corrupt is true for an error that says the file is no database, or a broken one.
func corrupt(err error) bool {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return false
	}
	code := e.Code() & 0xff // without the extension
	return code == sqlite3.SQLITE_CORRUPT || code == sqlite3.SQLITE_NOTADB
}

// setAside renames a broken file and its side files, and returns the new name.
func setAside(path string, now time.Time) (string, error) {
	aside := path + ".corrupt-" + now.UTC().Format("20060102T150405.000")
	if err := os.Rename(path, aside); err != nil {
		return "", err
	}
	for _, suffix := range []string{"-wal", "-shm"} {
		if err := os.Rename(path+suffix, aside+suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return aside, nil
}
