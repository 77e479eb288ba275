package engine

import (
	"github.com/tetratelabs/wazero/experimental"
)

// linearMemory backs one instance's memory. It refuses to grow over the handler's limit
// and remembers that, so that a run's end can be told apart from any other trap: a guest
// sees only a -1.
//
// Nobody closes an instance while a call runs on it, except that a runtime with
// close-on-context-done may mark it closed; memory is then freed by the calling goroutine.
type linearMemory struct {
	limit   uint64 // bytes
	size    uint64
	beside  uint64 // what is claimed of the limit beside the memory itself
	onHeap  bool
	refused bool
	space   space
}

// space is where a memory's bytes are.
type space interface {
	// resize returns the memory with size bytes, which is at most the space's maximum,
	// or nil where the system has no more. Bytes beyond the former size are zero.
	resize(size uint64) []byte
	free()
}

// Allocate implements experimental.MemoryAllocator.
func (l *linearMemory) Allocate(_, most uint64) experimental.LinearMemory {
	l.space = newSpace(min(most, l.limit), l.onHeap)
	return l
}

// Reallocate implements experimental.LinearMemory.
func (l *linearMemory) Reallocate(size uint64) []byte {
	if size <= l.limit && l.beside <= l.limit-size {
		if b := l.space.resize(size); b != nil {
			l.size = size
			return b
		}
	}
	l.refused = true
	return nil
}

// claim sets what the host holds for the guest beside its memory, which counts against the
// same limit. Where that is reached, the former claim stands.
func (l *linearMemory) claim(total uint64) bool {
	if total > l.beside && (total > l.limit || total > l.limit-min(l.size, l.limit)) {
		l.refused = true
		return false
	}
	l.beside = total
	return true
}

// Free implements experimental.LinearMemory. It may be called twice: wazero does not free
// the memory of an instance whose start section failed, so the owner does.
func (l *linearMemory) Free() {
	if l.space != nil {
		l.space.free()
		l.space = nil
	}
}

// heapSpace is memory on the Go heap, grown by doubling so that a guest that grows page by
// page does not copy its memory each time.
type heapSpace struct {
	most uint64
	b    []byte
}

func (h *heapSpace) resize(size uint64) []byte {
	if size > uint64(cap(h.b)) {
		b := make([]byte, size, min(h.most, max(size, 2*uint64(cap(h.b)))))
		copy(b, h.b)
		h.b = b
	}
	h.b = h.b[:size]
	return h.b
}

func (h *heapSpace) free() { h.b = nil }
