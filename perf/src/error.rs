//! What ends a run before its time.

use std::io;
use std::time::Duration;

use seriatim_client::{Address, ProtocolError};
use seriatim_net::{Failure, StartError};
use seriatim_wire::ErrorCode;

use crate::load::LoadError;
use crate::report::Report;

/// Why a run could not start, or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The load cannot be made.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Nobody listens there, or not for us.
    #[error("connect to {address}")]
    Connect {
        /// Where.
        address: Address,
        /// Why not.
        source: io::Error,
    },
    /// A connection broke.
    #[error("{what}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// What went wrong.
        source: io::Error,
    },
    /// The server closed a connection.
    #[error("the server closed a connection")]
    Closed,
    /// The server said that it cannot go on.
    #[error("the server said {code:?}: {message}")]
    Server {
        /// Its code.
        code: ErrorCode,
        /// Its words.
        message: String,
    },
    /// The server broke the protocol.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// What was in flight at the end did not end.
    #[error("{in_flight} transactions had not ended {after:?} after the last began")]
    Stalled {
        /// Transactions without an answer.
        in_flight: u64,
        /// How long they were waited for.
        after: Duration,
    },
    /// The embedded sequencer did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The sequencer did not do what a measurement needs.
    #[error("the sequencer refused: {0}")]
    Refused(String),
    /// The embedded sequencer failed.
    #[error(transparent)]
    Failure(#[from] Failure),
}

/// A run that did not reach its end.
#[derive(Debug, thiserror::Error)]
#[error("{error}")]
pub struct Failed {
    /// Why.
    pub error: Error,
    /// What was measured until then, if it had started.
    pub partial: Option<Box<Report>>,
}

impl<E: Into<Error>> From<E> for Failed {
    fn from(error: E) -> Failed {
        Failed { error: error.into(), partial: None }
    }
}
