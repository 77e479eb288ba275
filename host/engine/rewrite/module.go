package rewrite

import (
	"bytes"
	"fmt"
)

const headerLen = 8

var header = []byte("\x00asm\x01\x00\x00\x00")

// Section ids, in the order of the format but for dataCount, which stands before code.
const (
	secCustom byte = iota
	secType
	secImport
	secFunction
	secTable
	secMemory
	secGlobal
	secExport
	secStart
	secElement
	secCode
	secData
	secDataCount
	secTag
)

// order holds the non-custom sections as they stand in a module.
var order = []byte{
	secType, secImport, secFunction, secTable, secMemory, secTag, secGlobal, secExport,
	secStart, secElement, secDataCount, secCode, secData,
}

func rank(id byte) int { return bytes.IndexByte(order, id) }

// External kinds of imports and exports.
const (
	kindFunc byte = iota
	kindTable
	kindMemory
	kindGlobal
	kindTag
)

// Limits of what is accepted. Real modules stay far below; an engine sizes its own tables
// by these numbers, whatever the bytes say.
const (
	maxLocals = 50_000
	maxPages  = 1 << 16
)

type section struct {
	id   byte
	raw  []byte // with id and size, as read
	body []byte
	off  int // of body in the module
}

func (s section) reader() *reader { return &reader{b: s.body, base: s.off} }

// split cuts a module into its sections and checks their sizes and order.
func split(wasm []byte) ([]section, error) {
	if len(wasm) < headerLen || !bytes.Equal(wasm[:headerLen], header) {
		return nil, fmt.Errorf("no core module version 1: %w", ErrMalformed)
	}
	var secs []section
	last := -1
	r := &reader{b: wasm, pos: headerLen}
	for r.more() {
		start := r.pos
		id := r.byte()
		size := r.count(1)
		off := r.pos
		body := r.bytes(size)
		if r.err != nil {
			return nil, fmt.Errorf("section %d: %w", id, r.err)
		}
		secs = append(secs, section{id: id, raw: wasm[start:r.pos], body: body, off: off})
		if id == secCustom {
			name := section{body: body, off: off}.reader()
			if name.name(); name.err != nil {
				return nil, fmt.Errorf("custom section: %w", name.err)
			}
			continue
		}
		at := rank(id)
		if at < 0 {
			r.unknown("section id %d", id)
			return nil, r.err
		}
		if at <= last {
			r.malformed("section %d out of order", id)
			return nil, r.err
		}
		last = at
	}
	return secs, nil
}

// funcType is a function type's parameters and results, one byte a value type.
type funcType struct{ params, results []byte }

// function is a defined function: its type and the bytes of its code entry.
type function struct {
	typ    uint32
	code   section // the locals' declarations and the instructions
	decls  int     // number of locals' declarations
	locals int     // parameters and declared locals
	instrs int     // where the instructions start in code.body
}

// export is one export; index is that of its kind.
type export struct {
	name  []byte // with its length
	kind  byte
	index uint32
}

// module is what Meter needs to know of a module. Everything else is copied as it is.
type module struct {
	secs        [secTag + 1]*section // by id; custom ones are left out
	types       []funcType
	imports     int
	funcImports []uint32 // their types
	funcs       []function
	tables      []table // defined ones
	globals     int     // imported and defined
	globalDefs  int     // defined
	exports     []export
	start       int64 // -1: none
	elems       int
	// unknown is the first construct that is understood well enough to read on, but not
	// to be kept.
	unknown error
}

// allFuncs is the size of the function index space.
func (m *module) allFuncs() int { return len(m.funcImports) + len(m.funcs) }

