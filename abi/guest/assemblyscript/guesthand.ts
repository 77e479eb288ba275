/**
 * The guest SDK for AssemblyScript: what a handler uses of its host. It is one file without
 * dependencies; copy it into a project.
 *
 * A handler is a function that gets a message and returns null for success, or an Outcome:
 *
 *     import { Message, Outcome, run } from "./guesthand";
 *
 *     export function handle(): i64 { return run(onMessage); }
 *
 *     function onMessage(m: Message): Outcome | null {
 *       const order = m.decodeInt();
 *       if (order.error) return order.error;                  // no number: permanent
 *       const failed = charge(order.value);
 *       if (failed) return failed.wrap("charge");             // the mark stays
 *       return m.write("charged");
 *     }
 *
 *     function charge(order: i64): Outcome | null {
 *       return busy() ? Outcome.retryAfter("the bank is busy", 30000) : null;
 *     }
 *
 * That is the native form. A command has `export function _start(): void { runCommand(onMessage); }`
 * in place of handle. Both are built with
 *
 *     asc handler.ts -O3 --runtime incremental -o handler.wasm
 *
 * AssemblyScript has no exceptions, so failures are returned: Outcome.error() is one without a
 * mark, a retry with the policy's backoff. wrap() puts words before the text and keeps the mark;
 * the as...() methods keep the text and replace the mark, so the outermost wins. What throws
 * ends the run as a retry whose error text is the message with its place in the source.
 *
 * Times are milliseconds. What the host grants: fetch, send and the kv functions answer
 * Answer.NotGranted until the host's configuration grants them to this handler.
 */

/** Handles the message that the host is asking about and returns the outcome for `handle`. */
export function run(onMessage: (m: Message) => Outcome | null): i64 {
  const o = finish(onMessage);
  return o.delay << 8 | o.code;
}

/**
 * Handles the message and exits with its outcome, for `_start`. An exit code holds whole seconds:
 * a delay is rounded up, and one over 194 days is a retry that says so.
 */
export function runCommand(onMessage: (m: Message) => Outcome | null): void {
  let o = finish(onMessage);
  let seconds = (o.delay + 999) / 1000;
  if (seconds >= 1 << 24) {
    o = Outcome.retry("the delay does not fit a command's exit code");
    writeError(o.text);
    seconds = 0;
  }
  host.proc_exit(<u32>(seconds << 8 | o.code));
}

function finish(onMessage: (m: Message) => Outcome | null): Outcome {
  const o = onMessage(new Message());
  if (!o) return new Outcome(0, 0, "");
  if (o.text.length) writeError(o.text);
  return o;
}

function writeError(text: string): void {
  const b = String.UTF8.encode(text);
  host.error_write(changetype<usize>(b), b.byteLength);
}

/** What is to become of the message, other than success. */
export class Outcome {
  /** A text of "" says nothing. The delay is milliseconds. */
  constructor(readonly code: u8, readonly delay: i64, readonly text: string) {}

  /** A failure without a mark: retried after the policy's backoff. */
  static error(text: string): Outcome { return new Outcome(1, 0, text); }
  /** The same, said on purpose. */
  static retry(text: string = ""): Outcome { return new Outcome(1, 0, text); }
  /** A failure to be retried in ms instead of the policy's backoff; 0 or less: the backoff. */
  static retryAfter(text: string, ms: i64): Outcome { return new Outcome(10, max(0, ms), text); }
  /** Another run in ms, 1 s at the least. Nothing failed and no attempt is spent. */
  static delay(text: string, ms: i64): Outcome { return new Outcome(11, max(0, ms), text); }
  /** A failure that no retry can help: the message becomes a dead letter. */
  static permanent(text: string = ""): Outcome { return new Outcome(12, 0, text); }
  /** The message is left to the broker's own rejection. */
  static reject(text: string = ""): Outcome { return new Outcome(13, 0, text); }
  /** delay, and this job takes no new message on this host for ms either. */
  static pause(text: string, ms: i64): Outcome { return new Outcome(14, max(0, ms), text); }

  /** The same outcome with words before its text. Without a text it gets its word. */
  wrap(context: string): Outcome {
    return new Outcome(this.code, this.delay, context + ": " + (this.text.length ? this.text : this.word));
  }

