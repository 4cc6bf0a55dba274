//! The decided state: begins, commits and ends, decided at once and ahead of the disk.
//!
//! Anybody may call a [`Sequencer`] from any thread. What it decides goes into the event ring; the one [`Publisher`]
//! takes it from there to the log, and publishes it when it is durable. Answers that claim an end carry a [`Ticket`]
//! and may leave when the event with that ticket is published.
//!
//! How a step is ordered, and why (the files named say it in full):
//!
//! * **begin**: seat in the table → slot in the ring → snapshot → pointers → entries → slot filled, all under one epoch
//!   pin. Snapshot before pointers: `pointers.rs`. Slot before entries: its event precedes that of any end.
//! * **commit**: own the transaction → deadline → claim → check → slot and commit number in one step → state → event →
//!   store → release. Owned before it is claimed: `table.rs`. Nothing written before all is checked: `conflict.rs`. The
//!   state moves before the slot is filled, for the entry may be freed as soon as the event is seen.
//! * **can_commit**: own → claim → check → release → keep the set → as it was. No event: it is advice, and reserves nothing.
//! * **checkpoint**: own → slot → pointer → count → event → as it was. Owned, so its event precedes that of any end.
//! * **abort**, **invalidate**: own → slot → state → event.
//!
//! A full ring is found when the slot is taken, which is before anything changed: whatever was owned or claimed is let
//! go and the answer is `Overloaded`.

use std::sync::Arc;

use crossbeam_epoch::pin;

use crate::change_set::{ChangeIds, ChangeSet, Changes, Submission};
use crate::conflict::{ConflictIndex, Scratch, Verdict};
use crate::current::{Current, Entry, current};
use crate::event::{Begin, Event};
use crate::history::History;
use crate::labels::{LabelId, Labels};
use crate::limits::Limits;
use crate::pending::PendingSets;
use crate::pointer::{CommitNumber, SequencerTime, WritePointer};
use crate::pointers::{Block, Pointers};
use crate::publisher::Publisher;
use crate::ring::{Reserved, Ring, Ticket, ring};
use crate::snapshot::Snapshot;
use crate::sync::{AtomicBool, Ordering};
use crate::table::{CHECKPOINTS_MAX, Ending, Entering, Held, Hold, OpenView, Table};
use crate::transaction::{BeginError, BeginOptions, CommitError, Full, InvalidCause, Kind, OpenTransaction, Status};
use crate::winners::Winners;

/// The decided state; see the head of this file.
pub struct Sequencer {
    pub(crate) limits: Limits,
    pub(crate) pointers: Pointers,
    pub(crate) table: Table,
    pub(crate) ring: Arc<Ring>,
    pub(crate) current: Current,
    /// As many transactions are invalid as may be: LONG ones do not begin.
    pub(crate) invalid_full: AtomicBool,
    index: ConflictIndex,
    winners: Winners,
    labels: Labels,
    pub(crate) pending: PendingSets,
}

/// For whom a transaction is begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Owner {
    /// Kept with the transaction for [`Sequencer::for_each_open`] and means nothing to the sequencer; 0 after a restart.
    pub session: u64,
    /// Its label, from [`Sequencer::label_id`]; none after a restart.
    pub label: LabelId,
}

impl From<u64> for Owner {
    /// A session without a label.
    fn from(session: u64) -> Owner {
        Owner { session, label: LabelId::NONE }
    }
}

/// Where a sequencer goes on: what the published state knows after recovery.
#[derive(Clone, Debug)]
pub struct Resume {
    /// The first pointer to hand out. Greater than 0 and than every pointer handed out before.
    pub next: WritePointer,
    /// The first pointer that may not be handed out; durable.
    pub window_end: WritePointer,
    /// Number of the last commit.
    pub csn: CommitNumber,
    /// What was written at or before this commit may be missing in the conflict index: older snapshots are refused.
    pub index_floor: CommitNumber,
    /// The snapshot that the first begins start from.
    pub snapshot: Arc<Snapshot>,
    /// Transactions that have not ended.
    pub open: Vec<OpenTransaction>,
}

