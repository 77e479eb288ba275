//! The conformance handler in Zig: README.md one folder up says what it does.

const std = @import("std");
const guesthand = @import("guesthand");
const Message = guesthand.Message;

var payload: [2 << 20]u8 = undefined;

/// Does what the payload says.
pub fn onMessage(m: *Message) !void {
    var decoding: [8]u8 = undefined;
    if (m.header("decode", &decoding) != null) return print(m, "{d}", .{try m.decodeInt(i64) + 1});

    var parts = std.mem.splitScalar(u8, m.payload(&payload), '\n');
    const op = parts.first();
    const rest = parts.rest();
    if (is(op, "")) return m.write("empty");
    if (is(op, "echo")) return m.write(rest);
    if (is(op, "sum")) return print(m, "{d}", .{sum(rest)});
    var lines = std.mem.splitScalar(u8, rest, '\n');
    return operate(m, op, .{ lines.first(), lines.next() orelse "", lines.next() orelse "" });
}

fn operate(m: *Message, op: []const u8, arg: [3][]const u8) !void {
    if (is(op, "fail")) return fail(m, arg);
    if (is(op, "wrap")) return fail(m, arg) catch |e| m.wrap(e, "outer");
    if (is(op, "remark")) return outer(m) catch m.retryAfter("", 5000);
    if (is(op, "unmark")) return outer(m) catch m.retry("");
    if (is(op, "attributes")) return attributes(m);
    if (is(op, "result")) {
        try m.write("one");
        return m.write("two");
    }
    if (is(op, "big")) return big(m, try std.fmt.parseInt(usize, arg[0], 10));
    if (is(op, "log")) {
        guesthand.log(.debug, "debug");
        guesthand.log(.info, "info");
        guesthand.log(.warn, "warn");
        return guesthand.log(.err, "error");
    }
    if (is(op, "remaining")) return print(m, "{d}", .{guesthand.remaining()});
    if (is(op, "state")) {
        var buf: [4097]u8 = undefined;
        const state = m.state(buf[0..4096]);
        buf[state.len] = 'x';
        try m.setState(buf[0 .. state.len + 1]);
        return m.delay("", 1000);
    }
    if (is(op, "state-big")) return m.setState(payload[0..4097]);
    if (is(op, "retry-after")) return print(m, "{d}", .{guesthand.parseRetryAfter(arg[0], arg[1])});
    if (is(op, "http")) return fetch(m, arg[0]);
    if (is(op, "kv")) return kv(m);
    if (is(op, "send")) return m.write(answer(send("yes"), "ok"));
    if (is(op, "send-broken")) return m.write(answer(send("yes\nno"), "ok"));
    return crash(m, op);
}

fn is(a: []const u8, b: []const u8) bool {
    return std.mem.eql(u8, a, b);
}

fn print(m: *Message, comptime format: []const u8, args: anytype) !void {
    var buf: [4096]u8 = undefined;
    return m.write(try std.fmt.bufPrint(&buf, format, args));
}

fn sum(bytes: []const u8) u32 {
    var n: u32 = 0;
    for (bytes) |b| n +%= b;
    return n;
}

fn outer(m: *Message) !void {
    return inner(m) catch |e| m.wrap(e, "outer");
}

fn inner(m: *Message) !void {
    return m.permanent("inner");
}

fn fail(m: *Message, arg: [3][]const u8) !void {
    const kind = arg[0];
    const ms = try std.fmt.parseInt(u64, arg[1], 10);
    const text = arg[2];
    if (is(kind, "retry")) return m.retry(text);
    if (is(kind, "retry-after")) return m.retryAfter(text, ms);
    if (is(kind, "delay")) return m.delay(text, ms);
    if (is(kind, "permanent")) return m.permanent(text);
    if (is(kind, "reject")) return m.reject(text);
    if (is(kind, "pause")) return m.pause(text, ms);
    m.fail(text);
    return error.Plain;
}

