//! The conformance handler in Rust without std, and so without an allocator: README.md one folder
//! up says what it does.
#![no_std]

#[path = "../../rust/guesthand.rs"]
mod guesthand;

use core::fmt::Write;
use core::str::from_utf8;
use core::time::Duration;
use guesthand::*;

#[no_mangle]
pub extern "C" fn handle() -> i64 {
    guesthand::run(on_message)
}

/// One instance runs one message at a time.
static mut PAYLOAD: [u8; 2 << 20] = [0; 2 << 20];

fn on_message(m: &Message) -> guesthand::Result {
    let buf = unsafe { &mut *core::ptr::addr_of_mut!(PAYLOAD) };
    let payload = m.payload_into(buf);
    if attribute_into("header.decode", &mut [0; 8]).is_some() {
        let text = decoded(from_utf8(payload))?;
        return number(m, decoded(text.parse::<i64>())? + 1);
    }
    let end = payload
        .iter()
        .position(|b| *b == b'\n')
        .unwrap_or(payload.len());
    let rest = payload.get(end + 1..).unwrap_or_default();
    match &payload[..end] {
        b"" => m.write(b"empty"),
        b"echo" => m.write(rest),
        b"sum" => number(
            m,
            rest.iter()
                .fold(0, |n: u32, b| n.wrapping_add(u32::from(*b))),
        ),
        op => operate(m, from_utf8(op)?, from_utf8(rest)?),
    }
}

fn operate(m: &Message, op: &str, rest: &str) -> guesthand::Result {
    let mut lines = rest.split('\n').chain(core::iter::repeat(""));
    let mut line = || lines.next().unwrap_or("");
    let (first, second, third) = (line(), line(), line());
    match op {
        "fail" => fail(first, second, third),
        "wrap" => fail(first, second, third).context("outer"),
        "remark" => inner().map_err(|e| retry_after(e, Duration::from_secs(5))),
        "unmark" => inner().map_err(retry),
        "attributes" => attributes(m),
        "result" => {
            m.write(b"one")?;
            m.write(b"two")
        }
        "big" => big(m, first.parse()?),
        "log" => {
            log(Level::Debug, "debug");
            log(Level::Info, "info");
            log(Level::Warn, "warn");
            log(Level::Error, "error");
            Ok(())
        }
        "remaining" => number(m, remaining().as_millis()),
        "state" => {
            let mut state = [0; 4097];
            let n = m.state_into(&mut state[..4096]).len();
            state[n] = b'x';
            m.set_state(&state[..=n])?;
            Err(delay("", Duration::from_secs(1)))
        }
        "state-big" => m.set_state(&[0; 4097]),
        "retry-after" => number(
            m,
            parse_retry_after(first.as_bytes(), second.as_bytes()).as_millis(),
        ),
        "http" => {
            let response = fetch(&Request {
                url: first,
                ..Request::default()
            })?;
            response.check()?;
            number(m, response.status)?;
            m.write(b" ")?;
            m.write(
                response
                    .header_into("X-Test", &mut [0; 64])
                    .unwrap_or_default(),
            )?;
            m.write(b" ")?;
            m.write(response.body_into(&mut [0; 4096]))
        }
        "kv" => kv(m),
        "send" => say(m, send_one("yes").map(|()| "ok")),
        "send-broken" => say(m, send_one("yes\nno").map(|()| "ok")),
        _ => crash(m, op),
    }
}

fn number(m: &Message, n: impl core::fmt::Display) -> guesthand::Result {
    let mut text = Fixed::<40>::new();
    write!(text, "{}", n)?;
    m.write(text.as_str().as_bytes())
}

fn inner() -> guesthand::Result {
    Err(permanent("inner")).context("outer")
}

fn fail(kind: &str, ms: &str, text: &str) -> guesthand::Result {
    let wait = Duration::from_millis(ms.parse()?);
    Err(match kind {
        "retry" => retry(text),
        "retry-after" => retry_after(text, wait),
        "delay" => delay(text, wait),
        "permanent" => permanent(text),
        "reject" => reject(text),
        "pause" => pause(text, wait),
        _ => text.into(),
    })
}

