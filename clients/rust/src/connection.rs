//! The clients and connections of the `redis` crate that a limiter can use, and how a call is routed in each.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::Value;
use redis::aio::{ConnectionManager, MultiplexedConnection};
#[cfg(feature = "cluster")]
use redis::cluster::ClusterClient;
#[cfg(feature = "cluster")]
use redis::cluster_async::ClusterConnection;
#[cfg(feature = "cluster")]
use redis::cluster_routing::{
    MultipleNodeRoutingInfo, ResponsePolicy, Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr,
};
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, ConnectionInfo, ProtocolVersion, PushInfo, PushKind,
    RedisError, RedisResult,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::{AbortHandle, JoinSet};

#[cfg(feature = "cluster")]
use crate::cluster::Cluster;
use crate::error::{is_broken, no_answer};
use crate::on_demand::{Alive, Connecting, OnDemand};
use crate::wire::{Packed, read};

/// How many calls may wait to be written to a connection.
pub(crate) const QUEUE: usize = 16_384;
/// For how long a connection may take to be made. Calls wait no longer than their own time for it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Where a limiter sends its calls. Made of clients and connections of the `redis` crate by `From`.
///
/// From a client (`redis::Client`, `ClusterClient`, `SentinelClient`) a limiter makes a connection of its own, one for
/// each Tokio runtime that calls it, at the first call there and again when that has broken; a server that is unavailable
/// so keeps no program from starting. With these, a call is never sent twice.
///
/// Connections are used as they are, with their own time-outs and retries: a [`ConnectionManager`] and a
/// [`MultiplexedConnection`] send a call once, and give it up after half a second unless set otherwise. A
/// `ClusterConnection` sends a call again if its reply is lost, as often as its client's `retries` say, and so may count
/// it more than once. A connection belongs to the runtime on which it was made, and works as long as that runs.
#[derive(Clone)]
pub struct Connection {
    kind: Kind,
    /// What log lines call it.
    server: String,
}

#[derive(Clone)]
enum Kind {
    Own(Arc<OnDemand<Own>>),
    Single(MultiplexedConnection),
    Managed(ConnectionManager),
    #[cfg(feature = "cluster")]
    Cluster(ClusterConnection),
    #[cfg(feature = "cluster")]
    OwnCluster(Arc<OnDemand<Cluster>>),
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Connection").field(&self.server).finish()
    }
}

impl From<Client> for Connection {
    fn from(client: Client) -> Self {
        let server = client.get_connection_info().addr().to_string();
        let connect = move |alive| {
            let client = client.clone();
            Box::pin(async move { Own::connect(&client, alive).await }) as Connecting<_>
        };
        Self { kind: Kind::Own(Arc::new(OnDemand::new(connect))), server }
    }
}

#[cfg(feature = "sentinel")]
impl From<redis::sentinel::SentinelClient> for Connection {
    fn from(client: redis::sentinel::SentinelClient) -> Self {
        let client = Arc::new(tokio::sync::Mutex::new(client));
        let connect = move |alive| {
            let client = Arc::clone(&client);
            let connecting = async move {
                // The sentinels are asked anew each time: after a failover it is another server.
                let client =
                    tokio::time::timeout(CONNECT_TIMEOUT, async { client.lock().await.async_get_client().await });
                let out_of_time = |_| no_answer(io::ErrorKind::TimedOut, "the sentinels did not answer".to_owned());
                Own::connect(&client.await.map_err(out_of_time)??, alive).await
            };
            Box::pin(connecting) as Connecting<_>
        };
        Self { kind: Kind::Own(Arc::new(OnDemand::new(connect))), server: "SentinelClient".to_owned() }
    }
}

impl From<MultiplexedConnection> for Connection {
    fn from(connection: MultiplexedConnection) -> Self {
        Self { kind: Kind::Single(connection), server: "MultiplexedConnection".to_owned() }
    }
}

impl From<ConnectionManager> for Connection {
    fn from(connection: ConnectionManager) -> Self {
        Self { kind: Kind::Managed(connection), server: "ConnectionManager".to_owned() }
    }
}

#[cfg(feature = "cluster")]
impl From<ClusterClient> for Connection {
    fn from(client: ClusterClient) -> Self {
        // It replaces the connections to nodes by itself.
        let connect = move |_| Box::pin(Cluster::connect(client.clone())) as Connecting<_>;
        Self { kind: Kind::OwnCluster(Arc::new(OnDemand::new(connect))), server: "ClusterClient".to_owned() }
    }
}

#[cfg(feature = "cluster")]
impl From<ClusterConnection> for Connection {
    fn from(connection: ClusterConnection) -> Self {
        Self { kind: Kind::Cluster(connection), server: "ClusterConnection".to_owned() }
    }
}

/// A connection to one server that the limiter has made.
#[derive(Clone)]
struct Own {
    connection: MultiplexedConnection,
    /// Of a connection whose replies are packed.
    driver: Option<Arc<Driver>>,
}