/// Transactions that began together: `count` neighbouring pointers from `first` on, on one snapshot.
#[derive(Clone, Debug)]
pub struct Begun {
    /// The first one's pointer.
    pub first: WritePointer,
    /// How many.
    pub count: u32,
    /// What they may read. Its read pointer is less than any of their pointers.
    pub snapshot: Arc<Snapshot>,
    /// When they expire.
    pub deadline: SequencerTime,
    /// Place of their begin in the order of events. A begin's answer need not wait for it.
    pub ticket: Ticket,
}

/// What came of a commit.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum Decision {
    /// It commits. True for others once the ticket is published.
    Committed {
        /// Its place in the order of commits.
        csn: CommitNumber,
        /// The event to wait for.
        ticket: Ticket,
    },
    /// It is refused, for good: a conflict, too old, expired, or refused once before.
    Refused {
        /// Why.
        error: CommitError,
        /// The event to wait for.
        ticket: Ticket,
    },
    /// Nothing changed; the answer may leave at once.
    Denied(CommitError),
    /// Somebody ended it already. The published state knows how once this ticket is published.
    Ending {
        /// The event to wait for.
        ticket: Ticket,
    },
    /// It is not open. The published state may know more.
    Unknown,
}

/// What came of a check before a commit. Nothing changed, whatever it says.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum Advice {
    /// It would commit now. A commit may name the set by this digest.
    Passes {
        /// The set's [digest](ChangeSet::digest).
        digest: u64,
    },
    /// It would not. After a conflict wait until all that is decided is published, so that a retry sees the winner.
    Fails(CommitError),
    /// It never will: it was refused, or its deadline has passed. That is said once this ticket is published.
    Refused {
        /// Why.
        error: CommitError,
        /// The event to wait for.
        ticket: Ticket,
    },
    /// Somebody ended it already. The published state knows how once this ticket is published.
    Ending {
        /// The event to wait for.
        ticket: Ticket,
    },
    /// It is not open. The published state may know more.
    Unknown,
}

/// What came of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum Checkpointing {
    /// It took this pointer. Nobody may write under it before the ticket is published.
    Taken {
        /// The further write pointer.
        pointer: WritePointer,
        /// The event to wait for.
        ticket: Ticket,
    },
    /// It was taken before; the published state knows which one once everything decided so far is published.
    Repeated,
    /// It is refused, for good: the transaction has expired, or its commit was refused before.
    Refused {
        /// Why.
        error: CommitError,
        /// The event to wait for.
        ticket: Ticket,
    },
    /// Nothing changed; the answer may leave at once.
    Denied(CommitError),
    /// Somebody ended it already. The published state knows how once this ticket is published.
    Ending {
        /// The event to wait for.
        ticket: Ticket,
    },
    /// It is not open. The published state may know more.
    Unknown,
}

/// What came of an abort or an invalidation.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum End {
    /// It ends like this. True for others once the ticket is published.
    Ended {
        /// `Aborted` or `Invalid`.
        status: Status,
        /// The event to wait for.
        ticket: Ticket,
    },
    /// Somebody ended it already. The published state knows how once this ticket is published.
    Ending {
        /// The event to wait for.
        ticket: Ticket,
    },
    /// It is not open. The published state may know more.
    Unknown,
    /// Nothing changed; the answer may leave at once.
    Denied(CommitError),
}

/// Starts a sequencer that checks against what it sees from now on. Whoever began on a snapshot before
/// `from.index_floor` is refused as too old.
///
/// # Panics
/// If the limits contradict each other ([`Limits::check`]).
pub fn resume(limits: Limits, from: Resume) -> (Arc<Sequencer>, Publisher) {
    let history = History::new(&limits, from.index_floor);
    resume_with(limits, from, history)
}

