//! The guest SDK for Rust: what a handler uses of its host. It is one file without dependencies,
//! for Rust 1.63 and later in edition 2021; copy it into a project as the module `guesthand`.
//!
//! A handler is a function that gets a message and returns a [`Result`]:
//!
//! ```ignore
//! mod guesthand;
//! use guesthand::{decoded, permanent, retry_after, Context, Message};
//!
//! #[no_mangle]
//! pub extern "C" fn handle() -> i64 {
//!     guesthand::run(on_message)
//! }
//!
//! fn on_message(m: &Message) -> guesthand::Result {
//!     let order: Order = decoded(serde_json::from_slice(&m.payload()))?; // no Order: permanent
//!     if order.items.is_empty() {
//!         return Err(permanent("no items"))?;
//!     }
//!     let bank = connect().map_err(|e| retry_after(e, Duration::from_secs(30)))?;
//!     let receipt = bank.charge(&order).context("charge")?; // a retry, unless it is marked
//!     m.write(receipt.as_bytes())?;
//!     Ok(())
//! }
//! ```
//!
//! That is the native form, a `cdylib` for wasm32-unknown-unknown. The command form is a program
//! for wasm32-wasip1 (before Rust 1.78 wasm32-wasi):
//!
//! ```ignore
//! fn main() {
//!     guesthand::run_command(on_message)
//! }
//! ```
//!
//! # Outcomes
//!
//! `Ok` is success and any error a retry with the policy's backoff, unless it was marked by
//! [`permanent`], [`reject`], [`retry_after`], [`delay`], [`pause`] or [`retry`]. A marked error
//! stays marked through [`Context`], and as the `source()` of any other error; of several marks the
//! outermost wins. A panic is a retry whose error text is the panic's.
//!
//! # Without std
//!
//! With the feature `no_std` (`--cfg 'feature="no_std"'`) this file needs `core` alone and modules of
//! a few KiB come out. Texts are then cut at 512 bytes, what returns a `Vec` or `String` is not there
//! (the functions on `_into` are), and this file brings the panic handler.
//!
//! # What the host grants
//!
//! [`fetch`], [`send`] and the `kv_` functions fail with [`Answer::NotGranted`] until the host's
//! configuration grants them to this handler.
#![allow(dead_code, unknown_lints, unexpected_cfgs)]
#![allow(clippy::manual_is_multiple_of)] // which Rust 1.63 does not have

use core::fmt::{self, Display, Write};
use core::time::Duration;

#[cfg(not(feature = "no_std"))]
use std::error::Error as StdError;

/// What a handler returns: `?` takes any error into it, a `&str` and a `String` too.
#[cfg(not(feature = "no_std"))]
pub type Result<T = (), E = Box<dyn StdError>> = core::result::Result<T, E>;
/// What a handler returns: `?` takes an [`Error`], a `&str` and `core`'s parsing errors into it.
#[cfg(feature = "no_std")]
pub type Result<T = (), E = Error> = core::result::Result<T, E>;

/// Handles the message that the host is asking about and returns the outcome as a native module's
/// `handle` must.
pub fn run<E: Cause>(handle: fn(&Message) -> core::result::Result<(), E>) -> i64 {
    let o = finish(handle);
    (o.delay_ms << 8) as i64 | i64::from(o.code)
}

/// Handles the message and exits with its outcome, as a command must. An exit code holds whole
/// seconds: a delay is rounded up, and one over 194 days is a retry that says so.
#[cfg(not(feature = "no_std"))]
pub fn run_command<E: Cause>(handle: fn(&Message) -> core::result::Result<(), E>) {
    let o = finish(handle);
    let seconds = o.delay_ms / 1000 + u64::from(o.delay_ms % 1000 > 0);
    if seconds >= 1 << 24 {
        write_error("the delay does not fit a command's exit code");
        std::process::exit(1);
    }
    std::process::exit((seconds as i32) << 8 | i32::from(o.code))
}

