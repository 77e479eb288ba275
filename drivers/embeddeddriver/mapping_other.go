//go:build !unix

package embeddeddriver

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
)

// mapping keeps a file's words in memory and writes each change through: one system call
// per change, where there is no portable shared memory.
type mapping struct {
	words []uint64
	f     *os.File

	mu  sync.Mutex
	err error // the first write that failed; close reports it
}

func mapFile(path string, words int) (*mapping, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	if len(b) != words*8 {
		return nil, fmt.Errorf("%s has %d bytes, not %d", path, len(b), words*8)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	m := &mapping{words: make([]uint64, words), f: f}
	for i := range m.words {
		m.words[i] = binary.NativeEndian.Uint64(b[i*8:])
	}
	return m, nil
}

// changed writes n words from word on, all but the first before the first: a slot's state
// is its first word.
func (m *mapping) changed(word, n int) {
	b := make([]byte, n*8)
	for i := range n {
		binary.NativeEndian.PutUint64(b[i*8:], atomic.LoadUint64(&m.words[word+i]))
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.f == nil {
		return
	}
	if n > 1 {
		m.write(b[8:], int64(word+1)*8)
	}
	m.write(b[:8], int64(word)*8)
}

func (m *mapping) write(b []byte, at int64) {
	if _, err := m.f.WriteAt(b, at); err != nil && m.err == nil {
		m.err = err
	}
}

func (m *mapping) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.f == nil {
		return nil
	}
	f := m.f
	m.f = nil
	return errors.Join(m.err, f.Close())
}
