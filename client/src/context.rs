//! A transaction over several participants: one begin, one commit, and everybody hears of both.
//!
//! ```text
//!  start ─▶ each start ─▶ (work, checkpoints) ─▶ finish
//!
//!  finish = each changes ─▶ can commit ─▶ each flush ─▶ commit ─▶ all after_commit
//!               │              │             │            │
//!               └──────────────┴─────────────┴── failed ──┴─▶ all roll back ─▶ clean: abort, dirty: invalidate
//!                                                         │
//!                                                         └─ no answer ─▶ settle ─▶ committed, refused, or unknown
//! ```
//!
//! What may be undone depends on what is known: nothing is rolled back before it is certain that the transaction has not
//! committed and never will. That is certain before the commit is sent, after a refusal, and after an open transaction has
//! been settled, which makes it invalid so that a commit still on its way is refused.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use seriatim_core::{
    BeginOptions, ChangeId, CommitError, CommitNumber, Isolation, Kind, Status, TransactionView, Visibility,
    WritePointer,
};

use crate::backoff::{pause, random};
use crate::clock::{Clock, SystemClock};
use crate::error::{Error, Outcome};
use crate::failure::{Conflict, ConflictKey, ContextError, End, Failure, Step};
use crate::keyed_changes::KeyedChanges;
use crate::participant::{BoxError, Participant, Rollback};
use crate::participants::Participants;
use crate::service::TransactionService;

/// How long a lost outcome is asked for by default: 30 s, in which a sequencer can be started again.
pub const SETTLE_FOR_DEFAULT: Duration = Duration::from_secs(30);

/// How a transaction commits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum CommitForm {
    /// The changes are looked at before anything is flushed, so that most conflicts cost no write to a store; then the
    /// commit names them. One question more.
    #[default]
    TwoSteps,
    /// Flush, then commit: one question less, and a lost race has its writes undone.
    OneStep,
}

/// How a transaction of a context is started. There is no `deferred` among these: participants flush before the commit is
/// decided.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct StartOptions {
    /// SHORT or LONG. A LONG one tells no changes, and becomes invalid if it is aborted. Default SHORT.
    pub kind: Kind,
    /// Deadline in ms from now; `None` takes the sequencer's default for the kind. Limits as in [`BeginOptions`].
    pub timeout_ms: Option<u64>,
    /// Stays open when the client disconnects, until its deadline. Default false.
    pub detached: bool,
    /// Shown where transactions are listed, and to those who lose a race to this one. 64 bytes count. Default: that of
    /// the client.
    pub label: Option<Arc<str>>,
    /// Whether reads and marks are sent and checked as well. Default [`Isolation::Snapshot`]: they are not.
    pub isolation: Isolation,
    /// Which of their own writes the participants read. Default [`Visibility::Snapshot`].
    pub visibility: Visibility,
    /// Default [`CommitForm::TwoSteps`].
    pub form: CommitForm,
}

/// A transaction that has committed, durably.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Committed {
    /// The transaction.
    pub tx: WritePointer,
    /// Its place in the order of commits.
    pub csn: CommitNumber,
    /// True if the commit's answer was lost and the outcome was learned by asking.
    pub settled: bool,
}

/// Runs transactions over its participants, one at a time; see the head of this file for what happens when.
///
/// Dropped with an active transaction, it lets go of it without waiting: the participants hear nothing, and the
/// transaction becomes invalid, unless nobody took part. Finish or abort it.
pub struct TransactionContext {
    service: Arc<dyn TransactionService>,
    participants: Participants,
    clock: Arc<dyn Clock>,
    settle_for: Duration,
    active: Option<Active>,
}

struct Active {
    open: Open,
    view: TransactionView,
    options: StartOptions,
}

/// A transaction that has not ended, as far as is known here. Dropped, it is let go of.
struct Open {
    service: Arc<dyn TransactionService>,
    tx: WritePointer,
    may_have_written: bool,
    ended: bool,
}

impl Drop for Open {
    fn drop(&mut self) {
        if !self.ended {
            self.service.abandon(self.tx, self.may_have_written);
        }
    }
}

/// What is known about a transaction that was to be finished.
enum Decision {
    Committed {
        csn: CommitNumber,
        settled: bool,
    },
    /// And it never will.
    NotCommitted,
    /// It ended without this side, or nobody could say how: nothing may be undone.
    OutOfHand(End),
}

