package engine

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"strconv"
	"strings"

	"github.com/tetratelabs/wazero/api"

	"github.com/guesthand/guesthand/abi"
	"github.com/guesthand/guesthand/host/egress"
)

// extismModule is what plug-ins built for Extism import. Its functions answer as those of
// extism/go-sdk 1.7 do, which runs a second module as the kernel; here the kernel is
// extismMemory and what follows.
const extismModule = "extism:host/env"

// extismUserModule holds the functions that an application embedding Extism offers of its own.
const extismUserModule = "extism:host/user"

// kernel is an instance's side of the Extism dialect.
type kernel struct {
	extismMemory
	// input is the payload's block, made when a guest asks where its input is. Until then
	// the payload is read where it is.
	input, inputLength uint64
	inputMade          bool
	output, outputSize uint64
	failure            uint64 // the error text's block
	status             int32  // of the last response

	// vars live as long as the instance.
	vars map[string][]byte
}

const (
	// maxVars bounds an instance's variables, bytes, as Extism does by default.
	maxVars = 1 << 20
	// varCost is what a variable counts beside its name and value.
	varCost = 64
)

// begin makes the kernel ready for a message. What an instance left in its blocks while it
// started is there for its first message.
func (k *kernel) begin(first bool, payload int) {
	if !first {
		k.reset()
	}
	k.input, k.inputMade, k.inputLength = 0, false, uint64(payload)
	k.output, k.outputSize, k.failure, k.status = 0, 0, 0, 0
}

var extismFuncs = []hostFunc{
	{"alloc", []api.ValueType{i64}, []api.ValueType{i64}, extismAlloc},
	{"free", []api.ValueType{i64}, nil, extismFree},
	{"length", []api.ValueType{i64}, []api.ValueType{i64}, extismLength},
	{"length_unsafe", []api.ValueType{i64}, []api.ValueType{i64}, extismLength},
	{"load_u8", []api.ValueType{i64}, []api.ValueType{i32}, extismLoad8},
	{"load_u64", []api.ValueType{i64}, []api.ValueType{i64}, extismLoad64},
	{"store_u8", []api.ValueType{i64, i32}, nil, extismStore8},
	{"store_u64", []api.ValueType{i64, i64}, nil, extismStore64},
	{"memory_bytes", nil, []api.ValueType{i64}, extismMemoryBytes},
	{"reset", nil, nil, extismReset},

	{"input_length", nil, []api.ValueType{i64}, extismInputLength},
	{"input_offset", nil, []api.ValueType{i64}, extismInputOffset},
	{"input_load_u8", []api.ValueType{i64}, []api.ValueType{i32}, extismInputLoad8},
	{"input_load_u64", []api.ValueType{i64}, []api.ValueType{i64}, extismInputLoad64},
	{"input_set", []api.ValueType{i64, i64}, nil, extismInputSet},
	{"output_set", []api.ValueType{i64, i64}, nil, extismOutputSet},
	{"output_offset", nil, []api.ValueType{i64}, extismOutputOffset},
	{"output_length", nil, []api.ValueType{i64}, extismOutputLength},
	{"error_set", []api.ValueType{i64}, nil, extismErrorSet},
	{"error_get", nil, []api.ValueType{i64}, extismErrorGet},

	{"config_get", []api.ValueType{i64}, []api.ValueType{i64}, extismConfigGet},
	{"var_get", []api.ValueType{i64}, []api.ValueType{i64}, extismVarGet},
	{"var_set", []api.ValueType{i64, i64}, nil, extismVarSet},
	{"http_request", []api.ValueType{i64, i64}, []api.ValueType{i64}, extismHTTPRequest},
	{"http_status_code", nil, []api.ValueType{i32}, extismHTTPStatus},
	{"http_headers", nil, []api.ValueType{i64}, extismHTTPHeaders},
	{"log_trace", []api.ValueType{i64}, nil, extismLog(slog.LevelDebug)},
	{"log_debug", []api.ValueType{i64}, nil, extismLog(slog.LevelDebug)},
	{"log_info", []api.ValueType{i64}, nil, extismLog(slog.LevelInfo)},
	{"log_warn", []api.ValueType{i64}, nil, extismLog(slog.LevelWarn)},
	{"log_error", []api.ValueType{i64}, nil, extismLog(slog.LevelError)},
	{"get_log_level", nil, []api.ValueType{i32}, extismLogLevel},
}

