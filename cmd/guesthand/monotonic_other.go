//go:build !linux

package main

import "time"

// monotonic has no use where there is no systemd.
func monotonic() time.Duration { return 0 }