/// The task of a connection, which ends with it.
struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Own {
    /// Connects, and has the replies packed unless the stream is one that only the client can make. `alive` becomes false
    /// when the connection breaks.
    async fn connect(client: &Client, alive: Alive) -> RedisResult<Self> {
        let info = client.get_connection_info();
        let connecting = async {
            match info.addr() {
                ConnectionAddr::Tcp(host, port) if is_plain(info.tcp_settings()) => {
                    let stream = tcp(host, *port).await?;
                    stream.set_nodelay(info.tcp_settings().nodelay())?;
                    Self::packed(info, stream, alive).await
                }
                #[cfg(unix)]
                ConnectionAddr::Unix(path) => {
                    Self::packed(info, tokio::net::UnixStream::connect(path).await?, alive).await
                }
                _ => Self::unpacked(client, alive).await,
            }
        };
        let late = |_| no_answer(io::ErrorKind::TimedOut, format!("no connection within {CONNECT_TIMEOUT:?}"));
        tokio::time::timeout(CONNECT_TIMEOUT, connecting).await.map_err(late)?
    }

    async fn packed<S>(info: &ConnectionInfo, stream: S, alive: Alive) -> RedisResult<Self>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let packs = Arc::new(AtomicBool::new(false));
        let stream = Packed::new(stream, Arc::clone(&packs));
        let connected = MultiplexedConnection::new_with_config(info.redis_settings(), stream, config());
        let (connection, driver) = connected.await?;
        packs.store(true, Relaxed);
        let driver = tokio::spawn(async move {
            driver.await;
            alive.store(false, Relaxed);
        });
        Ok(Self { connection, driver: Some(Arc::new(Driver(driver.abort_handle()))) })
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

    async fn send(mut self, cmd: &Cmd) -> RedisResult<Value> {
        match self.connection.send_packed_command(cmd).await?.extract_error()? {
            Value::BulkString(reply) if self.driver.is_some() => read(&reply)?.extract_error(),
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

/// Where a command goes in a cluster.
#[derive(Debug, Clone, Copy)]
#[cfg_attr(not(feature = "cluster"), allow(dead_code))]
pub(crate) enum To<'a> {
    /// To the primary that has the key.
    Primary(&'a [u8]),
    /// To a replica of it, where the client reads from replicas.
    Replica(&'a [u8]),
    /// To all primaries.
    Everyone,
}

#[cfg(feature = "cluster")]
impl From<To<'_>> for RoutingInfo {
    fn from(to: To<'_>) -> Self {
        let route = match to {
            To::Primary(key) => Route::with_key(key, SlotAddr::Master),
            To::Replica(key) => Route::with_key(key, SlotAddr::ReplicaOptional),
            To::Everyone => {
                let all = MultipleNodeRoutingInfo::AllMasters;
                return Self::MultiNode((all, Some(ResponsePolicy::AllSucceeded)));
            }
        };
        Self::SingleNode(SingleNodeRoutingInfo::SpecificNode(route))
    }
}

/// A command that was not answered, or with an error.
#[derive(Debug)]
pub(crate) struct Failure {
    pub error: RedisError,
    /// Whether it was sent, or may have been.
    pub sent: bool,
    pub shows: Shows,
}

/// What a failure shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shows {
    /// Whatever the error means, of a server that is in use.
    Server,
    /// There is no connection to the server.
    NoConnection,
    /// Nothing of the server: the connection broke, or had been given up before, or the caller has gone.
    Nothing,
}

/// What a call is doing now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Stage {
    /// It waits for no server.
    Idle,
    Connecting,
    /// A command was sent that is not answered yet.
    Sent,
}

/// The progress of a call, for those who stop to wait for it.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    stage: AtomicU8,
    abandoned: AtomicBool,
    used: Mutex<Option<Used>>,
}

/// The connection that a call uses.
#[derive(Debug)]
struct Used {
    alive: Alive,
    /// Of a connection to several servers, how many calls it has answered, and had when this one began.
    answers: Option<(Arc<AtomicU64>, u64)>,
}

impl Progress {
    pub fn stage(&self) -> Stage {
        match self.stage.load(Relaxed) {
            0 => Stage::Idle,
            1 => Stage::Connecting,
            _ => Stage::Sent,
        }
    }

    fn enter(&self, stage: Stage) {
        self.stage.store(stage as u8, Relaxed);
    }

    /// Nobody waits for the call any more: what was not sent until now never will be.
    pub fn abandon(&self) {
        self.abandoned.store(true, Relaxed);
    }

    pub fn is_abandoned(&self) -> bool {
        self.abandoned.load(Relaxed)
    }

    /// Has the connection that was used replaced at the next call, unless it answers others. Answers whether it was in use
    /// until now, as far as is known.
    pub fn give_up(&self) -> bool {
        let used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Used { alive, answers }) = &*used else { return true };
        match answers {
            Some((now, before)) if now.load(Relaxed) != *before => true,
            _ => alive.swap(false, Relaxed),
        }
    }

    fn begin(&self, used: Option<Used>) -> Result<(), Failure> {
        if self.is_abandoned() {
            let error = no_answer(io::ErrorKind::Interrupted, "the caller has gone".to_owned());
            return Err(Failure { error, sent: false, shows: Shows::Nothing });
        }
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) = used;
        self.enter(Stage::Sent);
        Ok(())
    }
}

