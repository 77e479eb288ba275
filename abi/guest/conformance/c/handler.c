/* The conformance handler in C: README.md one folder up says what it does. Compiled with
 * -DCOMMAND it is the command. */
#include "../../c/guesthand.h"

static char payload[1 << 21];

/* Cuts the next line off *rest. */
static char *line(char **rest) {
	char *start = *rest, *end = start;
	while (*end && *end != '\n') end++;
	*rest = *end ? end + 1 : end;
	*end = 0;
	return start;
}

static bool is(const char *a, const char *b) {
	for (; *a && *a == *b; a++) b++;
	return *a == *b;
}

static int64_t number(const char *s) {
	int64_t n = 0;
	for (; *s >= '0' && *s <= '9'; s++) n = n * 10 + (*s - '0');
	return n;
}

static gh_outcome result_number(int64_t n) {
	char text[24];
	gh_buffer b = {text, 0, sizeof text, false};
	gh_add_int(&b, n);
	return gh_result_bytes(text, b.len);
}

static gh_outcome decode(void) {
	int64_t n;
	gh_outcome o = gh_payload_int(&n);
	return gh_failed(o) ? o : result_number(n + 1);
}

static gh_outcome sum(const char *p, size_t len) {
	uint32_t n = 0;
	for (size_t i = 0; i < len; i++) n += (uint8_t)p[i];
	return result_number(n);
}

static gh_outcome fail(const char *kind, int64_t ms, const char *text) {
	if (!*text) text = NULL;
	if (is(kind, "retry")) return gh_retry(text);
	if (is(kind, "retry-after")) return gh_retry_after(text, ms);
	if (is(kind, "delay")) return gh_delay(text, ms);
	if (is(kind, "permanent")) return gh_permanent(text);
	if (is(kind, "reject")) return gh_reject(text);
	if (is(kind, "pause")) return gh_pause(text, ms);
	return gh_error(text);
}

static char attribute[4096];

static void add_attribute(gh_buffer *b, const char *label, const char *name) {
	gh_attribute(name, attribute, sizeof attribute);
	gh_add(b, label);
	gh_add(b, "=");
	for (char *p = attribute; *p; p++) gh_add_bytes(b, *p == '\n' ? "," : p, 1);
	gh_add(b, "\n");
}

static gh_outcome attributes(void) {
	static char text[8192];
	gh_buffer b = {text, 0, sizeof text, false};
	static const char *same[] = {"id", "job", "queue"};
	static const char *numbers[] = {"attempt", "failures", "delays", "stalls", "interruptions", "max_attempts", "enqueued_at"};
	for (size_t i = 0; i < sizeof same / sizeof *same; i++) add_attribute(&b, same[i], same[i]);
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
		gh_add(&b, numbers[i]);
		gh_add(&b, "=");
		gh_add_int(&b, gh_number(numbers[i]));
		gh_add(&b, "\n");
	}
	gh_add(&b, gh_number("deadline") > gh_number("enqueued_at") ? "deadline=later\n" : "deadline=none\n");
	add_attribute(&b, "headers", "headers");
	add_attribute(&b, "header", "header.x-tag");
	add_attribute(&b, "config", "config.color");
	add_attribute(&b, "secret", "secret.key");
	add_attribute(&b, "section", "section.conformance");
	add_attribute(&b, "traceparent", "traceparent");
	gh_add(&b, gh_attribute("config.none", attribute, sizeof attribute) == GH_ABSENT ? "none=absent\n" : "none=present\n");
	return gh_result_bytes(text, b.len);
}

static gh_outcome big(int64_t n) {
	static char piece[64 << 10];
	for (size_t i = 0; i < sizeof piece; i++) piece[i] = 'x';
	for (; n > 0; n -= (int64_t)sizeof piece) {
		gh_outcome o = gh_result_bytes(piece, n < (int64_t)sizeof piece ? (size_t)n : sizeof piece);
		if (gh_failed(o)) return o;
	}
	return gh_ok();
}

static gh_outcome state(void) {
	char bytes[4097];
	int32_t n = gh_state_read(bytes, sizeof bytes - 1);
	bytes[n] = 'x';
	gh_outcome o = gh_set_state(bytes, (size_t)n + 1);
	return gh_failed(o) ? o : gh_delay(NULL, 1000);
}

static gh_outcome fetch(const char *url) {
	char what[256], header[64];
	gh_buffer b = {what, 0, sizeof what - 1, false};
	gh_add(&b, "GET ");
	gh_add(&b, url);
	what[b.len] = 0;
	int32_t status = gh_fetch("GET", url, NULL, 0, NULL, 0);
	gh_outcome o = gh_response(status);
	if (gh_failed(o)) return status < 0 ? gh_wrap(o, what) : o;
	static char text[1 << 16];
	gh_buffer t = {text, 0, sizeof text, false};
	gh_add_int(&t, status);
	gh_add(&t, " ");
	gh_response_header("X-Test", header, sizeof header);
	gh_add(&t, header);
	gh_add(&t, " ");
	t.len += (size_t)gh_http_body_read(text + t.len, sizeof text - t.len, 0);
	return gh_result_bytes(text, t.len);
}

