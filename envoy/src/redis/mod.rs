//! Redis: the only folder that knows the client package.

mod address;
mod batches;
mod item;
mod reply;
mod store;

pub use address::{connection_for, describe};
pub use batches::{MOST_KEYS, batches, takes_at_once};
pub use item::{Hold, Item};
pub use redis_rl_client::State;
pub use reply::Failure;
pub use store::Store;

/// How long a server may take to connect, and for what nobody's request waits for.
pub const PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);
