//! What transactions ask of a sequencer, whoever answers: a server behind a connection, or a test's double.

use std::sync::Arc;

use seriatim_core::{
    BeginOptions, ChangeSet, Changes, CommitNumber, Status, Submission, TransactionView, WritePointer,
};

use crate::client::Client;
use crate::endings::Ending;
use crate::error::Error;

/// A sequencer, by the questions of a [`TransactionContext`](crate::TransactionContext).
///
/// Calls may come from many threads at once and block until they are answered or given up. What an error leaves is told
/// by [`Error::outcome`]; an answer that is lost on the way is an error with an unknown outcome, and never a guess.
pub trait TransactionService: Send + Sync {
    /// Begins a transaction, on a snapshot that holds every commit acknowledged before this call. Without a label it
    /// carries the service's own.
    ///
    /// # Errors
    /// If none was begun, or none that reached this side; the sequencer ends such a one by itself.
    fn begin(&self, options: BeginOptions, label: Option<&str>) -> Result<TransactionView, Error>;

    /// What a commit of these changes would come to now. Advice: it reserves nothing.
    ///
    /// # Errors
    /// If it would be refused; the transaction stays as it is.
    fn can_commit(&self, tx: WritePointer, changes: &ChangeSet) -> Result<(), Error>;

    /// Decides a transaction in one step; durable when it returns. The count of checkpoints is held against the
    /// sequencer's own.
    ///
    /// # Errors
    /// As [`Client::commit`]: a refusal, or an unknown outcome, which only [`settle`](TransactionService::settle) ends.
    fn commit(&self, tx: WritePointer, changes: &ChangeSet, checkpoints: u32) -> Result<CommitNumber, Error>;

    /// As [`commit`](TransactionService::commit), of changes that passed
    /// [`can_commit`](TransactionService::can_commit) before, which a service may name instead of repeating them.
    ///
    /// # Errors
    /// As [`commit`](TransactionService::commit).
    fn commit_checked(&self, tx: WritePointer, changes: &ChangeSet, checkpoints: u32) -> Result<CommitNumber, Error> {
        self.commit(tx, changes, checkpoints)
    }

    /// A further pointer, the one with this number, counted from 1; durable when it returns. The same number gives the
    /// same pointer.
    ///
    /// # Errors
    /// If the transaction is not open, or has too many or too few.
    fn checkpoint(&self, tx: WritePointer, number: u32) -> Result<WritePointer, Error>;

    /// Ends a transaction of which no write stands in any store, and says how it ended.
    ///
    /// # Errors
    /// If there was no answer: it may have ended or not.
    fn abort(&self, tx: WritePointer) -> Result<Status, Error>;

    /// Ends a transaction whose writes may stand somewhere. False if it had ended.
    ///
    /// # Errors
    /// If there was no answer: it may have ended or not.
    fn invalidate(&self, tx: WritePointer) -> Result<bool, Error>;

    /// Ends a doubt: a decision under way is waited for, an open transaction becomes invalid, durably, so that a commit
    /// still on its way is refused. How it ended.
    ///
    /// # Errors
    /// If there was no answer. Ask again.
    fn settle(&self, tx: WritePointer) -> Result<Status, Error>;

    /// Ends a transaction that its owner has let go of: as an abort if it wrote nothing anywhere, else as invalid. Must
    /// neither block nor panic where it can be helped; what cannot be told is left to the deadline.
    fn abandon(&self, tx: WritePointer, may_have_written: bool);
}

impl TransactionService for Client {
    fn begin(&self, options: BeginOptions, label: Option<&str>) -> Result<TransactionView, Error> {
        let tx = match label {
            None => Client::begin(self, options),
            Some(label) => Client::begin_as(self, options, label),
        }?;
        let snapshot = Arc::clone(tx.snapshot());
        // From here on whoever asked knows what was written, and ends the transaction by its pointer.
        Ok(TransactionView::new(tx.leave_open(), snapshot))
    }

    fn can_commit(&self, tx: WritePointer, changes: &ChangeSet) -> Result<(), Error> {
        Client::can_commit(self, tx, changes)
    }

    fn commit(&self, tx: WritePointer, changes: &ChangeSet, checkpoints: u32) -> Result<CommitNumber, Error> {
        Client::commit(self, tx, Submission { changes: Changes::Given(changes), checkpoints })
    }

    fn commit_checked(&self, tx: WritePointer, changes: &ChangeSet, checkpoints: u32) -> Result<CommitNumber, Error> {
        Client::commit_checked(self, tx, changes, checkpoints)
    }

    fn checkpoint(&self, tx: WritePointer, number: u32) -> Result<WritePointer, Error> {
        Client::checkpoint(self, tx, number)
    }

    fn abort(&self, tx: WritePointer) -> Result<Status, Error> {
        Client::abort(self, tx)
    }

    fn invalidate(&self, tx: WritePointer) -> Result<bool, Error> {
        Client::invalidate(self, tx)
    }

    fn settle(&self, tx: WritePointer) -> Result<Status, Error> {
        Client::settle(self, tx)
    }

    fn abandon(&self, tx: WritePointer, may_have_written: bool) {
        let ending = if may_have_written { Ending::Invalidate } else { Ending::Abort };
        self.endings().push(self, tx, ending);
    }
}
