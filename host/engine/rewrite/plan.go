package rewrite

// unit is how many instructions a charge of 1 stands for.
const unit = 1024

// bulkShift makes charges of the bytes or entries that a bulk instruction works on: 4096
// bytes take about as long as a hundred instructions, and a yield.
const bulkShift = 12

// freeCost is the number of instructions, those of its callees included, up to which a
// function without loops is left to its callers to pay for.
const freeCost = 256

// region is a stretch of a function that runs once each time it is charged: the function
// without its loops, or a loop without the loops inside it.
type region struct {
	parent int  // the region around it; -1 for the function's own
	cost   int  // instructions, those of free callees included
	calls  bool // calls or charges for bulk: the global counter can change in it
}

// call is a call to a defined function from a region.
type call struct {
	region int
	callee int // index among the defined functions
}

// facts is what one function looks like. regions[0] is the function's own, the others
// follow in the order of their loops.
type facts struct {
	regions  []region
	calls    []call
	indirect bool // calls through a table
	leaves   bool // calls an import
	bulk     bool // has instructions that work on a length
}

// plan is what will be added to a module.
type plan struct {
	m     *module
	o     Options
	facts []facts
	// free is each function's cost where its callers pay for it, otherwise -1.
	free []int
	// counted marks the functions that keep the depth of calls.
	counted []bool
	// refs marks functions that instructions refer to by ref.func.
	refs []bool
	// wrapped are the functions that get a wrapper for calls from outside, by index among
	// the defined ones; wrapper finds the place in it.
	wrapped []int
	wrapper map[int]int
}

func newPlan(m *module, o Options) (*plan, error) {
	p := &plan{
		m: m, o: o,
		facts:   make([]facts, len(m.funcs)),
		counted: make([]bool, len(m.funcs)),
		refs:    make([]bool, len(m.funcs)),
		wrapper: map[int]int{},
	}
	for i := range m.funcs {
		if err := p.scan(i); err != nil {
			return nil, err
		}
	}
	p.findFree()
	p.charge()
	p.findCounted()
	p.wrap()
	return p, nil
}

// defined returns a function's index among the defined ones.
func (p *plan) defined(f uint32) (int, bool) {
	n := int(f) - len(p.m.funcImports)
	return n, n >= 0
}

// frame is an open block: what opened it, and the region it is part of.
type frame struct {
	op     byte
	region int
}

// scan reads a function's instructions.
func (p *plan) scan(i int) error {
	f := &p.m.funcs[i]
	r := f.code.reader()
	r.pos = f.instrs
	fx := facts{regions: []region{{parent: -1}}}
	open := []frame{{op: opBlock}}
	for len(open) > 0 {
		top := &open[len(open)-1]
		at := &fx.regions[top.region]
		in := p.m.instr(r, f.locals)
		if r.err != nil {
			return r.err
		}
		at.cost++
		if in.bulk {
			at.calls, fx.bulk = true, true
		}
		switch in.op {
		case opBlock, opIf:
			open = append(open, frame{in.op, top.region})
		case opLoop:
			open = append(open, frame{in.op, len(fx.regions)})
			fx.regions = append(fx.regions, region{parent: top.region})
		case opElse:
			if top.op != opIf {
				r.malformed("else without if")
				return r.err
			}
			top.op = opElse
		case opEnd:
			if top.op == opLoop && at.calls {
				fx.regions[at.parent].calls = true
			}
			open = open[:len(open)-1]
		case opCall:
			at.calls = true
			if callee, ok := p.defined(in.index); ok {
				fx.calls = append(fx.calls, call{top.region, callee})
			} else {
				fx.leaves = true
			}
		case opCallIndirect:
			at.calls = true
			at.cost += freeCost
			fx.indirect = true
		case opRefFunc:
			if n, ok := p.defined(in.index); ok {
				p.refs[n] = true
			}
		}
	}
	r.end()
	p.facts[i] = fx
	return r.err
}

// findFree finds the functions that need no charge of their own: without loops, calling
// only functions of the same kind, and small with all of these included. Starting from functions without callees it goes up; recursion is never
// reached.
func (p *plan) findFree() {
	p.free = make([]int, len(p.facts))
	waits := make([]int, len(p.facts)) // calls to functions not yet known to be free
	callers := make([][]int, len(p.facts))
	var ready []int
	for i, fx := range p.facts {
		p.free[i] = -1
		if len(fx.regions) > 1 || fx.indirect || fx.leaves || fx.regions[0].cost > freeCost {
			continue
		}
		if waits[i] = len(fx.calls); waits[i] == 0 {
			ready = append(ready, i)
		}
		for _, c := range fx.calls {
			callers[c.callee] = append(callers[c.callee], i)
		}
	}
	for len(ready) > 0 {
		i := ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		cost := p.facts[i].regions[0].cost
		for _, c := range p.facts[i].calls {
			cost += p.free[c.callee]
		}
		if cost > freeCost {
			continue
		}
		p.free[i] = cost
		for _, caller := range callers[i] {
			if waits[caller]--; waits[caller] == 0 {
				ready = append(ready, caller)
			}
		}
	}
}

// charge adds the cost of free callees to the regions that call them.
func (p *plan) charge() {
	for _, fx := range p.facts {
		for _, c := range fx.calls {
			if cost := p.free[c.callee]; cost > 0 {
				fx.regions[c.region].cost += cost
			}
		}
	}
}

// price is what passing into a region costs.
func (p *plan) price(r region) int32 {
	return int32(min(int64(1+r.cost/unit), int64(p.o.Every)))
}

// refill is what the counter starts with: it is used up when it is negative, and a passage
// that finds it so pays nothing.
func (p *plan) refill() int32 { return p.o.Every - 2 }

// findCounted finds the functions that keep the depth: those that call others, unless
// these are free, which cannot lead on to any that are counted.
func (p *plan) findCounted() {
	if p.o.MaxDepth == 0 {
		return
	}
	for i, fx := range p.facts {
		p.counted[i] = fx.indirect
		for _, c := range fx.calls {
			if p.free[c.callee] < 0 {
				p.counted[i] = true
				break
			}
		}
	}
}

// wrap finds the counted functions that are called from outside.
func (p *plan) wrap() {
	add := func(f uint32) {
		i, ok := p.defined(f)
		if !ok || !p.counted[i] {
			return
		}
		if _, dup := p.wrapper[i]; !dup {
			p.wrapper[i] = len(p.wrapped)
			p.wrapped = append(p.wrapped, i)
		}
	}
	for _, e := range p.m.exports {
		if e.kind == kindFunc {
			add(e.index)
		}
	}
	if p.m.start >= 0 {
		add(uint32(p.m.start))
	}
}
