//! The published state: what is durable, and so what anybody may see.
//!
//! One owner advances it, by events alone, once their group is durable; the same code replays the log after a crash
//! and will run on followers. It decides nothing and looks at no clock. Snapshots, inspection, outcomes and images come
//! from here; the decided state ([`crate::Sequencer`]) runs ahead of it.
//!
//! **In progress** is "handed out and not ended". Pointers are handed out without a hole inside a range, and the
//! publisher writes every jump between ranges down ([`Event::Tick`]) before it sees an event beyond it. So when a
//! pointer ends, everything below it that was handed out is known exactly: [`Published::account_to`] marks it in
//! progress, whether or not its own begin has been seen. That is why a begin has nothing to register.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::event::{Begin, Event, IdBytes};
use crate::invalid::{InvalidTransaction, Invalids, StillWriting, WRITES_WITHOUT_DEADLINE_MS};
use crate::open_set::OpenSet;
use crate::outcomes::Outcomes;
use crate::pointer::{CommitNumber, SequencerTime, WritePointer};
use crate::pointer_set::PointerSet;
use crate::snapshot::{InvalidSet, Snapshot, SnapshotId};
use crate::stores::Stores;
use crate::transaction::{InvalidCause, Kind, OpenTransaction, SURVIVOR_TIMEOUT_MS_MIN, Status};

/// The published state; see the head of this file.
#[derive(Clone, Debug)]
pub struct Published {
    pub(crate) boot: u64,
    pub(crate) number: u64,
    pub(crate) read_pointer: WritePointer,
    pub(crate) csn: CommitNumber,
    pub(crate) window_end: WritePointer,
    /// Pointers below are refused since a reset.
    pub(crate) floor: WritePointer,
    /// Sequencer time at the start of this run, and of the last group.
    pub(crate) time: SequencerTime,
    /// The process before stopped cleanly, here.
    pub(crate) stopped_at: Option<WritePointer>,
    /// Every pointer below that was handed out is in `in_progress` or has ended.
    pub(crate) known_to: u64,
    /// The first pointer that no event has named.
    pub(crate) named_to: u64,
    /// Jumps of the counter at or above `known_to`: where a range ended, where the next one starts.
    pub(crate) jumps: VecDeque<(u64, u64)>,
    pub(crate) in_progress: PointerSet,
    pub(crate) invalid: Invalids,
    pub(crate) open: OpenSet,
    /// The further pointers of open transactions, ascending.
    pub(crate) checkpoints: FxHashMap<u64, Vec<WritePointer>>,
    pub(crate) outcomes: Outcomes,
    pub(crate) stores: Stores,
}

/// What the owner of the decided state has to do for an event that was published.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Applied {
    /// Nothing.
    Nothing,
    /// This transaction was open and ended, durably: its entry in the decided table may go.
    Ended {
        /// The transaction.
        tx: WritePointer,
        /// Commit number of the snapshot it began on.
        snapshot: CommitNumber,
    },
    /// Pointers may be handed out up to here.
    Window(WritePointer),
    /// These transactions were open and were dropped by a reset.
    Reset(Vec<WritePointer>),
}

/// Why an event cannot follow the ones before it: the log was written by a faulty or a newer program.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ApplyError {
    /// An event ends a transaction that is not open.
    #[error("{event} of transaction {tx}, which is not open")]
    NotOpen {
        /// What the event is.
        event: &'static str,
        /// The transaction it names.
        tx: WritePointer,
    },
    /// A pointer was handed out twice.
    #[error("pointer {0} was handed out twice")]
    Repeated(WritePointer),
    /// A range of pointers starts before the one before it ended.
    #[error("pointers jump from {old_end} back to {new_start}")]
    Backwards {
        /// Where the range ended.
        old_end: WritePointer,
        /// Where the next one would start.
        new_start: WritePointer,
    },
}