impl TransactionContext {
    /// A context that asks this service, with these participants, in this order.
    pub fn new(
        service: Arc<dyn TransactionService>,
        participants: impl IntoIterator<Item = Arc<dyn Participant>>,
    ) -> TransactionContext {
        TransactionContext {
            service,
            participants: participants.into_iter().collect(),
            clock: Arc::new(SystemClock),
            settle_for: SETTLE_FOR_DEFAULT,
            active: None,
        }
    }

    /// Waits by this clock.
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> TransactionContext {
        TransactionContext { clock, ..self }
    }

    /// Asks for a lost outcome for so long before it is given up as unknown. Default [`SETTLE_FOR_DEFAULT`].
    #[must_use]
    pub fn with_settle_for(self, settle_for: Duration) -> TransactionContext {
        TransactionContext { settle_for, ..self }
    }

    /// The active transaction, if there is one.
    pub fn current(&self) -> Option<&TransactionView> {
        self.active.as_ref().map(|active| &active.view)
    }

    /// Adds a participant, at the end; false if it takes part already. If a transaction is active it is started at once.
    ///
    /// # Errors
    /// If it cannot be started. It is not added then, and the transaction stays active.
    pub fn add(&mut self, participant: Arc<dyn Participant>) -> Result<bool, ContextError> {
        if !self.participants.add(Arc::clone(&participant)) {
            return Ok(false);
        }
        let Some(active) = &mut self.active else { return Ok(true) };
        let (mut failures, newest) = (Vec::new(), self.participants.len() - 1);
        let started = |place, one: &dyn Participant| if place < newest { Ok(()) } else { one.start(&active.view) };
        if self.participants.each(Step::Start, &mut failures, started) {
            active.open.may_have_written = true;
            return Ok(true);
        }
        self.participants.remove(&participant);
        Err(error(Some(active.open.tx), End::Active, failures))
    }

    /// Removes a participant; false if it was none.
    ///
    /// # Errors
    /// [`Failure::Active`] while a transaction is active, for it may have written in it.
    pub fn remove(&mut self, participant: &Arc<dyn Participant>) -> Result<bool, ContextError> {
        self.refuse_if_active()?;
        Ok(self.participants.remove(participant))
    }

    /// Begins a transaction and starts every participant.
    ///
    /// # Errors
    /// [`Failure::Active`] if there is one already, which stays as it is. If a participant fails the transaction is
    /// aborted; nobody is rolled back, for nobody has written.
    pub fn start(&mut self, options: StartOptions) -> Result<&TransactionView, ContextError> {
        self.refuse_if_active()?;
        let StartOptions { kind, timeout_ms, detached, .. } = options;
        let begin = BeginOptions { kind, timeout_ms, detached, deferred: false };
        let begun = self.service.begin(begin, options.label.as_deref());
        let view = begun
            .map_err(|source| error(None, End::None, vec![Failure::Sequencer { step: Step::Begin, source }]))?
            .with_visibility(options.visibility);
        let service = Arc::clone(&self.service);
        let mut open = Open { service, tx: view.id(), may_have_written: false, ended: false };
        let mut failures = Vec::new();
        if self.participants.each(Step::Start, &mut failures, |_, one| one.start(&view)) {
            open.may_have_written = self.participants.len() > 0;
            return Ok(&self.active.insert(Active { open, view, options }).view);
        }
        let (tx, end) = (open.tx, self.end_clean(open, &mut failures));
        Err(error(Some(tx), end, failures))
    }

    /// Flushes every participant, takes a further write pointer and hands it to them. What was written before can be told
    /// from what is written after; see [`Visibility`].
    ///
    /// # Errors
    /// [`Failure::NotActive`] if there is no transaction. Any other failure ends it as [`abort`](TransactionContext::abort)
    /// does.
    pub fn checkpoint(&mut self) -> Result<&TransactionView, ContextError> {
        self.update_with(|context, active, failures| {
            if !context.participants.each(Step::Flush, failures, |_, one| one.flush()) {
                return Err(Decision::NotCommitted);
            }
            let number = active.view.checkpoints().len() as u32 + 1;
            let pointer = context
                .service
                .checkpoint(active.open.tx, number)
                .map_err(|refusal| context.refused(Step::Checkpoint, refusal, None, active.open.tx, failures))?;
            let newest = active.view.write_pointer();
            if pointer <= newest {
                failures.push(Failure::StaleCheckpoint { pointer, newest });
                return Err(Decision::NotCommitted);
            }
            Ok(active.view.clone().with_checkpoint(pointer))
        })
    }

