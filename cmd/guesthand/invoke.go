package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host"
	"github.com/guesthand/guesthand/host/config"
	"github.com/guesthand/guesthand/host/engine"
	"github.com/guesthand/guesthand/host/plugindir"
)

type invokeFlags struct {
	job, payload, timeout, deadLetter string
	headers                           []string
	attempt                           int
}

func newInvoke(g *globals) *cobra.Command {
	var f invokeFlags
	c := &cobra.Command{
		Use: "invoke m.wasm", Short: "Run one message through a module, with no broker", Args: cobra.ExactArgs(1),
		Long: "Run one message through a module exactly as the host would, and print what it came to.\n" +
			"[handlers.JOB] of the configuration applies where there is one. Exit status 0 for success,\n" +
			"1 for any other outcome, 2 where the module cannot be loaded.",
		Example: `  guesthand invoke plugins/orders.wasm --payload '{"id": 1}'
  guesthand invoke plugins/orders.wasm --dead-letter dead.json`,
		RunE: func(c *cobra.Command, args []string) error { return g.invoke(c.Context(), c.OutOrStdout(), args[0], f) },
	}
	fl := c.Flags()
	fl.StringVar(&f.job, "job", "", "the `job`'s name (default the file's, without .wasm)")
	fl.StringVar(&f.payload, "payload", "", "the payload: `TEXT`, @FILE or @- for standard input")
	fl.StringArrayVar(&f.headers, "header", nil, "a header `NAME=VALUE`; may be repeated")
	fl.IntVar(&f.attempt, "attempt", 1, "the `number` of the attempt; the earlier ones count as failures")
	fl.StringVar(&f.timeout, "timeout", "", "end the run after this `duration`, instead of the handler's timeout")
	fl.StringVar(&f.deadLetter, "dead-letter", "", "run the message of this `FILE`, as `dead show --json` prints it")
	return c
}

// invocation is what invoke --json prints.
type invocation struct {
	Outcome      string  `json:"outcome"`
	Cause        string  `json:"cause"`
	Code         int     `json:"code"`
	DelayMS      int64   `json:"delay_ms"`
	Error        string  `json:"error"`
	Result       string  `json:"result"`
	ResultBase64 string  `json:"result_base64"`
	DurationMS   float64 `json:"duration_ms"`
	MemoryBytes  uint64  `json:"memory_bytes"`
	Dialect      string  `json:"dialect"`
	Digest       string  `json:"digest"`
	// Sends is what the run asked to be sent: the host sends it after a success only.
	Sends []invokedSend `json:"sends"`
}

func (g *globals) invoke(ctx context.Context, out io.Writer, file string, f invokeFlags) error {
	wasm, err := os.ReadFile(file)
	if err != nil {
		return fail(exitUsage, "", err)
	}
	if f.job == "" {
		f.job = strings.TrimSuffix(filepath.Base(file), ".wasm")
	}
	c, err := g.loadIfThere()
	if err != nil {
		return err
	}
	handler, err := invokedHandler(c, f, file)
	if err != nil {
		return err
	}
	in, err := f.input(c, handler)
	if err != nil {
		return err
	}
	if len(in.Payload) > handler.Payload {
		return fail(exitNotFine, "the host would dead-letter it unrun; see the handler's payload key",
			fmt.Errorf("payload of %d bytes is over the limit of %d", len(in.Payload), handler.Payload))
	}
	level := slog.LevelDebug
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	in.Logger = log
	e, err := engine.New(engine.Options{CacheDir: g.cacheDir(c), Logger: log})
	if err != nil {
		return err
	}
	defer e.Close(ctx)
	granted, closeHTTP := plugindir.WithHTTP(plugindir.EngineConfig(handler), handler, nil)
	defer closeHTTP()
	m, err := e.Load(ctx, wasm, granted)
	if err != nil {
		var refused *engine.RefusedError
		if errors.As(err, &refused) {
			return fail(exitUsage, "guesthand inspect explains a module", fmt.Errorf("%s: %w", file, err))
		}
		return err
	}
	defer m.Close()
	if in.Bucket, err = memoryBucket(ctx, handler); err != nil {
		return err
	}
	call := engine.Call{Input: in}
	defer context.AfterFunc(ctx, func() { call.Stop(abi.Cancelled) })()
	return g.printInvocation(out, m.Info(), m.Run(&call))
}

