package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/guesthand/guesthand/host"
	"github.com/guesthand/guesthand/host/admin"
	"github.com/guesthand/guesthand/host/config"
	"github.com/guesthand/guesthand/host/ledger"
)

// socketPath is where a running host listens for commands.
func socketPath(c *config.Config) string { return filepath.Join(c.Data, "guesthand.sock") }

// connect returns what answers a command's questions, chosen once: the host at --host, the
// host that runs on this data directory, else the brokers themselves. done must be called.
func (g *globals) connect(ctx context.Context) (s admin.Service, done func(), err error) {
	if g.host != "" {
		c, err := admin.NewClient(g.host, os.Getenv("GUESTHAND_TOKEN"))
		if err != nil {
			return nil, nil, fail(exitUsage, "", err)
		}
		return c, func() {}, nil
	}
	c, err := g.load()
	if err != nil {
		return nil, nil, err
	}
	if client, running := admin.DialSocket(ctx, socketPath(c)); running {
		return client, func() {}, nil
	}
	return local(ctx, c)
}

// local opens brokers and ledger for one command, while no host runs.
func local(ctx context.Context, c *config.Config) (admin.Service, func(), error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	brokers := host.NewBrokers(c, onlyDurable(), host.OpenOptions{Worker: host.WorkerName(), Logger: log}, true)
	l, err := readLedger(ctx, c, log)
	if err != nil {
		return nil, nil, err
	}
	return host.NewOperations(c, brokers, l), func() {
		ctx := context.WithoutCancel(ctx)
		if err := errors.Join(brokers.Close(ctx), l.Close(ctx)); err != nil {
			fmt.Fprintf(os.Stderr, "guesthand: close: %v\n", err)
		}
	}, nil
}

// readLedger opens the ledger's file for reading; nil where there is none.
func readLedger(ctx context.Context, c *config.Config, log *slog.Logger) (*ledger.Ledger, error) {
	if c.Ledger.Driver == "none" {
		return nil, nil
	}
	if _, err := os.Stat(c.Ledger.Path); err != nil {
		return nil, nil
	}
	return ledger.Open(ctx, ledger.Options{Path: c.Ledger.Path, ReadOnly: true, Logger: log})
}

// onlyDurable leaves out the brokers that exist only inside a running host.
func onlyDurable() map[string]host.Opener {
	o := map[string]host.Opener{}
	for name, open := range openers {
		o[name] = open
	}
	o["memory"] = func(context.Context, config.Broker, host.OpenOptions) (d driver, err error) {
		return nil, errors.New("a memory broker exists only inside a running host, and none runs on this data directory")
	}
	return o
}
