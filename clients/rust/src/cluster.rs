//! A cluster's connection that does not send a call again when its reply is lost.
//!
//! The `redis` crate's own sends everything again that failed for want of a connection or of time. It cannot do without:
//! `retries(0)` would also switch redirections off. So the connection to each node tells it what happened. A call that
//! may have been counted ends with an error that is not retried, and the connection that broke says from then on, before
//! it sends anything, that it is broken: that is retried, on a new one.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::cluster_async::Connect;
use redis::{
    AsyncConnectionConfig, Cmd, ErrorKind, IntoConnectionInfo, Pipeline, RedisError, RedisFuture, RedisResult, Value,
    make_extension_error,
};

use crate::connection::QUEUE;
use crate::error::{Meaning, REPLY_LATE, REPLY_LOST, meaning};

/// The connection to one node of a cluster. Not to be used by itself: see
/// [`Connection`](crate::Connection).
#[derive(Clone)]
pub(crate) struct SendsOnce {
    connection: MultiplexedConnection,
    broken: Arc<AtomicBool>,
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

/// Whether the command is a limiter's and may count something. The client's own can be sent again, and so can peeks.
fn may_count(cmd: &Cmd) -> bool {
    match cmd.args_iter().next() {
        Some(redis::Arg::Simple(b"FCALL" | b"EVALSHA" | b"EVAL")) => true,
        Some(redis::Arg::Simple(name)) => name.starts_with(b"RL.") && name != b"RL.PEEK",
        _ => false,
    }
}

impl ConnectionLike for SendsOnce {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            self.check()?;
            let reply = self.connection.send_packed_command(cmd).await;
            if !may_count(cmd) {
                return reply;
            }
            reply.and_then(Value::extract_error).map_err(|error| self.told(error))
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
            Ok(Self { connection, broken: Arc::default() })
        })
    }
}
