package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/guesthand/guesthand/host/admin"
	"github.com/guesthand/guesthand/host/config"
)

// pauses are the queues and jobs that people told this host to leave alone. They are kept in
// a file of the data directory, so that a restart does not resume what somebody paused.
type pauses struct {
	file string
	any  atomic.Bool // there are some: without, nothing below is looked at

	mu  sync.Mutex
	all []admin.Pause
}

// pausesFile is their place in the data directory.
func pausesFile(c *config.Config) string { return filepath.Join(c.Data, "pauses.json") }

// openPauses reads the file, which need not be there.
func openPauses(file string) (*pauses, error) {
	p := &pauses{file: file}
	b, err := os.ReadFile(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return p, nil
	case err != nil:
		return nil, fmt.Errorf("read pauses: %w", err)
	}
	if err := json.Unmarshal(b, &p.all); err != nil {
		return nil, fmt.Errorf("%s does not say which queues are paused: %w; mend it, or remove it to resume all", file, err)
	}
	p.any.Store(len(p.all) > 0)
	return p, nil
}

// set adds a pause, in place of an earlier one of the same queue and job.
func (p *pauses) set(one admin.Pause) error {
	return p.change(func(all []admin.Pause) []admin.Pause {
		return append(slices.DeleteFunc(all, func(o admin.Pause) bool { return o.Queue == one.Queue && o.Job == one.Job }), one)
	})
}

// resume ends the pauses of a queue: of one job, or for "" all of them.
func (p *pauses) resume(queue, job string) error {
	return p.change(func(all []admin.Pause) []admin.Pause {
		return slices.DeleteFunc(all, func(o admin.Pause) bool { return o.Queue == queue && (job == "" || o.Job == job) })
	})
}

// change stores the new list before it holds.
func (p *pauses) change(f func([]admin.Pause) []admin.Pause) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := f(slices.Clone(p.all))
	all = slices.DeleteFunc(all, func(o admin.Pause) bool { return over(o, time.Now()) })
	if err := writeFile(p.file, all); err != nil {
		return fmt.Errorf("keep pauses: %w", err)
	}
	p.all = all
	p.any.Store(len(all) > 0)
	return nil
}

// writeFile replaces a file whole, synced, so that a crash leaves the old or the new one.
func writeFile(file string, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*")
	if err != nil {
		return err
	}
	_, err = f.Write(append(b, '\n'))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

func over(o admin.Pause, now time.Time) bool { return !o.Until.IsZero() && !now.Before(o.Until) }

// of lists what is paused of a queue now.
func (p *pauses) of(queue string) (some []admin.Pause) {
	if !p.any.Load() {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range p.all {
		if o.Queue == queue && !over(o, time.Now()) {
			some = append(some, o)
		}
	}
	return some
}

// handWindow is the longest that a pause by hand lets a message rest before it is looked at
// again: it may have been resumed.
const handWindow = 10 * time.Second

// left is how long messages of this job on this queue have to wait; "" asks for the queue.
func (p *pauses) left(queue, job string, now time.Time) (d time.Duration) {
	if !p.any.Load() {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, o := range p.all {
		if o.Queue != queue || o.Job != "" && o.Job != job || over(o, now) {
			continue
		}
		if o.Until.IsZero() {
			return handWindow
		}
		d = max(d, o.Until.Sub(now))
	}
	return min(d, handWindow)
}

// spread is a wait within a window, so that all that was put back does not return at once.
func spread(window time.Duration) time.Duration {
	return time.Second + rand.N(max(window, time.Second))
}
