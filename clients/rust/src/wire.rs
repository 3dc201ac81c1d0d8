//! Replies are read here on the connections that a limiter makes itself.
//!
//! The `redis` crate's parser takes more than 25,000 instructions for one map of FULL. So the stream below it reads each
//! array, map and bulk string, and hands its parts over as one bulk string, which the parser passes on at once.
//! [`Reply::items`] takes them from there.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};

use redis::Value;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::error::Error;

/// How many calls may wait to be written to a connection.
pub(crate) const QUEUE: usize = 16_384;
/// How much is read at once.
const CHUNK: usize = 16 * 1024;
/// The longest reply that is taken. The longest that the commands make is the source of a function library.
const LONGEST: usize = 1024 * 1024;

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
                pack(reply, packs.then_some(&this.framing.parts), &mut this.packed)?;
                rest = behind;
            }
            let taken = this.arrived.len() - rest.len();
            this.arrived.drain(..taken);
        }
    }
}

/// Writes what the `redis` crate is to read: the reply, or, where they are given, the parts of an array, map or bulk string.
fn pack(reply: &[u8], parts: Option<&Vec<u8>>, into: &mut Vec<u8>) -> io::Result<()> {
    match (reply.first(), parts) {
        // An attribute says something about the reply behind it, which the commands never do.
        (Some(b'|'), Some(_)) => {}
        (Some(b'*' | b'%' | b'$'), Some(parts)) => {
            io::Write::write_fmt(into, format_args!("${}\r\n", parts.len()))?;
            into.extend_from_slice(parts);
            into.extend_from_slice(b"\r\n");
        }
        _ => into.extend_from_slice(reply),
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

/// Reads a reply, and goes on where it was when more has arrived. An attribute in front of a reply is read as if it were
/// one.
#[derive(Debug)]
struct Framing {
    /// How many bytes of the reply are read.
    at: usize,
    /// How many values are still to come.
    open: i64,
    /// Each part: its kind, eight bytes of its number (of a text its length), and its text.
    parts: Vec<u8>,
}

impl Default for Framing {
    fn default() -> Self {
        Self { at: 0, open: 1, parts: Vec::new() }
    }
}

impl Framing {
    /// The length of the reply that the bytes begin with, if it is there as a whole. Then `parts` are those of the reply.
    fn length(&mut self, bytes: &[u8]) -> io::Result<Option<usize>> {
        if self.at == 0 {
            self.parts.clear();
        }
        let mut reader = Reader(bytes.get(self.at..).unwrap_or_default());
        while self.open > 0 {
            let (kind, number, text) = match reader.part() {
                Ok(part) => part,
                Err(Stop::End) if bytes.len() <= LONGEST => return Ok(None),
                Err(_) => return Err(io::Error::new(io::ErrorKind::InvalidData, "what the server sent is no reply")),
            };
            let values = match kind {
                b'*' | b'~' | b'>' => number,
                b'%' => number.saturating_mul(2),
                // It stands in front of the value that it is about.
                b'|' => number.saturating_mul(2).saturating_add(i64::from(self.at > 0)),
                _ => 0,
            };
            self.open = (self.open - 1).saturating_add(values);
            self.parts.push(kind);
            self.parts.extend_from_slice(&number.to_ne_bytes());
            self.parts.extend_from_slice(text);
            self.at = bytes.len() - reader.0.len();
        }
        self.open = 1;
        Ok(Some(std::mem::take(&mut self.at)))
    }
}

/// Reads the parts of a reply from its bytes.
struct Reader<'a>(&'a [u8]);

/// Why there is no part.
#[derive(Debug, PartialEq)]
enum Stop {
    /// It is not there as a whole.
    End,
    Garbled,
}

impl<'a> Reader<'a> {
    /// The next part: its kind, its number (of a text its length), and its text.
    fn part(&mut self) -> Result<(u8, i64, &'a [u8]), Stop> {
        let (&kind, rest) = self.0.split_first().ok_or(Stop::End)?;
        self.0 = rest;
        if !matches!(kind, b':' | b'*' | b'~' | b'>' | b'%' | b'|' | b'$' | b'!' | b'=') {
            let line = self.line()?;
            return Ok((kind, i64::try_from(line.len()).unwrap_or(i64::MAX), line));
        }
        let number = self.number()?;
        match kind {
            b':' => Ok((kind, number, &[])),
            // Nothing, in RESP2.
            _ if number == -1 => Ok((b'_', 0, &[])),
            _ if number < 0 => Err(Stop::Garbled),
            b'$' | b'!' | b'=' => Ok((kind, number, self.text(number)?)),
            _ => Ok((kind, number, &[])),
        }
    }

    fn line(&mut self) -> Result<&'a [u8], Stop> {
        let end = self.0.iter().position(|byte| *byte == b'\n').ok_or(Stop::End)?;
        let (line, rest) = self.0.split_at(end + 1);
        self.0 = rest;
        line.strip_suffix(b"\r\n").ok_or(Stop::Garbled)
    }

    fn number(&mut self) -> Result<i64, Stop> {
        let (mut rest, sign) = self.0.strip_prefix(b"-").map_or((self.0, 1), |rest| (rest, -1));
        if rest.starts_with(b"\r") {
            return Err(Stop::Garbled);
        }
        let mut number = 0_i64;
        while let [digit @ b'0'..=b'9', behind @ ..] = rest {
            let digit = sign * i64::from(digit - b'0');
            number = number.checked_mul(10).and_then(|number| number.checked_add(digit)).ok_or(Stop::Garbled)?;
            rest = behind;
        }
        self.end_line(rest)?;
        Ok(number)
    }

    fn text(&mut self, length: i64) -> Result<&'a [u8], Stop> {
        let length = usize::try_from(length).ok().filter(|length| *length <= LONGEST).ok_or(Stop::Garbled)?;
        let (text, rest) = self.0.split_at_checked(length).ok_or(Stop::End)?;
        self.end_line(rest)?;
        Ok(text)
    }

    /// Goes on behind the end of a line, which has to be here.
    fn end_line(&mut self, rest: &'a [u8]) -> Result<(), Stop> {
        self.0 = match rest {
            [b'\r', b'\n', rest @ ..] => rest,
            [] | [b'\r'] => return Err(Stop::End),
            _ => return Err(Stop::Garbled),
        };
        Ok(())
    }
}

