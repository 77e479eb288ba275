package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/guesthand/guesthand/host"
	"github.com/guesthand/guesthand/host/admin"
	"github.com/guesthand/guesthand/host/config"
)

// lockWait is how long run waits for the store of a host that is just stopping.
const lockWait = 10 * time.Second

// stopBudget is what a stop may take after the drain: settling and closing, 30 s each.
const stopBudget = time.Minute

func newRun(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "run", Short: "Run the host until it is told to stop", Args: cobra.NoArgs,
		Long: "Run the host. The first SIGINT or SIGTERM lets runs finish within the drain time,\nthe second ends the process at once. SIGHUP reads the configuration again.",
		RunE: func(*cobra.Command, []string) error { return g.run() },
	}
}

func (g *globals) run() error {
	c, err := g.load()
	if err != nil {
		return err
	}
	level := new(slog.LevelVar)
	log := newLogger(c.Log, level)
	for _, w := range c.Warnings {
		log.Warn(w.Text, "key", w.Key)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	reload := make(chan struct{}, 1)
	go onSignals(ctx, stop, signals, reload, log)

	h, err := host.New(ctx, host.Options{Config: c, Openers: openers, Logger: log, LockWait: lockWait, Version: buildVersion()})
	switch {
	case err != nil && ctx.Err() != nil:
		log.Info("stopped while opening", "error", err)
		return nil
	case err != nil:
		return err
	}
	n := openNotifier(log)
	defer n.close()
	var reloading sync.WaitGroup
	reloading.Go(func() {
		for ctx.Err() == nil {
			select {
			case <-ctx.Done():
			case <-reload:
				n.reloading()
				g.reload(ctx, h, log, level)
				if ctx.Err() == nil {
					n.ready()
				}
			}
		}
	})
	err = serve(ctx, stop, c, h, n, log)
	stop()
	reloading.Wait()
	return errors.Join(err, h.Close(context.WithoutCancel(ctx)))
}

// serve runs the host and its API until ctx ends and the host has drained. The API answers
// through the drain.
func serve(ctx context.Context, stop context.CancelFunc, c *config.Config, h *host.Host, n *notifier, log *slog.Logger) error {
	listeners, err := listen(ctx, c, log)
	if err != nil {
		return err
	}
	apiCtx, endAPI := context.WithCancel(context.WithoutCancel(ctx))
	var serving sync.WaitGroup
	var apiErr error
	serving.Go(func() {
		apiErr = admin.NewServer(h, c.Admin.Token, log).Serve(apiCtx, listeners...)
		if apiErr != nil {
			stop()
		}
	})
	serving.Go(func() { n.feed(apiCtx, h.Alive) })
	n.ready()
	serving.Go(func() {
		<-ctx.Done()
		n.stopping(h.Config().Drain + stopBudget)
	})
	err = h.Run(ctx)
	stop()
	endAPI()
	serving.Wait()
	return errors.Join(err, apiErr)
}

func listen(ctx context.Context, c *config.Config, log *slog.Logger) ([]net.Listener, error) {
	socket, err := admin.ListenSocket(ctx, socketPath(c))
	if err != nil {
		return nil, fail(exitNotFine, "", err)
	}
	listeners := []net.Listener{socket}
	if c.Admin.Listen == "" {
		return listeners, nil
	}
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", c.Admin.Listen)
	if err != nil {
		socket.Close()
		return nil, fail(exitUsage, `set [admin] listen to a free address, or to "none"`, fmt.Errorf("admin: %w", err))
	}
	scheme := "http://"
	if c.Admin.Cert != "" {
		pair, err := admin.OpenKeyPair(c.Admin.Cert, c.Admin.Key)
		if err != nil {
			return nil, errors.Join(fail(exitUsage, "", fmt.Errorf("admin: %w", err)), socket.Close(), l.Close())
		}
		l, scheme = tls.NewListener(l, &tls.Config{GetCertificate: pair.Get, MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"}}), "https://"
	}
	log.Info("admin", "address", scheme+l.Addr().String())
	return append(listeners, l), nil
}

// onSignals is the two-step stop, and asks for a reload at SIGHUP. It never waits: the second
// signal has to end the process whatever that is busy with.
func onSignals(ctx context.Context, stop context.CancelFunc, signals <-chan os.Signal, reload chan<- struct{}, log *slog.Logger) {
	for s := range signals {
		switch {
		case s == syscall.SIGHUP:
			select {
			case reload <- struct{}{}:
			default: // one is to come anyway
			}
		case ctx.Err() == nil:
			stop()
		default:
			log.Warn("second signal: exit now", "signal", s.String())
			os.Exit(128 + int(s.(syscall.Signal)))
		}
	}
}

func (g *globals) reload(ctx context.Context, h *host.Host, log *slog.Logger, level *slog.LevelVar) {
	log.Info("reloading")
	c, err := g.load()
	if err != nil {
		log.Error("reload: the configuration in force stays", "error", err)
		return
	}
	applied, restart, errs := h.Reload(ctx, c)
	setLevel(level, c.Log.Level)
	for _, err := range errs {
		log.Error("reload", "error", err)
	}
	log.Info("reloaded", "applied", applied, "needs_restart", restart)
}

func newLogger(l config.Log, level *slog.LevelVar) *slog.Logger {
	setLevel(level, l.Level)
	o := &slog.HandlerOptions{Level: level, ReplaceAttr: readable}
	if l.Format == "text" || (l.Format == "" && term.IsTerminal(int(os.Stderr.Fd()))) {
		return slog.New(slog.NewTextHandler(os.Stderr, o))
	}
	return slog.New(slog.NewJSONHandler(os.Stderr, o))
}

// readable writes durations as people do: 1.5s, not 1500000000.
func readable(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

func setLevel(v *slog.LevelVar, name string) {
	var l slog.Level
	if l.UnmarshalText([]byte(name)) == nil {
		v.Set(l)
	}
}