  /** The same text with another mark. */
  asRetry(): Outcome { return Outcome.retry(this.text); }
  asRetryAfter(ms: i64): Outcome { return Outcome.retryAfter(this.text, ms); }
  asDelay(ms: i64): Outcome { return Outcome.delay(this.text, ms); }
  asPermanent(): Outcome { return Outcome.permanent(this.text); }
  asReject(): Outcome { return Outcome.reject(this.text); }
  asPause(ms: i64): Outcome { return Outcome.pause(this.text, ms); }

  /** The outcome's word. */
  get word(): string {
    switch (this.code) {
      case 10: return "retry-after";
      case 11: return "delay";
      case 12: return "permanent";
      case 13: return "reject";
      case 14: return "pause";
    }
    return "retry";
  }
}

/** A decoded value, or why there is none. */
export class Decoded<T> {
  constructor(readonly value: T, readonly error: Outcome | null) {}
}

/** What the host answers instead of doing what it was asked. */
export enum Answer {
  OK = 0,
  Absent = -1,
  NotGranted = -2,
  /** Or over a quota. */
  TooLarge = -3,
  /** An I/O error. */
  Unavailable = -4,
  Malformed = -5,
  TimedOut = -6,
}

/** The text of an answer below 0. */
export function answerName(answer: i32): string {
  switch (answer) {
    case Answer.Absent: return "absent";
    case Answer.NotGranted: return "not granted";
    case Answer.TooLarge: return "too large";
    case Answer.Unavailable: return "not available";
    case Answer.Malformed: return "malformed";
    case Answer.TimedOut: return "timed out";
  }
  return "host error " + answer.toString();
}

/** A failure without a mark where the host answered below 0, else null. */
export function check(doing: string, answer: i32): Outcome | null {
  return answer < 0 ? Outcome.error(doing + ": " + answerName(answer)) : null;
}

/** The message being handled. What it wraps is read from the host when it is asked for. */
export class Message {
  /** The producer's bytes. */
  get payload(): Uint8Array {
    const b = new Uint8Array(host.payload_size());
    host.payload_read(b.dataStart, b.length, 0);
    return b;
  }

  /** The payload as text. */
  get text(): string { return decodeUTF8(this.payload); }

  /** The whole payload as a decimal number. What is none is permanent. */
  decodeInt(): Decoded<i64> {
    const b = this.payload;
    const minus = b.length > 0 && b[0] == 45;
    const start = minus ? 1 : 0;
    let good = b.length > start;
    let n: u64 = 0;
    const most = <u64>i64.MAX_VALUE + (minus ? 1 : 0);
    for (let i = start; good && i < b.length; i++) {
      const digit = <u32>b[i] - 48;
      good = digit <= 9 && n <= (most - digit) / 10;
      n = n * 10 + digit;
    }
    if (!good) return new Decoded<i64>(0, Outcome.permanent("decode the payload: no decimal number"));
    return new Decoded<i64>(minus ? -(<i64>n) : <i64>n, null);
  }

  /** Appends text to the run's result, which the host uses when the run succeeds. */
  write(text: string): Outcome | null {
    return this.writeBytes(Uint8Array.wrap(String.UTF8.encode(text)));
  }
  /** Appends bytes to the run's result. */
  writeBytes(b: Uint8Array): Outcome | null {
    return check("write the result", host.result_write(b.dataStart, b.length));
  }

  /** The message's id, the same in every run of it. */
  get id(): string { return attributeOr("id"); }
  /** What was asked for. */
  get job(): string { return attributeOr("job"); }
  /** Where the message came from. */
  get queue(): string { return attributeOr("queue"); }
  /** The number of this run, from 1. It counts every run; the next four say how earlier ones ended. */
  get attempt(): i32 { return <i32>number("attempt"); }
  get failures(): i32 { return <i32>number("failures"); }
  get delays(): i32 { return <i32>number("delays"); }
  get stalls(): i32 { return <i32>number("stalls"); }
  get interruptions(): i32 { return <i32>number("interruptions"); }
  /** How many failures the message may have in all, 0 for no cap. */
  get maxAttempts(): i32 { return <i32>number("max_attempts"); }
  /** When the message was sent, Unix ms; 0 where that is not known. */
  get enqueuedAt(): i64 { return number("enqueued_at"); }
  /** When the host stops this run, Unix ms. See remaining(). */
  get deadline(): i64 { return number("deadline"); }
  /** The names of the message's headers. */
  get headers(): string[] {
    const names = attributeOr("headers");
    return names.length ? names.split("\n") : [];
  }
  /** A header's first value, its name without regard to case. */
  header(name: string): string | null { return attribute("header." + name); }
  /** The W3C trace context that the message came with. */
  get traceparent(): string | null { return attribute("traceparent"); }

