//! Where connections come in (TCP, TLS, a Unix socket), how many there may be, and how long they last.

use std::convert::Infallible;
use std::future::pending;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body as Whole;
use axum::extract::ConnectInfo;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, WriteHalf, join, split};
use tokio::net::{TcpListener, TcpSocket, UnixListener};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_io_timeout::TimeoutWriter;
use tonic::body::Body;
use tower_service::Service as _;

use super::bounds::{self, AnswerBody, Door, Unread};
use super::tls::Certificates;
use crate::settings::Ages;

/// Connections that wait until they are accepted, where `net.core.somaxconn` allows as many. The kernel delays what is above it
/// by seconds, or resets it.
const BACKLOG: u32 = 4096;
/// The first bytes of a connection of HTTP/2.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// What has no end on purpose.
const WATCH: &str = "/grpc.health.v1.Health/Watch";
/// How much of a message a client of HTTP/2 may send ahead, and how much of an answer waits to be written.
const WINDOW: u32 = 64 << 10;

/// How many connections each port may have. What is left is for files, Redis and statsd.
pub struct Ports {
    pub grpc: Slots,
    pub http: Slots,
    pub debug: Slots,
    pub metrics: Slots,
}

/// Places for connections of a port. Where all are taken, the next connection waits until one is free.
#[derive(Debug, Clone)]
pub struct Slots {
    free: Arc<Semaphore>,
    most: usize,
}

impl Slots {
    pub fn taken(&self) -> usize {
        self.most - self.free.available_permits()
    }
}

impl Ports {
    /// Shares the file descriptors that the process may have, after raising their number as far as it is allowed to.
    pub fn share() -> Self {
        let limit = getrlimit(Resource::Nofile);
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
        let files = getrlimit(Resource::Nofile).current.unwrap_or(1 << 20);
        let share = |part: u64, most: u64| {
            let most = usize::try_from(most.min(files / part)).unwrap_or(usize::MAX).clamp(4, Semaphore::MAX_PERMITS);
            Slots { free: Arc::new(Semaphore::new(most)), most }
        };
        Self {
            grpc: share(2, bounds::GRPC_CONNECTIONS),
            http: share(4, bounds::HTTP_CONNECTIONS),
            debug: share(16, bounds::PAGES_CONNECTIONS),
            metrics: share(16, bounds::PAGES_CONNECTIONS),
        }
    }
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// A connection, and the address that it comes from.
    async fn accept(&self) -> io::Result<(Box<dyn Stream>, Option<IpAddr>)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                // An answer is small; waiting for more to send would only delay it.
                let _ = stream.set_nodelay(true);
                Ok((Box::new(stream), Some(peer.ip())))
            }
            Self::Unix(listener) => Ok((Box::new(listener.accept().await?.0), None)),
        }
    }
}

/// Several processes may share the address.
pub fn tcp(address: &str) -> io::Result<TcpListener> {
    let listen = |address: SocketAddr| {
        let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.set_reuseaddr(true)?;
        socket.set_reuseport(true)?;
        socket.set_send_buffer_size(bounds::SEND_BUFFER)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    let none = Err(io::Error::new(io::ErrorKind::NotFound, "no such address"));
    // Without a host it is every address, those of IPv4 alone where there are no others.
    if address.starts_with(':') {
        return tcp(&format!("[::]{address}")).or_else(|_| tcp(&format!("0.0.0.0{address}")));
    }
    address.to_socket_addrs()?.fold(none, |listening, address| listening.or_else(|_| listen(address)))
}

/// A socket that a process before has left behind is replaced, and nothing else is.
pub fn unix(path: &Path) -> io::Result<UnixListener> {
    if std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        std::fs::remove_file(path)?;
    }
    UnixListener::bind(path)
}

/// Accepts connections until it is told to stop, and then waits until all of them have ended.
async fn accept<F>(
    listener: Listener,
    slots: Slots,
    mut stopped: watch::Receiver<bool>,
    serve: impl Fn(Box<dyn Stream>, Option<IpAddr>, watch::Receiver<bool>) -> F,
) where
    F: Future<Output = ()> + Send + 'static,
{
    // Each connection holds a sender; when all are gone, nothing is received.
    let (open, mut closed) = mpsc::channel::<()>(1);
    let mut failing = false;
    loop {
        let accepted = async {
            let slot = Arc::clone(&slots.free).acquire_owned().await;
            (listener.accept().await, slot)
        };
        let (accepted, slot) = tokio::select! {
            accepted = accepted => accepted,
            _ = stopped.wait_for(|stopped| *stopped) => break,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Usually the process has no file descriptors left; others will be closed.
                if !failing {
                    tracing::warn!("connections cannot be accepted: {error}");
                }
                failing = true;
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        failing = false;
        let (served, open) = (serve(stream, peer, stopped.clone()), open.clone());
        tokio::spawn(async move {
            served.await;
            drop((slot, open));
        });
    }
    // Before the wait, so that no other connection is made.
    drop((listener, open));
    let _ = closed.recv().await;
}

/// Serves gRPC to all that connect, until it is told to stop and all answers are sent.
pub async fn grpc<S>(
    listener: Listener,
    slots: Slots,
    certificates: Option<Arc<Certificates>>,
    door: Door,
    service: S,
    ages: Ages,
    stopped: watch::Receiver<bool>,
) where
    S: Service<Request<Whole>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    let serve = |stream: Box<dyn Stream>, _, mut stopped: watch::Receiver<bool>| {
        let (certificates, door, service) = (certificates.clone(), door.clone(), service.clone());
        async move {
            let began = tokio::select! {
                began = tokio::time::timeout(bounds::HANDSHAKE, begin(stream, certificates)) => began,
                _ = stopped.wait_for(|stopped| *stopped) => return,
            };
            match began {
                Ok(Ok(stream)) => grpc_connection(stream, door, service, ages, stopped).await,
                // Probes of the port are such clients, too.
                Ok(Err(error)) => tracing::debug!("a client was refused: {error}"),
                Err(_) => tracing::debug!("a client does not begin"),
            }
        }
    };
    accept(listener, slots, stopped, serve).await;
}

