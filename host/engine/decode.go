package engine

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/tetratelabs/wazero/api"
)

// pageSize is WebAssembly's unit of memory, bytes.
const pageSize = 64 << 10

// kind is what an import or export is.
type kind byte

const (
	kindFunc kind = iota
	kindTable
	kindMemory
	kindGlobal
	kindTag
)

func (k kind) String() string {
	if names := [...]string{"function", "table", "memory", "global", "tag"}; int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("thing of kind %d", byte(k))
}

type importEntry struct {
	module, name string
	kind         kind
	typeIndex    uint32
}

type exportEntry struct {
	name  string
	kind  kind
	index uint32
}

type funcType struct{ params, results []byte }

func (t funcType) equal(u funcType) bool {
	return slices.Equal(t.params, u.params) && slices.Equal(t.results, u.results)
}

// String is (i32, i64) -> i32, as the documentation writes it.
func (t funcType) String() string {
	if len(t.results) == 1 {
		return typeList(t.params) + " -> " + valueTypeName(t.results[0])
	}
	return typeList(t.params) + " -> " + typeList(t.results)
}

func typeList(types []byte) string {
	names := make([]string, len(types))
	for i, t := range types {
		names[i] = valueTypeName(t)
	}
	return "(" + strings.Join(names, ", ") + ")"
}

func valueTypeName(t byte) string {
	switch t {
	case valueTypeV128:
		return "v128"
	case valueTypeFuncref:
		return "funcref"
	}
	return api.ValueTypeName(t)
}

// Value types that wazero's api does not name.
const (
	valueTypeV128    = 0x7b
	valueTypeFuncref = 0x70
)

// limits are a memory's pages or a table's elements.
type limits struct {
	min, max     uint64
	hasMax       bool
	shared, is64 bool
}

// decoded is what the engine itself reads from a module; code and data are wazero's.
type decoded struct {
	types         []*funcType // nil: a type that is not a plain function's
	imports       []importEntry
	importedFuncs int
	funcs         []uint32 // type indices of the module's own functions
	tables        []limits
	memories      []limits
	exports       map[string]*exportEntry
	names         []string // of the exports, in order
	// importedTypes are the type indices of the imported functions, in order.
	importedTypes []uint32
}

// typeAt is a type by its index.
func (d *decoded) typeAt(i uint32) (funcType, bool) {
	if int64(i) >= int64(len(d.types)) || d.types[i] == nil {
		return funcType{}, false
	}
	return *d.types[i], true
}

// typeOf is the type of a function by its index, imported ones first.
func (d *decoded) typeOf(index uint32) (funcType, bool) {
	i := int64(index)
	if i < int64(len(d.importedTypes)) {
		return d.typeAt(d.importedTypes[i])
	}
	if i -= int64(len(d.importedTypes)); i < int64(len(d.funcs)) {
		return d.typeAt(d.funcs[i])
	}
	return funcType{}, false
}

// describe writes what was decoded, complete or not, into info.
func (d *decoded) describe(info *ModuleInfo) {
	info.Dialect = dialectOf(d)
	for _, im := range d.imports {
		info.Imports = append(info.Imports, im.module+"."+im.name)
	}
	info.Exports = d.names
	if len(d.memories) > 0 {
		info.MinMemory = d.memories[0].min * pageSize
		if d.memories[0].hasMax {
			info.MaxMemory = d.memories[0].max * pageSize
		}
	}
}

// Section ids, of those read here.
const (
	sectionType     = 1
	sectionImport   = 2
	sectionFunction = 3
	sectionTable    = 4
	sectionMemory   = 5
	sectionExport   = 7
)

// decodeModule reads types, imports, functions, tables, memories and exports. It returns
// what it could read together with the first error.
func decodeModule(core []byte) (decoded, error) {
	d := decoded{exports: map[string]*exportEntry{}}
	r := reader{b: core[len(moduleHeader):]}
	for len(r.b) > 0 {
		id, body, err := r.section()
		if err != nil {
			return d, err
		}
		s := reader{b: body}
		switch id {
		case sectionType:
			err = d.readTypes(&s)
		case sectionImport:
			err = s.vector(d.readImport)
		case sectionFunction:
			err = s.vector(func(r *reader) error {
				i, err := r.u32()
				d.funcs = append(d.funcs, i)
				return err
			})
		case sectionTable:
			err = s.vector(func(r *reader) error {
				l, err := r.table()
				d.tables = append(d.tables, l)
				return err
			})
		case sectionMemory:
			err = s.vector(func(r *reader) error {
				l, err := r.limits()
				d.memories = append(d.memories, l)
				return err
			})
		case sectionExport:
			err = s.vector(d.readExport)
		}
		if err != nil {
			return d, fmt.Errorf("section %d: %w", id, err)
		}
	}
	return d, nil
}

