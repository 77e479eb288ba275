//go:build unix

package embeddeddriver

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapping is a file's words in shared memory: the kernel has them, whatever becomes of the
// process.
type mapping struct {
	words []uint64
	bytes []byte
}

func mapFile(path string, words int) (*mapping, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	b, err := unix.Mmap(int(f.Fd()), 0, words*8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("map %s: %w", path, err)
	}
	return &mapping{words: unsafe.Slice((*uint64)(unsafe.Pointer(&b[0])), words), bytes: b}, nil
}

// changed has nothing to do: the words are the file's.
func (m *mapping) changed(word, n int) {}

func (m *mapping) close() error {
	if m.bytes == nil {
		return nil
	}
	b := m.bytes
	m.bytes = nil
	return unix.Munmap(b)
}
