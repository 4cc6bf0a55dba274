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

mod ending;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use seriatim_core::{CommitNumber, TransactionView, Visibility, WritePointer};

use self::ending::Decision;
use crate::clock::{Clock, SystemClock};
use crate::failure::{ContextError, Failure, Standing, Step};
use crate::participant::{BoxError, Participant};
use crate::participants::Participants;
use crate::service::TransactionService;
use crate::start_options::StartOptions;

/// How long a lost outcome is asked for by default: 30 s, in which a sequencer can be started again.
pub const SETTLE_FOR_DEFAULT: Duration = Duration::from_secs(30);

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
    /// How the last transaction stands that has committed here or may have.
    irrevocable: Option<Standing>,
}

struct Active {
    open: Open,
    view: TransactionView,
    options: StartOptions,
    /// When nothing may be written any more; counted from before the begin was sent, so that this side gives up no later
    /// than the sequencer.
    deadline: Option<Instant>,
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
            irrevocable: None,
        }
    }

    /// Waits by this clock.
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> TransactionContext {
        TransactionContext { clock, ..self }
    }

    /// Asks for a lost outcome for so long before it is given up as unknown; the last question may take its own time besides.
    /// Default [`SETTLE_FOR_DEFAULT`].
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
        Err(error(Some(active.open.tx), Standing::Active, failures))
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
        let deadline = options.deadline(self.clock.now());
        let begun = self.service.begin(options.begin(), options.label.as_deref());
        let view = begun
            .map_err(|source| error(None, Standing::None, vec![Failure::Sequencer { step: Step::Begin, source }]))?
            .with_visibility(options.visibility);
        let service = Arc::clone(&self.service);
        let mut open = Open { service, tx: view.id(), may_have_written: false, ended: false };
        let mut failures = Vec::new();
        if self.participants.each(Step::Start, &mut failures, |_, one| one.start(&view)) {
            open.may_have_written = self.participants.len() > 0;
            return Ok(&self.active.insert(Active { open, view, options, deadline }).view);
        }
        let (tx, standing) = (open.tx, self.end_clean(open, &mut failures));
        Err(error(Some(tx), standing, failures))
    }

    /// Flushes every participant, takes a further write pointer and hands it to them. What was written before can be told
    /// from what is written after; see [`Visibility`].
    ///
    /// # Errors
    /// [`Failure::NotActive`] if there is no transaction. Any other failure ends it as [`abort`](TransactionContext::abort)
    /// does.
    pub fn checkpoint(&mut self) -> Result<&TransactionView, ContextError> {
        self.update_with(|context, active, failures| {
            if !context.flush(active, failures) {
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
    /// [`Failure::NotActive`] if there is none. Otherwise [`ContextError::standing`] says how the transaction stands:
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
                let standing = self.remember(Standing::Committed(csn));
                self.participants.all(Step::AfterCommit, &mut failures, |one| one.after_commit(csn));
                match failures.is_empty() {
                    true => Ok(Committed { tx, csn, settled }),
                    false => Err(error(Some(tx), standing, failures)),
                }
            }
            undecided => Err(self.give_up(active, undecided, failures)),
        }
    }

    /// Rolls every participant back and ends the active transaction: as aborted if all are clean, as invalid if not. A
    /// LONG one becomes invalid anyhow. Without one it does nothing and says [`Standing::None`].
    ///
    /// # Errors
    /// What failed on the way; the transaction is active no more all the same.
    pub fn abort(&mut self) -> Result<Standing, ContextError> {
        let Some(active) = self.active.take() else { return Ok(Standing::None) };
        let (tx, mut failures) = (active.open.tx, Vec::new());
        let standing = self.undo(active, &mut failures);
        if failures.is_empty() { Ok(standing) } else { Err(error(Some(tx), standing, failures)) }
    }

    /// As [`abort`](TransactionContext::abort), for a reason: the error that says so, with what failed on the way attached.
    pub fn abort_because(&mut self, reason: impl Into<BoxError>) -> ContextError {
        let mut failures = vec![Failure::Caller(reason.into())];
        let Some(active) = self.active.take() else { return error(None, Standing::None, failures) };
        let (tx, standing) = (active.open.tx, self.undo(active, &mut failures));
        error(Some(tx), standing, failures)
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

    /// How a transaction stands that has committed here or may have, if there was one: what it did is not to be done again.
    pub(crate) fn irrevocable(&self) -> Option<Standing> {
        self.irrevocable
    }

    /// Nothing is active, though the caller of [`TransactionExecutor`](crate::TransactionExecutor) has not failed: it has
    /// ended its transaction itself.
    pub(crate) fn ended_by_hand(&self) -> ContextError {
        error(None, self.irrevocable.unwrap_or(Standing::None), vec![Failure::NotActive])
    }

    fn refuse_if_active(&self) -> Result<(), ContextError> {
        match self.current().map(TransactionView::id) {
            None => Ok(()),
            Some(tx) => Err(error(Some(tx), Standing::Active, vec![Failure::Active { tx }])),
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
    error(None, Standing::None, vec![Failure::NotActive])
}

/// The first failure, with the others attached.
fn error(tx: Option<WritePointer>, standing: Standing, failures: Vec<Failure>) -> ContextError {
    let mut failures = failures.into_iter();
    let first = failures.next().expect("an error has a reason");
    ContextError::new(tx, standing, first, failures.collect())
}
