//! A sequencer behind a connection: the blocking client as a [`Coordinator`].

use std::sync::Arc;
use std::time::Duration;

use seriatim_client::{Client, Error};
use seriatim_core::{
    BeginOptions, ChangeSet, CleanBound, CommitError, CommitNumber, Snapshot, Status, StoreName, WritePointer,
};

use super::{BeginFailure, Begun, CommitFailure, Coordinator, StoreFailure, TransportError};

impl Coordinator for Client {
    fn begin(&self, options: BeginOptions) -> Result<Begun, BeginFailure> {
        match Client::begin(self, options) {
            Ok(tx) => {
                let snapshot = tx.snapshot().clone();
                // From here on the database knows what was written, and ends the transaction by its pointer.
                Ok(Begun { tx: tx.leave_open(), snapshot })
            }
            Err(Error::Begin(refusal)) => Err(BeginFailure::Refused(refusal)),
            Err(error) => Err(BeginFailure::Transport(error.into())),
        }
    }

    fn commit(&self, tx: WritePointer, changes: ChangeSet) -> Result<CommitNumber, CommitFailure> {
        Client::commit(self, tx, &changes).map_err(|error| match error {
            Error::Commit(refusal) => CommitFailure::Refused(refusal),
            Error::NotCommitted { tx, ended } => CommitFailure::Refused(CommitError::NotInProgress { tx, ended }),
            // Nothing was sent, or the server says that it did nothing.
            Error::Server(_)
            | Error::Connect { .. }
            | Error::TimedOut { sent: false, .. }
            | Error::QueueFull { .. } => CommitFailure::Transport(error.into()),
            _ => CommitFailure::Unknown(error.into()),
        })
    }

    fn abort(&self, tx: WritePointer) -> Result<Status, TransportError> {
        Ok(Client::abort(self, tx)?)
    }

    fn invalidate(&self, tx: WritePointer) -> Result<bool, TransportError> {
        Ok(Client::invalidate(self, tx)?)
    }

    fn settle(&self, tx: WritePointer) -> Result<Status, TransportError> {
        Ok(Client::settle(self, tx)?)
    }

    fn snapshot(&self) -> Result<Arc<Snapshot>, TransportError> {
        Ok(Client::snapshot(self)?.get()?.clone())
    }

    fn snapshot_age_max(&self) -> Duration {
        Duration::from_millis(u64::from(self.hello().limits.snapshot_age_ms))
    }

    fn register_store(&self, name: &StoreName) -> Result<bool, StoreFailure> {
        Ok(Client::register_store(self, name)?)
    }

    fn clean_bound(&self) -> Result<CleanBound, TransportError> {
        Ok(Client::clean_bound(self)?)
    }

    fn store_cleaned(&self, name: &StoreName, bound: WritePointer) -> Result<(), StoreFailure> {
        Ok(Client::store_cleaned(self, name, bound)?)
    }
}

impl From<Error> for StoreFailure {
    fn from(error: Error) -> StoreFailure {
        match error {
            Error::Store(refusal) => StoreFailure::Refused(refusal),
            error => StoreFailure::Transport(error.into()),
        }
    }
}

impl From<Error> for TransportError {
    fn from(error: Error) -> TransportError {
        let transient = error.is_retryable();
        TransportError::new(error, transient)
    }
}
