//! Speaks: the pipeline, its event loop and the server around it.
//!
//! `pipeline.rs` spells the way of a request out in order; whoever has read it has read the program.
#![forbid(unsafe_code)]

mod bounds;
mod clock;
mod connection;
mod desk;
mod embedded;
mod failure;
mod fences;
mod image_file;
mod large_sets;
mod network;
mod pipeline;
mod plant;
mod publication;
mod recovery;
mod server;
mod sessions;
mod sockets;
mod upkeep;

pub use clock::{Clock, Now, START_AHEAD_MS_MAX, STEP_MS_MAX, SystemClock, Times};
pub use connection::OUTPUT_BYTES_MAX;
pub use embedded::upkeep::StoreError;
pub use embedded::{Embedded, EmbeddedError};
pub use failure::{Failure, ReplayError, StartError};
pub use image_file::{SavedState, SavedStateError};
pub use network::{ConnectionId, Network, NetworkEvent, ReadOutcome};
pub use pipeline::{Pipeline, ServerLimits, Started};
pub use plant::{AbortOnDisconnect, EarlyVisible, Honest, LostUpdate, Plant};
pub use publication::{WINDOW_IDLE_MS, WINDOW_MS};
pub use recovery::{Options, RecoveryReport};
pub use server::{Planted, Server, ServerOptions, StorageKind};
pub use sockets::{Sockets, Stop};
