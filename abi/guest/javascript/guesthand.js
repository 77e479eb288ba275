// The guest SDK for JavaScript: the global object `guesthand`, what a handler uses of its host. It
// is part of the runtime that `guesthand build handler.js` attaches a script to; guesthand.d.ts
// describes it to editors.
//
// A handler is the default export of a module. What it returns is the run's result: text or bytes
// as they are, anything else as JSON. What it throws says what becomes of the message:
//
//     export default async function (message) {
//       const order = message.json();                       // no JSON: permanent
//       if (!order.items) throw guesthand.permanent("no items");
//       try {
//         return await charge(order);
//       } catch (e) {
//         throw new Error("charge", { cause: e });          // a mark stays through cause
//       }
//     }
//
// An error is a retry with the policy's backoff unless it was marked by permanent, reject,
// retryAfter, delay, pause or retry; of several marks the outermost wins. The error text is the
// messages along the causes; that of an error without a mark names the place in the script too.
//
// What the host grants: fetch, send and kv throw a HostError "not granted" until the host's
// configuration grants them to this handler. Times are milliseconds.
//
// This file is evaluated to a function of the runtime's host calls, which returns the entry that
// runtime.c calls.
(function (host) {
  "use strict";

  const words = { 1: "retry", 10: "retry-after", 11: "delay", 12: "permanent", 13: "reject", 14: "pause" };
  const answers = { "-1": "absent", "-2": "not granted", "-3": "too large", "-4": "not available", "-5": "malformed", "-6": "timed out" };
  const longest = 2 ** 44; // of a delay, so that it stays a whole number beside its code

  // A marked error: it says what is to become of the message.
  class Outcome extends Error {
    constructor(code, reason, ms, options) {
      const wrapped = reason instanceof Error;
      super(wrapped || reason == null ? "" : String(reason), wrapped ? { cause: reason } : options);
      this.code = code;
      this.delay = Math.min(longest, Math.ceil(Math.max(0, Number(ms) || 0)));
    }
  }

  // What a host call answered instead of doing what it was asked.
  class HostError extends Error {
    constructor(doing, code) {
      const answer = answers[code] || `host error ${code}`;
      super(`${doing}: ${answer}`);
      this.code = code;
      this.answer = answer;
    }
  }

  // A status that is no success. The server said it, so the script's line says nothing.
  class ResponseError extends Error {
    constructor(status) {
      super(`the server answered ${status}`);
      this.status = status;
    }
  }

  for (const c of [Outcome, HostError, ResponseError]) {
    Object.defineProperty(c.prototype, "name", { value: c.name, configurable: true, writable: true });
  }

  const check = (doing, code) => {
    if (code < 0) throw new HostError(doing, code);
    return code;
  };

  // The errors from the outermost to its first cause. A circle ends.
  function chain(e) {
    const all = [];
    for (; e != null && all.length < 32; e = e instanceof Error ? e.cause : undefined) all.push(e);
    return all;
  }

  const plain = [Outcome, HostError, ResponseError]; // whose message says it all

  // The text of an error: the messages along its causes.
  function said(e) {
    const all = chain(e);
    const texts = all.map((e) => {
      if (!(e instanceof Error)) return String(e);
      if (plain.some((c) => e instanceof c) || e.name === "Error") return e.message;
      return e.message ? `${e.name}: ${e.message}` : e.name;
    });
    const last = all[all.length - 1];
    if (last instanceof Outcome && !last.message) texts[texts.length - 1] = words[last.code];
    return texts.filter((t) => t !== "").join(": ") || "Error";
  }

  // Where in the script an error comes from: "fail (handler.js:12)", or "".
  function place(e) {
    const first = chain(e).pop();
    if (!(first instanceof Error) || plain.some((c) => first instanceof c)) return "";
    for (const line of String(first.stack).split("\n")) {
      const at = line.match(/^ *at (.*:\d+\)?)$/);
      if (at && !at[1].includes("(guesthand.js:")) return at[1];
    }
    return "";
  }

  function describe(e) {
    const at = place(e);
    return at ? `${said(e)} at ${at}` : said(e);
  }

  // Bytes or text as the host's calls take them; anything else becomes JSON.
  function data(value) {
    if (typeof value === "string" || value instanceof ArrayBuffer || ArrayBuffer.isView(value)) return value;
    return value === undefined ? "" : JSON.stringify(value);
  }

  const text = (buffer) => (buffer === undefined ? undefined : host.text(buffer));
  const attribute = (name) => text(host.attribute(String(name)));
  const number = (name) => Number(attribute(name) || 0);
  const date = (name) => (number(name) ? new Date(number(name)) : null);

  // The message being handled. What it has is read from the host when it is asked for.
  class Message {
    get bytes() {
      const b = new Uint8Array(host.payload());
      Object.defineProperty(this, "bytes", { value: b });
      return b;
    }
    get text() { return host.text(this.bytes); }
    json() {
      try {
        return JSON.parse(this.text);
      } catch (e) {
        throw new Outcome(12, `decode the payload: ${e.message}`);
      }
    }
    write(value) { check("write the result", host.resultWrite(data(value))); }

    get id() { return attribute("id"); }
    get job() { return attribute("job"); }
    get queue() { return attribute("queue"); }
    get attempt() { return number("attempt"); }
    get failures() { return number("failures"); }
    get delays() { return number("delays"); }
    get stalls() { return number("stalls"); }
    get interruptions() { return number("interruptions"); }
    get maxAttempts() { return number("max_attempts"); }
    get enqueuedAt() { return date("enqueued_at"); }
    get deadline() { return date("deadline"); }
    get traceparent() { return attribute("traceparent"); }
    get headers() { return (attribute("headers") || "").split("\n").filter((name) => name !== ""); }
    header(name) { return attribute(`header.${name}`); }

    get state() { return host.text(host.stateRead()); }
    set state(value) { check("write the state", host.stateWrite(data(value))); }
    get stateBytes() { return new Uint8Array(host.stateRead()); }
  }

  // A first line and `Name: value` lines. A line break within would make a line of the caller's input.
  function head(doing, first, lines) {
    for (const [name, value] of [[first, ""], ...lines]) {
      if (/[\r\n]/.test(name + value) || (name !== first && name.includes(":"))) throw new HostError(doing, -5);
    }
    return [first, ...lines.map(([name, value]) => `${name}: ${value}`)].join("\n");
  }

  let latest; // the response whose headers the host still has

  class Response {
    constructor(status, bytes) {
      this.status = status;
      this.bytes = bytes;
      latest = this;
    }
    get ok() { return this.status < 400; }
    get text() { return host.text(this.bytes); }
    json() { return JSON.parse(this.text); }
    header(name) { return latest === this ? text(host.httpHeader(String(name))) : undefined; }
    // Throws unless the status is below 400: retryAfter for 429 and 503 with Retry-After, else an
    // error without a mark.
    check() {
      if (this.ok) return this;
      const failure = new ResponseError(this.status);
      const wait = this.header("Retry-After");
      if (wait && (this.status === 429 || this.status === 503)) {
        throw new Outcome(10, failure, parseRetryAfter(wait, this.header("Date")));
      }
      throw failure;
    }
  }

  function fetch(url, options = {}) {
    const doing = `${options.method || "GET"} ${url}`;
    const lines = head(doing, doing, Object.entries(options.headers || {}));
    const status = check(doing, host.httpSend(lines, data(options.body)));
    return new Response(status, new Uint8Array(host.httpBody()));
  }

  function send(message) {
    const doing = `send to ${message.queue}`;
    const lines = Object.entries(message.headers || {});
    if (message.key) lines.push(["Key", message.key]);
    if (message.delay > 0) lines.push(["Delay", `${Math.ceil(message.delay)}ms`]);
    check(doing, host.messageSend(head(doing, `${message.queue} ${message.job}`, lines), data(message.payload)));
  }

  const ttl = (options) => Math.ceil((options && options.ttl) || 0);
  const kv = {
    get(key) {
      const value = host.kvGet(key);
      if (value === -1) return undefined;
      return typeof value === "number" ? check("kv get", value) : new Uint8Array(value);
    },
    getText(key) { return text(kv.get(key)); },
    put(key, value, options) { check("kv put", host.kvPut(key, data(value), ttl(options))); },
    // true where it was stored. Of all that try at once, on any host, one is told so.
    create(key, value, options) { return check("kv create", host.kvCreate(key, data(value), ttl(options))) === 0; },
    delete(key) {
      const answer = host.kvDelete(key);
      return answer !== -1 && check("kv delete", answer) === 0;
    },
  };

  // What a Retry-After header means, in ms: seconds, or a date, which counts from the response's own
  // Date, since clocks differ. 0, the policy's backoff, for anything else.
  function parseRetryAfter(value, now) {
    const year = 365 * 24 * 3600;
    if (/^\d+$/.test(value)) return Math.min(Number(value), year) * 1000;
    const seconds = (httpDate(value) - httpDate(now)) / 1000;
    return seconds > 0 ? Math.min(seconds, year) * 1000 : 0;
  }

  // Unix ms of "Sun, 06 Nov 1994 08:49:37 GMT", or NaN.
  function httpDate(s) {
    const m = /^\w{3}, (\d\d) (\w{3}) (\d{4}) (\d\d):(\d\d):(\d\d) GMT$/.exec(s || "");
    const month = m ? "JanFebMarAprMayJunJulAugSepOctNovDec".indexOf(m[2]) / 3 : -1;
    return Number.isInteger(month) && month >= 0 ? Date.UTC(m[3], month, m[1], m[4], m[5], m[6]) : NaN;
  }

  function shown(value) {
    if (typeof value === "string") return value;
    if (value instanceof Error) return `${said(value)}\n${value.stack}`.trimEnd();
    if (typeof value === "object" && value !== null) {
      try {
        return JSON.stringify(value);
      } catch (e) { // a circle
      }
    }
    return String(value);
  }
  const logger = (level) => (...values) => host.log(level, values.map(shown).join(" "));
  const log = { debug: logger(-4), info: logger(0), warn: logger(4), error: logger(8) };

  let timers = []; // {id, at, call}
  let timerId = 0;

  const globals = {
    guesthand: Object.freeze({
      retry: (reason, options) => new Outcome(1, reason, 0, options),
      retryAfter: (reason, ms, options) => new Outcome(10, reason, ms, options),
      delay: (reason, ms, options) => new Outcome(11, reason, ms, options),
      permanent: (reason, options) => new Outcome(12, reason, 0, options),
      reject: (reason, options) => new Outcome(13, reason, 0, options),
      pause: (reason, ms, options) => new Outcome(14, reason, ms, options),
      Outcome, HostError, ResponseError, attribute, fetch, send, parseRetryAfter,
      config: (name) => attribute(`config.${name}`),
      secret: (name) => attribute(`secret.${name}`),
      section(name) {
        const b = host.attribute(`section.${name}`);
        return b === undefined ? undefined : new Uint8Array(b);
      },
      remaining: () => host.remaining(),
      kv: Object.freeze(kv),
      log: Object.freeze(log),
    }),
    console: { ...log, log: log.info },
    setTimeout(call, ms, ...args) {
      timers.push({ id: ++timerId, at: Date.now() + Math.max(0, Number(ms) || 0), call: () => call(...args) });
      return timerId;
    },
    clearTimeout(id) { timers = timers.filter((t) => t.id !== id); },
    TextEncoder: class TextEncoder {
      encode(s = "") { return new Uint8Array(host.bytes(String(s))); }
    },
    TextDecoder: class TextDecoder {
      decode(b = new Uint8Array(0)) { return host.text(b); }
    },
  };
  for (const [name, value] of Object.entries(globals)) {
    Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
  }

  // The C library rounds a tie to even, JavaScript away from zero: 2.5 is 3.
  const { toFixed } = Number.prototype;
  Object.defineProperty(Number.prototype, "toFixed", {
    configurable: true, writable: true,
    value: { toFixed(digits = 0) {
      const tie = Math.abs(this) < 2 ** 53 && digits < 50 && /50*$/.exec(toFixed.call(this, 100).split(".")[1].slice(digits));
      return toFixed.call(tie && tie.index === 0 ? this * (1 + 2 ** -52) : this, digits);
    } }.toFixed,
  });

  let outcome; // of the run, undefined while it goes on

  function failed(e) {
    const mark = chain(e).find((e) => e instanceof Outcome);
    if (!(e instanceof Outcome) || e.message || e.cause != null) host.errorWrite(mark ? said(e) : describe(e));
    if (!mark && e instanceof Error) log.debug(e);
    outcome = mark ? mark.code + 256 * mark.delay : 1;
  }

  function succeeded(value) {
    if (value instanceof Outcome) return failed(value);
    if (value != null) check("write the result", host.resultWrite(data(value)));
    outcome = 0;
  }

  return {
    describe,
    begin(handler) {
      outcome = undefined;
      timers = [];
      try {
        const value = handler(new Message());
        if (value instanceof Promise) value.then(succeeded).catch(failed);
        else succeeded(value);
      } catch (e) {
        failed(e);
      }
    },
    outcome: () => outcome,
    // Waits for the earliest timer and calls it; false where there is none.
    tick() {
      if (!timers.length) {
        failed(new Error("the handler's promise is never settled"));
        return;
      }
      const next = timers.reduce((a, b) => (b.at < a.at ? b : a));
      timers = timers.filter((t) => t !== next);
      host.sleep(Math.max(0, next.at - Date.now()));
      try {
        next.call();
      } catch (e) {
        failed(e);
      }
    },
  };
})