// parse reads and checks all that lies outside the functions' instructions. It reads to
// the end even where something is unknown, so that a malformed module is always called so.
func parse(wasm []byte) (*module, error) {
	secs, err := split(wasm)
	if err != nil {
		return nil, err
	}
	m := &module{start: -1}
	for i := range secs {
		if secs[i].id != secCustom {
			m.secs[secs[i].id] = &secs[i]
		}
	}
	steps := []struct {
		id   byte
		name string
		read func(*reader)
	}{
		{secType, "type", m.readTypes},
		{secImport, "import", m.readImports},
		{secFunction, "function", m.readFunctions},
		{secTable, "table", m.readTables},
		{secMemory, "memory", m.readMemories},
		{secTag, "tag", m.readTags},
		{secGlobal, "global", m.readGlobals},
		{secExport, "export", m.readExports},
		{secStart, "start", m.readStart},
		{secElement, "element", m.readElements},
		{secDataCount, "data count", func(r *reader) { r.u32() }},
		{secCode, "code", m.readCode},
		{secData, "data", m.readData},
	}
	for _, step := range steps {
		s := m.secs[step.id]
		if s == nil {
			continue
		}
		r := s.reader()
		step.read(r)
		r.end()
		if r.err != nil {
			return nil, fmt.Errorf("%s section: %w", step.name, r.err)
		}
	}
	return m, m.unknown
}

// note remembers the first unknown construct.
func (m *module) note(r *reader, format string, args ...any) {
	if m.unknown == nil && r.err == nil {
		probe := reader{base: r.base, pos: r.pos}
		probe.unknown(format, args...)
		m.unknown = probe.err
	}
}

func isValType(c byte) bool {
	switch c {
	case 0x7f, 0x7e, 0x7d, 0x7c, 0x7b, 0x70, 0x6f:
		return true
	}
	return false
}

func (r *reader) valType() byte {
	c := r.byte()
	if r.err == nil && !isValType(c) {
		r.pos--
		r.unknown("value type %#x", c)
	}
	return c
}

func (r *reader) valTypes() []byte {
	n := r.count(1)
	start := r.pos
	for range n {
		if r.valType(); r.err != nil {
			return nil
		}
	}
	return r.b[start:r.pos]
}

func (r *reader) refType() {
	if c := r.valType(); r.err == nil && c != 0x70 && c != 0x6f {
		r.malformed("reference type %#x", c)
	}
}

// index reads an index that must be under limit.
func (r *reader) index(limit int, what string) uint32 {
	i := r.u32()
	if r.err == nil && int64(i) >= int64(limit) {
		r.malformed("%s %d of %d", what, i, limit)
		return 0
	}
	return i
}

type limits struct {
	min, max uint32
	bounded  bool
}

func (m *module) limits(r *reader) (l limits) {
	switch f := r.byte(); f {
	case 0:
		l.min = r.u32()
	case 1:
		l.min, l.max, l.bounded = r.u32(), r.u32(), true
	case 2, 3:
		m.note(r, "shared memory or table")
		if l.min = r.u32(); f == 3 {
			l.max, l.bounded = r.u32(), true
		}
	default:
		r.unknown("limits %#x", f)
	}
	if l.bounded && l.max < l.min {
		r.malformed("maximum %d under the minimum %d", l.max, l.min)
	}
	return l
}

type table struct {
	typ byte
	limits
}

func (m *module) table(r *reader) table {
	t := table{typ: r.byte()}
	switch {
	case r.err != nil:
	case t.typ != 0x70 && t.typ != 0x6f:
		r.pos--
		r.unknown("table type %#x", t.typ)
	default:
		if t.limits = m.limits(r); t.min > MaxTable {
			r.malformed("table of %d entries, at most %d", t.min, MaxTable)
		}
	}
	return t
}

func (m *module) memory(r *reader) {
	if l := m.limits(r); l.min > maxPages || l.max > maxPages {
		r.malformed("memory over %d pages", maxPages)
	}
}

func (r *reader) globalType() {
	r.valType()
	if mut := r.byte(); mut > 1 {
		r.malformed("mutability %#x", mut)
	}
}

func (m *module) readTypes(r *reader) {
	for n := r.count(3); n > 0 && r.err == nil; n-- {
		if form := r.byte(); r.err == nil && form != 0x60 {
			r.unknown("type form %#x", form)
		}
		m.types = append(m.types, funcType{params: r.valTypes(), results: r.valTypes()})
	}
}

