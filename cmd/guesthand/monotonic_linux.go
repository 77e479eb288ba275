package main

import (
	"time"

	"golang.org/x/sys/unix"
)

// monotonic is CLOCK_MONOTONIC, by which systemd orders a reload's messages.
func monotonic() time.Duration {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) != nil { // never, on Linux
		return 0
	}
	return time.Duration(t.Nano())
}
