package engine

import (
	"errors"
	"strconv"
	"strings"
)

// trapText is one line about a trap: what it was and the guest's function it was in. The
// compiler's error holds both and a stack of either side, which does not belong in an
// error text.
func (m *Module) trapText(err error) string {
	if err == nil {
		return "trap"
	}
	lines := strings.Split(err.Error(), "\n")
	what := strings.TrimSuffix(lines[0], " (recovered by wazero)")
	if i := strings.Index(what, "wasm error: "); i >= 0 {
		what = what[i+len("wasm error: "):]
	}
	text := "trap: " + what
	for i, line := range lines {
		if line == "wasm stack trace:" && i+1 < len(lines) {
			if name := m.frameName(lines[i+1]); name != "" {
				text += " in " + name
			}
			break
		}
	}
	return text
}

// frameName is the function of a stack frame, ".$12(i32)" or ".name()". Names were removed
// before compiling, and the injected imports moved the numbers.
func (m *Module) frameName(frame string) string {
	frame = strings.TrimPrefix(strings.TrimSpace(frame), ".")
	if i := strings.IndexByte(frame, '('); i >= 0 {
		frame = frame[:i]
	}
	number, isNumber := strings.CutPrefix(frame, "$")
	if !isNumber {
		return frame
	}
	index, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		return ""
	}
	// Imports that were added come after the module's own.
	if index < uint64(m.decoded.importedFuncs+m.code.shift) {
		return ""
	}
	original := uint32(index) - uint32(m.code.shift)
	if name := functionName(m.sections["name"], original); name != "" {
		return name
	}
	for _, name := range m.decoded.names {
		if ex := m.decoded.exports[name]; ex.kind == kindFunc && ex.index == original {
			return name
		}
	}
	return "function " + strconv.FormatUint(uint64(original), 10)
}

// functionNames is the name section's part that names functions.
const functionNames = 1

var errFound = errors.New("found")

// functionName looks a function up in a name section; "" where it has no name or the
// section is damaged.
func functionName(section []byte, index uint32) string {
	r := reader{b: section}
	for len(r.b) > 0 {
		id, body, err := r.section()
		if err != nil {
			return ""
		}
		if id != functionNames {
			continue
		}
		found := ""
		s := reader{b: body}
		// An error ends the search, and so does the name.
		_ = s.vector(func(r *reader) error {
			i, err := r.u32()
			if err != nil {
				return err
			}
			name, err := r.name()
			if err == nil && i == index {
				found = strings.ToValidUTF8(name, "\ufffd")
				return errFound
			}
			return err
		})
		return found
	}
	return ""
}