impl Published {
    /// The state of an empty log, keeping at least `outcomes_max` outcomes.
    pub fn new(outcomes_max: usize) -> Published {
        Published {
            boot: 0,
            number: 0,
            read_pointer: WritePointer(0),
            csn: CommitNumber(0),
            window_end: WritePointer(0),
            floor: WritePointer(0),
            time: SequencerTime(0),
            stopped_at: None,
            known_to: 0,
            named_to: 0,
            jumps: VecDeque::new(),
            in_progress: PointerSet::new(),
            invalid: Invalids::default(),
            open: OpenSet::default(),
            checkpoints: FxHashMap::default(),
            outcomes: Outcomes::new(outcomes_max),
            stores: Stores::default(),
        }
    }

    /// Advances the state by one event that is durable.
    ///
    /// # Errors
    /// If the event cannot follow the ones before it. The state is then of no further use.
    pub fn apply(&mut self, event: &Event<IdBytes<'_>>) -> Result<Applied, ApplyError> {
        match event {
            Event::Begin(begin) => self.begin(begin),
            Event::Commit { tx, .. } => {
                let (open, checkpoints) = self.end_open("commit", *tx)?;
                self.csn.0 += 1;
                self.outcomes.committed(*tx, self.csn);
                self.read_pointer = self.read_pointer.max(checkpoints.last().map_or(*tx, |last| *last));
                Ok(ended(&open))
            }
            Event::Refused { tx } => {
                let open = self.open.get_mut(*tx).ok_or(ApplyError::NotOpen { event: "refusal", tx: *tx })?;
                open.refused = true;
                Ok(Applied::Nothing)
            }
            Event::Aborted { tx } => self.abort(*tx),
            Event::Invalidated { tx, cause } => {
                let (open, checkpoints) = self.end_open("invalidation", *tx)?;
                let writes_until = match open.deadline {
                    SequencerTime::NEVER => self.time.plus_ms(WRITES_WITHOUT_DEADLINE_MS),
                    deadline => deadline,
                };
                self.invalid.insert(
                    *tx,
                    InvalidTransaction { kind: open.kind, cause: *cause, writes_until },
                    checkpoints,
                );
                Ok(ended(&open))
            }
            Event::Checkpoint { tx, pointer } => self.checkpoint(*tx, *pointer),
            Event::Truncate { tx } => {
                if self.may_truncate(*tx) {
                    self.invalid.remove(*tx);
                }
                Ok(Applied::Nothing)
            }
            Event::TruncateBefore { bound } => {
                self.invalid.remove_before(*bound);
                Ok(Applied::Nothing)
            }
            Event::StoreRegistered { name, at_ms } => {
                self.stores.register(name, *at_ms);
                Ok(Applied::Nothing)
            }
            Event::StoreCleaned { name, bound, at_ms } => {
                self.stores.cleaned(name, *bound, *at_ms);
                self.prune();
                Ok(Applied::Nothing)
            }
            Event::StoreRemoved { name } => {
                self.stores.remove(name);
                self.prune();
                Ok(Applied::Nothing)
            }
            Event::Finished { first, count } => {
                self.finish(*first, *count);
                Ok(Applied::Nothing)
            }
            Event::Tick { old_end, new_start } => self.tick(*old_end, *new_start),
            Event::Window { end } => {
                self.window_end = self.window_end.max(*end);
                Ok(Applied::Window(self.window_end))
            }
            Event::Reset { floor } => Ok(self.reset(*floor)),
            Event::Start { boot, first, time } => self.start(*boot, *first, *time),
            Event::Stop { next } => {
                self.stopped_at = Some(*next);
                Ok(Applied::Nothing)
            }
        }
    }

    /// Notes the sequencer time that a group carries.
    pub fn set_time(&mut self, time: SequencerTime) {
        self.time = self.time.max(time);
    }

    /// Builds the next snapshot.
    pub fn next_snapshot(&mut self) -> Arc<Snapshot> {
        self.number += 1;
        Arc::new(Snapshot {
            id: SnapshotId { boot: self.boot, number: self.number },
            read_pointer: self.read_pointer,
            csn: self.csn,
            in_progress: self.in_progress.clone(),
            invalid: self.invalid.set().clone(),
        })
    }

    /// True if the next snapshot would show something else than this one of the same run.
    pub fn differs_from(&self, snapshot: &Snapshot) -> bool {
        (self.read_pointer, self.csn) != (snapshot.read_pointer, snapshot.csn)
            || self.in_progress.digest() != snapshot.in_progress.digest()
            || self.invalid.set().version != snapshot.invalid.version
    }

