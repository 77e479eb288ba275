package engine

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"time"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"
	"github.com/tetratelabs/wazero/sys"

	"github.com/guesthand/guesthand/abi"
)

// instance is a started module. One run uses it at a time.
type instance struct {
	m      *Module
	mod    api.Module
	guest  api.Memory // mod's
	memory *linearMemory
	kernel *kernel // of an Extism plug-in
	// entry is handle, _start or a plug-in's function. It is kept because looking an export up makes a new call
	// stack of 12 KiB.
	entry api.Function
	stack [1]uint64 // the entry's result
	runs  int
	// startSize is the memory's size after the start, bytes.
	startSize uint64
	startTook time.Duration
}

// start makes and starts an instance within the run's deadline. Without an instance, the
// end says why.
func (m *Module) start(c *Call) (*instance, abi.End) {
	began := time.Now()
	c.run.starting = true
	inst := &instance{m: m, memory: &linearMemory{limit: m.cfg.Memory, onHeap: m.code.machine.closesOnDone}}
	if m.dialect == Extism {
		inst.kernel = &kernel{extismMemory: extismMemory{guest: inst.memory}}
		c.run.kernel = inst.kernel
	}
	if cause := c.stopCause(); cause != "" {
		c.finish()
		return nil, abi.End{Cause: cause, Text: stopText(cause)}
	}
	if err := m.instantiate(c, inst); err != nil {
		stopped := c.finish()
		c.flushLines()
		c.collect()
		end := c.failed(inst, err, stopped)
		if end.Cause == abi.Trap || end.Cause == abi.Load {
			end = abi.End{Cause: abi.Load, Text: "an instance cannot start: " + end.Text}
		}
		inst.close()
		return nil, end
	}
	inst.startSize, inst.startTook = inst.size(), time.Since(began)
	return inst, abi.End{}
}

// instantiate runs the start section and _initialize.
func (m *Module) instantiate(c *Call, inst *instance) (err error) {
	defer func() {
		// wazero panics where it gets no memory for the module's minimum.
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	ctx := experimental.WithMemoryAllocator(c, inst.memory)
	inst.mod, err = m.code.machine.runtime.InstantiateModule(ctx, m.code.compiled, m.moduleConfig(c))
	if err != nil {
		inst.mod = nil
		return err
	}
	if len(m.decoded.memories) > 0 {
		inst.guest = inst.mod.Memory()
	}
	for _, name := range m.starters {
		var parameters [2]uint64 // hs_init's, of which there are none
		if err := inst.mod.ExportedFunction(name).CallWithStack(c, parameters[:]); err != nil {
			return err
		}
	}
	if inst.entry = inst.mod.ExportedFunction(m.entry); inst.entry == nil {
		return errors.New("the export " + m.entry + " is missing")
	}
	return nil
}

// moduleConfig is what the guest sees of the world: clocks, and for a command its
// environment. It is built from nothing each time, since derived ones share their
// environment's memory. Streams, sleep and random numbers are in wasi.go; the source given
// here is not used, and keeps wazero from seeding one of its own.
func (m *Module) moduleConfig(c *Call) wazero.ModuleConfig {
	config := wazero.NewModuleConfig().
		WithName("").
		WithStartFunctions().
		WithArgs(argument(c.job())).
		WithRandSource(rand.Reader).
		WithSysWalltime().
		WithNanotime(nanotime, sys.ClockResolution(1))
	if m.dialect == Command {
		for _, v := range m.environment(c) {
			config = config.WithEnv(v.name, v.value)
		}
	}
	return config
}

// reusable tells whether an instance with that much memory may serve another message: not one that has served
// Config.Recycle of them, nor one whose memory has become four times what it was after the
// start and over half of the limit.
func (i *instance) reusable(size uint64) bool {
	return i.runs < i.m.cfg.Recycle && !(size > 4*i.startSize && size > i.m.cfg.Memory/2)
}

func (i *instance) size() uint64 {
	if i.guest == nil {
		return i.memory.beside
	}
	return uint64(i.guest.Size()) + i.memory.beside
}

// close releases the instance. No call may run on it.
func (i *instance) close() {
	if i.mod != nil {
		if err := i.mod.Close(context.Background()); err != nil {
			i.m.engine.logger.Warn("an instance could not be closed", "job", i.m.cfg.Job, "err", err)
		}
		i.mod, i.guest, i.entry = nil, nil, nil
	}
	if i.kernel != nil {
		i.kernel.drop()
	}
	i.memory.Free()
}
