//! A cluster's connection to one node, which does not send a call again when its reply is lost.
//!
//! The `redis` crate's own sends everything again that failed for want of a connection or of time. It cannot do without:
//! `retries(0)` would also switch redirections off. So the connection to each node tells it what happened. A call that
//! may have been counted ends with an error that is not retried, and the connection that broke says from then on, before
//! it sends anything, that it is broken: that is retried, on a new one. A connection breaks as well with a call that has
//! waited for long, so that a node which hangs is left.
//!
//! The kernel still accepts connections to a node that hangs. The client waits for their set-up while it keeps all other
//! calls waiting, and again for each call that is redirected there. So a node that hangs is remembered, and refused.
//!
//! When the client sees MOVED, it asks for the slots, under a lock for which it waits without going on with its other calls.
//! Of a crowd, some may have got that lock and had no turn yet to give it back (Tokio lets a task do only so much at once):
//! then it waits for good. So MOVED is followed here, by the address of a node that is known, and the connection is replaced
//! by one that knows the slots, and the nodes, as they are now.

use std::collections::{HashMap, HashSet};
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::{ClusterConnection, Connect};
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, IntoConnectionInfo, Pipeline, RedisError, RedisFuture, RedisResult, Value,
    make_extension_error,
};
use tokio::time::Instant;

use crate::error::{Meaning, REPLY_LATE, REPLY_LOST, SHORTEST_PATIENCE, meaning, no_answer};
use crate::server::QUEUE;

/// For how long the client's own commands may take, of which some keep all calls waiting.
const OWN_TIMEOUT: Duration = SHORTEST_PATIENCE;

/// How long a call waits for its reply before the node is taken for one that hangs, whether its caller is still there or
/// not. For as long again no connection to it is made.
const PATIENCE: Duration = Duration::from_secs(1);

/// How often a node that hangs has the whole time that the client gives a connection; in between it has [`OWN_TIMEOUT`].
const WHOLE_TIME_EVERY: Duration = Duration::from_secs(60);

/// A connection that has seen MOVED is replaced when it is as old as this.
const SLOTS_KNOWN_FOR: Duration = Duration::from_secs(1);

/// The nodes that a client was connected to last, by their addresses.
static NODES: LazyLock<Mutex<HashSet<String>>> = LazyLock::new(Mutex::default);

fn nodes() -> MutexGuard<'static, HashSet<String>> {
    NODES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The nodes that hang, by their addresses.
static HUNG: LazyLock<Mutex<HashMap<String, Hung>>> = LazyLock::new(Mutex::default);

struct Hung {
    first: Instant,
    last: Instant,
}

fn hung() -> MutexGuard<'static, HashMap<String, Hung>> {
    HUNG.lock().unwrap_or_else(PoisonError::into_inner)
}

fn hangs(node: &str) {
    let (now, mut hung) = (Instant::now(), hung());
    hung.retain(|_, hung| hung.first + WHOLE_TIME_EVERY > now);
    hung.entry(node.to_owned()).or_insert(Hung { first: now, last: now }).last = now;
}

/// For how long a connection to the node may take to be made, if not as long as the client says.
fn time_to_connect(node: &str) -> RedisResult<Option<Duration>> {
    let hung = hung();
    let Some(Hung { first, last }) = hung.get(node) else { return Ok(None) };
    if last.elapsed() < PATIENCE {
        return Err(io::Error::new(io::ErrorKind::NotConnected, format!("{node} did not answer a moment ago")).into());
    }
    Ok((first.elapsed() < WHOLE_TIME_EVERY).then_some(OWN_TIMEOUT))
}

/// The connection to a cluster that a limiter makes.
#[derive(Clone)]
pub(crate) struct Cluster {
    connection: ClusterConnection<SendsOnce>,
    made: Instant,
    answers: Arc<AtomicU64>,
}

impl Cluster {
    pub async fn connect(client: ClusterClient) -> RedisResult<Self> {
        let connection = client.get_async_generic_connection().await?;
        Ok(Self { connection, made: Instant::now(), answers: Arc::default() })
    }

    /// How many calls were answered, whatever the answer was.
    pub fn answers(&self) -> &Arc<AtomicU64> {
        &self.answers
    }

    /// Sends a command. `alive` becomes false when the slots have to be asked for anew.
    pub async fn send(mut self, cmd: Cmd, to: RoutingInfo, alive: &AtomicBool) -> RedisResult<Value> {
        let mut reply = self.connection.route_command(cmd.clone(), to).await.and_then(Value::extract_error);
        if let Some(node) = reply.as_ref().err().and_then(moved_to) {
            if self.made.elapsed() >= SLOTS_KNOWN_FOR {
                alive.store(false, Relaxed);
            }
            if nodes().contains(&node)
                && let Some((host, port)) = node.rsplit_once(':')
                && let Ok(port) = port.parse()
            {
                let node = SingleNodeRoutingInfo::ByAddress { host: host.to_owned(), port };
                let to = RoutingInfo::SingleNode(node);
                reply = self.connection.route_command(cmd, to).await.and_then(Value::extract_error);
            }
        }
        if !reply.as_ref().is_err_and(RedisError::is_io_error) {
            self.answers.fetch_add(1, Relaxed);
        }
        reply
    }
}

/// The node that has the slot by now.
fn moved_to(error: &RedisError) -> Option<String> {
    let is_moved = error.code() == Some("MOVED");
    error.detail().filter(|_| is_moved)?.split_ascii_whitespace().nth(1).map(str::to_owned)
}

/// The connection to one node of a cluster. Not to be used by itself: see
/// [`Connection`](crate::Connection).
#[derive(Clone)]
pub(crate) struct SendsOnce {
    connection: MultiplexedConnection,
    node: Arc<Node>,
    /// Whether the next command of this clone follows a redirection by ASK.
    asking: bool,
}