    /// True if the process before stopped cleanly and none has started since.
    pub fn stopped_cleanly(&self) -> bool {
        self.stopped_at.is_some()
    }

    /// How a transaction stands in what is durable. What the decided state says of an open one is newer.
    pub fn status(&self, tx: WritePointer) -> Status {
        if let Some(open) = self.open.get(tx) {
            return if open.refused { Status::Refused } else { Status::Open };
        }
        if let Some(invalid) = self.invalid.get(tx) {
            return Status::Invalid(invalid.cause);
        }
        if let Some(status) = self.outcomes.get(tx) {
            return status;
        }
        match self.invalid.set().contains(tx) {
            true => Status::Invalid(InvalidCause::Unaccounted),
            false => Status::Forgotten,
        }
    }

    /// How many invalid transactions and intervals begin below a pointer.
    pub fn invalid_before(&self, bound: WritePointer) -> u64 {
        self.invalid.count_before(bound)
    }

    /// What is kept of an invalid transaction.
    pub fn invalid_transaction(&self, tx: WritePointer) -> Option<InvalidTransaction> {
        self.invalid.get(tx)
    }

    /// True if one word about this transaction is enough to forget it: it is invalid, and it is known who it was.
    ///
    /// What a crash left unaccounted is not forgotten by name. An interval stands for transactions of many clients, and to
    /// the one whose pointer happens to be its first it looks like its own.
    pub fn may_truncate(&self, tx: WritePointer) -> bool {
        self.invalid.get(tx).is_some_and(|invalid| invalid.cause != InvalidCause::Unaccounted)
    }

