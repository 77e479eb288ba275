//! Poller is a sample handler: it waits for something slow. The payload is the URL of a status; as
//! long as that answers 202 (accepted) the message waits, twice as long each time, and no attempt
//! is spent. It counts its polls in the message's own state, so that it can give up by itself.
//! main.go is the same in Go.

#[path = "../../../abi/guest/rust/guesthand.rs"]
mod guesthand;

use guesthand::{delay, fetch, permanent, Message, Request};
use std::time::Duration;

const FIRST_WAIT: Duration = Duration::from_secs(10);
const MAX_POLLS: u32 = 12; // the last wait is over five hours

#[no_mangle]
pub extern "C" fn handle() -> i64 {
    guesthand::run(on_message)
}

fn on_message(m: &Message) -> guesthand::Result {
    let url = String::from_utf8(m.payload()).map_err(permanent)?;
    if url.is_empty() {
        Err(permanent("the payload is to be the URL of a status"))?
    }
    let response = fetch(&Request {
        url: &url,
        ..Request::default()
    })?;
    response.check()?; // a retry, after the time the server asks for
    if response.status == 202 {
        return again(m);
    }
    Ok(m.write(&response.body())?)
}

/// Counts this poll and puts the message off.
fn again(m: &Message) -> guesthand::Result {
    let before = String::from_utf8(m.state())?;
    let polls: u32 = 1 + before.parse().unwrap_or(0); // no state is no poll
    if polls >= MAX_POLLS {
        Err(permanent(format!("not ready after {} polls", polls)))?
    }
    m.set_state(polls.to_string().as_bytes())?;
    Err(delay(
        format!("not ready at poll {}", polls),
        FIRST_WAIT * (1 << (polls - 1)),
    ))?
}
