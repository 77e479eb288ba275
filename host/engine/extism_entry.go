package engine

import (
	"strings"

	"github.com/tetratelabs/wazero/api"
)

// Exports that start the runtime of a plug-in's language, beside _initialize.
const (
	constructorsExport = "__wasm_call_ctors"
	haskellExport      = "hs_init"
)

// chooseEntry is the function of an Extism plug-in that takes the messages: the one that the
// configuration names, else the only export that can only be meant.
func (d *decoded) chooseEntry(configured string) (string, error) {
	if configured != "" {
		return configured, d.checkConfigured(configured)
	}
	var candidates []string
	for _, name := range d.names {
		ex := d.exports[name]
		if name == initializeExport || name == startExport || ex.kind != kindFunc {
			continue
		}
		if t, ok := d.typeOf(ex.index); ok && t.equal(funcType{results: []byte{api.ValueTypeI32}}) {
			candidates = append(candidates, name)
		}
	}
	switch {
	case len(candidates) == 1:
		return candidates[0], nil
	case len(candidates) > 1:
		return "", refuse("the plug-in exports %d functions that may be meant: %s: name one with function = %q under [handlers.JOB]",
			len(candidates), strings.Join(candidates, ", "), candidates[0])
	case d.exports[startExport] != nil:
		return "", refuse(`the plug-in exports no function () -> i32 but _start: function = "_start" under [handlers.JOB] runs that`)
	}
	return "", refuse("the plug-in exports no function () -> i32: function = NAME under [handlers.JOB] names another that takes nothing")
}

// checkConfigured wants a function that takes nothing and returns a code or nothing.
func (d *decoded) checkConfigured(name string) error {
	ex := d.exports[name]
	if ex == nil || ex.kind != kindFunc {
		return refuse("function = %q: the plug-in exports no function of that name", name)
	}
	t, ok := d.typeOf(ex.index)
	code := t.equal(funcType{results: []byte{api.ValueTypeI32}})
	switch {
	case !ok:
		return refuse("function = %q has a type that is not understood: () -> i32 or () -> () is needed", name)
	case name == initializeExport:
		return refuse("function = %q is called when an instance starts, and cannot be the entry", name)
	case !code && !t.equal(funcType{}):
		return refuse("function = %q is %s: () -> i32 or () -> () is needed", name, t)
	}
	return nil
}

// initializers are the exports that are called, in order, when an instance starts.
func (d *decoded) initializers(dialect Dialect, entry string) []string {
	if entry == startExport { // which does all of it
		return nil
	}
	var names []string
	if d.exports[initializeExport] != nil {
		names = append(names, initializeExport)
	}
	if dialect != Extism {
		return names
	}
	i32 := api.ValueTypeI32
	if names == nil && d.exportsFunc(constructorsExport, funcType{}) {
		names = append(names, constructorsExport)
	}
	if d.exportsFunc(haskellExport, funcType{params: []byte{i32, i32}}) {
		names = append(names, haskellExport)
	}
	return names
}

func (d *decoded) exportsFunc(name string, want funcType) bool {
	ex := d.exports[name]
	if ex == nil || ex.kind != kindFunc {
		return false
	}
	t, ok := d.typeOf(ex.index)
	return ok && t.equal(want)
}
