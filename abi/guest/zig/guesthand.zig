//! The guest SDK for Zig: what a handler uses of its host. It is one file without dependencies,
//! for Zig 0.11; copy it into a project.
//!
//! A handler is a function that gets a message and returns `!void`:
//!
//!     const guesthand = @import("guesthand.zig");
//!     pub const panic = guesthand.panic; // a panic's message becomes the error text
//!
//!     export fn handle() i64 {
//!         return guesthand.run(onMessage);
//!     }
//!
//!     fn onMessage(m: *guesthand.Message) !void {
//!         const order = try m.decodeInt(u32); // no number: permanent
//!         charge(order) catch |e| switch (e) {
//!             error.Busy => return m.retryAfter("the bank is busy", 30_000),
//!             else => return m.wrap(e, "charge"), // a retry, unless it is marked
//!         };
//!         try m.write("charged");
//!     }
//!
//! That is the native form, built with
//!
//!     zig build-lib -dynamic -rdynamic -O ReleaseSmall -target wasm32-freestanding handler.zig -femit-bin=handler.wasm
//!
//! The command form is a program, built with `zig build-exe -O ReleaseSmall -target wasm32-wasi`:
//!
//!     pub fn main() void {
//!         guesthand.runCommand(onMessage);
//!     }
//!
//! # Outcomes
//!
//! Returning is success and any error a retry with the policy's backoff. The functions of Message
//! that are named after outcomes note a text and a delay and return an error of `Marked`, which is
//! that outcome wherever it comes out: `try` keeps the mark, `wrap` puts words before the text, and
//! marking again with "" for the text keeps the text, so that the outermost mark wins. An error
//! without a mark has its name as the text unless `wrap` or `fail` noted one.
//!
//! Texts are cut at 1 KiB. Times are milliseconds. What the host grants: fetch, send and the kv
//! functions fail with error.NotGranted until the host's configuration grants them to this handler.

const std = @import("std");

/// Handles the message that the host is asking about and returns the outcome for `handle`.
pub fn run(onMessage: anytype) i64 {
    const o = finish(onMessage);
    return @as(i64, @bitCast(o.delay_ms << 8)) | o.code;
}

/// Handles the message and exits with its outcome. An exit code holds whole seconds: a delay is
/// rounded up, and one over 194 days is a retry that says so.
pub fn runCommand(onMessage: anytype) noreturn {
    const o = finish(onMessage);
    const seconds = (o.delay_ms + 999) / 1000;
    if (seconds >= 1 << 24) {
        writeError("the delay does not fit a command's exit code");
        host.proc_exit(1);
    }
    host.proc_exit(@as(u32, @intCast(seconds)) << 8 | o.code);
}

const Outcome = struct { code: u8, delay_ms: u64 = 0 };

fn finish(onMessage: anytype) Outcome {
    var m = Message{};
    onMessage(&m) catch |e| {
        if (m.text.len == 0 and code(e) == null) m.text.add(@errorName(e));
        if (m.text.len > 0) writeError(m.text.slice());
        return .{ .code = code(e) orelse 1, .delay_ms = if (hasDelay(e)) m.delay_ms else 0 };
    };
    return .{ .code = 0 };
}

/// Errors that are an outcome. They are made by Message's functions of the same names.
pub const Marked = error{ Retry, RetryAfter, Delay, Permanent, Reject, Pause };

fn code(e: anyerror) ?u8 {
    return switch (e) {
        error.Retry => 1,
        error.RetryAfter => 10,
        error.Delay => 11,
        error.Permanent => 12,
        error.Reject => 13,
        error.Pause => 14,
        else => null,
    };
}

fn hasDelay(e: anyerror) bool {
    return e == error.RetryAfter or e == error.Delay or e == error.Pause;
}

