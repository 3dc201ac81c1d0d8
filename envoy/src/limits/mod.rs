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
    /// Of an xDS server, which waits to hear whether the configuration was taken.
    pub answer: Option<oneshot::Sender<Result<(), String>>>,
}