/// Serves HTTP/1.1 to all that connect, until it is told to stop and all answers are sent.
pub async fn http(listener: TcpListener, slots: Slots, router: axum::Router, stopped: watch::Receiver<bool>) {
    let serve = |stream, peer: Option<IpAddr>, mut stopped: watch::Receiver<bool>| {
        let router = router.clone();
        async move {
            let mut stream = TimeoutWriter::new(stream);
            stream.set_timeout(Some(bounds::ANSWER));
            let service = service_fn(|mut request: Request<Incoming>| {
                if let Some(peer) = peer {
                    request.extensions_mut().insert(ConnectInfo(peer));
                }
                router.clone().call(request)
            });
            let mut builder = http1::Builder::new();
            builder.timer(TokioTimer::new()).header_read_timeout(bounds::HEAD);
            builder.max_buf_size(bounds::BUFFER).half_close(true);
            let mut served = pin!(builder.serve_connection(TokioIo::new(Box::pin(stream)), service));
            tokio::select! {
                _ = &mut served => return,
                _ = stopped.wait_for(|stopped| *stopped) => {}
            }
            served.as_mut().graceful_shutdown();
            let _ = served.await;
        }
    };
    accept(Listener::Tcp(listener), slots, stopped, serve).await;
}

/// A stream whose writes are not vectored. For those, `h2` copies an answer of up to 1 KiB and sends it in one write. With
/// vectored writes, the trailers of an answer of more than 256 bytes take a second one.
struct Unvectored(WriteHalf<Box<dyn Stream>>);

impl AsyncWrite for Unvectored {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

/// Agrees on keys, where there are certificates, and hears that the client speaks HTTP/2.
async fn begin(stream: Box<dyn Stream>, certificates: Option<Arc<Certificates>>) -> io::Result<Box<dyn Stream>> {
    let mut stream: Box<dyn Stream> = match certificates {
        None => stream,
        Some(certificates) => Box::new(certificates.accept(stream).await?),
    };
    let mut preface = [0; PREFACE.len()];
    stream.read_exact(&mut preface).await?;
    if preface == PREFACE { Ok(stream) } else { Err(io::Error::new(io::ErrorKind::InvalidData, "not HTTP/2")) }
}

async fn grpc_connection<S>(
    stream: Box<dyn Stream>,
    door: Door,
    service: S,
    ages: Ages,
    mut stopped: watch::Receiver<bool>,
) where
    S: Service<Request<Whole>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    let unread = Arc::new(Unread::default());
    let answers = Arc::clone(&unread);
    let service = service_fn(move |request: Request<Incoming>| {
        let watches = request.uri().path() == WATCH;
        // Of the head only the path is of interest: a copy, as all else would be kept with it.
        let path = request.uri().path().parse().unwrap_or_default();
        let (body, ticket) = (request.into_body(), door.ticket(watches));
        let (door, unread, service) = (door.clone(), Arc::clone(&answers), service.clone());
        async move {
            let (ticket, read) = match ticket {
                Ok(ticket) => (Some(ticket), door.read(body).await),
                Err(status) => (None, Err(status)),
            };
            let answer = match read {
                Ok(body) => {
                    let mut request = Request::new(Whole::from(body));
                    *request.uri_mut() = path;
                    service.call(request).await?
                }
                Err(status) => status.into_http(),
            };
            let ticket = if watches { ticket } else { ticket.map(|ticket| unread.add(ticket)) };
            Ok::<_, Infallible>(answer.map(|body| AnswerBody { body, door, ticket }))
        }
    });
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).max_concurrent_streams(bounds::STREAMS);
    builder.initial_stream_window_size(WINDOW).max_send_buf_size(WINDOW as usize);
    builder.max_header_list_size(bounds::BUFFER as u32);
    builder.keep_alive_interval(bounds::PING).keep_alive_timeout(bounds::PONG);
    let (reader, writer) = split(stream);
    let stream = TokioIo::new(join(PREFACE.chain(reader), Unvectored(writer)));
    let mut served = pin!(builder.serve_connection(stream, service));
    let mut unread = pin!(unread.too_long());
    tokio::select! {
        _ = &mut served => return,
        () = &mut unread => return,
        () = sleep_unless_zero(spread(ages.most)) => {}
        _ = stopped.wait_for(|stopped| *stopped) => {}
    }
    served.as_mut().graceful_shutdown();
    tokio::select! {
        _ = served => {}
        () = unread => {}
        () = sleep_unless_zero(ages.grace) => {}
    }
}

async fn sleep_unless_zero(time: Duration) {
    if time.is_zero() { pending().await } else { tokio::time::sleep(time).await }
}

/// A tenth more or less, so that connections which were made together do not end together.
fn spread(age: Duration) -> Duration {
    // The keys of a hasher are random.
    let random = RandomState::new().hash_one(0) as f64 / u64::MAX as f64;
    age.mul_f64(0.9 + 0.2 * random)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_spread_by_a_tenth() {
        let ages: Vec<_> = (0..1000).map(|_| spread(Duration::from_secs(100)).as_secs()).collect();
        assert!(ages.iter().all(|age| (90..=110).contains(age)));
        assert!(ages.iter().any(|age| *age < 95) && ages.iter().any(|age| *age > 105));
    }
}
