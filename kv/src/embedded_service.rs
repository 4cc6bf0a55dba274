//! A sequencer in the same process, for transactions over participants.

use std::sync::Arc;

use seriatim_client::{Error, TransactionService};
use seriatim_core::{
    BeginOptions, ChangeSet, Changes, CommitError, CommitNumber, Full, Status, Submission, TransactionView,
    WritePointer,
};
use seriatim_net::{Embedded, EmbeddedError};

/// An embedded sequencer as a [`TransactionContext`](seriatim_client::TransactionContext) asks it. Clones share it.
///
/// Durability and refusals are those of a server. Where its log fails every later call is
/// [`Error::Service`], and what a commit under way has come to is told by the next start.
#[derive(Clone)]
pub struct EmbeddedService {
    sequencer: Embedded,
    label: Option<Arc<str>>,
}

impl EmbeddedService {
    /// The sequencer's service, whose transactions have no label unless they are given one.
    pub fn new(sequencer: Embedded) -> EmbeddedService {
        EmbeddedService { sequencer, label: None }
    }

    /// Labels the transactions that are given no label of their own. 64 bytes count.
    #[must_use]
    pub fn with_label(self, label: impl Into<Arc<str>>) -> EmbeddedService {
        EmbeddedService { label: Some(label.into()), ..self }
    }

    /// The sequencer.
    pub fn sequencer(&self) -> &Embedded {
        &self.sequencer
    }

    fn submit(&self, tx: WritePointer, changes: Changes<'_>, checkpoints: u32) -> Result<CommitNumber, Error> {
        self.sequencer.commit(tx, Submission { changes, checkpoints }).map_err(|error| told(error, Error::Commit))
    }
}

impl TransactionService for EmbeddedService {
    fn begin(&self, options: BeginOptions, label: Option<&str>) -> Result<TransactionView, Error> {
        let begun = match label.or(self.label.as_deref()) {
            None => self.sequencer.begin(&options),
            Some(label) => self.sequencer.begin_as(&options, label),
        };
        let begun = begun.map_err(|error| told(error, Error::Begin))?;
        Ok(TransactionView::new(begun.first, begun.snapshot))
    }

    fn can_commit(&self, tx: WritePointer, changes: &ChangeSet) -> Result<(), Error> {
        self.sequencer.can_commit(tx, changes).map_err(|error| told(error, Error::Commit))
    }

    fn commit(&self, tx: WritePointer, changes: &ChangeSet, checkpoints: u32) -> Result<CommitNumber, Error> {
        self.submit(tx, Changes::Given(changes), checkpoints)
    }

    fn commit_checked(&self, tx: WritePointer, changes: &ChangeSet, checkpoints: u32) -> Result<CommitNumber, Error> {
        match self.submit(tx, Changes::Checked(changes.digest()), checkpoints) {
            Err(Error::Commit(CommitError::NeedChanges { .. })) => self.commit(tx, changes, checkpoints),
            answer => answer,
        }
    }

    fn checkpoint(&self, tx: WritePointer, number: u32) -> Result<WritePointer, Error> {
        self.sequencer.checkpoint(tx, number).map_err(|error| told(error, Error::Commit))
    }

    fn abort(&self, tx: WritePointer) -> Result<Status, Error> {
        self.sequencer.abort(tx).map_err(|error| told(error, full))
    }

    fn invalidate(&self, tx: WritePointer) -> Result<bool, Error> {
        self.sequencer.invalidate(tx).map_err(|error| told(error, full))
    }

    fn settle(&self, tx: WritePointer) -> Result<Status, Error> {
        self.sequencer.settle(tx).map_err(|error| told(error, full))
    }

    fn abandon(&self, tx: WritePointer, may_have_written: bool) {
        self.sequencer.abandon(tx, may_have_written);
    }
}

/// A refusal in the client's words; a failure is for good.
fn told<E: std::error::Error>(error: EmbeddedError<E>, refusal: impl FnOnce(E) -> Error) -> Error {
    match error {
        EmbeddedError::Refused(error) => refusal(error),
        EmbeddedError::Failed(failure) => Error::Service(Arc::new(failure)),
    }
}

/// No room for an end: nothing happened.
fn full(full: Full) -> Error {
    Error::Commit(CommitError::Overloaded(full))
}

#[cfg(test)]
mod tests {
    use super::*;
    use seriatim_client::Outcome;
    use seriatim_core::BeginError;
    use seriatim_net::Failure;

    #[test]
    fn refusals_are_the_clients_and_a_failure_is_for_good() {
        let refused = told(EmbeddedError::Refused(BeginError::Overloaded(Full::Window)), Error::Begin);
        assert!(matches!(refused, Error::Begin(BeginError::Overloaded(Full::Window))) && refused.is_retryable());
        let no_room = told(EmbeddedError::Refused(Full::Disk), full);
        assert!(no_room.is_retryable() && no_room.outcome() == Outcome::Undecided);
        let failed = told(EmbeddedError::Failed(Failure::Panicked), full);
        assert!(matches!(failed, Error::Service(_)) && !failed.is_retryable());
        assert_eq!(failed.outcome(), Outcome::Unknown);
        assert!(std::error::Error::source(&failed).unwrap().to_string().contains("panicked"));
    }
}