/// The text of an error: an outcome's word, what the host answered, or the error's name.
pub fn errorText(e: anyerror) []const u8 {
    return switch (e) {
        error.Retry => "retry",
        error.RetryAfter => "retry-after",
        error.Delay => "delay",
        error.Permanent => "permanent",
        error.Reject => "reject",
        error.Pause => "pause",
        error.Absent => "absent",
        error.NotGranted => "not granted",
        error.TooLarge => "too large",
        error.Unavailable => "not available",
        error.Malformed => "malformed",
        error.TimedOut => "timed out",
        else => @errorName(e),
    };
}

/// What the host answers instead of doing what it was asked. TooLarge is also a quota, Unavailable
/// an I/O error.
pub const HostError = error{ Absent, NotGranted, TooLarge, Unavailable, Malformed, TimedOut, Unknown };

fn answered(n: i32) HostError!usize {
    return switch (n) {
        -1 => error.Absent,
        -2 => error.NotGranted,
        -3 => error.TooLarge,
        -4 => error.Unavailable,
        -5 => error.Malformed,
        -6 => error.TimedOut,
        else => if (n < 0) error.Unknown else @as(usize, @intCast(n)),
    };
}

fn writeError(text: []const u8) void {
    _ = host.error_write(text.ptr, text.len); // an error text that is too long is cut
}

/// Ends the run as a retry with the panic's message. Make it the root file's `panic`.
pub fn panic(message: []const u8, _: ?*std.builtin.StackTrace, _: ?usize) noreturn {
    @setCold(true);
    writeError(message);
    @trap();
}

/// A text in a buffer; what does not fit is cut.
fn Text(comptime size: usize) type {
    return struct {
        bytes: [size]u8 = undefined,
        len: usize = 0,
        cut: bool = false,

        fn add(t: *@This(), s: []const u8) void {
            const n = @min(s.len, size - t.len);
            @memcpy(t.bytes[t.len..][0..n], s[0..n]);
            t.len += n;
            t.cut = t.cut or n < s.len;
        }

        fn slice(t: *const @This()) []const u8 {
            return t.bytes[0..t.len];
        }
    };
}

