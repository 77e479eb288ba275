package plugindir

import (
	"os"
	"syscall"
	"time"
)

// openFlags keep the opening of a pipe that took a module's place from waiting for a writer.
const openFlags = os.O_RDONLY | syscall.O_NONBLOCK

func changeTime(fi os.FileInfo) time.Time {
	st, ok := fi.Sys().(*syscall.Stat_t)
	if !ok {
		return time.Time{}
	}
	return time.Unix(st.Ctim.Unix())
}
