package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by `make build` from the repository's tags; the zero value leaves it to what
// the go command wrote into the binary.
var version string

// buildVersion is this build's version: as the linker was told, else that of the module, which
// go install and go build in a checkout know, else the commit, else dev.
func buildVersion() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "dev"
	}
	return versionOf(info)
}

func versionOf(info *debug.BuildInfo) string {
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	commit := settings["vcs.revision"]
	switch {
	case commit == "":
		return "dev"
	case settings["vcs.modified"] == "true":
		return "dev-" + commit[:min(12, len(commit))] + "-dirty"
	}
	return "dev-" + commit[:min(12, len(commit))]
}

func newVersion(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			engine := dependency("github.com/tetratelabs/wazero")
			if g.json {
				return jsonLine(c.OutOrStdout(), map[string]string{"version": buildVersion(), "go": runtime.Version(),
					"wazero": engine, "os": runtime.GOOS, "arch": runtime.GOARCH})
			}
			_, err := fmt.Fprintf(c.OutOrStdout(), "guesthand %s (%s, wazero %s, %s/%s)\n", buildVersion(), runtime.Version(), engine, runtime.GOOS, runtime.GOARCH)
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
