//! The end of a transaction: write, commit, and if that fails take back.
//!
//! What may be said to the sequencer depends on what may be in the store, so the order is everything:
//!
//! 1. every write is put under the write pointer, and flushed: a commit must not outlive its writes;
//! 2. commit, in one step;
//! 3. refused: the versions are removed, the removal is flushed (else a power cut would bring versions back that the
//!    abort has just made visible), and only then the transaction is aborted;
//! 4. where it is not certain that every version is gone, and stays gone, it is made invalid instead;
//! 5. no answer: settle, never guess.

use std::thread;
use std::time::{Duration, Instant};

use seriatim_core::{CHANGE_IDS_MAX, ChangeId, ChangeSet, CommitError, CommitNumber, Status, WritePointer};

use crate::coordinator::{CommitFailure, Coordinator};
use crate::error::Error;
use crate::predicate::Predicate;
use crate::read::Buffer;
use crate::retry::RetryPolicy;
use crate::row;
use crate::store::{DynStore, StoreError};
use crate::tx::{Reads, Touched};

/// How a transaction ended well.
pub(crate) struct End {
    /// `None` if there was nothing to commit.
    pub csn: Option<CommitNumber>,
    /// True if the commit's answer was lost and the outcome was learned by asking.
    pub settled: bool,
}

/// A transaction that has begun and not ended. Dropped, by an error or a panic, it ends itself as its writes allow.
pub(crate) struct Open<'a> {
    coordinator: &'a dyn Coordinator,
    tx: WritePointer,
    /// Before it was begun.
    since: Instant,
    timeout: Duration,
    written: Written,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Written {
    /// No store has heard of it.
    Nothing,
    /// Versions of it may be in the store.
    Perhaps,
    /// It has ended, or must not be ended from here.
    Ended,
}

