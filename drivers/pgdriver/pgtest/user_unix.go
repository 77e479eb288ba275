//go:build unix

package pgtest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"strings"
	"syscall"
)

// other is whom the server runs as where we are root, which it refuses to run as.
func other() (uid, gid int, err error) {
	for _, name := range []string{"postgres", "nobody"} {
		u, e := user.Lookup(name)
		if e != nil {
			err = errors.Join(err, e)
			continue
		}
		uid, e1 := strconv.Atoi(u.Uid)
		gid, e2 := strconv.Atoi(u.Gid)
		if e := errors.Join(e1, e2); e == nil {
			return uid, gid, nil
		}
	}
	return 0, 0, err
}

// own gives a directory to the user that the server runs as.
func own(dir string) error {
	if os.Getuid() != 0 {
		return nil
	}
	uid, gid, err := other()
	if err != nil {
		return err
	}
	return os.Chown(dir, uid, gid)
}

// asOther makes a command run as that user.
func asOther(cmd *exec.Cmd) {
	if os.Getuid() != 0 {
		return
	}
	if uid, gid, err := other(); err == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	}
}

// children are the processes that a process has started, as far as the system tells.
func children(pid int) []int {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return nil
	}
	var pids []int
	for _, f := range strings.Fields(string(b)) {
		if n, err := strconv.Atoi(f); err == nil {
			pids = append(pids, n)
		}
	}
	return pids
}

func kill(pid int) { _ = syscall.Kill(pid, syscall.SIGKILL) } // one that has ended is no matter

// alive is false for one that has ended and is not yet waited for, too.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(b), ") ")
	return !strings.HasPrefix(rest, "Z")
}
