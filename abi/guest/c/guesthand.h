/* guesthand.h: the guest SDK for C and C++, what a handler uses of its host. It is one header
 * without dependencies, not even on a C library; copy it into a project.
 *
 * A handler is a function that gets nothing and returns an outcome. In one source file:
 *
 *     #include "guesthand.h"
 *
 *     static gh_outcome charge(int64_t order) {
 *         return busy() ? gh_retry_after("the bank is busy", 30000) : gh_ok();
 *     }
 *
 *     static gh_outcome handle(void) {
 *         int64_t order;
 *         gh_outcome o = gh_payload_int(&order);
 *         if (gh_failed(o)) return o;                       // no number: permanent
 *         o = charge(order);
 *         if (gh_failed(o)) return gh_wrap(o, "charge");    // still retry-after 30 s
 *         return gh_result("charged");
 *     }
 *
 *     GH_HANDLER(handle)
 *
 * Build a native module without a C library, or with one as a reactor, or a command, which
 * has GH_COMMAND(handle) in place of GH_HANDLER(handle):
 *
 *     clang --target=wasm32 -O2 -mbulk-memory -nostdlib -Wl,--no-entry -Wl,--stack-first \
 *         -Wl,--strip-all -o h.wasm h.c
 *     clang --target=wasm32-wasi -O2 -mexec-model=reactor -Wl,--strip-all -o h.wasm h.c
 *     clang --target=wasm32-wasi -O2 -Wl,--strip-all -o h.wasm h.c
 *
 * Outcomes. gh_ok() is success. A failure is made by gh_retry, gh_retry_after, gh_permanent and
 * so on, and is returned through the callers. gh_wrap puts words before its text and keeps the
 * mark. Marking again, with NULL for the text, keeps the text and replaces the mark: the
 * outermost wins. A failure without a mark is gh_error: a retry.
 *
 * The text of a failure is kept in one buffer of GH_TEXT bytes, cut where it is longer; so there
 * is one failure at a time, and gh_forget() drops one that was dealt with.
 *
 * Strings are terminated by a zero byte. Sizes are bytes, times milliseconds. What the host
 * grants: gh_fetch, gh_send and gh_kv_* answer GH_NOT_GRANTED until the host's configuration
 * grants them to this handler.
 */
#ifndef GUESTHAND_H
#define GUESTHAND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef GH_TEXT
#define GH_TEXT 2048 /* the longest text of a failure, and the longest head of a request */
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* The host's functions. Pointers and sizes are checked by the host; text reads return the full
 * size and copy what fits. */
#define GH_IMPORT(name) __attribute__((import_module("guesthand_v1"), import_name(#name))) extern
GH_IMPORT(payload_size) int32_t gh_payload_size(void);
GH_IMPORT(payload_read) int32_t gh_payload_read(void *dst, size_t len, size_t offset);
GH_IMPORT(attribute_read) int32_t gh_attribute_read(const char *name, size_t name_len, void *dst, size_t len);
GH_IMPORT(result_write) int32_t gh_result_write(const void *ptr, size_t len);
GH_IMPORT(error_write) int32_t gh_error_write(const char *ptr, size_t len);
GH_IMPORT(log_write) void gh_log_write(int32_t level, const char *ptr, size_t len);
/* Time until the run's deadline or, once the host is stopping, until the end of its drain; 0
 * or less: return now. */
GH_IMPORT(remaining) int64_t gh_remaining(void);
/* Up to 4 KiB that an earlier run of this message left, or this one; returns its size. */
GH_IMPORT(state_read) int32_t gh_state_read(void *dst, size_t len);
GH_IMPORT(state_write) int32_t gh_state_write(const void *ptr, size_t len);
GH_IMPORT(http_send) int32_t gh_http_send(const char *head, size_t head_len, const void *body, size_t body_len);
GH_IMPORT(http_header_read) int32_t gh_http_header_read(const char *name, size_t name_len, char *dst, size_t len);
/* The body of the latest response. */
GH_IMPORT(http_body_size) int32_t gh_http_body_size(void);
GH_IMPORT(http_body_read) int32_t gh_http_body_read(void *dst, size_t len, size_t offset);
/* Keys are up to 256 bytes of anything; each handler has its own, shared by all hosts. get
 * returns the full size, create 0 stored or 1 there already, all of them an error below 0. A
 * ttl of 0 is for good. */