/// A reply to a command, as it was received.
#[derive(Debug)]
pub(crate) enum Reply {
    /// The parts of a reply that was packed.
    Packed(Vec<u8>),
    /// What a connection of the `redis` crate has read.
    Value(Value),
}

/// A part of a reply. An array of n elements is followed by those, a map of n fields by n names and values in turn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Item<'a> {
    Nil,
    Int(i64),
    Text(&'a [u8]),
    /// A set, too.
    Array(usize),
    Map(usize),
    /// As a map, which says something about the part behind it. Never handed out.
    Attribute(usize),
    /// An error within a reply.
    Error(&'a [u8]),
    /// What the commands never reply.
    Other,
}

impl Item<'_> {
    /// How many parts follow that belong to it.
    fn parts(self) -> usize {
        match self {
            Self::Array(elements) => elements,
            Self::Map(fields) | Self::Attribute(fields) => fields.saturating_mul(2),
            _ => 0,
        }
    }

    /// An error that says what stands in place of what was expected.
    pub fn in_place_of(self, expected: &str) -> Error {
        Error::Unexpected(match self {
            Self::Text(text) => format!("{:?} in place of {expected}", text.escape_ascii().to_string()),
            Self::Error(text) => format!("the error {:?} in place of {expected}", text.escape_ascii().to_string()),
            other => format!("{other:?} in place of {expected}"),
        })
    }
}

/// The parts of a reply, in their order.
pub(crate) enum Items<'a> {
    Packed(&'a [u8]),
    Read(std::vec::IntoIter<Item<'a>>),
}

impl Reply {
    pub fn items(&self) -> Items<'_> {
        match self {
            Self::Packed(parts) => Items::Packed(parts),
            Self::Value(value) => {
                let mut items = Vec::new();
                flatten(value, &mut items);
                Items::Read(items.into_iter())
            }
        }
    }
}

