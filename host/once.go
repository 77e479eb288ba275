package host

import (
	"log/slog"
	"sync"
	"time"
)

// onceLog says a thing about one job, header or the like once in a while, however often it
// happens: a line for each message would bury the log.
type onceLog struct {
	mu   sync.Mutex
	said map[string]time.Time
}

const (
	onceEvery = 10 * time.Minute
	onceKeys  = 1000 // names come from messages: they must not fill the memory
)

func (o *onceLog) warn(log *slog.Logger, key, text string, args ...any) {
	o.mu.Lock()
	last, known := o.said[key]
	due := !known || time.Since(last) >= onceEvery
	if due {
		if o.said == nil || len(o.said) >= onceKeys {
			o.said = map[string]time.Time{}
		}
		o.said[key] = time.Now()
	}
	o.mu.Unlock()
	if due {
		log.Warn(text, args...)
	}
}
