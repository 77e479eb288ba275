package engine

import (
	"encoding/binary"
	"math/bits"
)

// extismMemory is what a plug-in of the Extism dialect shares with the host: blocks of bytes
// that both address by their offset, its input and its output among them. It stands beside the
// plug-in's own memory and counts against the same limit. What describes the blocks is kept out
// of the guest's reach, so that whatever it stores, the books stay right.
//
// An offset of 0 is no block. Blocks live until they are freed or the next message begins.
type extismMemory struct {
	guest *linearMemory // holds the limit for both
	held  uint64        // what its owner counts against it beside the blocks, bytes
	space space         // made for the first block
	bytes []byte        // all that was ever handed out, whole pages
	end   uint64        // where the next new block begins; 0: there is none yet

	blocks []extismBlock // in order of offset
	// free lists blocks to use again, by class of size; large holds those over a page.
	free  [extismClasses][]uint32
	large []uint32
}

type extismBlock struct {
	at, size uint64 // size is what the block has room for
	used     uint64 // what was asked for
	freed    bool
}

const (
	// extismBase is the first block's offset: what lies before is no place for anything.
	extismBase = 64
	// blockCost is what a block counts beside its bytes: a description, in slices that double.
	blockCost = 96
	// extismClasses are four to a doubling, from 16 bytes to a page.
	extismClasses = 4*(16-4) + 1
	// keepExtism is how much is cleared and kept for the next message; more is given back.
	keepExtism = 1 << 20
)

// extismClass is the size of block for n bytes, and its class; -1 for one over a page, which is
// whole pages. A class wastes at most a quarter.
func extismClass(n uint64) (size uint64, class int) {
	switch {
	case n <= 16:
		return 16, 0
	case n > pageSize:
		return (n + pageSize - 1) / pageSize * pageSize, -1
	}
	order := bits.Len64(n - 1) // 2^(order-1) < n <= 2^order
	step := uint64(1) << (order - 3)
	size = (n + step - 1) / step * step
	return size, 4*(order-5) + int((size-1)>>(order-3)&3) + 1
}

// claimed is what the memory counts with that many bytes and blocks.
func (e *extismMemory) claimed(size uint64, blocks int) uint64 {
	return size + blockCost*uint64(blocks) + e.held
}

// alloc returns the offset of a block of n bytes, or 0 where n is 0 or the limit is reached.
func (e *extismMemory) alloc(n uint64) uint64 {
	if n == 0 {
		return 0
	}
	if n > e.guest.limit {
		e.guest.refused = true
		return 0
	}
	size, class := extismClass(n)
	if i, ok := e.reuse(size, class); ok {
		b := &e.blocks[i]
		b.used, b.freed = n, false
		return b.at
	}
	at := max(e.end, extismBase)
	if !e.grow(at+size, len(e.blocks)+1) {
		return 0
	}
	e.end = at + size
	e.blocks = append(e.blocks, extismBlock{at: at, size: size, used: n})
	return at
}

// reuse takes a freed block with room for size: of the same class, or the large one that fits
// best.
func (e *extismMemory) reuse(size uint64, class int) (index uint32, ok bool) {
	list, at := &e.large, -1
	if class >= 0 {
		list = &e.free[class]
		at = len(*list) - 1
	} else {
		for i, candidate := range *list {
			have := e.blocks[candidate].size
			if have >= size && (at < 0 || have < e.blocks[(*list)[at]].size) {
				at = i
			}
		}
	}
	if at < 0 {
		return 0, false
	}
	index = (*list)[at]
	last := len(*list) - 1
	(*list)[at] = (*list)[last]
	*list = (*list)[:last]
	return index, true
}

// hold changes what its owner counts against the memory.
func (e *extismMemory) hold(change int) bool {
	held := e.held
	e.held = uint64(int64(held) + int64(change))
	if !e.guest.claim(e.claimed(uint64(len(e.bytes)), len(e.blocks))) {
		e.held = held
		return false
	}
	return true
}

