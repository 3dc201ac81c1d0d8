//! Redis: the only folder that knows the client package.

mod address;
mod batches;
mod item;
mod reply;
mod store;

pub use address::{connection_for, describe};
pub use batches::MOST_KEYS;
pub use item::{Hold, Item};
pub use reply::{Failure, State};
pub use store::Store;
