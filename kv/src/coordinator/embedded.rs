//! A sequencer in the same process, durable or in memory, as a [`Coordinator`].

use std::sync::Arc;
use std::time::Duration;

use seriatim_core::{BeginOptions, ChangeSet, CleanBound, CommitNumber, Snapshot, Status, StoreName, WritePointer};
use seriatim_net::{Embedded, EmbeddedError, StoreError};

use super::{BeginFailure, Begun, CommitFailure, Coordinator, StoreFailure, TransportError};

impl Coordinator for Embedded {
    fn begin(&self, options: BeginOptions) -> Result<Begun, BeginFailure> {
        match Embedded::begin(self, &options) {
            Ok(begun) => Ok(Begun { tx: begun.first, snapshot: begun.snapshot }),
            Err(EmbeddedError::Refused(refusal)) => Err(BeginFailure::Refused(refusal)),
            Err(EmbeddedError::Failed(failure)) => Err(BeginFailure::Transport(TransportError::new(failure, false))),
        }
    }

    fn commit(&self, tx: WritePointer, changes: ChangeSet) -> Result<CommitNumber, CommitFailure> {
        Embedded::commit(self, tx, &changes).map_err(|error| match error {
            EmbeddedError::Refused(refusal) => CommitFailure::Refused(refusal),
            // Decided perhaps, and perhaps on disk: only the next start will tell.
            EmbeddedError::Failed(failure) => CommitFailure::Unknown(TransportError::new(failure, false)),
        })
    }

    fn abort(&self, tx: WritePointer) -> Result<Status, TransportError> {
        Ok(Embedded::abort(self, tx)?)
    }

    fn invalidate(&self, tx: WritePointer) -> Result<bool, TransportError> {
        Ok(Embedded::invalidate(self, tx)?)
    }

    fn settle(&self, tx: WritePointer) -> Result<Status, TransportError> {
        Ok(Embedded::settle(self, tx)?)
    }

    fn snapshot(&self) -> Result<Arc<Snapshot>, TransportError> {
        Ok(Embedded::snapshot(self))
    }

    fn snapshot_age_max(&self) -> Duration {
        Embedded::snapshot_age_max(self)
    }

    fn register_store(&self, name: &StoreName) -> Result<bool, StoreFailure> {
        Ok(Embedded::register_store(self, name)?)
    }

    fn clean_bound(&self) -> Result<CleanBound, TransportError> {
        Embedded::clean_bound(self).map_err(|failure| TransportError::new(failure, false))
    }

    fn store_cleaned(&self, name: &StoreName, bound: WritePointer) -> Result<(), StoreFailure> {
        Ok(Embedded::store_cleaned(self, name, bound)?)
    }
}

impl From<EmbeddedError<StoreError>> for StoreFailure {
    fn from(error: EmbeddedError<StoreError>) -> StoreFailure {
        match error {
            EmbeddedError::Refused(StoreError::Refused(refusal)) => StoreFailure::Refused(refusal),
            error => StoreFailure::Transport(error.into()),
        }
    }
}

/// A bound that was met passes; a log that failed does not.
impl<E: std::error::Error + Send + Sync + 'static> From<EmbeddedError<E>> for TransportError {
    fn from(error: EmbeddedError<E>) -> TransportError {
        match error {
            EmbeddedError::Refused(full) => TransportError::new(full, true),
            EmbeddedError::Failed(failure) => TransportError::new(failure, false),
        }
    }
}