impl<'a> Open<'a> {
    pub fn new(coordinator: &'a dyn Coordinator, tx: WritePointer, since: Instant, timeout: Duration) -> Open<'a> {
        Open { coordinator, tx, since, timeout, written: Written::Nothing }
    }

    /// True once its deadline has passed.
    fn is_late(&self) -> bool {
        self.since.elapsed() >= self.timeout
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        // If the sequencer cannot be asked the transaction stays open and so excluded, until its deadline makes it
        // invalid: nothing is lost by not insisting.
        match self.written {
            Written::Nothing => drop(self.coordinator.abort(self.tx)),
            Written::Perhaps => drop(self.coordinator.invalidate(self.tx)),
            Written::Ended => {}
        }
    }
}

/// Writes the buffer to the store and commits it.
pub(crate) fn finish(
    mut open: Open<'_>,
    store: &dyn DynStore,
    touched: Touched,
    policy: &RetryPolicy,
) -> Result<End, Error> {
    let Touched { writes, marks, reads } = touched;
    let (tx, coordinator) = (open.tx, open.coordinator);
    if writes.is_empty() {
        // It read one snapshot and changed nothing: it stands where its snapshot stands. Dropping aborts. What it read
        // longer than a snapshot is kept for anybody was kept only if it was open all the while, which a commit tells.
        if open.since.elapsed() > coordinator.snapshot_age_max() {
            coordinator.commit(tx, ChangeSet::default()).map_err(|failure| match failure {
                CommitFailure::Refused(CommitError::NotInProgress { ended: Status::Invalid(cause), .. }) => {
                    Error::Invalidated { tx, cause }
                }
                CommitFailure::Refused(refusal) => Error::Refused(refusal),
                CommitFailure::Unknown(transport) | CommitFailure::Transport(transport) => Error::Transport(transport),
            })?;
            open.written = Written::Ended;
        }
        return Ok(End { csn: None, settled: false });
    }
    let changes = ChangeSet {
        writes: writes.keys().map(|row| row::change_id(row)).collect(),
        reads: reads.rows.iter().map(|row| row::change_id(row)).chain(reads.ranges.keys().copied()).collect(),
        marks: marks.into_iter().collect(),
    };
    if changes.len() > CHANGE_IDS_MAX {
        return Err(CommitError::ChangeSetTooLarge { len: changes.len() as u64, max: CHANGE_IDS_MAX as u64 }.into());
    }

    if let Err(failure) = write(&mut open, store, &writes) {
        take_back(open, store, &writes, failure.trustworthy);
        return Err(failure.error);
    }

    let mut settled = false;
    let status = match coordinator.commit(tx, changes) {
        Ok(csn) => Status::Committed(csn),
        // Our own commit, or somebody else's abort or invalidate, came first. Nobody else commits it.
        Err(CommitFailure::Refused(CommitError::NotInProgress { ended, .. })) => ended,
        Err(CommitFailure::Refused(refusal)) => {
            let error = refused(refusal, &writes, &reads);
            take_back(open, store, &writes, true);
            return Err(error);
        }
        Err(CommitFailure::Transport(transport)) => {
            take_back(open, store, &writes, true);
            return Err(Error::Transport(transport));
        }
        Err(CommitFailure::Unknown(_)) => Status::Deciding,
    };
    let status = match status {
        Status::Open | Status::Deciding => {
            settled = true;
            settle(&mut open, policy)?
        }
        known => known,
    };
    match status {
        Status::Committed(csn) => {
            open.written = Written::Ended;
            Ok(End { csn: Some(csn), settled })
        }
        Status::Invalid(cause) => {
            take_back(open, store, &writes, true);
            Err(Error::Invalidated { tx, cause })
        }
        Status::Refused => {
            take_back(open, store, &writes, true);
            Err(Error::RefusalLost { tx })
        }
        Status::Aborted => {
            // Whoever said that our versions are gone was wrong until now.
            take_back(open, store, &writes, true);
            Err(Error::AbortedByOther { tx })
        }
        Status::Open | Status::Deciding | Status::Forgotten => {
            open.written = Written::Ended;
            Err(Error::Unknown { tx, source: None })
        }
    }
}

struct WriteFailure {
    error: Error,
    /// True if every put has either been done or never will be.
    trustworthy: bool,
}

fn write(open: &mut Open<'_>, store: &dyn DynStore, writes: &Buffer) -> Result<(), WriteFailure> {
    let failed = |error: StoreError| WriteFailure { trustworthy: error.is_definite(), error: error.into() };
    for (row, value) in writes {
        // Pruning forgets an invalid transaction some time after its deadline; a version written later would count.
        if open.is_late() {
            return Err(WriteFailure { error: CommitError::Expired { tx: open.tx }.into(), trustworthy: true });
        }
        open.written = Written::Perhaps;
        store.put(row, open.tx, value.as_deref()).map_err(failed)?;
    }
    store.flush().map_err(|error| WriteFailure { error: error.into(), trustworthy: true })
}

/// Removes every version the transaction may have written, and aborts it if that is certain to hold; else invalidates.
fn take_back(mut open: Open<'_>, store: &dyn DynStore, writes: &Buffer, trustworthy: bool) {
    if open.written == Written::Nothing {
        return;
    }
    let removed = writes.keys().try_for_each(|row| store.remove(row, open.tx)).and_then(|()| store.flush());
    if removed.is_ok() && trustworthy {
        open.written = Written::Nothing;
    }
}

/// Asks until it is known how the transaction ended, for as long as the policy allows.
fn settle(open: &mut Open<'_>, policy: &RetryPolicy) -> Result<Status, Error> {
    let give_up = Instant::now() + policy.settle_for;
    let mut asked = 0;
    loop {
        asked += 1;
        let source = match open.coordinator.settle(open.tx) {
            Ok(Status::Open | Status::Deciding) => None,
            Ok(status) => return Ok(status),
            Err(transport) => Some(transport),
        };
        let hopeless = source.as_ref().is_some_and(|transport| !transport.transient);
        if hopeless || Instant::now() >= give_up {
            // Invalidating is what settling could not do; it is refused if the commit did arrive.
            open.written = Written::Perhaps;
            return Err(Error::Unknown { tx: open.tx, source });
        }
        thread::sleep(policy.pause(asked));
    }
}

/// A refusal with its key or range, if the refusal names one that was written or read under that hash.
fn refused(refusal: CommitError, writes: &Buffer, reads: &Reads) -> Error {
    let CommitError::Conflict { tx, change_id, csn, winner, ref label } = refusal else { return refusal.into() };
    let row = writes.keys().chain(&reads.rows).find(|row| row::change_id(row).0 == change_id);
    if let Some(Ok((table, key))) = row.map(|row| row::split(row)) {
        return Error::Conflict { tx, table, key, csn, winner, label: label.clone() };
    }
    match reads.ranges.get(&ChangeId(change_id)) {
        Some(Predicate { table, prefix }) => {
            let (table, prefix, label) = (table.name().to_owned(), prefix.clone(), label.clone());
            Error::RangeConflict { tx, table, prefix, csn, winner, label }
        }
        None => refusal.into(),
    }
}
