//! A connection to one server that the limiter has made.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ProtocolVersion, PushInfo, PushKind,
    RedisResult, Value,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::error::no_answer;
use crate::on_demand::Alive;
use crate::wire::{Packed, read};

/// How many calls may wait to be written to a connection.
pub(crate) const QUEUE: usize = 16_384;
/// For how long a connection may take to be made. Calls wait no longer than their own time for it.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

#[derive(Clone)]
pub(crate) struct Own {
    connection: MultiplexedConnection,
    /// The task of a connection whose replies are packed, which ends with it.
    driver: Option<Arc<JoinSet<()>>>,
}

impl Own {
    /// Connects, and has the replies packed unless the stream is one that only the client can make. `alive` becomes false
    /// when the connection breaks.
    pub async fn connect(client: &Client, alive: Alive) -> RedisResult<Self> {
        let info = client.get_connection_info();
        let connecting = async {
            match info.addr() {
                ConnectionAddr::Tcp(host, port) if is_plain(info.tcp_settings()) => {
                    let stream = tcp(host, *port).await?;
                    stream.set_nodelay(info.tcp_settings().nodelay())?;
                    Self::packed(info, stream.into_split(), alive).await
                }
                #[cfg(unix)]
                ConnectionAddr::Unix(path) => {
                    Self::packed(info, tokio::net::UnixStream::connect(path).await?.into_split(), alive).await
                }
                _ => Self::unpacked(client, alive).await,
            }
        };
        let late = |_| no_answer(io::ErrorKind::TimedOut, format!("no connection within {CONNECT_TIMEOUT:?}"));
        tokio::time::timeout(CONNECT_TIMEOUT, connecting).await.map_err(late)?
    }

    async fn packed<R, W>(info: &ConnectionInfo, (read, write): (R, W), alive: Alive) -> RedisResult<Self>
    where
        R: AsyncRead + Unpin + Send + 'static,
        W: AsyncWrite + Unpin + Send + 'static,
    {
        let packs = Arc::new(AtomicBool::new(false));
        let stream = tokio::io::join(Packed::new(read, Arc::clone(&packs)), write);
        let connected = MultiplexedConnection::new_with_config(info.redis_settings(), stream, config());
        let (connection, drives) = connected.await?;
        packs.store(true, Relaxed);
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            drives.await;
            alive.store(false, Relaxed);
        });
        Ok(Self { connection, driver: Some(Arc::new(driver)) })
    }

    /// By the client, for a stream such as that of TLS. It tells that a connection broke between two calls over RESP3
    /// alone, so that is tried first, whatever the client's own settings say.
    async fn unpacked(client: &Client, alive: Alive) -> RedisResult<Self> {
        let info = client.get_connection_info();
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let told = config().set_push_sender(move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                alive.store(false, Relaxed);
            }
            Ok::<_, std::convert::Infallible>(())
        });
        let resp3 = Client::open(info.clone().set_redis_settings(settings))?;
        let connection = match resp3.get_multiplexed_async_connection_with_config(&told).await {
            // Before Redis 6, behind some proxies, or a user who may not say HELLO.
            Err(_) => client.get_multiplexed_async_connection_with_config(&config()).await?,
            Ok(connection) => connection,
        };
        Ok(Self { connection, driver: None })
    }

    pub async fn send(mut self, cmd: &Cmd) -> RedisResult<Value> {
        match self.connection.send_packed_command(cmd).await?.extract_error()? {
            Value::BulkString(reply) if self.driver.is_some() => read(&reply),
            reply => Ok(reply),
        }
    }
}

/// Each call has its own deadline, and calls do not queue in this process while others are being sent.
fn config() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECT_TIMEOUT))
        .set_response_timeout(None)
        .set_pipeline_buffer_size(QUEUE)
}

/// Whether a socket is to be as it is made, but for TCP_NODELAY. Some of the settings can only be read so.
fn is_plain(settings: &TcpSettings) -> bool {
    let plain = TcpSettings::default().set_nodelay(settings.nodelay());
    format!("{settings:?}") == format!("{plain:?}")
}

/// A connection to whichever address of the host answers first.
async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let mut attempts = JoinSet::new();
    for address in tokio::net::lookup_host((host, port)).await? {
        attempts.spawn(TcpStream::connect(address));
    }
    let mut last = io::Error::new(io::ErrorKind::NotFound, format!("{host} has no address"));
    while let Some(attempt) = attempts.join_next().await {
        match attempt {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => last = error,
            Err(error) => last = error.into(),
        }
    }
    Err(last)
}
