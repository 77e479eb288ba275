package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/guesthand/guesthand/abi/guest"
	"github.com/guesthand/guesthand/host/engine"
)

func newBuild(g *globals) *cobra.Command {
	var out string
	var noStart bool
	c := &cobra.Command{
		Use: "build handler.js -o handler.wasm", Short: "Make a module of a JavaScript handler", Args: cobra.ExactArgs(1),
		Long: "Make a module of a JavaScript handler: the script, which exports a default function, attached\n" +
			"to a JavaScript runtime. The module is started once, so that a script which cannot be\n" +
			"parsed or started is an error here.",
		Example: "  guesthand build resize.js -o plugins/resize.wasm",
		RunE: func(c *cobra.Command, args []string) error {
			if out == "" {
				out = strings.TrimSuffix(args[0], filepath.Ext(args[0])) + ".wasm"
			}
			return g.build(c, args[0], out, !noStart)
		},
	}
	c.Flags().StringVarP(&out, "output", "o", "", "the module's `FILE` (default the script's name with .wasm)")
	c.Flags().BoolVar(&noStart, "no-start", false, "do not start the module: for a script whose top level needs its configuration")
	return c
}

// built is what build --json prints.
type built struct {
	Module string `json:"module"`
	Size   int    `json:"size"`
	Digest string `json:"digest"`
}

func (g *globals) build(c *cobra.Command, file, out string, start bool) error {
	if ext := filepath.Ext(file); ext != ".js" && ext != ".mjs" {
		return fail(exitUsage, "build makes modules of .js files; other languages have compilers, see docs/handlers.md",
			fmt.Errorf("%s is no .js file", file))
	}
	script, err := os.ReadFile(file)
	if err != nil {
		return fail(exitUsage, "", err)
	}
	if !utf8.Valid(script) {
		return fail(exitNotFine, "", fmt.Errorf("%s: not UTF-8", file))
	}
	wasm := guest.JavaScript(filepath.Base(file), script)
	if start {
		if err := g.startOnce(c, wasm); err != nil {
			return fail(exitNotFine, "", fmt.Errorf("%s: %w", file, err))
		}
	}
	if err := replaceFile(out, wasm); err != nil {
		return err
	}
	digest := sha256.Sum256(wasm)
	return g.printBuilt(c.OutOrStdout(), built{out, len(wasm), hex.EncodeToString(digest[:])})
}

// startOnce runs the script as far as its top level goes.
func (g *globals) startOnce(c *cobra.Command, wasm []byte) error {
	e, err := engine.New(engine.Options{CacheDir: g.cacheDir(nil), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	defer e.Close(c.Context())
	m, err := e.Load(c.Context(), wasm, engine.Config{Job: "build"})
	if err != nil {
		return err
	}
	defer m.Close()
	return m.Start(c.Context())
}

// replaceFile writes beside the file and renames, so that a host which watches it sees one
// whole version or the other.
func replaceFile(name string, b []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), ".guesthand-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(b)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}

func (g *globals) printBuilt(w io.Writer, b built) error {
	if g.json {
		return jsonLine(w, b)
	}
	_, err := fmt.Fprintf(w, "%s: %d KiB, %s\n", b.Module, b.Size>>10, short(b.Digest))
	return err
}
