package cfdriver

import (
	"sync"
	"time"
)

const (
	// recentMax and the times bound what is remembered of messages by their id. Settlements: as
	// long as a lost acknowledgement is likely to be noticed; counts: longer than a message can
	// stay out of sight.
	recentMax  = 10_000
	recentKeep = 15 * time.Minute
	countsKeep = 24 * time.Hour
)

// recent remembers values by message id for a while: two generations, of which the older goes
// when the newer is full or old.
type recent[V any] struct {
	mu       sync.Mutex
	now, old map[string]V
	since    time.Time
	keep     time.Duration
}

func newRecent[V any](keep time.Duration) *recent[V] {
	return &recent[V]{now: map[string]V{}, since: time.Now(), keep: keep}
}

func (r *recent[V]) turn() {
	if len(r.now) >= recentMax/2 || time.Since(r.since) > r.keep {
		r.old, r.now, r.since = r.now, map[string]V{}, time.Now()
	}
}

func (r *recent[V]) put(id string, v V) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn()
	r.now[id] = v
}

func (r *recent[V]) get(id string) (v V, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.turn()
	if v, ok = r.now[id]; !ok {
		v, ok = r.old[id]
	}
	return v, ok
}

func (r *recent[V]) drop(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.now, id)
	delete(r.old, id)
}
