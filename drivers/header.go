package drivers

import (
	"slices"
	"strings"
)

// Header is a message's headers. Names keep the spelling they came with and compare without
// regard to case.
type Header map[string][]string

// Get returns the first value of a name, and whether there is one.
func (h Header) Get(name string) (string, bool) {
	if v, ok := h[name]; ok && len(v) > 0 {
		return v[0], true
	}
	found := ""
	for k, v := range h {
		// The smallest spelling wins, so that equal names give one answer every time.
		if strings.EqualFold(k, name) && len(v) > 0 && (found == "" || k < found) {
			found = k
		}
	}
	if found == "" {
		return "", false
	}
	return h[found][0], true
}

// Set replaces every spelling of a name with one value. h must not be nil.
func (h Header) Set(name, value string) {
	h.Del(name)
	h[name] = []string{value}
}

// Del removes every spelling of a name.
func (h Header) Del(name string) {
	for k := range h {
		if strings.EqualFold(k, name) {
			delete(h, k)
		}
	}
}

// Clone is a deep copy; never nil.
func (h Header) Clone() Header {
	c := make(Header, len(h)+4)
	for k, v := range h {
		c[k] = slices.Clone(v)
	}
	return c
}

// Names lists the names in order.
func (h Header) Names() []string {
	names := make([]string, 0, len(h))
	for k := range h {
		names = append(names, k)
	}
	slices.Sort(names)
	return names
}
