//! Replies as whole frames of bytes, for the connections that a limiter makes itself.
//!
//! The `redis` crate's parser takes more than 25,000 instructions for one map of FULL. So the stream below it hands each
//! array, map and bulk string over as one bulk string that holds the bytes of the reply, which the parser passes on at
//! once, and [`value`] reads them.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use redis::Value;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How much is read at once.
const CHUNK: usize = 16 * 1024;
/// How deep a reply may be nested. Those of the commands are three levels deep.
const DEPTH: u32 = 32;

/// A stream whose replies are packed.
pub(crate) struct Packed<S> {
    inner: S,
    /// Whether replies are packed by now. The `redis` crate reads those to its own commands, which come first, itself.
    packs: Arc<AtomicBool>,
    chunk: Box<[u8]>,
    /// What has arrived of a reply that is not complete.
    arrived: Vec<u8>,
    framing: Framing,
    /// What is to be handed over, from this position on.
    packed: Vec<u8>,
    at: usize,
}

impl<S> Packed<S> {
    pub fn new(inner: S, packs: Arc<AtomicBool>) -> Self {
        let chunk = vec![0; CHUNK].into_boxed_slice();
        Self { inner, packs, chunk, arrived: Vec::new(), framing: Framing::default(), packed: Vec::new(), at: 0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Packed<S> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if let Some(rest) = this.packed.get(this.at..).filter(|rest| !rest.is_empty()) {
                let (now, later) = rest.split_at(rest.len().min(into.remaining()));
                into.put_slice(now);
                this.at += now.len();
                if later.is_empty() {
                    this.packed.clear();
                    this.at = 0;
                }
                return Poll::Ready(Ok(()));
            }
            let mut chunk = ReadBuf::new(&mut this.chunk);
            ready!(Pin::new(&mut this.inner).poll_read(context, &mut chunk))?;
            if chunk.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            this.arrived.extend_from_slice(chunk.filled());
            let packs = this.packs.load(Relaxed);
            let mut rest = this.arrived.as_slice();
            while let Some(length) = this.framing.length(rest)? {
                let (reply, behind) = rest.split_at(length);
                pack(reply, packs, &mut this.packed)?;
                rest = behind;
            }
            let taken = this.arrived.len() - rest.len();
            this.arrived.drain(..taken);
        }
    }
}

fn pack(reply: &[u8], packs: bool, into: &mut Vec<u8>) -> io::Result<()> {
    if packs && matches!(reply.first(), Some(b'*' | b'%' | b'$')) {
        io::Write::write_fmt(into, format_args!("${}\r\n", reply.len()))?;
        into.extend_from_slice(reply);
        into.extend_from_slice(b"\r\n");
    } else {
        into.extend_from_slice(reply);
    }
    Ok(())
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Packed<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

/// Finds where a reply ends, and goes on where it was when more has arrived.
#[derive(Debug)]
struct Framing {
    /// How many bytes of the reply are known.
    at: usize,
    /// How many values are still to come.
    open: u64,
}

impl Default for Framing {
    fn default() -> Self {
        Self { at: 0, open: 1 }
    }
}

impl Framing {
    /// The length of the reply that the bytes begin with, if it is there as a whole.
    fn length(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        while self.open > 0 {
            let mut reader = Reader(bytes.get(self.at..).unwrap_or_default());
            let Some(line) = reader.line() else { return Ok(None) };
            let (kind, text) = line.split_first().ok_or_else(garbled)?;
            let number = || number(text).ok_or_else(garbled);
            // −1 stands for nothing.
            let values = match kind {
                b'*' | b'~' | b'>' => number()?.max(0).unsigned_abs(),
                b'%' => number()?.max(0).unsigned_abs().saturating_mul(2),
                // It stands in front of the value that it is about.
                b'|' => number()?.max(0).unsigned_abs().saturating_mul(2).saturating_add(1),
                b'$' | b'!' | b'=' => {
                    let length = number()?;
                    if length >= 0 && reader.text(length).is_none() {
                        return Ok(None);
                    }
                    0
                }
                _ => 0,
            };
            self.open = (self.open - 1).saturating_add(values);
            self.at = bytes.len() - reader.0.len();
        }
        Ok(Some(std::mem::take(self).at))
    }
}

fn garbled() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "what the server sent is no reply")
}

