package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/abi/guest"
	"github.com/guesthand/guesthand/host/engine"
)

func newInspect(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "inspect m.wasm", Short: "Explain a module: dialect, imports, memory, digest, why it would be refused", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			wasm, err := os.ReadFile(args[0])
			if err != nil {
				return fail(exitUsage, "", err)
			}
			e, err := engine.New(engine.Options{})
			if err != nil {
				return err
			}
			defer e.Close(context.WithoutCancel(c.Context()))
			info, err := e.Inspect(wasm)
			var refused *engine.RefusedError
			if err != nil && !errors.As(err, &refused) {
				return err
			}
			if err := g.printInfo(c.OutOrStdout(), info, needs(info.Imports, wasm), refused); err != nil {
				return err
			}
			if refused != nil {
				return notFine
			}
			return nil
		},
	}
}

// inspection is what inspect --json prints.
type inspection struct {
	Digest       string         `json:"digest"`
	Size         int            `json:"size"`
	Dialect      string         `json:"dialect"`
	Entry        string         `json:"entry"`
	Imports      []string       `json:"imports"`
	Needs        []string       `json:"needs"`
	Exports      []string       `json:"exports"`
	MinMemory    uint64         `json:"min_memory"`
	MaxMemory    uint64         `json:"max_memory"`
	Sections     map[string]int `json:"sections"`
	Metered      bool           `json:"metered"`
	Note         string         `json:"note"`
	Instances    string         `json:"instances"`
	InstancesWhy string         `json:"instances_why"`
	Refused      string         `json:"refused"`
}

func (g *globals) printInfo(w io.Writer, m engine.ModuleInfo, needs []string, refused *engine.RefusedError) error {
	v := inspection{Digest: m.Digest, Size: m.Size, Dialect: string(m.Dialect), Entry: m.Entry, Imports: orNone(m.Imports), Needs: needs, Exports: orNone(m.Exports),
		MinMemory: m.MinMemory, MaxMemory: m.MaxMemory, Sections: m.Sections, Metered: m.Metered, Note: m.Note,
		Instances: string(m.Instances), InstancesWhy: m.InstancesWhy}
	if v.Sections == nil {
		v.Sections = map[string]int{}
	}
	if refused != nil {
		v.Refused = refused.Reason
	}
	if g.json {
		return jsonLine(w, v)
	}
	fmt.Fprintf(w, "digest     %s\nsize       %d bytes\ndialect    %s\n", v.Digest, v.Size, orDash(v.Dialect))
	fmt.Fprintf(w, "entry      %s\n", printable(orDash(v.Entry)))
	fmt.Fprintf(w, "imports    %s\nexports    %s\n", printable(orDash(strings.Join(v.Imports, ", "))), printable(orDash(strings.Join(v.Exports, ", "))))
	if len(v.Needs) > 0 {
		fmt.Fprintf(w, "needs      %s, granted under [handlers.JOB]\n", strings.Join(v.Needs, ", "))
	}
	fmt.Fprintf(w, "memory     %d KiB at the start", v.MinMemory>>10)
	if v.MaxMemory > 0 {
		fmt.Fprintf(w, ", its own limit %d KiB", v.MaxMemory>>10)
	}
	fmt.Fprintln(w)
	for _, name := range slices.Sorted(maps.Keys(v.Sections)) {
		fmt.Fprintf(w, "section    %s, %d bytes\n", printable(name), v.Sections[name])
	}
	if v.Refused != "" {
		_, err := fmt.Fprintf(w, "refused    %s\n", printable(v.Refused))
		return err
	}
	how := "by counters in its code"
	if !v.Metered {
		how = "by the engine's own, slower check"
	}
	fmt.Fprintf(w, "deadlines  enforced %s\n", how)
	if v.Note != "" {
		fmt.Fprintf(w, "note       %s\n", printable(v.Note))
	}
	_, err := fmt.Fprintf(w, "instances  %s: %s\n", orDash(v.Instances), orDash(v.InstancesWhy))
	return err
}

// granting are the keys of [handlers.JOB] without which imports answer that they are not granted.
// Compilers leave out what is not called, so an import is a use; the JavaScript runtime imports
// everything, so there the word in the script is.
var granting = []struct {
	imports, key string
	script       *regexp.Regexp
}{
	{abi.Module + ".http_", "http", regexp.MustCompile(`\bfetch\b`)},
	{"extism:host/env.http_request", "http", nil},
	{abi.Module + ".kv_", "kv", regexp.MustCompile(`\bkv\b`)},
	{abi.Module + ".message_send", "send", regexp.MustCompile(`\bsend\b`)},
}

// needs are the grants that a module asks for.
func needs(imports []string, wasm []byte) []string {
	keys := []string{}
	script, isScript := guest.Script(wasm)
	for _, g := range granting {
		uses := slices.ContainsFunc(imports, func(name string) bool { return strings.HasPrefix(name, g.imports) })
		if isScript {
			uses = g.script != nil && g.script.Match(script)
		}
		if uses && !slices.Contains(keys, g.key) {
			keys = append(keys, g.key)
		}
	}
	return keys
}

func orNone(s []string) []string {
	if s == nil {
		return []string{}
	}
	return s
}
