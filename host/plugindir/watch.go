package plugindir

import (
	"context"
	"os"
	"time"

	"github.com/fsnotify/fsnotify"
)

// settle is how long events are collected before the directory is looked at: a copy makes
// thousands of them.
const settle = 50 * time.Millisecond

// Run watches the directory until ctx ends, and returns nil then, after the loads that are
// running. It is called once.
func (d *Directory) Run(ctx context.Context) error {
	w := newWatch(d.o.Dir)
	defer w.close()
	defer d.waitIdle()
	var (
		timer  = time.NewTimer(0)
		soon   = true // the timer is set for a scan that an event asked for
		failed string
		next   time.Duration
		ended  <-chan struct{}
	)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.events():
			if !soon {
				soon = true
				timer.Reset(settle)
			}
			continue
		case <-w.errors(): // events were lost
			soon = true
			timer.Reset(0)
			continue
		case <-ended:
			if next, ended = d.launch(ctx); !soon {
				timer.Reset(next)
			}
			continue
		case <-timer.C:
			w.follow()
			failed = d.rescan(failed)
		}
		soon = false
		next, ended = d.launch(ctx)
		timer.Reset(next)
	}
}

// rescan scans and logs a failure once. What is loaded serves on while the directory cannot
// be read: a network mount that is away has not lost its files.
func (d *Directory) rescan(failed string) string {
	err := d.scan(false)
	if err == nil {
		if failed != "" {
			d.o.Logger.Info("plugin directory is readable again", "dir", d.o.Dir)
		}
		return ""
	}
	if text := err.Error(); text != failed {
		d.o.Logger.Error("plugin directory cannot be read, what is loaded serves on", "error", err)
	}
	return err.Error()
}

// watch asks the system for file events, as far as it has them. They only make the next
// scan come sooner, so every failure here is left at that.
type watch struct {
	dir     string
	watcher *fsnotify.Watcher // nil: no events
	at      os.FileInfo       // the directory that is watched
}

func newWatch(dir string) *watch {
	w := &watch{dir: dir}
	if fw, err := fsnotify.NewWatcher(); err == nil {
		w.watcher = fw
	}
	w.follow()
	return w
}

// follow watches the directory that is there now, which may be another one by the same name.
func (w *watch) follow() {
	if w.watcher == nil {
		return
	}
	fi, err := os.Stat(w.dir)
	if err != nil || (w.at != nil && os.SameFile(fi, w.at)) {
		return
	}
	if w.at != nil {
		_ = w.watcher.Remove(w.dir) // the old one's watch may have gone with it
	}
	w.at = nil
	if w.watcher.Add(w.dir) == nil {
		w.at = fi
	}
}

func (w *watch) events() <-chan fsnotify.Event {
	if w.watcher == nil {
		return nil
	}
	return w.watcher.Events
}

func (w *watch) errors() <-chan error {
	if w.watcher == nil {
		return nil
	}
	return w.watcher.Errors
}

func (w *watch) close() {
	if w.watcher != nil {
		_ = w.watcher.Close() // nothing is lost with it
	}
}
