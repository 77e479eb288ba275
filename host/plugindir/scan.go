package plugindir

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/guesthand/guesthand/host/config"
)

const (
	moduleExt  = ".wasm"
	sidecarExt = ".toml"
)

// note is a remark about a file that is no handler.
type note struct {
	text   string
	since  time.Time
	logged bool
}

// listing is one look at the directory.
type listing struct {
	stamps map[string]stamp  // by job
	notes  map[string]string // by file name
}

// scan looks at the directory and records what is there. The first scan takes a file's age
// for the time it has been still.
func (d *Directory) scan(first bool) error {
	l, err := d.list()
	if err != nil {
		return fmt.Errorf("plugin directory: %w", err)
	}
	now := time.Now()
	d.mu.Lock()
	for name, s := range l.stamps {
		j, known := d.jobs[name]
		if !known {
			j = &job{name: name}
			d.jobs[name] = j
		}
		if !known || !j.seen.same(s) {
			j.seen, j.since = s, now
			if first {
				j.since = lastChange(s, now)
			}
		}
	}
	d.publish()
	remarks := d.updateNotes(l.notes, now)
	d.mu.Unlock()
	for _, text := range remarks {
		d.o.Logger.Warn(text)
	}
	d.removeGone(now)
	return nil
}

// list reads the directory without holding a lock, since it may be slow.
func (d *Directory) list() (listing, error) {
	entries, err := os.ReadDir(d.o.Dir)
	if err != nil {
		return listing{}, err
	}
	l := listing{stamps: map[string]stamp{}, notes: map[string]string{}}
	var sidecars []string
	for _, e := range entries {
		file := e.Name()
		switch ext := filepath.Ext(file); {
		case strings.HasPrefix(file, ".") || e.IsDir():
		case ext == sidecarExt:
			sidecars = append(sidecars, file)
		case ext == moduleExt:
			name := strings.TrimSuffix(file, ext)
			if s := stampOf(d.o.Dir, name); s.module.absent() {
				continue // a link to a directory, or gone already
			} else if config.ValidJob(name) {
				l.stamps[name] = s
			} else {
				l.notes[file] = fmt.Sprintf("plugin file %q is ignored: a job's name is made of a-z, 0-9, '.', '_' and '-' and begins with a letter or digit", file)
			}
		}
	}
	// A listing may miss an entry that is renamed over meanwhile: ask for what is known.
	for _, name := range d.known() {
		if _, listed := l.stamps[name]; !listed {
			l.stamps[name] = stampOf(d.o.Dir, name)
		}
	}
	for _, file := range sidecars {
		if _, ok := l.stamps[strings.TrimSuffix(file, sidecarExt)]; !ok {
			l.notes[file] = fmt.Sprintf("plugin settings %q have no module beside them", file)
		}
	}
	return l, nil
}

func (d *Directory) known() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Collect(maps.Keys(d.jobs))
}

// updateNotes takes over what a listing remarks and returns what is to be logged now: each
// remark once, and only when it has held for a while, since a sidecar may be copied before
// its module. The caller holds mu.
func (d *Directory) updateNotes(texts map[string]string, now time.Time) []string {
	maps.DeleteFunc(d.notes, func(file string, n *note) bool { return texts[file] != n.text })
	var fresh []string
	for _, file := range slices.Sorted(maps.Keys(texts)) {
		n := d.notes[file]
		if n == nil {
			n = &note{text: texts[file], since: now}
			d.notes[file] = n
		}
		if !n.logged && now.Sub(n.since) >= d.o.Still {
			n.logged = true
			fresh = append(fresh, n.text)
		}
	}
	return fresh
}

// removeGone takes away the jobs whose module has been absent for a while; a file that is
// removed and written again is a replacement.
func (d *Directory) removeGone(now time.Time) {
	d.report.Lock()
	defer d.report.Unlock()
	d.mu.Lock()
	var gone []*job
	for name, j := range d.jobs {
		if j.seen.module.absent() && now.Sub(j.since) >= d.o.Still {
			gone = append(gone, j)
			delete(d.jobs, name)
		}
	}
	d.publish()
	d.mu.Unlock()
	for _, j := range gone {
		c := Change{Job: j.name, Kind: Removed}
		if j.serving != nil {
			c.Old = j.serving.Digest()
			j.serving.Release()
		}
		d.tell(c)
	}
}

// lastChange is when a job's files were last written, or now where they claim the future.
func lastChange(s stamp, now time.Time) time.Time {
	var last time.Time
	for _, f := range []fileStamp{s.module, s.sidecar} {
		if f.info != nil && f.info.ModTime().After(last) {
			last = f.info.ModTime()
		}
	}
	if last.After(now) {
		return now
	}
	return last
}
