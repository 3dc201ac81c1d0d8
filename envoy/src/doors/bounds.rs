//! What clients can take of the process, at each of its doors: connections, requests, time and bytes. All numbers are here,
//! with what keeps them beside the connections themselves (`listen.rs`).
//!
//! A client that reaches a port can send requests, and need not read the answers. So each request of gRPC has a ticket, which its
//! answer keeps until it is written; what a body or an answer has above a few kilobytes comes out of one budget, so that large
//! ones are refused before small ones are; and nothing waits without an end.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::BoxError;
use hyper::body::{Body, Bytes, Frame};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};
use tonic::Status;

use crate::stats::Stats;

/// Connections of each port, where there are file descriptors for as many.
pub const GRPC_CONNECTIONS: u64 = 4096;
pub const HTTP_CONNECTIONS: u64 = 1024;
pub const PAGES_CONNECTIONS: u64 = 64;
/// How long a client may take to agree on a key and to say that it speaks HTTP/2.
pub const HANDSHAKE: Duration = Duration::from_secs(10);
/// How long a connection of HTTP/2 may be silent before it is asked whether it is still there, and for its answer.
pub const PING: Duration = Duration::from_secs(15);
pub const PONG: Duration = Duration::from_secs(10);
/// How long a connection of HTTP/1.1 may take for the head of its next request.
pub const HEAD: Duration = Duration::from_secs(20);
/// How long the body of a request may take.
pub const BODY: Duration = Duration::from_secs(10);
/// How long a client may take none of an answer, and how long a long answer may take as a whole.
pub const ANSWER: Duration = Duration::from_secs(10);
pub const LONG_ANSWER: Duration = Duration::from_secs(60);
/// The most bytes of a message of gRPC or a body of HTTP: what a request of a thousand descriptors takes.
pub const MESSAGE: usize = 1 << 20;
/// The longest head, and the buffers of HTTP/1.1. By gRPC Envoy passes on what it traces, which is as long as its client likes.
pub const BUFFER: usize = 64 << 10;
/// The most bytes of answers that the kernel keeps for a connection.
pub const SEND_BUFFER: u32 = 128 << 10;
/// Requests at a time on a connection of HTTP/2, and on all of them together.
pub const STREAMS: u32 = 256;
const REQUESTS: usize = 8192;
/// Clients that watch the health, who have no end.
const WATCHES: usize = 256;
/// What a body or an answer has of its own, and what all bodies and answers of a door have together beyond it.
pub const SMALL: usize = 4 << 10;
const LARGE: usize = 16 << 20;
/// A body of many pieces is kept in blocks of this size at least.
const BLOCK: usize = 16 << 10;

/// What the requests of one door share.
#[derive(Clone)]
pub struct Door {
    requests: Arc<Semaphore>,
    watches: Arc<Semaphore>,
    large: Arc<Semaphore>,
    stats: Arc<Stats>,
}

impl Door {
    pub fn new(stats: Arc<Stats>) -> Self {
        let semaphore = |permits| Arc::new(Semaphore::new(permits));
        Self { requests: semaphore(REQUESTS), watches: semaphore(WATCHES), large: semaphore(LARGE), stats }
    }

    /// The ticket of one more request, or of one more client that watches, if there are not too many.
    pub fn ticket(&self, watches: bool) -> Result<Ticket, Status> {
        let free = if watches { &self.watches } else { &self.requests };
        let one = Arc::clone(free).try_acquire_owned().map_err(|_| self.refusal())?;
        Ok(Ticket { _one: one, unread: None })
    }

    /// Bytes of the budget that all share.
    pub fn large(&self, bytes: usize) -> Result<OwnedSemaphorePermit, Status> {
        let bytes = u32::try_from(bytes.min(LARGE)).unwrap_or(u32::MAX);
        Arc::clone(&self.large).try_acquire_many_owned(bytes).map_err(|_| self.refusal())
    }

    fn refusal(&self) -> Status {
        self.stats.own.refused_requests.inc();
        Status::resource_exhausted("too many requests at a time")
    }