GH_IMPORT(kv_get) int32_t gh_kv_get(const void *key, size_t key_len, void *dst, size_t len);
GH_IMPORT(kv_put) int32_t gh_kv_put(const void *key, size_t key_len, const void *value, size_t len, int64_t ttl_ms);
GH_IMPORT(kv_create) int32_t gh_kv_create(const void *key, size_t key_len, const void *value, size_t len, int64_t ttl_ms);
GH_IMPORT(kv_delete) int32_t gh_kv_delete(const void *key, size_t key_len);
GH_IMPORT(message_send) int32_t gh_message_send(const char *head, size_t head_len, const void *body, size_t body_len);

/* What host functions answer below 0. */
enum {
	GH_ABSENT = -1,
	GH_NOT_GRANTED = -2,
	GH_TOO_LARGE = -3, /* or over a quota */
	GH_UNAVAILABLE = -4, /* an I/O error */
	GH_MALFORMED = -5,
	GH_TIMED_OUT = -6
};

/* The levels of gh_log. */
enum { GH_DEBUG = -4, GH_INFO = 0, GH_WARN = 4, GH_ERROR = 8 };

/* What is to become of the message: delay << 8 | code. */
typedef int64_t gh_outcome;

/* Text that grows in a buffer; what does not fit is cut and remembered. */
typedef struct {
	char *at;
	size_t len, size;
	bool cut;
} gh_buffer;

static char gh_text_bytes[GH_TEXT];
static size_t gh_text_len; /* of the failure's text */

static inline size_t gh_len(const char *s) {
	size_t n = 0;
	while (s && s[n]) n++;
	return n;
}

static inline void gh_add_bytes(gh_buffer *b, const char *p, size_t n) {
	for (size_t i = 0; i < n; i++) {
		if (b->len == b->size) {
			b->cut = true;
			return;
		}
		b->at[b->len++] = p[i];
	}
}

static inline void gh_add(gh_buffer *b, const char *s) { gh_add_bytes(b, s, gh_len(s)); }

static inline void gh_add_int(gh_buffer *b, int64_t n) {
	char digits[20];
	size_t i = sizeof digits;
	uint64_t left = n < 0 ? 0 - (uint64_t)n : (uint64_t)n;
	do digits[--i] = (char)('0' + left % 10);
	while (left /= 10);
	if (n < 0) digits[--i] = '-';
	gh_add_bytes(b, digits + i, sizeof digits - i);
}

/* The text of an error below 0. */
static inline const char *gh_error_name(int32_t error) {
	switch (error) {
	case GH_ABSENT: return "absent";
	case GH_NOT_GRANTED: return "not granted";
	case GH_TOO_LARGE: return "too large";
	case GH_UNAVAILABLE: return "not available";
	case GH_MALFORMED: return "malformed";
	case GH_TIMED_OUT: return "timed out";
	}
	return "host error";
}

/* ---- Outcomes */

static inline gh_outcome gh_ok(void) { return 0; }
static inline bool gh_failed(gh_outcome o) { return o != 0; }

/* Drops the text of a failure that was dealt with. */
static inline void gh_forget(void) { gh_text_len = 0; }

static inline gh_outcome gh_mark(int code, const char *text, int64_t delay_ms) {
	if (text) {
		gh_buffer b = {gh_text_bytes, 0, GH_TEXT, false};
		gh_add(&b, text);
		gh_text_len = b.len;
	}
	return (gh_outcome)((uint64_t)(delay_ms < 0 ? 0 : delay_ms) << 8) | code;
}

/* A failure without a mark, and one marked as that: retried after the policy's backoff. */
static inline gh_outcome gh_error(const char *text) { return gh_mark(1, text, 0); }
static inline gh_outcome gh_retry(const char *text) { return gh_mark(1, text, 0); }
/* Retried in ms instead of the backoff; 0 or less: the backoff. */
static inline gh_outcome gh_retry_after(const char *text, int64_t ms) { return gh_mark(10, text, ms); }
/* Runs again in ms, at least 1 s; nothing failed and no attempt is spent. */
static inline gh_outcome gh_delay(const char *text, int64_t ms) { return gh_mark(11, text, ms); }
/* No retry can help: a dead letter now. */
static inline gh_outcome gh_permanent(const char *text) { return gh_mark(12, text, 0); }
/* Left to the broker's own rejection. */
static inline gh_outcome gh_reject(const char *text) { return gh_mark(13, text, 0); }
/* gh_delay, and the job takes no new message on this host for ms. */
static inline gh_outcome gh_pause(const char *text, int64_t ms) { return gh_mark(14, text, ms); }

