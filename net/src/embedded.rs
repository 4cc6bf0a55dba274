//! A sequencer inside the process that uses it: the pipeline without sockets.
//!
//! Begins and decisions run on the callers' threads, side by side. Whoever has to wait for the disk takes the durable
//! half in hand if nobody else has it, carries everybody's events to the disk, and wakes those whose group it was: a
//! group commit without a thread of its own on the way. A keeper thread looks after the window, deadlines and the quiet
//! log in between.
//!
//! Durability, refusals and snapshots are those of the server; so is what a crash leaves.

mod lead;
pub(crate) mod upkeep;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use seriatim_core::{
    Advice, BeginError, BeginOptions, Begun, ChangeSet, Changes, Checkpointing, CommitError, CommitNumber, Decision,
    End, Full, InvalidCause, Owner, Scratch, Sequencer, SequencerTime, Snapshot, Status, Submission, Ticket,
    WritePointer,
};
use seriatim_wal::{DiskOptions, DiskStorage, MemoryStorage, Storage};

use self::lead::{Lead, Leader};
use crate::clock::SystemClock;
use crate::failure::{Failure, StartError};
use crate::large_sets::LargeSets;
use crate::plant::Honest;
use crate::publication::Publication;
use crate::recovery::{Options, RecoveryReport, recover};

/// How often the keeper looks.
const KEEPER_EVERY: Duration = Duration::from_millis(10);
/// How long a thread waits for a leader to leave before it looks again by itself.
const NEWS_WITHIN: Duration = Duration::from_secs(1);

/// A sequencer inside this process; see the head of this file. Cheap to clone; the last clone stops it cleanly.
#[derive(Clone)]
pub struct Embedded {
    house: Arc<House>,
}

struct House {
    shared: Arc<Shared>,
    keeper: Option<JoinHandle<()>>,
}

struct Shared {
    core: Arc<Sequencer>,
    /// Sequencer time at a moment of this run.
    started: (Instant, SequencerTime),
    /// For how long a snapshot may be read through without a transaction.
    snapshot_age: Duration,
    /// Tickets below are published. Written by whoever leads, read by whoever waits.
    released_to: AtomicU64,
    /// No further segment of the log can be made: nothing new is taken on, so that what was decided has its room.
    is_short: AtomicBool,
    /// No pointer was taken since they were last lifted to the clock, when the keeper last looked.
    is_idle: AtomicBool,
    lead: Mutex<Lead>,
    large_sets: Mutex<LargeSets>,
    /// Guards nothing but the wait: who fails to lead waits here until the leader leaves.
    waiting: Mutex<Waiting>,
    news: Condvar,
    /// Where the keeper rests. It is woken for the end alone: a keeper that heard every leader leave would take the lead,
    /// and with it every cache line of the durable half, from the thread that will want it next.
    rest: Condvar,
}

#[derive(Default)]
struct Waiting {
    stopping: bool,
    /// Threads that wait for news.
    threads: u32,
}

