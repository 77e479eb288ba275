package engine

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"runtime"
	"time"

	"github.com/tetratelabs/wazero/api"

	"github.com/guesthand/guesthand/abi"
)

// wasiFuncs take the place of wazero's own where those would sleep past the deadline, keep
// what a guest writes, close the instance, or let one call with absurd arguments take all
// of the host's time or memory.
var wasiFuncs = []hostFunc{
	{"proc_exit", []api.ValueType{i32}, nil, procExit},
	{"poll_oneoff", []api.ValueType{i32, i32, i32, i32}, []api.ValueType{i32}, pollOneoff},
	{"sched_yield", nil, []api.ValueType{i32}, schedYield},
	{"random_get", []api.ValueType{i32, i32}, []api.ValueType{i32}, randomGet},
	{"fd_read", []api.ValueType{i32, i32, i32, i32}, []api.ValueType{i32}, fdRead},
	{"fd_write", []api.ValueType{i32, i32, i32, i32}, []api.ValueType{i32}, fdWrite},
	{"fd_pread", []api.ValueType{i32, i32, i32, i64, i32}, []api.ValueType{i32}, fdNoSeek},
	{"fd_pwrite", []api.ValueType{i32, i32, i32, i64, i32}, []api.ValueType{i32}, fdNoSeek},
	{"fd_renumber", []api.ValueType{i32, i32}, []api.ValueType{i32}, fdRenumber},
}

// errno is WASI's; the values are preview 1's.
type errno int32

const (
	errnoSuccess errno = 0
	errnoBadf    errno = 8
	errnoFault   errno = 21
	errnoInval   errno = 28
	errnoIO      errno = 29
	errnoSpipe   errno = 70
	errnoNotsup  errno = 58
)

func fail(stack []uint64, e errno) { result(stack, int32(e)) }

// procExit ends the run; what it means depends on the dialect, never on the number alone.
func procExit(c *Call, _ api.Module, stack []uint64) {
	code := uint32(stack[0])
	switch {
	case c.run.starting:
		c.abort(abi.Load, fmt.Sprintf("proc_exit(%d) while starting", code))
	case c.run.m.runsOnce():
		if !c.run.ended {
			c.run.ended = true
			c.run.end = abi.End{Cause: abi.Returned, Outcome: abi.DecodeExit(code)}
		}
		panic(errEnded)
	}
	what := "a native module"
	if c.run.m.dialect == Extism {
		what = "an Extism plug-in"
	}
	c.abort(abi.Exit, fmt.Sprintf("proc_exit(%d): %s returns its outcome from %s", code, what, c.run.m.entry))
}

func schedYield(c *Call, _ api.Module, stack []uint64) {
	c.check()
	runtime.Gosched()
	fail(stack, errnoSuccess)
}

// maxVectors is how many buffers or subscriptions one call may name, as on Linux.
const maxVectors = 1024

// randomGet fills in steps, so that a large buffer does not outlast the deadline.
func randomGet(c *Call, mod api.Module, stack []uint64) {
	b, ok := mod.Memory().Read(uint32(stack[0]), uint32(stack[1]))
	if !ok {
		fail(stack, errnoFault)
		return
	}
	c.run.drewRandom = c.run.drewRandom || c.run.starting
	for len(b) > 0 {
		n := min(len(b), costly)
		if _, err := rand.Read(b[:n]); err != nil {
			fail(stack, errnoIO)
			return
		}
		if b = b[n:]; len(b) > 0 {
			c.check()
		}
	}
	fail(stack, errnoSuccess)
}

const (
	fdStdin  = 0
	fdStdout = 1
	fdStderr = 2
)

// vectors calls do with each of the guest's buffers until it has had enough, and returns
// the bytes it took.
func vectors(mod api.Module, iovs, count uint64, do func(b []byte) (n int, more bool)) (uint32, errno) {
	if uint32(count) > maxVectors {
		return 0, errnoInval
	}
	list, ok := mod.Memory().Read(uint32(iovs), uint32(count)*8)
	if !ok {
		return 0, errnoFault
	}
	total := uint32(0)
	for more := true; more && len(list) > 0; list = list[8:] {
		b, ok := mod.Memory().Read(binary.LittleEndian.Uint32(list), binary.LittleEndian.Uint32(list[4:]))
		if !ok {
			return 0, errnoFault
		}
		var n int
		n, more = do(b)
		total += uint32(n)
	}
	return total, errnoSuccess
}

// fdRead reads the payload as stdin for a command; a native module has the empty one.
func fdRead(c *Call, mod api.Module, stack []uint64) {
	c.check()
	if uint32(stack[0]) != fdStdin {
		fail(stack, errnoBadf)
		return
	}
	n, e := vectors(mod, stack[1], stack[2], func(b []byte) (int, bool) {
		if c.run.starting || c.run.m.dialect != Command {
			return 0, false
		}
		n := copy(b, c.Payload[c.run.stdin:])
		c.run.stdin += n
		return n, n == len(b)
	})
	finishVectors(mod, stack, n, e)
}