fn finish<E: Cause>(handle: fn(&Message) -> core::result::Result<(), E>) -> Outcome {
    #[cfg(not(feature = "no_std"))]
    {
        static HOOK: std::sync::Once = std::sync::Once::new();
        HOOK.call_once(|| std::panic::set_hook(Box::new(|info| write_error(&info.to_string()))));
    }
    match handle(&Message(())) {
        Ok(()) => Outcome {
            code: 0,
            delay_ms: 0,
        },
        Err(e) => {
            let e = e.into_error();
            if !e.text.is_empty() {
                write_error(e.text.as_str());
            }
            e.outcome.unwrap_or(Outcome {
                code: RETRY,
                delay_ms: 0,
            })
        }
    }
}

fn write_error(text: &str) {
    unsafe { host::error_write(text.as_ptr(), text.len()) };
}

#[cfg(feature = "no_std")]
#[panic_handler]
fn on_panic(info: &core::panic::PanicInfo) -> ! {
    let mut text = Text::new();
    let _ = write!(text, "{}", info); // too long a text is cut
    write_error(text.as_str());
    core::arch::wasm32::unreachable()
}

// ---- Outcomes

const RETRY: u8 = 1;
const RETRY_AFTER: u8 = 10;
const DELAY: u8 = 11;
const PERMANENT: u8 = 12;
const REJECT: u8 = 13;
const PAUSE: u8 = 14;

/// What is to become of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Outcome {
    code: u8,
    delay_ms: u64,
}

impl Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self.code {
            RETRY_AFTER => "retry-after",
            DELAY => "delay",
            PERMANENT => "permanent",
            REJECT => "reject",
            PAUSE => "pause",
            _ => "retry",
        })
    }
}

/// An ordinary failure, retried after the policy's backoff. Errors without a mark are that
/// already; it takes back a mark that the cause has.
pub fn retry(cause: impl Cause) -> Error {
    cause.into_error().marked(RETRY, Duration::ZERO)
}

/// A failure to be retried in `wait` instead of the policy's backoff; zero means the backoff.
pub fn retry_after(cause: impl Cause, wait: Duration) -> Error {
    cause.into_error().marked(RETRY_AFTER, wait)
}

/// Another run in `wait`, 1 s at the least. Nothing failed and no attempt is spent; the cause says
/// what is waited for, `""` for nothing to say.
pub fn delay(cause: impl Cause, wait: Duration) -> Error {
    cause.into_error().marked(DELAY, wait)
}

/// A failure that no retry can help: the message becomes a dead letter. `permanent("")` has no
/// cause and is permanent all the same.
pub fn permanent(cause: impl Cause) -> Error {
    cause.into_error().marked(PERMANENT, Duration::ZERO)
}

/// The message is left to the broker's own rejection.
pub fn reject(cause: impl Cause) -> Error {
    cause.into_error().marked(REJECT, Duration::ZERO)
}

/// [`delay`], and this job takes no new message on this host for `wait` either.
pub fn pause(cause: impl Cause, wait: Duration) -> Error {
    cause.into_error().marked(PAUSE, wait)
}

/// The result of decoding the payload. What does not decode is permanent.
pub fn decoded<T, E: Cause>(r: core::result::Result<T, E>) -> core::result::Result<T, Error> {
    r.context("decode the payload").map_err(permanent)
}

/// An error with a text, perhaps a mark, and perhaps what the host answered.
pub struct Error {
    outcome: Option<Outcome>,
    answer: Option<Answer>,
    text: Text,
}

impl Error {
    /// An error without a mark: a retry.
    pub fn new(text: impl Display) -> Error {
        let mut e = Error {
            outcome: None,
            answer: None,
            text: Text::new(),
        };
        let _ = write!(e.text, "{}", text); // without std: too long a text is cut
        e
    }

    /// What the host answered, where a host call was the cause.
    pub fn answer(&self) -> Option<Answer> {
        self.answer
    }

    fn marked(mut self, code: u8, wait: Duration) -> Error {
        self.outcome = Some(Outcome {
            code,
            delay_ms: millis(wait).min(1 << 54),
        });
        self
    }

    fn host(doing: impl Display, n: i32) -> Error {
        let answer = Answer::from(n);
        let mut e = Error::new(format_args!("{}: {}", doing, answer));
        e.answer = Some(answer);
        e
    }
}

