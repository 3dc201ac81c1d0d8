//! A connection that is made when it is needed, by one task for all calls that wait for it, and given up when it has
//! broken. Each Tokio runtime has its own: the task that reads and writes it ends with the runtime on which it was made.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use redis::{ErrorKind, RedisError, RedisResult};
use tokio::runtime::{Handle, Id};
use tokio::sync::watch;

/// Whether a connection is in use: false once it has broken or was given up.
pub(crate) type Alive = Arc<AtomicBool>;
type Connect<C> = Box<dyn Fn(Alive) -> Pin<Box<dyn Future<Output = RedisResult<C>> + Send>> + Send + Sync>;

pub(crate) struct OnDemand<C> {
    connect: Connect<C>,
    current: Mutex<Vec<Attempt<C>>>,
    /// Connections made so far.
    made: AtomicU64,
}

#[derive(Clone)]
struct Attempt<C> {
    runtime: Id,
    outcome: watch::Receiver<Option<RedisResult<C>>>,
    alive: Alive,
}

/// Ends with the task that made a connection, and so with its runtime.
struct Ends(Alive);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.store(false, Relaxed);
    }
}

impl<C: Clone + Send + Sync + 'static> OnDemand<C> {
    pub fn new<F: Future<Output = RedisResult<C>> + Send + 'static>(
        connect: impl Fn(Alive) -> F + Send + Sync + 'static,
    ) -> Self {
        let connect = Box::new(move |alive| Box::pin(connect(alive)) as _);
        Self { connect, current: Mutex::default(), made: AtomicU64::new(0) }
    }

    pub fn made(&self) -> u64 {
        self.made.load(Relaxed)
    }

    /// The connection of this runtime, and whether it is in use.
    pub async fn get(&self) -> RedisResult<(C, Alive)> {
        let Attempt { mut outcome, alive, .. } = self.attempt();
        let connected = outcome.wait_for(Option::is_some).await.map(|outcome| outcome.clone());
        // Permanent, and no outage: the client is set up in a way with which it cannot connect.
        let panicked = || RedisError::from((ErrorKind::InvalidClientConfig, "connecting to the server panicked"));
        Ok((connected.ok().flatten().unwrap_or_else(|| Err(panicked()))?, alive))
    }

    fn attempt(&self) -> Attempt<C> {
        let runtime = Handle::current().id();
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        current.retain(|attempt| attempt.alive.load(Relaxed));
        if let Some(attempt) = current.iter().find(|attempt| attempt.runtime == runtime) {
            return attempt.clone();
        }
        let (sender, outcome) = watch::channel(None);
        let alive = Alive::new(AtomicBool::new(true));
        let connecting = (self.connect)(Arc::clone(&alive));
        self.made.fetch_add(1, Relaxed);
        let ends = Ends(Arc::clone(&alive));
        // In a task of its own, so that it goes on when the call that needed it is given up.
        tokio::spawn(async move {
            let _ends = ends;
            let connected = connecting.await;
            let is_connected = connected.is_ok();
            if sender.send(Some(connected)).is_ok() && is_connected {
                // Until another has taken its place.
                sender.closed().await;
            }
        });
        let attempt = Attempt { runtime, outcome, alive };
        current.push(attempt.clone());
        attempt
    }
}

#[cfg(test)]
#[path = "../tests/unit/on_demand.rs"]
mod tests;