  /** What an earlier run of this message, or this one, left with setState. */
  get state(): Uint8Array {
    const b = new Uint8Array(4096);
    return b.slice(0, host.state_read(b.dataStart, b.length));
  }

  /**
   * Keeps up to 4 KiB for the next run of this message, on whatever worker. It is kept when the
   * handler returns a retry, retryAfter, delay or pause.
   */
  setState(b: Uint8Array): Outcome | null {
    return check("write the state", host.state_write(b.dataStart, b.length));
  }
}

/** A value from the handler's configuration. */
export function config(name: string): string | null { return attribute("config." + name); }

/** A secret that the configuration gives this handler. */
export function secret(name: string): string | null { return attribute("secret." + name); }

/** A custom section of this module. */
export function section(name: string): Uint8Array | null { return attributeBytes("section." + name); }

/** Any attribute by its name in the ABI. */
export function attribute(name: string): string | null {
  const b = attributeBytes(name);
  return b ? decodeUTF8(b) : null;
}

function attributeBytes(name: string): Uint8Array | null {
  const key = String.UTF8.encode(name);
  let b = new Uint8Array(256);
  while (true) {
    const n = host.attribute_read(changetype<usize>(key), key.byteLength, b.dataStart, b.length);
    if (n < 0) return null;
    if (n <= b.length) return b.subarray(0, n);
    b = new Uint8Array(n);
  }
}

function attributeOr(name: string): string {
  const value = attribute(name);
  return value ? value : "";
}

function number(name: string): i64 {
  const digits = attributeOr(name);
  return digits.length ? I64.parseInt(digits) : 0;
}

function decodeUTF8(b: Uint8Array): string { return String.UTF8.decodeUnsafe(b.dataStart, b.length); }

/**
 * The time until the run's deadline or, once the host is stopping, until the end of its drain.
 * At 0 or less it is time to return.
 */
export function remaining(): i64 { return host.remaining(); }

/** A log line's severity, with the numbers of Go's log/slog. */
export enum Level { Debug = -4, Info = 0, Warn = 4, Error = 8 }

/** Writes a line to the host's log. */
export function log(level: Level, text: string): void {
  const b = String.UTF8.encode(text);
  host.log_write(level, changetype<usize>(b), b.byteLength);
}

/** The lines after the first of a request's or message's head. */
export class Headers {
  private lines: string = "";
  private broken: bool = false;

  /** Adds a header. A line break within makes what is sent malformed. */
  set(name: string, value: string): Headers {
    this.broken = this.broken || !oneLine(name) || !oneLine(value);
    this.lines += "\n" + name + ": " + value;
    return this;
  }

  /** The head as bytes, null where it is malformed. */
  head(first: string): ArrayBuffer | null {
    return this.broken || !oneLine(first) ? null : String.UTF8.encode(first + this.lines);
  }
}

function oneLine(s: string): bool { return !s.includes("\n") && !s.includes("\r"); }

/**
 * What a server answered. The host keeps the latest response only: read what you need of one
 * before you fetch the next.
 */
export class Response {
  /** The status, or an Answer below 0 where there was no response. */
  constructor(private what: string, readonly status: i32) {}

  /** A header's value. */
  header(name: string): string | null {
    const key = String.UTF8.encode(name);
    let b = new Uint8Array(256);
    while (true) {
      const n = host.http_header_read(changetype<usize>(key), key.byteLength, b.dataStart, b.length);
      if (n < 0) return null;
      if (n <= b.length) return decodeUTF8(b.subarray(0, n));
      b = new Uint8Array(n);
    }
  }

