package rewrite

// emitter writes one function. The counters' locals stand behind the function's own.
type emitter struct {
	p       *plan
	fx      *facts
	counted bool
	d       []byte
	// ticks holds the yield counter in loops without calls; depth holds the function's
	// depth; length is a bulk instruction's.
	ticks, depth, length uint32
}

// op appends an opcode with an index.
func (e *emitter) op(op byte, index uint32) { e.d = appendU32(append(e.d, op), index) }

func (e *emitter) i32(v int32) { e.d = appendS32(append(e.d, opI32Const), v) }

// function appends the new body of defined function i.
func (p *plan) function(d []byte, i int) []byte {
	f := &p.m.funcs[i]
	e := &emitter{p: p, fx: &p.facts[i], counted: p.counted[i], d: d}
	e.declare(f)
	if p.free[i] < 0 {
		e.chargeGlobal(e.fx.regions[0])
		if e.counted {
			e.enter()
		}
	}
	e.instructions(f)
	return e.d
}

// declare writes the function's locals and those for the counters.
func (e *emitter) declare(f *function) {
	e.ticks, e.depth = uint32(f.locals), uint32(f.locals)
	extra := 0
	for n := 1; n < len(e.fx.regions); n++ {
		if e.inLocal(n) {
			extra, e.depth = 1, e.depth+1
			break
		}
	}
	e.length = e.depth
	if e.counted {
		extra++
		e.length++
	}
	if e.fx.bulk {
		extra++
	}
	r := f.code.reader()
	r.u32()
	decls := r.bytes(f.instrs - r.pos)
	if extra == 0 {
		e.d = append(appendU32(e.d, uint32(f.decls)), decls...)
		return
	}
	e.d = append(appendU32(e.d, uint32(f.decls+1)), decls...)
	e.d = append(e.d, byte(extra), typeI32)
}

// inLocal says whether a loop counts in a local: nothing in it can change the global.
func (e *emitter) inLocal(region int) bool {
	return region > 0 && !e.fx.regions[region].calls
}

// instructions copies the function's instructions with function indices mapped, and adds
// to loops and calls.
func (e *emitter) instructions(f *function) {
	r := f.code.reader()
	r.pos = f.instrs
	loop, copied := 0, r.pos
	for r.more() {
		start := r.pos
		in := e.p.m.instr(r, f.locals)
		switch {
		case in.bulk:
			e.d = append(e.d, r.b[copied:start]...)
			copied = start
			e.chargeBulk()
			continue
		case in.op == opLoop, in.op == opCall, in.op == opCallIndirect, in.op == opRefFunc:
			e.d = append(e.d, r.b[copied:start]...)
			copied = r.pos
		}
		switch in.op {
		case opLoop:
			loop++
			e.loop(loop, r.b[start:r.pos])
		case opCall:
			if callee, ok := e.p.defined(in.index); !ok || e.p.free[callee] < 0 {
				e.publish()
			}
			e.op(opCall, e.p.to(in.index))
		case opCallIndirect:
			e.publish()
			e.d = append(e.d, r.b[start:r.pos]...)
		case opRefFunc:
			e.op(opRefFunc, e.p.to(in.index))
		}
	}
	e.d = append(e.d, r.b[copied:]...)
}

// loop writes a loop's opcode, given with its type, and its charge.
func (e *emitter) loop(region int, opcode []byte) {
	at := e.fx.regions[region]
	if !e.inLocal(region) {
		e.d = append(e.d, opcode...)
		e.chargeGlobal(at)
		return
	}
	if !e.inLocal(at.parent) {
		e.op(opGlobalGet, e.p.yieldGlobal())
		e.op(opLocalSet, e.ticks)
	}
	e.d = append(e.d, opcode...)
	e.chargeLocal(at)
}

