//! What this crate asks of a sequencer, embedded or behind a connection.

#[cfg(feature = "client")]
mod client;
#[cfg(feature = "embedded")]
mod embedded;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use seriatim_core::{
    BeginError, BeginOptions, ChangeSet, CleanBound, CommitError, CommitNumber, Snapshot, Status, StoreName,
    StoreRefusal, WritePointer,
};

use crate::error::BoxError;
use crate::view::SNAPSHOT_AGE_MAX;

/// A sequencer as seen by [`Db`](crate::Db): an embedded one, a server's client, or a test's.
///
/// All calls may come from many threads at once, and block until they are answered or given up.
pub trait Coordinator: Send + Sync + 'static {
    /// Begins a transaction: its write pointer is greater than its snapshot's read pointer, and a commit that was
    /// acknowledged before this call is in the snapshot.
    ///
    /// # Errors
    /// If none was begun, or none whose pointer reached this side; the sequencer ends such a one by itself.
    fn begin(&self, options: BeginOptions) -> Result<Begun, BeginFailure>;

    /// Decides a transaction in one step. `Ok` only when the commit is durable.
    ///
    /// # Errors
    /// See [`CommitFailure`]: a definite refusal, an unknown outcome, or a request that was never sent.
    fn commit(&self, tx: WritePointer, changes: ChangeSet) -> Result<CommitNumber, CommitFailure>;

    /// Ends a transaction whose versions are in no store, or no longer. Answers how it stands afterwards: a commit that
    /// came first is not undone.
    ///
    /// # Errors
    /// If there was no answer; the transaction may have ended or not.
    fn abort(&self, tx: WritePointer) -> Result<Status, TransportError>;

    /// Ends a transaction whose versions may be in a store: they stay excluded. False if it had ended before.
    ///
    /// # Errors
    /// If there was no answer; the transaction may have ended or not.
    fn invalidate(&self, tx: WritePointer) -> Result<bool, TransportError>;

    /// Ends a doubt: waits for a decision under way, makes an open transaction durably invalid, so that a commit still
    /// under way is refused, and answers how the transaction ended.
    ///
    /// # Errors
    /// If there was no answer. Ask again.
    fn settle(&self, tx: WritePointer) -> Result<Status, TransportError>;

    /// A snapshot that holds every commit acknowledged before this call.
    ///
    /// # Errors
    /// If there was no answer.
    fn snapshot(&self) -> Result<Arc<Snapshot>, TransportError>;

    /// How long a snapshot may be read through, counted from before it was asked for. Default [`SNAPSHOT_AGE_MAX`].
    fn snapshot_age_max(&self) -> Duration {
        SNAPSHOT_AGE_MAX
    }

    /// Registers a store: while it is registered, nothing is forgotten that it may still hold. False if it was before.
    ///
    /// # Errors
    /// If it was refused, or there was no answer.
    fn register_store(&self, name: &StoreName) -> Result<bool, StoreFailure>;

    /// How far stores may clean now, by a snapshot that is taken after this call.
    ///
    /// # Errors
    /// If there was no answer.
    fn clean_bound(&self) -> Result<CleanBound, TransportError>;

    /// A registered store holds no version of an invalid transaction at or below `bound`, and that is durable.
    ///
    /// # Errors
    /// If it was refused, or there was no answer; it may have been heard all the same.
    fn store_cleaned(&self, name: &StoreName, bound: WritePointer) -> Result<(), StoreFailure>;
}

/// A transaction that has begun.
#[derive(Clone, Debug)]
pub struct Begun {
    /// The version it stamps on its writes, and its name.
    pub tx: WritePointer,
    /// What it may read.
    pub snapshot: Arc<Snapshot>,
}

/// Why no transaction was begun.
#[derive(Debug, thiserror::Error)]
pub enum BeginFailure {
    /// The sequencer refused.
    #[error("the begin was refused")]
    Refused(#[from] BeginError),
    /// There was no answer.
    #[error("the begin was not answered")]
    Transport(#[from] TransportError),
}

/// Why a commit was not acknowledged.
#[derive(Debug, thiserror::Error)]
pub enum CommitFailure {
    /// A definite answer; see the [`CommitError`] for how the transaction stands.
    #[error("the commit was refused")]
    Refused(#[from] CommitError),
    /// The request may have arrived. Only [`Coordinator::settle`] tells what became of it.
    #[error("the commit was not answered")]
    Unknown(#[source] TransportError),
    /// The request was never sent, and never will be: the transaction has not committed and is still open.
    #[error("the commit was not sent")]
    Transport(#[source] TransportError),
}

/// Why what a store said was not taken.
#[derive(Debug, thiserror::Error)]
pub enum StoreFailure {
    /// The sequencer refused.
    #[error("the sequencer refused what the store said")]
    Refused(#[from] StoreRefusal),
    /// There was no answer.
    #[error("what the store said was not answered")]
    Transport(#[from] TransportError),
}

/// The sequencer could not be asked, or did not answer.
#[derive(Debug)]
pub struct TransportError {
    /// What went wrong.
    pub source: BoxError,
    /// True if asking again may help: a lost connection, a restart, a time-out. False for a refused handshake or a
    /// poisoned log.
    pub transient: bool,
}

impl TransportError {
    /// An error of the way to the sequencer, or of the sequencer's own.
    pub fn new(source: impl Into<BoxError>, transient: bool) -> TransportError {
        TransportError { source: source.into(), transient }
    }
}

impl fmt::Display for TransportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the sequencer did not answer")
    }
}

impl std::error::Error for TransportError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(self.source.as_ref())
    }
}

impl<C: Coordinator> Coordinator for Arc<C> {
    fn begin(&self, options: BeginOptions) -> Result<Begun, BeginFailure> {
        (**self).begin(options)
    }

    fn commit(&self, tx: WritePointer, changes: ChangeSet) -> Result<CommitNumber, CommitFailure> {
        (**self).commit(tx, changes)
    }

    fn abort(&self, tx: WritePointer) -> Result<Status, TransportError> {
        (**self).abort(tx)
    }

    fn invalidate(&self, tx: WritePointer) -> Result<bool, TransportError> {
        (**self).invalidate(tx)
    }

    fn settle(&self, tx: WritePointer) -> Result<Status, TransportError> {
        (**self).settle(tx)
    }

    fn snapshot(&self) -> Result<Arc<Snapshot>, TransportError> {
        (**self).snapshot()
    }

    fn snapshot_age_max(&self) -> Duration {
        (**self).snapshot_age_max()
    }

    fn register_store(&self, name: &StoreName) -> Result<bool, StoreFailure> {
        (**self).register_store(name)
    }

    fn clean_bound(&self) -> Result<CleanBound, TransportError> {
        (**self).clean_bound()
    }

    fn store_cleaned(&self, name: &StoreName, bound: WritePointer) -> Result<(), StoreFailure> {
        (**self).store_cleaned(name, bound)
    }
}
