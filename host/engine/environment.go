package engine

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/guesthand/guesthand/abi"
)

// What a message's headers may take of a command's environment.
const (
	maxEnvHeaders = 64
	maxEnvBytes   = 16 << 10
)

type envVar struct{ name, value string }

// environment is a command's view of its message. Names that differ only in what a
// variable cannot say collide, and the first one wins: the attributes, then headers,
// configuration and secrets, each in order of name.
func (m *Module) environment(c *Call) []envVar {
	e := environ{seen: map[string]bool{}}
	for _, name := range []string{"id", "job", "queue", abi.HeaderTraceparent} {
		if value, ok, _ := c.textAttribute([]byte(name)); ok {
			e.add(name, value)
		}
	}
	for _, name := range []string{"attempt", "failures", "delays", "stalls", "interruptions", "max_attempts",
		"enqueued_at", "deadline"} {
		n, _ := c.numberAttribute([]byte(name))
		e.add(name, strconv.FormatInt(n, 10))
	}
	count, size := 0, 0
	for _, name := range c.Headers.Names() {
		value, ok := c.Headers.Get(name)
		if !ok {
			continue
		}
		if count++; count > maxEnvHeaders {
			e.dropped = true
			break
		}
		if size += len(name) + len(value); size > maxEnvBytes {
			e.dropped = true
			break
		}
		e.add("header_"+name, value)
	}
	for _, name := range slices.Sorted(maps.Keys(m.cfg.Values)) {
		e.add("config_"+name, m.cfg.Values[name])
	}
	for _, name := range slices.Sorted(maps.Keys(m.cfg.Secrets)) {
		e.add("secret_"+name, m.cfg.Secrets[name])
	}
	if e.dropped {
		m.envWarning.Do(func() {
			m.engine.logger.Warn("not every header, setting or secret fits into a command's environment",
				"job", m.cfg.Job, "headers", maxEnvHeaders, "bytes", maxEnvBytes)
		})
	}
	return e.vars
}

type environ struct {
	vars    []envVar
	seen    map[string]bool
	dropped bool
}

// add leaves out what an environment cannot hold: NUL, and a name with an equals sign.
func (e *environ) add(name, value string) {
	name = "GUESTHAND_" + strings.NewReplacer("-", "_", ".", "_").Replace(strings.ToUpper(name))
	if strings.ContainsAny(name, "=\x00") || strings.ContainsRune(value, 0) {
		e.dropped = true
		return
	}
	if e.seen[name] {
		return
	}
	e.seen[name] = true
	e.vars = append(e.vars, envVar{name: name, value: strings.ToValidUTF8(value, "\ufffd")})
}

// argument is a job's name as argv[0], which cannot hold NUL.
func argument(job string) string { return strings.ReplaceAll(job, "\x00", "") }