impl Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.outcome {
            Some(o) if self.text.is_empty() => o.fmt(f),
            _ => f.write_str(self.text.as_str()),
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} ({:?})", self, self.outcome)
    }
}

#[cfg(not(feature = "no_std"))]
impl StdError for Error {}

/// What an [`Error`] can be made of: any error, a `&str`, a `String`. Without std: an [`Error`], a
/// `&str`, and the errors of parsing in `core`.
pub trait Cause {
    fn into_error(self) -> Error;
}

#[cfg(not(feature = "no_std"))]
impl<E: Into<Box<dyn StdError>>> Cause for E {
    fn into_error(self) -> Error {
        let top = match self.into().downcast::<Error>() {
            Ok(own) => return *own,
            Err(other) => other,
        };
        let mut e = Error::new(&top);
        let mut next = top.source();
        while let Some(cause) = next {
            let text = cause.to_string();
            if !e.text.contains(&text) {
                e.text = e.text + ": " + &text;
            }
            if let Some(own) = cause.downcast_ref::<Error>() {
                e.outcome = own.outcome;
                e.answer = own.answer;
                break;
            }
            next = cause.source();
        }
        e
    }
}

#[cfg(feature = "no_std")]
mod causes {
    use super::{Cause, Error};

    impl Cause for Error {
        fn into_error(self) -> Error {
            self
        }
    }

    macro_rules! cause {
        ($($t:ty),*) => {$(
            impl Cause for $t {
                fn into_error(self) -> Error {
                    Error::new(self)
                }
            }
            impl From<$t> for Error {
                fn from(e: $t) -> Error {
                    Error::new(e)
                }
            }
        )*};
    }
    cause!(
        &str,
        core::fmt::Error,
        core::str::Utf8Error,
        core::str::ParseBoolError
    );
    cause!(
        core::num::ParseIntError,
        core::num::ParseFloatError,
        core::num::TryFromIntError
    );
}

/// Puts words before an error's text and keeps its mark.
pub trait Context<T> {
    fn context(self, what: impl Display) -> core::result::Result<T, Error>;
}

impl<T, E: Cause> Context<T> for core::result::Result<T, E> {
    fn context(self, what: impl Display) -> core::result::Result<T, Error> {
        self.map_err(|e| {
            let inner = e.into_error();
            let mut outer = Error::new(format_args!("{}: {}", what, inner));
            outer.outcome = inner.outcome;
            outer.answer = inner.answer;
            outer
        })
    }
}

/// What the host answers instead of doing what it was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Absent,
    NotGranted,
    /// Too large, or over a quota.
    TooLarge,
    /// An I/O error.
    Unavailable,
    Malformed,
    TimedOut,
    Other(i32),
}

impl From<i32> for Answer {
    fn from(n: i32) -> Answer {
        match n {
            -1 => Answer::Absent,
            -2 => Answer::NotGranted,
            -3 => Answer::TooLarge,
            -4 => Answer::Unavailable,
            -5 => Answer::Malformed,
            -6 => Answer::TimedOut,
            other => Answer::Other(other),
        }
    }
}

impl Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Answer::Absent => "absent",
            Answer::NotGranted => "not granted",
            Answer::TooLarge => "too large",
            Answer::Unavailable => "not available",
            Answer::Malformed => "malformed",
            Answer::TimedOut => "timed out",
            Answer::Other(n) => return write!(f, "host error {}", n),
        })
    }
}

/// Rounded up: a delay is never shortened, and no time is not the same as very little.
fn millis(d: Duration) -> u64 {
    d.as_millis().min(1 << 62) as u64 + u64::from(d.subsec_nanos() % 1_000_000 > 0)
}

/// A host call's answer as a result; what is not negative is its value.
fn asked(doing: impl Display, n: i32) -> core::result::Result<usize, Error> {
    if n < 0 {
        return Err(Error::host(doing, n));
    }
    Ok(n as usize)
}

// ---- The message

/// The message being handled. What it wraps is read from the host when it is asked for.
pub struct Message(());