fn number(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// Reads a reply that was packed. `None` if it is of a kind that the commands never reply, garbled or nested too deep.
pub(crate) fn value(reply: &[u8]) -> Option<Value> {
    Reader(reply).value(DEPTH)
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn line(&mut self) -> Option<&'a [u8]> {
        let end = self.0.iter().position(|byte| *byte == b'\n')?;
        let (line, rest) = self.0.split_at_checked(end + 1)?;
        self.0 = rest;
        line.strip_suffix(b"\r\n")
    }

    fn text(&mut self, length: i64) -> Option<&'a [u8]> {
        let (text, rest) = self.0.split_at_checked(usize::try_from(length).ok()?)?;
        self.0 = rest.strip_prefix(b"\r\n")?;
        Some(text)
    }

    fn value(&mut self, depth: u32) -> Option<Value> {
        let depth = depth.checked_sub(1)?;
        let (kind, text) = self.line()?.split_first()?;
        Some(match kind {
            b':' => Value::Int(number(text)?),
            b'+' => Value::SimpleString(String::from_utf8(text.to_vec()).ok()?),
            b'_' => Value::Nil,
            b'$' | b'*' if text == b"-1" => Value::Nil,
            b'$' => Value::BulkString(self.text(number(text)?)?.to_vec()),
            b'*' => Value::Array(self.values(text, |reader| reader.value(depth))?),
            b'%' => Value::Map(self.values(text, |reader| Some((reader.value(depth)?, reader.value(depth)?)))?),
            _ => return None,
        })
    }

    fn values<T>(&mut self, count: &[u8], mut one: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = usize::try_from(number(count)?).ok()?;
        // Each takes three bytes at least.
        let mut values = Vec::with_capacity(count.min(self.0.len() / 3));
        for _ in 0..count {
            values.push(one(self)?);
        }
        Some(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    const REPLIES: &[&[u8]] = &[
        b"+OK\r\n",
        b"-ERR no\r\n",
        b":7\r\n",
        b"$-1\r\n",
        b"*-1\r\n",
        b"*0\r\n",
        b"$0\r\n\r\n",
        b"$4\r\n\r\n*1\r\n",
        b"*3\r\n:1\r\n:-2\r\n*2\r\n%1\r\n+used\r\n:3\r\n$1\r\nx\r\n",
        b">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n",
        b"|1\r\n+ttl\r\n:3\r\n*1\r\n_\r\n",
        b"%1\r\n+allowed\r\n:1\r\n",
    ];

    /// A stream that hands out `step` bytes at a time.
    struct Steps(Vec<u8>, usize);

    impl AsyncRead for Steps {
        fn poll_read(mut self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            let step = self.1.min(self.0.len());
            into.put_slice(&self.0.drain(..step).collect::<Vec<_>>());
            Poll::Ready(Ok(()))
        }
    }

    async fn packed(bytes: &[u8], step: usize, packs: bool) -> io::Result<Vec<u8>> {
        let mut stream = Packed::new(Steps(bytes.to_vec(), step), Arc::new(AtomicBool::new(packs)));
        let mut read = Vec::new();
        stream.read_to_end(&mut read).await.map(|_| read)
    }

    #[tokio::test]
    async fn each_reply_is_packed_however_it_arrives() {
        let bytes = REPLIES.concat();
        let mut expected = Vec::new();
        for reply in REPLIES {
            if matches!(reply[0], b'*' | b'%' | b'$') {
                expected.extend([format!("${}\r\n", reply.len()).as_bytes(), reply, b"\r\n"].concat());
            } else {
                expected.extend(*reply);
            }
        }
        for step in 1..=bytes.len() {
            assert_eq!(packed(&bytes, step, true).await.unwrap(), expected, "{step} at a time");
            assert_eq!(packed(&bytes, step, false).await.unwrap(), bytes, "{step} at a time");
        }
        for garbled in ["*x\r\n", "\r\n", "$y\r\n"] {
            assert!(packed(garbled.as_bytes(), 1, true).await.is_err(), "{garbled:?}");
        }
    }

    #[test]
    fn a_packed_reply_is_what_the_redis_crate_reads() {
        for reply in REPLIES.iter().filter(|reply| matches!(reply[0], b'*' | b'%' | b'$')) {
            assert_eq!(value(reply), Some(redis::parse_redis_value(reply).unwrap()), "{}", reply.escape_ascii());
            for end in 0..reply.len() {
                assert_eq!(value(&reply[..end]), None, "{}", reply[..end].escape_ascii());
            }
        }
        assert_eq!(value(&[b"*1\r\n".repeat(100), b":1\r\n".to_vec()].concat()), None);
        assert_eq!(value(b"*9223372036854775807\r\n:1\r\n"), None);
    }
}