    /// The invalid transactions after this one, ascending. Intervals are in [`Published::invalid`].
    pub fn invalid_after(&self, tx: WritePointer) -> impl Iterator<Item = (WritePointer, InvalidTransaction)> + '_ {
        self.invalid.after(tx)
    }

    /// The invalid pointers and intervals.
    pub fn invalid(&self) -> &InvalidSet {
        self.invalid.set()
    }

    /// Number of invalid transactions, with all their pointers counted once, and each interval too.
    pub fn invalid_len(&self) -> u64 {
        self.invalid.transactions() + self.invalid.set().intervals.len() as u64
    }

    /// The first invalid transaction or interval under which somebody may have written later than `time`. Times that are
    /// asked about do not go back.
    pub fn first_writing_after(&mut self, time: SequencerTime) -> Option<StillWriting> {
        self.invalid.first_writing_after(time)
    }

    /// The stores that say what they have cleaned.
    pub fn stores(&self) -> &Stores {
        &self.stores
    }

    /// The open transactions, in no order.
    pub fn open(&self) -> impl Iterator<Item = &OpenTransaction> {
        self.open.iter()
    }

    /// Number of open transactions.
    pub fn open_len(&self) -> usize {
        self.open.len()
    }

    /// An open transaction.
    pub fn open_transaction(&self, tx: WritePointer) -> Option<&OpenTransaction> {
        self.open.get(tx)
    }

    /// The further pointers of an open or invalid transaction, ascending.
    pub fn checkpoints(&self, tx: WritePointer) -> &[WritePointer] {
        self.checkpoints.get(&tx.0).or_else(|| self.invalid.further(tx)).map_or(&[], Vec::as_slice)
    }

    /// Calls `name` with every open transaction whose deadline has passed, at most 64 ms late.
    pub fn for_each_due(&mut self, now: SequencerTime, name: impl FnMut(&OpenTransaction)) {
        self.open.for_each_due(now, name);
    }

    /// Number of outcomes kept.
    pub fn outcomes_len(&self) -> usize {
        self.outcomes.len()
    }

    /// Greatest finished pointer.
    pub fn read_pointer(&self) -> WritePointer {
        self.read_pointer
    }

    /// Number of the last commit.
    pub fn csn(&self) -> CommitNumber {
        self.csn
    }

    /// The first pointer that may not be handed out.
    pub fn window_end(&self) -> WritePointer {
        self.window_end
    }

    /// The run of the sequencer.
    pub fn boot(&self) -> u64 {
        self.boot
    }

    /// Sequencer time of the last group.
    pub fn time(&self) -> SequencerTime {
        self.time
    }

    /// The smallest pointer that a next run may hand out: everything below may have been.
    pub fn first_free(&self) -> WritePointer {
        self.stopped_at.unwrap_or(self.window_end.max(WritePointer(self.named_to)))
    }

    fn begin(&mut self, begin: &Begin) -> Result<Applied, ApplyError> {
        let end = begin.first.0 + u64::from(begin.count);
        for pointer in begin.first.0..end {
            let tx = WritePointer(pointer);
            if tx < self.floor {
                // A reset came between: nobody may end this transaction any more.
                self.finish(tx, 1);
                continue;
            }
            let known = pointer < self.known_to;
            if self.open.get(tx).is_some() || (known && !self.in_progress.contains(tx)) {
                return Err(ApplyError::Repeated(tx));
            }
            self.open.insert(OpenTransaction {
                tx,
                kind: begin.kind,
                deferred: begin.deferred,
                detached: begin.detached,
                refused: false,
                checkpoints: 0,
                deadline: begin.deadline,
                snapshot: begin.snapshot,
                settled: begin.settled,
            });
        }
        self.named_to = self.named_to.max(end);
        Ok(Applied::Nothing)
    }

    fn abort(&mut self, tx: WritePointer) -> Result<Applied, ApplyError> {
        if self.open.get(tx).is_some() {
            let (open, _) = self.end_open("abort", tx)?;
            self.read_pointer = self.read_pointer.max(tx);
            self.outcomes.aborted(tx);
            return Ok(ended(&open));
        }
        if self.invalid.get(tx).is_some_and(|invalid| invalid.kind == Kind::Short) {
            self.invalid.remove(tx);
            self.outcomes.aborted(tx);
        }
        // Else two clients reported the same rollback; the first one's word stands.
        Ok(Applied::Nothing)
    }

    fn checkpoint(&mut self, tx: WritePointer, pointer: WritePointer) -> Result<Applied, ApplyError> {
        if pointer < self.floor {
            // A reset came between: its transaction is gone.
            self.finish(pointer, 1);
            return Ok(Applied::Nothing);
        }
        if pointer.0 < self.known_to && !self.in_progress.contains(pointer) {
            return Err(ApplyError::Repeated(pointer));
        }
        let open = self.open.get_mut(tx).ok_or(ApplyError::NotOpen { event: "checkpoint", tx })?;
        open.checkpoints += 1;
        self.checkpoints.entry(tx.0).or_default().push(pointer);
        self.named_to = self.named_to.max(pointer.0 + 1);
        Ok(Applied::Nothing)
    }

    /// What every store has cleaned stands in nobody's data, so nobody needs to be told to exclude it.
    fn prune(&mut self) {
        if let Some(bound) = self.stores.cleaned_to() {
            self.invalid.prune_to(bound);
        }
    }

    fn tick(&mut self, old_end: WritePointer, new_start: WritePointer) -> Result<Applied, ApplyError> {
        if new_start < old_end || old_end.0 < self.known_to {
            return Err(ApplyError::Backwards { old_end, new_start });
        }
        self.jumps.push_back((old_end.0, new_start.0));
        Ok(Applied::Nothing)
    }

    fn reset(&mut self, floor: WritePointer) -> Applied {
        let dropped: Vec<WritePointer> = self.open.iter().map(|open| open.tx).collect();
        self.open = OpenSet::default();
        self.account_to(floor.0);
        self.in_progress = PointerSet::new();
        self.invalid.clear();
        self.checkpoints.clear();
        self.outcomes.clear();
        self.read_pointer = WritePointer(floor.0.saturating_sub(1)).max(self.read_pointer);
        self.floor = floor;
        Applied::Reset(dropped)
    }

    /// A new process takes over. Whatever the one before may have handed out without leaving a word is excluded.
    fn start(&mut self, boot: u64, first: WritePointer, time: SequencerTime) -> Result<Applied, ApplyError> {
        if first < self.first_free() {
            return Err(ApplyError::Backwards { old_end: self.first_free(), new_start: first });
        }
        if self.stopped_at.take().is_none() {
            self.exclude_unaccounted(time.plus_ms(WRITES_WITHOUT_DEADLINE_MS));
        } else {
            self.account_to(self.named_to);
        }
        self.boot = boot;
        self.number = 0;
        self.jumps.clear();
        self.known_to = first.0;
        self.named_to = first.0;
        // A run that stopped has accounted for its window: what it left of it is not this run's, which asks for its own.
        self.window_end = first;
        self.set_time(time);
        self.open.postpone_to(time.plus_ms(SURVIVOR_TIMEOUT_MS_MIN));
        Ok(Applied::Nothing)
    }

    fn exclude_unaccounted(&mut self, writes_until: SequencerTime) {
        self.account_to(self.named_to);
        let further: FxHashSet<WritePointer> = self.checkpoints.values().flatten().copied().collect();
        let is_known = |pointer: &WritePointer| self.open.get(*pointer).is_some() || further.contains(pointer);
        let lost: Vec<WritePointer> = self.in_progress.iter().filter(|pointer| !is_known(pointer)).collect();
        let kept = InvalidTransaction { kind: Kind::Long, cause: InvalidCause::Unaccounted, writes_until };
        for tx in lost {
            self.in_progress.remove(tx);
            self.invalid.insert(tx, kept, Vec::new());
        }
        // Nothing in `[named_to, window_end)` was named, but all of it might have been handed out.
        let (first, end) = (self.named_to.max(self.known_to), self.window_end.0);
        if first < end && self.named_to > 0 {
            self.invalid.add_interval(first, end, writes_until);
        }
    }

    /// Ends a transaction that is open: it is neither open nor in progress any more, nor are its further pointers, which
    /// come with it.
    fn end_open(
        &mut self,
        event: &'static str,
        tx: WritePointer,
    ) -> Result<(OpenTransaction, Vec<WritePointer>), ApplyError> {
        let open = self.open.remove(tx).ok_or(ApplyError::NotOpen { event, tx })?;
        self.account_for(tx.0, tx.0 + 1);
        if open.checkpoints == 0 {
            return Ok((open, Vec::new()));
        }
        let checkpoints = self.checkpoints.remove(&tx.0).unwrap_or_default();
        for pointer in &checkpoints {
            self.account_for(pointer.0, pointer.0 + 1);
        }
        Ok((open, checkpoints))
    }

    /// A block that never became transactions: nothing was or will be written under it.
    fn finish(&mut self, first: WritePointer, count: u64) {
        let end = first.0 + count;
        self.account_for(first.0, end);
        self.named_to = self.named_to.max(end);
        self.read_pointer = self.read_pointer.max(WritePointer(end - 1));
    }

    /// Takes `[first, end)` out of what is in progress, and marks everything below that was handed out and is not known
    /// yet. Who ends in the order of pointers never enters the set.
    fn account_for(&mut self, first: u64, end: u64) {
        self.account_to(first);
        if self.known_to == first && self.jumps.front().is_none_or(|(old_end, _)| *old_end >= end) {
            self.known_to = end;
            return;
        }
        self.account_to(end);
        for pointer in first..end {
            self.in_progress.remove(WritePointer(pointer));
        }
    }

    /// Marks every pointer below `end` that was handed out and is not known yet as in progress.
    fn account_to(&mut self, end: u64) {
        while self.known_to < end {
            match self.jumps.front().copied() {
                Some((old_end, new_start)) if new_start <= end => {
                    self.in_progress.insert_range(self.known_to, old_end);
                    self.known_to = new_start;
                    self.jumps.pop_front();
                }
                // The end lies in this range: whatever the next jump, it starts above.
                Some((old_end, _)) => {
                    let stop = end.min(old_end.max(self.known_to));
                    self.in_progress.insert_range(self.known_to, stop);
                    self.known_to = stop;
                    return;
                }
                None => {
                    self.in_progress.insert_range(self.known_to, end);
                    self.known_to = end;
                }
            }
        }
    }
}