impl Message {
    /// The producer's bytes.
    #[cfg(not(feature = "no_std"))]
    pub fn payload(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.payload_size()];
        let n = self.payload_into(&mut bytes).len();
        bytes.truncate(n);
        bytes
    }

    /// The payload's size in bytes.
    pub fn payload_size(&self) -> usize {
        unsafe { host::payload_size() as usize }
    }

    /// As much of the payload as fits.
    pub fn payload_into<'a>(&self, buf: &'a mut [u8]) -> &'a [u8] {
        let n = unsafe { host::payload_read(buf.as_mut_ptr(), buf.len(), 0) };
        &buf[..n as usize]
    }

    /// The payload as anything that is parsed from text, a number for example. What does not parse
    /// is permanent. For other formats see [`decoded`].
    #[cfg(not(feature = "no_std"))]
    pub fn parse<T: std::str::FromStr>(&self) -> core::result::Result<T, Error>
    where
        T::Err: Cause,
    {
        let text = decoded(String::from_utf8(self.payload()))?;
        decoded(text.trim().parse())
    }

    /// Appends to the run's result, which the host uses when the run succeeds. `TooLarge` where it
    /// is over the handler's limit.
    pub fn write(&self, bytes: &[u8]) -> core::result::Result<(), Error> {
        let n = unsafe { host::result_write(bytes.as_ptr(), bytes.len()) };
        asked("write the result", n).map(drop)
    }

    /// The number of this run, from 1. It counts every run; the four below say how the earlier
    /// ones ended.
    pub fn attempt(&self) -> u32 {
        number("attempt") as u32
    }
    pub fn failures(&self) -> u32 {
        number("failures") as u32
    }
    pub fn delays(&self) -> u32 {
        number("delays") as u32
    }
    pub fn stalls(&self) -> u32 {
        number("stalls") as u32
    }
    pub fn interruptions(&self) -> u32 {
        number("interruptions") as u32
    }

    /// How many failures the message may have in all, 0 for no cap.
    pub fn max_attempts(&self) -> u32 {
        number("max_attempts") as u32
    }

    /// When the message was sent, in Unix milliseconds; 0 where that is not known.
    pub fn enqueued_at(&self) -> u64 {
        number("enqueued_at")
    }

    /// When the host stops this run, in Unix milliseconds. See [`remaining`].
    pub fn deadline(&self) -> u64 {
        number("deadline")
    }

    /// What an earlier run of this message, or this one, left with `set_state`.
    #[cfg(not(feature = "no_std"))]
    pub fn state(&self) -> Vec<u8> {
        sized(|p, n| unsafe { host::state_read(p, n) }).unwrap_or_default()
    }

    /// As much of the state as fits; 4096 bytes always do.
    pub fn state_into<'a>(&self, buf: &'a mut [u8]) -> &'a [u8] {
        let n = unsafe { host::state_read(buf.as_mut_ptr(), buf.len()) };
        let n = (n as usize).min(buf.len());
        &buf[..n]
    }

    /// Keeps up to 4 KiB for the next run of this message, on whatever worker. It is kept when the
    /// handler returns a retry, retry-after, delay or pause, and not after a panic.
    pub fn set_state(&self, bytes: &[u8]) -> core::result::Result<(), Error> {
        let n = unsafe { host::state_write(bytes.as_ptr(), bytes.len()) };
        asked("write the state", n).map(drop)
    }
}

#[cfg(not(feature = "no_std"))]
impl Message {
    /// The message's id, the same in every run of it.
    pub fn id(&self) -> String {
        attribute("id").unwrap_or_default()
    }

    /// What was asked for.
    pub fn job(&self) -> String {
        attribute("job").unwrap_or_default()
    }

    /// Where the message came from.
    pub fn queue(&self) -> String {
        attribute("queue").unwrap_or_default()
    }

    /// The names of the message's headers.
    pub fn headers(&self) -> Vec<String> {
        attribute("headers")
            .unwrap_or_default()
            .lines()
            .map(String::from)
            .collect()
    }

    /// A header's first value, its name without regard to case.
    pub fn header(&self, name: &str) -> Option<String> {
        attribute(&format!("header.{}", name))
    }

    /// The W3C trace context that the message came with.
    pub fn traceparent(&self) -> Option<String> {
        attribute("traceparent")
    }
}

