package config

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"
)

// maxFile is the most bytes of a configuration file.
const maxFile = 1 << 20

// maxQuoted is the most letters of a value that an issue repeats.
const maxQuoted = 60

// reader walks a decoded document and collects everything that is wrong with it.
type reader struct {
	file     string
	dir      string // what relative paths are relative to
	getenv   func(string) (string, bool)
	noEnv    bool // ${NAME} is refused: the file's author may not see the environment
	lines    lines
	issues   []Issue
	warnings []Issue
}

// keys are the names of a table that were written in it.
type keys map[string]bool

// setter reads one value into where it belongs, or says what is wrong with it.
type setter func(node)

// fields are the keys a table may have. A nil setter is a key of a later version, which is
// refused rather than accepted and ignored.
type fields map[string]setter

// node is one value of the document.
type node struct {
	*reader
	path toml.Key
	v    any
}

// decode parses TOML. A syntax error, a duplicate key included, is the only issue then.
func (r *reader) decode(data []byte) (node, bool) {
	root := node{reader: r}
	if len(data) > maxFile {
		root.fail("the file is over %s", FormatSize(maxFile))
		return root, false
	}
	// This parser goes first: it is linear in the depth, the decoder is not.
	found, err := locate(data)
	r.lines = found
	doc := map[string]any{}
	if err == nil {
		_, err = toml.Decode(string(data), &doc)
	}
	if err != nil {
		r.issues = append(r.issues, Issue{File: r.file, Line: syntaxLine(err, found), Text: "syntax: " + syntaxText(err)})
		return root, false
	}
	root.v = doc
	return root, true
}

func syntaxText(err error) string {
	var pe toml.ParseError
	if errors.As(err, &pe) {
		return strings.TrimSuffix(pe.Message, ".")
	}
	return strings.TrimPrefix(err.Error(), "toml: ")
}

func syntaxLine(err error, found lines) int {
	var pe toml.ParseError
	if errors.As(err, &pe) {
		return pe.Position.Line
	}
	return found.failed
}

// result is the error for what was found, nil for nothing.
func (r *reader) result() error {
	sortIssues(r.issues)
	sortIssues(r.warnings)
	if len(r.issues) == 0 {
		return nil
	}
	return &Error{Issues: r.issues}
}

func sortIssues(issues []Issue) {
	slices.SortStableFunc(issues, func(a, b Issue) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Key, b.Key))
	})
}

func (n node) issue(format string, args ...any) Issue {
	return Issue{File: n.file, Line: n.lines.of(n.path), Key: n.path.String(), Text: fmt.Sprintf(format, args...)}
}

// fail records an issue with the value.
func (n node) fail(format string, args ...any) {
	n.reader.issues = append(n.reader.issues, n.issue(format, args...))
}

// warn records what is worth saying and no error.
func (n node) warn(format string, args ...any) {
	n.reader.warnings = append(n.reader.warnings, n.issue(format, args...))
}

// key is the place of a key below this one, for issues.
func (n node) key(names ...string) node {
	return node{reader: n.reader, path: append(slices.Clone(n.path), names...)}
}

// child is the node of a table's key.
func (n node) child(name string, v any) node {
	c := n.key(name)
	c.v = v
	return c
}

// name is the last part of the key.
func (n node) name() string { return n.path[len(n.path)-1] }

// children are the table's values in the order of their names; an issue where the node is no
// table.
func (n node) children() []node {
	m, ok := n.v.(map[string]any)
	if !ok {
		n.fail("is %s; write a table, [%s] or { ... }", kindOf(n.v), n.path)
		return nil
	}
	var list []node
	for _, name := range slices.Sorted(maps.Keys(m)) {
		list = append(list, n.child(name, m[name]))
	}
	return list
}

// table reads a table of known keys and returns which were written.
func (n node) table(known fields) keys {
	given := keys{}
	for _, child := range n.children() {
		set, ok := known[child.name()]
		switch {
		case !ok:
			child.fail("unknown key; %s", didYouMean(child.name(), known.names()))
		case set == nil:
			child.fail("not available in this version; remove it")
		default:
			given[child.name()] = true
			set(child)
		}
	}
	return given
}

// names are the keys that can be used now.
func (f fields) names() []string {
	var names []string
	for name, set := range f {
		if set != nil {
			names = append(names, name)
		}
	}
	return names
}

// text is a string with the environment put in. The example is what could be written; ""
// stands for the value itself in quotes.
func (n node) text(example string) (string, bool) {
	s, ok := n.v.(string)
	if !ok {
		if example == "" {
			example = strings.Trim(n.quote(), `"`)
		}
		n.fail("%s is %s; write a string such as %q", n.quote(), kindOf(n.v), example)
		return "", false
	}
	if n.noEnv {
		if strings.Contains(s, "${") {
			n.fail("the environment is not read here; write the value itself")
			return "", false
		}
		return s, true
	}
	s, err := expandEnv(s, n.getenv)
	if err != nil {
		n.fail("%v", err)
		return "", false
	}
	return s, true
}

// quote is the value as it was written: before the environment was put in, so that no issue
// shows what the environment holds.
func (n node) quote() string {
	switch v := n.v.(type) {
	case string:
		if r := []rune(v); len(r) > maxQuoted {
			v = string(r[:maxQuoted]) + "..."
		}
		return strconv.Quote(v)
	case int64, float64, bool:
		return fmt.Sprint(v)
	}
	return "this"
}

// kindOf names the type of a value as TOML's own documentation does.
func kindOf(v any) string {
	switch v.(type) {
	case string:
		return "a string"
	case int64:
		return "an integer"
	case float64:
		return "a float"
	case bool:
		return "a boolean"
	case time.Time:
		return "a date or time"
	case map[string]any:
		return "a table"
	case []map[string]any:
		return "an array of tables"
	}
	return "an array"
}

// misshapen tells whether a key of this table is there without being a table. Nothing more
// can be said about it then.
func (n node) misshapen(name string) bool {
	m, _ := n.v.(map[string]any)
	v, there := m[name]
	_, table := v.(map[string]any)
	return there && !table
}

// written tells whether the document has this very key.
func (n node) written() bool {
	_, ok := n.lines.at[strings.Join(n.path, pathSep)]
	return ok
}
