/* The JavaScript runtime for handlers: QuickJS and the SDK as a reactor. The script is the custom
 * section guesthand.script, which `guesthand build` attaches; it is evaluated once, when an
 * instance starts, and its default export is called for each message.
 *
 * QuickJS is compiled into this file, for what it keeps to itself: a module's namespace, the state
 * of Math.random, the constructor of errors (quickjs.patch gives it `cause`). */
#include "quickjs.c"

#include <stdbool.h>
#include <unistd.h>

#define IMPORT(name) __attribute__((import_module("guesthand_v1"), import_name(#name))) extern
IMPORT(payload_size) int32_t gh_payload_size(void);
IMPORT(payload_read) int32_t gh_payload_read(void *, size_t, size_t);
IMPORT(attribute_read) int32_t gh_attribute_read(const char *, size_t, void *, size_t);
IMPORT(result_write) int32_t gh_result_write(const void *, size_t);
IMPORT(error_write) int32_t gh_error_write(const void *, size_t);
IMPORT(log_write) void gh_log_write(int32_t, const void *, size_t);
IMPORT(remaining) int64_t gh_remaining(void);
IMPORT(state_read) int32_t gh_state_read(void *, size_t);
IMPORT(state_write) int32_t gh_state_write(const void *, size_t);
IMPORT(http_send) int32_t gh_http_send(const void *, size_t, const void *, size_t);
IMPORT(http_header_read) int32_t gh_http_header_read(const void *, size_t, void *, size_t);
IMPORT(http_body_size) int32_t gh_http_body_size(void);
IMPORT(http_body_read) int32_t gh_http_body_read(void *, size_t, size_t);
IMPORT(kv_get) int32_t gh_kv_get(const void *, size_t, void *, size_t);
IMPORT(kv_put) int32_t gh_kv_put(const void *, size_t, const void *, size_t, int64_t);
IMPORT(kv_create) int32_t gh_kv_create(const void *, size_t, const void *, size_t, int64_t);
IMPORT(kv_delete) int32_t gh_kv_delete(const void *, size_t);
IMPORT(message_send) int32_t gh_message_send(const void *, size_t, const void *, size_t);

static const uint8_t sdk[] = {
#embed "guesthand.js"
	, 0};

static JSRuntime *rt;
static JSContext *ctx;
static JSValue entry;   /* what the SDK evaluates to */
static JSValue handler; /* the script's default export */
static bool starved;    /* memory was refused */

/* ---- Memory: a refusal is remembered, since the exception it becomes may be caught */

static void *try_malloc(JSMallocState *s, size_t size) {
	void *p = js_def_malloc(s, size);
	starved |= !p;
	return p;
}
static void *try_realloc(JSMallocState *s, void *old, size_t size) {
	void *p = js_def_realloc(s, old, size);
	starved |= !p && size;
	return p;
}
static const JSMallocFunctions memory = {try_malloc, js_def_free, try_realloc, NULL};

/* ---- Arguments and results */

typedef struct {
	const uint8_t *at;
	size_t len;
	const char *text; /* to be freed */
} bytes;

static bool take(bytes *b, JSValueConst v) {
	b->text = NULL;
	if (JS_IsString(v)) {
		b->text = JS_ToCStringLen(ctx, &b->len, v);
		b->at = (const uint8_t *)b->text;
		return b->text != NULL;
	}
	size_t offset = 0, len = 0;
	JSValue buffer = JS_GetTypedArrayBuffer(ctx, v, &offset, &len, NULL);
	if (JS_IsException(buffer)) { /* not a view: a buffer itself, or a TypeError */
		JS_FreeValue(ctx, JS_GetException(ctx));
		b->at = JS_GetArrayBuffer(ctx, &b->len, v);
		return b->at != NULL || JS_IsNull(rt->current_exception);
	}
	size_t whole;
	uint8_t *at = JS_GetArrayBuffer(ctx, &whole, buffer);
	JS_FreeValue(ctx, buffer); /* v still holds it */
	b->at = at ? at + offset : NULL;
	b->len = len;
	return true;
}