fn attributes(m: &Message) -> guesthand::Result {
    for name in ["id", "job", "queue"] {
        attribute(m, name, name)?;
    }
    let numbers = [
        ("attempt", m.attempt()),
        ("failures", m.failures()),
        ("delays", m.delays()),
        ("stalls", m.stalls()),
        ("interruptions", m.interruptions()),
        ("max_attempts", m.max_attempts()),
    ];
    for (name, n) in numbers {
        m.write(name.as_bytes())?;
        m.write(b"=")?;
        number(m, n)?;
        m.write(b"\n")?;
    }
    m.write(b"enqueued_at=")?;
    number(m, m.enqueued_at())?;
    m.write(if m.deadline() > m.enqueued_at() {
        b"\ndeadline=later\n"
    } else {
        b"\ndeadline=none!\n"
    })?;
    attribute(m, "headers", "headers")?;
    attribute(m, "header", "header.x-tag")?;
    attribute(m, "config", "config.color")?;
    attribute(m, "secret", "secret.key")?;
    attribute(m, "section", "section.conformance")?;
    attribute(m, "traceparent", "traceparent")?;
    let none = attribute_into("config.none", &mut [0; 8]).is_none();
    m.write(if none {
        b"none=absent\n"
    } else {
        b"none=exists\n"
    })
}

fn attribute(m: &Message, label: &str, name: &str) -> guesthand::Result {
    m.write(label.as_bytes())?;
    m.write(b"=")?;
    let value = &mut [0; 4096];
    for (i, part) in attribute_into(name, value)
        .unwrap_or_default()
        .split(|b| *b == b'\n')
        .enumerate()
    {
        m.write(if i > 0 { b"," } else { b"" })?;
        m.write(part)?;
    }
    m.write(b"\n")
}

fn big(m: &Message, mut n: usize) -> guesthand::Result {
    let piece = [b'x'; 64 << 10];
    while n > 0 {
        let some = n.min(piece.len());
        m.write(&piece[..some])?;
        n -= some;
    }
    Ok(())
}

/// Writes the value, or the host's answer by its word.
fn say(m: &Message, r: core::result::Result<&str, Error>) -> guesthand::Result {
    match r {
        Ok(text) => m.write(text.as_bytes()),
        Err(e) => match e.answer() {
            Some(answer) => number(m, answer),
            None => Err(e),
        },
    }
}

fn kv(m: &Message) -> guesthand::Result {
    let hour = Duration::from_secs(3600);
    let get = || {
        let value = &mut [0; 8];
        say(
            m,
            kv_get_into("k", value)
                .map(|v| v.map_or("absent", |v| from_utf8(v).unwrap_or_default())),
        )?;
        m.write(b",")
    };
    let create = |value: &[u8]| {
        say(
            m,
            kv_create("k", value, hour).map(|new| if new { "created" } else { "exists" }),
        )?;
        m.write(b",")
    };
    let delete = || {
        say(
            m,
            kv_delete("k").map(|was| if was { "ok" } else { "absent" }),
        )
    };
    get()?;
    create(b"1")?;
    create(b"2")?;
    get()?;
    say(m, kv_put("k", b"3", Duration::ZERO).map(|()| "ok"))?;
    m.write(b",")?;
    get()?;
    delete()?;
    m.write(b",")?;
    delete()
}

fn send_one(header: &str) -> core::result::Result<(), Error> {
    send(&Outgoing {
        queue: "next",
        job: "conform",
        payload: b"hello",
        key: "k1",
        delay: Duration::from_secs(30),
        headers: &[("X-Test", header)],
    })
}

fn crash(m: &Message, op: &str) -> guesthand::Result {
    match op {
        "panic" => panic!("boom"),
        "bounds" => number(m, op[..op.len() - 5].as_bytes()[op.len()]),
        "trap" => core::arch::wasm32::unreachable(),
        "loop" => loop {
            core::hint::spin_loop()
        },
        "grow" => {
            while core::arch::wasm32::memory_grow(0, 16) != usize::MAX {}
            panic!("out of memory")
        }
        _ => {
            let mut text = Fixed::<64>::new();
            write!(text, "unknown operation {}", op)?;
            Err(permanent(text.as_str()))
        }
    }
}
