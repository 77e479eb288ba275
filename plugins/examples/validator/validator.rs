//! Validator is a sample handler: it checks that a payload is a JSON object with the members that
//! its configuration names, and hands it on as the result. What is none becomes a dead letter
//! whose reason says what is wrong. main.go is the same in Go.
//!
//! ```toml
//! [handlers.validator]
//! config = { required = "id, email" }
//! ```
//!
//! With crates at hand, json.rs would be serde_json.

#[path = "../../../abi/guest/rust/guesthand.rs"]
mod guesthand;
mod json;

use guesthand::{config, decoded, permanent, Message};

#[no_mangle]
pub extern "C" fn handle() -> i64 {
    guesthand::run(on_message)
}

fn on_message(m: &Message) -> guesthand::Result {
    let payload = m.payload();
    let members = decoded(json::members(&payload))?; // permanent: the next run would find the same
    let required = config("required").unwrap_or_default();
    let missing: Vec<&str> = required
        .split(',')
        .map(str::trim)
        .filter(|name| !name.is_empty() && !members.iter().any(|member| member == name))
        .collect();
    if !missing.is_empty() {
        Err(permanent(format!("missing: {}", missing.join(", "))))?
    }
    Ok(m.write(&payload)?)
}