impl Embedded {
    /// Opens a durable sequencer in a directory, which it makes if it is not there.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn open(directory: impl Into<PathBuf>, options: &Options) -> Result<Embedded, StartError> {
        Embedded::over(DiskStorage::new(directory.into(), DiskOptions::default()), options)
            .map(|(embedded, _)| embedded)
    }

    /// A sequencer that remembers nothing: for tests and development.
    ///
    /// # Errors
    /// If the limits contradict each other.
    pub fn in_memory(options: &Options) -> Result<Embedded, StartError> {
        Embedded::over(MemoryStorage::new(), options).map(|(embedded, _)| embedded)
    }

    /// Opens a sequencer over any storage, and says what was found there.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn over<S: Storage + 'static>(storage: S, options: &Options) -> Result<(Embedded, RecoveryReport), StartError> {
        let clock = SystemClock::default();
        let mut ready = recover::<S, Honest>(storage, options, &clock)?;
        let report = std::mem::take(&mut ready.report);
        let mut times = ready.times.take().expect("recovery started them");
        let started = (Instant::now(), times.look(&clock).sequencer);
        let half: Publication<S, Honest> = Publication::new(ready, options);
        let shared = Arc::new(Shared {
            core: half.core().clone(),
            started,
            snapshot_age: Duration::from_millis(u64::from(options.snapshot_age_ms)),
            released_to: AtomicU64::new(0),
            is_short: AtomicBool::new(false),
            is_idle: AtomicBool::new(true),
            lead: Mutex::new(Lead { half: Box::new(half), times, clock, failure: None }),
            large_sets: Mutex::default(),
            waiting: Mutex::default(),
            news: Condvar::new(),
            rest: Condvar::new(),
        });
        let kept = shared.clone();
        let keeper = std::thread::Builder::new().name("seriatim-keeper".to_owned()).spawn(move || kept.keep());
        let keeper = keeper.map_err(|source| StartError::Thread { source })?;
        Ok((Embedded { house: Arc::new(House { shared, keeper: Some(keeper) }) }, report))
    }

    /// Begins a transaction. Does not wait for the disk.
    ///
    /// # Errors
    /// See [`BeginError`].
    pub fn begin(&self, options: &BeginOptions) -> Result<Begun, EmbeddedError<BeginError>> {
        self.begin_many(options, 1)
    }

    /// Begins `count` transactions on one snapshot, with neighbouring pointers. Does not wait for the disk.
    ///
    /// # Errors
    /// See [`BeginError`].
    pub fn begin_many(&self, options: &BeginOptions, count: u32) -> Result<Begun, EmbeddedError<BeginError>> {
        self.begin_for(options, count, Owner::default())
    }

    /// As [`Embedded::begin`], with a label: shown where it is listed, and where it wins a conflict.
    ///
    /// # Errors
    /// See [`BeginError`].
    pub fn begin_as(&self, options: &BeginOptions, label: &str) -> Result<Begun, EmbeddedError<BeginError>> {
        let label = self.house.shared.core.label_id(label);
        self.begin_for(options, 1, Owner { session: 0, label })
    }

    fn begin_for(&self, options: &BeginOptions, count: u32, owner: Owner) -> Result<Begun, EmbeddedError<BeginError>> {
        let shared = &self.house.shared;
        if shared.is_short.load(Ordering::Relaxed) {
            return Err(EmbeddedError::Refused(BeginError::Overloaded(Full::Disk)));
        }
        let now = || shared.now();
        shared.wake();
        match shared.core.begin(now(), options, count, owner) {
            Err(BeginError::Overloaded(_)) => {
                // The keeper is behind: carry the events on, then it is a matter of the disk.
                shared.lead(false)?;
                shared.core.begin(now(), options, count, owner).map_err(EmbeddedError::Refused)
            }
            begun => begun.map_err(EmbeddedError::Refused),
        }
    }

    /// Decides a transaction in one step, and waits until the decision is durable.
    ///
    /// # Errors
    /// A refusal of the commit, which is durable too, or the failure of the log.
    pub fn commit<'c>(
        &self,
        tx: WritePointer,
        submission: impl Into<Submission<'c>>,
    ) -> Result<CommitNumber, EmbeddedError<CommitError>> {
        let mut outcome = self.commit_many(std::iter::once((tx, submission)), &mut Scratch::default())?;
        outcome.pop().expect("one outcome for one commit").map_err(EmbeddedError::Refused)
    }

    /// Decides many transactions, then waits once until all decisions are durable. Outcomes come in the same order.
    ///
    /// # Errors
    /// If the log failed: what was decided is unknown then.
    pub fn commit_many<'c, C: Into<Submission<'c>>>(
        &self,
        commits: impl IntoIterator<Item = (WritePointer, C)>,
        scratch: &mut Scratch,
    ) -> Result<Vec<Result<CommitNumber, CommitError>>, Failure> {
        let shared = &self.house.shared;
        let now = shared.now();
        let mut latest = None;
        let mut undecided = Vec::new();
        let mut outcomes: Vec<Result<CommitNumber, CommitError>> = Vec::new();
        for (index, (tx, submission)) in commits.into_iter().enumerate() {
            let submission = submission.into();
            if let Changes::Given(changes) = submission.changes {
                shared.note_large(tx, changes);
            }
            if shared.is_short.load(Ordering::Relaxed) {
                outcomes.push(Err(CommitError::Overloaded(Full::Disk)));
                continue;
            }
            let mut decision = shared.core.commit(now, tx, submission, scratch);
            if let Decision::Denied(CommitError::Overloaded(_)) = decision {
                shared.lead(true)?;
                decision = shared.core.commit(now, tx, submission, scratch);
            }
            let (outcome, ticket) = match decision {
                Decision::Committed { csn, ticket } => (Ok(csn), Some(ticket)),
                Decision::Refused { error, ticket } => (Err(error), Some(ticket)),
                Decision::Denied(error) => (Err(error), None),
                Decision::Ending { ticket } => {
                    undecided.push(index);
                    (Err(CommitError::NotInProgress { tx, ended: Status::Deciding }), Some(ticket))
                }
                Decision::Unknown => {
                    undecided.push(index);
                    (Err(CommitError::NotInProgress { tx, ended: Status::Forgotten }), None)
                }
            };
            latest = latest.max(ticket);
            outcomes.push(outcome);
        }
        shared.wait_for(latest)?;
        for index in undecided {
            if let Err(CommitError::NotInProgress { tx, ended }) = &mut outcomes[index] {
                *ended = shared.status(*tx);
            }
        }
        Ok(outcomes)
    }

    /// Checks what a commit of these changes would come to now, and keeps the set for a commit that names it by its digest
    /// ([`seriatim_core::Changes::Checked`]). Advice: it reserves nothing, and the commit is checked again.
    ///
    /// # Errors
    /// As a commit would; the transaction stays as it is. After a conflict the winner is visible.
    pub fn can_commit(&self, tx: WritePointer, changes: &ChangeSet) -> Result<(), EmbeddedError<CommitError>> {
        let shared = &self.house.shared;
        shared.note_large(tx, changes);
        let error = match shared.core.can_commit(shared.now(), tx, changes, &mut Scratch::default()) {
            Advice::Passes { .. } => return Ok(()),
            Advice::Fails(error @ CommitError::Conflict { .. }) => {
                let last = shared.leader()?.half.last_ticket();
                shared.wait_for(last)?;
                error
            }
            Advice::Fails(error) => error,
            Advice::Refused { error, ticket } => {
                shared.wait_for(Some(ticket))?;
                error
            }
            Advice::Ending { ticket } => {
                shared.wait_for(Some(ticket))?;
                CommitError::NotInProgress { tx, ended: shared.status(tx) }
            }
            Advice::Unknown => CommitError::NotInProgress { tx, ended: shared.status(tx) },
        };
        Err(EmbeddedError::Refused(error))
    }

    /// A further pointer for a transaction to write under, the one with this number, counted from 1. Waits until it is
    /// durable. To ask again for the same number gives the same pointer.
    ///
    /// # Errors
    /// If the transaction is not open, or has fewer than `number - 1` or too many, or the log failed or is full.
    pub fn checkpoint(&self, tx: WritePointer, number: u32) -> Result<WritePointer, EmbeddedError<CommitError>> {
        let shared = &self.house.shared;
        if shared.is_short.load(Ordering::Relaxed) {
            return Err(EmbeddedError::Refused(CommitError::Overloaded(Full::Disk)));
        }
        let ended = |ended| EmbeddedError::Refused(CommitError::NotInProgress { tx, ended });
        match shared.core.checkpoint(shared.now(), tx, number) {
            Checkpointing::Taken { pointer, ticket } => {
                shared.wait_for(Some(ticket))?;
                Ok(pointer)
            }
            Checkpointing::Repeated => {
                let last = shared.leader()?.half.last_ticket();
                shared.wait_for(last)?;
                shared.leader()?.half.given_before(tx, number).map_err(EmbeddedError::Refused)
            }
            Checkpointing::Refused { error, ticket } => {
                shared.wait_for(Some(ticket))?;
                Err(EmbeddedError::Refused(error))
            }
            Checkpointing::Denied(error) => Err(EmbeddedError::Refused(error)),
            Checkpointing::Ending { ticket } => {
                shared.wait_for(Some(ticket))?;
                Err(ended(shared.status(tx)))
            }
            Checkpointing::Unknown => Err(ended(shared.status(tx))),
        }
    }

    /// Asks for the memory that a commit of this change set will need.
    pub fn prefetch(&self, changes: &ChangeSet) {
        self.house.shared.core.prefetch(changes);
    }

    /// Ends a transaction whose writes were rolled back, and says how it ended. Waits until that is durable.
    ///
    /// # Errors
    /// If the log failed or is full.
    pub fn abort(&self, tx: WritePointer) -> Result<Status, EmbeddedError<Full>> {
        let shared = &self.house.shared;
        match shared.core.abort(tx) {
            End::Unknown => {
                let pushed = shared.leader()?.half.abort_invalid(tx);
                if let Some(ticket) = pushed {
                    shared.wait_for(Some(ticket.map_err(EmbeddedError::Refused)?))?;
                }
                Ok(shared.status(tx))
            }
            end => shared.ended(tx, end),
        }
    }

    /// Ends a transaction whose writes may stand: they stay excluded. False if it had ended before. Waits until that is
    /// durable.
    ///
    /// # Errors
    /// If the log failed or is full.
    pub fn invalidate(&self, tx: WritePointer) -> Result<bool, EmbeddedError<Full>> {
        let shared = &self.house.shared;
        match shared.core.invalidate(tx, InvalidCause::Asked) {
            End::Unknown => Ok(false),
            end => {
                let ends_here = matches!(end, End::Ended { .. });
                shared.ended(tx, end).map(|_| ends_here)
            }
        }
    }

    /// Ends the doubt about a transaction: an open one becomes invalid, durably; an ended one says how it ended.
    ///
    /// # Errors
    /// If the log failed or is full.
    pub fn settle(&self, tx: WritePointer) -> Result<Status, EmbeddedError<Full>> {
        let shared = &self.house.shared;
        if shared.core.look(tx) == Some(Status::Refused) {
            // Refused for good, and its client may still roll it back. The refusal may be younger than the group in
            // flight, so everything decided so far is waited for.
            let last = shared.leader()?.half.last_ticket();
            shared.wait_for(last)?;
            // If it is being ended by now, that is no answer yet.
            let status = shared.status(tx);
            return Ok(if status == Status::Deciding { Status::Refused } else { status });
        }
        match shared.core.invalidate(tx, InvalidCause::Settled) {
            End::Unknown => Ok(shared.status(tx)),
            end => shared.ended(tx, end),
        }
    }

    /// Ends a transaction that its owner has let go of, without waiting for the disk: as aborted if nothing of it was
    /// written anywhere, else as invalid. If there is no room for that now, its deadline ends it.
    pub fn abandon(&self, tx: WritePointer, may_have_written: bool) {
        let core = &self.house.shared.core;
        // Nobody hears how it ended; the keeper carries the end to the disk.
        let _ = match may_have_written {
            true => core.invalidate(tx, InvalidCause::Asked),
            false => core.abort(tx),
        };
    }

    /// Where a transaction stands.
    pub fn status(&self, tx: WritePointer) -> Status {
        self.house.shared.status(tx)
    }

    /// The newest snapshot. It holds every commit that was acknowledged before this call.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.house.shared.core.snapshot()
    }

    /// Takes `count` neighbouring numbers that are unique and grow, and never become transactions.
    ///
    /// # Errors
    /// See [`BeginError`].
    pub fn timestamps(&self, count: u32) -> Result<WritePointer, EmbeddedError<BeginError>> {
        let shared = &self.house.shared;
        if shared.is_short.load(Ordering::Relaxed) {
            return Err(EmbeddedError::Refused(BeginError::Overloaded(Full::Disk)));
        }
        shared.wake();
        shared.core.timestamps(count).map(|(first, _)| first).map_err(EmbeddedError::Refused)
    }
}