/// Starts a sequencer that also checks against a history, which was made with the same limits.
///
/// # Panics
/// If the limits contradict each other ([`Limits::check`]).
pub fn resume_with(limits: Limits, from: Resume, history: History) -> (Arc<Sequencer>, Publisher) {
    let History { mut index, winners } = history;
    index.raise_floor(from.index_floor);
    let (ring, consumer) = ring(limits.event_ring_slots, from.csn);
    let (current, replacer) = current(from.snapshot);
    let table = Table::new(limits.open_max, from.open.len());
    let mut seats = table.seats_of_survivors(from.open.len());
    for open in &from.open {
        let entering = Entering {
            kind: open.kind,
            deferred: open.deferred,
            detached: open.detached,
            snapshot: open.snapshot,
            deadline: open.deadline,
            owner: 0,
            label: LabelId::NONE,
            checkpoints: open.checkpoints,
        };
        seats.enter_as(open.tx, &entering, open.refused);
    }
    drop(seats);
    let pointers = Pointers::new(from.next, from.window_end);
    let invalid_full = AtomicBool::new(false);
    let (labels, pending) = (Labels::new(limits.labels), PendingSets::new(limits.pending_ids_max));
    let sequencer =
        Arc::new(Sequencer { limits, pointers, table, ring, current, invalid_full, index, winners, labels, pending });
    let publisher = Publisher::new(sequencer.clone(), consumer, replacer);
    (sequencer, publisher)
}

impl Sequencer {
    /// The bounds it was made with.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Begins `count` transactions on the newest snapshot.
    ///
    /// # Errors
    /// If the options or the size of the block are out of range, or something is full. Nothing was handed out then.
    pub fn begin(
        &self,
        now: SequencerTime,
        options: &BeginOptions,
        count: u32,
        owner: impl Into<Owner>,
    ) -> Result<Begun, BeginError> {
        let guard = pin();
        self.begin_by(now, options, count, owner.into(), |slot| {
            // The snapshot first, the pointers then: see the head of `pointers.rs`.
            let entry = self.current.load(&guard);
            Ok((entry, self.pointers.take(slot, count)?))
        })
    }

    /// Takes `count` neighbouring pointers that are unique and ascending and never become transactions. They are
    /// reported as finished at once.
    ///
    /// # Errors
    /// If the size of the block is out of range, or something is full. Nothing was handed out then.
    pub fn timestamps(&self, count: u32) -> Result<(WritePointer, Ticket), BeginError> {
        self.check_block(count)?;
        let slot = self.ring.reserve().map_err(BeginError::Overloaded)?;
        let block = self.pointers.take(slot, count).map_err(BeginError::Overloaded)?;
        Ok((block.first(), block.finish()))
    }