// loadIfThere reads the configuration where there is one: invoke works without.
func (g *globals) loadIfThere() (*config.Config, error) {
	if _, err := config.Find(g.config); err != nil && g.config == "" && os.Getenv("GUESTHAND_CONFIG") == "" {
		return nil, nil
	}
	return g.load()
}

// cacheDir is where compiled code is kept between calls, so that the second one is quick.
func (g *globals) cacheDir(c *config.Config) string {
	if c != nil {
		if _, err := os.Stat(c.Data); err == nil {
			return host.CacheDir(c)
		}
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "guesthand", "compiled")
}

func invokedHandler(c *config.Config, f invokeFlags, file string) (h config.Handler, err error) {
	var sidecar *config.Sidecar
	if c == nil {
		c = config.Defaults()
	}
	name := strings.TrimSuffix(file, ".wasm") + ".toml"
	if b, err := os.ReadFile(name); err == nil {
		if sidecar, err = config.ParseSidecar(name, b, c.TrustSidecars); err != nil {
			return h, err
		}
	}
	if h, err = c.Handler(f.job, sidecar); err != nil {
		return h, err
	}
	if f.timeout != "" {
		d, err := config.ParseDuration(f.timeout)
		if err != nil || d <= 0 {
			return h, fail(exitUsage, "", fmt.Errorf("timeout: %q is no duration; write 500ms, 10s or 5m", f.timeout))
		}
		h.Timeout = d
	}
	return h, nil
}

func (f invokeFlags) input(c *config.Config, h config.Handler) (in engine.Input, err error) {
	if c == nil {
		c = config.Defaults()
	}
	in = engine.Input{ID: uuid.NewString(), Job: f.job, Queue: "invoke", EnqueuedAt: time.Now(),
		MaxAttempts: c.Policy("", h).MaxAttempts}
	if f.attempt < 1 {
		return in, fail(exitUsage, "", fmt.Errorf("attempt: %d is less than 1", f.attempt))
	}
	in.Tally = drivers.Tally{Failures: f.attempt - 1}
	if f.deadLetter != "" {
		l, err := readLetter(f.deadLetter)
		if err != nil {
			return in, fail(exitUsage, "", err)
		}
		in.ID, in.Queue, in.EnqueuedAt = l.ID, l.Queue, l.Enqueued
		in.Headers, in.Payload = l.Headers, l.Payload
		in.Tally = l.Tally.Replayed()
		return in, nil
	}
	if in.Headers, err = readHeaders(f.headers); err != nil {
		return in, err
	}
	in.Payload, err = readPayload(f.payload)
	return in, err
}

func (g *globals) printInvocation(out io.Writer, info engine.ModuleInfo, r engine.Result) error {
	v := invocation{Outcome: r.End.Word(), Cause: r.End.CauseWord(), Code: r.End.CodeOrNone(),
		DelayMS: r.End.Outcome.Delay.Milliseconds(), Error: runError(r.End), DurationMS: millis(r.Duration),
		MemoryBytes: r.Memory, Dialect: string(info.Dialect), Digest: info.Digest, Sends: invokedSends(r.Sends)}
	if utf8.Valid(r.Output) {
		v.Result = string(r.Output)
	} else {
		v.ResultBase64 = base64.StdEncoding.EncodeToString(r.Output)
	}
	var err error
	if g.json {
		err = jsonLine(out, v)
	} else {
		err = printInvocationText(out, v)
	}
	if err == nil && v.Outcome != abi.Success.String() {
		return notFine
	}
	return err
}

func runError(e abi.End) string {
	if e.Text == "" {
		return e.Outcome.Text
	}
	return e.Text
}

func printInvocationText(w io.Writer, v invocation) error {
	outcome := v.Outcome
	if v.DelayMS > 0 {
		outcome += " in " + (time.Duration(v.DelayMS) * time.Millisecond).String()
	}
	fmt.Fprintf(w, "outcome   %s (cause %s, code %d)\n", outcome, orDash(v.Cause), v.Code)
	if v.Error != "" {
		fmt.Fprintf(w, "error     %s\n", printableLines(v.Error))
	}
	fmt.Fprintf(w, "duration  %.3f ms\nmemory    %d KiB\nmodule    %s, %s\n", v.DurationMS, v.MemoryBytes>>10, v.Dialect, short(v.Digest))
	switch {
	case v.ResultBase64 != "":
		fmt.Fprintf(w, "result    base64 %s\n", v.ResultBase64)
	case v.Result != "":
		fmt.Fprintf(w, "result    %s\n", printableLines(v.Result))
	}
	printSends(w, v)
	return nil
}