static void drop(bytes *b) {
	if (b->text) JS_FreeCString(ctx, b->text);
}

static void free_buffer(JSRuntime *runtime, void *opaque, void *p) { js_free_rt(runtime, p); }

/* An ArrayBuffer of what an offset read gives. */
static JSValue read_all(int32_t size, int32_t (*read)(void *, size_t, size_t)) {
	uint8_t *p = js_malloc(ctx, size > 0 ? size : 1);
	if (!p) return JS_EXCEPTION;
	int32_t n = 0;
	while (n < size) {
		int32_t k = read(p + n, size - n, n);
		if (k <= 0) break;
		n += k;
	}
	return JS_NewArrayBuffer(ctx, p, n, free_buffer, NULL, FALSE);
}

/* An ArrayBuffer of what a text read gives, or its answer below 0 as a number. */
static JSValue read_sized(const bytes *name, int32_t (*read)(const void *, size_t, void *, size_t)) {
	int32_t size = 256;
	for (;;) {
		uint8_t *p = js_malloc(ctx, size);
		if (!p) return JS_EXCEPTION;
		int32_t n = read(name->at, name->len, p, size);
		if (n >= 0 && n <= size) return JS_NewArrayBuffer(ctx, p, n, free_buffer, NULL, FALSE);
		js_free(ctx, p);
		if (n < 0) return JS_NewInt32(ctx, n);
		size = n;
	}
}

static int32_t read_attribute(const void *name, size_t len, void *dst, size_t size) { return gh_attribute_read(name, len, dst, size); }
static int32_t read_state(const void *name, size_t len, void *dst, size_t size) { return gh_state_read(dst, size); }

/* ---- The host object */

enum {
	PAYLOAD, TEXT, BYTES, ATTRIBUTE, RESULT_WRITE, ERROR_WRITE, LOG, REMAINING, STATE_READ, STATE_WRITE, HTTP_SEND,
	HTTP_HEADER, HTTP_BODY, KV_GET, KV_PUT, KV_CREATE, KV_DELETE, MESSAGE_SEND, SLEEP
};

static JSValue number_or_undefined(JSValue v) { return JS_VALUE_GET_TAG(v) == JS_TAG_INT ? JS_UNDEFINED : v; }

static JSValue call_with(int which, const bytes *a, const bytes *b, int64_t n) {
	switch (which) {
	case TEXT: return JS_NewStringLen(ctx, (const char *)a->at, a->len);
	case BYTES: return JS_NewArrayBufferCopy(ctx, a->at, a->len);
	case ATTRIBUTE: return number_or_undefined(read_sized(a, read_attribute));
	case RESULT_WRITE: return JS_NewInt32(ctx, gh_result_write(a->at, a->len));
	case ERROR_WRITE: return JS_NewInt32(ctx, gh_error_write(a->at, a->len));
	case STATE_WRITE: return JS_NewInt32(ctx, gh_state_write(a->at, a->len));
	case HTTP_SEND: return JS_NewInt32(ctx, gh_http_send(a->at, a->len, b->at, b->len));
	case HTTP_HEADER: return number_or_undefined(read_sized(a, gh_http_header_read));
	case KV_GET: return read_sized(a, gh_kv_get);
	case KV_PUT: return JS_NewInt32(ctx, gh_kv_put(a->at, a->len, b->at, b->len, n));
	case KV_CREATE: return JS_NewInt32(ctx, gh_kv_create(a->at, a->len, b->at, b->len, n));
	case KV_DELETE: return JS_NewInt32(ctx, gh_kv_delete(a->at, a->len));
	case MESSAGE_SEND: return JS_NewInt32(ctx, gh_message_send(a->at, a->len, b->at, b->len));
	}
	return JS_UNDEFINED;
}

static JSValue call_plain(int which, int64_t n) {
	switch (which) {
	case PAYLOAD: return read_all(gh_payload_size(), gh_payload_read);
	case REMAINING: return JS_NewInt64(ctx, gh_remaining());
	case STATE_READ: return read_sized(&(bytes){0}, read_state);
	case HTTP_BODY: return read_all(gh_http_body_size(), gh_http_body_read);
	case SLEEP: {
		struct timespec t = {n / 1000, n % 1000 * 1000000};
		nanosleep(&t, NULL);
	}
	}
	return JS_UNDEFINED;
}