func extismAlloc(c *Call, _ api.Module, stack []uint64) {
	stack[0] = c.run.kernel.alloc(stack[0])
}

func extismFree(c *Call, _ api.Module, stack []uint64) {
	k := c.run.kernel
	if stack[0] != 0 && stack[0] == k.input {
		k.inputLength = 0
	}
	k.release(stack[0])
}

func extismLength(c *Call, _ api.Module, stack []uint64) {
	stack[0] = c.run.kernel.length(stack[0])
}

// extismLoad8 reads 0 where there is nothing, as Extism does. Eight bytes at once are a trap
// there instead, and here.
func extismLoad8(c *Call, _ api.Module, stack []uint64) {
	b, ok := c.run.kernel.slice(stack[0], 1)
	stack[0] = 0
	if ok {
		stack[0] = uint64(b[0])
	}
}

func extismStore8(c *Call, _ api.Module, stack []uint64) {
	if b, ok := c.run.kernel.slice(stack[0], 1); ok {
		b[0] = byte(stack[1])
	}
}

func extismLoad64(c *Call, _ api.Module, stack []uint64) {
	v, ok := c.run.kernel.load64(stack[0])
	if !ok {
		c.outside("load_u64")
	}
	stack[0] = v
}

func extismStore64(c *Call, _ api.Module, stack []uint64) {
	if !c.run.kernel.store64(stack[0], stack[1]) {
		c.outside("store_u64")
	}
}

func (c *Call) outside(what string) {
	c.abort(abi.Trap, "trap: out of bounds memory access in "+what)
}

func extismMemoryBytes(c *Call, _ api.Module, stack []uint64) {
	stack[0] = uint64(len(c.run.kernel.bytes))
}

func extismReset(c *Call, _ api.Module, _ []uint64) {
	k := c.run.kernel
	c.charge(len(k.bytes))
	k.begin(false, 0)
}

// inputOf is the input's bytes: the payload, or the block it was copied to. While an instance
// starts there is none.
func (c *Call) inputOf() []byte {
	k := c.run.kernel
	switch {
	case c.run.starting:
		return nil
	case !k.inputMade:
		return c.Payload[:min(uint64(len(c.Payload)), k.inputLength)]
	}
	b, _ := k.slice(k.input, k.inputLength)
	return b
}

func extismInputLength(c *Call, _ api.Module, stack []uint64) {
	stack[0] = uint64(len(c.inputOf()))
}

func extismInputOffset(c *Call, _ api.Module, stack []uint64) {
	k := c.run.kernel
	if !k.inputMade && !c.run.starting {
		k.input = c.give(c.inputOf())
		k.inputMade = true
	}
	stack[0] = k.input
}

func extismInputLoad8(c *Call, _ api.Module, stack []uint64) {
	input, at := c.inputOf(), stack[0]
	stack[0] = 0
	if at < uint64(len(input)) {
		stack[0] = uint64(input[at])
	}
}

// extismInputLoad64 reads zeros behind the input's end: some development kits read the last
// bytes this way.
func extismInputLoad64(c *Call, _ api.Module, stack []uint64) {
	input, at := c.inputOf(), stack[0]
	v := uint64(0)
	if at < uint64(len(input)) {
		for i, b := range input[at:min(uint64(len(input)), at+8)] {
			v |= uint64(b) << (8 * i)
		}
	}
	stack[0] = v
}

func extismInputSet(c *Call, _ api.Module, stack []uint64) {
	k := c.run.kernel
	if _, ok := k.slice(stack[0], stack[1]); ok && !c.run.starting {
		k.input, k.inputLength, k.inputMade = stack[0], stack[1], true
	}
}

