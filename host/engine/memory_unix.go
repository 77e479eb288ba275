//go:build unix

package engine

import (
	"golang.org/x/sys/unix"
)

// newSpace reserves address space for most bytes. Pages are given by the system when they
// are touched, already zero: a fresh instance of a guest with a 1 MiB stack costs a tenth
// of what clearing Go memory does, growth copies nothing, and the collector never sees it.
func newSpace(most uint64, onHeap bool) space {
	if onHeap || most == 0 {
		return &heapSpace{most: most}
	}
	b, err := unix.Mmap(-1, 0, int(most), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return &heapSpace{most: most} // no address space left: slower, not wrong
	}
	return &mappedSpace{b: b}
}

type mappedSpace struct {
	b      []byte
	usable uint64
}

func (m *mappedSpace) resize(size uint64) []byte {
	if size > m.usable {
		if err := unix.Mprotect(m.b[m.usable:size], unix.PROT_READ|unix.PROT_WRITE); err != nil {
			return nil
		}
		m.usable = size
	}
	return m.b[:size:size]
}

func (m *mappedSpace) free() {
	// The only failure is an address that is not mapped, which this cannot be.
	_ = unix.Munmap(m.b)
}