    /// The newest snapshot.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.current.load(&pin()).snapshot.clone()
    }

    /// The number of a label for an [`Owner`], which is remembered from now on.
    pub fn label_id(&self, label: &str) -> LabelId {
        self.labels.id(label)
    }

    /// True if [`LABELS_MAX`](crate::LABELS_MAX) labels are remembered: further ones are not kept before the next start.
    pub fn labels_are_full(&self) -> bool {
        self.labels.is_full()
    }

    /// The text of a label.
    pub fn label(&self, id: LabelId) -> Option<Arc<str>> {
        self.labels.text(id)
    }

    /// Checked change sets that wait for their commit.
    pub fn pending_len(&self) -> usize {
        self.pending.len()
    }

    /// Checks what a commit would come to now, and keeps the set for a commit that names it. Reserves nothing.
    pub fn can_commit(
        &self,
        now: SequencerTime,
        tx: WritePointer,
        changes: &ChangeSet,
        scratch: &mut Scratch,
    ) -> Advice {
        if let Err(error) = self.check_len(changes) {
            return Advice::Fails(error);
        }
        let held = match self.table.hold(tx) {
            Hold::Held(held) => held,
            Hold::Ended(ticket) => return Advice::Ending { ticket },
            Hold::Absent => return Advice::Unknown,
        };
        if held.was_refused() {
            return match refused_before(tx, &held) {
                (error, Some(ticket)) => Advice::Refused { error, ticket },
                (error, None) => Advice::Fails(error),
            };
        }
        if now >= held.deadline() {
            return match self.expire(tx, held) {
                Ok((error, ticket)) => Advice::Refused { error, ticket },
                Err(error) => Advice::Fails(error),
            };
        }
        if held.kind() == Kind::Long && !changes.is_empty() {
            return Advice::Fails(CommitError::LongWithChanges { tx });
        }
        let checked = self.index.claim(changes, scratch).check(held.snapshot(), changes);
        if let Err(verdict) = checked {
            return Advice::Fails(self.verdict(tx, &held, verdict));
        }
        let digest = changes.digest();
        held.set_pending(self.pending.put(tx, digest, changes));
        Advice::Passes { digest }
    }

    /// Decides a commit.
    pub fn commit<'c>(
        &self,
        now: SequencerTime,
        tx: WritePointer,
        submission: impl Into<Submission<'c>>,
        scratch: &mut Scratch,
    ) -> Decision {
        let submission = submission.into();
        if let Changes::Given(changes) = submission.changes
            && let Err(error) = self.check_len(changes)
        {
            return Decision::Denied(error);
        }
        let held = match self.table.hold(tx) {
            Hold::Held(held) => held,
            Hold::Ended(ticket) => return Decision::Ending { ticket },
            Hold::Absent => return Decision::Unknown,
        };
        if held.was_refused() {
            return match refused_before(tx, &held) {
                (error, Some(ticket)) => Decision::Refused { error, ticket },
                (error, None) => Decision::Denied(error),
            };
        }
        if now >= held.deadline() {
            return match self.expire(tx, held) {
                Ok((error, ticket)) => Decision::Refused { error, ticket },
                Err(error) => Decision::Denied(error),
            };
        }
        let (known, named) = (held.checkpoints(), submission.checkpoints);
        if known != named {
            return Decision::Denied(CommitError::CheckpointMismatch { tx, known, named });
        }
        match submission.changes {
            Changes::Given(changes) if held.kind() == Kind::Long && !changes.is_empty() => {
                Decision::Denied(CommitError::LongWithChanges { tx })
            }
            Changes::Given(changes) => self.decide(tx, held, changes, scratch),
            Changes::Checked(digest) => match self.pending.get(tx, digest) {
                Some(changes) => self.decide(tx, held, &changes, scratch),
                None => Decision::Denied(CommitError::NeedChanges { tx }),
            },
        }
    }

    /// Gives a transaction its `number`th further write pointer, counted from 1. To ask again for one that was taken, as
    /// after a lost reply, takes nothing.
    pub fn checkpoint(&self, now: SequencerTime, tx: WritePointer, number: u32) -> Checkpointing {
        let held = match self.table.hold(tx) {
            Hold::Held(held) => held,
            Hold::Ended(ticket) => return Checkpointing::Ending { ticket },
            Hold::Absent => return Checkpointing::Unknown,
        };
        if held.was_refused() {
            return match refused_before(tx, &held) {
                (error, Some(ticket)) => Checkpointing::Refused { error, ticket },
                (error, None) => Checkpointing::Denied(error),
            };
        }
        if now >= held.deadline() {
            return match self.expire(tx, held) {
                Ok((error, ticket)) => Checkpointing::Refused { error, ticket },
                Err(error) => Checkpointing::Denied(error),
            };
        }
        let known = held.checkpoints();
        if (1..=known).contains(&number) {
            return Checkpointing::Repeated;
        }
        if number != known + 1 {
            let named = number.saturating_sub(1);
            return Checkpointing::Denied(CommitError::CheckpointMismatch { tx, known, named });
        }
        if known == CHECKPOINTS_MAX {
            return Checkpointing::Denied(CommitError::TooManyCheckpoints { tx, max: CHECKPOINTS_MAX });
        }
        match self.ring.reserve().and_then(|slot| self.pointers.take(slot, 1)) {
            Ok(block) => {
                held.add_checkpoint();
                let pointer = block.first();
                Checkpointing::Taken { pointer, ticket: block.begun(Event::Checkpoint { tx, pointer }) }
            }
            Err(full) => Checkpointing::Denied(CommitError::Overloaded(full)),
        }
    }

    fn check_len(&self, changes: &ChangeSet) -> Result<(), CommitError> {
        let (len, max) = (changes.len(), self.limits.change_ids_max);
        if len > max {
            return Err(CommitError::ChangeSetTooLarge { len: len as u64, max: max as u64 });
        }
        Ok(())
    }

    /// Decides a commit of a transaction that is owned and in time.
    fn decide(&self, tx: WritePointer, held: Held<'_>, changes: &ChangeSet, scratch: &mut Scratch) -> Decision {
        // Whatever allocates or may wait is done before the first claim.
        self.drop_pending(tx, &held);
        let label = self.labels.of_committed(held.label());
        let mut stored: ChangeIds = changes.writes.iter().chain(&changes.marks).copied().collect();
        let claims = self.index.claim(changes, scratch);
        if let Err(verdict) = claims.check(held.snapshot(), changes) {
            drop(claims);
            return self.refuse(tx, held, verdict);
        }
        let taken = self.ring.push_commit(|ticket, csn| {
            self.winners.put(csn, tx, label);
            held.end(Ending::Committing, ticket);
            Event::Commit { tx, stored: std::mem::take(&mut stored) }
        });
        match taken {
            Ok((ticket, csn)) => {
                claims.store(csn, changes);
                Decision::Committed { csn, ticket }
            }
            Err(full) => Decision::Denied(CommitError::Overloaded(full)),
        }
    }

    fn verdict(&self, tx: WritePointer, held: &Held<'_>, verdict: Verdict) -> CommitError {
        match verdict {
            Verdict::Conflict { id, csn } => {
                let winner = self.winners.get(csn, || self.ring.last_commit());
                let label = winner.and_then(|(_, label)| self.labels.text(label));
                CommitError::Conflict { tx, change_id: id.0, csn, winner: winner.map(|(tx, _)| tx), label }
            }
            Verdict::TooOld { mark } => CommitError::TooOld { tx, snapshot: held.snapshot(), mark },
        }
    }

    /// Its change set, if one was checked, is of no more use. If nothing comes of the end, the commit brings its changes.
    fn drop_pending(&self, tx: WritePointer, held: &Held<'_>) {
        if held.has_pending() {
            self.pending.remove(tx);
            held.set_pending(false);
        }
    }

    fn refuse(&self, tx: WritePointer, held: Held<'_>, verdict: Verdict) -> Decision {
        let error = self.verdict(tx, &held, verdict);
        let pushed = self.ring.push(|ticket| {
            held.refuse(ticket);
            Event::Refused { tx }
        });
        decision(pushed, error)
    }

    /// Its deadline has passed, which nobody says before it is durable; or why that cannot be written down now.
    fn expire(&self, tx: WritePointer, held: Held<'_>) -> Result<(CommitError, Ticket), CommitError> {
        let event = Event::Invalidated { tx, cause: InvalidCause::Expired };
        let pushed = self.push_end(tx, held, Ending::Invalidating, event);
        pushed.map(|ticket| (CommitError::Expired { tx }, ticket)).map_err(CommitError::Overloaded)
    }

    /// Asks for the memory that a commit of this change set will need. Worth it some commits ahead.
    pub fn prefetch(&self, changes: &ChangeSet) {
        self.index.prefetch(changes);
    }

    /// Ends a transaction whose writes were rolled back, or that wrote nothing. A LONG one becomes invalid.
    pub fn abort(&self, tx: WritePointer) -> End {
        self.end(tx, |held| match held.kind() {
            Kind::Short => None,
            Kind::Long => Some(InvalidCause::LongAborted),
        })
    }

    /// Ends a transaction without a rollback.
    pub fn invalidate(&self, tx: WritePointer, cause: InvalidCause) -> End {
        self.end(tx, |_| Some(cause))
    }

    fn end(&self, tx: WritePointer, cause: impl FnOnce(&Held<'_>) -> Option<InvalidCause>) -> End {
        let held = match self.table.hold(tx) {
            Hold::Held(held) => held,
            Hold::Ended(ticket) => return End::Ending { ticket },
            Hold::Absent => return End::Unknown,
        };
        let (status, ending, event) = match cause(&held) {
            None => (Status::Aborted, Ending::Aborting, Event::Aborted { tx }),
            Some(cause) => (Status::Invalid(cause), Ending::Invalidating, Event::Invalidated { tx, cause }),
        };
        match self.push_end(tx, held, ending, event) {
            Ok(ticket) => End::Ended { status, ticket },
            Err(full) => End::Denied(CommitError::Overloaded(full)),
        }
    }

    fn push_end(&self, tx: WritePointer, held: Held<'_>, ending: Ending, event: Event) -> Result<Ticket, Full> {
        self.drop_pending(tx, &held);
        self.ring.push(|ticket| {
            held.end(ending, ticket);
            event
        })
    }

    /// Where a transaction stands: open, refused, or with an end that is not published (`Deciding`). `None` if it is not
    /// in the table: ask the published state.
    pub fn look(&self, tx: WritePointer) -> Option<Status> {
        self.table.look(tx)
    }

    /// All that is known of an open transaction; `None` if it is not in the table.
    pub fn view(&self, tx: WritePointer) -> Option<OpenView> {
        self.table.view(tx)
    }

    /// Number of open transactions, those included whose end is not published yet.
    pub fn open_len(&self) -> u64 {
        self.table.len()
    }

    /// Number of the last commit that was decided.
    pub fn decided_csn(&self) -> CommitNumber {
        self.ring.last_commit()
    }

    /// Visits every transaction that is open during the whole walk, and maybe some that come or go meanwhile.
    ///
    /// Walks the whole table, 16 MiB by default: ask once for many, not once for each.
    pub fn for_each_open(&self, visit: impl FnMut(&OpenView)) {
        self.table.for_each(visit);
    }

    fn begin_by<'s>(
        &'s self,
        now: SequencerTime,
        options: &BeginOptions,
        count: u32,
        owner: Owner,
        load_and_take: impl FnOnce(Reserved<'s>) -> Result<(&'s Entry, Block<'s>), Full>,
    ) -> Result<Begun, BeginError> {
        self.check_block(count)?;
        let deadline = self.limits.deadline(now, options)?;
        // Relaxed: a limit of ten million need not be met to the piece.
        if options.kind == Kind::Long && self.invalid_full.load(Ordering::Relaxed) {
            return Err(BeginError::Overloaded(Full::Invalid));
        }
        let mut seats = self.table.seats(count).map_err(BeginError::Overloaded)?;
        let slot = self.ring.reserve().map_err(BeginError::Overloaded)?;
        let (entry, block) = load_and_take(slot).map_err(BeginError::Overloaded)?;
        let (first, snapshot) = (block.first(), &entry.snapshot);
        let BeginOptions { kind, deferred, detached, .. } = *options;
        let Owner { session: owner, label } = owner;
        let entering =
            Entering { kind, deferred, detached, snapshot: snapshot.csn, deadline, owner, label, checkpoints: 0 };
        for tx in block.pointers() {
            seats.enter(tx, &entering);
        }
        let ticket = block.begun(Event::Begin(Begin {
            first,
            count,
            kind,
            deferred,
            detached,
            deadline,
            snapshot: snapshot.csn,
            settled: entry.settled,
        }));
        Ok(Begun { first, count, snapshot: snapshot.clone(), deadline, ticket })
    }

    fn check_block(&self, count: u32) -> Result<(), BeginError> {
        let max = self.limits.block_max;
        if (1..=max).contains(&count) {
            Ok(())
        } else {
            Err(BeginError::BlockSize { asked: u64::from(count), max: u64::from(max) })
        }
    }
}

