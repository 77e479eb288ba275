package config

import (
	"errors"
	"fmt"
	"sort"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
)

// lines tells on which line each key of a document stands. The decoder gives no positions
// for values it has accepted, so they come from a second parser.
type lines struct {
	at     map[string]int // by path, its parts joined by pathSep
	failed int            // the line where this parser gave up, 0 for nowhere
}

// pathSep joins the parts of a path. A key may hold an escaped NUL all the same; it then only
// gets the wrong line.
const pathSep = "\x00"

// of is the line of a key, else of the nearest table around it, else 0.
func (l lines) of(path []string) int {
	for n := len(path); n > 0; n-- {
		if line, ok := l.at[strings.Join(path[:n], pathSep)]; ok {
			return line
		}
	}
	return 0
}

// maxDepth is how deep tables may nest: no key of ours is deeper, and the decoder's time
// grows with the cube of the depth.
const maxDepth = 8

var errDepth = fmt.Errorf("tables nest more than %d deep", maxDepth)

// locator walks the syntax tree.
type locator struct {
	lines
	starts []int // the offset of each line
	deep   bool
}

// locate finds the keys of a document, and its first syntax error.
func locate(data []byte) (lines, error) {
	l := locator{lines: lines{at: map[string]int{}}, starts: []int{0}}
	for i, c := range data {
		if c == '\n' {
			l.starts = append(l.starts, i+1)
		}
	}
	var p unstable.Parser
	p.Reset(data)
	var table []string
	for !l.deep && p.NextExpression() {
		e := p.Expression()
		switch e.Kind {
		case unstable.Table, unstable.ArrayTable:
			table = l.add(nil, e.Key())
		case unstable.KeyValue:
			l.keyValue(table, e)
		}
	}
	if l.deep {
		return l.lines, errDepth
	}
	var pe *unstable.ParserError
	if errors.As(p.Error(), &pe) {
		// The highlight is a part of data, and shares the end of its storage.
		l.failed = l.line(cap(data) - cap(pe.Highlight))
	}
	return l.lines, p.Error()
}

func (l *locator) keyValue(table []string, n *unstable.Node) {
	l.value(l.add(table, n.Key()), n.Value())
}

// value looks into arrays too, only to see how deep they go.
func (l *locator) value(path []string, v *unstable.Node) {
	if l.deep || v.Kind != unstable.InlineTable && v.Kind != unstable.Array {
		return
	}
	for it := v.Children(); it.Next(); {
		if n := it.Node(); n.Kind == unstable.KeyValue {
			l.keyValue(path, n)
		} else {
			l.value(append(path[:len(path):len(path)], "[]"), n)
		}
	}
}

// add records every part of a dotted key at its first place.
func (l *locator) add(table []string, key unstable.Iterator) []string {
	path := table[:len(table):len(table)]
	for key.Next() && !l.deep {
		path = append(path, string(key.Node().Data))
		joined := strings.Join(path, pathSep)
		line := l.line(int(key.Node().Raw.Offset))
		if _, ok := l.at[joined]; !ok {
			l.at[joined] = line
		}
		if len(path) > maxDepth {
			l.deep, l.failed = true, line
		}
	}
	return path
}

func (l *locator) line(offset int) int {
	return sort.SearchInts(l.starts, offset+1)
}