/// A value from the handler's configuration.
#[cfg(not(feature = "no_std"))]
pub fn config(name: &str) -> Option<String> {
    attribute(&format!("config.{}", name))
}

/// A secret that the configuration gives this handler.
#[cfg(not(feature = "no_std"))]
pub fn secret(name: &str) -> Option<String> {
    attribute(&format!("secret.{}", name))
}

/// A custom section of this module.
#[cfg(not(feature = "no_std"))]
pub fn section(name: &str) -> Option<Vec<u8>> {
    let name = format!("section.{}", name);
    sized(|p, n| unsafe { host::attribute_read(name.as_ptr(), name.len(), p, n) })
}

/// Any attribute by its name in the ABI: `"id"`, `"header.Content-Type"`.
#[cfg(not(feature = "no_std"))]
pub fn attribute(name: &str) -> Option<String> {
    sized(|p, n| unsafe { host::attribute_read(name.as_ptr(), name.len(), p, n) })
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// As much of an attribute as fits: `"id"`, `"job"`, `"queue"`, `"headers"` (one a line), `"traceparent"`,
/// `"header.NAME"`, `"config.NAME"`, `"secret.NAME"`, `"section.NAME"`.
pub fn attribute_into<'a>(name: &str, buf: &'a mut [u8]) -> Option<&'a [u8]> {
    let n = unsafe { host::attribute_read(name.as_ptr(), name.len(), buf.as_mut_ptr(), buf.len()) };
    if n < 0 {
        return None;
    }
    let n = (n as usize).min(buf.len());
    Some(&buf[..n])
}

fn number(name: &str) -> u64 {
    let digits = &mut [0; 24];
    let digits = attribute_into(name, digits).unwrap_or_default();
    digits
        .iter()
        .filter(|d| d.is_ascii_digit())
        .fold(0, |n, d| n * 10 + u64::from(d - b'0'))
}

/// The time until the run's deadline or, once the host is stopping, until the end of its drain. At
/// zero it is time to return.
pub fn remaining() -> Duration {
    Duration::from_millis(unsafe { host::remaining() }.max(0) as u64)
}

/// A log line's severity, with the numbers of Go's log/slog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Debug = -4,
    Info = 0,
    Warn = 4,
    Error = 8,
}

/// Writes a line to the host's log.
pub fn log(level: Level, text: &str) {
    unsafe { host::log_write(level as i32, text.as_ptr(), text.len()) }
}

// ---- HTTP

/// An HTTP request that the host is to make.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    pub method: &'a str,
    pub url: &'a str,
    pub headers: &'a [(&'a str, &'a str)],
    pub body: &'a [u8],
}

impl Default for Request<'_> {
    fn default() -> Self {
        Request {
            method: "GET",
            url: "",
            headers: &[],
            body: &[],
        }
    }
}

/// What a server answered. The host keeps the latest response only: read what you need of one
/// before you fetch the next.
pub struct Response {
    pub status: u16,
    latest: (),
}

/// Makes a request. An error means that there was no answer, whatever status one would have had;
/// see [`Response::check`]. Without std the request's head is at most 2048 bytes.
pub fn fetch(r: &Request) -> core::result::Result<Response, Error> {
    let mut head = Head::new();
    let body = r.body;
    let n = match head
        .first(r.method, r.url)
        .and_then(|()| head.lines(r.headers))
    {
        Ok(()) => unsafe {
            let head = head.text.as_str();
            host::http_send(head.as_ptr(), head.len(), body.as_ptr(), body.len())
        },
        Err(n) => n,
    };
    let status = asked(format_args!("{} {}", r.method, r.url), n)? as u16;
    Ok(Response { status, latest: () })
}

