package plugindir

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"sort"
	"strings"
	"time"

	"github.com/guesthand/guesthand/host/config"
	"github.com/guesthand/guesthand/host/egress"
	"github.com/guesthand/guesthand/host/engine"
)

// EngineConfig is the part of a handler's settings that the engine works under, but for what
// makes its HTTP requests.
func EngineConfig(h config.Handler) engine.Config {
	return engine.Config{
		Job:       h.Job,
		Memory:    h.Memory,
		Timeout:   h.Timeout,
		Payload:   h.Payload,
		Result:    h.Result,
		ErrorText: h.Error,
		Log:       h.Log,
		CallDepth: h.CallDepth,
		Instances: engine.Instances(h.Instances),
		Recycle:   h.Recycle,
		Values:    h.Config,
		Secrets:   h.Secrets,
		Function:  h.Function,
		Send:      h.Send,
		Sends:     h.SendMax,
		SendBytes: h.SendBytes,
	}
}

// WithHTTP is c with a client for the requests that the handler's configuration allows; just c
// where it allows none. onCall is told how each request ended, in the words of egress.Options,
// and may be nil. close gives the client's connections up, once the module is closed.
func WithHTTP(c engine.Config, h config.Handler, onCall func(job, result string)) (granted engine.Config, close func()) {
	if h.HTTP == nil {
		return c, func() {}
	}
	o := egress.Options{
		Allow:          h.HTTP.Allow,
		Private:        h.HTTP.Private,
		Inject:         map[egress.Target]map[string]string{},
		Roots:          h.HTTP.Pool(),
		MaxRequest:     h.HTTP.Request,
		MaxResponse:    h.HTTP.Response,
		Timeout:        h.HTTP.Timeout,
		MaxConnections: h.HTTP.Connections,
	}
	for target, headers := range h.HTTP.Inject {
		o.Inject[target] = headers
	}
	if onCall != nil {
		o.OnCall = func(result string) { onCall(h.Job, result) }
	}
	client := egress.New(o)
	c.HTTP, c.HTTPCalls = client, h.HTTP.Calls
	return c, client.Close
}

// launch starts the loading of what is due, as far as the bound on loads allows. It returns
// how long until something else may become due, and what is closed at the next load's end.
func (d *Directory) launch(ctx context.Context) (next time.Duration, ended <-chan struct{}) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	next = d.o.Poll
	var due []*job
	for _, j := range d.jobs {
		switch wait := d.o.Still - now.Sub(j.since); {
		case wait > 0:
			next = min(next, wait)
		case d.dueLocked(j):
			due = append(due, j)
		}
	}
	sort.Slice(due, func(a, b int) bool { return due[a].name < due[b].name })
	for _, j := range due {
		if d.loading >= maxLoads || d.closed || ctx.Err() != nil {
			break
		}
		j.loading = true
		d.loading++
		go d.load(ctx, j, j.seen, d.epoch, j.serving)
	}
	return next, d.changed
}

// dueLocked reports whether a still job has a version that was not tried yet.
func (d *Directory) dueLocked(j *job) bool {
	return !j.loading && !j.seen.module.absent() &&
		(j.triedEpoch != d.epoch || !j.tried.same(j.seen))
}

// loadAll loads what is due and waits until nothing of an epoch is left to do.
func (d *Directory) loadAll(ctx context.Context, epoch int) error {
	for {
		d.launch(ctx)
		ended, busy := d.pending(epoch)
		if !busy {
			return nil
		}
		select {
		case <-ended:
		case <-ctx.Done():
			d.waitIdle()
			return fmt.Errorf("load plugins: %w", context.Cause(ctx))
		}
	}
}

// pending reports whether still jobs are loading or due, with what tells of the next load's
// end. A later epoch's work is its own caller's.
func (d *Directory) pending(epoch int) (ended <-chan struct{}, busy bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || d.epoch != epoch {
		return d.changed, false
	}
	now := time.Now()
	for _, j := range d.jobs {
		if j.loading || (d.dueLocked(j) && now.Sub(j.since) >= d.o.Still) {
			return d.changed, true
		}
	}
	return d.changed, false
}

// waitIdle waits until no load is running. A compilation cannot be cut short.
func (d *Directory) waitIdle() {
	for {
		d.mu.Lock()
		ended, n := d.changed, d.loading
		d.mu.Unlock()
		if n == 0 {
			return
		}
		<-ended
	}
}

// load reads, compiles and starts one version of a job and puts it in its place.
func (d *Directory) load(ctx context.Context, j *job, s stamp, epoch int, serving *Plugin) {
	p, digest, err := d.prepare(ctx, j.name, s, serving)
	d.report.Lock()
	defer d.report.Unlock()
	change, drop := d.finish(ctx, j, s, epoch, p, digest, err)
	if drop != nil {
		drop.Release()
	}
	if change != nil {
		d.tell(*change)
	}
}