static const char *answer(int32_t n, const char *zero, const char *one) {
	return n < 0 ? gh_error_name(n) : n ? one : zero;
}

static void add_answer(gh_buffer *b, int32_t n, const char *zero, const char *one) {
	gh_add(b, answer(n, zero, one));
	gh_add(b, ",");
}

static void kv_get(gh_buffer *b) {
	char value[8];
	int32_t n = gh_kv_get("k", 1, value, sizeof value);
	if (n < 0) gh_add(b, gh_error_name(n));
	else gh_add_bytes(b, value, (size_t)n);
	gh_add(b, ",");
}

static gh_outcome kv(void) {
	const int64_t hour = 3600 * 1000;
	char text[256];
	gh_buffer b = {text, 0, sizeof text, false};
	kv_get(&b);
	add_answer(&b, gh_kv_create("k", 1, "1", 1, hour), "created", "exists");
	add_answer(&b, gh_kv_create("k", 1, "2", 1, hour), "created", "exists");
	kv_get(&b);
	add_answer(&b, gh_kv_put("k", 1, "3", 1, 0), "ok", "");
	kv_get(&b);
	add_answer(&b, gh_kv_delete("k", 1), "ok", "");
	gh_add(&b, answer(gh_kv_delete("k", 1), "ok", ""));
	return gh_result_bytes(text, b.len);
}

static gh_outcome send(const char *header) {
	gh_header test = {"X-Test", header};
	gh_message m = {"next", "conform", "hello", 5, "k1", 30000, &test, 1};
	return gh_result(answer(gh_send(&m), "ok", "ok"));
}

static gh_outcome crash(const char *op) {
	static volatile int array[1];
	size_t index = gh_len(op);
	if (is(op, "panic")) gh_panic("boom");
	if (is(op, "bounds")) { /* C does not look; an assertion does */
		GH_ASSERT(index < 1);
		return gh_ok() + array[index];
	}
	if (is(op, "trap")) __builtin_trap();
	if (is(op, "loop"))
		for (;;) __asm__ volatile("");
	if (is(op, "grow")) {
		while (__builtin_wasm_memory_grow(0, 16) != (size_t)-1) continue;
		__builtin_trap();
	}
	char text[64] = "";
	gh_buffer b = {text, 0, sizeof text - 1, false};
	gh_add(&b, "unknown operation ");
	gh_add(&b, op);
	return gh_permanent(text);
}

static gh_outcome log_lines(void) {
	gh_log(GH_DEBUG, "debug");
	gh_log(GH_INFO, "info");
	gh_log(GH_WARN, "warn");
	gh_log(GH_ERROR, "error");
	return gh_ok();
}

static gh_outcome two_results(void) {
	gh_outcome o = gh_result("one");
	return gh_failed(o) ? o : gh_result("two");
}

static gh_outcome operate(const char *op, char *rest) {
	const char *first = line(&rest), *second = line(&rest), *third = line(&rest);
	if (is(op, "fail")) return fail(first, number(second), third);
	if (is(op, "wrap")) return gh_wrap(fail(first, number(second), third), "outer");
	if (is(op, "remark")) {
		gh_wrap(gh_permanent("inner"), "outer");
		return gh_retry_after(NULL, 5000);
	}
	if (is(op, "unmark")) {
		gh_wrap(gh_permanent("inner"), "outer");
		return gh_retry(NULL);
	}
	if (is(op, "attributes")) return attributes();
	if (is(op, "result")) return two_results();
	if (is(op, "big")) return big(number(first));
	if (is(op, "log")) return log_lines();
	if (is(op, "remaining")) return result_number(gh_remaining());
	if (is(op, "state")) return state();
	if (is(op, "state-big")) return gh_set_state(payload, 4097);
	if (is(op, "retry-after")) return result_number(gh_parse_retry_after(first, second));
	if (is(op, "http")) return fetch(first);
	if (is(op, "kv")) return kv();
	if (is(op, "send")) return send("yes");
	if (is(op, "send-broken")) return send("yes\nno");
	return crash(op);
}

static gh_outcome handle(void) {
	char decoding[8];
	if (gh_attribute("header.decode", decoding, sizeof decoding) > 0) return decode();
	size_t len = gh_payload(payload, sizeof payload - 1, 0);
	payload[len] = 0;
	if (!len) return gh_result("empty");

	char *rest = payload;
	const char *op = line(&rest);
	size_t rest_len = len - (size_t)(rest - payload);
	if (is(op, "echo")) return gh_result_bytes(rest, rest_len);
	if (is(op, "sum")) return sum(rest, rest_len);
	return operate(op, rest);
}

#ifdef COMMAND
GH_COMMAND(handle)
#else
GH_HANDLER(handle)
#endif