/* Arguments are bytes, bytes, number, as far as the function has them. */
static JSValue call_host(JSContext *c, JSValueConst self, int argc, JSValueConst *argv, int which) {
	bytes a = {0}, b = {0};
	int64_t n = 0;
	if (which == SLEEP) {
		if (JS_ToInt64(ctx, &n, argv[0])) return JS_EXCEPTION;
		return call_plain(which, n);
	}
	if (which == LOG) {
		if (JS_ToInt64(ctx, &n, argv[0]) || !take(&a, argv[1])) return JS_EXCEPTION;
		gh_log_write((int32_t)n, a.at, a.len);
		drop(&a);
		return JS_UNDEFINED;
	}
	if (which == PAYLOAD || which == REMAINING || which == STATE_READ || which == HTTP_BODY) return call_plain(which, 0);
	bool two = which == HTTP_SEND || which == KV_PUT || which == KV_CREATE || which == MESSAGE_SEND;
	if (!take(&a, argv[0])) return JS_EXCEPTION;
	JSValue v = JS_EXCEPTION;
	if ((!two || take(&b, argv[1])) && (argc < 3 || !JS_ToInt64(ctx, &n, argv[2]))) v = call_with(which, &a, &b, n);
	drop(&a);
	drop(&b);
	return v;
}

#define HOST(name, length, which) JS_CFUNC_MAGIC_DEF(name, length, call_host, which)
static const JSCFunctionListEntry host_functions[] = {
	HOST("payload", 0, PAYLOAD), HOST("text", 1, TEXT), HOST("bytes", 1, BYTES), HOST("attribute", 1, ATTRIBUTE),
	HOST("resultWrite", 1, RESULT_WRITE), HOST("errorWrite", 1, ERROR_WRITE), HOST("log", 2, LOG),
	HOST("remaining", 0, REMAINING), HOST("stateRead", 0, STATE_READ), HOST("stateWrite", 1, STATE_WRITE),
	HOST("httpSend", 2, HTTP_SEND), HOST("httpHeader", 1, HTTP_HEADER), HOST("httpBody", 0, HTTP_BODY),
	HOST("kvGet", 1, KV_GET), HOST("kvPut", 3, KV_PUT), HOST("kvCreate", 3, KV_CREATE), HOST("kvDelete", 1, KV_DELETE),
	HOST("messageSend", 2, MESSAGE_SEND), HOST("sleep", 1, SLEEP),
};

/* ---- Start */

/* Ends the instance with a line on standard error, which the host shows. */
static _Noreturn void die(const char *text, size_t len) {
	write(2, text, len);
	write(2, "\n", 1);
	__builtin_trap();
}

static JSValue call_entry(const char *name, int argc, JSValueConst *argv) {
	JSValue f = JS_GetPropertyStr(ctx, entry, name);
	JSValue v = JS_Call(ctx, f, entry, argc, argv);
	JS_FreeValue(ctx, f);
	return v;
}

/* Ends the instance with the pending exception. */
static _Noreturn void die_of_exception(void) {
	JSValue e = JS_GetException(ctx);
	JSValue text = JS_IsUndefined(entry) ? JS_DupValue(ctx, e) : call_entry("describe", 1, &e);
	size_t len = 0;
	const char *s = JS_IsException(text) ? NULL : JS_ToCStringLen(ctx, &len, text);
	if (!s) die("out of memory", 13);
	if (gh_error_write(s, len) == 0) __builtin_trap(); /* during a run the error text is there for it */
	die(s, len);
}

static void run_jobs(void) {
	JSContext *c;
	int n;
	while ((n = JS_ExecutePendingJob(rt, &c)) > 0) {
	}
	if (n < 0) die_of_exception();
}

