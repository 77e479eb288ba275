// Package extismtest holds Extism plug-ins for tests, built from the sources in plugins by
// build.sh: one in AssemblyScript with Extism's own development kit, unchanged, and one in C
// that carries out a list of kernel calls.
package extismtest

import (
	_ "embed"
	"encoding/binary"
	"math/rand/v2"
)

// Plugin is plugins/plugin.ts. Its input is a verb, and on the next line what it is about.
//
//go:embed plugins/plugin.wasm
var Plugin []byte

// Interpreter is plugins/script.c. Its input is a Script.
//
//go:embed plugins/script.wasm
var Interpreter []byte

// Script is a list of kernel calls for the Interpreter, on registers 0 to 15.
type Script []byte

// Op appends an instruction as script.c describes it, with its registers.
func (s Script) Op(letter byte, registers ...byte) Script {
	return append(append(s, letter), registers...)
}

// Word appends a number that belongs to the instruction before.
func (s Script) Word(n uint64) Script { return binary.LittleEndian.AppendUint64(s, n) }

// Set sets a register.
func (s Script) Set(register byte, n uint64) Script { return s.Op('i', register).Word(n) }

// Add sets a register to another plus n.
func (s Script) Add(to, from byte, n uint64) Script { return s.Op('+', to, from).Word(n) }

// Text stores text in a new block and its offset in a register.
func (s Script) Text(register byte, text string) Script {
	s = s.Op('s', register)
	return append(binary.LittleEndian.AppendUint16(s, uint16(len(text))), text...)
}

// Trace makes what the calls answered the output.
func (s Script) Trace() Script { return append(s, 'T') }

// Return ends the script with a code.
func (s Script) Return(code uint32) Script { return s.Op('R').Word(uint64(code)) }

// Settings are what scripts by Random may ask for, as the host should be configured.
var Settings = map[string]string{"color": "blue", "empty": "", "long": "a value of forty bytes, and nothing else"}

// names are those of settings and variables, some of them unknown.
var names = []string{"color", "empty", "long", "none", "n"}

// Random is a script whose trace, output, error text and code are the same on every kernel that
// keeps Extism's rules. Its offsets are those of blocks, inside of blocks, or out of every
// memory: what lies between blocks is each kernel's own business. So is the offset of a block
// that was freed, which may be another's by now, and what a new block holds.
func Random(r *rand.Rand) Script {
	g := generator{Rand: r}
	for range 5 + r.IntN(60) {
		g.step()
	}
	if r.IntN(3) > 0 {
		g.s = g.s.Trace()
	}
	return g.s.Return([]uint32{0, 0, 1, 10 | 30<<8, 12, 255, 1 << 31}[r.IntN(7)])
}

// generator keeps book of which registers hold a live block, and of how many bytes.
type generator struct {
	*rand.Rand
	s     Script
	sizes [10]uint64 // 0: no block
	// filled tells the blocks of which every byte was written: what a new one holds is whatever
	// was left there.
	filled [10]bool
}

// Registers that the generator uses for other things than blocks.
const (
	scratch  = 10
	scratch2 = 11
	absurd   = 12
)

// live is a register that holds a block, if one does.
func (g *generator) live() (reg byte, ok bool) {
	first := g.IntN(len(g.sizes))
	for i := range g.sizes {
		if reg := (first + i) % len(g.sizes); g.sizes[reg] > 0 {
			return byte(reg), true
		}
	}
	return 0, false
}

// fresh is a register for a new block. A block that it held stays allocated.
func (g *generator) fresh(size uint64) byte {
	reg := byte(g.IntN(len(g.sizes)))
	g.sizes[reg], g.filled[reg] = size, false
	return reg
}

func (g *generator) name(register byte) { g.s = g.s.Text(register, names[g.IntN(len(names))]) }

func (g *generator) step() {
	block, ok := g.live()
	switch op := g.IntN(16); {
	case op == 0:
		g.s = g.s.Set(scratch, 0).Op('a', scratch2, scratch).Op('l', scratch2)
	case op <= 2 || !ok:
		size := []uint64{1, 7, 8, 16, 17, 100, 1000, 70000, 200000}[g.IntN(9)]
		g.s = g.s.Set(scratch, size).Op('a', g.fresh(size), scratch)
	case op == 3:
		text := "some text"[:1+g.IntN(9)]
		reg := g.fresh(uint64(len(text)))
		g.s, g.filled[reg] = g.s.Text(reg, text), true
	case op == 4:
		g.s = g.s.Op('l', block).Op('u', block)
	case op == 5:
		g.free(block)
	case op == 6:
		g.s = g.s.Add(scratch, block, g.Uint64N(g.sizes[block])).Op('B', scratch, byte(g.Uint32())).Op('b', scratch)
	case op == 7 && g.sizes[block] >= 8:
		g.s = g.s.Add(scratch, block, g.Uint64N(g.sizes[block]-7)).Set(scratch2, g.Uint64()).Op('Q', scratch, scratch2).Op('q', scratch)
	case op == 8:
		g.s = g.s.Op('n').Set(scratch, g.Uint64N(12)).Op('x', scratch).Set(scratch, 1<<20).Op('x', scratch)
	case op == 9:
		g.name(scratch)
		g.s = g.s.Op('c', scratch2, scratch)
	case op == 10:
		g.name(scratch)
		g.s = g.s.Op('v', scratch2, scratch)
	case op == 11:
		g.name(scratch)
		g.s = g.s.Text(scratch2, "value").Op('V', scratch, scratch2)
	case op == 12:
		g.name(scratch)
		g.s = g.s.Set(scratch2, 0).Op('V', scratch, scratch2)
	case op == 13 && g.filled[block]:
		from := g.Uint64N(g.sizes[block])
		g.s = g.s.Add(scratch, block, from).Set(scratch2, 1+g.Uint64N(g.sizes[block]-from)).Op('O', scratch, scratch2)
		g.sizes[block] = 0 // from here on it must stay as it is
	case op == 14:
		g.s = g.s.Text(scratch, "no luck").Op('E', scratch).Op('g')
	default:
		g.outside()
	}
}

// free frees a block twice, and keeps its register out of use.
func (g *generator) free(block byte) {
	g.s = g.s.Op('f', block).Op('l', block).Op('f', block)
	g.sizes[block] = 0
}

// outside uses offsets that are no block and out of every memory.
func (g *generator) outside() {
	g.s = g.s.Set(absurd, []uint64{0, 0xfffffff0}[g.IntN(2)]).Op('l', absurd).Op('f', absurd).Op('c', scratch2, absurd)
	switch g.IntN(4) {
	case 0:
		g.s = g.s.Set(absurd, 0xfffffff0).Op('b', absurd).Op('B', absurd, 1)
	case 1:
		g.s = g.s.Set(absurd, 0xfffffff0).Set(scratch, 5).Op('O', absurd, scratch)
	case 2:
		g.s = g.s.Set(absurd, 0xfffffff0).Op('E', absurd).Op('g')
	}
}
