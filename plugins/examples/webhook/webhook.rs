//! Webhook is a sample handler: it posts each payload to the URL in its configuration. Busy servers
//! are asked again when they say (Retry-After), broken ones by the policy's backoff, and what a
//! server refuses is not sent again. main.go is the same in Go.
//!
//! ```toml
//! [handlers.webhook]
//! http   = { allow = ["hooks.example.com"] }
//! config = { url = "https://hooks.example.com/orders" }
//! ```

#[path = "../../../abi/guest/rust/guesthand.rs"]
mod guesthand;

use guesthand::{config, fetch, permanent, Message, Request};

#[no_mangle]
pub extern "C" fn handle() -> i64 {
    guesthand::run(on_message)
}

fn on_message(m: &Message) -> guesthand::Result {
    let url = config("url").ok_or("config.url is not set")?; // a retry: the operator can mend it
    let content_type = m
        .header("Content-Type")
        .unwrap_or_else(|| "application/octet-stream".into());
    let response = fetch(&Request {
        method: "POST",
        url: &url,
        headers: &[
            ("Content-Type", &content_type),
            ("Idempotency-Key", &m.id()), // the same in every run, so that a repeat is recognisable
        ],
        body: &m.payload(),
    })?;
    let checked = response.check();
    if refused(response.status) {
        return Ok(checked.map_err(permanent)?);
    }
    Ok(checked?)
}

/// Tells answers that would be the same next time.
fn refused(status: u16) -> bool {
    (400..500).contains(&status) && status != 408 && status != 429
}
