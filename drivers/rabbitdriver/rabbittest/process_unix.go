//go:build unix

package rabbittest

import (
	"os/exec"
	"syscall"
)

// ownGroup lets the node be ended as a whole: the script runs the Erlang machine as its child.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func killNow(cmd *exec.Cmd) error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }

// killOrderly: the script passes a TERM on and waits.
func killOrderly(cmd *exec.Cmd) error { return cmd.Process.Signal(syscall.SIGTERM) }
