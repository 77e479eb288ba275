//! The conformance handler as a program.

#[path = "../../rust/guesthand.rs"]
mod guesthand;
mod handler;

fn main() {
    guesthand::run_command(handler::on_message)
}
