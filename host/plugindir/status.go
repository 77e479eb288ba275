package plugindir

import (
	"cmp"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"github.com/guesthand/guesthand/host/config"
	"github.com/guesthand/guesthand/host/engine"
)

// Status is what there is to show of one job.
type Status struct {
	Job   string `json:"job"`
	File  string `json:"file"` // the module's path
	State State  `json:"state"`
	// Pending is true while the file's newest version has not been tried: it is still
	// being written, or loading.
	Pending bool `json:"pending"`
	// Error is why the newest version of the file does not serve; "" if it does.
	Error string `json:"error"`
	// RefusedDigest is that version's, where it could be read.
	RefusedDigest string `json:"refused_digest"`

	// Of the version that serves, zero where none does.
	Digest       string           `json:"digest"` // SHA-256, hex
	Size         int              `json:"size"`   // of the module file, bytes
	Loaded       time.Time        `json:"loaded"`
	Dialect      engine.Dialect   `json:"dialect"`
	Instances    engine.Instances `json:"instances"`
	InstancesWhy string           `json:"instances_why"`

	err error
}

// Status returns every job there is a file for, by name.
func (d *Directory) Status() []Status {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make([]Status, 0, len(d.jobs))
	for _, j := range d.jobs {
		all = append(all, d.statusLocked(j))
	}
	slices.SortFunc(all, func(a, b Status) int { return cmp.Compare(a.Job, b.Job) })
	return all
}

// Handlers returns the settings of every handler that serves now, by job.
func (d *Directory) Handlers() map[string]config.Handler {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := make(map[string]config.Handler, len(d.jobs))
	for name, j := range d.jobs {
		if j.serving != nil {
			all[name] = j.serving.Handler()
		}
	}
	return all
}

func (d *Directory) statusLocked(j *job) Status {
	s := Status{
		Job:     j.name,
		File:    filepath.Join(d.o.Dir, j.name+moduleExt),
		State:   Broken,
		Pending: j.loading || d.dueLocked(j),
		err:     j.err,
	}
	if j.err != nil {
		s.Error, s.RefusedDigest = j.err.Error(), j.digest
	}
	if j.serving != nil {
		v := j.serving.version
		s.State = Ready
		s.Digest, s.Size, s.Loaded = v.info.Digest, v.info.Size, v.loaded
		s.Dialect, s.Instances, s.InstancesWhy = v.info.Dialect, v.info.Instances, v.info.InstancesWhy
	}
	return s
}

// Notes are remarks about files that are no handler: a bad name, settings without a module.
func (d *Directory) Notes() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var texts []string
	for _, file := range slices.Sorted(maps.Keys(d.notes)) {
		texts = append(texts, d.notes[file].text)
	}
	return texts
}

// Kind is what happened to a job.
type Kind int

// The kinds of change.
const (
	// Loaded: a version took over, a first one, another one or the same under new settings.
	Loaded Kind = iota + 1
	// Refused: the newest version of the file cannot serve; Err says why. Told once for a
	// version.
	Refused
	// Removed: the file is gone and the job with it.
	Removed
)

// Change is one thing that happened to a job.
type Change struct {
	Job    string
	Kind   Kind
	Digest string // of the version that took over or was refused; "" if it could not be read
	Old    string // of the version that served before; "" for none
	Err    error  // for Refused
}

// tell logs a change and passes it on. The caller holds report, and not mu.
func (d *Directory) tell(c Change) {
	log := d.o.Logger.With("job", c.Job)
	switch {
	case c.Kind == Removed:
		log.Info("plugin removed", "old", short(c.Old))
	case c.Kind == Refused && c.Old != "":
		log.Error("plugin refused, the version before serves on", "error", c.Err, "digest", short(c.Digest), "old", short(c.Old))
	case c.Kind == Refused:
		log.Error("plugin refused", "error", c.Err, "digest", short(c.Digest))
	case c.Old == "":
		log.Info("plugin loaded", "digest", short(c.Digest))
	case c.Old == c.Digest:
		log.Info("plugin settings changed", "digest", short(c.Digest))
	default:
		log.Info("plugin replaced", "digest", short(c.Digest), "old", short(c.Old))
	}
	if d.o.OnChange != nil {
		d.o.OnChange(c)
	}
}

// short is enough of a digest to tell versions apart in a log line.
func short(digest string) string {
	return digest[:min(12, len(digest))]
}