/* The outcome's word, for texts. */
static inline const char *gh_word(gh_outcome o) {
	switch (o & 0xff) {
	case 0: return "success";
	case 10: return "retry-after";
	case 11: return "delay";
	case 12: return "permanent";
	case 13: return "reject";
	case 14: return "pause";
	}
	return "retry";
}

/* Puts "context: " before the failure's text and keeps its mark. A failure without a text
 * gets its word. */
static inline gh_outcome gh_wrap(gh_outcome o, const char *context) {
	if (!gh_failed(o)) return o;
	if (!gh_text_len) gh_mark((int)(o & 0xff), gh_word(o), 0);
	size_t add = gh_len(context) + 2;
	if (add > GH_TEXT) add = GH_TEXT;
	size_t keep = gh_text_len < GH_TEXT - add ? gh_text_len : GH_TEXT - add;
	for (size_t i = keep; i > 0; i--) gh_text_bytes[add + i - 1] = gh_text_bytes[i - 1];
	gh_buffer b = {gh_text_bytes, 0, add, false};
	gh_add(&b, context);
	gh_add(&b, ": ");
	gh_text_len = add + keep;
	return o;
}

/* A failure without a mark where a host function answered below 0, else success. */
static inline gh_outcome gh_check(int32_t answer, const char *what) {
	return answer < 0 ? gh_wrap(gh_error(gh_error_name(answer)), what) : gh_ok();
}

/* Ends the run as a retry with this text, at once, from anywhere. */
static inline __attribute__((noreturn)) void gh_panic(const char *text) {
	gh_error_write(text, gh_len(text));
	__builtin_trap();
}