fn ended(open: &OpenTransaction) -> Applied {
    Applied::Ended { tx: open.tx, snapshot: open.snapshot }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::PointerContext;

    fn apply(state: &mut Published, event: Event) -> Result<Applied, ApplyError> {
        let mut bytes = Vec::new();
        event.encode(&mut PointerContext::default(), &mut bytes);
        let read = Event::decode(event.kind() as u8, &bytes, &mut PointerContext::default());
        state.apply(&read.expect("reads back"))
    }

    fn begin(first: u64, count: u32, kind: Kind) -> Event {
        Event::Begin(Begin {
            first: WritePointer(first),
            count,
            kind,
            deferred: false,
            detached: false,
            deadline: SequencerTime(30_000),
            snapshot: CommitNumber(0),
            settled: WritePointer(0),
        })
    }

    fn commit(tx: u64) -> Event {
        Event::Commit { tx: WritePointer(tx), stored: Default::default() }
    }

    fn invalidate(tx: u64) -> Event {
        Event::Invalidated { tx: WritePointer(tx), cause: InvalidCause::Asked }
    }

    fn started(first: u64) -> Published {
        let mut state = Published::new(1024);
        apply(&mut state, Event::Start { boot: 7, first: WritePointer(first), time: SequencerTime(0) }).unwrap();
        apply(&mut state, Event::Window { end: WritePointer(1_000_000) }).unwrap();
        state
    }

    fn excluded(state: &mut Published) -> Vec<u64> {
        let snapshot = state.next_snapshot();
        snapshot.in_progress.iter().map(|p| p.0).filter(|p| *p <= snapshot.read_pointer.0).collect()
    }

    #[test]
    fn a_pointer_whose_begin_was_not_seen_is_excluded_all_the_same() {
        let mut state = started(100);
        apply(&mut state, begin(103, 1, Kind::Short)).unwrap();
        apply(&mut state, commit(103)).unwrap();
        assert_eq!(excluded(&mut state), [100, 101, 102]);
        apply(&mut state, begin(100, 3, Kind::Short)).unwrap();
        apply(&mut state, commit(101)).unwrap();
        assert_eq!(excluded(&mut state), [100, 102]);
    }

    #[test]
    fn a_jump_of_the_counter_leaves_no_phantoms() {
        let mut state = started(100);
        apply(&mut state, begin(100, 2, Kind::Short)).unwrap();
        apply(&mut state, Event::Tick { old_end: WritePointer(102), new_start: WritePointer(5_000) }).unwrap();
        apply(&mut state, begin(5_000, 2, Kind::Short)).unwrap();
        apply(&mut state, Event::Tick { old_end: WritePointer(5_002), new_start: WritePointer(9_000) }).unwrap();
        apply(&mut state, commit(5_001)).unwrap();
        assert_eq!(excluded(&mut state), [100, 101, 5_000]);
        apply(&mut state, Event::Finished { first: WritePointer(9_000), count: 500 }).unwrap();
        assert_eq!(excluded(&mut state), [100, 101, 5_000]);
        assert_eq!(state.read_pointer(), WritePointer(9_499));
    }

    #[test]
    fn an_invalid_short_is_cleaned_by_an_abort_and_an_invalid_long_is_not() {
        let mut state = started(100);
        apply(&mut state, begin(100, 1, Kind::Short)).unwrap();
        apply(&mut state, begin(101, 1, Kind::Long)).unwrap();
        for tx in [100, 101] {
            apply(&mut state, invalidate(tx)).unwrap();
        }
        assert_eq!(state.read_pointer(), WritePointer(0), "invalidating moves no read pointer");
        assert_eq!(state.invalid().len(), 2);
        for tx in [100, 101] {
            apply(&mut state, Event::Aborted { tx: WritePointer(tx) }).unwrap();
        }
        assert_eq!(state.status(WritePointer(100)), Status::Aborted);
        assert_eq!(state.status(WritePointer(101)), Status::Invalid(InvalidCause::Asked));
        assert_eq!(excluded(&mut state), []);
    }

    #[test]
    fn a_crash_excludes_exactly_what_was_left_unaccounted() {
        let mut state = started(100);
        apply(&mut state, begin(100, 1, Kind::Short)).unwrap();
        apply(&mut state, begin(103, 2, Kind::Short)).unwrap();
        apply(&mut state, commit(103)).unwrap();
        apply(&mut state, Event::Start { boot: 8, first: WritePointer(1_000_000), time: SequencerTime(50) }).unwrap();
        let invalid: Vec<u64> = state.invalid().pointers.iter().map(|p| p.0).collect();
        assert_eq!(invalid, [101, 102], "handed out, and no begin of theirs was durable");
        assert_eq!(state.invalid().intervals, [(105, 1_000_000)]);
        assert_eq!(state.status(WritePointer(500)), Status::Invalid(InvalidCause::Unaccounted));
        assert_eq!(state.status(WritePointer(103)), Status::Committed(CommitNumber(1)));
        assert_eq!(excluded(&mut state), [100], "104 is above the read pointer");
        assert_eq!(state.open_len(), 2, "open transactions survive");
        assert!(state.open().all(|open| open.deadline.0 >= 50 + SURVIVOR_TIMEOUT_MS_MIN));
    }

    #[test]
    fn a_clean_stop_leaves_nothing_unaccounted() {
        let mut state = started(100);
        apply(&mut state, begin(100, 1, Kind::Short)).unwrap();
        apply(&mut state, Event::Stop { next: WritePointer(101) }).unwrap();
        apply(&mut state, Event::Start { boot: 8, first: WritePointer(200), time: SequencerTime(0) }).unwrap();
        assert!(state.invalid().is_empty());
        apply(&mut state, begin(200, 1, Kind::Short)).unwrap();
        apply(&mut state, commit(200)).unwrap();
        assert_eq!(excluded(&mut state), [100]);
        apply(&mut state, commit(100)).unwrap();
        assert_eq!(excluded(&mut state), []);
    }

    fn checkpoint(tx: u64, pointer: u64) -> Event {
        Event::Checkpoint { tx: WritePointer(tx), pointer: WritePointer(pointer) }
    }

    #[test]
    fn a_transaction_ends_with_all_of_its_pointers() {
        let mut state = started(100);
        apply(&mut state, begin(100, 4, Kind::Short)).unwrap();
        for (tx, pointer) in [(100, 104), (101, 105), (100, 106), (102, 107)] {
            apply(&mut state, checkpoint(tx, pointer)).unwrap();
        }
        apply(&mut state, commit(103)).unwrap();
        apply(&mut state, commit(100)).unwrap();
        assert_eq!(state.read_pointer(), WritePointer(106), "the last of its pointers");
        assert_eq!(excluded(&mut state), [101, 102, 105]);
        apply(&mut state, invalidate(101)).unwrap();
        let invalid: Vec<u64> = state.invalid().pointers.iter().map(|p| p.0).collect();
        assert_eq!(invalid, [101, 105]);
        apply(&mut state, Event::Aborted { tx: WritePointer(101) }).unwrap();
        assert!(state.invalid().is_empty(), "a clean rollback cleans all of them");
        apply(&mut state, Event::Aborted { tx: WritePointer(102) }).unwrap();
        assert_eq!(excluded(&mut state), []);
        assert!(state.checkpoints.is_empty());
        assert_eq!(
            apply(&mut state, checkpoint(100, 108)),
            Err(ApplyError::NotOpen { event: "checkpoint", tx: WritePointer(100) })
        );
    }

    #[test]
    fn further_pointers_survive_a_crash_with_their_transaction() {
        let mut state = started(100);
        apply(&mut state, begin(100, 1, Kind::Short)).unwrap();
        apply(&mut state, checkpoint(100, 103)).unwrap();
        apply(&mut state, Event::Start { boot: 8, first: WritePointer(1_000_000), time: SequencerTime(50) }).unwrap();
        let invalid: Vec<u64> = state.invalid().pointers.iter().map(|p| p.0).collect();
        assert_eq!(invalid, [101, 102], "103 is known");
        apply(&mut state, commit(100)).unwrap();
        let snapshot = state.next_snapshot();
        assert!(snapshot.is_visible(WritePointer(100)) && snapshot.is_visible(WritePointer(103)));
    }

    #[test]
    fn truncation_forgets_whole_transactions_and_cuts_intervals() {
        let mut state = started(100);
        apply(&mut state, begin(100, 6, Kind::Short)).unwrap();
        apply(&mut state, checkpoint(101, 106)).unwrap();
        for tx in 100..104 {
            apply(&mut state, invalidate(tx)).unwrap();
        }
        let truncate = |tx| Event::Truncate { tx: WritePointer(tx) };
        for (tx, left) in [(100, 4), (106, 4), (104, 4), (101, 2), (101, 2)] {
            apply(&mut state, truncate(tx)).unwrap();
            assert_eq!(state.invalid().len(), left, "after {tx}");
        }
        assert_eq!(state.status(WritePointer(100)), Status::Forgotten);
        apply(&mut state, Event::TruncateBefore { bound: WritePointer(103) }).unwrap();
        assert_eq!(state.invalid().pointers.iter().map(|p| p.0).collect::<Vec<_>>(), [103]);
        apply(&mut state, Event::Start { boot: 8, first: WritePointer(1_000_000), time: SequencerTime(0) }).unwrap();
        assert_eq!(state.invalid().intervals, [(107, 1_000_000)]);
        apply(&mut state, Event::TruncateBefore { bound: WritePointer(500_000) }).unwrap();
        assert_eq!(state.invalid().intervals, [(500_000, 1_000_000)]);
        apply(&mut state, truncate(500_000)).unwrap();
        assert_eq!(state.invalid().intervals, [(500_000, 1_000_000)], "one client does not speak for all of them");
        apply(&mut state, Event::TruncateBefore { bound: WritePointer(1_000_000) }).unwrap();
        assert!(state.invalid().is_empty());
        assert_eq!(state.open_len(), 2, "who is open is not touched");
    }

    #[test]
    fn what_a_crash_left_unaccounted_is_not_forgotten_by_name() {
        let mut state = started(100);
        apply(&mut state, begin(102, 1, Kind::Short)).unwrap();
        apply(&mut state, commit(102)).unwrap();
        apply(&mut state, Event::Start { boot: 8, first: WritePointer(1_000_000), time: SequencerTime(0) }).unwrap();
        // 100 and 101 were handed out, 103 may have been: a client holds it, and has rolled its own writes back.
        for tx in [100, 101, 103, 104] {
            assert!(!state.may_truncate(WritePointer(tx)));
            apply(&mut state, Event::Truncate { tx: WritePointer(tx) }).unwrap();
            assert_eq!(state.status(WritePointer(tx)), Status::Invalid(InvalidCause::Unaccounted));
        }
        assert_eq!(state.invalid_len(), 3);
    }

    #[test]
    fn a_reset_drops_everything_open_and_invalid_and_refuses_what_came_before() {
        let mut state = started(100);
        apply(&mut state, begin(100, 3, Kind::Short)).unwrap();
        apply(&mut state, invalidate(100)).unwrap();
        let applied = apply(&mut state, Event::Reset { floor: WritePointer(110) }).unwrap();
        let Applied::Reset(mut dropped) = applied else { panic!("{applied:?}") };
        dropped.sort();
        assert_eq!(dropped, [101, 102].map(WritePointer));
        // A begin that was on its way: taken before the reset, seen after.
        apply(&mut state, begin(105, 1, Kind::Short)).unwrap();
        assert_eq!((state.open_len(), state.invalid().len()), (0, 0));
        assert_eq!(excluded(&mut state), []);
        assert_eq!(state.read_pointer(), WritePointer(109));
        assert_eq!(apply(&mut state, commit(101)), Err(ApplyError::NotOpen { event: "commit", tx: WritePointer(101) }));
    }

    #[test]
    fn what_cannot_follow_is_refused() {
        let mut state = started(100);
        apply(&mut state, begin(100, 1, Kind::Short)).unwrap();
        assert_eq!(apply(&mut state, begin(100, 1, Kind::Short)), Err(ApplyError::Repeated(WritePointer(100))));
        apply(&mut state, commit(100)).unwrap();
        assert_eq!(apply(&mut state, begin(100, 1, Kind::Short)), Err(ApplyError::Repeated(WritePointer(100))));
        let back = Event::Start { boot: 9, first: WritePointer(150), time: SequencerTime(0) };
        assert!(matches!(apply(&mut state, back), Err(ApplyError::Backwards { .. })));
    }
}
