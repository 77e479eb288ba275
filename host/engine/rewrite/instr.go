package rewrite

// The opcodes that the rewriter looks at or writes.
const (
	opUnreachable  = 0x00
	opBlock        = 0x02
	opLoop         = 0x03
	opIf           = 0x04
	opElse         = 0x05
	opEnd          = 0x0b
	opBr           = 0x0c
	opBrIf         = 0x0d
	opBrTable      = 0x0e
	opReturn       = 0x0f
	opCall         = 0x10
	opCallIndirect = 0x11
	opDrop         = 0x1a
	opSelect       = 0x1b
	opSelectTyped  = 0x1c
	opLocalGet     = 0x20
	opLocalSet     = 0x21
	opLocalTee     = 0x22
	opGlobalGet    = 0x23
	opGlobalSet    = 0x24
	opTableGet     = 0x25
	opTableSet     = 0x26
	opFirstLoad    = 0x28
	opLastStore    = 0x3e
	opMemorySize   = 0x3f
	opMemoryGrow   = 0x40
	opI32Const     = 0x41
	opI64Const     = 0x42
	opF32Const     = 0x43
	opF64Const     = 0x44
	opFirstNumeric = 0x45 // i32.eqz
	opI32GtU       = 0x4b
	opI32GeS       = 0x4e
	opI32Add       = 0x6a
	opI32Sub       = 0x6b
	opI32ShrU      = 0x76
	opLastNumeric  = 0xc4 // i64.extend32_s
	opRefNull      = 0xd0
	opRefIsNull    = 0xd1
	opRefFunc      = 0xd2
	opPrefixMisc   = 0xfc
	opPrefixVec    = 0xfd

	typeI32   = 0x7f
	typeEmpty = 0x40
	vecConst  = 0x0c
)

// instr is one instruction of a function. index is its first index immediate: a function,
// type, local or global. bulk says that its cost is that of its last operand, a length.
type instr struct {
	op    byte
	index uint32
	bulk  bool
}

// instr reads one instruction with all its immediates. Function, type, local and global
// indices are checked against the module and the function.
func (m *module) instr(r *reader, locals int) instr {
	in := instr{op: r.byte()}
	switch op := in.op; {
	case r.err != nil:
	case op <= 0x01, op == opElse, op == opEnd, op == opReturn, op == opDrop, op == opSelect,
		op == opRefIsNull, op >= opFirstNumeric && op <= opLastNumeric:
	case op >= opBlock && op <= opIf:
		m.blockType(r)
	case op == opBr, op == opBrIf, op == opTableGet, op == opTableSet:
		r.u32()
	case op == opBrTable:
		for n := r.count(1); n > 0 && r.err == nil; n-- {
			r.u32()
		}
		r.u32()
	case op == opCall, op == opRefFunc:
		in.index = r.index(m.allFuncs(), "function")
	case op == opCallIndirect:
		in.index = r.index(len(m.types), "type")
		r.u32()
	case op == opSelectTyped:
		if n := r.byte(); r.err == nil && n != 1 {
			r.malformed("select of %d types", n)
		}
		r.valType()
	case op >= opLocalGet && op <= opLocalTee:
		in.index = r.index(locals, "local")
	case op == opGlobalGet, op == opGlobalSet:
		in.index = r.index(m.globals, "global")
	case op >= opFirstLoad && op <= opLastStore:
		r.memarg()
	case op == opMemorySize, op == opMemoryGrow:
		r.zero()
	case op == opI32Const:
		r.signed(32)
	case op == opI64Const:
		r.signed(64)
	case op == opF32Const:
		r.bytes(4)
	case op == opF64Const:
		r.bytes(8)
	case op == opRefNull:
		r.refType()
	case op == opPrefixMisc:
		in.bulk = r.misc()
	case op == opPrefixVec:
		r.vector()
	default:
		r.pos--
		r.unknown("opcode %#x", op)
	}
	return in
}

// blockType reads a block's type: none, one value type, or a type index.
func (m *module) blockType(r *reader) {
	if r.pos < len(r.b) {
		if c := r.b[r.pos]; c == typeEmpty || isValType(c) {
			r.pos++
			return
		}
	}
	switch t := r.signed(33); {
	case r.err != nil:
	case t < 0:
		r.unknown("block type %d", t)
	case t >= int64(len(m.types)):
		r.malformed("type %d of %d", t, len(m.types))
	}
}

// memarg reads alignment and offset. Bit 6 of the alignment is multi-memory's.
func (r *reader) memarg() {
	if align := r.u32(); align >= 64 {
		r.unknown("memory argument %#x", align)
	}
	r.u32()
}

// zero reads a byte that stands for the only memory.
func (r *reader) zero() {
	if c := r.byte(); c != 0 {
		r.unknown("memory index %d", c)
	}
}

// misc reads what follows the prefix 0xfc, and says whether it works on a length. Like
// vector, it insists on the shortest form of the opcode: a decoder that takes it for one
// byte would go on elsewhere.
func (r *reader) misc() (bulk bool) {
	switch sub := r.byte(); {
	case r.err != nil:
	case sub <= 7: // saturating truncation
	case sub == 8: // memory.init
		r.u32()
		r.zero()
		return true
	case sub == 9, sub == 13: // data.drop, elem.drop
		r.u32()
	case sub == 10: // memory.copy
		r.zero()
		r.zero()
		return true
	case sub == 11: // memory.fill
		r.zero()
		return true
	case sub == 12, sub == 14: // table.init, table.copy
		r.u32()
		r.u32()
		return true
	case sub == 15, sub == 17: // table.grow, table.fill
		r.u32()
		return true
	case sub == 16: // table.size
		r.u32()
	case sub >= 0x80:
		r.malformed("opcode 0xfc %#x", sub)
	default:
		r.unknown("opcode 0xfc %#x", sub)
	}
	return false
}

// vector reads what follows the prefix 0xfd.
func (r *reader) vector() {
	sub := r.byte()
	if sub >= 0x80 {
		// Two bytes, of which the second is 1 up to 0xff. wazero reads only the first and
		// takes the 1 for a nop; anything else would mean something different to it.
		if high := r.byte(); r.err == nil && high != 1 {
			r.malformed("opcode 0xfd %#x %#x", sub, high)
		}
	}
	switch {
	case r.err != nil:
	case sub <= 0x0b, sub == 0x5c, sub == 0x5d: // loads, store, load32_zero, load64_zero
		r.memarg()
	case sub == vecConst, sub == 0x0d: // v128.const, i8x16.shuffle
		r.bytes(16)
	case sub >= 0x15 && sub <= 0x22: // extract and replace lane
		r.byte()
	case sub >= 0x54 && sub <= 0x5b: // load and store lane
		r.memarg()
		r.byte()
	case !vectorPlain(sub):
		r.unknown("opcode 0xfd %#x", sub)
	}
}

// vectorPlain says whether a vector opcode exists in SIMD and has no immediates.
func vectorPlain(sub byte) bool {
	switch sub {
	case 0x9a, 0xa2, 0xa5, 0xa6, 0xaf, 0xb0, 0xb2, 0xb3, 0xb4, 0xbb, 0xc2, 0xc5, 0xc6,
		0xcf, 0xd0, 0xd2, 0xd3, 0xd4, 0xe2, 0xee:
		return false // never assigned
	}
	return true
}
