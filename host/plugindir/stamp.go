package plugindir

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// stamp tells two versions of a job's files apart without reading them.
type stamp struct {
	module, sidecar fileStamp
}

// fileStamp is what is known of one file; symbolic links are followed, so that a link that
// is pointed elsewhere is another file. The zero value is an absent file.
type fileStamp struct {
	info os.FileInfo
	err  error // it is there and cannot be looked at
}

func (s stamp) same(t stamp) bool {
	return s.module.same(t.module) && s.sidecar.same(t.sidecar)
}

func (f fileStamp) absent() bool { return f.info == nil && f.err == nil }

func (f fileStamp) same(g fileStamp) bool {
	switch {
	case f.err != nil || g.err != nil:
		return f.err != nil && g.err != nil && f.err.Error() == g.err.Error()
	case f.info == nil || g.info == nil:
		return f.info == nil && g.info == nil
	}
	// The change time, where there is one, also moves with the permissions: a file that
	// could not be read is worth another try then.
	return os.SameFile(f.info, g.info) &&
		f.info.Size() == g.info.Size() &&
		f.info.Mode() == g.info.Mode() &&
		f.info.ModTime().Equal(g.info.ModTime()) &&
		changeTime(f.info).Equal(changeTime(g.info))
}

// stampOf looks at a job's two files now.
func stampOf(dir, job string) stamp {
	return stamp{
		module:  stampFile(filepath.Join(dir, job+moduleExt)),
		sidecar: stampFile(filepath.Join(dir, job+sidecarExt)),
	}
}

func stampFile(path string) fileStamp {
	fi, err := os.Stat(path)
	switch {
	case err == nil && fi.IsDir():
		return fileStamp{}
	case err == nil:
		return fileStamp{info: fi}
	case !errors.Is(err, fs.ErrNotExist):
		return fileStamp{err: err}
	}
	// Not there, or a symbolic link to nothing, which is a file that cannot be read.
	if _, lerr := os.Lstat(path); lerr == nil {
		return fileStamp{err: err}
	}
	return fileStamp{}
}