    /// Gives the active transaction another level of visibility, and tells every participant.
    ///
    /// # Errors
    /// As [`checkpoint`](TransactionContext::checkpoint).
    pub fn set_visibility(&mut self, visibility: Visibility) -> Result<&TransactionView, ContextError> {
        self.update_with(|_, active, _| Ok(active.view.clone().with_visibility(visibility)))
    }

    /// Commits the active transaction. Whatever comes of it, it is active no more.
    ///
    /// # Errors
    /// [`Failure::NotActive`] if there is none. Otherwise [`ContextError::end`] says how the transaction stands:
    ///
    /// - `Aborted`, `Invalidated` or `Unfinished`: it has not committed, and everybody was rolled back;
    /// - `Committed`: it has, and somebody failed in hearing of it, or somebody else had committed it;
    /// - `Unknown`: nobody could say, within the time. Nobody was rolled back.
    pub fn finish(&mut self) -> Result<Committed, ContextError> {
        let mut active = self.active.take().ok_or_else(not_active)?;
        let (tx, mut failures) = (active.open.tx, Vec::new());
        match self.decide(&active, &mut failures) {
            Decision::Committed { csn, settled } => {
                active.open.ended = true;
                self.participants.all(Step::AfterCommit, &mut failures, |one| one.after_commit(csn));
                match failures.is_empty() {
                    true => Ok(Committed { tx, csn, settled }),
                    false => Err(error(Some(tx), End::Committed(csn), failures)),
                }
            }
            undecided => Err(self.give_up(active, undecided, failures)),
        }
    }

    /// Rolls every participant back and ends the active transaction: as aborted if all are clean, as invalid if not. A
    /// LONG one becomes invalid anyhow. Without one it does nothing and says [`End::None`].
    ///
    /// # Errors
    /// What failed on the way; the transaction is active no more all the same.
    pub fn abort(&mut self) -> Result<End, ContextError> {
        let Some(active) = self.active.take() else { return Ok(End::None) };
        let (tx, mut failures) = (active.open.tx, Vec::new());
        let end = self.undo(active, &mut failures);
        if failures.is_empty() { Ok(end) } else { Err(error(Some(tx), end, failures)) }
    }

    /// As [`abort`](TransactionContext::abort), for a reason: the error that says so, with what failed on the way attached.
    pub fn abort_because(&mut self, reason: impl Into<BoxError>) -> ContextError {
        let mut failures = vec![Failure::Caller(reason.into())];
        let Some(active) = self.active.take() else { return error(None, End::None, failures) };
        let (tx, end) = (active.open.tx, self.undo(active, &mut failures));
        error(Some(tx), end, failures)
    }

    /// Makes a view that takes the place of the active transaction's, and tells it to every participant.
    fn update_with(
        &mut self,
        make: impl FnOnce(&TransactionContext, &Active, &mut Vec<Failure>) -> Result<TransactionView, Decision>,
    ) -> Result<&TransactionView, ContextError> {
        let mut active = self.active.take().ok_or_else(not_active)?;
        let mut failures = Vec::new();
        let decision = match make(self, &active, &mut failures) {
            Ok(view) => {
                active.view = view;
                if self.participants.each(Step::Update, &mut failures, |_, one| one.update(&active.view)) {
                    return Ok(&self.active.insert(active).view);
                }
                Decision::NotCommitted
            }
            Err(decision) => decision,
        };
        Err(self.give_up(active, decision, failures))
    }

