//! One transaction in the hands of its caller.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use seriatim_core::{
    BeginOptions, ChangeSet, Changes, CommitError, CommitNumber, Kind, Snapshot, Status, Submission, WritePointer,
};

use crate::client::Client;
use crate::endings::Ending;
use crate::error::{Error, Outcome};

/// A transaction that has begun. Ends at the latest when it is dropped:
///
/// - as an abort, if it was begun [`deferred`](BeginOptions::deferred) or its write pointer was never asked for, since
///   then no write of it stands in any store;
/// - otherwise as invalid, since nobody has said that its writes were rolled back.
///
/// Dropping neither blocks nor panics: the end is queued and sent by another thread.
pub struct Tx {
    client: Client,
    pointer: WritePointer,
    snapshot: Arc<Snapshot>,
    options: BeginOptions,
    /// The write pointer was asked for, so something may have been written under it.
    dirty: AtomicBool,
    /// It has ended, as far as is known here.
    ended: AtomicBool,
    /// Its further pointers, ascending.
    checkpoints: Mutex<Vec<WritePointer>>,
}

impl Tx {
    pub(crate) fn new(client: Client, pointer: WritePointer, snapshot: Arc<Snapshot>, options: BeginOptions) -> Tx {
        Tx {
            client,
            pointer,
            snapshot,
            options,
            dirty: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            checkpoints: Mutex::default(),
        }
    }

    /// The version to write under: its newest pointer. Asking for it marks the transaction as one that may have written.
    pub fn write_pointer(&self) -> WritePointer {
        // Relaxed: whoever drops the transaction has been handed it by all who asked, which orders the two.
        self.dirty.store(true, Ordering::Relaxed);
        self.checkpoints().last().copied().unwrap_or(self.pointer)
    }

    /// Takes a further pointer, which is the version to write under from now on. What was written before can be told from
    /// what is written after, and both commit or end together. Durable when it returns.
    ///
    /// # Errors
    /// As [`Client::checkpoint`]. After a lost reply it may be called again.
    pub fn checkpoint(&self) -> Result<WritePointer, Error> {
        // Held over the call: two checkpoints at once would ask for the same number.
        let mut checkpoints = self.checkpoints();
        let pointer = self.client.checkpoint(self.pointer, checkpoints.len() as u32 + 1)?;
        checkpoints.push(pointer);
        Ok(pointer)
    }

    /// Its further pointers, ascending.
    pub fn checkpoint_pointers(&self) -> Vec<WritePointer> {
        self.checkpoints().clone()
    }

    fn checkpoints(&self) -> MutexGuard<'_, Vec<WritePointer>> {
        self.checkpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which transaction this is, for logs and for [`Client::status`]. Never write under it: use
    /// [`write_pointer`](Tx::write_pointer), which remembers.
    pub fn id(&self) -> WritePointer {
        self.pointer
    }

    /// What others had committed when it began.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// How it was begun.
    pub fn options(&self) -> BeginOptions {
        self.options
    }

    /// True if it may read a version written under this pointer: its own, or one of its snapshot.
    pub fn is_visible(&self, version: WritePointer) -> bool {
        version == self.pointer
            || self.snapshot.is_visible(version)
            || self.checkpoints().binary_search(&version).is_ok()
    }

    /// Checks what a commit of these changes would come to now; see [`Client::can_commit`].
    ///
    /// # Errors
    /// As [`Client::can_commit`].
    pub fn can_commit(&self, changes: &ChangeSet) -> Result<(), Error> {
        self.client.can_commit(self.pointer, changes)
    }

    /// Commits; durable when it returns.
    ///
    /// After an error with [`Outcome::NotCommitted`] roll the writes back and [`abort`](Tx::abort). After one with
    /// [`Outcome::Undecided`] it may be committed again.
    ///
    /// # Errors
    /// As [`Client::commit`].
    pub fn commit(&self, changes: &ChangeSet) -> Result<CommitNumber, Error> {
        if self.options.kind == Kind::Long && !changes.is_empty() {
            return Err(Error::Commit(CommitError::LongWithChanges { tx: self.pointer }));
        }
        let checkpoints = self.checkpoints().len() as u32;
        let submission = Submission { changes: Changes::Given(changes), checkpoints };
        let result = self.client.commit(self.pointer, submission);
        match &result {
            Ok(_) => self.set_ended(),
            Err(error) => match (error.outcome(), error) {
                (Outcome::Committed(_), _) => self.set_ended(),
                // Expired is invalid, and so may an ended one be: an abort still says that it was rolled back, but
                // there is nothing left that dropping it would have to say.
                (_, Error::Commit(CommitError::Expired { .. })) => self.set_ended(),
                (
                    Outcome::NotCommitted,
                    Error::NotCommitted { ended, .. } | Error::Commit(CommitError::NotInProgress { ended, .. }),
                ) if *ended != Status::Refused => self.set_ended(),
                _ => {}
            },
        }
        result
    }

    /// Ends it, with the word that none of its writes stands in any store; how it ended. `Committed` means that the
    /// word came too late: roll nothing back before it is known.
    ///
    /// # Errors
    /// As [`Client::abort`].
    pub fn abort(&self) -> Result<Status, Error> {
        let status = self.client.abort(self.pointer)?;
        if !matches!(status, Status::Open | Status::Deciding | Status::Refused) {
            self.set_ended();
        }
        Ok(status)
    }

    /// Ends it without that word: it stays excluded from every snapshot. False if it had ended.
    ///
    /// # Errors
    /// As [`Client::invalidate`].
    pub fn invalidate(&self) -> Result<bool, Error> {
        let ended = self.client.invalidate(self.pointer)?;
        self.set_ended();
        Ok(ended)
    }

    /// Lets go of it without ending it: from here on it is known by its pointer only, to
    /// [`Client::commit`], [`Client::abort`] and their like, and whoever ends it has to know whether it wrote.
    pub fn leave_open(self) -> WritePointer {
        self.set_ended();
        self.write_pointer()
    }

    fn set_ended(&self) {
        // Relaxed: as in `write_pointer`.
        self.ended.store(true, Ordering::Relaxed);
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        if !*self.ended.get_mut() {
            let clean = self.options.deferred || !*self.dirty.get_mut();
            let ending = if clean { Ending::Abort } else { Ending::Invalidate };
            self.client.endings().push(&self.client, self.pointer, ending);
        }
    }
}

impl fmt::Debug for Tx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx")
            .field("pointer", &self.pointer)
            .field("snapshot", &self.snapshot.id)
            .field("options", &self.options)
            .field("dirty", &self.dirty)
            .field("ended", &self.ended)
            .finish_non_exhaustive()
    }
}
