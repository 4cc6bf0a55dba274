//! Speaks: the pipeline, its event loop and the server around it.
//!
//! [`pipeline`] spells the way of a request out in order; whoever has read it has read the program.
#![deny(unsafe_code)]

mod clock;
mod network;
mod sockets;

pub use clock::{Clock, Now, START_AHEAD_MS_MAX, STEP_MS_MAX, SystemClock, Times};
pub use network::{ConnectionId, Network, NetworkEvent, ReadOutcome};
pub use sockets::{Sockets, Stop};
