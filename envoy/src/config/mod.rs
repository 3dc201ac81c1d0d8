//! The configuration: domains, descriptors, limits.

pub mod definition;
pub mod files;
pub mod sources;
pub mod tree;
pub mod xds;

use tokio::sync::oneshot;

pub use definition::Definition;
pub use tree::{Config, Found};

/// A configuration that has been read, or why it could not be.
pub struct Update {
    pub definitions: Result<Vec<Definition>, String>,
    pub origin: Origin,
}

pub enum Origin {
    Files,
    /// The server waits for an answer: whether the configuration was taken.
    Xds(oneshot::Sender<Result<(), String>>),
}