// extismOutputSet takes a range whose bytes are read when the run is over. One that is not all
// inside is ignored, as Extism does.
func extismOutputSet(c *Call, _ api.Module, stack []uint64) {
	k := c.run.kernel
	if _, ok := k.slice(stack[0], stack[1]); !ok || c.run.starting {
		return
	}
	if limit := c.run.m.cfg.Result; stack[1] > uint64(limit) {
		c.abort(abi.Limit, fmt.Sprintf("result limit of %s exceeded", sizeText(uint64(limit))))
	}
	k.output, k.outputSize = stack[0], stack[1]
}

func extismOutputOffset(c *Call, _ api.Module, stack []uint64) { stack[0] = c.run.kernel.output }
func extismOutputLength(c *Call, _ api.Module, stack []uint64) { stack[0] = c.run.kernel.outputSize }

// extismErrorSet takes a block that holds the error text; 0 takes it back.
func extismErrorSet(c *Call, _ api.Module, stack []uint64) {
	k := c.run.kernel
	if _, ok := k.slice(stack[0], 1); ok || stack[0] == 0 {
		k.failure = stack[0]
	}
}

func extismErrorGet(c *Call, _ api.Module, stack []uint64) { stack[0] = c.run.kernel.failure }

// collect takes the output and the error text out of the kernel once the guest is through.
func (c *Call) collect() {
	k := c.run.kernel
	if k == nil {
		return
	}
	if b, ok := k.slice(k.output, k.outputSize); ok && len(b) > 0 {
		c.run.output = bytes.Clone(b)
	}
	if b := k.block(k.failure); len(b) > 0 {
		c.run.errorText = cutText(b, c.run.m.cfg.ErrorText)
	}
}

// give puts bytes in a new block for the guest. Where the limit is reached the run ends: a
// guest could not tell a missing block from a missing value.
func (c *Call) give(b []byte) uint64 {
	c.charge(len(b))
	at, ok := c.run.kernel.put(b)
	if !ok {
		c.abort(abi.Memory, c.run.m.memoryText())
	}
	return at
}

// text is a block that a call is about; what is no block is empty. An offset beyond the memory
// is a trap.
func (c *Call) text(what string, at uint64) []byte {
	k := c.run.kernel
	if at > max(uint64(len(k.bytes)), pageSize) {
		c.outside(what)
	}
	return k.block(at)
}

func extismConfigGet(c *Call, _ api.Module, stack []uint64) {
	name := c.text("config_get", stack[0])
	c.charge(len(name))
	value, ok := c.setting(name)
	stack[0] = 0
	if ok {
		stack[0] = c.give([]byte(value))
	}
}

// setting is what a plug-in reads as its configuration: the handler's own settings by their
// bare names, which win over the attributes, and every attribute.
func (c *Call) setting(name []byte) (string, bool) {
	if value, ok := c.run.m.cfg.Values[string(name)]; ok {
		return value, true
	}
	return c.attribute(name)
}

// attribute is one of the attributes as text.
func (c *Call) attribute(name []byte) (string, bool) {
	value, ok, known := c.handlerAttribute(name)
	if known || c.run.starting {
		return value, ok
	}
	if header, is := cutPrefix(name, "header."); is {
		if len(c.Headers) > manyHeaders {
			c.check()
		}
		return c.Headers.Get(string(header))
	}
	if value, ok, known = c.textAttribute(name); known {
		return value, ok
	}
	n, ok := c.numberAttribute(name)
	return strconv.FormatInt(n, 10), ok
}

func extismVarGet(c *Call, _ api.Module, stack []uint64) {
	k := c.run.kernel
	name := c.text("var_get", stack[0])
	c.charge(len(name))
	value, ok := k.vars[string(name)]
	k.release(stack[0])
	stack[0] = 0
	if ok {
		stack[0] = c.give(value)
	}
}

