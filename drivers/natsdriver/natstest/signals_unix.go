//go:build unix

package natstest

import "syscall"

const (
	stopSignal = syscall.SIGSTOP
	contSignal = syscall.SIGCONT
)