impl Response {
    /// A header's value.
    #[cfg(not(feature = "no_std"))]
    pub fn header(&self, name: &str) -> Option<String> {
        sized(|p, n| unsafe { host::http_header_read(name.as_ptr(), name.len(), p, n) })
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// As much of a header's value as fits.
    pub fn header_into<'a>(&self, name: &str, buf: &'a mut [u8]) -> Option<&'a [u8]> {
        let n = unsafe {
            host::http_header_read(name.as_ptr(), name.len(), buf.as_mut_ptr(), buf.len())
        };
        if n < 0 {
            return None;
        }
        let n = (n as usize).min(buf.len());
        Some(&buf[..n])
    }

    /// The whole body.
    #[cfg(not(feature = "no_std"))]
    pub fn body(&self) -> Vec<u8> {
        let mut bytes = vec![0; unsafe { host::http_body_size() }.max(0) as usize];
        let n = self.body_into(&mut bytes).len();
        bytes.truncate(n);
        bytes
    }

    /// As much of the body as fits.
    pub fn body_into<'a>(&self, buf: &'a mut [u8]) -> &'a [u8] {
        let n = unsafe { host::http_body_read(buf.as_mut_ptr(), buf.len(), 0) };
        &buf[..n.max(0) as usize]
    }

    /// `Ok` for a status below 400. Of 429 and 503 with Retry-After it makes a [`retry_after`], and
    /// an error without a mark of everything else, so that a client's whole care is
    ///
    /// ```ignore
    /// let response = fetch(&request)?;
    /// response.check()?;
    /// ```
    pub fn check(&self) -> core::result::Result<(), Error> {
        if self.status < 400 {
            return Ok(());
        }
        let e = Error::new(format_args!("the server answered {}", self.status));
        let (wait, date) = (&mut [0; 40], &mut [0; 40]);
        match self.header_into("Retry-After", wait) {
            Some(wait) if self.status == 429 || self.status == 503 => {
                let date = self.header_into("Date", date).unwrap_or_default();
                Err(retry_after(e, parse_retry_after(wait, date)))
            }
            _ => Err(e),
        }
    }
}

/// What a Retry-After header means: seconds, or a date, which counts from the response's own Date,
/// since clocks differ. Zero, the policy's backoff, for anything else.
pub fn parse_retry_after(value: &[u8], date: &[u8]) -> Duration {
    const YEAR: u64 = 365 * 24 * 3600;
    let seconds = if !value.is_empty() && value.iter().all(u8::is_ascii_digit) {
        value.iter().fold(0, |n: u64, d| {
            n.saturating_mul(10).saturating_add(u64::from(d - b'0'))
        })
    } else {
        match (http_date(value), http_date(date)) {
            (Some(until), Some(now)) => until.saturating_sub(now),
            _ => 0,
        }
    };
    Duration::from_secs(seconds.min(YEAR))
}

/// Unix seconds of `Sun, 06 Nov 1994 08:49:37 GMT`.
fn http_date(s: &[u8]) -> Option<u64> {
    if s.len() != 29 || s[16] != b' ' || s[19] != b':' || s[22] != b':' {
        return None;
    }
    let two = |i: usize| -> Option<u64> {
        let (a, b) = (s[i], s[i + 1]);
        (a.is_ascii_digit() && b.is_ascii_digit())
            .then(|| u64::from(a - b'0') * 10 + u64::from(b - b'0'))
    };
    let month = b"JanFebMarAprMayJunJulAugSepOctNovDec"
        .chunks(3)
        .position(|m| *m == s[8..11])? as u64;
    let (day, year) = (two(5)?, two(12)? * 100 + two(14)?);
    // Days since 1970 with years that begin in March, so that the leap day is the last.
    let y = year.checked_sub((month < 2) as u64)?;
    let days = (365 * y + y / 4 - y / 100 + y / 400 + (153 * ((month + 10) % 12) + 2) / 5 + day)
        .checked_sub(719469)?;
    Some(((days * 24 + two(17)?) * 60 + two(20)?) * 60 + two(23)?)
}

// ---- Keys and values: keys are up to 256 bytes; the host gives each handler keys of its own,
// shared by all hosts.

/// A key's value.
#[cfg(not(feature = "no_std"))]
pub fn kv_get(key: impl AsRef<[u8]>) -> core::result::Result<Option<Vec<u8>>, Error> {
    let key = key.as_ref();
    let mut buf = vec![0; 256];
    loop {
        let size = match kv_read(key, &mut buf)? {
            None => return Ok(None),
            Some(size) => size,
        };
        let fits = size <= buf.len();
        buf.resize(size, 0);
        if fits {
            return Ok(Some(buf));
        }
    }
}