/// The message being handled. What it wraps is read from the host when it is asked for.
pub const Message = struct {
    text: Text(1024) = .{},
    delay_ms: u64 = 0,

    /// An ordinary failure, retried after the policy's backoff.
    pub fn retry(m: *Message, text: []const u8) Marked {
        return m.mark(error.Retry, text, 0);
    }
    /// A failure to be retried in ms instead of the backoff; 0 means the backoff.
    pub fn retryAfter(m: *Message, text: []const u8, ms: u64) Marked {
        return m.mark(error.RetryAfter, text, ms);
    }
    /// Another run in ms, 1 s at the least. Nothing failed and no attempt is spent.
    pub fn delay(m: *Message, text: []const u8, ms: u64) Marked {
        return m.mark(error.Delay, text, ms);
    }
    /// A failure that no retry can help: the message becomes a dead letter.
    pub fn permanent(m: *Message, text: []const u8) Marked {
        return m.mark(error.Permanent, text, 0);
    }
    /// The message is left to the broker's own rejection.
    pub fn reject(m: *Message, text: []const u8) Marked {
        return m.mark(error.Reject, text, 0);
    }
    /// delay, and this job takes no new message on this host for ms either.
    pub fn pause(m: *Message, text: []const u8, ms: u64) Marked {
        return m.mark(error.Pause, text, ms);
    }

    /// Notes a text of "" as none, so that what is there stays.
    fn mark(m: *Message, e: Marked, text: []const u8, ms: u64) Marked {
        if (text.len > 0) m.fail(text);
        m.delay_ms = @min(ms, 1 << 54);
        return e;
    }

    /// Notes the text of an error without a mark, in place of its name.
    pub fn fail(m: *Message, text: []const u8) void {
        m.text = .{};
        m.text.add(text);
    }

    /// Drops the text of an error that was dealt with.
    pub fn forget(m: *Message) void {
        m.text = .{};
    }

    /// Puts "context: " before the error's text and returns the error.
    pub fn wrap(m: *Message, e: anytype, context: []const u8) @TypeOf(e) {
        const inner = m.text;
        m.fail(context);
        m.text.add(": ");
        m.text.add(if (inner.len > 0) inner.slice() else errorText(e));
        return e;
    }

    /// The payload's size in bytes.
    pub fn payloadSize(_: *Message) usize {
        return @intCast(host.payload_size());
    }

    /// As much of the producer's bytes as fits.
    pub fn payload(_: *Message, buf: []u8) []u8 {
        return buf[0..@intCast(host.payload_read(buf.ptr, buf.len, 0))];
    }

    /// The whole payload as a decimal number. What is none is permanent.
    pub fn decodeInt(m: *Message, comptime T: type) Marked!T {
        var buf: [48]u8 = undefined;
        if (m.payloadSize() <= buf.len) {
            if (std.fmt.parseInt(T, m.payload(&buf), 10)) |n| return n else |_| {}
        }
        return m.permanent("decode the payload: no decimal number");
    }

    /// Notes what decoding the payload with a library of your choice came to: permanent. As in
    /// `std.json.parseFromSlice(...) catch |e| return m.undecodable(e)`.
    pub fn undecodable(m: *Message, e: anyerror) Marked {
        m.fail("decode the payload: ");
        m.text.add(errorText(e));
        return m.permanent("");
    }

    /// Appends to the run's result, which the host uses when the run succeeds.
    pub fn write(m: *Message, bytes: []const u8) HostError!void {
        _ = answered(host.result_write(bytes.ptr, bytes.len)) catch |e| return m.wrap(e, "write the result");
    }

    /// The message's id, the same in every run of it. Texts are cut where buf is too short, and
    /// null where they are absent.
    pub fn id(_: *Message, buf: []u8) []u8 {
        return attribute("id", buf) orelse buf[0..0];
    }
    /// What was asked for.
    pub fn job(_: *Message, buf: []u8) []u8 {
        return attribute("job", buf) orelse buf[0..0];
    }
    /// Where the message came from.
    pub fn queue(_: *Message, buf: []u8) []u8 {
        return attribute("queue", buf) orelse buf[0..0];
    }
    /// The names of the message's headers, one a line.
    pub fn headers(_: *Message, buf: []u8) []u8 {
        return attribute("headers", buf) orelse buf[0..0];
    }
    /// A header's first value, its name without regard to case.
    pub fn header(_: *Message, name: []const u8, buf: []u8) ?[]u8 {
        return named("header.", name, buf);
    }
    /// The W3C trace context that the message came with.
    pub fn traceparent(_: *Message, buf: []u8) ?[]u8 {
        return attribute("traceparent", buf);
    }

    /// The number of this run, from 1. It counts every run; the next four say how the earlier ones
    /// ended.
    pub fn attempt(_: *Message) u32 {
        return @truncate(number("attempt"));
    }
    pub fn failures(_: *Message) u32 {
        return @truncate(number("failures"));
    }
    pub fn delays(_: *Message) u32 {
        return @truncate(number("delays"));
    }
    pub fn stalls(_: *Message) u32 {
        return @truncate(number("stalls"));
    }
    pub fn interruptions(_: *Message) u32 {
        return @truncate(number("interruptions"));
    }
    /// How many failures the message may have in all, 0 for no cap.
    pub fn maxAttempts(_: *Message) u32 {
        return @truncate(number("max_attempts"));
    }
    /// When the message was sent, Unix ms; 0 where that is not known.
    pub fn enqueuedAt(_: *Message) u64 {
        return number("enqueued_at");
    }
    /// When the host stops this run, Unix ms. See remaining().
    pub fn deadline(_: *Message) u64 {
        return number("deadline");
    }

    /// As much as fits, 4096 bytes do, of what an earlier run of this message, or this one, left
    /// with setState.
    pub fn state(_: *Message, buf: []u8) []u8 {
        const n: usize = @intCast(host.state_read(buf.ptr, buf.len));
        return buf[0..@min(n, buf.len)];
    }

    /// Keeps up to 4 KiB for the next run of this message, on whatever worker. It is kept when the
    /// handler returns a retry, retry-after, delay or pause.
    pub fn setState(m: *Message, bytes: []const u8) HostError!void {
        _ = answered(host.state_write(bytes.ptr, bytes.len)) catch |e| return m.wrap(e, "write the state");
    }
};