struct Node {
    address: String,
    /// Whether the connection to it has broken.
    broken: AtomicBool,
}

impl Node {
    fn breaks(&self) {
        self.broken.store(true, Relaxed);
        nodes().remove(&self.address);
    }
}

/// A command that waits for its reply.
struct Waiting<'a> {
    node: &'a Node,
    since: Instant,
}

impl Drop for Waiting<'_> {
    /// Where the reply was not awaited to the end.
    fn drop(&mut self) {
        let waited = self.since.elapsed();
        if waited >= SHORTEST_PATIENCE {
            self.node.breaks();
        }
        if waited >= PATIENCE {
            hangs(&self.node.address);
        }
    }
}

impl SendsOnce {
    fn check(&self) -> RedisResult<()> {
        if self.node.broken.load(Relaxed) {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "the connection has broken").into());
        }
        Ok(())
    }

    /// What the client is told of an error that a call of ours ended with.
    fn told(&self, error: RedisError) -> RedisError {
        if meaning(&error, true) == Meaning::TryAgain {
            // The limiter asks again, within its own time.
            return make_extension_error("TRYAGAIN".to_owned(), error.detail().map(str::to_owned));
        }
        if error.kind() != ErrorKind::Io {
            return error;
        }
        // A late one is given up as well: it may be a node that has gone without a word.
        self.node.breaks();
        let code = if error.is_timeout() { REPLY_LATE } else { REPLY_LOST };
        make_extension_error(code.to_owned(), Some(error.to_string()))
    }
}

/// MOVED as an error that the client passes on.
fn without_moved(error: RedisError) -> RedisError {
    match moved_to(&error) {
        Some(_) => make_extension_error("MOVED".to_owned(), error.detail().map(str::to_owned)),
        None => error,
    }
}

/// Whether the command is a limiter's, and not one of the client's own.
fn is_of_limiters(name: &[u8]) -> bool {
    name.starts_with(b"RL.")
        || [&b"FCALL"[..], b"FCALL_RO", b"EVALSHA", b"EVALSHA_RO", b"EVAL", b"EVAL_RO"].contains(&name)
}

impl SendsOnce {
    async fn exchange(&mut self, cmd: &Cmd) -> RedisResult<Value> {
        let node = &*self.node;
        let waiting = Waiting { node, since: Instant::now() };
        // ASKING is for the command behind it, and the connection is shared: they leave as one.
        let (asking, connection) = (std::mem::take(&mut self.asking), &mut self.connection);
        let mut reply = pin!(async {
            if !asking {
                return connection.send_packed_command(cmd).await;
            }
            let mut both = redis::pipe();
            both.cmd("ASKING").ignore().add_command(cmd.clone());
            let mut replies = connection.send_packed_commands(&both, 1, 1).await?;
            replies.pop().ok_or_else(|| no_answer(io::ErrorKind::InvalidData, "no reply behind ASKING".to_owned()))
        });
        // The client does not notice that a caller has gone before something happens: here, that time is up.
        let reply = match tokio::time::timeout(PATIENCE, reply.as_mut()).await {
            Ok(reply) => reply,
            Err(_) => {
                node.breaks();
                hangs(&node.address);
                reply.await
            }
        };
        std::mem::forget(waiting);
        reply
    }
}

impl ConnectionLike for SendsOnce {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            self.check()?;
            match cmd.args_iter().next() {
                Some(redis::Arg::Simple(b"ASKING")) => {
                    self.asking = true;
                    Ok(Value::Okay)
                }
                Some(redis::Arg::Simple(name)) if is_of_limiters(name) => {
                    let reply = self.exchange(cmd).await.and_then(Value::extract_error).map_err(without_moved);
                    // A peek counts nothing, and can be sent again.
                    let reads = name == b"RL.PEEK" || name.ends_with(b"_RO");
                    if reads { reply } else { reply.map_err(|error| self.told(error)) }
                }
                _ => {
                    let reply = tokio::time::timeout(OWN_TIMEOUT, self.connection.send_packed_command(cmd)).await;
                    reply.unwrap_or_else(|_| {
                        self.node.breaks();
                        Err(no_answer(io::ErrorKind::TimedOut, format!("no reply within {OWN_TIMEOUT:?}")))
                    })
                }
            }
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            self.check()?;
            self.connection.send_packed_commands(pipeline, offset, count).await
        })
    }

    fn get_db(&self) -> i64 {
        self.connection.get_db()
    }
}

impl Connect for SendsOnce {
    fn connect_with_config<'a, T>(info: T, config: AsyncConnectionConfig) -> RedisFuture<'a, Self>
    where
        T: IntoConnectionInfo + Send + 'a,
    {
        Box::pin(async move {
            let config = config.set_pipeline_buffer_size(QUEUE);
            let info = info.into_connection_info()?;
            let address = info.addr().to_string();
            let config = match time_to_connect(&address)? {
                Some(time) => config.set_connection_timeout(Some(time)),
                None => config,
            };
            let connection = MultiplexedConnection::connect_with_config(info, config).await;
            match &connection {
                Err(error) if error.is_timeout() => hangs(&address),
                _ => drop(hung().remove(&address)),
            }
            match &connection {
                Err(_) => nodes().remove(&address),
                Ok(_) => nodes().insert(address.clone()),
            };
            let node = Arc::new(Node { address, broken: AtomicBool::new(false) });
            Ok(Self { connection: connection?, node, asking: false })
        })
    }
}

#[cfg(test)]
#[path = "../tests/unit/cluster.rs"]
mod tests;
