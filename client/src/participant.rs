//! Those who take part in a transaction: a table, a queue, a cache; whoever writes under its pointer.

use std::borrow::Cow;

use seriatim_core::{CommitNumber, TransactionView};

use crate::keyed_changes::KeyedChanges;

/// Any error that may cross threads.
pub type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// What is left of a transaction's writes after a rollback.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Rollback {
    /// None of them stands in any store, or ever will: nothing is under way any more.
    Clean,
    /// Some may. The transaction becomes invalid, so that nobody reads them.
    Dirty,
}

/// Takes part in the transactions of a [`TransactionContext`](crate::TransactionContext), one at a time.
///
/// ```text
/// start ─▶ (own work) ─▶ changes ─▶ flush ─▶ after_commit            any failure before the commit
///             │    ▲                                                 is decided:      ─▶ rollback
///             ▼    │
///           flush ─▶ update   for each checkpoint
/// ```
///
/// All calls come from the thread that calls the context. The methods take `&self`, since the participant is shared with
/// those who read and write through it: keep what changes under a lock.
///
/// **Panics.** A call that panics has failed like one that returns an error (a rollback is dirty then). The panic is the
/// [`Failure`](crate::Failure)'s source, as a [`Panic`](crate::Panic), once the transaction has been ended; such a
/// transaction is not run again, and [`ContextError::resume_panic`](crate::ContextError::resume_panic) goes on with it.
///
/// **Doubt.** If the outcome of a commit cannot be learned, neither `after_commit` nor `rollback` is called: what was
/// flushed has to stay as it is. The next `start` resets whatever is left in memory.
pub trait Participant: Send + Sync {
    /// A name for messages, unique among the participants of a context if messages are to tell them apart.
    fn name(&self) -> Cow<'_, str>;

    /// A transaction has begun. Drop what is left of an earlier one and remember this one; write nothing yet, for if
    /// this fails the transaction is aborted and not rolled back.
    ///
    /// # Errors
    /// Ends the transaction; of a participant that is added to one that is active, keeps it out and leaves the transaction
    /// active.
    fn start(&self, view: &TransactionView) -> Result<(), BoxError>;

    /// The transaction has a further write pointer, or another level of visibility: replace the view, keep the rest.
    ///
    /// # Errors
    /// Ends the transaction.
    fn update(&self, view: &TransactionView) -> Result<(), BoxError>;

    /// Tells everything that was written and, if [they are asked for](KeyedChanges::wants_reads), what was read, since
    /// the start. Not called for LONG transactions, which take no part in conflict detection.
    ///
    /// # Errors
    /// Ends the transaction.
    fn changes(&self, changes: &mut KeyedChanges) -> Result<(), BoxError>;

    /// Writes what is buffered to the store, each under the write pointer that was current when it was written, and
    /// makes it durable: a commit must not outlive its writes. Called at every checkpoint and before the commit.
    ///
    /// # Errors
    /// Ends the transaction.
    fn flush(&self) -> Result<(), BoxError>;

    /// Undoes everything written under any of the [pointers](TransactionView::pointers), durably, whether it was flushed
    /// or not. Called once, and also where `flush` was never called or has failed.
    ///
    /// # Errors
    /// Counts as [`Rollback::Dirty`].
    fn rollback(&self) -> Result<Rollback, BoxError>;

    /// The transaction has committed, as this number. Release what it held; nothing changes the outcome any more.
    ///
    /// # Errors
    /// Is reported, after all others have been called.
    fn after_commit(&self, csn: CommitNumber) -> Result<(), BoxError> {
        let _ = csn;
        Ok(())
    }
}
