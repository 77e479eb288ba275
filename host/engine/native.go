package engine

import (
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/tetratelabs/wazero/api"

	"github.com/guesthand/guesthand/abi"
)

// nativeFuncs is the import module guesthand_v1. The list is closed: a second version
// would be a second module.
var nativeFuncs = []hostFunc{
	{"payload_size", nil, []api.ValueType{i32}, payloadSize},
	{"payload_read", []api.ValueType{i32, i32, i32}, []api.ValueType{i32}, payloadRead},
	{"attribute_read", []api.ValueType{i32, i32, i32, i32}, []api.ValueType{i32}, attributeRead},
	{"result_write", []api.ValueType{i32, i32}, []api.ValueType{i32}, resultWrite},
	{"error_write", []api.ValueType{i32, i32}, []api.ValueType{i32}, errorWrite},
	{"log_write", []api.ValueType{i32, i32, i32}, nil, logWrite},
	{"remaining", nil, []api.ValueType{i64}, remaining},
	{"state_read", []api.ValueType{i32, i32}, []api.ValueType{i32}, stateRead},
	{"state_write", []api.ValueType{i32, i32}, []api.ValueType{i32}, stateWrite},

	{"http_send", []api.ValueType{i32, i32, i32, i32}, []api.ValueType{i32}, httpSend},
	{"http_header_read", []api.ValueType{i32, i32, i32, i32}, []api.ValueType{i32}, httpHeaderRead},
	{"http_body_size", nil, []api.ValueType{i32}, httpBodySize},
	{"http_body_read", []api.ValueType{i32, i32, i32}, []api.ValueType{i32}, httpBodyRead},
	{"kv_get", []api.ValueType{i32, i32, i32, i32}, []api.ValueType{i32}, kvGet},
	{"kv_put", []api.ValueType{i32, i32, i32, i32, i64}, []api.ValueType{i32}, kvPut},
	{"kv_create", []api.ValueType{i32, i32, i32, i32, i64}, []api.ValueType{i32}, kvCreate},
	{"kv_delete", []api.ValueType{i32, i32}, []api.ValueType{i32}, kvDelete},
	{"message_send", []api.ValueType{i32, i32, i32, i32}, []api.ValueType{i32}, messageSend},
}

// refusedWhileStarting answers for functions that need a message.
func refusedWhileStarting(c *Call, stack []uint64) bool {
	if c.run.starting {
		result(stack, abi.ErrNotGranted)
	}
	return c.run.starting
}

func payloadSize(c *Call, _ api.Module, stack []uint64) {
	if !refusedWhileStarting(c, stack) {
		result(stack, int32(len(c.Payload)))
	}
}

func payloadRead(c *Call, mod api.Module, stack []uint64) {
	if refusedWhileStarting(c, stack) {
		return
	}
	dst := c.slice(mod, "payload_read", stack[0], stack[1])
	rest := c.Payload[min(uint64(len(c.Payload)), uint64(uint32(stack[2]))):]
	n := copy(dst, rest)
	c.charge(n)
	result(stack, int32(n))
}

func attributeRead(c *Call, mod api.Module, stack []uint64) {
	name := c.slice(mod, "attribute_read", stack[0], stack[1])
	dst := c.slice(mod, "attribute_read", stack[2], stack[3])
	c.charge(len(name) + len(dst))
	c.readAttribute(stack, name, dst)
}

// manyHeaders are so many that looking through them costs more than looking at the clock.
const manyHeaders = 32

// readAttribute answers with the attribute's size and as much of it as fits.
func (c *Call) readAttribute(stack []uint64, name, dst []byte) {
	if value, ok, known := c.handlerAttribute(name); known {
		answer(stack, dst, value, ok)
		return
	}
	if refusedWhileStarting(c, stack) {
		return
	}
	if len(c.Headers) > manyHeaders {
		c.check()
	}
	if rest, ok := cutPrefix(name, "header."); ok {
		value, ok := c.Headers.Get(string(rest))
		answer(stack, dst, value, ok)
		return
	}
	if value, ok, known := c.textAttribute(name); known {
		answer(stack, dst, value, ok)
		return
	}
	if n, ok := c.numberAttribute(name); ok {
		text := strconv.AppendInt(c.run.scratch[:0], n, 10)
		copy(dst, text)
		result(stack, int32(len(text)))
		return
	}
	result(stack, abi.ErrAbsent)
}

// answer copies what fits of a value and returns its full size.
func answer(stack []uint64, dst []byte, value string, ok bool) {
	if !ok {
		result(stack, abi.ErrAbsent)
		return
	}
	copy(dst, value)
	result(stack, int32(len(value)))
}

func cutPrefix(b []byte, prefix string) ([]byte, bool) {
	if len(b) >= len(prefix) && string(b[:len(prefix)]) == prefix {
		return b[len(prefix):], true
	}
	return nil, false
}

