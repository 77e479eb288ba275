package rewrite

import "encoding/binary"

// same keeps function indices as they are.
func same(f uint32) uint32 { return f }

func appendU32(d []byte, v uint32) []byte { return binary.AppendUvarint(d, uint64(v)) }

func appendS32(d []byte, v int32) []byte {
	for {
		c := byte(v & 0x7f)
		v >>= 7
		if (v == 0 && c&0x40 == 0) || (v == -1 && c&0x40 != 0) {
			return append(d, c)
		}
		d = append(d, c|0x80)
	}
}

func (m *module) constExpr(r *reader) { m.copyConst(nil, r, same) }

// copyConst reads a constant expression to its end and appends it with function indices
// mapped.
func (m *module) copyConst(d []byte, r *reader, to func(uint32) uint32) []byte {
	for r.err == nil {
		start := r.pos
		switch op := r.byte(); op {
		case opEnd:
			return append(d, opEnd)
		case opI32Const:
			r.signed(32)
		case opI64Const:
			r.signed(64)
		case opF32Const:
			r.bytes(4)
		case opF64Const:
			r.bytes(8)
		case opGlobalGet:
			r.index(m.globals, "global")
		case opRefNull:
			r.refType()
		case opRefFunc:
			f := r.index(m.allFuncs(), "function")
			d = appendU32(append(d, opRefFunc), to(f))
			continue
		case opPrefixVec:
			if sub := r.byte(); r.err == nil && sub != vecConst {
				r.malformed("vector instruction %#x in a constant", sub)
			}
			r.bytes(16)
		case 0x6a, 0x6b, 0x6c, 0x7c, 0x7d, 0x7e:
			m.note(r, "arithmetic in a constant")
		default:
			if r.err == nil {
				r.unknown("opcode %#x in a constant", op)
			}
		}
		d = append(d, r.b[start:r.pos]...)
	}
	return d
}

// copyElem reads one element segment and appends it with function indices mapped. Bit 0
// of its kind says passive or declarative, bit 1 an explicit table (or declarative), bit 2
// expressions in place of indices.
func (m *module) copyElem(d []byte, r *reader, to func(uint32) uint32) []byte {
	kind := r.u32()
	if kind > 7 {
		r.malformed("element segment kind %d", kind)
		return d
	}
	d = appendU32(d, kind)
	if kind&1 == 0 {
		if kind&2 != 0 {
			d = appendU32(d, r.u32())
		}
		d = m.copyConst(d, r, to)
	}
	if kind&3 != 0 {
		start := r.pos
		if kind&4 != 0 {
			r.refType()
		} else if k := r.byte(); k != 0 {
			r.malformed("element kind %#x", k)
		}
		d = append(d, r.b[start:r.pos]...)
	}
	n := r.count(1)
	d = appendU32(d, uint32(n))
	for ; n > 0 && r.err == nil; n-- {
		if kind&4 != 0 {
			d = m.copyConst(d, r, to)
			continue
		}
		d = appendU32(d, to(r.index(m.allFuncs(), "function")))
	}
	return d
}
