package plugindir

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// errMoved: the files are not those that the scan saw, so they are being written.
var errMoved = errors.New("the file changed while it was read")

// unreadableError is a file that is there and cannot be read at the moment, through
// permissions, a dangling link or a failing disk: unlike a refused one, it is tried again.
type unreadableError struct{ err error }

func (e *unreadableError) Error() string { return e.err.Error() }
func (e *unreadableError) Unwrap() error { return e.err }

// source is one version of a job's files, read whole.
type source struct {
	module  []byte
	sidecar []byte // nil: none
}

// read reads a job's files if they are still those of the stamp, and look the same after
// the last byte was read, so that what it returns is of one version.
func read(dir, job string, want stamp) (source, error) {
	var s source
	module, err := readFile(filepath.Join(dir, job+moduleExt), want.module, maxModule)
	if err == nil {
		s.module = module
		s.sidecar, err = readFile(filepath.Join(dir, job+sidecarExt), want.sidecar, maxSidecar)
	}
	// Looked at after an error as well: one met while the file was replaced says nothing.
	if !stampOf(dir, job).same(want) {
		return source{}, errMoved
	}
	return s, err
}

// readFile reads a file that looks like want; an absent one gives nil.
func readFile(path string, want fileStamp, limit int64) ([]byte, error) {
	switch {
	case want.absent():
		return nil, nil
	case want.err != nil:
		return nil, &unreadableError{want.err}
	case !want.info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a regular file", filepath.Base(path))
	case want.info.Size() > limit:
		return nil, fmt.Errorf("%s has %d bytes, over the limit of %d", filepath.Base(path), want.info.Size(), limit)
	}
	f, err := os.OpenFile(path, openFlags, 0)
	if err != nil {
		return nil, &unreadableError{err}
	}
	defer f.Close() // only read from
	fi, err := f.Stat()
	if err != nil {
		return nil, &unreadableError{err}
	}
	if !(fileStamp{info: fi}).same(want) {
		return nil, errMoved
	}
	b := make([]byte, want.info.Size())
	if _, err := io.ReadFull(f, b); errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, errMoved
	} else if err != nil {
		return nil, &unreadableError{err}
	}
	return b, nil
}