/// As much of a key's value as fits.
pub fn kv_get_into(
    key: impl AsRef<[u8]>,
    buf: &mut [u8],
) -> core::result::Result<Option<&[u8]>, Error> {
    let size = kv_read(key.as_ref(), buf)?;
    Ok(size.map(move |size| &buf[..size.min(buf.len())]))
}

fn kv_read(key: &[u8], buf: &mut [u8]) -> core::result::Result<Option<usize>, Error> {
    let n = unsafe { host::kv_get(key.as_ptr(), key.len(), buf.as_mut_ptr(), buf.len()) };
    absent("kv get", n)
}

/// A host call that answers `Absent` where there is nothing, which is no error.
fn absent(doing: &str, n: i32) -> core::result::Result<Option<usize>, Error> {
    if Answer::from(n) == Answer::Absent {
        return Ok(None);
    }
    asked(doing, n).map(Some)
}

/// Stores a value for `ttl`, zero for good.
pub fn kv_put(
    key: impl AsRef<[u8]>,
    value: &[u8],
    ttl: Duration,
) -> core::result::Result<(), Error> {
    let (key, ttl) = (key.as_ref(), millis(ttl) as i64);
    let n = unsafe { host::kv_put(key.as_ptr(), key.len(), value.as_ptr(), value.len(), ttl) };
    asked("kv put", n).map(drop)
}

/// Stores a value only where there is none. Of all that try at once, on any host, one is told true.
pub fn kv_create(
    key: impl AsRef<[u8]>,
    value: &[u8],
    ttl: Duration,
) -> core::result::Result<bool, Error> {
    let (key, ttl) = (key.as_ref(), millis(ttl) as i64);
    let n = unsafe { host::kv_create(key.as_ptr(), key.len(), value.as_ptr(), value.len(), ttl) };
    Ok(asked("kv create", n)? == 0)
}

/// Removes a key; false where there was none.
pub fn kv_delete(key: impl AsRef<[u8]>) -> core::result::Result<bool, Error> {
    let key = key.as_ref();
    let n = unsafe { host::kv_delete(key.as_ptr(), key.len()) };
    Ok(absent("kv delete", n)?.is_some())
}

// ---- Sending

/// A message to send when the run succeeds.
#[derive(Clone, Copy, Default)]
pub struct Outgoing<'a> {
    pub queue: &'a str,
    pub job: &'a str,
    pub payload: &'a [u8],
    /// Asks the broker to drop a second message with this key.
    pub key: &'a str,
    /// How long it waits before its first run.
    pub delay: Duration,
    pub headers: &'a [(&'a str, &'a str)],
}

/// Hands a message to the host, which publishes it if this run succeeds, before the
/// acknowledgement, and drops it if not. Without std its head is at most 2048 bytes.
pub fn send(o: &Outgoing) -> core::result::Result<(), Error> {
    let mut head = Head::new();
    let n = match head.outgoing(o) {
        Ok(()) => unsafe {
            let head = head.text.as_str();
            host::message_send(
                head.as_ptr(),
                head.len(),
                o.payload.as_ptr(),
                o.payload.len(),
            )
        },
        Err(n) => n,
    };
    asked(format_args!("send to {}", o.queue), n).map(drop)
}

/// The head of a request or message: a first line and `Name: value` lines. Errors are the host's.
struct Head {
    text: HeadText,
}

impl Head {
    const TOO_LARGE: i32 = -3;
    const MALFORMED: i32 = -5;

    fn new() -> Head {
        Head {
            text: HeadText::new(),
        }
    }

    fn first(&mut self, a: &str, b: &str) -> core::result::Result<(), i32> {
        self.add(a)?;
        self.text.write_str(" ").map_err(|_| Head::TOO_LARGE)?;
        self.add(b)
    }

    /// A line break within would make a line of the caller's input.
    fn add(&mut self, s: &str) -> core::result::Result<(), i32> {
        if s.contains(['\r', '\n']) {
            return Err(Head::MALFORMED);
        }
        self.text.write_str(s).map_err(|_| Head::TOO_LARGE)
    }