fn attributes(m: *Message) !void {
    var buf: [4096]u8 = undefined;
    try line(m, "id", m.id(&buf));
    try line(m, "job", m.job(&buf));
    try line(m, "queue", m.queue(&buf));
    try print(m, "attempt={d}\nfailures={d}\ndelays={d}\nstalls={d}\ninterruptions={d}\nmax_attempts={d}\nenqueued_at={d}\n", .{
        m.attempt(), m.failures(), m.delays(), m.stalls(), m.interruptions(), m.maxAttempts(), m.enqueuedAt(),
    });
    try line(m, "deadline", if (m.deadline() > m.enqueuedAt()) "later" else "none");
    const headers = m.headers(&buf);
    std.mem.replaceScalar(u8, headers, '\n', ',');
    try line(m, "headers", headers);
    try line(m, "header", m.header("x-tag", &buf) orelse "");
    try line(m, "config", guesthand.config("color", &buf) orelse "");
    try line(m, "secret", guesthand.secret("key", &buf) orelse "");
    try line(m, "section", guesthand.section("conformance", &buf) orelse "");
    try line(m, "traceparent", m.traceparent(&buf) orelse "");
    try line(m, "none", guesthand.config("none", &buf) orelse "absent");
}

fn line(m: *Message, name: []const u8, value: []const u8) !void {
    try m.write(name);
    try m.write("=");
    try m.write(value);
    try m.write("\n");
}

fn big(m: *Message, size: usize) !void {
    const piece = [_]u8{'x'} ** (64 << 10);
    var n = size;
    while (n > 0) {
        const some = @min(n, piece.len);
        try m.write(piece[0..some]);
        n -= some;
    }
}

fn fetch(m: *Message, url: []const u8) !void {
    const response = try guesthand.fetch(m, .{ .url = url });
    try response.check(m);
    var header: [64]u8 = undefined;
    try print(m, "{d} {s} ", .{ response.status, response.header("X-Test", &header) orelse "" });
    return m.write(response.body(&payload));
}

/// The error's text, else ok.
fn answer(result: anytype, ok: []const u8) []const u8 {
    if (result) |_| return ok else |e| return guesthand.errorText(e);
}

fn create(value: []const u8) []const u8 {
    const created = guesthand.kvCreate("k", value, 3600 * 1000) catch |e| return guesthand.errorText(e);
    return if (created) "created" else "exists";
}

fn get(buf: []u8) []const u8 {
    return guesthand.kvGet("k", buf) catch |e| guesthand.errorText(e);
}

fn kv(m: *Message) !void {
    var buf: [8]u8 = undefined;
    try print(m, "{s},{s},{s},", .{ get(&buf), create("1"), create("2") });
    try print(m, "{s},{s},", .{ get(&buf), answer(guesthand.kvPut("k", "3", 0), "ok") });
    try print(m, "{s},", .{get(&buf)});
    try print(m, "{s},{s}", .{ answer(guesthand.kvDelete("k"), "ok"), answer(guesthand.kvDelete("k"), "ok") });
}

fn send(header: []const u8) !void {
    return guesthand.send(.{
        .queue = "next",
        .job = "conform",
        .payload = "hello",
        .key = "k1",
        .delay_ms = 30_000,
        .headers = &.{.{ .name = "X-Test", .value = header }},
    });
}

fn crash(m: *Message, op: []const u8) !void {
    if (is(op, "panic")) @panic("boom");
    if (is(op, "bounds")) {
        const one = payload[0 .. op.len - 5];
        return print(m, "read {d}", .{one[op.len]});
    }
    if (is(op, "trap")) @trap();
    if (is(op, "loop")) while (true) {};
    if (is(op, "grow")) {
        while (@wasmMemoryGrow(0, 16) != -1) {}
        @panic("out of memory");
    }
    var buf: [64]u8 = undefined;
    return m.permanent(std.fmt.bufPrint(&buf, "unknown operation {s}", .{op}) catch "unknown operation");
}