// extismVarSet keeps a value for this instance; no block takes it away.
func extismVarSet(c *Call, _ api.Module, stack []uint64) {
	k := c.run.kernel
	block, value := c.text("var_set", stack[0]), c.text("var_set", stack[1])
	c.charge(len(block) + len(value))
	if len(block) > maxVars {
		c.abort(abi.Limit, varsText)
	}
	name := string(block)
	k.release(stack[0])
	size := 0
	if old, ok := k.vars[name]; ok {
		size = -(varCost + len(name) + len(old))
	}
	if stack[1] == 0 {
		k.hold(size)
		delete(k.vars, name)
		return
	}
	if size += varCost + len(name) + len(value); int(k.held)+size > maxVars {
		c.abort(abi.Limit, varsText)
	}
	if !k.hold(size) {
		c.abort(abi.Memory, c.run.m.memoryText())
	}
	if k.vars == nil {
		k.vars = map[string][]byte{}
	}
	k.vars[name] = bytes.Clone(value)
	k.release(stack[1])
}

var varsText = "limit of " + sizeText(maxVars) + " for variables exceeded"

// extismRequest is the JSON that http_request is given.
type extismRequest struct {
	URL     string            `json:"url"`
	Method  string            `json:"method"`
	Headers map[string]string `json:"headers"`
}

// extismHTTPRequest returns the block of the response's body, 0 for an empty one. What fails
// ends the run, as in Extism: development kits have no other way to tell.
func extismHTTPRequest(c *Call, _ api.Module, stack []uint64) {
	k := c.run.kernel
	k.status, c.run.response = 0, nil
	r, err := parseExtismRequest(c.text("http_request", stack[0]))
	k.release(stack[0])
	switch {
	case c.run.starting:
		c.abort(abi.Trap, "http_request: not granted while an instance starts")
	case err != nil:
		c.abort(abi.Trap, "http_request: "+err.Error())
	}
	if stack[1] != 0 {
		r.Body = bytes.Clone(c.text("http_request", stack[1]))
		k.release(stack[1])
	}
	response, err := c.doHTTP(r)
	if err != nil {
		c.abort(abi.Trap, "http_request: "+err.Error())
	}
	k.status, c.run.response = int32(response.Status), response
	stack[0] = c.give(response.Body)
}

func parseExtismRequest(b []byte) (egress.Request, error) {
	if len(b) > maxHead {
		return egress.Request{}, fmt.Errorf("%w: the request takes over %s", egress.ErrTooLarge, sizeText(maxHead))
	}
	var in extismRequest
	if err := json.Unmarshal(b, &in); err != nil {
		return egress.Request{}, fmt.Errorf("%w: %w", egress.ErrMalformed, err)
	}
	r := egress.Request{Method: strings.ToUpper(in.Method), URL: in.URL, Header: http.Header{}}
	if r.Method == "" {
		r.Method = http.MethodGet
	}
	for name, value := range in.Headers {
		r.Header.Set(name, value)
	}
	return r, nil
}

func extismHTTPStatus(c *Call, _ api.Module, stack []uint64) { result(stack, c.run.kernel.status) }

// extismHTTPHeaders returns the last response's headers as a JSON object, with names in lower
// case and several values joined by commas.
func extismHTTPHeaders(c *Call, _ api.Module, stack []uint64) {
	stack[0] = 0
	if c.run.response == nil {
		return
	}
	headers := map[string]string{}
	for name, values := range c.run.response.Header {
		headers[strings.ToLower(name)] = strings.Join(values, ",")
	}
	b, err := json.Marshal(headers)
	if err != nil { // strings always can be
		c.abort(abi.Trap, "http_headers: "+err.Error())
	}
	stack[0] = c.give(b)
}

func extismLog(level slog.Level) func(*Call, api.Module, []uint64) {
	return func(c *Call, _ api.Module, stack []uint64) {
		text := c.text("log", stack[0])
		c.charge(min(len(text), c.run.logLeft))
		c.log(level, text)
		c.run.kernel.release(stack[0])
	}
}

// extismLogLevel is the lowest level that is not thrown away, as Extism counts: 0 is trace,
// 4 error.
func extismLogLevel(c *Call, _ api.Module, stack []uint64) {
	level := int32(math.MaxInt32)
	logger := c.logger()
	for i, l := range []slog.Level{slog.LevelDebug, slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError} {
		if logger.Enabled(c.context(), l) {
			level = int32(i)
			break
		}
	}
	result(stack, level)
}
