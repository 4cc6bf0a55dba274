//! How the pipeline sees the network: connections that deliver bytes and take bytes.
//!
//! The pipeline reaches sockets through this trait alone, so the simulation runs the same pipeline over a network that
//! exists only in memory.

use std::io;
use std::time::Duration;

use seriatim_wire::FrameBuffer;

/// Names one connection for as long as the network lives; never used again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(pub u64);

/// Something the network has to say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NetworkEvent {
    /// A connection was accepted.
    Opened(ConnectionId),
    /// There may be bytes to read, or the end.
    Readable(ConnectionId),
    /// There may be room to write again.
    Writable(ConnectionId),
}

/// What a read came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReadOutcome {
    /// Everything that had arrived was read.
    Drained,
    /// The limit was reached; there may be more.
    More,
    /// The peer has ended its side, or the connection broke. What was read before stands.
    Closed,
}

/// Connections that deliver and take bytes.
pub trait Network {
    /// Waits until something happens, but no longer than `timeout`, and appends what happened to `events`. Returns early
    /// when the log has news or somebody asks the pipeline to stop.
    fn poll(&mut self, timeout: Option<Duration>, events: &mut Vec<NetworkEvent>) -> io::Result<()>;

    /// Appends up to about `max` arrived bytes to `into`.
    fn read(&mut self, id: ConnectionId, into: &mut FrameBuffer, max: usize) -> ReadOutcome;

    /// Sends what the connection takes without waiting, and says how much. An error means that it is broken.
    fn write(&mut self, id: ConnectionId, bytes: &[u8]) -> io::Result<usize>;

    /// Ends a connection.
    fn close(&mut self, id: ConnectionId);
}