/// A value from the handler's configuration.
pub fn config(name: []const u8, buf: []u8) ?[]u8 {
    return named("config.", name, buf);
}

/// A secret that the configuration gives this handler.
pub fn secret(name: []const u8, buf: []u8) ?[]u8 {
    return named("secret.", name, buf);
}

/// A custom section of this module.
pub fn section(name: []const u8, buf: []u8) ?[]u8 {
    return named("section.", name, buf);
}

/// Any attribute by its name in the ABI, cut where buf is too short.
pub fn attribute(name: []const u8, buf: []u8) ?[]u8 {
    const n = answered(host.attribute_read(name.ptr, name.len, buf.ptr, buf.len)) catch return null;
    return buf[0..@min(n, buf.len)];
}

fn named(comptime kind: []const u8, name: []const u8, buf: []u8) ?[]u8 {
    var key = Text(512){};
    key.add(kind);
    key.add(name);
    return if (key.cut) null else attribute(key.slice(), buf);
}

fn number(name: []const u8) u64 {
    var buf: [24]u8 = undefined;
    const digits = attribute(name, &buf) orelse return 0;
    return std.fmt.parseInt(u64, digits, 10) catch 0;
}

/// The time until the run's deadline or, once the host is stopping, until the end of its drain. At
/// 0 or less it is time to return.
pub fn remaining() i64 {
    return host.remaining();
}

/// A log line's severity, with the numbers of Go's log/slog.
pub const Level = enum(i32) { debug = -4, info = 0, warn = 4, err = 8 };

/// Writes a line to the host's log.
pub fn log(level: Level, text: []const u8) void {
    host.log_write(@intFromEnum(level), text.ptr, text.len);
}

/// A header of a request, a response or a message.
pub const Header = struct { name: []const u8, value: []const u8 };

/// The head of a request or message: a first line and `Name: value` lines, 2 KiB at most.
const Head = struct {
    text: Text(2048) = .{},
    broken: bool = false,

    /// A line break within would make a line of the caller's input.
    fn add(h: *Head, s: []const u8) void {
        h.broken = h.broken or std.mem.indexOfAny(u8, s, "\r\n") != null;
        h.text.add(s);
    }

    fn line(h: *Head, name: []const u8, value: []const u8) void {
        h.text.add("\n");
        h.add(name);
        h.text.add(": ");
        h.add(value);
    }

    fn done(h: *const Head) HostError![]const u8 {
        if (h.broken) return error.Malformed;
        if (h.text.cut) return error.TooLarge;
        return h.text.slice();
    }
};

/// An HTTP request that the host is to make.
pub const Request = struct {
    method: []const u8 = "GET",
    url: []const u8,
    headers: []const Header = &.{},
    body: []const u8 = "",
};

/// Makes a request. An error means that there was no answer, whatever status one would have had;
/// see Response.check.
pub fn fetch(m: *Message, r: Request) HostError!Response {
    const status = sendRequest(r) catch |e| {
        m.fail(r.method);
        m.text.add(" ");
        m.text.add(r.url);
        m.text.add(": ");
        m.text.add(errorText(e));
        return e;
    };
    return .{ .status = @truncate(status) };
}

fn sendRequest(r: Request) HostError!usize {
    var h = Head{};
    h.add(r.method);
    h.text.add(" ");
    h.add(r.url);
    for (r.headers) |line| h.line(line.name, line.value);
    const head = try h.done();
    return answered(host.http_send(head.ptr, head.len, r.body.ptr, r.body.len));
}

