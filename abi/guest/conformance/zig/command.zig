//! The conformance handler as a program.

const guesthand = @import("guesthand");
const handler = @import("handler.zig");

pub const panic = guesthand.panic;

pub fn main() void {
    guesthand.runCommand(handler.onMessage);
}
