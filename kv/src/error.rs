//! The one error of this crate.

use std::path::PathBuf;
use std::sync::Arc;

use seriatim_core::{BeginError, CommitError, CommitNumber, InvalidCause, StoreRefusal, WritePointer};

use crate::coordinator::{BeginFailure, StoreFailure, TransportError};
use crate::store::StoreError;

/// Any error that may cross threads.
pub type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// What is known about a transaction that ended in an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It did not commit and never will: no snapshot will ever hold its writes.
    NotCommitted,
    /// Nobody could say. It may have committed; running it again may do its work twice.
    Unknown,
}

/// Why a transaction, or a read, came to nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Somebody who committed after the transaction's snapshot wrote this key, which the transaction wrote or, if it is
    /// serializable, read. Run it again.
    #[error("transaction {tx} conflicts with {winner:?} (commit {csn}) on table {table:?}, key {key:02x?}")]
    Conflict {
        /// The transaction that was refused.
        tx: WritePointer,
        /// Name of the table.
        table: String,
        /// The key.
        key: Vec<u8>,
        /// The winner's commit number.
        csn: CommitNumber,
        /// The winner, if the sequencer still knew it.
        winner: Option<WritePointer>,
        /// The winner's label, if it had one that was kept.
        label: Option<Arc<str>>,
    },
    /// Somebody serializable who committed after the transaction's snapshot wrote a key that starts like those of a range
    /// that the transaction, serializable itself, had scanned; perhaps one within the range. Run it again.
    #[error(
        "transaction {tx} conflicts with {winner:?} (commit {csn}) on a range of table {table:?} within {prefix:02x?}"
    )]
    RangeConflict {
        /// The transaction that was refused.
        tx: WritePointer,
        /// Name of the table.
        table: String,
        /// What the written key starts with; empty for the whole table.
        prefix: Vec<u8>,
        /// The winner's commit number.
        csn: CommitNumber,
        /// The winner, if the sequencer still knew it.
        winner: Option<WritePointer>,
        /// The winner's label, if it had one that was kept.
        label: Option<Arc<str>>,
    },
    /// The sequencer refused the commit for another reason.
    #[error("the commit was refused")]
    Refused(#[from] CommitError),
    /// The sequencer refused the commit, and its reason got lost on the way. Run the transaction again.
    #[error("transaction {tx} was refused, for a reason that got lost")]
    RefusalLost {
        /// The transaction.
        tx: WritePointer,
    },
    /// The transaction was made invalid before its commit was decided. Run it again.
    #[error("transaction {tx} became invalid: {cause:?}")]
    Invalidated {
        /// The transaction.
        tx: WritePointer,
        /// Why it became invalid.
        cause: InvalidCause,
    },
    /// Somebody else aborted the transaction before its commit was decided.
    #[error("transaction {tx} was aborted by somebody else")]
    AbortedByOther {
        /// The transaction.
        tx: WritePointer,
    },
    /// A database could not be opened.
    #[error("open the database in {directory:?}")]
    Open {
        /// Its directory; empty for one in memory.
        directory: PathBuf,
        /// Why not.
        source: BoxError,
    },
    /// The sequencer refused to begin.
    #[error("the begin was refused")]
    Begin(#[from] BeginError),
    /// The sequencer did not answer a question on which no commit hangs.
    #[error("the sequencer did not answer")]
    Transport(#[source] TransportError),
    /// The commit was sent and its outcome could not be learned in time. Its writes are visible or will stay excluded;
    /// [`Coordinator::settle`](crate::Coordinator::settle) tells which as soon as the sequencer answers.
    #[error("it is not known whether transaction {tx} committed")]
    Unknown {
        /// The transaction.
        tx: WritePointer,
        /// What stood in the way; `None` if the sequencer answered that it no longer knows.
        source: Option<TransportError>,
    },
    /// The store failed.
    #[error("the store failed")]
    Store(#[from] StoreError),
    /// The sequencer refused what the store said of itself. What was cleaned stays clean; clean again.
    #[error("the sequencer refused what the store said of itself")]
    StoreRefused(#[from] StoreRefusal),
    /// A key is too long.
    #[error("a key of {len} bytes for table {table:?} is over the limit of {max}")]
    KeyTooLong {
        /// Name of the table.
        table: String,
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// A value is too long.
    #[error("a value of {len} bytes is over the limit of {max}")]
    ValueTooLong {
        /// Its length.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// A transaction buffers too much.
    #[error("the transaction's writes take {bytes} bytes, over the limit of {max}")]
    TransactionTooLarge {
        /// Bytes of keys and values with the write that was refused.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// A snapshot is too old to be read through: versions it holds may have been collected. Take a new one.
    #[error("the snapshot is {age_ms} ms old, over the limit of {max_ms} ms")]
    SnapshotTooOld {
        /// Its age.
        age_ms: u64,
        /// The limit.
        max_ms: u64,
    },
    /// The closure ended the transaction; see [`Error::abort`].
    #[error("the closure aborted the transaction")]
    Closure(#[source] BoxError),
    /// Every attempt was refused.
    #[error("the transaction was refused {attempts} times")]
    RetriesExhausted {
        /// How many attempts were made.
        attempts: u32,
        /// What ended the last one.
        #[source]
        last: Box<Error>,
    },
}

impl From<BeginFailure> for Error {
    fn from(failure: BeginFailure) -> Error {
        match failure {
            BeginFailure::Refused(refusal) => Error::Begin(refusal),
            BeginFailure::Transport(transport) => Error::Transport(transport),
        }
    }
}

impl From<StoreFailure> for Error {
    fn from(failure: StoreFailure) -> Error {
        match failure {
            StoreFailure::Refused(refusal) => Error::StoreRefused(refusal),
            StoreFailure::Transport(transport) => Error::Transport(transport),
        }
    }
}

impl Error {
    /// Wraps an error of the caller's, to be returned from the closure of [`Db::run`](crate::Db::run): the transaction
    /// is aborted and not run again.
    pub fn abort(reason: impl Into<BoxError>) -> Error {
        Error::Closure(reason.into())
    }

    /// True if the same transaction may be run again from its begin, and may well succeed.
    /// [`Db::run`](crate::Db::run) does so by itself, as often as its policy allows.
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Conflict { .. } | Error::RangeConflict { .. } | Error::RefusalLost { .. } => true,
            Error::Invalidated { .. } | Error::AbortedByOther { .. } => true,
            Error::Refused(refusal) => refusal.is_retryable(),
            Error::Begin(BeginError::Overloaded(_)) => true,
            Error::Transport(transport) => transport.transient,
            Error::RetriesExhausted { .. } | Error::SnapshotTooOld { .. } => true,
            Error::StoreRefused(refusal) => !matches!(refusal, StoreRefusal::TooMany { .. }),
            _ => false,
        }
    }

    /// What is known about the transaction.
    pub fn outcome(&self) -> Outcome {
        match self {
            Error::Unknown { .. } => Outcome::Unknown,
            _ => Outcome::NotCommitted,
        }
    }

    /// True if the transaction lost to another one.
    pub fn is_conflict(&self) -> bool {
        match self {
            Error::Conflict { .. } | Error::RangeConflict { .. } => true,
            Error::RetriesExhausted { last, .. } => last.is_conflict(),
            _ => false,
        }
    }
}
