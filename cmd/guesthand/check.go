package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/guesthand/guesthand/host"
	"github.com/guesthand/guesthand/host/admin"
	"github.com/guesthand/guesthand/host/config"
	"github.com/guesthand/guesthand/host/engine"
	"github.com/guesthand/guesthand/host/plugindir"
)

// finding is one line of check.
type finding struct {
	Kind  string `json:"kind"` // config, plugin, broker, queue
	Name  string `json:"name"`
	Level string `json:"level"` // ok, warning, error
	Text  string `json:"text"`
}

func newCheck(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "check", Short: "Load configuration and plug-ins, connect to the brokers, and say what is not right", Args: cobra.NoArgs,
		Long: "Load the configuration and every plug-in, connect to the brokers, compare their limits with\n" +
			"the policies, and print a table. Warnings exit with 0, errors with 1.\n" +
			"Queues are opened as run would open them: what is missing on the broker is created.",
		RunE: func(c *cobra.Command, _ []string) error { return g.check(c.Context(), c.OutOrStdout()) },
	}
}

func (g *globals) check(ctx context.Context, out io.Writer) error {
	fs, err := g.findings(ctx)
	var bad *config.Error
	if errors.As(err, &bad) && g.json {
		if err := printFindings(out, true, issues(bad)); err != nil {
			return err
		}
		return &exitError{code: exitUsage}
	}
	if err != nil {
		return err
	}
	if err := printFindings(out, g.json, fs); err != nil {
		return err
	}
	if slices.ContainsFunc(fs, func(f finding) bool { return f.Level == "error" }) {
		return notFine
	}
	return nil
}

func printFindings(w io.Writer, asJSON bool, fs []finding) error {
	if asJSON {
		for _, f := range fs {
			if err := jsonLine(w, f); err != nil {
				return err
			}
		}
		return nil
	}
	return table(w, "LEVEL KIND NAME TEXT", func(add func(...any)) {
		for _, f := range fs {
			add(f.Level, f.Kind, f.Name, f.Text)
		}
	})
}

func issues(bad *config.Error) []finding {
	fs := make([]finding, len(bad.Issues))
	for i, is := range bad.Issues {
		fs[i] = finding{"config", is.Key, "error", is.String()}
	}
	return fs
}

func (g *globals) findings(ctx context.Context) ([]finding, error) {
	c, err := g.load()
	if err != nil {
		return nil, err
	}
	fs := []finding{{"config", c.File, "ok", fmt.Sprintf("%d brokers, %d queues", len(c.Brokers), len(c.Queues))}}
	for _, w := range c.Warnings {
		fs = append(fs, finding{"config", w.Key, "warning", w.String()})
	}
	quiet := slog.New(slog.DiscardHandler)
	jobs, found, err := checkPlugins(ctx, c, quiet)
	if err != nil {
		return nil, err
	}
	fs = append(fs, found...)
	return append(fs, checkQueues(ctx, c, jobs, quiet)...), nil
}

// checkPlugins loads the plug-in directory and returns what is ready there.
func checkPlugins(ctx context.Context, c *config.Config, log *slog.Logger) (map[string]config.Handler, []finding, error) {
	e, err := engine.New(engine.Options{CacheDir: host.CacheDir(c), Logger: log})
	if err != nil {
		return nil, nil, err
	}
	defer e.Close(ctx)
	d, err := plugindir.Open(ctx, plugindir.Options{Dir: c.Plugins, Engine: e, Config: func() *config.Config { return c }, Logger: log})
	if err != nil {
		return nil, []finding{{"plugin", c.Plugins, "error", err.Error()}}, nil
	}
	defer d.Close()
	var fs []finding
	for _, s := range d.Status() {
		switch {
		case s.Error != "":
			fs = append(fs, finding{"plugin", s.File, "error", s.Error})
		default:
			fs = append(fs, finding{"plugin", s.File, "ok", fmt.Sprintf("%s, %s", s.Dialect, short(s.Digest))})
		}
	}
	jobs := d.Handlers()
	for _, note := range d.Notes() {
		fs = append(fs, finding{"plugin", c.Plugins, "warning", note})
	}
	for _, job := range slices.Sorted(maps.Keys(c.Handlers)) {
		if _, ok := jobs[job]; !ok {
			fs = append(fs, finding{"plugin", job, "warning", fmt.Sprintf("[handlers.%s] is configured, but there is no %s.wasm in %s", job, job, c.Plugins)})
		}
	}
	return jobs, fs, nil
}

// checkQueues opens every queue and holds the broker's limits against the policies.
func checkQueues(ctx context.Context, c *config.Config, jobs map[string]config.Handler, log *slog.Logger) (fs []finding) {
	_, running := admin.DialSocket(ctx, socketPath(c))
	// With consumers, which have limits of their own.
	brokers := host.NewBrokers(c, openers, host.OpenOptions{Worker: host.WorkerName(), Logger: log}, false)
	defer func() {
		if err := brokers.Close(context.WithoutCancel(ctx)); err != nil {
			fs = append(fs, finding{"broker", "", "warning", "close: " + err.Error()})
		}
	}()
	for _, name := range slices.Sorted(maps.Keys(c.Queues)) {
		q := c.Queues[name]
		if running && c.Brokers[q.Broker].Driver == "embedded" {
			fs = append(fs, finding{"queue", name, "ok", "its embedded broker is in use by the running host, which checked it"})
			continue
		}
		dq, err := brokers.Queue(ctx, name)
		if err != nil {
			fs = append(fs, finding{"queue", name, "error", err.Error()})
			continue
		}
		info := dq.Info()
		fs = append(fs, finding{"queue", name, "ok", fmt.Sprintf("broker %s, lease %s, %s", q.Broker, info.Lease, c.Policy(name, jobs[q.Handler]))})
		warnings, err := host.Limits(c, name, info, jobs)
		for _, text := range warnings {
			fs = append(fs, finding{"queue", name, "warning", text})
		}
		if err != nil {
			fs = append(fs, finding{"queue", name, "error", err.Error()})
		}
		for _, f := range info.Findings {
			level := "ok"
			if f.Warning {
				level = "warning"
			}
			fs = append(fs, finding{"queue", name, level, f.Text})
		}
		if q.Handler != "" {
			if _, ok := jobs[q.Handler]; !ok {
				fs = append(fs, finding{"queue", name, "error", fmt.Sprintf("its handler %s is not there: the queue would not receive", q.Handler)})
			}
		}
	}
	return fs
}
