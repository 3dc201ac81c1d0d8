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
    b"*3\r\n:1\r\n:-2\r\n*2\r\n%1\r\n+name\r\n:3\r\n$1\r\nx\r\n",
    b">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n",
    b"*2\r\n|1\r\n+ttl\r\n|0\r\n*1\r\n:3\r\n:1\r\n:2\r\n",
    b"*2\r\n-ERR no\r\n:1\r\n",
    b"%1\r\n+name\r\n:1\r\n",
    b"*5\r\n~2\r\n+a\r\n+b\r\n%1\r\n$1\r\nk\r\n%0\r\n#t\r\n,1.5\r\n=5\r\ntxt:\r\r\n",
    b"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n:1\r\n",
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
    for garbled in ["*x\r\n", "$y\r\n", "$-2\r\n", ":1\n", ":x\r\n", "$1\r\nabc", "*1\r\n$1\r\na:1\r\n"] {
        assert!(packed(garbled.as_bytes(), 1, true).await.is_err(), "{garbled:?}");
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
fn a_reply_is_what_the_redis_crate_reads() {
    for reply in REPLIES {
        let expected = redis::parse_redis_value(reply).and_then(Value::extract_error);
        assert_eq!(read(reply), expected, "{}", reply.escape_ascii());
        for end in 0..reply.len() {
            assert!(read(&reply[..end]).is_err(), "{}", reply[..end].escape_ascii());
        }
    }
    for bounds in [&b":9223372036854775807\r\n"[..], b":-9223372036854775808\r\n", b":0\r\n", b":-07\r\n"] {
        assert_eq!(read(bounds), redis::parse_redis_value(bounds), "{}", bounds.escape_ascii());
    }
    for wrong in ["", "-", "1x", "9223372036854775808", "-9223372036854775809", "1\u{665}"] {
        assert_eq!(number(wrong.as_bytes()), None, "{wrong}");
    }
    let flat = read(b"*2\r\n$4\r\nused\r\n:3\r\n").unwrap();
    assert_eq!(flat, Value::Array(vec![Value::Int(2), Value::Int(3)]));
    let full = read(b"%2\r\n+used\r\n:3\r\n$7\r\nallowed\r\n:1\r\n").unwrap();
    assert_eq!(full, Value::Map(vec![(Value::Int(2), Value::Int(3)), (Value::Int(0), Value::Int(1))]));
    assert!(read(b"*9223372036854775807\r\n:1\r\n").is_err());
    let deep = b"*1\r\n".repeat(LONGEST / 4);
    assert!(read(&deep).is_err());
}
