//! The end of a transaction: flush, commit, and if that fails take back.
//!
//! What may be undone depends on what is known: nothing is rolled back before it is certain that the transaction has not
//! committed and never will. That is certain before the commit is sent, after a refusal, and after an open transaction has
//! been settled, which makes it invalid so that a commit still on its way is refused.

use seriatim_core::{ChangeId, CommitError, CommitNumber, Kind, Status, WritePointer};

use super::{Active, Open, TransactionContext, error};
use crate::backoff::{pause, random};
use crate::error::{Error, Outcome};
use crate::failure::{Conflict, ConflictKey, ContextError, Failure, Standing, Step};
use crate::keyed_changes::KeyedChanges;
use crate::participant::{Participant, Rollback};
use crate::start_options::CommitForm;

/// What is known about a transaction that was to be finished.
pub(super) enum Decision {
    Committed {
        csn: CommitNumber,
        settled: bool,
    },
    /// And it never will.
    NotCommitted,
    /// It ended without this side, or nobody could say how: nothing may be undone.
    OutOfHand(Standing),
}

impl TransactionContext {
    /// The way of a commit, up to where its outcome is known or given up.
    pub(super) fn decide(&self, active: &Active, failures: &mut Vec<Failure>) -> Decision {
        let Active { open: Open { tx, .. }, view, options, .. } = active;
        let (tx, checkpoints) = (*tx, view.checkpoints().len() as u32);
        let mut keyed = KeyedChanges::new(options.isolation).with_key_bytes_max(options.key_bytes_max);
        let tell = |place, one: &dyn Participant| {
            keyed.ask(place);
            one.changes(&mut keyed)
        };
        if options.kind == Kind::Short && !self.participants.each(Step::Changes, failures, tell) {
            return Decision::NotCommitted;
        }
        let changes = match keyed.to_change_set() {
            Ok(changes) => changes,
            Err(refusal) => return self.refused(Step::Changes, refusal, None, tx, failures),
        };
        // Nothing can be said against no changes, so there is nothing to ask.
        let two_steps = options.form == CommitForm::TwoSteps && !changes.is_empty();
        if two_steps && let Err(refusal) = self.service.can_commit(tx, &changes) {
            return self.refused(Step::CanCommit, refusal, Some(&keyed), tx, failures);
        }
        if !self.flush(active, failures) {
            return Decision::NotCommitted;
        }
        let answer = match two_steps {
            true => self.service.commit_checked(tx, &changes, checkpoints),
            false => self.service.commit(tx, &changes, checkpoints),
        };
        match answer {
            Ok(csn) => Decision::Committed { csn, settled: false },
            Err(refusal) => match refusal.outcome() {
                // Our own commit came through, and the answer to its first sending was lost.
                Outcome::Committed(csn) => Decision::Committed { csn, settled: true },
                Outcome::NotCommitted | Outcome::Undecided => {
                    self.refused(Step::Commit, refusal, Some(&keyed), tx, failures)
                }
                Outcome::Unknown => self.settle(tx, refusal, failures),
            },
        }
    }

    /// Flushes one after the other until one fails, or the time is over: an invalid transaction is forgotten some time
    /// after its deadline, and what was written later would count.
    pub(super) fn flush(&self, active: &Active, failures: &mut Vec<Failure>) -> bool {
        (0..self.participants.len()).all(|place| {
            if active.deadline.is_some_and(|deadline| self.clock.now() >= deadline) {
                let source = CommitError::Expired { tx: active.open.tx }.into();
                failures.push(Failure::Sequencer { step: Step::Flush, source });
                return false;
            }
            self.participants.call(place, Step::Flush, failures, |one| one.flush()).is_some()
        })
    }

    /// A refusal by the sequencer becomes a failure; what it leaves of the transaction.
    pub(super) fn refused(
        &self,
        step: Step,
        refusal: Error,
        keyed: Option<&KeyedChanges>,
        tx: WritePointer,
        failures: &mut Vec<Failure>,
    ) -> Decision {
        if let Outcome::Committed(csn) = refusal.outcome() {
            failures.push(Failure::EndedByOther { tx, ended: Status::Committed(csn) });
            return Decision::OutOfHand(Standing::Committed(csn));
        }
        let Error::Commit(CommitError::Conflict { tx, change_id, csn, winner, label }) = refusal else {
            failures.push(Failure::Sequencer { step, source: refusal });
            return Decision::NotCommitted;
        };
        let change_id = ChangeId(change_id);
        let mut lost = None;
        let key = keyed.and_then(|keyed| keyed.find(change_id)).map(|found| {
            let participant;
            (participant, lost) = self.participants.name(found.participant);
            ConflictKey { participant, key: found.key.to_vec(), access: found.access }
        });
        failures.push(Failure::Conflict(Box::new(Conflict { tx, step, change_id, key, csn, winner, label })));
        failures.extend(lost);
        Decision::NotCommitted
    }

