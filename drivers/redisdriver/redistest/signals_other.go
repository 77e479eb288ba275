//go:build !unix

package redistest

// There is no way to pause a process: Pause fails the test.
const (
	stopSignal = -1
	contSignal = -1
)