    /// The way of a commit, up to where its outcome is known or given up.
    fn decide(&self, active: &Active, failures: &mut Vec<Failure>) -> Decision {
        let Active { open: Open { tx, .. }, view, options } = active;
        let (tx, checkpoints) = (*tx, view.checkpoints().len() as u32);
        let mut keyed = KeyedChanges::new(options.isolation);
        let tell = |place, one: &dyn Participant| {
            keyed.ask(place);
            one.changes(&mut keyed)
        };
        if options.kind == Kind::Short && !self.participants.each(Step::Changes, failures, tell) {
            return Decision::NotCommitted;
        }
        let changes = match keyed.to_change_set() {
            Ok(changes) => changes,
            Err(refusal) => return self.refused(Step::Changes, refusal.into(), None, tx, failures),
        };
        // Nothing can be said against no changes, so there is nothing to ask.
        let two_steps = options.form == CommitForm::TwoSteps && !changes.is_empty();
        if two_steps && let Err(refusal) = self.service.can_commit(tx, &changes) {
            return self.refused(Step::CanCommit, refusal, Some(&keyed), tx, failures);
        }
        if !self.participants.each(Step::Flush, failures, |_, one| one.flush()) {
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

    /// A refusal by the sequencer becomes a failure; what it leaves of the transaction.
    fn refused(
        &self,
        step: Step,
        refusal: Error,
        keyed: Option<&KeyedChanges>,
        tx: WritePointer,
        failures: &mut Vec<Failure>,
    ) -> Decision {
        if let Outcome::Committed(csn) = refusal.outcome() {
            failures.push(Failure::EndedByOther { tx, ended: Status::Committed(csn) });
            return Decision::OutOfHand(End::Committed(csn));
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
        Decision::OutOfHand(End::Unknown)
    }

    /// Ends a transaction that came to nothing; if it is out of hand it is let go of, which at most makes it invalid.
    fn give_up(&self, active: Active, decision: Decision, mut failures: Vec<Failure>) -> ContextError {
        let tx = Some(active.open.tx);
        let end = match decision {
            Decision::OutOfHand(end) => end,
            Decision::NotCommitted | Decision::Committed { .. } => self.undo(active, &mut failures),
        };
        error(tx, end, failures)
    }

    /// Rolls everybody back, and tells the sequencer what is left.
    fn undo(&self, active: Active, failures: &mut Vec<Failure>) -> End {
        match self.participants.roll_back(failures) {
            Rollback::Clean => self.end_clean(active.open, failures),
            Rollback::Dirty => self.end_dirty(active.open, failures),
        }
    }

    fn end_clean(&self, mut open: Open, failures: &mut Vec<Failure>) -> End {
        open.may_have_written = false;
        let tx = open.tx;
        match self.service.abort(tx) {
            Ok(status) => self.ended(open, status, failures),
            Err(source) => {
                failures.push(Failure::Sequencer { step: Step::Abort, source });
                End::Unfinished
            }
        }
    }

    fn end_dirty(&self, mut open: Open, failures: &mut Vec<Failure>) -> End {
        let tx = open.tx;
        // It may have ended before: by its deadline as invalid, which is as good, or by somebody who knew better.
        let status = match self.service.invalidate(tx) {
            Ok(true) => {
                open.ended = true;
                return End::Invalidated;
            }
            Ok(false) => self.service.settle(tx),
            Err(error) => Err(error),
        };
        match status {
            Ok(Status::Aborted) => {
                open.ended = true;
                failures.push(Failure::EndedByOther { tx, ended: Status::Aborted });
                End::Aborted
            }
            Ok(status) => self.ended(open, status, failures),
            Err(source) => {
                failures.push(Failure::Sequencer { step: Step::Invalidate, source });
                End::Unfinished
            }
        }
    }

    /// What the sequencer says about a transaction that was rolled back.
    fn ended(&self, mut open: Open, status: Status, failures: &mut Vec<Failure>) -> End {
        open.ended = true;
        match status {
            Status::Aborted => End::Aborted,
            Status::Invalid(_) => End::Invalidated,
            Status::Committed(csn) => {
                failures.push(Failure::EndedByOther { tx: open.tx, ended: status });
                End::Committed(csn)
            }
            Status::Open | Status::Deciding | Status::Refused => {
                // It did not do what it was asked: ask once more, behind everybody's back.
                open.ended = false;
                End::Unfinished
            }
            Status::Forgotten => End::Unfinished,
        }
    }

    fn refuse_if_active(&self) -> Result<(), ContextError> {
        match self.current().map(TransactionView::id) {
            None => Ok(()),
            Some(tx) => Err(error(Some(tx), End::Active, vec![Failure::Active { tx }])),
        }
    }
}

impl fmt::Debug for TransactionContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = (0..self.participants.len()).map(|place| self.participants.name(place).0).collect();
        f.debug_struct("TransactionContext")
            .field("participants", &names)
            .field("current", &self.current().map(TransactionView::id))
            .finish_non_exhaustive()
    }
}

fn not_active() -> ContextError {
    error(None, End::None, vec![Failure::NotActive])
}

/// The first failure, with the others attached.
fn error(tx: Option<WritePointer>, end: End, failures: Vec<Failure>) -> ContextError {
    let mut failures = failures.into_iter();
    let first = failures.next().expect("an error has a reason");
    ContextError::new(tx, end, first, failures.collect())
}