/// What a server answered. The host keeps the latest response only: read what you need of one
/// before you fetch the next.
pub const Response = struct {
    status: u16,

    /// A header's value, cut where buf is too short.
    pub fn header(_: Response, name: []const u8, buf: []u8) ?[]u8 {
        const n = answered(host.http_header_read(name.ptr, name.len, buf.ptr, buf.len)) catch return null;
        return buf[0..@min(n, buf.len)];
    }

    /// The body's size in bytes.
    pub fn bodySize(_: Response) usize {
        return answered(host.http_body_size()) catch 0;
    }

    /// As much of the body as fits.
    pub fn body(_: Response, buf: []u8) []u8 {
        return buf[0 .. answered(host.http_body_read(buf.ptr, buf.len, 0)) catch 0];
    }

    /// Nothing for a status below 400. Of 429 and 503 with Retry-After it makes a retryAfter, and
    /// error.Status, which has no mark, of everything else, so that a client's whole care is
    /// `try response.check(m)`.
    pub fn check(r: Response, m: *Message) (Marked || error{Status})!void {
        if (r.status < 400) return;
        var buf: [48]u8 = undefined;
        m.fail(std.fmt.bufPrint(&buf, "the server answered {d}", .{r.status}) catch unreachable);
        if (r.status == 429 or r.status == 503) {
            var wait: [40]u8 = undefined;
            var date: [40]u8 = undefined;
            if (r.header("Retry-After", &wait)) |w|
                return m.retryAfter("", parseRetryAfter(w, r.header("Date", &date) orelse ""));
        }
        return error.Status;
    }
};

/// What a Retry-After header means, in ms: seconds, or a date, which counts from the response's
/// own Date, since clocks differ. 0, the policy's backoff, for anything else.
pub fn parseRetryAfter(value: []const u8, date: []const u8) u64 {
    const year = 365 * 24 * 3600;
    const seconds = parseSeconds(value) orelse
        (httpDate(value) orelse return 0) -| (httpDate(date) orelse return 0);
    return 1000 * @as(u64, @min(year, seconds));
}

fn parseSeconds(value: []const u8) ?u64 {
    if (value.len == 0) return null;
    var n: u64 = 0;
    for (value) |c| {
        if (!std.ascii.isDigit(c)) return null;
        n = @as(u64, @min(n, 1 << 40)) * 10 + (c - '0');
    }
    return n;
}

/// Unix seconds of "Sun, 06 Nov 1994 08:49:37 GMT".
fn httpDate(s: []const u8) ?u64 {
    if (s.len != 29 or s[16] != ' ' or s[19] != ':' or s[22] != ':') return null;
    const at = std.mem.indexOf(u8, "JanFebMarAprMayJunJulAugSepOctNovDec", s[8..11]) orelse return null;
    if (at % 3 != 0) return null;
    const month: u64 = at / 3;
    const day = parseSeconds(s[5..7]) orelse return null;
    const hour = parseSeconds(s[17..19]) orelse return null;
    const minute = parseSeconds(s[20..22]) orelse return null;
    const second = parseSeconds(s[23..25]) orelse return null;
    // Days since 1970 with years that begin in March, so that the leap day is the last.
    const year = (parseSeconds(s[12..16]) orelse return null) -| @intFromBool(month < 2);
    const days = (365 * year + year / 4 - year / 100 + year / 400 + (153 * ((month + 10) % 12) + 2) / 5 + day) -| 719469;
    return ((days * 24 + hour) * 60 + minute) * 60 + second;
}

/// A key's value, cut where buf is too short, or error.Absent. Keys are up to 256 bytes; the host
/// gives each handler keys of its own, shared by all hosts.
pub fn kvGet(key: []const u8, buf: []u8) HostError![]u8 {
    const n = try answered(host.kv_get(key.ptr, key.len, buf.ptr, buf.len));
    return buf[0..@min(n, buf.len)];
}

