//! The configuration: domains, descriptors, limits.

pub mod definition;
pub mod files;
mod load;
pub mod overrides;
pub mod sources;
pub mod tree;
pub mod xds;
mod yaml;

use tokio::sync::oneshot;

use definition::Definition;

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
