package host

import (
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// lineLog bounds the lines about what handlers do: a job whose every message fails must not
// bury the log. What is over the rate is logged at debug level, and the next line says how
// many there were.
type lineLog struct {
	mu   sync.Mutex
	jobs map[string]*jobLines
}

type jobLines struct {
	limit  *rate.Limiter
	hidden int
}

// Lines of one kind about one job: as many at once, then one a second.
const lineBurst = 20

// allow tells whether one more line is to be seen, and how many were not since the last one.
func (l *lineLog) allow(kind, job string) (ok bool, hidden int) {
	key := kind + "\x00" + job
	l.mu.Lock()
	defer l.mu.Unlock()
	j := l.jobs[key]
	if j == nil {
		if l.jobs == nil || len(l.jobs) >= onceKeys {
			l.jobs = map[string]*jobLines{}
		}
		j = &jobLines{limit: rate.NewLimiter(rate.Every(time.Second), lineBurst)}
		l.jobs[key] = j
	}
	if !j.limit.Allow() {
		j.hidden++
		return false, 0
	}
	hidden, j.hidden = j.hidden, 0
	return true, hidden
}

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