    fn line(&mut self, name: &str, value: &str) -> core::result::Result<(), i32> {
        self.text.write_str("\n").map_err(|_| Head::TOO_LARGE)?;
        self.add(name)?;
        self.text.write_str(": ").map_err(|_| Head::TOO_LARGE)?;
        self.add(value)
    }

    fn lines(&mut self, headers: &[(&str, &str)]) -> core::result::Result<(), i32> {
        headers
            .iter()
            .try_for_each(|(name, value)| self.line(name, value))
    }

    fn outgoing(&mut self, o: &Outgoing) -> core::result::Result<(), i32> {
        self.first(o.queue, o.job)?;
        if !o.key.is_empty() {
            self.line("Key", o.key)?;
        }
        if o.delay > Duration::ZERO {
            write!(self.text, "\nDelay: {}ms", millis(o.delay)).map_err(|_| Head::TOO_LARGE)?;
        }
        self.lines(o.headers)
    }
}

// ---- Texts

#[cfg(not(feature = "no_std"))]
type Text = String;
#[cfg(not(feature = "no_std"))]
type HeadText = String;
#[cfg(feature = "no_std")]
type Text = Fixed<512>;
#[cfg(feature = "no_std")]
type HeadText = Fixed<2048>;

/// A text of at most N bytes. Writing more cuts it and is an error.
pub struct Fixed<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Fixed<N> {
    pub fn new() -> Self {
        Fixed {
            bytes: [0; N],
            len: 0,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..self.len]).unwrap_or_default()
    }
}

impl<const N: usize> Write for Fixed<N> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let mut n = s.len().min(N - self.len);
        while !s.is_char_boundary(n) {
            n -= 1;
        }
        self.bytes[self.len..self.len + n].copy_from_slice(&s.as_bytes()[..n]);
        self.len += n;
        if n == s.len() {
            Ok(())
        } else {
            Err(fmt::Error)
        }
    }
}

/// Reads what has no known size: the host returns the full size and copies what fits.
#[cfg(not(feature = "no_std"))]
fn sized(read: impl Fn(*mut u8, usize) -> i32) -> Option<Vec<u8>> {
    let mut buf = vec![0; 256];
    loop {
        let n = read(buf.as_mut_ptr(), buf.len());
        if n < 0 {
            return None;
        }
        let fits = n as usize <= buf.len();
        buf.resize(n as usize, 0);
        if fits {
            return Some(buf);
        }
    }
}

mod host {
    #[link(wasm_import_module = "guesthand_v1")]
    extern "C" {
        pub fn payload_size() -> i32;
        pub fn payload_read(dst: *mut u8, len: usize, offset: usize) -> i32;
        pub fn attribute_read(name: *const u8, name_len: usize, dst: *mut u8, len: usize) -> i32;
        pub fn result_write(ptr: *const u8, len: usize) -> i32;
        pub fn error_write(ptr: *const u8, len: usize) -> i32;
        pub fn log_write(level: i32, ptr: *const u8, len: usize);
        pub fn remaining() -> i64;
        pub fn state_read(dst: *mut u8, len: usize) -> i32;
        pub fn state_write(ptr: *const u8, len: usize) -> i32;
        pub fn http_send(head: *const u8, head_len: usize, body: *const u8, body_len: usize)
            -> i32;
        pub fn http_header_read(name: *const u8, name_len: usize, dst: *mut u8, len: usize) -> i32;
        pub fn http_body_size() -> i32;
        pub fn http_body_read(dst: *mut u8, len: usize, offset: usize) -> i32;
        pub fn kv_get(key: *const u8, key_len: usize, dst: *mut u8, len: usize) -> i32;
        pub fn kv_put(
            key: *const u8,
            key_len: usize,
            val: *const u8,
            val_len: usize,
            ttl_ms: i64,
        ) -> i32;
        pub fn kv_create(
            key: *const u8,
            key_len: usize,
            val: *const u8,
            val_len: usize,
            ttl_ms: i64,
        ) -> i32;
        pub fn kv_delete(key: *const u8, key_len: usize) -> i32;
        pub fn message_send(
            head: *const u8,
            head_len: usize,
            body: *const u8,
            body_len: usize,
        ) -> i32;
    }
}