fn flatten<'a>(value: &'a Value, into: &mut Vec<Item<'a>>) {
    match value {
        Value::Nil => into.push(Item::Nil),
        Value::Int(number) => into.push(Item::Int(*number)),
        Value::BulkString(text) => into.push(Item::Text(text)),
        Value::SimpleString(text) => into.push(Item::Text(text.as_bytes())),
        Value::Array(elements) | Value::Set(elements) => {
            into.push(Item::Array(elements.len()));
            elements.iter().for_each(|element| flatten(element, into));
        }
        Value::Map(fields) => {
            into.push(Item::Map(fields.len()));
            for (name, value) in fields {
                flatten(name, into);
                flatten(value, into);
            }
        }
        Value::Attribute { data, .. } => flatten(data, into),
        Value::ServerError(error) => into.push(Item::Error(error.code().as_bytes())),
        _ => into.push(Item::Other),
    }
}

impl<'a> Iterator for Items<'a> {
    type Item = Item<'a>;

    fn next(&mut self) -> Option<Item<'a>> {
        match self {
            Self::Packed(parts) => {
                let mut left_out = 0_usize;
                loop {
                    let item = take(parts)?;
                    if left_out == 0 && !matches!(item, Item::Attribute(_)) {
                        return Some(item);
                    }
                    let is_part = usize::from(!matches!(item, Item::Attribute(_)));
                    left_out = (left_out - is_part).saturating_add(item.parts());
                }
            }
            Self::Read(items) => items.next(),
        }
    }
}

impl<'a> Items<'a> {
    /// The next part.
    ///
    /// # Errors
    /// [`Error::Unexpected`] if the reply ends here, or cannot be read.
    pub fn item(&mut self) -> Result<Item<'a>, Error> {
        self.next().ok_or_else(|| Error::Unexpected("a reply that ends too early".to_owned()))
    }

    pub fn integer(&mut self) -> Result<i64, Error> {
        match self.item()? {
            Item::Int(integer) => Ok(integer),
            other => Err(other.in_place_of("an integer")),
        }
    }

    /// How many parts an array has.
    pub fn array(&mut self) -> Result<usize, Error> {
        match self.item()? {
            Item::Array(elements) => Ok(elements),
            other => Err(other.in_place_of("an array")),
        }
    }

    /// Leaves out the next part, with what belongs to it.
    pub fn leave_out(&mut self) -> Result<(), Error> {
        let mut open = 1_usize;
        while open > 0 {
            open = (open - 1).saturating_add(self.item()?.parts());
        }
        Ok(())
    }
}

