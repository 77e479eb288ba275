//! The conformance handler in Rust: README.md one folder up says what it does.

use crate::guesthand::{self, *};
use std::time::Duration;

/// Does what the payload says.
pub fn on_message(m: &Message) -> guesthand::Result {
    if m.header("decode").is_some() {
        let n: i64 = m.parse()?;
        return write(m, &(n + 1).to_string());
    }
    let payload = m.payload();
    let end = payload
        .iter()
        .position(|b| *b == b'\n')
        .unwrap_or(payload.len());
    let rest = payload.get(end + 1..).unwrap_or_default();
    match &payload[..end] {
        b"" => write(m, "empty"),
        b"echo" => Ok(m.write(rest)?),
        b"sum" => write(m, &sum(rest).to_string()),
        op => operate(m, std::str::from_utf8(op)?, std::str::from_utf8(rest)?),
    }
}

fn operate(m: &Message, op: &str, rest: &str) -> guesthand::Result {
    let mut lines = rest.split('\n').chain(std::iter::repeat(""));
    let (first, second, third) = (
        lines.next().unwrap_or(""),
        lines.next().unwrap_or(""),
        lines.next().unwrap_or(""),
    );
    match op {
        "fail" => fail(first, second, third),
        "wrap" => Ok(fail(first, second, third).map_err(Outer)?),
        "remark" => Err(retry_after(inner().unwrap_err(), Duration::from_secs(5)))?,
        "unmark" => Err(retry(inner().unwrap_err()))?,
        "attributes" => write(m, &attributes(m)),
        "result" => {
            m.write(b"one")?;
            write(m, "two")
        }
        "big" => big(m, first.parse()?),
        "log" => {
            log(Level::Debug, "debug");
            log(Level::Info, "info");
            log(Level::Warn, "warn");
            log(Level::Error, "error");
            Ok(())
        }
        "remaining" => write(m, &remaining().as_millis().to_string()),
        "state" => {
            let mut state = m.state();
            state.push(b'x');
            m.set_state(&state)?;
            Err(delay("", Duration::from_secs(1)))?
        }
        "state-big" => Ok(m.set_state(&[0; 4097])?),
        "retry-after" => {
            let wait = parse_retry_after(first.as_bytes(), second.as_bytes());
            write(m, &wait.as_millis().to_string())
        }
        "http" => {
            let response = fetch(&Request {
                url: first,
                ..Request::default()
            })?;
            response.check()?;
            let header = response.header("X-Test").unwrap_or_default();
            write(
                m,
                &format!(
                    "{} {} {}",
                    response.status,
                    header,
                    String::from_utf8(response.body())?
                ),
            )
        }
        "kv" => write(m, &kv().join(",")),
        "send" => write(m, &answer(send_one("yes"), |()| "ok".into())),
        "send-broken" => write(m, &answer(send_one("yes\nno"), |()| "ok".into())),
        _ => crash(op),
    }
}

fn write(m: &Message, text: &str) -> guesthand::Result {
    Ok(m.write(text.as_bytes())?)
}

fn sum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |n, b| n.wrapping_add(u32::from(*b)))
}

/// An error as any library may have one, with the cause below it.
#[derive(Debug)]
struct Outer(Box<dyn std::error::Error>);

impl std::fmt::Display for Outer {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str("outer")
    }
}

impl std::error::Error for Outer {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.0)
    }
}

fn inner() -> Result<(), Error> {
    Err(permanent("inner")).context("outer")
}

fn fail(kind: &str, ms: &str, text: &str) -> guesthand::Result {
    let wait = Duration::from_millis(ms.parse()?);
    match kind {
        "retry" => Err(retry(text))?,
        "retry-after" => Err(retry_after(text, wait))?,
        "delay" => Err(delay(text, wait))?,
        "permanent" => Err(permanent(text))?,
        "reject" => Err(reject(text))?,
        "pause" => Err(pause(text, wait))?,
        _ => Err(text)?,
    }
}

fn attributes(m: &Message) -> String {
    let lines = [
        ("id", m.id()),
        ("job", m.job()),
        ("queue", m.queue()),
        ("attempt", m.attempt().to_string()),
        ("failures", m.failures().to_string()),
        ("delays", m.delays().to_string()),
        ("stalls", m.stalls().to_string()),
        ("interruptions", m.interruptions().to_string()),
        ("max_attempts", m.max_attempts().to_string()),
        ("enqueued_at", m.enqueued_at().to_string()),
        (
            "deadline",
            if m.deadline() > m.enqueued_at() {
                "later"
            } else {
                "none"
            }
            .into(),
        ),
        ("headers", m.headers().join(",")),
        ("header", m.header("x-tag").unwrap_or_default()),
        ("config", config("color").unwrap_or_default()),
        ("secret", secret("key").unwrap_or_default()),
        (
            "section",
            String::from_utf8_lossy(&section("conformance").unwrap_or_default()).into_owned(),
        ),
        ("traceparent", m.traceparent().unwrap_or_default()),
        ("none", config("none").unwrap_or_else(|| "absent".into())),
    ];
    lines
        .iter()
        .map(|(name, value)| format!("{}={}\n", name, value))
        .collect()
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

fn answer<T>(r: std::result::Result<T, Error>, ok: impl Fn(T) -> String) -> String {
    match r {
        Ok(value) => ok(value),
        Err(e) => e.answer().map_or_else(|| e.to_string(), |a| a.to_string()),
    }
}

fn kv() -> Vec<String> {
    let hour = Duration::from_secs(3600);
    let get = || {
        answer(kv_get("k"), |v| {
            v.map_or("absent".into(), |v| {
                String::from_utf8_lossy(&v).into_owned()
            })
        })
    };
    let create = |value: &[u8]| {
        answer(kv_create("k", value, hour), |new| {
            if new { "created" } else { "exists" }.into()
        })
    };
    let delete = || {
        answer(kv_delete("k"), |was| {
            if was { "ok" } else { "absent" }.into()
        })
    };
    vec![
        get(),
        create(b"1"),
        create(b"2"),
        get(),
        answer(kv_put("k", b"3", Duration::ZERO), |()| "ok".into()),
        get(),
        delete(),
        delete(),
    ]
}

fn send_one(header: &str) -> std::result::Result<(), Error> {
    send(&Outgoing {
        queue: "next",
        job: "conform",
        payload: b"hello",
        key: "k1",
        delay: Duration::from_secs(30),
        headers: &[("X-Test", header)],
    })
}

fn crash(op: &str) -> guesthand::Result {
    match op {
        "panic" => panic!("boom"),
        "bounds" => {
            let one = vec![0; op.len() - 5];
            Err(format!("read {}", one[op.len()]))?
        }
        "trap" => std::process::abort(),
        "loop" => loop {
            std::hint::spin_loop()
        },
        "grow" => {
            let mut hold = Vec::new();
            loop {
                hold.push(vec![1u8; 1 << 20]);
            }
        }
        _ => Err(permanent(format!("unknown operation {}", op)))?,
    }
}
