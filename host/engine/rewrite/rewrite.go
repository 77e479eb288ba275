// Package rewrite edits core WebAssembly modules before they are compiled. It removes
// custom sections, and it adds counters through which a host can stop a guest that
// computes without end: compiled guest code cannot be preempted, so it has to come back to
// the host by itself.
//
// # Yields
//
// A counter is charged at every loop head and at the entry of every function, and the
// import YieldModule.YieldName is called whenever it is used up. The charge is 1, plus 1
// for each 1024 instructions that the loop's body or the function can run through before
// it is charged again, so about 1024 times Options.Every instructions lie between two
// yields at most, whatever the module looks like. Small functions without loops that call
// nothing but functions of the same kind are not charged themselves: their instructions
// are part of their callers' charge.
//
// One instruction counts as one, but for memory.fill, memory.copy, memory.init and their
// table counterparts, which work on up to the whole memory or table: these are charged 1
// more for each 4096 bytes or entries, so that a yield comes after about Options.Every times
// 4096 of them.
//
// # Depth
//
// Options.MaxDepth bounds nested calls, so that recursion ends with a cause the host knows
// and before the engine's own stack has grown by a hundred megabytes. Every function that
// is charged and calls others keeps its depth in a local, and writes it to a global before
// each call; nothing has to be undone on the many ways out of a function. Exported
// functions get a wrapper that puts the depth back for the next call from outside. The
// import YieldModule.DepthName is called when the depth is exceeded and must not return.
//
// # Trust
//
// The input is hostile. The reader accepts nothing that a later decoder could read in
// another way, no count that the bytes cannot back, and no index out of range, because
// one more global or local would bring the counters within the guest's reach. Tables are
// bounded too: they live outside the linear memory's limit.
package rewrite

import "errors"

// The imports that the counters call, both of type () -> (). A module that imports from
// YieldModule itself is refused.
const (
	YieldModule = "guesthand_host"
	// YieldName is called every Options.Every charges. To stop the guest it panics.
	YieldName = "yield"
	// DepthName is imported only when Options.MaxDepth is set. It must panic; a guest
	// continues with a trap otherwise.
	DepthName = "depth"
)

// DefaultEvery is the number of charges between two yields: at a nanosecond for the
// tightest loop and about 50 ns for a yield, the yields themselves cost about 1 %.
const DefaultEvery = 5000

// MaxTable bounds the entries of one table. A table costs the host 8 bytes an entry and is
// not part of the linear memory's limit; table.grow beyond it answers -1.
const MaxTable = 1 << 20

var (
	// ErrUnknown means the module contains something this package does not know: a
	// proposal that is newer, or not enabled. It names the construct and its offset.
	ErrUnknown = errors.New("not understood")
	// ErrMalformed means the bytes are not a valid module, or one beyond the limits of
	// this package; no engine should be given them.
	ErrMalformed = errors.New("malformed module")
)

// Options says what Meter adds. The zero value yields every DefaultEvery charges and does
// not limit the depth.
type Options struct {
	// Every is the number of loop heads and function entries between two yields.
	Every int32
	// MaxDepth is the number of nested calls; 0: no limit. Functions that call no others,
	// or only small ones that end there, are not counted.
	MaxDepth int32
}

func (o Options) withDefaults() Options {
	if o.Every <= 0 {
		o.Every = DefaultEvery
	}
	o.MaxDepth = max(o.MaxDepth, 0)
	return o
}

// Strip returns the module without its custom sections, and those by name, the first of
// each name. A module without any comes back as the same bytes. The results may share
// memory with wasm.
func Strip(wasm []byte) (core []byte, sections map[string][]byte, err error) {
	secs, err := split(wasm)
	if err != nil {
		return nil, nil, err
	}
	custom := 0
	for _, s := range secs {
		if s.id == secCustom {
			custom++
		}
	}
	if custom == 0 {
		return wasm, map[string][]byte{}, nil
	}
	core = append(make([]byte, 0, len(wasm)), wasm[:headerLen]...)
	sections = make(map[string][]byte, custom)
	for _, s := range secs {
		if s.id != secCustom {
			core = append(core, s.raw...)
			continue
		}
		r := s.reader()
		name := r.name() // checked by split
		if _, dup := sections[name]; !dup {
			sections[name] = r.rest()
		}
	}
	return core, sections, nil
}

// Meter returns the module with counters for yields and, if asked for, for the depth of
// calls. Custom sections are left out, because indices and offsets in them no longer hold.
// The error wraps ErrUnknown or ErrMalformed.
func Meter(core []byte, o Options) ([]byte, error) {
	m, err := parse(core)
	if err != nil {
		return nil, err
	}
	p, err := newPlan(m, o.withDefaults())
	if err != nil {
		return nil, err
	}
	return p.encode(), nil
}
