/** The conformance handler in AssemblyScript: README.md one folder up says what it does. */
import {
  Level, Message, Outcome, Outgoing, answerName, attribute, config, fetch, kvCreate, kvDelete, kvGet, kvPut, log,
  parseRetryAfter, remaining, secret, section, send,
} from "../../assemblyscript/guesthand";

/** Does what the payload says. */
export function onMessage(m: Message): Outcome | null {
  if (m.header("decode")) {
    const n = m.decodeInt();
    return n.error ? n.error : m.write((n.value + 1).toString());
  }
  const payload = m.payload;
  if (!payload.length) return m.write("empty");
  let end = payload.indexOf(10);
  if (end < 0) end = payload.length;
  const op = utf8(payload.subarray(0, end)), rest = payload.subarray(min(end + 1, payload.length));
  if (op == "echo") return m.writeBytes(rest);
  if (op == "sum") {
    let n: u32 = 0;
    for (let i = 0; i < rest.length; i++) n += rest[i];
    return m.write(n.toString());
  }
  const lines = utf8(rest).split("\n");
  while (lines.length < 3) lines.push("");
  return operate(m, op, lines);
}

function operate(m: Message, op: string, arg: string[]): Outcome | null {
  if (op == "fail") return fail(arg);
  if (op == "wrap") return fail(arg).wrap("outer");
  if (op == "remark") return Outcome.permanent("inner").wrap("outer").asRetryAfter(5000);
  if (op == "unmark") return Outcome.permanent("inner").wrap("outer").asRetry();
  if (op == "attributes") return m.write(attributes(m));
  if (op == "result") {
    const failed = m.write("one");
    return failed ? failed : m.write("two");
  }
  if (op == "big") return big(m, I32.parseInt(arg[0]));
  if (op == "log") {
    log(Level.Debug, "debug");
    log(Level.Info, "info");
    log(Level.Warn, "warn");
    log(Level.Error, "error");
    return null;
  }
  if (op == "remaining") return m.write(remaining().toString());
  if (op == "state") {
    const failed = m.setState(bytes(utf8(m.state) + "x"));
    return failed ? failed : Outcome.delay("", 1000);
  }
  if (op == "state-big") return m.setState(new Uint8Array(4097));
  if (op == "retry-after") return m.write(parseRetryAfter(arg[0], arg[1]).toString());
  if (op == "http") {
    const response = fetch(arg[0]);
    const failed = response.check();
    if (failed) return failed;
    return m.write(response.status.toString() + " " + or(response.header("X-Test")) + " " + response.text);
  }
  if (op == "kv") return m.write(kv());
  if (op == "send") return m.write(answer(sendOne("yes"), "ok", "ok"));
  if (op == "send-broken") return m.write(answer(sendOne("yes\nno"), "ok", "ok"));
  return crash(op);
}

function bytes(s: string): Uint8Array { return Uint8Array.wrap(String.UTF8.encode(s)); }
function utf8(b: Uint8Array): string { return String.UTF8.decodeUnsafe(b.dataStart, b.length); }
function or(s: string | null): string { return s ? s : ""; }

function fail(arg: string[]): Outcome {
  const kind = arg[0], ms = I64.parseInt(arg[1]), text = arg[2];
  if (kind == "retry") return Outcome.retry(text);
  if (kind == "retry-after") return Outcome.retryAfter(text, ms);
  if (kind == "delay") return Outcome.delay(text, ms);
  if (kind == "permanent") return Outcome.permanent(text);
  if (kind == "reject") return Outcome.reject(text);
  if (kind == "pause") return Outcome.pause(text, ms);
  return Outcome.error(text);
}

function attributes(m: Message): string {
  const custom = section("conformance");
  return "id=" + m.id + "\njob=" + m.job + "\nqueue=" + m.queue + "\nattempt=" + m.attempt.toString() +
    "\nfailures=" + m.failures.toString() + "\ndelays=" + m.delays.toString() + "\nstalls=" + m.stalls.toString() +
    "\ninterruptions=" + m.interruptions.toString() + "\nmax_attempts=" + m.maxAttempts.toString() +
    "\nenqueued_at=" + m.enqueuedAt.toString() + "\ndeadline=" + (m.deadline > m.enqueuedAt ? "later" : "none") +
    "\nheaders=" + m.headers.join(",") + "\nheader=" + or(m.header("x-tag")) + "\nconfig=" + or(config("color")) +
    "\nsecret=" + or(secret("key")) + "\nsection=" + (custom ? utf8(custom) : "") +
    "\ntraceparent=" + or(m.traceparent) + "\nnone=" + (attribute("config.none") == null ? "absent" : "present") + "\n";
}

function big(m: Message, n: i32): Outcome | null {
  const piece = new Uint8Array(64 << 10).fill(120);
  for (; n > 0; n -= piece.length) {
    const failed = m.writeBytes(piece.subarray(0, min(n, piece.length)));
    if (failed) return failed;
  }
  return null;
}

function answer(n: i32, zero: string, one: string): string { return n < 0 ? answerName(n) : n ? one : zero; }

function get(): string {
  const value = kvGet("k");
  return answer(value.answer, value.text, "");
}

function kv(): string {
  const hour = 3600 * 1000;
  const answers = new Array<string>();
  answers.push(get());
  answers.push(answer(kvCreate("k", bytes("1"), hour), "created", "exists"));
  answers.push(answer(kvCreate("k", bytes("2"), hour), "created", "exists"));
  answers.push(get());
  answers.push(answer(kvPut("k", bytes("3")), "ok", ""));
  answers.push(get());
  answers.push(answer(kvDelete("k"), "ok", ""));
  answers.push(answer(kvDelete("k"), "ok", ""));
  return answers.join(",");
}

function sendOne(header: string): i32 {
  const o = new Outgoing("next", "conform", bytes("hello"));
  o.key = "k1";
  o.delay = 30000;
  o.headers.set("X-Test", header);
  return send(o);
}

function crash(op: string): Outcome | null {
  if (op == "panic") throw new Error("boom");
  if (op == "bounds") {
    const one = new Array<i32>(op.length - 5);
    return Outcome.error("read " + one[op.length].toString());
  }
  if (op == "trap") unreachable();
  if (op == "loop") {
    while (true) {}
  }
  if (op == "grow") {
    const hold = new Array<Uint8Array>();
    while (true) hold.push(new Uint8Array(1 << 20));
  }
  return Outcome.permanent("unknown operation " + op);
}