// chargeGlobal counts in the global alone: if the count is not negative, the price is
// taken off, else it yields and starts again.
//
// The shape matters to wazero: where branches meet again its register allocator goes on
// with the registers of the one it saw first, which must not be the one with the call.
func (e *emitter) chargeGlobal(r region) {
	g := e.p.yieldGlobal()
	e.op(opGlobalGet, g)
	e.ifNotNegative()
	e.op(opGlobalGet, g)
	e.i32(e.p.price(r))
	e.d = append(e.d, opI32Sub)
	e.op(opGlobalSet, g)
	e.elseYield()
	e.op(opGlobalSet, g)
	e.d = append(e.d, opEnd)
}

// chargeLocal counts in a local and stores every value: the loop then waits for a
// register and not for what it stored a moment ago, and any way out of the loop leaves
// the global right.
func (e *emitter) chargeLocal(r region) {
	g := e.p.yieldGlobal()
	e.op(opLocalGet, e.ticks)
	e.ifNotNegative()
	e.op(opLocalGet, e.ticks)
	e.i32(e.p.price(r))
	e.d = append(e.d, opI32Sub)
	e.op(opLocalTee, e.ticks)
	e.op(opGlobalSet, g)
	e.elseYield()
	e.op(opLocalTee, e.ticks)
	e.op(opGlobalSet, g)
	e.d = append(e.d, opEnd)
}

// chargeBulk takes the length on the stack, which stays there, off the count, and yields
// before the instruction runs when that uses it up: thousands of them may stand in a row.
func (e *emitter) chargeBulk() {
	g := e.p.yieldGlobal()
	e.op(opLocalTee, e.length)
	e.op(opGlobalGet, g)
	e.op(opLocalGet, e.length)
	e.i32(bulkShift)
	e.d = append(e.d, opI32ShrU, opI32Sub)
	e.op(opGlobalSet, g)
	e.op(opGlobalGet, g)
	e.ifNotNegative()
	e.elseYield()
	e.op(opGlobalSet, g)
	e.d = append(e.d, opEnd)
}

// ifNotNegative tests the value on the stack.
func (e *emitter) ifNotNegative() {
	e.i32(0)
	e.d = append(e.d, opI32GeS, opIf, typeEmpty)
}

// elseYield begins the other branch: it yields and leaves the new count on the stack.
func (e *emitter) elseYield() {
	e.d = append(e.d, opElse)
	e.op(opCall, e.p.yieldFunc())
	e.i32(e.p.refill())
}

// enter computes the function's depth from its caller's and tests it.
func (e *emitter) enter() {
	e.op(opGlobalGet, e.p.depthGlobal())
	e.i32(1)
	e.d = append(e.d, opI32Add)
	e.op(opLocalTee, e.depth)
	e.i32(e.p.o.MaxDepth)
	e.d = append(e.d, opI32GtU, opIf, typeEmpty)
	e.op(opCall, e.p.depthFunc())
	e.d = append(e.d, opUnreachable, opEnd)
}

// publish stores the depth for a function about to be called; an import may call back.
func (e *emitter) publish() {
	if e.counted {
		e.op(opLocalGet, e.depth)
		e.op(opGlobalSet, e.p.depthGlobal())
	}
}

// wrapperBody appends a function of the same type that calls defined function i and puts
// the depth back, which functions leave as at their last call.
func (p *plan) wrapperBody(d []byte, i int) []byte {
	f := p.m.funcs[i]
	params := uint32(len(p.m.types[f.typ].params))
	e := &emitter{p: p, d: append(d, 1, 1, typeI32)}
	e.op(opGlobalGet, p.depthGlobal())
	e.op(opLocalSet, params)
	for n := range params {
		e.op(opLocalGet, n)
	}
	e.op(opCall, p.to(uint32(i+len(p.m.funcImports))))
	e.op(opLocalGet, params)
	e.op(opGlobalSet, p.depthGlobal())
	e.d = append(e.d, opEnd)
	return e.d
}
