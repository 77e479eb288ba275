//go:build !unix

package pgtest

import (
	"os"
	"os/exec"
)

func own(string) error { return nil }

func asOther(*exec.Cmd) {}

// children are not known here; they end by themselves.
func children(int) []int { return nil }

func kill(pid int) {
	if p, err := os.FindProcess(pid); err == nil {
		_ = p.Kill() // one that has ended is no matter
	}
}

func alive(int) bool { return false }