/// Takes a part that was read.
fn take<'a>(parts: &mut &'a [u8]) -> Option<Item<'a>> {
    let ([kind, number @ ..], rest) = parts.split_first_chunk::<9>()?;
    let number = i64::from_ne_bytes(*number);
    *parts = rest;
    let count = usize::try_from(number).ok();
    Some(match kind {
        b':' => Item::Int(number),
        b'*' | b'~' => Item::Array(count?),
        b'%' => Item::Map(count?),
        b'|' => Item::Attribute(count?),
        _ => {
            let (text, rest) = parts.split_at_checked(count?)?;
            *parts = rest;
            match kind {
                b'$' | b'+' => Item::Text(text),
                b'!' | b'-' => Item::Error(text),
                b'_' => Item::Nil,
                _ => Item::Other,
            }
        }
    })
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
        b"*2\r\n|1\r\n+ttl\r\n|0\r\n*1\r\n:3\r\n:1\r\n:2\r\n",
        b"*2\r\n-ERR no\r\n:1\r\n",
        b"%1\r\n+allowed\r\n:1\r\n",
        b"*5\r\n~2\r\n+a\r\n+b\r\n%1\r\n$1\r\nk\r\n%0\r\n#t\r\n,1.5\r\n=5\r\ntxt:\r\r\n",
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

    fn parts(reply: &[u8]) -> Vec<u8> {
        let mut framing = Framing::default();
        assert_eq!(framing.length(reply).unwrap(), Some(reply.len()));
        framing.parts
    }

    #[tokio::test]
    async fn each_reply_is_packed_however_it_arrives() {
        let bytes = REPLIES.concat();
        let mut expected = Vec::new();
        for reply in REPLIES {
            if matches!(reply[0], b'*' | b'%' | b'$') {
                let parts = parts(reply);
                expected.extend([format!("${}\r\n", parts.len()).as_bytes(), &parts, b"\r\n"].concat());
            } else {
                expected.extend(*reply);
            }
        }
        for step in 1..=bytes.len() {
            assert_eq!(packed(&bytes, step, true).await.unwrap(), expected, "{step} at a time");
            assert_eq!(packed(&bytes, step, false).await.unwrap(), bytes, "{step} at a time");
        }
        for garbled in ["*x\r\n", "\r\n", "$y\r\n", ":1\n", "$1\r\nabc", "*1\r\n$1\r\na:1\r\n"] {
            assert!(packed(garbled.as_bytes(), 1, true).await.is_err(), "{garbled:?}");
        }
    }

    #[tokio::test]
    async fn an_attribute_in_front_of_a_reply_is_left_out() {
        for reply in [&b":7\r\n"[..], b"-ERR no\r\n"] {
            let bytes = [b"|1\r\n+ttl\r\n*1\r\n:3\r\n", reply].concat();
            for step in 1..=bytes.len() {
                assert_eq!(packed(&bytes, step, true).await.unwrap(), reply);
                assert_eq!(packed(&bytes, step, false).await.unwrap(), bytes);
            }
        }
    }

    #[tokio::test]
    async fn a_reply_without_an_end_is_given_up() {
        let long = "x".repeat(LONGEST + 1);
        let bulk = format!("${}\r\n", LONGEST + 1);
        let many = format!("*1000000\r\n{}", ":1\r\n".repeat(LONGEST / 4 + 1));
        for bytes in [format!("+{long}"), bulk, many] {
            let error = packed(bytes.as_bytes(), CHUNK, true).await.unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{}", &bytes[..10]);
        }
    }

    #[test]
    fn an_error_within_a_reply_is_told() {
        for reply in [&b"-TRYAGAIN Multiple keys\r\n"[..], b"!22\r\nTRYAGAIN Multiple keys\r\n"] {
            let error = Reply::Packed(parts(reply)).items().integer().unwrap_err();
            assert!(error.to_string().contains("TRYAGAIN Multiple keys"), "{error}");
        }
    }

    #[test]
    fn a_packed_reply_is_what_the_redis_crate_reads() {
        for reply in REPLIES.iter().filter(|reply| matches!(reply[0], b'*' | b'%' | b'$')) {
            let parts = parts(reply);
            let packed = Reply::Packed(parts.clone());
            let value = Reply::Value(redis::parse_redis_value(reply).unwrap());
            let items: Vec<_> = packed.items().collect();
            // Of an error within a reply the `redis` crate has the parts.
            let code = |item| if let Item::Error(text) = item { Item::Error(&text[..3]) } else { item };
            let both = [&packed, &value].map(|reply| reply.items().map(code).collect::<Vec<_>>());
            assert_eq!(both[0], both[1], "{}", reply.escape_ascii());
            packed.items().leave_out().unwrap();
            for end in 0..parts.len() {
                assert!(Reply::Packed(parts[..end].to_vec()).items().leave_out().is_err(), "{end} of {items:?}");
            }
        }
        let endless = [&b"*"[..], &i64::MAX.to_ne_bytes(), &parts(b":1\r\n")].concat();
        assert!(Reply::Packed(endless).items().leave_out().is_err());
    }

    #[test]
    fn numbers_are_what_the_standard_library_reads() {
        let number = |text: &str| Reader(format!("{text}\r\n").as_bytes()).number();
        for text in ["0", "7", "-7", "1700000000123", "9223372036854775807", "-9223372036854775808", "-0"] {
            assert_eq!(number(text), text.parse().map_err(|_| Stop::Garbled), "{text}");
        }
        for text in ["", "-", "9223372036854775808", "-9223372036854775809", "1 ", "x", "--1", "1.5"] {
            assert_eq!(number(text), Err(Stop::Garbled), "{text}");
        }
    }
}