/* The text of a section, ended by a zero byte, NULL where there is none. */
static char *section(const char *name, size_t *len) {
	int32_t n = gh_attribute_read(name, strlen(name), NULL, 0);
	if (n < 0) return NULL;
	char *p = js_malloc(ctx, (size_t)n + 1);
	if (!p) die("out of memory", 13);
	gh_attribute_read(name, strlen(name), p, (size_t)n);
	p[n] = 0;
	*len = (size_t)n;
	return p;
}

static void load_sdk(void) {
	entry = JS_UNDEFINED;
	JSValue make = JS_Eval(ctx, (const char *)sdk, sizeof sdk - 1, "guesthand.js", JS_EVAL_TYPE_GLOBAL);
	if (JS_IsException(make)) die_of_exception();
	JSValue host = JS_NewObject(ctx);
	JS_SetPropertyFunctionList(ctx, host, host_functions, countof(host_functions));
	JSValue made = JS_Call(ctx, make, JS_UNDEFINED, 1, &host);
	if (JS_IsException(made)) die_of_exception();
	entry = made;
	JS_FreeValue(ctx, host);
	JS_FreeValue(ctx, make);
}

static void load_script(void) {
	const char none[] = "this is the JavaScript runtime without a script: guesthand build attaches one";
	size_t len, name_len;
	char *script = section("section.guesthand.script", &len);
	if (!script) die(none, sizeof none - 1);
	char *name = section("section.guesthand.script.name", &name_len);
	JSValue compiled = JS_Eval(ctx, script, len, name ? name : "handler.js", JS_EVAL_TYPE_MODULE | JS_EVAL_FLAG_COMPILE_ONLY);
	js_free(ctx, script);
	js_free(ctx, name);
	if (JS_IsException(compiled)) die_of_exception();
	JSModuleDef *module = JS_VALUE_GET_PTR(compiled);
	JSValue v = JS_EvalFunction(ctx, compiled);
	if (JS_IsException(v)) die_of_exception();
	JS_FreeValue(ctx, v);
	run_jobs();
	JSValue names = js_get_module_ns(ctx, module);
	handler = JS_GetPropertyStr(ctx, names, "default");
	JS_FreeValue(ctx, names);
	const char no_function[] = "the script exports no default function: export default function (message) {...}";
	if (!JS_IsFunction(ctx, handler)) die(no_function, sizeof no_function - 1);
}

__attribute__((constructor)) static void start(void) {
	rt = JS_NewRuntime2(&memory, NULL);
	JS_SetMaxStackSize(rt, 900 << 10); /* of 1 MiB: the rest is for the C functions that do not look */
	ctx = JS_NewContextRaw(rt);
	JS_AddIntrinsicBaseObjects(ctx);
	JS_AddIntrinsicDate(ctx);
	JS_AddIntrinsicEval(ctx);
	JS_AddIntrinsicStringNormalize(ctx);
	JS_AddIntrinsicRegExpCompiler(ctx);
	JS_AddIntrinsicRegExp(ctx);
	JS_AddIntrinsicJSON(ctx);
	JS_AddIntrinsicProxy(ctx);
	JS_AddIntrinsicMapSet(ctx);
	JS_AddIntrinsicTypedArrays(ctx);
	JS_AddIntrinsicPromise(ctx);
	load_sdk();
	load_script();
}

/* ---- A message */

/* Math.random must not begin where it began for the last message: a fresh instance is a copy of
 * one that has started. */
static void seed(void) {
	if (getentropy(&ctx->random_state, sizeof ctx->random_state) || !ctx->random_state) ctx->random_state = 1;
}

__attribute__((export_name("handle"))) int64_t handle(void) {
	seed();
	starved = false;
	JS_UpdateStackTop(rt);
	JSValue v = call_entry("begin", 1, &handler);
	for (;;) {
		if (JS_IsException(v)) die_of_exception();
		run_jobs();
		v = call_entry("outcome", 0, NULL);
		if (!JS_IsUndefined(v)) break;
		v = call_entry("tick", 0, NULL);
	}
	int64_t outcome = 1;
	if (JS_IsException(v) || JS_ToInt64(ctx, &outcome, v)) die_of_exception();
	if (starved && outcome == 1) __builtin_trap(); /* so that the host can say that memory was the cause */
	return outcome;
}