  /** The whole body. */
  get body(): Uint8Array {
    const b = new Uint8Array(max(0, host.http_body_size()));
    host.http_body_read(b.dataStart, b.length, 0);
    return b;
  }

  /** The body as text. */
  get text(): string { return decodeUTF8(this.body); }

  /**
   * null for a status below 400. Of 429 and 503 with Retry-After it makes a retryAfter, and a
   * failure without a mark of everything else, no response included, so that a client's whole
   * care is
   *
   *     const failed = response.check();
   *     if (failed) return failed;
   */
  check(): Outcome | null {
    if (this.status < 0) return check(this.what, this.status);
    if (this.status < 400) return null;
    const text = "the server answered " + this.status.toString();
    if (this.status == 429 || this.status == 503) {
      const wait = this.header("Retry-After");
      const date = this.header("Date");
      if (wait) return Outcome.retryAfter(text, parseRetryAfter(wait, date ? date : ""));
    }
    return Outcome.error(text);
  }
}

/** Makes an HTTP request. See Response.check(). */
export function fetch(url: string, method: string = "GET", headers: Headers = new Headers(), body: Uint8Array = new Uint8Array(0)): Response {
  const what = method + " " + url;
  const head = headers.head(what);
  if (!head) return new Response(what, Answer.Malformed);
  return new Response(what, host.http_send(changetype<usize>(head), head.byteLength, body.dataStart, body.length));
}

/**
 * What a Retry-After header means, in ms: seconds, or a date, which counts from the response's
 * own Date, since clocks differ. 0, the policy's backoff, for anything else.
 */
export function parseRetryAfter(value: string, date: string): i64 {
  const year: i64 = 365 * 24 * 3600;
  let seconds: i64 = value.length ? 0 : -1;
  for (let i = 0; i < value.length && seconds >= 0; i++) {
    const digit = value.charCodeAt(i) - 48;
    seconds = digit < 0 || digit > 9 ? -1 : min(year, seconds * 10 + digit);
  }
  if (seconds < 0) {
    const until = httpDate(value), now = httpDate(date);
    seconds = until < 0 || now < 0 ? 0 : max(0, until - now);
  }
  return min(year, seconds) * 1000;
}

/** Unix seconds of "Sun, 06 Nov 1994 08:49:37 GMT", or -1. */
function httpDate(s: string): i64 {
  if (s.length != 29 || s.charAt(16) != " " || s.charAt(19) != ":" || s.charAt(22) != ":") return -1;
  const at = "JanFebMarAprMayJunJulAugSepOctNovDec".indexOf(s.substr(8, 3));
  const day = digits(s, 5), century = digits(s, 12), rest = digits(s, 14);
  const hour = digits(s, 17), minute = digits(s, 20), second = digits(s, 23);
  if (at < 0 || at % 3 || (day | century | rest | hour | minute | second) < 0) return -1;
  // Days since 1970 with years that begin in March, so that the leap day is the last.
  const month = at / 3;
  const year: i64 = century * 100 + rest - (month < 2 ? 1 : 0);
  const days: i64 = 365 * year + year / 4 - year / 100 + year / 400 + (153 * ((month + 10) % 12) + 2) / 5 + day - 719469;
  return ((days * 24 + hour) * 60 + minute) * 60 + second;
}

function digits(s: string, i: i32): i64 {
  const a = s.charCodeAt(i) - 48, b = s.charCodeAt(i + 1) - 48;
  return a < 0 || a > 9 || b < 0 || b > 9 ? -1 : a * 10 + b;
}

/** What kvGet found. */
export class Value {
  /** The answer is OK, or below 0, and the bytes then empty. */
  constructor(readonly answer: i32, readonly bytes: Uint8Array) {}
  get text(): string { return decodeUTF8(this.bytes); }
}

/**
 * A key's value. Keys are up to 256 bytes; the host gives each handler keys of its own, shared by
 * all hosts.
 */
export function kvGet(key: string): Value {
  const k = String.UTF8.encode(key);
  let b = new Uint8Array(256);
  while (true) {
    const n = host.kv_get(changetype<usize>(k), k.byteLength, b.dataStart, b.length);
    if (n < 0) return new Value(n, new Uint8Array(0));
    if (n <= b.length) return new Value(Answer.OK, b.subarray(0, n));
    b = new Uint8Array(n);
  }
}