// prepare makes a Plugin of a job's files: the serving one itself where nothing changed,
// one that shares its module where only settings beside the engine's did, else a new one.
// The digest comes with an error too, once the file has been read.
func (d *Directory) prepare(ctx context.Context, name string, s stamp, serving *Plugin) (*Plugin, string, error) {
	src, err := read(d.o.Dir, name, s)
	if err != nil {
		return nil, "", err
	}
	sum := sha256.Sum256(src.module)
	digest := hex.EncodeToString(sum[:])
	h, err := d.settings(name, src.sidecar)
	if err != nil {
		return nil, digest, err
	}
	if h.SHA256 != "" && !strings.EqualFold(h.SHA256, digest) {
		return nil, digest, fmt.Errorf("the file's sha256 is %s, and the configuration wants %s", digest, strings.ToLower(h.SHA256))
	}
	ec := EngineConfig(h)
	if serving != nil && serving.Digest() == digest && reflect.DeepEqual(serving.version.config, ec) &&
		reflect.DeepEqual(serving.handler.HTTP, h.HTTP) {
		if reflect.DeepEqual(serving.handler, h) {
			return serving, digest, nil
		}
		return &Plugin{version: serving.version, handler: h}, digest, nil
	}
	granted, closeHTTP := WithHTTP(ec, h, d.o.OnHTTP)
	m, err := d.o.Load(ctx, src.module, granted)
	if err != nil {
		return nil, digest, err
	}
	if err := m.Start(ctx); err != nil {
		m.Close()
		closeHTTP()
		return nil, digest, fmt.Errorf("start: %w", err)
	}
	return &Plugin{version: newVersion(m, ec, closeHTTP), handler: h}, digest, nil
}

// settings is what holds for a job under the configuration of this moment.
func (d *Directory) settings(name string, sidecar []byte) (config.Handler, error) {
	c := d.o.Config()
	var s *config.Sidecar
	if sidecar != nil {
		var err error
		if s, err = config.ParseSidecar(filepath.Join(d.o.Dir, name+sidecarExt), sidecar, c.TrustSidecars); err != nil {
			return config.Handler{}, err
		}
	}
	return c.Handler(name, s)
}

// finish records what came of a load and lets a new version take over. It returns what is
// to be told and what is to be released, both after mu is free.
func (d *Directory) finish(ctx context.Context, j *job, s stamp, epoch int, p *Plugin, digest string, err error) (*Change, *Plugin) {
	d.mu.Lock()
	defer d.mu.Unlock()
	j.loading = false
	d.loading--
	close(d.changed)
	d.changed = make(chan struct{})

	if d.closed || d.jobs[j.name] != j {
		if err == nil && p != j.serving {
			return nil, d.unused(j, p)
		}
		return nil, nil
	}
	var unreadable *unreadableError
	switch {
	case errors.Is(err, errMoved):
		j.since = time.Now()
		return nil, nil
	case err != nil && ctx.Err() != nil:
		return nil, nil // nobody waits for it; it is still due
	case errors.As(err, &unreadable):
		// Tried again when it has been still for another while, as if it had changed.
		j.since = time.Now()
		j.triedEpoch = epoch
	default:
		j.tried, j.triedEpoch = s, epoch
	}
	if err != nil {
		return d.refuseLocked(j, digest, err), nil
	}
	return d.takeOverLocked(j, p)
}

// unused returns what a discarded Plugin holds: nothing where it shares a module.
func (d *Directory) unused(j *job, p *Plugin) *Plugin {
	if j.serving != nil && j.serving.version == p.version {
		return nil
	}
	return p
}

// refuseLocked keeps what serves and records why the newest version does not.
func (d *Directory) refuseLocked(j *job, digest string, err error) *Change {
	j.err, j.digest = err, digest
	text := digest + err.Error()
	if j.logged == text {
		return nil
	}
	j.logged = text
	c := &Change{Job: j.name, Kind: Refused, Digest: digest, Err: err}
	if j.serving != nil {
		c.Old = j.serving.Digest()
	}
	return c
}

// takeOverLocked makes p what serves and returns the version it took over from.
func (d *Directory) takeOverLocked(j *job, p *Plugin) (*Change, *Plugin) {
	old, mended := j.serving, j.err != nil
	j.err, j.logged, j.digest = nil, "", p.Digest()
	if p == old && !mended {
		return nil, nil
	}
	j.serving = p
	d.publish()
	c := &Change{Job: j.name, Kind: Loaded, Digest: p.Digest()}
	if old == nil {
		return c, nil
	}
	c.Old = old.Digest()
	if old.version == p.version {
		return c, nil
	}
	return c, old
}
