//! The conformance handler as a reactor.

#[path = "../../rust/guesthand.rs"]
mod guesthand;
mod handler;

#[no_mangle]
pub extern "C" fn handle() -> i64 {
    guesthand::run(handler::on_message)
}
