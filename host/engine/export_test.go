package engine

import "github.com/guesthand/guesthand/host/engine/rewrite"

// NotUnderstood makes e treat every module as one that the rewriter does not understand.
func NotUnderstood(e *Engine) {
	e.meter = func([]byte, int) ([]byte, error) { return nil, rewrite.ErrUnknown }
}

// Running tells how many runs m has in flight.
func Running(m *Module) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.running
}

// CacheEntries are the files of an engine's code cache.
func CacheEntries(e *Engine) []string {
	var paths []string
	for _, entry := range e.cache.entries() {
		paths = append(paths, entry.path)
	}
	return paths
}
