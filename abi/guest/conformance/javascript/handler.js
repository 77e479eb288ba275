// The conformance handler in JavaScript: README.md one folder up says what it does.

export default function (message) {
  if (message.header("decode")) return message.json() + 1;
  if (message.bytes.length === 0) return "empty";
  const end = message.bytes.indexOf(10);
  const op = decode(end < 0 ? message.bytes : message.bytes.subarray(0, end));
  const rest = message.bytes.subarray(end < 0 ? message.bytes.length : end + 1);
  if (op === "echo") return rest;
  if (op === "sum") return String(rest.reduce((n, b) => (n + b) >>> 0, 0));
  const operation = operations[op];
  if (!operation) throw guesthand.permanent(`unknown operation ${op}`);
  return operation(message, ...decode(rest).split("\n"));
}

const decode = (bytes) => new TextDecoder().decode(bytes);

const operations = {
  fail(message, kind, ms, text) { throw failure(kind, ms, text); },
  wrap(message, kind, ms, text) { throw new Error("outer", { cause: failure(kind, ms, text) }); },
  remark() { throw guesthand.retryAfter(new Error("outer", { cause: guesthand.permanent("inner") }), 5000); },
  async unmark() { throw guesthand.retry(new Error("outer", { cause: guesthand.permanent("inner") })); },
  attributes,
  async result(message) {
    message.write("one");
    await null;
    return "two";
  },
  big(message, size) {
    const piece = "x".repeat(64 << 10);
    for (let n = Number(size); n > 0; n -= piece.length) message.write(piece.slice(0, n));
  },
  log() {
    console.debug("debug");
    console.log("info");
    guesthand.log.warn("warn");
    console.error("error");
  },
  remaining: () => String(guesthand.remaining()),
  state(message) {
    message.state += "x";
    return guesthand.delay(null, 1000);
  },
  "state-big"(message) { message.state = new Uint8Array(4097); },
  "retry-after": (message, value, date) => String(guesthand.parseRetryAfter(value, date)),
  http(message, url) {
    const r = guesthand.fetch(url).check();
    return `${r.status} ${r.header("X-Test")} ${r.text}`;
  },
  kv,
  send: () => answer(() => send("yes")),
  "send-broken": () => answer(() => send("yes\nno")),
  panic: crash,
  bounds: () => [0][6].length,
  loop() { for (;;); },
  grow() { for (const hold = []; ; ) hold.push(new Uint8Array(1 << 20)); },
};

function failure(kind, ms, text) {
  const reason = text || undefined;
  switch (kind) {
    case "retry": return guesthand.retry(reason);
    case "retry-after": return guesthand.retryAfter(reason, ms);
    case "delay": return guesthand.delay(reason, ms);
    case "permanent": return guesthand.permanent(reason);
    case "reject": return guesthand.reject(reason);
    case "pause": return guesthand.pause(reason, ms);
  }
  return new Error(reason);
}

function attributes(m) {
  return [
    `id=${m.id}`, `job=${m.job}`, `queue=${m.queue}`, `attempt=${m.attempt}`, `failures=${m.failures}`, `delays=${m.delays}`,
    `stalls=${m.stalls}`, `interruptions=${m.interruptions}`, `max_attempts=${m.maxAttempts}`,
    `enqueued_at=${m.enqueuedAt.getTime()}`, `deadline=${m.deadline > m.enqueuedAt ? "later" : "none"}`,
    `headers=${m.headers.join()}`, `header=${m.header("x-tag")}`, `config=${guesthand.config("color")}`,
    `secret=${guesthand.secret("key")}`, `section=${decode(guesthand.section("conformance"))}`,
    `traceparent=${m.traceparent}`, `none=${guesthand.config("none") === undefined ? "absent" : "present"}`, "",
  ].join("\n");
}

// What the host answered instead of doing it, else what was made of what it did.
function answer(call, made = () => "ok") {
  try {
    return made(call());
  } catch (e) {
    if (e instanceof guesthand.HostError) return e.answer;
    throw e;
  }
}

function kv() {
  const get = () => answer(() => guesthand.kv.getText("k"), (value) => value ?? "absent");
  const create = (value) => answer(() => guesthand.kv.create("k", value, { ttl: 3600_000 }), (created) => (created ? "created" : "exists"));
  const put = (value) => answer(() => guesthand.kv.put("k", value));
  const remove = () => answer(() => guesthand.kv.delete("k"), (there) => (there ? "ok" : "absent"));
  return [get(), create("1"), create("2"), get(), put("3"), get(), remove(), remove()].join();
}

function send(header) {
  guesthand.send({ queue: "next", job: "conform", payload: "hello", key: "k1", delay: 30_000, headers: { "X-Test": header } });
}

function crash() { throw new Error("boom"); }