/// Why an embedded sequencer did not do what it was asked.
#[derive(Clone, Debug, thiserror::Error)]
pub enum EmbeddedError<E: std::error::Error + 'static> {
    /// It refused.
    #[error(transparent)]
    Refused(E),
    /// The log failed, now or earlier: every further call that needs it says so.
    #[error(transparent)]
    Failed(#[from] Failure),
}

impl Shared {
    fn now(&self) -> SequencerTime {
        let (at, time) = self.started;
        time.plus_ms(at.elapsed().as_millis() as u64)
    }

    fn note_large(&self, tx: WritePointer, changes: &ChangeSet) {
        let (limits, ids) = (self.core.limits(), changes.len());
        if LargeSets::is_large(limits, ids) {
            let mut large = self.large_sets.lock().unwrap_or_else(PoisonError::into_inner);
            large.note(limits, self.started.0.elapsed(), tx, ids);
        }
    }

    /// Takes the lead, waiting for whoever has it.
    fn leader(&self) -> Result<Leader<'_>, Failure> {
        let leader = Leader::new(self, self.lead.lock());
        leader.check()?;
        Ok(leader)
    }

    /// Takes the lead if nobody has it, whatever became of the log.
    fn try_leader(&self) -> Option<Leader<'_>> {
        match self.lead.try_lock() {
            Ok(lead) => Some(Leader::new(self, Ok(lead))),
            Err(TryLockError::Poisoned(panicked)) => Some(Leader::new(self, Err(panicked))),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Pointers are about to be taken, after a while in which none was: lifts them to the clock. Not if somebody carries
    /// the log just now, who does the same.
    fn wake(&self) {
        if self.is_idle.load(Ordering::Relaxed)
            && let Some(mut leader) = self.try_leader()
            && leader.check().is_ok()
        {
            let now = leader.now();
            leader.half.wake(now);
            self.is_idle.store(false, Ordering::Relaxed);
        }
    }

    /// Carries events one group further.
    fn lead(&self, block: bool) -> Result<(), Failure> {
        let mut leader = self.leader()?;
        self.lead_on(&mut leader, block)
    }

    fn lead_on(&self, lead: &mut Lead, block: bool) -> Result<(), Failure> {
        let Lead { half, times, clock, failure } = lead;
        let stepped = half.step(times, clock, block);
        // Release, paired with the acquire in `wait_for`: who sees its ticket released also finds the snapshot that holds
        // its commit, and the outcome.
        self.released_to.store(half.released_to(), Ordering::Release);
        // Relaxed: a hint that may come a step late; the room kept back covers that.
        self.is_short.store(half.has_no_room(), Ordering::Relaxed);
        if let Err(error) = &stepped {
            *failure = Some(error.clone());
        }
        stepped
    }

    /// Waits until a ticket is published, leading if nobody else does.
    fn wait_for(&self, ticket: Option<Ticket>) -> Result<(), Failure> {
        let Some(ticket) = ticket else { return Ok(()) };
        // Acquire, paired with the release in `lead_on`.
        while self.released_to.load(Ordering::Acquire) <= ticket.0 {
            let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            match self.try_leader() {
                Some(mut leader) => {
                    drop(waiting);
                    leader.check()?;
                    self.lead_on(&mut leader, true)?;
                    drop(leader);
                    // Without room on the disk nothing moves before the keeper finds some.
                    if self.is_short.load(Ordering::Relaxed) && self.released_to.load(Ordering::Acquire) <= ticket.0 {
                        self.hear(self.waiting.lock().unwrap_or_else(PoisonError::into_inner), KEEPER_EVERY);
                    }
                }
                // Whoever leads takes `waiting` to tell that it left, so its word cannot come before this wait begins.
                None => self.hear(waiting, NEWS_WITHIN),
            }
        }
        Ok(())
    }

    /// Waits until a leader leaves, or for so long.
    fn hear(&self, mut waiting: MutexGuard<'_, Waiting>, within: Duration) {
        waiting.threads += 1;
        let (mut waiting, _) = self.news.wait_timeout(waiting, within).unwrap_or_else(PoisonError::into_inner);
        waiting.threads -= 1;
    }

    /// Waits for an end, and says how the transaction stands then.
    fn ended(&self, tx: WritePointer, end: End) -> Result<Status, EmbeddedError<Full>> {
        match end {
            End::Ended { status, ticket } => {
                self.wait_for(Some(ticket))?;
                Ok(status)
            }
            End::Ending { ticket } => {
                self.wait_for(Some(ticket))?;
                Ok(self.status(tx))
            }
            End::Unknown => Ok(self.status(tx)),
            End::Denied(CommitError::Overloaded(full)) => Err(EmbeddedError::Refused(full)),
            End::Denied(error) => panic!("an end was denied for another reason than room: {error}"),
        }
    }

    /// Where a transaction stands; after a failure, where the decided state has it.
    fn status(&self, tx: WritePointer) -> Status {
        match self.core.look(tx) {
            Some(decided) if decided != Status::Refused => decided,
            // Whether a refusal is durable is known to the published state alone.
            decided => self.leader().map_or(decided.unwrap_or(Status::Forgotten), |lead| lead.half.status(tx)),
        }
    }

    /// The keeper's life: a look every few milliseconds, when nobody else leads.
    fn keep(&self) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        while !waiting.stopping {
            waiting = self.rest.wait_timeout(waiting, KEEPER_EVERY).unwrap_or_else(PoisonError::into_inner).0;
            drop(waiting);
            // An earlier failure was said when it happened.
            if let Some(mut leader) = self.try_leader()
                && leader.check().is_ok()
            {
                // Relaxed: a hint as well. Who misses it takes a pointer that is older than the clock by some milliseconds.
                self.is_idle.store(leader.half.is_idle(), Ordering::Relaxed);
                if let Err(failure) = self.lead_on(&mut leader, false) {
                    log::error!("{failure}");
                }
            }
            waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Wakes everybody who waits. Nobody begins to wait meanwhile.
    fn tell(&self) {
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.threads > 0 {
            self.news.notify_all();
        }
    }
}

impl Drop for House {
    fn drop(&mut self) {
        self.shared.waiting.lock().unwrap_or_else(PoisonError::into_inner).stopping = true;
        self.shared.rest.notify_all();
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
        if let Ok(mut lead) = self.shared.leader() {
            let Lead { half, times, clock, .. } = &mut *lead;
            if let Err(failure) = half.stop(times, clock) {
                log::error!("stop: {failure}");
            }
        }
    }
}