// fdWrite takes stdout as a command's result, and everything else for the log.
func fdWrite(c *Call, mod api.Module, stack []uint64) {
	c.check()
	var write func(b []byte) (int, bool)
	switch uint32(stack[0]) {
	case fdStdout:
		write = c.writeStdout
	case fdStderr:
		write = func(b []byte) (int, bool) { c.run.stderr.write(c, "stderr", b); return len(b), true }
	default:
		fail(stack, errnoBadf)
		return
	}
	n, e := vectors(mod, stack[1], stack[2], write)
	finishVectors(mod, stack, n, e)
}

func (c *Call) writeStdout(b []byte) (int, bool) {
	if c.run.starting || c.run.m.dialect != Command {
		c.run.stdout.write(c, "stdout", b)
		return len(b), true
	}
	if limit := c.run.m.cfg.Result; len(b) > limit-len(c.run.output) {
		c.abort(abi.Limit, fmt.Sprintf("result limit of %s exceeded", sizeText(uint64(limit))))
	}
	c.run.output = append(c.run.output, b...)
	return len(b), true
}

func finishVectors(mod api.Module, stack []uint64, n uint32, e errno) {
	if e == errnoSuccess && !mod.Memory().WriteUint32Le(uint32(stack[3]), n) {
		e = errnoFault
	}
	fail(stack, e)
}

func fdNoSeek(_ *Call, _ api.Module, stack []uint64) {
	if uint32(stack[0]) > fdStderr {
		fail(stack, errnoBadf)
		return
	}
	fail(stack, errnoSpipe)
}

// fdRenumber has nothing to move: there are no files. wazero's own would make a table as
// long as the number asked for.
func fdRenumber(_ *Call, _ api.Module, stack []uint64) {
	if uint32(stack[0]) > fdStderr || uint32(stack[1]) > fdStderr {
		fail(stack, errnoBadf)
		return
	}
	fail(stack, errnoNotsup)
}

// Sizes and tags of poll_oneoff's records.
const (
	subscriptionSize = 48
	eventSize        = 32
	eventClock       = 0
	eventFdRead      = 1
	eventFdWrite     = 2
	clockRealtime    = 0
	clockMonotonic   = 1
	flagAbsolute     = 1
)

// pollOneoff waits for the earliest clock, unless a stream is asked for: those are always
// ready. The wait ends at the deadline and at a stop, and the run with it.
func pollOneoff(c *Call, mod api.Module, stack []uint64) {
	c.check()
	count := uint32(stack[2])
	if count == 0 || count > maxVectors {
		fail(stack, errnoInval)
		return
	}
	in, ok := mod.Memory().Read(uint32(stack[0]), count*subscriptionSize)
	out, ok2 := mod.Memory().Read(uint32(stack[1]), count*eventSize)
	if !ok || !ok2 {
		fail(stack, errnoFault)
		return
	}
	subs := make([]subscription, count)
	for i := range subs {
		subs[i].read(in[i*subscriptionSize:])
	}
	wait, clocks := time.Duration(-1), true
	for _, s := range subs {
		if s.tag != eventClock || s.errno != errnoSuccess {
			clocks = false
		} else if wait < 0 || s.wait < wait {
			wait = s.wait
		}
	}
	if clocks {
		c.sleep(wait)
	}
	n := uint32(0)
	for _, s := range subs {
		if s.tag == eventClock && s.errno == errnoSuccess && (!clocks || s.wait > wait) {
			continue
		}
		s.write(out[n*eventSize:])
		n++
	}
	if !mod.Memory().WriteUint32Le(uint32(stack[3]), n) {
		fail(stack, errnoFault)
		return
	}
	fail(stack, errnoSuccess)
}

// subscription is one of poll_oneoff's, read before the events are written: the guest may
// have put them over each other.
type subscription struct {
	userdata uint64
	tag      byte
	errno    errno
	wait     time.Duration
}

func (s *subscription) read(b []byte) {
	s.userdata = binary.LittleEndian.Uint64(b)
	s.tag = b[8]
	switch s.tag {
	case eventClock:
		clock := binary.LittleEndian.Uint32(b[16:])
		timeout := binary.LittleEndian.Uint64(b[24:])
		s.wait, s.errno = clockWait(clock, timeout, binary.LittleEndian.Uint16(b[40:])&flagAbsolute != 0)
	case eventFdRead, eventFdWrite:
		if binary.LittleEndian.Uint32(b[16:]) > fdStderr {
			s.errno = errnoBadf
		}
	default:
		s.errno = errnoInval
	}
}

// clockWait is the time until a clock subscription is due. An absolute time on the
// monotonic clock counts from where wazero's clock_time_get does.
func clockWait(clock uint32, timeout uint64, absolute bool) (time.Duration, errno) {
	wait := int64(min(timeout, uint64(1<<63-1)))
	if absolute {
		switch clock {
		case clockRealtime:
			wait -= time.Now().UnixNano()
		case clockMonotonic:
			wait -= nanotime()
		default:
			return 0, errnoNotsup
		}
	}
	return time.Duration(max(wait, 0)), errnoSuccess
}

func (s *subscription) write(b []byte) {
	clear(b[:eventSize])
	binary.LittleEndian.PutUint64(b, s.userdata)
	binary.LittleEndian.PutUint16(b[8:], uint16(s.errno))
	b[10] = s.tag
}

// clockStart is the zero of the guests' monotonic clock.
var clockStart = time.Now()

// nanotime is never zero, which Go guests take for a broken clock.
func nanotime() int64 { return int64(time.Since(clockStart)) + 1 }
