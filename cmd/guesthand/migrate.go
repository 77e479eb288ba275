package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/guesthand/guesthand/drivers/pgdriver"
	"github.com/guesthand/guesthand/host"
	"github.com/guesthand/guesthand/host/config"
)

// migrated is one line of migrate: a step that was taken, or that nothing was to be done.
type migrated struct {
	Broker  string `json:"broker"`
	Schema  string `json:"schema"`
	Version int    `json:"version"`
	Name    string `json:"name"`
	Applied bool   `json:"applied"`
}

func newMigrate(g *globals) *cobra.Command {
	show := false
	c := &cobra.Command{
		Use: "migrate [BROKER]", Short: "Make a PostgreSQL broker's tables, or bring them up to date", Args: cobra.MaximumNArgs(1),
		Long: "Make the tables of a PostgreSQL broker, or bring them up to this version: of the one that is\n" +
			"named, else of all in the configuration. It only goes forward, does nothing where all is there,\n" +
			"and may be run by several at once. Messages stay, and hosts may run meanwhile.",
		Example: `  guesthand migrate
  guesthand migrate db --print | psql app`,
		RunE: func(c *cobra.Command, args []string) error {
			conf, err := g.load()
			if err != nil {
				return err
			}
			brokers, err := migratable(conf, args)
			if err != nil {
				return err
			}
			for _, b := range brokers {
				if err := g.migrate(c.Context(), c.OutOrStdout(), b, show); err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.Flags().BoolVar(&show, "print", false, "print the SQL that makes everything anew, and connect to nothing")
	return c
}

// migratable are the brokers that a command is about.
func migratable(c *config.Config, args []string) ([]config.Broker, error) {
	var names []string
	for name, b := range c.Brokers {
		if b.Driver == "postgres" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if len(args) > 0 {
		b, known := c.Brokers[args[0]]
		switch {
		case !known:
			return nil, fail(exitUsage, "brokers with tables: "+orDash(strings.Join(names, ", ")), fmt.Errorf("there is no broker %q in the configuration", args[0]))
		case b.Driver != "postgres":
			return nil, fail(exitUsage, "", fmt.Errorf("broker %s is %s: only postgres has tables", b.Name, b.Driver))
		}
		names = args
	}
	if len(names) == 0 {
		return nil, fail(exitUsage, "add one with driver = \"postgres\"", errors.New("no broker in the configuration has tables"))
	}
	brokers := make([]config.Broker, len(names))
	for i, name := range names {
		brokers[i] = c.Brokers[name]
	}
	return brokers, nil
}

func (g *globals) migrate(ctx context.Context, out io.Writer, b config.Broker, show bool) error {
	o := postgresOptions(b)
	if show {
		sql, err := pgdriver.MigrationSQL(o.Schema)
		if err != nil {
			return fail(exitUsage, "", err)
		}
		_, err = io.WriteString(out, sql)
		return err
	}
	done, err := pgdriver.Migrate(ctx, o)
	if errors.Is(err, pgdriver.ErrUnreachable) {
		return &host.UnreachableError{Broker: b.Name, Err: err}
	}
	if err != nil {
		return fail(exitNotFine, "", fmt.Errorf("broker %s: %w", b.Name, err))
	}
	schema := o.Schema
	if schema == "" {
		schema = pgdriver.DefaultSchema
	}
	if len(done) == 0 {
		line := migrated{Broker: b.Name, Schema: schema, Version: pgdriver.SchemaVersion()}
		if g.json {
			return jsonLine(out, line)
		}
		_, err := fmt.Fprintf(out, "%s: schema %s has version %d already\n", b.Name, schema, line.Version)
		return err
	}
	for _, m := range done {
		line := migrated{Broker: b.Name, Schema: schema, Version: m.Version, Name: m.Name, Applied: true}
		if g.json {
			err = jsonLine(out, line)
		} else {
			_, err = fmt.Fprintf(out, "%s: schema %s: step %s\n", b.Name, schema, m)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// postgresOptions are how to reach a broker.
func postgresOptions(b config.Broker) pgdriver.Options {
	return pgdriver.Options{URL: b.URL, User: b.User, Password: b.Password, Schema: b.Schema, Name: "guesthand " + b.Name}
}