    /// Asks how a commit without an answer ended, for as long as it may.
    fn settle(&self, tx: WritePointer, unanswered: Error, failures: &mut Vec<Failure>) -> Decision {
        let give_up = self.clock.now() + self.settle_for;
        let mut asked = 0;
        let last = loop {
            asked += 1;
            let last = match self.service.settle(tx) {
                Ok(Status::Committed(csn)) => return Decision::Committed { csn, settled: true },
                Ok(ended @ (Status::Refused | Status::Aborted | Status::Invalid(_))) => {
                    let source = Error::NotCommitted { tx, ended };
                    failures.push(Failure::Sequencer { step: Step::Commit, source });
                    failures.push(Failure::Sequencer { step: Step::Commit, source: unanswered });
                    return Decision::NotCommitted;
                }
                Ok(Status::Forgotten) => break None,
                Ok(Status::Open | Status::Deciding) => None,
                Err(error) if error.is_retryable() => Some(error),
                Err(error) => break Some(error),
            };
            if self.clock.now() >= give_up {
                break last;
            }
            self.clock.sleep(pause(asked, random()));
        };
        failures.push(Failure::Unknown { tx, source: unanswered });
        failures.extend(last.map(|source| Failure::Sequencer { step: Step::Settle, source }));
        Decision::OutOfHand(Standing::Unknown)
    }

    /// Ends a transaction that came to nothing; if it is out of hand it is let go of, which at most makes it invalid.
    pub(super) fn give_up(&mut self, active: Active, decision: Decision, mut failures: Vec<Failure>) -> ContextError {
        let tx = Some(active.open.tx);
        let standing = match decision {
            Decision::OutOfHand(standing) => self.remember(standing),
            Decision::NotCommitted | Decision::Committed { .. } => self.undo(active, &mut failures),
        };
        error(tx, standing, failures)
    }

    /// Rolls everybody back, and tells the sequencer what is left.
    pub(super) fn undo(&mut self, active: Active, failures: &mut Vec<Failure>) -> Standing {
        let standing = match self.participants.roll_back(failures) {
            Rollback::Clean => self.end_clean(active.open, failures),
            Rollback::Dirty => self.end_dirty(active.open, failures),
        };
        self.remember(standing)
    }

    /// Remembers an end that is not to come twice.
    pub(super) fn remember(&mut self, standing: Standing) -> Standing {
        if !standing.is_nothing() {
            self.irrevocable = Some(standing);
        }
        standing
    }

    pub(super) fn end_clean(&self, mut open: Open, failures: &mut Vec<Failure>) -> Standing {
        open.may_have_written = false;
        let tx = open.tx;
        match self.service.abort(tx) {
            Ok(status) => self.ended(open, status, failures),
            Err(source) => {
                failures.push(Failure::Sequencer { step: Step::Abort, source });
                Standing::Unfinished
            }
        }
    }

    fn end_dirty(&self, mut open: Open, failures: &mut Vec<Failure>) -> Standing {
        let tx = open.tx;
        // It may have ended before: by its deadline as invalid, which is as good, or by somebody who knew better.
        let status = match self.service.invalidate(tx) {
            Ok(true) => {
                open.ended = true;
                return Standing::Invalidated;
            }
            Ok(false) => self.service.settle(tx),
            Err(error) => Err(error),
        };
        match status {
            Ok(Status::Aborted) => {
                open.ended = true;
                failures.push(Failure::EndedByOther { tx, ended: Status::Aborted });
                Standing::Aborted
            }
            Ok(status) => self.ended(open, status, failures),
            Err(source) => {
                failures.push(Failure::Sequencer { step: Step::Invalidate, source });
                Standing::Unfinished
            }
        }
    }

    /// What the sequencer says about a transaction that was rolled back.
    fn ended(&self, mut open: Open, status: Status, failures: &mut Vec<Failure>) -> Standing {
        open.ended = true;
        match status {
            Status::Aborted => Standing::Aborted,
            Status::Invalid(_) => Standing::Invalidated,
            Status::Committed(csn) => {
                failures.push(Failure::EndedByOther { tx: open.tx, ended: status });
                Standing::Committed(csn)
            }
            Status::Open | Status::Deciding | Status::Refused => {
                // It did not do what it was asked: ask once more, behind everybody's back.
                open.ended = false;
                Standing::Unfinished
            }
            Status::Forgotten => Standing::Unfinished,
        }
    }
}
