//! Replies are read here on the connections that a limiter makes itself.
//!
//! The `redis` crate's parser takes 25,000 instructions for one map of FULL, which is more than all else that a client does
//! for it. So the stream below it hands over each array, map and bulk string as one bulk string, its bytes as they came:
//! the parser passes that on at once, and [`read`] makes a value of it.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use redis::{RedisResult, Value};
use tokio::io::{AsyncRead, ReadBuf};

use crate::reply::{FIELDS, position};

/// How much is read at once.
const CHUNK: usize = 16 * 1024;
/// The longest reply that is taken. The longest that the commands make is the source of a function library.
const LONGEST: usize = 1024 * 1024;
/// How deep arrays may lie in arrays to be read here.
const DEPTH: usize = 8;

/// What is read from a server, its replies packed.
pub(crate) struct Packed<R> {
    inner: R,
    /// Whether replies are packed by now. The `redis` crate reads those to its own commands, which come first, itself.
    packs: Arc<AtomicBool>,
    chunk: Box<[u8]>,
    /// What has arrived of a reply that is not complete.
    arrived: Vec<u8>,
    /// What is to be handed over.
    packed: Vec<u8>,
}

impl<R> Packed<R> {
    pub fn new(inner: R, packs: Arc<AtomicBool>) -> Self {
        let chunk = vec![0; CHUNK].into_boxed_slice();
        Self { inner, packs, chunk, arrived: Vec::new(), packed: Vec::new() }
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Packed<R> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.packed.is_empty() {
            let mut chunk = ReadBuf::new(&mut this.chunk);
            ready!(Pin::new(&mut this.inner).poll_read(context, &mut chunk))?;
            if chunk.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.arrived.extend_from_slice(chunk.filled());
            let (packs, mut rest) = (this.packs.load(Relaxed), this.arrived.as_slice());
            while let Some(length) = length(rest)? {
                let (reply, behind) = rest.split_at(length);
                let is_packed = packs && matches!(reply.first(), Some(b'*' | b'%' | b'$'));
                if is_packed {
                    io::Write::write_fmt(&mut this.packed, format_args!("${length}\r\n"))?;
                }
                this.packed.extend_from_slice(reply);
                if is_packed {
                    this.packed.extend_from_slice(b"\r\n");
                }
                rest = behind;
            }
            let taken = this.arrived.len() - rest.len();
            this.arrived.drain(..taken);
        }
        let now = this.packed.len().min(into.remaining());
        into.put_slice(this.packed.get(..now).unwrap_or_default());
        this.packed.drain(..now);
        Poll::Ready(Ok(()))
    }
}

/// The kind of the part that the bytes begin with, the rest of its line, and what is behind that.
fn line(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (line, behind) = bytes.split_at_checked(bytes.iter().position(|byte| *byte == b'\n')? + 1)?;
    let (kind, text) = line.strip_suffix(b"\r\n")?.split_first()?;
    Some((*kind, text, behind))
}

fn number(text: &[u8]) -> Option<i64> {
    let (sign, digits) = match text.strip_prefix(b"-") {
        Some(digits) => (-1, digits),
        None => (1, text),
    };
    let add =
        |sum: i64, digit: &u8| sum.checked_mul(10)?.checked_add(sign * i64::from(char::from(*digit).to_digit(10)?));
    digits.split_first()?;
    digits.iter().try_fold(0, add)
}

/// The length of the reply that the bytes begin with, if it is there as a whole. An attribute belongs to the reply that it
/// says something about.
fn length(bytes: &[u8]) -> io::Result<Option<usize>> {
    let garbled = || io::Error::new(io::ErrorKind::InvalidData, "what the server sent is no reply");
    let (mut rest, mut open) = (bytes, 1_u64);
    while open > 0 {
        let Some((kind, text, behind)) = line(rest) else {
            // A line feed alone ends no line.
            let ends = rest.contains(&b'\n') || bytes.len() > LONGEST;
            return if ends { Err(garbled()) } else { Ok(None) };
        };
        rest = behind;
        open -= 1;
        if !matches!(kind, b'$' | b'!' | b'=' | b'*' | b'~' | b'>' | b'%' | b'|' | b':') {
            continue;
        }
        // Below 0: nothing, in RESP2.
        let number = number(text).filter(|number| kind == b':' || *number >= -1).ok_or_else(garbled)?;
        let count = u64::try_from(number).unwrap_or(0);
        match kind {
            b'$' | b'!' | b'=' if number >= 0 => {
                let length = usize::try_from(count).ok().filter(|length| *length <= LONGEST).ok_or_else(garbled)?;
                let Some((text, behind)) = rest.split_at_checked(length + 2) else { return Ok(None) };
                rest = if text.ends_with(b"\r\n") { behind } else { return Err(garbled()) };
            }
            b'*' | b'~' | b'>' => open = open.saturating_add(count),
            b'%' => open = open.saturating_add(count.saturating_mul(2)),
            b'|' => open = open.saturating_add(count.saturating_mul(2)).saturating_add(1),
            _ => {}
        }
    }
    Ok(Some(bytes.len() - rest.len()))
}

/// The value of a reply that was packed. An error in it is an error.
pub(crate) fn read(reply: &[u8]) -> RedisResult<Value> {
    value(&mut { reply }, DEPTH).map_or_else(|| redis::parse_redis_value(reply)?.extract_error(), Ok)
}

/// The name of a field: its position among those of FULL, so that these take no memory of their own, or any other value.
fn name(rest: &mut &[u8], depth: usize) -> Option<Value> {
    let (kind, text, mut behind) = line(rest)?;
    let text = match kind {
        b'+' => text,
        b'$' => bulk(&mut behind, text)?,
        _ => return value(rest, depth),
    };
    let Some(position) = position(text) else { return value(rest, depth) };
    *rest = behind;
    Some(Value::Int(i64::try_from(position).ok()?))
}

/// The text of a bulk string, behind the line with its length.
fn bulk<'a>(rest: &mut &'a [u8], length: &[u8]) -> Option<&'a [u8]> {
    let (text, behind) = rest.split_at_checked(usize::try_from(number(length)?).ok()?)?;
    *rest = behind.strip_prefix(b"\r\n")?;
    Some(text)
}

/// `None` for what the commands do not reply.
fn value(rest: &mut &[u8], depth: usize) -> Option<Value> {
    let (kind, text, behind) = line(rest)?;
    *rest = behind;
    let count = || usize::try_from(number(text)?).ok();
    let depth = depth.checked_sub(1)?;
    Some(match kind {
        b':' => Value::Int(number(text)?),
        b'+' if text == b"OK" => Value::Okay,
        b'+' => Value::SimpleString(std::str::from_utf8(text).ok()?.to_owned()),
        b'$' => Value::BulkString(bulk(rest, text)?.to_vec()),
        // Over RESP2 a map is an array.
        b'*' => Value::Array(list(count()?, || name(rest, depth))?),
        b'%' => Value::Map(list(count()?, || Some((name(rest, depth)?, value(rest, depth)?)))?),
        _ => return None,
    })
}

/// As many as there are to be, with room at once for what FULL has.
fn list<T>(count: usize, mut next: impl FnMut() -> Option<T>) -> Option<Vec<T>> {
    let mut all = Vec::with_capacity(count.min(2 * FIELDS.len()));
    for _ in 0..count {
        all.push(next()?);
    }
    Some(all)
}

#[cfg(test)]
#[path = "../tests/unit/wire.rs"]
mod tests;
