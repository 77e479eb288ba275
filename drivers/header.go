package drivers

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
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

// Validate says which name or value would not arrive everywhere as it was sent: a name must
// be a token as in HTTP, a value UTF-8 without control characters (a tab inside is fine) and
// without spaces at its ends. A driver's Send calls it, so that what it refuses is refused
// the same on every broker; what was received is never judged by it. The error wraps
// ErrInvalid.
func (h Header) Validate() error {
	var bad error
	worst := ""
	for name, values := range h {
		if err := validField(name, values); err != nil && (bad == nil || name < worst) {
			bad, worst = err, name
		}
	}
	return bad
}

func validField(name string, values []string) error {
	if name == "" || strings.ContainsFunc(name, notToken) {
		return fmt.Errorf("header %q: a name has letters, digits and !#$%%&'*+-.^_`|~ only: %w", name, ErrInvalid)
	}
	for _, v := range values {
		switch {
		case !utf8.ValidString(v):
			return fmt.Errorf("header %q: the value is not UTF-8: %w", name, ErrInvalid)
		case strings.ContainsFunc(v, control):
			return fmt.Errorf("header %q: the value has a control character: %w", name, ErrInvalid)
		case v != strings.Trim(v, " \t"):
			return fmt.Errorf("header %q: the value begins or ends with a space: %w", name, ErrInvalid)
		}
	}
	return nil
}

func notToken(r rune) bool {
	letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9'
	return !letter && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
}

func control(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }
