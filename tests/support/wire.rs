//! A connection that sends many calls at once and returns each reply as it was sent, errors included.

use std::fmt;
use std::io::{Read, Write};
use std::net::TcpStream;

use redis::Value;

#[derive(Clone, PartialEq, Eq)]
pub enum Reply {
    Status(String),
    /// The line without its leading `-`.
    Error(String),
    Integer(i64),
    Bulk(Option<Vec<u8>>),
    Array(Vec<Reply>),
}

impl Reply {
    /// The same in the types of the client library.
    pub fn heard(&self) -> Result<Value, String> {
        Ok(match self {
            Self::Error(line) => return Err(line.clone()),
            Self::Status(text) => Value::SimpleString(text.clone()),
            Self::Integer(integer) => Value::Int(*integer),
            Self::Bulk(bytes) => bytes.clone().map_or(Value::Nil, Value::BulkString),
            Self::Array(parts) => Value::Array(parts.iter().map(Self::heard).collect::<Result<_, _>>()?),
        })
    }
}

/// Short, for failures that show many of them.
impl fmt::Debug for Reply {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(text) => formatter.write_str(text),
            Self::Error(line) => write!(formatter, "{line:?}"),
            Self::Integer(integer) => integer.fmt(formatter),
            Self::Bulk(None) => formatter.write_str("nil"),
            Self::Bulk(Some(bytes)) if bytes.len() > 40 => write!(formatter, "({} bytes)", bytes.len()),
            Self::Bulk(Some(bytes)) => write!(formatter, "'{}'", bytes.escape_ascii()),
            Self::Array(parts) => formatter.debug_list().entries(parts).finish(),
        }
    }
}

pub struct Wire {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// How far the buffer has been read.
    at: usize,
}

impl Wire {
    pub fn open(port: u16) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        Self { stream, buffer: Vec::new(), at: 0 }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the server takes it");
    }

    pub fn receive(&mut self) -> Reply {
        let line = self.line();
        let (&kind, rest) = line.split_first().expect("a reply has a first byte");
        let text = String::from_utf8_lossy(rest).into_owned();
        let number = || text.parse::<i64>().unwrap_or_else(|_| panic!("no number: {text}"));
        match kind {
            b'+' => Reply::Status(text),
            b'-' => Reply::Error(text),
            b':' => Reply::Integer(number()),
            b'$' => Reply::Bulk(usize::try_from(number()).ok().map(|length| self.bytes(length))),
            b'*' => Reply::Array((0..number()).map(|_| self.receive()).collect()),
            _ => panic!("no reply of RESP2: {}", line.escape_ascii()),
        }
    }

    fn line(&mut self) -> Vec<u8> {
        let mut searched = self.at;
        loop {
            if let Some(length) = self.buffer[searched..].iter().position(|&byte| byte == b'\n') {
                let end = searched + length;
                let line = self.buffer[self.at..end].strip_suffix(b"\r").expect("CR before LF").to_vec();
                self.at = end + 1;
                return line;
            }
            let unread = self.buffer.len() - self.at;
            self.fill();
            searched = self.at + unread;
        }
    }

    fn bytes(&mut self, length: usize) -> Vec<u8> {
        while self.buffer.len() - self.at < length + 2 {
            self.fill();
        }
        let bytes = self.buffer[self.at..self.at + length].to_vec();
        self.at += length + 2;
        bytes
    }

    fn fill(&mut self) {
        self.buffer.drain(..self.at);
        self.at = 0;
        let mut chunk = [0; 64 * 1024];
        let length = self.stream.read(&mut chunk).expect("the server answers");
        assert!(length > 0, "the server closed the connection");
        self.buffer.extend_from_slice(&chunk[..length]);
    }
}

/// Appends a call as it goes over the wire.
pub fn pack(into: &mut Vec<u8>, words: &[impl AsRef<[u8]>]) {
    into.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        let word = word.as_ref();
        into.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        into.extend_from_slice(word);
        into.extend_from_slice(b"\r\n");
    }
}
