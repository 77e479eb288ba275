//go:build !unix

package rabbittest

import "os/exec"

func ownGroup(*exec.Cmd) {}

func killNow(cmd *exec.Cmd) error { return cmd.Process.Kill() }

// There is no way to ask: an orderly end is a kill.
func killOrderly(cmd *exec.Cmd) error { return cmd.Process.Kill() }