// handlerAttribute is an attribute that belongs to the handler rather than the message. Of
// them secrets alone wait until the instance has started.
func (c *Call) handlerAttribute(name []byte) (value string, ok, known bool) {
	m := c.run.m
	if rest, is := cutPrefix(name, "config."); is {
		value, ok = m.cfg.Values[string(rest)]
		return value, ok, true
	}
	if rest, is := cutPrefix(name, "section."); is {
		section, ok := m.sections[string(rest)]
		return string(section), ok, true
	}
	if rest, is := cutPrefix(name, "secret."); is && !c.run.starting {
		value, ok = m.cfg.Secrets[string(rest)]
		return value, ok, true
	}
	return "", false, false
}

func (c *Call) textAttribute(name []byte) (value string, ok, known bool) {
	switch string(name) {
	case "id":
		return c.ID, true, true
	case "job":
		return c.job(), true, true
	case "queue":
		return c.Queue, true, true
	case "headers":
		return strings.Join(c.Headers.Names(), "\n"), true, true
	case abi.HeaderTraceparent:
		value, ok = c.Headers.Get(abi.HeaderTraceparent)
		return value, ok, true
	}
	return "", false, false
}

func (c *Call) job() string {
	if c.Job == "" {
		return c.run.m.cfg.Job
	}
	return c.Job
}

func (c *Call) numberAttribute(name []byte) (int64, bool) {
	switch string(name) {
	case "attempt":
		return int64(c.Tally.Attempt()), true
	case "failures":
		return int64(c.Tally.Failures), true
	case "delays":
		return int64(c.Tally.Delays), true
	case "stalls":
		return int64(c.Tally.Stalls), true
	case "interruptions":
		return int64(c.Tally.Interruptions), true
	case "max_attempts":
		return int64(c.MaxAttempts), true
	case "enqueued_at":
		return unixMilli(c.EnqueuedAt), true
	case "deadline":
		return unixMilli(c.run.deadline), true
	}
	return 0, false
}

// unixMilli is 0 for a time that is not known.
func unixMilli(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func resultWrite(c *Call, mod api.Module, stack []uint64) {
	if refusedWhileStarting(c, stack) {
		return
	}
	b := c.slice(mod, "result_write", stack[0], stack[1])
	if len(b) > c.run.m.cfg.Result-len(c.run.output) {
		result(stack, abi.ErrTooLarge)
		return
	}
	c.charge(len(b))
	c.run.output = append(c.run.output, b...)
	result(stack, 0)
}

func errorWrite(c *Call, mod api.Module, stack []uint64) {
	if refusedWhileStarting(c, stack) {
		return
	}
	c.charge(c.run.m.cfg.ErrorText)
	c.run.errorText = cutText(c.slice(mod, "error_write", stack[0], stack[1]), c.run.m.cfg.ErrorText)
	result(stack, 0)
}

// cutText is guest text as valid UTF-8 of at most limit bytes, cut between characters.
func cutText(b []byte, limit int) string {
	// One byte more than the limit tells whether a character was cut in two.
	text := strings.ToValidUTF8(string(b[:min(len(b), limit+utf8.UTFMax)]), "\ufffd")
	if len(text) <= limit {
		return text
	}
	text = text[:limit]
	for len(text) > 0 && !utf8.ValidString(text[max(0, len(text)-utf8.UTFMax):]) {
		text = text[:len(text)-1]
	}
	return text
}

func logWrite(c *Call, mod api.Module, stack []uint64) {
	text := c.slice(mod, "log_write", stack[1], stack[2])
	c.charge(min(len(text), c.run.logLeft))
	c.log(slogLevel(int32(stack[0])), text)
}

func remaining(c *Call, _ api.Module, stack []uint64) {
	left := int64(abi.ErrNotGranted)
	if !c.run.starting {
		left = c.remaining().Milliseconds()
	}
	stack[0] = uint64(left)
}

func stateRead(c *Call, mod api.Module, stack []uint64) {
	if refusedWhileStarting(c, stack) {
		return
	}
	state := c.State
	if c.run.stateSet {
		state = c.run.state
	}
	copy(c.slice(mod, "state_read", stack[0], stack[1]), state)
	result(stack, int32(len(state)))
}

func stateWrite(c *Call, mod api.Module, stack []uint64) {
	if refusedWhileStarting(c, stack) {
		return
	}
	b := c.slice(mod, "state_write", stack[0], stack[1])
	if len(b) > abi.MaxState {
		result(stack, abi.ErrTooLarge)
		return
	}
	c.run.state, c.run.stateSet = append([]byte{}, b...), true
	result(stack, 0)
}

// maxAbortText bounds how much of an AssemblyScript string is shown, bytes of UTF-16.
const maxAbortText = 4 << 10

func assemblyScriptString(mod api.Module, ptr uint32) string {
	if ptr < 4 {
		return ""
	}
	n, ok := mod.Memory().ReadUint32Le(ptr - 4)
	if !ok {
		return ""
	}
	b, ok := mod.Memory().Read(ptr, min(n, maxAbortText)&^1)
	if !ok {
		return ""
	}
	units := make([]uint16, len(b)/2)
	for i := range units {
		units[i] = uint16(b[2*i]) | uint16(b[2*i+1])<<8
	}
	return string(utf16.Decode(units))
}