impl Connection {
    /// Sends a command and takes its reply. An error of the server is an error.
    pub(crate) async fn send(&self, cmd: Cmd, to: To<'_>, progress: &Progress) -> Result<Value, Failure> {
        progress.enter(Stage::Connecting);
        let reply = self.exchange(cmd, to, progress).await;
        progress.enter(Stage::Idle);
        reply
    }

    async fn exchange(&self, cmd: Cmd, to: To<'_>, progress: &Progress) -> Result<Value, Failure> {
        #[cfg(not(feature = "cluster"))]
        let _ = to;
        let unconnected = |error| Failure { error, sent: false, shows: Shows::NoConnection };
        let reply = match &self.kind {
            Kind::Own(connections) => {
                let (connection, alive) = connections.get().await.map_err(unconnected)?;
                progress.begin(Some(Used { alive: Arc::clone(&alive), answers: None }))?;
                let reply = connection.send(&cmd).await;
                let was_alive = alive.load(Relaxed);
                // A primary that was demoted is left, too: its name may lead to the new one.
                if reply.as_ref().is_err_and(|error| error.is_io_error() || error.code() == Some("READONLY")) {
                    alive.store(false, Relaxed);
                }
                if !was_alive {
                    return reply.map_err(|error| Failure { error, sent: true, shows: Shows::Nothing });
                }
                reply
            }
            Kind::Single(connection) => {
                progress.begin(None)?;
                connection.clone().send_packed_command(&cmd).await.and_then(Value::extract_error)
            }
            Kind::Managed(connection) => {
                progress.begin(None)?;
                connection.clone().send_packed_command(&cmd).await.and_then(Value::extract_error)
            }
            // The client does not know where the keys of these commands are, so it is told.
            #[cfg(feature = "cluster")]
            Kind::Cluster(connection) => {
                progress.begin(None)?;
                connection.clone().route_command(cmd, to.into()).await.and_then(Value::extract_error)
            }
            #[cfg(feature = "cluster")]
            Kind::OwnCluster(connections) => {
                let (connection, alive) = connections.get().await.map_err(unconnected)?;
                let answers = Arc::clone(connection.answers());
                let before = answers.load(Relaxed);
                progress.begin(Some(Used { alive: Arc::clone(&alive), answers: Some((answers, before)) }))?;
                let reply = connection.send(cmd, to.into(), &alive).await;
                // What was sent and lost has a code of its own.
                if let Err(error) = reply.as_ref().map_err(Clone::clone)
                    && error.is_io_error()
                {
                    return Err(unconnected(error));
                }
                reply
            }
        };
        reply.map_err(|error| {
            if error.is_connection_refusal() {
                return unconnected(error);
            }
            let shows = if is_broken(&error) { Shows::Nothing } else { Shows::Server };
            Failure { error, sent: true, shows }
        })
    }

    /// How many connections were made so far; 0 where they are not the limiter's own.
    pub(crate) fn made(&self) -> u64 {
        match &self.kind {
            Kind::Own(connections) => connections.made(),
            #[cfg(feature = "cluster")]
            Kind::OwnCluster(connections) => connections.made(),
            _ => 0,
        }
    }

    /// What log lines call it: an address, or the kind of client.
    pub(crate) fn server(&self) -> &str {
        &self.server
    }

    /// The slot of a key; 0 where there is only one server.
    pub(crate) fn slot(&self, key: &[u8]) -> u16 {
        #[cfg(feature = "cluster")]
        if self.is_cluster() {
            return slot(key);
        }
        let _ = key;
        0
    }

    pub(crate) fn is_cluster(&self) -> bool {
        #[cfg(feature = "cluster")]
        return matches!(self.kind, Kind::Cluster(_) | Kind::OwnCluster(_));
        #[cfg(not(feature = "cluster"))]
        false
    }
}

/// The slot of a cluster in which a key lies: that of its hash tag, if it has one.
#[cfg(feature = "cluster")]
fn slot(key: &[u8]) -> u16 {
    let tag = || {
        let behind = key.splitn(2, |byte| *byte == b'{').nth(1)?;
        let end = behind.iter().position(|byte| *byte == b'}').filter(|end| *end > 0)?;
        behind.get(..end)
    };
    crc16::State::<crc16::XMODEM>::calculate(tag().unwrap_or(key)) % 16384
}

#[cfg(all(test, feature = "cluster"))]
mod tests {
    use super::slot;

    #[test]
    fn keys_lie_in_the_slots_that_the_server_names() {
        // As CLUSTER KEYSLOT says.
        for (key, expected) in [("foo", 12182), ("123456789", 12739), ("{foo}bar", 12182), ("a{foo}{b}", 12182)] {
            assert_eq!(slot(key.as_bytes()), expected, "{key}");
        }
        for untagged in ["{}foo", "foo{}", "a{b"] {
            assert_eq!(
                slot(untagged.as_bytes()),
                crc16::State::<crc16::XMODEM>::calculate(untagged.as_bytes()) % 16384
            );
        }
    }
}
