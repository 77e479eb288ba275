//! The conformance handler as a reactor.

const guesthand = @import("guesthand");
const handler = @import("handler.zig");

pub const panic = guesthand.panic;

export fn handle() i64 {
    return guesthand.run(handler.onMessage);
}