func (m *module) readImports(r *reader) {
	m.imports = r.count(4)
	for n := m.imports; n > 0 && r.err == nil; n-- {
		if r.name() == YieldModule {
			r.malformed("import from %s, which is the host's own", YieldModule)
		}
		r.name()
		switch kind := r.byte(); kind {
		case kindFunc:
			m.funcImports = append(m.funcImports, r.index(len(m.types), "type"))
		case kindTable:
			m.table(r)
		case kindMemory:
			m.memory(r)
		case kindGlobal:
			r.globalType()
			m.globals++
		case kindTag:
			m.tag(r)
		default:
			r.malformed("import kind %#x", kind)
		}
	}
}

func (m *module) tag(r *reader) {
	m.note(r, "exception tag")
	r.byte()
	r.u32()
}

func (m *module) readTags(r *reader) {
	for n := r.count(2); n > 0 && r.err == nil; n-- {
		m.tag(r)
	}
}

func (m *module) readFunctions(r *reader) {
	n := r.count(1)
	if code := m.secs[secCode]; n > 0 && (code == nil || 3*n > len(code.body)) {
		r.malformed("%d functions without code", n)
		return
	}
	m.funcs = make([]function, n)
	for i := range m.funcs {
		m.funcs[i].typ = r.index(len(m.types), "type")
	}
}

func (m *module) readTables(r *reader) {
	for n := r.count(3); n > 0 && r.err == nil; n-- {
		m.tables = append(m.tables, m.table(r))
	}
}

func (m *module) readMemories(r *reader) {
	n := r.count(2)
	if n > 1 {
		m.note(r, "%d memories", n)
	}
	for ; n > 0 && r.err == nil; n-- {
		m.memory(r)
	}
}

func (m *module) readGlobals(r *reader) {
	m.globalDefs = r.count(4)
	m.globals += m.globalDefs
	for range m.globalDefs {
		if r.err != nil {
			return
		}
		r.globalType()
		m.constExpr(r)
	}
}

func (m *module) readExports(r *reader) {
	for n := r.count(3); n > 0 && r.err == nil; n-- {
		start := r.pos
		r.name()
		e := export{name: r.b[start:r.pos], kind: r.byte()}
		switch e.kind {
		case kindFunc:
			e.index = r.index(m.allFuncs(), "function")
		case kindGlobal:
			e.index = r.index(m.globals, "global")
		case kindTable, kindMemory, kindTag:
			e.index = r.u32()
		default:
			r.malformed("export kind %#x", e.kind)
		}
		m.exports = append(m.exports, e)
	}
}

func (m *module) readStart(r *reader) {
	m.start = int64(r.index(m.allFuncs(), "function"))
}

func (m *module) readElements(r *reader) {
	m.elems = r.count(2)
	for n := m.elems; n > 0 && r.err == nil; n-- {
		m.copyElem(nil, r, same)
	}
}

func (m *module) readCode(r *reader) {
	if n := r.count(3); n != len(m.funcs) {
		r.malformed("%d functions but %d bodies", len(m.funcs), n)
	}
	for i := range m.funcs {
		f := &m.funcs[i]
		size := r.count(1)
		start := r.pos
		f.code = section{body: r.bytes(size), off: r.base + start}
		if r.err != nil {
			return
		}
		b := f.code.reader()
		m.readLocals(b, f)
		if r.err = b.err; r.err != nil {
			return
		}
	}
}

func (m *module) readLocals(r *reader, f *function) {
	f.decls = r.count(2)
	locals := uint64(len(m.types[f.typ].params))
	for n := f.decls; n > 0 && r.err == nil; n-- {
		locals += uint64(r.u32())
		r.valType()
	}
	if locals > maxLocals {
		r.malformed("%d locals, at most %d", locals, maxLocals)
	}
	f.locals = int(min(locals, maxLocals))
	f.instrs = r.pos
}

func (m *module) readData(r *reader) {
	for n := r.count(2); n > 0 && r.err == nil; n-- {
		switch kind := r.u32(); kind {
		case 0:
			m.constExpr(r)
		case 1:
		case 2:
			r.u32()
			m.constExpr(r)
		default:
			r.malformed("data segment kind %d", kind)
		}
		r.bytes(r.count(1))
	}
}
