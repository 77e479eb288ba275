//go:build !unix

package ledger_test

import "time"

// cpuTime is not known here.
func cpuTime() time.Duration { return 0 }