/// Stores a value for ttl ms, 0 for good.
pub fn kvPut(key: []const u8, value: []const u8, ttl: u63) HostError!void {
    _ = try answered(host.kv_put(key.ptr, key.len, value.ptr, value.len, ttl));
}

/// Stores a value only where there is none. Of all that try at once, on any host, one is told true.
pub fn kvCreate(key: []const u8, value: []const u8, ttl: u63) HostError!bool {
    return try answered(host.kv_create(key.ptr, key.len, value.ptr, value.len, ttl)) == 0;
}

/// Removes a key, or fails with error.Absent.
pub fn kvDelete(key: []const u8) HostError!void {
    _ = try answered(host.kv_delete(key.ptr, key.len));
}

/// A message to send when the run succeeds.
pub const Outgoing = struct {
    queue: []const u8,
    job: []const u8,
    payload: []const u8 = "",
    /// Asks the broker to drop a second message with this key.
    key: []const u8 = "",
    /// How long it waits before its first run.
    delay_ms: u64 = 0,
    headers: []const Header = &.{},
};

/// Hands a message to the host, which publishes it if this run succeeds, before the
/// acknowledgement, and drops it if not.
pub fn send(o: Outgoing) HostError!void {
    var h = Head{};
    h.add(o.queue);
    h.text.add(" ");
    h.add(o.job);
    if (o.key.len > 0) h.line("Key", o.key);
    if (o.delay_ms > 0) {
        var buf: [24]u8 = undefined;
        h.line("Delay", std.fmt.bufPrint(&buf, "{d}ms", .{o.delay_ms}) catch unreachable);
    }
    for (o.headers) |line| h.line(line.name, line.value);
    const head = try h.done();
    _ = try answered(host.message_send(head.ptr, head.len, o.payload.ptr, o.payload.len));
}

const host = struct {
    extern "guesthand_v1" fn payload_size() i32;
    extern "guesthand_v1" fn payload_read(dst: [*]u8, len: usize, offset: usize) i32;
    extern "guesthand_v1" fn attribute_read(name: [*]const u8, name_len: usize, dst: [*]u8, len: usize) i32;
    extern "guesthand_v1" fn result_write(ptr: [*]const u8, len: usize) i32;
    extern "guesthand_v1" fn error_write(ptr: [*]const u8, len: usize) i32;
    extern "guesthand_v1" fn log_write(level: i32, ptr: [*]const u8, len: usize) void;
    extern "guesthand_v1" fn remaining() i64;
    extern "guesthand_v1" fn state_read(dst: [*]u8, len: usize) i32;
    extern "guesthand_v1" fn state_write(ptr: [*]const u8, len: usize) i32;
    extern "guesthand_v1" fn http_send(head: [*]const u8, head_len: usize, body: [*]const u8, body_len: usize) i32;
    extern "guesthand_v1" fn http_header_read(name: [*]const u8, name_len: usize, dst: [*]u8, len: usize) i32;
    extern "guesthand_v1" fn http_body_size() i32;
    extern "guesthand_v1" fn http_body_read(dst: [*]u8, len: usize, offset: usize) i32;
    extern "guesthand_v1" fn kv_get(key: [*]const u8, key_len: usize, dst: [*]u8, len: usize) i32;
    extern "guesthand_v1" fn kv_put(key: [*]const u8, key_len: usize, val: [*]const u8, val_len: usize, ttl_ms: i64) i32;
    extern "guesthand_v1" fn kv_create(key: [*]const u8, key_len: usize, val: [*]const u8, val_len: usize, ttl_ms: i64) i32;
    extern "guesthand_v1" fn kv_delete(key: [*]const u8, key_len: usize) i32;
    extern "guesthand_v1" fn message_send(head: [*]const u8, head_len: usize, body: [*]const u8, body_len: usize) i32;
    extern "wasi_snapshot_preview1" fn proc_exit(code: u32) noreturn;
};
