//! What can come of a call, by what the caller can do about it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use seriatim_core::{BeginError, CommitError, CommitNumber, Status, WritePointer};
use seriatim_wire::{ErrorCode, ErrorReply, StoreRefusal};

use crate::address::Address;
use crate::session::ProtocolError;

/// Why a call did not do what it was asked.
///
/// Two questions matter: [`is_retryable`](Error::is_retryable), may the transaction be run again from its begin; and
/// [`outcome`](Error::outcome), what is known of the transaction that was to be committed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No begin, and no timestamps.
    #[error(transparent)]
    Begin(#[from] BeginError),
    /// The commit was refused; the error says why.
    #[error(transparent)]
    Commit(#[from] CommitError),
    /// The transaction did not commit: the connection was lost while it did, and the answer to the repeated commit, or
    /// to the doubt about it, is this. Roll back, abort, begin again.
    #[error("transaction {tx} did not commit, as was found out after a lost connection: {ended:?}")]
    NotCommitted {
        /// The transaction.
        tx: WritePointer,
        /// How it ended.
        ended: Status,
    },
    /// The transaction may have committed and may not: no server would say within the time. Do not run it again before
    /// [`Client::settle`](crate::Client::settle) has said which.
    #[error("it is not known whether transaction {tx} committed")]
    Unknown {
        /// The transaction.
        tx: WritePointer,
        /// Why there was no answer.
        #[source]
        cause: Cause,
    },
    /// The server did not do it, and says why. Nothing happened.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// No connection could be made. Nothing was sent.
    #[error("connect to {address}")]
    Connect {
        /// Where to.
        address: Address,
        /// Why not.
        #[source]
        cause: Cause,
    },
    /// The connection was lost before the answer came; what was asked may have been done.
    #[error("the connection was lost before the answer came")]
    Lost(#[source] Cause),
    /// No answer within the time; what was asked may still be done if it was sent.
    #[error("no answer within {after:?}")]
    TimedOut {
        /// The time that the call had.
        after: Duration,
        /// False if it never left.
        sent: bool,
    },
    /// As many calls are under way as may be. Nothing was sent.
    #[error("{max} calls are under way, which is the limit")]
    QueueFull {
        /// The limit.
        max: usize,
    },
    /// The keys that a transaction's participants told take more bytes than they may. Nothing was sent.
    #[error("the keys of one commit take {bytes} bytes, over the limit of {max}")]
    KeysTooLarge {
        /// Bytes of all keys, each counted as often as it was told.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// The snapshot is so old that versions it needs may be gone. Take a new one, or begin a transaction.
    #[error("the snapshot is {age:?} old, over the limit of {max:?}")]
    SnapshotTooOld {
        /// Its age.
        age: Duration,
        /// The server's limit.
        max: Duration,
    },
    /// The server did not do what a registered store asked; the refusal says why, and what to do.
    #[error(transparent)]
    Store(#[from] StoreRefusal),
    /// A sequencer that is no server failed for good, and says how. What was asked for may have been done; only its next
    /// start will tell.
    #[error("the sequencer failed")]
    Service(#[source] Arc<dyn std::error::Error + Send + Sync>),
    /// What was asked for could not be written where the caller wants it.
    #[error("write")]
    Write(#[source] Arc<io::Error>),
    /// The image being read is gone: the server was started again, or waited a minute for the next page. Start over.
    #[error("the image is gone after {read} bytes of it were read")]
    ImageGone {
        /// Bytes that were read.
        read: u64,
    },
}

/// Why a connection ended, or was not made.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The system said so.
    #[error("socket")]
    Io(#[source] Arc<io::Error>),
    /// The server closed it.
    #[error("the server closed the connection")]
    Closed,
    /// The server said why it would not go on.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// The server broke the protocol.
    #[error(transparent)]
    Protocol(#[from] ProtocolError),
    /// Nothing came in time.
    #[error("nothing came in time")]
    Silent,
    /// The server's store is not the one that was served here before, or that the options name.
    #[error("the server serves another store")]
    OtherStore,
    /// The server has forgotten how the transaction ended.
    #[error("the server has forgotten the transaction")]
    Forgotten,
}

impl From<io::Error> for Cause {
    fn from(error: io::Error) -> Cause {
        Cause::Io(Arc::new(error))
    }
}

impl Cause {
    /// True if connecting again may help.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Cause::Io(_) | Cause::Closed | Cause::Silent => true,
            Cause::Server(error) => error.code.is_retryable(),
            Cause::Protocol(_) | Cause::OtherStore | Cause::Forgotten => false,
        }
    }
}

/// A server's own words on why it did not do something.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the server answered {code:?}: {message}")]
pub struct ServerError {
    /// Why.
    pub code: ErrorCode,
    /// What was asked for or met, where that is a number.
    pub asked: u64,
    /// What would have been right, where that is a number.
    pub limit: u64,
    /// For people.
    pub message: String,
}

impl ServerError {
    /// True if this server goes away, so that the same request is one for the next connection. What it was doing when
    /// its log failed may have been done.
    pub(crate) fn is_farewell(&self) -> bool {
        matches!(self.code, ErrorCode::ShuttingDown | ErrorCode::LogFailed)
    }
}

impl From<ErrorReply<'_>> for ServerError {
    fn from(reply: ErrorReply<'_>) -> ServerError {
        let ErrorReply { code, asked, limit, message, .. } = reply;
        ServerError { code, asked, limit, message: message.to_owned() }
    }
}

/// What is known of a transaction after its commit gave an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// Nothing was decided by this call: the transaction stands where it stood, and may be committed again or ended.
    Undecided,
    /// It did not commit and never will.
    NotCommitted,
    /// It had committed, by an earlier call than this.
    Committed(CommitNumber),
    /// Not known.
    Unknown,
}

impl Error {
    /// True if running the whole transaction again, from its begin, is safe and may go better.
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Begin(error) => matches!(error, BeginError::Overloaded(_)),
            Error::Commit(error) => error.is_retryable(),
            Error::Server(error) => error.code.is_retryable(),
            Error::Connect { cause, .. } | Error::Lost(cause) => cause.is_passing(),
            Error::NotCommitted { .. } | Error::TimedOut { .. } | Error::QueueFull { .. } => true,
            Error::SnapshotTooOld { .. } => true,
            Error::ImageGone { .. } => true,
            Error::Unknown { .. } | Error::Service(_) | Error::KeysTooLarge { .. } => false,
            Error::Write(_) | Error::Store(_) => false,
        }
    }

    /// What is known of the transaction whose commit gave this error.
    pub fn outcome(&self) -> Outcome {
        match self {
            Error::Commit(CommitError::NotInProgress { ended, .. }) => match ended {
                Status::Committed(csn) => Outcome::Committed(*csn),
                Status::Forgotten | Status::Deciding | Status::Open => Outcome::Unknown,
                Status::Refused | Status::Aborted | Status::Invalid(_) => Outcome::NotCommitted,
            },
            Error::Commit(CommitError::Conflict { .. } | CommitError::TooOld { .. } | CommitError::Expired { .. })
            | Error::NotCommitted { .. } => Outcome::NotCommitted,
            Error::Unknown { .. } | Error::Service(_) | Error::Lost(_) | Error::TimedOut { sent: true, .. } => {
                Outcome::Unknown
            }
            Error::Commit(
                CommitError::ChangeSetTooLarge { .. }
                | CommitError::LongWithChanges { .. }
                | CommitError::NeedChanges { .. }
                | CommitError::CheckpointMismatch { .. }
                | CommitError::TooManyCheckpoints { .. }
                | CommitError::Overloaded(_),
            )
            | Error::Begin(_)
            | Error::Server(_)
            | Error::Connect { .. }
            | Error::TimedOut { sent: false, .. }
            | Error::QueueFull { .. }
            | Error::KeysTooLarge { .. }
            | Error::SnapshotTooOld { .. }
            | Error::Write(_)
            | Error::Store(_)
            | Error::ImageGone { .. } => Outcome::Undecided,
        }
    }
}
