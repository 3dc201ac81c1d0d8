//! A cluster's connection to one node, which does not send a call again when its reply is lost.
//!
//! The `redis` crate's own sends everything again that failed for want of a connection or of time. It cannot do without:
//! `retries(0)` would also switch redirections off. So the connection to each node tells it what happened. A call that
//! may have been counted ends with an error that is not retried, and the connection that broke says from then on, before
//! it sends anything, that it is broken: that is retried, on a new one. A connection breaks as well with a call that is
//! dropped after it has waited for long, so that a node which hangs is left.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster_async::Connect;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, IntoConnectionInfo, Pipeline, RedisError, RedisFuture, RedisResult, Value,
    make_extension_error,
};
use tokio::time::Instant;

use crate::error::{Meaning, REPLY_LATE, REPLY_LOST, SHORTEST_PATIENCE, meaning, no_answer};
use crate::wire::QUEUE;

/// For how long the client's own commands may take, of which some keep all calls waiting.
const OWN_TIMEOUT: Duration = SHORTEST_PATIENCE;

/// The connection to one node of a cluster. Not to be used by itself: see
/// [`Connection`](crate::Connection).
#[derive(Clone)]
pub(crate) struct SendsOnce {
    connection: MultiplexedConnection,
    broken: Arc<AtomicBool>,
    /// Whether the next command of this clone follows a redirection by ASK.
    asking: bool,
}

/// A command that waits for its reply.
struct Waiting<'a> {
    broken: &'a AtomicBool,
    since: Instant,
}

impl Drop for Waiting<'_> {
    /// Where the reply was not awaited to the end.
    fn drop(&mut self) {
        if self.since.elapsed() >= SHORTEST_PATIENCE {
            self.broken.store(true, Relaxed);
        }
    }
}

impl std::fmt::Debug for SendsOnce {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SendsOnce").field("broken", &self.broken).finish_non_exhaustive()
    }
}

impl SendsOnce {
    fn check(&self) -> RedisResult<()> {
        if self.broken.load(Relaxed) {
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
        // One that is late is given up as well: it may be a node that has gone without a word.
        self.broken.store(true, Relaxed);
        let code = if error.is_timeout() { REPLY_LATE } else { REPLY_LOST };
        make_extension_error(code.to_owned(), Some(error.to_string()))
    }
}

/// Whether the command is a limiter's, and not one of the client's own.
fn is_of_limiters(name: &[u8]) -> bool {
    name.starts_with(b"RL.")
        || [&b"FCALL"[..], b"FCALL_RO", b"EVALSHA", b"EVALSHA_RO", b"EVAL", b"EVAL_RO"].contains(&name)
}

/// Whether a limiter's command may count something. A peek can be sent again, and so can the client's own commands.
fn may_count(name: &[u8]) -> bool {
    name != b"RL.PEEK" && !name.ends_with(b"_RO")
}

impl SendsOnce {
    async fn exchange(&mut self, cmd: &Cmd) -> RedisResult<Value> {
        let waiting = Waiting { broken: &self.broken, since: Instant::now() };
        // ASKING is for the command behind it, and the connection is shared: they leave as one.
        let reply = if std::mem::take(&mut self.asking) {
            let mut both = redis::pipe();
            both.cmd("ASKING").ignore().add_command(cmd.clone());
            self.connection.send_packed_commands(&both, 1, 1).await.and_then(|mut replies| {
                replies.pop().ok_or_else(|| no_answer(io::ErrorKind::InvalidData, "no reply behind ASKING".to_owned()))
            })
        } else {
            self.connection.send_packed_command(cmd).await
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
                    let reply = self.exchange(cmd).await;
                    if !may_count(name) {
                        return reply;
                    }
                    reply.and_then(Value::extract_error).map_err(|error| self.told(error))
                }
                _ => {
                    let reply = tokio::time::timeout(OWN_TIMEOUT, self.connection.send_packed_command(cmd)).await;
                    reply.unwrap_or_else(|_| {
                        self.broken.store(true, Relaxed);
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
            let connection = MultiplexedConnection::connect_with_config(info, config).await?;
            Ok(Self { connection, broken: Arc::default(), asking: false })
        })
    }
}