    /// All of a body within its bounds, copied: a piece would keep what it came with. Nothing is made of a body before its end: what
    /// a message becomes is many times as large, and a client may not end.
    pub async fn read<B: Body<Data = Bytes> + Unpin>(&self, mut body: B) -> Result<Vec<u8>, Status>
    where
        B::Error: Into<BoxError>,
    {
        // In blocks: one list that grows leaves those that it was before behind.
        let (mut blocks, mut size, mut large): (Vec<Vec<u8>>, _, Option<OwnedSemaphorePermit>) = (Vec::new(), 0, None);
        let reading = async {
            while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
                let frame = frame.map_err(|error| Status::from_error(error.into()))?;
                let piece = frame.data_ref().map_or(&[][..], |piece| piece);
                size += piece.len();
                if size > MESSAGE + 5 {
                    return Err(Status::out_of_range(format!("a request has at most {MESSAGE} bytes")));
                }
                let has = large.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
                let needs = size.saturating_sub(SMALL);
                if needs > has {
                    let more = self.large(needs - has)?;
                    match &mut large {
                        Some(large) => large.merge(more),
                        None => large = Some(more),
                    }
                }
                let least = if blocks.is_empty() { 0 } else { BLOCK };
                match blocks.last_mut().filter(|block| block.capacity() - block.len() >= piece.len()) {
                    Some(block) => block.extend_from_slice(piece),
                    None => {
                        let mut block = Vec::with_capacity(piece.len().max(least));
                        block.extend_from_slice(piece);
                        blocks.push(block);
                    }
                }
            }
            Ok(())
        };
        timeout(BODY, reading).await.map_err(|_| Status::deadline_exceeded("the request is late"))??;
        Ok(if blocks.len() == 1 { blocks.swap_remove(0) } else { blocks.concat() })
    }

    /// An answer, which takes of the budget until it is written, and keeps its ticket as long.
    pub fn answer(&self, answer: impl Into<Bytes>, ticket: Option<Ticket>) -> Result<Bytes, Status> {
        let answer = answer.into();
        let more = answer.len().saturating_sub(SMALL);
        let large = if more > 0 { Some(self.large(more)?) } else { None };
        Ok(if large.is_none() && ticket.is_none() { answer } else { Bytes::from_owner(Held(answer, (ticket, large))) })
    }
}

/// An answer that keeps its ticket, and its part of the budget, until it is written or thrown away.
struct Held(Bytes, #[allow(dead_code)] (Option<Ticket>, Option<OwnedSemaphorePermit>));

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

pub struct Ticket {
    _one: OwnedSemaphorePermit,
    /// `None`: of what has no end.
    unread: Option<Arc<()>>,
}

/// The answers of a connection that its client has not read yet.
#[derive(Default)]
pub struct Unread {
    /// Those of now, and those of the time before.
    generations: Mutex<[Arc<()>; 2]>,
}

impl Unread {
    /// From now on the ticket is that of an answer.
    pub fn add(&self, ticket: Ticket) -> Ticket {
        let [now, _] = &*self.generations.lock();
        Ticket { unread: Some(Arc::clone(now)), ..ticket }
    }

    /// Ends when an answer has not been read for the time of one, or at most twice as long.
    pub async fn too_long(&self) {
        loop {
            sleep(ANSWER).await;
            let [now, before] = &mut *self.generations.lock();
            if Arc::strong_count(before) > 1 {
                return;
            }
            *before = std::mem::take(now);
        }
    }
}

/// The answer of a request of gRPC, with its ticket.
pub struct AnswerBody<B> {
    pub body: B,
    pub door: Door,
    pub ticket: Option<Ticket>,
}

impl<B: Body<Data = Bytes> + Unpin> Body for AnswerBody<B>
where
    B::Error: Into<BoxError>,
{
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        Poll::Ready(frame.map(|frame| match frame.map_err(Into::into)?.into_data() {
            // The bytes keep the ticket now: `h2` may have them for long after the last was taken from here.
            Ok(bytes) => {
                let ticket = self.ticket.take_if(|ticket| ticket.unread.is_some());
                Ok(Frame::data(self.door.answer(bytes, ticket)?))
            }
            Err(trailers) => Ok(trailers),
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }
}
