// Command guesthand runs queue handlers that are WebAssembly modules, and lets people
// send work, look at it and mend it.
//
// Data goes to standard output and talk to standard error. Exit status: 0 fine, 1 the
// thing asked about is not fine, 2 bad usage or configuration, 3 a broker or host cannot
// be reached.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/guesthand/guesthand/drivers"
	"github.com/guesthand/guesthand/host"
	"github.com/guesthand/guesthand/host/admin"
	"github.com/guesthand/guesthand/host/config"
)

// The exit statuses.
const (
	exitNotFine     = 1
	exitUsage       = 2
	exitUnreachable = 3
)

// exitError is an error with the status it ends the command with, and a hint at what to do.
type exitError struct {
	code int
	err  error
	hint string
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}
func (e *exitError) Unwrap() error { return e.err }

func fail(code int, hint string, err error) error { return &exitError{code, err, hint} }

// notFine ends a command whose answer was printed already and was no good news.
var notFine = &exitError{code: exitNotFine}

func main() { os.Exit(command()) }

func command() int {
	// run handles signals itself, in two steps; for everything else the first one ends it.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := newRoot().ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if text := err.Error(); text != "" {
		fmt.Fprintf(os.Stderr, "guesthand: %s\n", text)
	}
	code, hint := classify(err)
	if hint != "" {
		fmt.Fprintf(os.Stderr, "hint: %s\n", hint)
	}
	return code
}

// classify is the exit status and hint for an error.
func classify(err error) (code int, hint string) {
	var exit *exitError
	var bad *config.Error
	var broker *host.UnreachableError
	var away *admin.UnreachableError
	var remote *admin.RemoteError
	var queue *host.UnknownQueueError
	switch {
	case errors.As(err, &exit):
		return exit.code, exit.hint
	case errors.As(err, &bad):
		return exitUsage, "config.toml in the repository lists every key with its default"
	case errors.As(err, &queue):
		return exitUsage, ""
	case errors.As(err, &broker):
		return exitUnreachable, "is the broker running, and is its address in the configuration right?"
	case errors.As(err, &away):
		return exitUnreachable, "is the host running? start it with: guesthand run"
	case errors.As(err, &remote) && remote.Status >= 500:
		return exitUnreachable, ""
	case errors.As(err, &remote) && remote.Status == http.StatusNotFound && !errors.Is(err, drivers.ErrNotFound):
		return exitUsage, "" // a queue, as UnknownQueueError where no host runs
	case errors.As(err, &remote):
		return exitNotFine, ""
	}
	return exitNotFine, ""
}

// globals are the flags every command has.
type globals struct {
	config string
	json   bool
	host   string
}

func newRoot() *cobra.Command {
	g := &globals{}
	root := &cobra.Command{
		Use:           "guesthand",
		Short:         "Run queue handlers that are WebAssembly modules",
		Long:          "guesthand runs queue handlers as WebAssembly plug-ins: drop a .wasm into a directory,\nname a broker in a TOML file, and it gets messages with leases, retries, delays and dead letters.",
		SilenceErrors: true, SilenceUsage: true,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SetOut(os.Stdout)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return fail(exitUsage, "see: "+c.CommandPath()+" --help", err)
	})
	f := root.PersistentFlags()
	f.StringVarP(&g.config, "config", "c", "", "configuration `file` (default $GUESTHAND_CONFIG, else ./config.toml)")
	f.BoolVar(&g.json, "json", false, "print JSON lines")
	f.StringVar(&g.host, "host", "", "`URL` of a running host, instead of the socket in its data directory; a token is read from $GUESTHAND_TOKEN")
	root.AddCommand(newRun(g), newCheck(g), newNew(g), newBuild(g), newInvoke(g), newInspect(g), newSend(g), newDead(g),
		newRuns(g), newQueues(g), newPause(g), newResume(g), newCancel(g), newMigrate(g), newVersion(g))
	usageErrors(root)
	return root
}

// usageErrors makes wrong arguments exit with 2 everywhere.
func usageErrors(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return fail(exitUsage, "see: "+c.CommandPath()+" --help", err)
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		usageErrors(sub)
	}
}

// load reads the configuration.
func (g *globals) load() (*config.Config, error) {
	file, err := config.Find(g.config)
	if err != nil {
		return nil, fail(exitUsage, "name one with -c FILE, or start from the repository's config.toml", err)
	}
	c, err := config.Load(file)
	if err != nil {
		var bad *config.Error
		if errors.As(err, &bad) {
			return nil, err
		}
		return nil, fail(exitUsage, "", err)
	}
	return c, nil
}