/// What is said of a transaction that was refused, and when; at once if that was before this run.
fn refused_before(tx: WritePointer, held: &Held<'_>) -> (CommitError, Option<Ticket>) {
    (CommitError::NotInProgress { tx, ended: Status::Refused }, held.refusal())
}

fn decision(pushed: Result<Ticket, Full>, error: CommitError) -> Decision {
    match pushed {
        Ok(ticket) => Decision::Refused { error, ticket },
        Err(full) => Decision::Denied(CommitError::Overloaded(full)),
    }
}

/// Faults on purpose: models must find them.
#[cfg(loom)]
impl Sequencer {
    /// A begin that takes its pointers before it loads its snapshot.
    pub fn begin_add_before_load(
        &self,
        now: SequencerTime,
        options: &BeginOptions,
        count: u32,
        owner: impl Into<Owner>,
    ) -> Result<Begun, BeginError> {
        let guard = pin();
        self.begin_by(now, options, count, owner.into(), |slot| {
            let block = self.pointers.take(slot, count)?;
            Ok((self.current.load(&guard), block))
        })
    }

    /// A tick by somebody who is not the publisher, and so can only write it down later.
    pub fn tick_apart(&self, now_ms: u64) -> Option<Event> {
        self.pointers.tick(now_ms)
    }
}
