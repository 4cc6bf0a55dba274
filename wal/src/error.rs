//! What can go wrong, one type per thing a caller can do about it.

use std::io;
use std::sync::Arc;

use crate::group::Fault;
use crate::lsn::Lsn;
use crate::options::BadOption;

/// Why a directory was not opened. Nothing in it was changed, but for files that were never finished.
///
/// The text names file, offset and reason and ends with what to do next, on one line.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A setting outside its limits.
    #[error(transparent)]
    Option(#[from] BadOption),
    /// Another process has the directory.
    #[error("another process has the data directory {directory}: stop it, or name another directory")]
    Locked {
        /// The directory.
        directory: String,
    },
    /// The directory, or a file in it, belongs to something else.
    #[error("{file} {reason}: name another directory, or take the file away if you know how it came there")]
    Foreign {
        /// The file.
        file: String,
        /// How that shows.
        reason: ForeignReason,
    },
    /// A newer version wrote it.
    #[error("{file} has format version {found}, this version knows up to {known}: start the newer version")]
    Newer {
        /// The file.
        file: String,
        /// Its version.
        found: u16,
        /// The newest version known here.
        known: u16,
    },
    /// Bytes changed that were durable once. The log is never repaired by cutting it off there.
    #[error(
        "{file} is damaged at byte {offset}: {fault}{}: restore the directory from a copy or, in a cluster, empty it \
         and let this member fetch the log anew",
        successor.as_ref().map(|at| format!(", yet {at} was written after it")).unwrap_or_default()
    )]
    Corrupt {
        /// The file.
        file: String,
        /// Where in it, in bytes.
        offset: u64,
        /// What is wrong there.
        fault: Fault,
        /// What proves that it was durable.
        successor: Option<Successor>,
    },
    /// The identity file is damaged.
    #[error("{file} is damaged: restore it from a copy")]
    BadIdentity {
        /// The file.
        file: String,
    },
    /// A part of the log is not there.
    #[error(
        "records {} to {} are in no segment of {directory}, and no readable image covers them: restore the missing \
         files from a copy",
        first.0,
        last.0
    )]
    Missing {
        /// The directory.
        directory: String,
        /// The first record missing.
        first: Lsn,
        /// The last record missing.
        last: Lsn,
    },
    /// The system refused.
    #[error("cannot {action} {file}: see the cause, then start again")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        file: String,
        /// Why it failed.
        source: io::Error,
    },
}

/// How it shows that something belongs to somebody else.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ForeignReason {
    /// There are files but no identity.
    #[error("is in a directory that holds files but no identity of a store")]
    NoIdentity,
    /// It has another store's id.
    #[error("belongs to store {found}, not to {expected}", found = crate::StoreId(*found), expected = crate::StoreId(*expected))]
    OtherStore {
        /// The id it has.
        found: u128,
        /// The id it should have.
        expected: u128,
    },
    /// It is a file of this store under the name of another one.
    #[error("holds segment {segment}, not the one of its name")]
    Misnamed {
        /// The segment it holds.
        segment: u64,
    },
    /// It is not a file of ours, though it has such a name.
    #[error("is not what its name says")]
    OtherFile,
}

/// A place that was written after another one was durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Successor {
    /// The file.
    pub file: String,
    /// Where in it, in bytes.
    pub offset: u64,
}

impl std::fmt::Display for Successor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} byte {}", self.file, self.offset)
    }
}

/// A write or sync of the log failed. Nobody knows what is on the medium now, so this log does nothing more: no retry, no
/// reply. End the process, see to the medium, start again.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the log is poisoned: a write to segment {segment} at byte {offset} failed")]
pub struct Poisoned {
    /// The segment.
    pub segment: u64,
    /// Where in it, in bytes.
    pub offset: u64,
    /// Why.
    #[source]
    pub error: Arc<io::Error>,
}

/// Why a record was not taken.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The open group is at its bound. Submit it, or wait until the group before is durable; then try again.
    #[error("the open group holds {bytes} bytes of {bytes_max}")]
    Full {
        /// Bytes of its records.
        bytes: usize,
        /// Its bound.
        bytes_max: usize,
    },
    /// The medium has no room for a further segment and the present one no room for this record. Passes when there is
    /// room again: the log keeps trying by itself.
    #[error("no room for a further segment")]
    DiskFull(#[source] Arc<io::Error>),
    /// A further segment cannot be made for another reason than room. The log keeps trying by itself.
    #[error("a further segment cannot be made")]
    NoSegment(#[source] Arc<io::Error>),
    /// The record is larger than any may be.
    #[error("the record has {bytes} bytes, the limit is {bytes_max}")]
    TooLarge {
        /// Its payload.
        bytes: usize,
        /// The limit.
        bytes_max: usize,
    },
    /// See [`Poisoned`].
    #[error(transparent)]
    Poisoned(#[from] Poisoned),
}

/// Why a group was not written.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The stamp's token is older than that of a group already written: somebody else leads by now.
    #[error("token {token} is older than {newest}, which is in the log")]
    OldToken {
        /// The stamp's.
        token: u64,
        /// The log's.
        newest: u64,
    },
    /// See [`Poisoned`].
    #[error(transparent)]
    Poisoned(#[from] Poisoned),
}

/// Why an image was not begun.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SaveError {
    /// One is being written.
    #[error("an image is being written")]
    Busy,
    /// It would hold what a crash can still take back.
    #[error("an image up to record {covers} would pass the last durable record {durable}")]
    NotDurable {
        /// Up to where.
        covers: Lsn,
        /// The last durable record.
        durable: Lsn,
    },
    /// There is one already.
    #[error("there is an image up to record {newest} already")]
    NotNewer {
        /// Up to where.
        newest: Lsn,
    },
    /// See [`Poisoned`].
    #[error(transparent)]
    Poisoned(#[from] Poisoned),
}

/// An image that could not be written. The log goes on; so does the image before.
#[derive(Debug, thiserror::Error)]
#[error("the image up to record {covers} was not saved")]
pub struct ImageFailed {
    /// Up to where.
    pub covers: Lsn,
    /// Why.
    pub source: io::Error,
}
