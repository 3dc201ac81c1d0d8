//! Where connections come in (TCP, TLS, a Unix socket), and how long they last.

use std::convert::Infallible;
use std::future::pending;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::ToSocketAddrs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::rt::ReadBufCursor;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpSocket, UnixListener};
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tonic::body::Body;
use tower_service::Service;

use crate::tls::Certificates;

/// How long a client may take to agree on a key.
const HANDSHAKE: Duration = Duration::from_secs(10);
const BACKLOG: u32 = 1024;

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    async fn accept(&self) -> io::Result<Box<dyn Stream>> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                // An answer is small; waiting for more to send would only delay it.
                let _ = stream.set_nodelay(true);
                Ok(Box::new(stream))
            }
            Self::Unix(listener) => Ok(Box::new(listener.accept().await?.0)),
        }
    }
}

/// How long connections last. A client is told when its connection has this age, sends new requests on another one, and
/// has the grace for answers that are still open. `None`: without an end.
#[derive(Debug, Clone, Copy)]
pub struct Ages {
    pub most: Option<Duration>,
    pub grace: Option<Duration>,
}

/// Listens at an address. Several processes may share it.
///
/// # Errors
/// If it cannot be listened at.
pub fn tcp(address: &str) -> io::Result<TcpListener> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "no such address");
    for address in address.to_socket_addrs()? {
        let listen = || {
            let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
            socket.set_reuseaddr(true)?;
            socket.set_reuseport(true)?;
            socket.bind(address)?;
            socket.listen(BACKLOG)
        };
        match listen() {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Listens at a path. A socket that a process before has left behind is replaced, and nothing else is.
///
/// # Errors
/// If it cannot be listened at.
pub fn unix(path: &Path) -> io::Result<UnixListener> {
    if std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        std::fs::remove_file(path)?;
    }
    UnixListener::bind(path)
}

/// Serves gRPC to all that connect, until it is told to stop and all answers are sent.
pub async fn serve<S>(
    listener: Listener,
    certificates: Option<Arc<Certificates>>,
    service: S,
    ages: Ages,
    mut stopped: watch::Receiver<bool>,
) where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    // Each connection holds a sender; when all are gone, nothing is received.
    let (open, mut closed) = mpsc::channel::<()>(1);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.wait_for(|stopped| *stopped) => break,
        };
        let stream = match accepted {
            Ok(stream) => stream,
            Err(error) => {
                // Usually the process has no file descriptors left; others will be closed.
                tracing::warn!("a connection could not be accepted: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let (certificates, service, stopped, open) =
            (certificates.clone(), service.clone(), stopped.clone(), open.clone());
        tokio::spawn(async move {
            match certificates {
                None => connection(stream, service, ages, stopped).await,
                Some(certificates) => {
                    let acceptor = TlsAcceptor::from(certificates.config());
                    match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
                        Ok(Ok(stream)) => connection(stream, service, ages, stopped).await,
                        Ok(Err(error)) => tracing::warn!("a client was refused: {error}"),
                        Err(_) => tracing::warn!("a client has not finished its TLS handshake"),
                    }
                }
            }
            drop(open);
        });
    }
    // Before the wait, so that no other connection is made.
    drop((listener, open));
    let _ = closed.recv().await;
}

/// A stream whose writes are not vectored. For those, `h2` copies an answer of up to 1 KiB and sends it in one write. With
/// vectored writes, the trailers of an answer of more than 256 bytes take a second one.
struct Unvectored<T>(T);

impl<T: hyper::rt::Read + Unpin> hyper::rt::Read for Unvectored<T> {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, into: ReadBufCursor<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, into)
    }
}

impl<T: hyper::rt::Write + Unpin> hyper::rt::Write for Unvectored<T> {
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

async fn connection<S>(stream: impl Stream + 'static, service: S, ages: Ages, mut stopped: watch::Receiver<bool>)
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
{
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder.timer(TokioTimer::new()).max_concurrent_streams(None);
    let mut served =
        pin!(builder.serve_connection(Unvectored(TokioIo::new(stream)), TowerToHyperService::new(service)));
    let age = async {
        match ages.most {
            Some(most) => tokio::time::sleep(spread(most)).await,
            None => pending().await,
        }
    };
    tokio::select! {
        _ = &mut served => return,
        () = age => {}
        _ = stopped.wait_for(|stopped| *stopped) => {}
    }
    served.as_mut().graceful_shutdown();
    let grace = async {
        match ages.grace {
            Some(grace) => tokio::time::sleep(grace).await,
            None => pending().await,
        }
    };
    tokio::select! {
        _ = served => {}
        () = grace => {}
    }
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
