package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the build from the repository's tags.
var version = "dev"

func newVersion(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			engine := dependency("github.com/tetratelabs/wazero")
			if g.json {
				return jsonLine(c.OutOrStdout(), map[string]string{"version": version, "go": runtime.Version(),
					"wazero": engine, "os": runtime.GOOS, "arch": runtime.GOARCH})
			}
			_, err := fmt.Fprintf(c.OutOrStdout(), "guesthand %s (%s, wazero %s, %s/%s)\n", version, runtime.Version(), engine, runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}

// dependency is the version of a module that this build holds.
func dependency(path string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, d := range info.Deps {
		if d.Path == path {
			return d.Version
		}
	}
	return "unknown"
}