#define GH_STRING(x) #x
#define GH_LINE(x) GH_STRING(x)
/* gh_panic with the place and the condition, unless it holds. */
#define GH_ASSERT(condition) \
	((condition) ? (void)0 : gh_panic(__FILE__ ":" GH_LINE(__LINE__) ": " #condition " does not hold"))

/* ---- The message */

/* Reads the payload from offset on; returns how much was copied, 0 at its end. */
static inline size_t gh_payload(void *dst, size_t len, size_t offset) {
	return (size_t)gh_payload_read(dst, len, offset);
}

/* Decodes the whole payload as a decimal number. What is none is permanent. */
static inline gh_outcome gh_payload_int(int64_t *n) {
	char text[32];
	size_t len = gh_payload(text, sizeof text, 0), i = len && text[0] == '-';
	uint64_t value = 0, most = (uint64_t)INT64_MAX + (i ? 1 : 0);
	bool good = i < len && len < sizeof text;
	bool minus = i > 0;
	for (; good && i < len; i++) {
		uint64_t digit = (uint64_t)(text[i] - '0');
		good = digit <= 9 && value <= (most - digit) / 10;
		if (good) value = value * 10 + digit;
	}
	if (!good) return gh_wrap(gh_permanent("no decimal number"), "decode the payload");
	*n = (int64_t)(minus ? 0 - value : value);
	return gh_ok();
}

/* Appends to the run's result, which the host uses when the run succeeds. */
static inline gh_outcome gh_result_bytes(const void *p, size_t len) {
	return gh_check(gh_result_write(p, len), "write the result");
}
static inline gh_outcome gh_result(const char *text) { return gh_result_bytes(text, gh_len(text)); }

/* An attribute's text, cut to size - 1 bytes and terminated: "id", "job", "queue", "headers"
 * (the names, one a line), "header.NAME", "config.NAME", "secret.NAME", "section.NAME",
 * "traceparent". Returns its full size, or GH_ABSENT; the text then is empty. */
static inline int32_t gh_attribute(const char *name, char *dst, size_t size) {
	int32_t n = gh_attribute_read(name, gh_len(name), dst, size - 1);
	size_t got = n < 0 ? 0 : (size_t)n;
	dst[got < size - 1 ? got : size - 1] = 0;
	return n;
}

/* An attribute that is a number, 0 where it is absent: "attempt" (1 in the first run),
 * "failures", "delays", "stalls", "interruptions", "max_attempts" (0: no cap), "enqueued_at" and
 * "deadline" (Unix time in ms). */
static inline int64_t gh_number(const char *name) {
	char text[24];
	int64_t n = 0;
	gh_attribute(name, text, sizeof text);
	size_t i = text[0] == '-';
	for (; text[i] >= '0' && text[i] <= '9'; i++) n = n * 10 + (text[i] - '0');
	return text[0] == '-' ? -n : n;
}

static inline void gh_log(int32_t level, const char *text) { gh_log_write(level, text, gh_len(text)); }

/* Keeps up to 4 KiB for the next run of this message. It is kept when the handler returns a
 * retry, retry-after, delay or pause. */
static inline gh_outcome gh_set_state(const void *p, size_t len) {
	return gh_check(gh_state_write(p, len), "write the state");
}

/* ---- HTTP and messages: a header is a name and a value */

typedef struct {
	const char *name, *value;
} gh_header;

static inline bool gh_one_line(const char *s) {
	for (; s && *s; s++)
		if (*s == '\r' || *s == '\n') return false;
	return true;
}

static inline bool gh_add_header(gh_buffer *b, gh_header h) {
	gh_add(b, "\n");
	gh_add(b, h.name);
	gh_add(b, ": ");
	gh_add(b, h.value);
	return gh_one_line(h.name) && gh_one_line(h.value);
}

/* Makes a request; returns the response's status, or an error below 0 where there is none. The
 * head, the headers included, is at most GH_TEXT bytes. */
static inline int32_t gh_fetch(const char *method, const char *url, const gh_header *headers, size_t count,
                               const void *body, size_t body_len) {
	char head[GH_TEXT];
	gh_buffer b = {head, 0, sizeof head, false};
	bool good = gh_one_line(method) && gh_one_line(url);
	gh_add(&b, method);
	gh_add(&b, " ");
	gh_add(&b, url);
	for (size_t i = 0; i < count; i++) good = gh_add_header(&b, headers[i]) && good;
	if (b.cut) return GH_TOO_LARGE;
	return good ? gh_http_send(head, b.len, body, body_len) : GH_MALFORMED;
}

/* A header of the latest response, as gh_attribute. */
static inline int32_t gh_response_header(const char *name, char *dst, size_t size) {
	int32_t n = gh_http_header_read(name, gh_len(name), dst, size - 1);
	size_t got = n < 0 ? 0 : (size_t)n;
	dst[got < size - 1 ? got : size - 1] = 0;
	return n;
}

static inline int gh_two_digits(const char *s) {
	if (s[0] < '0' || s[0] > '9' || s[1] < '0' || s[1] > '9') return -1;
	return (s[0] - '0') * 10 + (s[1] - '0');
}

/* Unix seconds of "Sun, 06 Nov 1994 08:49:37 GMT", or -1. */
static inline int64_t gh_http_date(const char *s) {
	const char *months = "JanFebMarAprMayJunJulAugSepOctNovDec";
	if (gh_len(s) != 29 || s[16] != ' ' || s[19] != ':' || s[22] != ':') return -1;
	int month = 0;
	while (month < 12 && !(s[8] == months[3 * month] && s[9] == months[3 * month + 1] && s[10] == months[3 * month + 2]))
		month++;
	int day = gh_two_digits(s + 5), century = gh_two_digits(s + 12), rest = gh_two_digits(s + 14);
	int hour = gh_two_digits(s + 17), minute = gh_two_digits(s + 20), second = gh_two_digits(s + 23);
	if (month == 12 || (day | century | rest | hour | minute | second) < 0) return -1;
	/* Days since 1970 with years that begin in March, so that the leap day is the last. */
	int64_t year = century * 100 + rest - (month < 2);
	int64_t from_march = (month + 10) % 12;
	int64_t days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * from_march + 2) / 5 + day - 1 - 719468;
	return ((days * 24 + hour) * 60 + minute) * 60 + second;
}

/* What a Retry-After header means, in ms: seconds, or a date, which counts from the response's
 * own Date, since clocks differ. 0, the policy's backoff, for anything else. */
static inline int64_t gh_parse_retry_after(const char *value, const char *date) {
	const int64_t year = 365LL * 24 * 3600;
	int64_t seconds = 0;
	size_t i = 0;
	for (; value[i] >= '0' && value[i] <= '9'; i++)
		if (seconds <= year) seconds = seconds * 10 + (value[i] - '0');
	if (i == 0 || value[i]) {
		int64_t until = gh_http_date(value), now = gh_http_date(date);
		seconds = until < 0 || now < 0 || until < now ? 0 : until - now;
	}
	return (seconds < year ? seconds : year) * 1000;
}

/* The outcome of the latest response: success below 400, retry-after for 429 and 503 with
 * Retry-After, a failure without a mark for everything else, an error below 0 included:
 *
 *     gh_outcome o = gh_response(gh_fetch("GET", url, NULL, 0, NULL, 0));
 *     if (gh_failed(o)) return o;
 */
static inline gh_outcome gh_response(int32_t status) {
	if (status < 0) return gh_error(gh_error_name(status));
	if (status < 400) return gh_ok();
	char text[48], wait[40], date[40];
	gh_buffer b = {text, 0, sizeof text - 1, false};
	gh_add(&b, "the server answered ");
	gh_add_int(&b, status);
	text[b.len] = 0;
	if ((status == 429 || status == 503) && gh_response_header("Retry-After", wait, sizeof wait) >= 0) {
		gh_response_header("Date", date, sizeof date);
		return gh_retry_after(text, gh_parse_retry_after(wait, date));
	}
	return gh_error(text);
}

/* A message to send when the run succeeds. Zero is a good value of what is not needed. */
typedef struct {
	const char *queue, *job;
	const void *payload;
	size_t payload_len;
	const char *key;  /* asks the broker to drop a second message with this key */
	int64_t delay_ms; /* how long it waits before its first run */
	const gh_header *headers;
	size_t header_count;
} gh_message;

/* Hands a message to the host, which publishes it if this run succeeds, before the
 * acknowledgement, and drops it if not. 0, or an error below. */
static inline int32_t gh_send(const gh_message *m) {
	char head[GH_TEXT];
	gh_buffer b = {head, 0, sizeof head, false};
	bool good = gh_one_line(m->queue) && gh_one_line(m->job);
	gh_add(&b, m->queue);
	gh_add(&b, " ");
	gh_add(&b, m->job);
	if (m->key) {
		gh_header key = {"Key", m->key};
		good = gh_add_header(&b, key) && good;
	}
	if (m->delay_ms > 0) {
		gh_add(&b, "\nDelay: ");
		gh_add_int(&b, m->delay_ms);
		gh_add(&b, "ms");
	}
	for (size_t i = 0; i < m->header_count; i++) good = gh_add_header(&b, m->headers[i]) && good;
	if (b.cut) return GH_TOO_LARGE;
	return good ? gh_message_send(head, b.len, m->payload, m->payload_len) : GH_MALFORMED;
}

/* ---- The module's entry */

static inline gh_outcome gh_run(gh_outcome (*handle)(void)) {
	gh_forget();
	gh_outcome o = handle();
	if (gh_failed(o) && gh_text_len) gh_error_write(gh_text_bytes, gh_text_len);
	return o;
}

/* An exit code holds whole seconds: a delay is rounded up, and one over 194 days is a retry
 * that says so. */
static inline uint32_t gh_run_command(gh_outcome (*handle)(void)) {
	gh_outcome o = gh_run(handle);
	uint64_t seconds = ((uint64_t)(o >> 8) + 999) / 1000;
	if (seconds < 1u << 24) return (uint32_t)seconds << 8 | (uint32_t)(o & 0xff);
	const char *text = "the delay does not fit a command's exit code";
	gh_error_write(text, gh_len(text));
	return 1;
}

#define GH_HANDLER(handle) \
	__attribute__((export_name("handle"))) gh_outcome gh_export(void) { return gh_run(handle); }

/* Needs WASI. */
__attribute__((import_module("wasi_snapshot_preview1"), import_name("proc_exit"))) extern __attribute__((noreturn)) void gh_exit(uint32_t code);
#define GH_COMMAND(handle) \
	int main(void) { gh_exit(gh_run_command(handle)); }

#ifdef __cplusplus
}
#endif

#endif
