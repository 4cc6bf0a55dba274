//! Why a pipeline ended by itself.

use std::io;

use seriatim_core::event::EventError;
use seriatim_core::{ApplyError, ImageError, LimitsError};
use seriatim_wal::{AppendError, OpenError, Poisoned, SubmitError};

/// Why a pipeline did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The data directory was not opened; the text says what to do.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// A record of the log cannot be replayed. The log was written by a newer version, or by a faulty one.
    #[error("record {lsn} of the log cannot be replayed: start the version that wrote it, and report this")]
    Replay {
        /// Which record.
        lsn: u64,
        /// Why not.
        source: ReplayError,
    },
    /// The image cannot be read, though its checksum is right.
    #[error("the image up to record {covers} cannot be read: start the version that wrote it, and report this")]
    Image {
        /// Which image.
        covers: u64,
        /// Why not.
        source: ImageError,
    },
    /// The wall clock is so far ahead of the last durable time that it is more likely wrong than right.
    #[error(
        "the clock is {ahead_days} days ahead of the last durable time: correct the clock, or accept it for good with \
         --accept-clock"
    )]
    ClockAhead {
        /// How far, in whole days.
        ahead_days: u64,
    },
    /// Limits that contradict each other.
    #[error(transparent)]
    Limits(#[from] LimitsError),
    /// The first record was not taken: most likely there is no room on the disk.
    #[error("the log has no room for its first record: make {needed_bytes} bytes of room on its disk and start again")]
    FirstGroup {
        /// The length of a segment.
        needed_bytes: u64,
        /// What the log said.
        source: AppendError,
    },
    /// The first group was not written.
    #[error("the log did not take its first group")]
    FirstSubmit(#[source] SubmitError),
    /// The log failed at its first group.
    #[error("the log failed at its first group")]
    Log(#[from] Failure),
    /// The address can be reached from other machines, and nothing is encrypted and everybody trusted.
    #[error("{address} is not a loopback address: listen on 127.0.0.1, or say --trust-network if all who reach it may")]
    NotLoopback {
        /// The address.
        address: std::net::SocketAddr,
    },
    /// No thread could be started.
    #[error("start a thread")]
    Thread {
        /// Why not.
        source: io::Error,
    },
    /// The network.
    #[error("listen on {address}")]
    Listen {
        /// Where.
        address: String,
        /// Why not.
        source: io::Error,
    },
}

/// Why a record cannot be replayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReplayError {
    /// Its bytes are no event.
    #[error(transparent)]
    Event(#[from] EventError),
    /// Its event cannot follow the ones before.
    #[error(transparent)]
    Apply(#[from] ApplyError),
}

/// Why a running pipeline ended. Nothing was answered after it happened; what was acknowledged before stands.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// A write or sync of the log failed.
    #[error(transparent)]
    Poisoned(#[from] Poisoned),
    /// The published state did not take an event that this very process decided: a fault of ours.
    #[error("the published state refused a durable event: {0}")]
    Replay(#[from] ReplayError),
    /// A thread panicked while it carried the log.
    #[error("a thread panicked while it carried the log")]
    Panicked,
    /// The system's event loop failed.
    #[error("wait for events: {0}")]
    Poll(String),
}
