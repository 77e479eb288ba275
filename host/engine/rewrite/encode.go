package rewrite

// added is the number of imports that Meter appends, and so the shift of every defined
// function's index.
func (p *plan) added() int {
	if p.o.MaxDepth > 0 {
		return 2
	}
	return 1
}

// to maps a function index of the original module.
func (p *plan) to(f uint32) uint32 {
	if int(f) >= len(p.m.funcImports) {
		return f + uint32(p.added())
	}
	return f
}

// outside maps the index of a function that is called from outside.
func (p *plan) outside(f uint32) uint32 {
	if i, ok := p.defined(f); ok {
		if w, ok := p.wrapper[i]; ok {
			return uint32(p.m.allFuncs() + p.added() + w)
		}
	}
	return p.to(f)
}

func (p *plan) yieldFunc() uint32 { return uint32(len(p.m.funcImports)) }
func (p *plan) depthFunc() uint32 { return p.yieldFunc() + 1 }

func (p *plan) yieldGlobal() uint32 { return uint32(p.m.globals) }
func (p *plan) depthGlobal() uint32 { return p.yieldGlobal() + 1 }

// encode writes the module with everything added.
func (p *plan) encode() []byte {
	out := append([]byte(nil), header...)
	for _, id := range order {
		body := p.section(id)
		if body == nil {
			continue
		}
		out = appendU32(append(out, id), uint32(len(body)))
		out = append(out, body...)
	}
	return out
}

// section returns the new body of a section, nil for none.
func (p *plan) section(id byte) []byte {
	switch id {
	case secType:
		return append(p.grown(id, len(p.m.types), 1), 0x60, 0, 0)
	case secImport:
		return p.imports()
	case secFunction:
		return p.functions()
	case secTable:
		return p.tables()
	case secGlobal:
		return p.globals()
	case secExport:
		return p.exports()
	case secStart:
		if p.m.start >= 0 {
			return appendU32(nil, p.outside(uint32(p.m.start)))
		}
		return nil
	case secElement:
		return p.elements()
	case secCode:
		return p.code()
	}
	if s := p.m.secs[id]; s != nil {
		return s.body
	}
	return nil
}

// old returns a reader on a vector section's items, after their number.
func (p *plan) old(id byte) *reader {
	s := p.m.secs[id]
	if s == nil {
		return &reader{}
	}
	r := s.reader()
	r.u32()
	return r
}

// grown starts the body of a section with its n old items and room for more.
func (p *plan) grown(id byte, n, more int) []byte {
	return append(appendU32(nil, uint32(n+more)), p.old(id).rest()...)
}

func (p *plan) imports() []byte {
	d := p.grown(secImport, p.m.imports, p.added())
	for _, name := range []string{YieldName, DepthName}[:p.added()] {
		d = appendName(appendName(d, YieldModule), name)
		d = appendU32(append(d, kindFunc), uint32(len(p.m.types)))
	}
	return d
}

func appendName(d []byte, s string) []byte {
	return append(appendU32(d, uint32(len(s))), s...)
}

func (p *plan) functions() []byte {
	if p.m.secs[secFunction] == nil {
		return nil
	}
	d := p.grown(secFunction, len(p.m.funcs), len(p.wrapped))
	for _, i := range p.wrapped {
		d = appendU32(d, p.m.funcs[i].typ)
	}
	return d
}

func (p *plan) tables() []byte {
	if p.m.secs[secTable] == nil {
		return nil
	}
	d := appendU32(nil, uint32(len(p.m.tables)))
	for _, t := range p.m.tables {
		top := uint32(MaxTable)
		if t.bounded {
			top = min(top, t.max)
		}
		d = appendU32(appendU32(append(d, t.typ, 1), t.min), top)
	}
	return d
}

func (p *plan) globals() []byte {
	d := appendU32(nil, uint32(p.m.globalDefs+p.added()))
	r := p.old(secGlobal)
	for range p.m.globalDefs {
		d = append(d, r.byte(), r.byte())
		d = p.m.copyConst(d, r, p.to)
	}
	for _, initial := range []int32{p.refill(), 0}[:p.added()] {
		d = appendS32(append(d, typeI32, 1, opI32Const), initial)
		d = append(d, opEnd)
	}
	return d
}

func (p *plan) exports() []byte {
	if p.m.secs[secExport] == nil {
		return nil
	}
	d := appendU32(nil, uint32(len(p.m.exports)))
	for _, e := range p.m.exports {
		if e.kind == kindFunc {
			e.index = p.outside(e.index)
		}
		d = appendU32(append(append(d, e.name...), e.kind), e.index)
	}
	return d
}

// elements also declares the functions that ref.func may refer to only because they were
// exported, which their wrappers now are in their place.
func (p *plan) elements() []byte {
	var declare []uint32
	for _, i := range p.wrapped {
		if p.refs[i] {
			declare = append(declare, p.to(uint32(i+len(p.m.funcImports))))
		}
	}
	more := min(len(declare), 1)
	if p.m.secs[secElement] == nil && more == 0 {
		return nil
	}
	d := appendU32(nil, uint32(p.m.elems+more))
	r := p.old(secElement)
	for range p.m.elems {
		d = p.m.copyElem(d, r, p.to)
	}
	if more == 0 {
		return d
	}
	d = appendU32(append(d, 3, 0), uint32(len(declare)))
	for _, f := range declare {
		d = appendU32(d, f)
	}
	return d
}

func (p *plan) code() []byte {
	if p.m.secs[secCode] == nil {
		return nil
	}
	d := appendU32(nil, uint32(len(p.m.funcs)+len(p.wrapped)))
	var body []byte
	for i := range p.m.funcs {
		body = p.function(body[:0], i)
		d = append(appendU32(d, uint32(len(body))), body...)
	}
	for _, i := range p.wrapped {
		body = p.wrapperBody(body[:0], i)
		d = append(appendU32(d, uint32(len(body))), body...)
	}
	return d
}
