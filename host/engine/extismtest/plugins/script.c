// An Extism plug-in, with the imports of extism:host/env written out, that does what its input
// says: a list of kernel calls on 16 registers. What the calls answer goes to a trace, without
// the offsets themselves, which are each kernel's own business.
//
// An instruction is a letter and its operands: d, a and b are registers, one byte each, w a
// 64-bit and n a 16-bit number, little-endian.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define IMPORT(name) __attribute__((import_module("extism:host/env"), import_name(#name))) extern
IMPORT(alloc) u64 host_alloc(u64 size);
IMPORT(free) void host_free(u64 at);
IMPORT(length) u64 length(u64 at);
IMPORT(length_unsafe) u64 length_unsafe(u64 at);
IMPORT(load_u8) u32 load_u8(u64 at);
IMPORT(load_u64) u64 load_u64(u64 at);
IMPORT(store_u8) void store_u8(u64 at, u32 value);
IMPORT(store_u64) void store_u64(u64 at, u64 value);
IMPORT(input_length) u64 input_length(void);
IMPORT(input_offset) u64 input_offset(void);
IMPORT(input_load_u8) u32 input_load_u8(u64 offset);
IMPORT(input_load_u64) u64 input_load_u64(u64 offset);
IMPORT(input_set) void input_set(u64 at, u64 size);
IMPORT(output_set) void output_set(u64 at, u64 size);
IMPORT(output_length) u64 output_length(void);
IMPORT(error_set) void error_set(u64 at);
IMPORT(error_get) u64 error_get(void);
IMPORT(config_get) u64 config_get(u64 name);
IMPORT(var_get) u64 var_get(u64 name);
IMPORT(var_set) void var_set(u64 name, u64 value);
IMPORT(http_request) u64 http_request(u64 request, u64 body);
IMPORT(http_status_code) u32 http_status_code(void);
IMPORT(http_headers) u64 http_headers(void);
IMPORT(log_trace) void log_trace(u64 at);
IMPORT(log_debug) void log_debug(u64 at);
IMPORT(log_info) void log_info(u64 at);
IMPORT(log_warn) void log_warn(u64 at);
IMPORT(log_error) void log_error(u64 at);
IMPORT(get_log_level) u32 get_log_level(void);
IMPORT(reset) void host_reset(void);

static u8 script[1 << 17], trace[1 << 16];
static u32 size, at, traced;
static u64 r[16];

static u8 byte(void) { return at < size ? script[at++] : 0; }
static u16 half(void) { u16 low = byte(); return low | byte() << 8; }
static u64 word(void) {
	u64 v = 0;
	for (int i = 0; i < 64; i += 8) v |= (u64)byte() << i;
	return v;
}
static u64 *reg(void) { return &r[byte() & 15]; }

static void note(u64 v) {
	for (int i = 0; i < 8 && traced < sizeof trace; i++, v >>= 8) trace[traced++] = v;
}
static void note_block(u64 block) {
	u64 n = length(block);
	note(n);
	for (u64 i = 0; i < n && traced < sizeof trace; i++) trace[traced++] = load_u8(block + i);
}

__attribute__((noinline)) static u32 deeper(u32 n) {
	volatile u32 here = n;
	return n == 1u << 31 ? 0 : deeper(n + 1) + here;
}

__attribute__((export_name("run"))) int run(void) {
	u64 *d, *a, *b;
	size = traced = at = 0;
	for (int i = 0; i < 16; i++) r[i] = 0;
	for (u64 n = input_length(); size < n && size < sizeof script; size++) script[size] = input_load_u8(size);
	while (at < size) switch (byte()) {
	case 'i': d = reg(); *d = word(); break;
	case '+': d = reg(); a = reg(); *d = *a + word(); break;
	case 'a': d = reg(); a = reg(); *d = host_alloc(*a); note(*d != 0); break;
	case 'f': host_free(*reg()); break;
	case 'l': note(length(*reg())); break;
	case 'u': note(length_unsafe(*reg())); break;
	case 'b': note(load_u8(*reg())); break;
	case 'q': note(load_u64(*reg())); break;
	case 'B': a = reg(); store_u8(*a, byte()); break;
	case 'Q': a = reg(); b = reg(); store_u64(*a, *b); break;
	case 's': {
		d = reg();
		u16 n = half();
		*d = host_alloc(n);
		for (u16 i = 0; i < n; i++) store_u8(*d + i, byte());
		break;
	}
	case 't': note_block(*reg()); break;
	case 'n': note(input_length()); break;
	case 'o': d = reg(); *d = input_offset(); note(*d != 0); break;
	case 'x': note(input_load_u8(*reg())); break;
	case 'X': note(input_load_u64(*reg())); break;
	case 'I': a = reg(); b = reg(); input_set(*a, *b); break;
	case 'O': a = reg(); b = reg(); output_set(*a, *b); note(output_length()); break;
	case 'E': error_set(*reg()); break;
	case 'g': note(error_get() != 0); break;
	case 'c': d = reg(); a = reg(); *d = config_get(*a); note(*d != 0); note_block(*d); break;
	case 'v': d = reg(); a = reg(); *d = var_get(*a); note(*d != 0); note_block(*d); break;
	case 'V': a = reg(); b = reg(); var_set(*a, *b); break;
	case 'h': d = reg(); a = reg(); b = reg(); *d = http_request(*a, *b); note_block(*d); break;
	case 'H': note(http_status_code()); break;
	case 'K': note_block(http_headers()); break;
	case '0': log_trace(*reg()); break;
	case '1': log_debug(*reg()); break;
	case '2': log_info(*reg()); break;
	case '3': log_warn(*reg()); break;
	case '4': log_error(*reg()); break;
	case 'G': note(get_log_level()); break;
	case 'Z': host_reset(); break;
	case 'T': { // the trace is the output
		u64 out = host_alloc(traced);
		for (u32 i = 0; i < traced; i++) store_u8(out + i, trace[i]);
		output_set(out, traced);
		break;
	}
	case 'R': return word();
	// Hazards.
	case '!': __builtin_trap();
	case '@': for (volatile u32 i = 0;; i++) {}
	case '^': note(deeper(size)); break;
	case 'M': while (__builtin_wasm_memory_grow(0, 16) != -1UL) {} break;
	case 'A': { u64 n = word(), blocks = 0; while (host_alloc(n)) blocks++; note(blocks); break; } // until it is refused
	case 'W': { u64 n = word(); for (;;) host_free(host_alloc(n)); }
	case 'Y': for (;;) { a = &r[0]; log_info(*a); }
	default: return 1;
	}
	return 0;
}