// readTypes stops at the first type that is not a plain function's: those after it stay
// unknown, and wazero judges the module.
func (d *decoded) readTypes(r *reader) error {
	n, err := r.u32()
	for i := uint32(0); i < n && err == nil; i++ {
		if len(r.b) == 0 {
			return errEnd
		}
		if r.b[0] != 0x60 {
			return nil
		}
		r.b = r.b[1:]
		var t funcType
		if t.params, err = r.bytes(); err == nil {
			t.results, err = r.bytes()
		}
		d.types = append(d.types, &t)
	}
	return err
}

func (d *decoded) readImport(r *reader) (err error) {
	var im importEntry
	if im.module, err = r.name(); err != nil {
		return err
	}
	if im.name, err = r.name(); err != nil {
		return err
	}
	k, err := r.byte()
	if err != nil {
		return err
	}
	switch im.kind = kind(k); im.kind {
	case kindFunc:
		im.typeIndex, err = r.u32()
		d.importedTypes = append(d.importedTypes, im.typeIndex)
		d.importedFuncs++
	case kindTable:
		_, err = r.table()
	case kindMemory:
		_, err = r.limits()
	case kindGlobal:
		_, err = r.take(2)
	case kindTag:
		if _, err = r.byte(); err == nil {
			_, err = r.u32()
		}
	default:
		return fmt.Errorf("import %s.%s of unknown kind %d", im.module, im.name, k)
	}
	d.imports = append(d.imports, im)
	return err
}

func (d *decoded) readExport(r *reader) error {
	name, err := r.name()
	if err != nil {
		return err
	}
	k, err := r.byte()
	if err != nil {
		return err
	}
	index, err := r.u32()
	if err != nil {
		return err
	}
	if d.exports[name] != nil {
		return fmt.Errorf("two exports named %q", name)
	}
	d.exports[name] = &exportEntry{name: name, kind: kind(k), index: index}
	d.names = append(d.names, name)
	return nil
}

var (
	errEnd  = errors.New("unexpected end: the file is incomplete or damaged")
	errLEB  = errors.New("a number is too long")
	errName = errors.New("a name is too long")
)

// maxName bounds an import's or export's name, bytes.
const maxName = 64 << 10

// reader reads WebAssembly's binary format. It never reads past its bytes.
type reader struct{ b []byte }

func (r *reader) byte() (byte, error) {
	if len(r.b) == 0 {
		return 0, errEnd
	}
	c := r.b[0]
	r.b = r.b[1:]
	return c, nil
}

func (r *reader) take(n uint64) ([]byte, error) {
	if n > uint64(len(r.b)) {
		return nil, errEnd
	}
	b := r.b[:n:n]
	r.b = r.b[n:]
	return b, nil
}

// uleb reads an unsigned LEB128 number of at most the given bits.
func (r *reader) uleb(bits uint) (uint64, error) {
	var v uint64
	for shift := uint(0); shift < bits; shift += 7 {
		c, err := r.byte()
		if err != nil {
			return 0, err
		}
		if rest := bits - shift; rest < 7 && c&0x7f>>rest != 0 {
			return 0, errLEB
		}
		v |= uint64(c&0x7f) << shift
		if c < 0x80 {
			return v, nil
		}
	}
	return 0, errLEB
}

func (r *reader) u32() (uint32, error) {
	v, err := r.uleb(32)
	return uint32(v), err
}

// bytes reads a length and that many bytes.
func (r *reader) bytes() ([]byte, error) {
	n, err := r.u32()
	if err != nil {
		return nil, err
	}
	return r.take(uint64(n))
}

func (r *reader) name() (string, error) {
	b, err := r.bytes()
	if len(b) > maxName {
		return "", errName
	}
	return string(b), err
}

func (r *reader) section() (id byte, body []byte, err error) {
	if id, err = r.byte(); err == nil {
		body, err = r.bytes()
	}
	return id, body, err
}

// vector reads a count and calls read for each element; every element is at least a byte,
// so that a false count ends with the bytes.
func (r *reader) vector(read func(*reader) error) error {
	n, err := r.u32()
	for ; n > 0 && err == nil; n-- {
		if len(r.b) == 0 {
			return errEnd
		}
		err = read(r)
	}
	return err
}

func (r *reader) limits() (limits, error) {
	flags, err := r.byte()
	if err != nil {
		return limits{}, err
	}
	l := limits{hasMax: flags&1 != 0, shared: flags&2 != 0, is64: flags&4 != 0}
	bits := uint(32)
	if l.is64 {
		bits = 64
	}
	if l.min, err = r.uleb(bits); err == nil && l.hasMax {
		l.max, err = r.uleb(bits)
	}
	return l, err
}

// table reads a table's type. One with an initial value is not understood here.
func (r *reader) table() (limits, error) {
	t, err := r.byte()
	if err != nil {
		return limits{}, err
	}
	if t != valueTypeFuncref && t != api.ValueTypeExternref {
		return limits{}, fmt.Errorf("a table of element type %#x is not supported", t)
	}
	return r.limits()
}