// grow makes room up to end, and for so many blocks, within the limit.
func (e *extismMemory) grow(end uint64, blocks int) bool {
	size := max(uint64(len(e.bytes)), (end+pageSize-1)/pageSize*pageSize)
	if !e.guest.claim(e.claimed(size, blocks)) {
		return false
	}
	if size == uint64(len(e.bytes)) {
		return true
	}
	if e.space == nil {
		e.space = newSpace(e.guest.limit, false)
	}
	grown := e.space.resize(size)
	if grown == nil {
		e.guest.refused = true
		return false
	}
	e.bytes = grown
	return true
}

// find is the index of the block that begins at an offset and is in use.
func (e *extismMemory) find(at uint64) (index int, ok bool) {
	low, high := 0, len(e.blocks)
	for low < high {
		if mid := (low + high) / 2; e.blocks[mid].at < at {
			low = mid + 1
		} else {
			high = mid
		}
	}
	if low == len(e.blocks) || e.blocks[low].at != at || e.blocks[low].freed {
		return 0, false
	}
	return low, true
}

// release frees a block. What is no block, or was freed before, is left alone.
func (e *extismMemory) release(at uint64) {
	i, ok := e.find(at)
	if !ok {
		return
	}
	b := &e.blocks[i]
	b.freed = true
	if _, class := extismClass(b.size); class >= 0 {
		e.free[class] = append(e.free[class], uint32(i))
	} else {
		e.large = append(e.large, uint32(i))
	}
}

// length is a block's size as it was asked for; 0 for what is no block.
func (e *extismMemory) length(at uint64) uint64 {
	if i, ok := e.find(at); ok {
		return e.blocks[i].used
	}
	return 0
}

// block is a block's bytes, which later calls may move; empty for what is no block.
func (e *extismMemory) block(at uint64) []byte {
	if i, ok := e.find(at); ok {
		return e.bytes[at:][:e.blocks[i].used]
	}
	return nil
}

// slice is any range that was handed out.
func (e *extismMemory) slice(at, n uint64) ([]byte, bool) {
	size := uint64(len(e.bytes))
	if at < extismBase || at > size || n > size-at {
		return nil, false
	}
	return e.bytes[at:][:n], true
}

// put stores bytes in a new block. It is false where the limit is reached; nothing to store is
// offset 0.
func (e *extismMemory) put(b []byte) (at uint64, ok bool) {
	if len(b) == 0 {
		return 0, true
	}
	if at = e.alloc(uint64(len(b))); at == 0 {
		return 0, false
	}
	copy(e.bytes[at:], b)
	return at, true
}

func (e *extismMemory) load64(at uint64) (uint64, bool) {
	b, ok := e.slice(at, 8)
	if !ok {
		return 0, false
	}
	return binary.LittleEndian.Uint64(b), true
}

func (e *extismMemory) store64(at, v uint64) bool {
	b, ok := e.slice(at, 8)
	if ok {
		binary.LittleEndian.PutUint64(b, v)
	}
	return ok
}

// reset drops every block, and its bytes with it: the next message reads zeros.
func (e *extismMemory) reset() {
	if len(e.blocks)*blockCost > keepExtism || len(e.bytes) > keepExtism {
		e.drop()
		return
	}
	clear(e.bytes[:min(e.end, uint64(len(e.bytes)))])
	e.end = 0
	e.blocks = e.blocks[:0]
	for i := range e.free {
		e.free[i] = e.free[i][:0]
	}
	e.large = e.large[:0]
	e.guest.claim(e.claimed(uint64(len(e.bytes)), 0))
}

// drop gives the memory back.
func (e *extismMemory) drop() {
	if e.space != nil {
		e.space.free()
	}
	*e = extismMemory{guest: e.guest, held: e.held}
	e.guest.claim(e.held)
}