/** Stores a value for ttl ms, 0 for good. The answer is OK or below 0. */
export function kvPut(key: string, value: Uint8Array, ttl: i64 = 0): i32 {
  const k = String.UTF8.encode(key);
  return host.kv_put(changetype<usize>(k), k.byteLength, value.dataStart, value.length, ttl);
}

/**
 * Stores a value only where there is none: 0 stored, 1 there already, or an answer below 0. Of all
 * that try at once, on any host, one gets 0.
 */
export function kvCreate(key: string, value: Uint8Array, ttl: i64 = 0): i32 {
  const k = String.UTF8.encode(key);
  return host.kv_create(changetype<usize>(k), k.byteLength, value.dataStart, value.length, ttl);
}

/** Removes a key. The answer is OK, Absent or another below 0. */
export function kvDelete(key: string): i32 {
  const k = String.UTF8.encode(key);
  return host.kv_delete(changetype<usize>(k), k.byteLength);
}

/** A message to send when the run succeeds. */
export class Outgoing {
  /** Asks the broker to drop a second message with this key. */
  key: string = "";
  /** How long it waits before its first run, ms. */
  delay: i64 = 0;
  headers: Headers = new Headers();

  constructor(readonly queue: string, readonly job: string, readonly payload: Uint8Array) {}
}

/**
 * Hands a message to the host, which publishes it if this run succeeds, before the
 * acknowledgement, and drops it if not. The answer is OK or below 0.
 */
export function send(o: Outgoing): i32 {
  if (o.key.length) o.headers.set("Key", o.key);
  if (o.delay > 0) o.headers.set("Delay", o.delay.toString() + "ms");
  const head = o.headers.head(o.queue + " " + o.job);
  if (!head) return Answer.Malformed;
  return host.message_send(changetype<usize>(head), head.byteLength, o.payload.dataStart, o.payload.length);
}

namespace host {
  @external("guesthand_v1", "payload_size") export declare function payload_size(): i32;
  @external("guesthand_v1", "payload_read") export declare function payload_read(dst: usize, len: i32, offset: i32): i32;
  @external("guesthand_v1", "attribute_read") export declare function attribute_read(name: usize, nameLen: i32, dst: usize, len: i32): i32;
  @external("guesthand_v1", "result_write") export declare function result_write(ptr: usize, len: i32): i32;
  @external("guesthand_v1", "error_write") export declare function error_write(ptr: usize, len: i32): i32;
  @external("guesthand_v1", "log_write") export declare function log_write(level: i32, ptr: usize, len: i32): void;
  @external("guesthand_v1", "remaining") export declare function remaining(): i64;
  @external("guesthand_v1", "state_read") export declare function state_read(dst: usize, len: i32): i32;
  @external("guesthand_v1", "state_write") export declare function state_write(ptr: usize, len: i32): i32;
  @external("guesthand_v1", "http_send") export declare function http_send(head: usize, headLen: i32, body: usize, bodyLen: i32): i32;
  @external("guesthand_v1", "http_header_read") export declare function http_header_read(name: usize, nameLen: i32, dst: usize, len: i32): i32;
  @external("guesthand_v1", "http_body_size") export declare function http_body_size(): i32;
  @external("guesthand_v1", "http_body_read") export declare function http_body_read(dst: usize, len: i32, offset: i32): i32;
  @external("guesthand_v1", "kv_get") export declare function kv_get(key: usize, keyLen: i32, dst: usize, len: i32): i32;
  @external("guesthand_v1", "kv_put") export declare function kv_put(key: usize, keyLen: i32, val: usize, valLen: i32, ttl: i64): i32;
  @external("guesthand_v1", "kv_create") export declare function kv_create(key: usize, keyLen: i32, val: usize, valLen: i32, ttl: i64): i32;
  @external("guesthand_v1", "kv_delete") export declare function kv_delete(key: usize, keyLen: i32): i32;
  @external("guesthand_v1", "message_send") export declare function message_send(head: usize, headLen: i32, body: usize, bodyLen: i32): i32;
  @external("wasi_snapshot_preview1", "proc_exit") export declare function proc_exit(code: u32): void;
}
