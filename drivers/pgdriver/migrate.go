package pgdriver

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrUnreachable: Migrate got no connection.
var ErrUnreachable = errors.New("no connection")

// DefaultSchema is where the tables are unless Options.Schema says otherwise.
const DefaultSchema = "guesthand"

//go:embed migrations/*.sql
var migrationFiles embed.FS

// Migration is one step of the schema. Steps only go forward.
type Migration struct {
	Version int    // 1 and up
	Name    string // what it is about
	SQL     string // for the schema asked for
}

// String is version and name.
func (m Migration) String() string { return fmt.Sprintf("%d %s", m.Version, m.Name) }

var schemaName = regexp.MustCompile(`^[a-z_][a-z0-9_]{0,62}$`)

// inSchema puts a schema's name into SQL that is written for the default one.
func inSchema(sql, schema string) string {
	return strings.ReplaceAll(sql, DefaultSchema+".", `"`+schema+`".`)
}

// Migrations are all steps in their order, for a schema ("" for DefaultSchema).
func Migrations(schema string) ([]Migration, error) {
	if schema == "" {
		schema = DefaultSchema
	}
	if !schemaName.MatchString(schema) {
		return nil, fmt.Errorf("schema %q: want [a-z_][a-z0-9_]*, at most 63", schema)
	}
	files, err := fs.ReadDir(migrationFiles, "migrations")
	if err != nil {
		return nil, err
	}
	ms := make([]Migration, len(files))
	for i, f := range files {
		sql, err := fs.ReadFile(migrationFiles, "migrations/"+f.Name())
		if err != nil {
			return nil, err
		}
		number, name, _ := strings.Cut(strings.TrimSuffix(f.Name(), ".sql"), "_")
		version, err := strconv.Atoi(number)
		if err != nil {
			return nil, fmt.Errorf("migration %s: %w", f.Name(), err)
		}
		ms[i] = Migration{Version: version, Name: name, SQL: inSchema(string(sql), schema)}
	}
	slices.SortFunc(ms, func(a, b Migration) int { return a.Version - b.Version })
	return ms, nil
}

// SchemaVersion is the version of the schema that this driver works with.
func SchemaVersion() int {
	ms, err := Migrations("")
	if err != nil || len(ms) == 0 {
		panic(fmt.Sprintf("the embedded migrations: %v", err)) // a fault of the build
	}
	return ms[len(ms)-1].Version
}

// The statements around the steps.
const (
	sqlVersions  = "CREATE TABLE IF NOT EXISTS guesthand.migrations (version integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL DEFAULT now())"
	sqlApplied   = "INSERT INTO guesthand.migrations (version, name) VALUES ($1, $2)"
	sqlVersion   = "SELECT coalesce(max(version), 0) FROM guesthand.migrations"
	sqlHasTable  = "SELECT to_regclass($1) IS NOT NULL"
	sqlHasSchema = "SELECT to_regnamespace($1) IS NOT NULL"
)

// MigrationSQL is everything that Migrate does on an empty database, as a script for psql.
func MigrationSQL(schema string) (string, error) {
	ms, err := Migrations(schema)
	if err != nil {
		return "", err
	}
	if schema == "" {
		schema = DefaultSchema
	}
	var b strings.Builder
	fmt.Fprintf(&b, "BEGIN;\n\nCREATE SCHEMA IF NOT EXISTS %q;\n%s;\n", schema, inSchema(sqlVersions, schema))
	for _, m := range ms {
		fmt.Fprintf(&b, "\n-- %s\n\n%s\n", m, m.SQL)
		applied := strings.NewReplacer("$1", strconv.Itoa(m.Version), "$2", "'"+m.Name+"'").Replace(sqlApplied)
		fmt.Fprintf(&b, "%s;\n", inSchema(applied, schema))
	}
	b.WriteString("\nCOMMIT;\n")
	return b.String(), nil
}

// Migrate brings the schema up to what this driver needs, and returns the steps it took: none
// where it was there already. Any number of processes may do so at once, one does it. All is one
// transaction. A schema newer than the driver is an error.
func Migrate(ctx context.Context, o Options) (done []Migration, err error) {
	o = o.withDefaults()
	config, err := o.poolConfig()
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", err)
	}
	// Nothing here is worth preparing, and a pooler may stand between.
	conn, err := pgx.ConnectConfig(ctx, withMode(config.ConnConfig, pgx.QueryExecModeSimpleProtocol))
	if err != nil {
		return nil, fmt.Errorf("postgres at %s: %w: %w", o.where(), ErrUnreachable, err)
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	if done, err = migrate(ctx, conn, o.Schema); err != nil {
		return nil, fmt.Errorf("postgres at %s: migrate schema %s: %w", o.where(), o.Schema, err)
	}
	return done, nil
}

// migrationLock is the first half of the advisory lock that one migration holds at a time; the
// schema is the other.
const migrationLock = int32(0x67756573)

func migrate(ctx context.Context, conn *pgx.Conn, schema string) ([]Migration, error) {
	all, err := Migrations(schema)
	if err != nil {
		return nil, err
	}
	var done []Migration
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1, hashtext($2))", migrationLock, schema); err != nil {
			return err
		}
		version, err := prepareSchema(ctx, tx, schema)
		if err != nil {
			return err
		}
		if version > SchemaVersion() {
			return tooNew(schema, version)
		}
		for _, m := range all {
			if m.Version <= version {
				continue
			}
			if _, err := tx.Exec(ctx, m.SQL); err != nil {
				return fmt.Errorf("step %s: %w", m, err)
			}
			if _, err := tx.Exec(ctx, inSchema(sqlApplied, schema), m.Version, m.Name); err != nil {
				return err
			}
			done = append(done, m)
		}
		return nil
	})
	return done, err
}

// prepareSchema makes schema and table of versions where they are missing, and returns the
// version. Nothing is asked for that is there: IF NOT EXISTS would need the right to make it
// all the same.
func prepareSchema(ctx context.Context, tx pgx.Tx, schema string) (version int, err error) {
	quoted := `"` + schema + `"`
	for _, part := range []struct{ has, name, make string }{
		{sqlHasSchema, quoted, "CREATE SCHEMA " + quoted},
		{sqlHasTable, quoted + ".migrations", inSchema(sqlVersions, schema)},
	} {
		var there bool
		if err := tx.QueryRow(ctx, part.has, part.name).Scan(&there); err != nil {
			return 0, err
		}
		if there {
			continue
		}
		if _, err := tx.Exec(ctx, part.make); err != nil {
			return 0, err
		}
	}
	err = tx.QueryRow(ctx, inSchema(sqlVersion, schema)).Scan(&version)
	return version, err
}

func tooNew(schema string, version int) error {
	return fmt.Errorf("schema %s has version %d, made by a newer guesthand; this one knows versions up to %d: use a newer guesthand, or another schema",
		schema, version, SchemaVersion())
}

// sqlstate is a server's code for an error, "" for none.
func sqlstate(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}
