//! Where connections come in: TCP, TLS, a Unix socket.

use std::io;
use std::net::ToSocketAddrs;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, UnixListener};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;
use tonic::transport::server::Connected;

use crate::tls::Certificates;

/// How long a client may take to agree on a key.
const HANDSHAKE: Duration = Duration::from_secs(10);
const BACKLOG: u32 = 1024;

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection of any kind.
pub struct Connection(Box<dyn Stream>);

impl Connected for Connection {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

impl AsyncRead for Connection {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }
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

/// Listens at a path. One that a process before has left behind is replaced.
///
/// # Errors
/// If it cannot be listened at.
pub fn unix(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => UnixListener::bind(path),
    }
}

/// The connections of a listener, once they are ready to be served.
pub fn accept(
    listener: Listener,
    certificates: Option<Arc<Certificates>>,
) -> mpsc::Receiver<Result<Connection, io::Error>> {
    let (connections, accepted) = mpsc::channel(64);
    tokio::spawn(async move {
        loop {
            let stream: Box<dyn Stream> = match &listener {
                Listener::Tcp(listener) => match listener.accept().await {
                    Ok((stream, _)) => {
                        // An answer is small; waiting for more to send would only delay it.
                        let _ = stream.set_nodelay(true);
                        Box::new(stream)
                    }
                    Err(error) => {
                        refused(&error).await;
                        continue;
                    }
                },
                Listener::Unix(listener) => match listener.accept().await {
                    Ok((stream, _)) => Box::new(stream),
                    Err(error) => {
                        refused(&error).await;
                        continue;
                    }
                },
            };
            let connections = connections.clone();
            if connections.is_closed() {
                return;
            }
            let Some(certificates) = certificates.clone() else {
                let _ = connections.send(Ok(Connection(stream))).await;
                continue;
            };
            // A client that is slow to agree on a key does not delay others.
            tokio::spawn(async move {
                let acceptor = TlsAcceptor::from(certificates.config());
                match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
                    Ok(Ok(stream)) => drop(connections.send(Ok(Connection(Box::new(stream)))).await),
                    Ok(Err(error)) => tracing::warn!("a client was refused: {error}"),
                    Err(_) => tracing::warn!("a client has not finished its TLS handshake"),
                }
            });
        }
    });
    accepted
}

/// Usually the process has no file descriptors left; others will be closed.
async fn refused(error: &io::Error) {
    tracing::warn!("a connection could not be accepted: {error}");
    tokio::time::sleep(Duration::from_millis(100)).await;
}

pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}
