//! Redis: the only folder that knows the client package.

mod address;
mod batches;
mod item;
mod reply;
mod store;

pub use address::{connection_for, describe};
pub use batches::MOST_KEYS;
pub use item::{Hold, Item};
/// One limit after a call, or as it is.
pub use redis_rl_client::State;
pub use reply::Failure;
pub use store::Store;
