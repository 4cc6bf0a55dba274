//! The decided state against a naive sequencer: random steps, every answer and every event foretold exactly. Publishing
//! lags behind by random amounts, everything is small so that everything is often full, and now and then the process
//! dies with all that was not published.
#![cfg(not(loom))]

mod house;

use std::collections::{BTreeMap, HashMap, VecDeque};

use house::{House, Random, apply, house};
use seriatim_core::event::{Begin, Event};
use seriatim_core::*;

const FIRST: u64 = 1_000;
const WINDOW: u64 = 300;
const IDS: u64 = 24;

#[derive(Clone, Debug)]
struct Tx {
    kind: Kind,
    snapshot: u64,
    deadline: SequencerTime,
    owner: u64,
    status: Status,
    /// Ticket of the refusal or the end, if that was in this run.
    ticket: Option<u64>,
}

/// What the sequencer should be, written so that it can be seen to be right.
struct Naive {
    limits: Limits,
    exact_index: bool,
    next: u64,
    window_end: u64,
    csn: u64,
    /// Open, refused, and ended but not published (status as it will be).
    table: BTreeMap<u64, Tx>,
    /// Events on their way to the publisher; `None` where a slot was taken for nothing.
    ring: VecDeque<Option<Event>>,
    next_ticket: u64,
    /// Change id to the last commit that wrote it, in this run.
    index: HashMap<u64, u64>,
    floor: u64,
    winners: BTreeMap<u64, u64>,
}

impl Naive {
    fn room(&self) -> Result<(), Full> {
        if self.ring.len() < self.limits.event_ring_slots as usize { Ok(()) } else { Err(Full::EventRing) }
    }

    fn push(&mut self, event: Option<Event>) -> u64 {
        self.ring.push_back(event);
        self.next_ticket += 1;
        self.next_ticket - 1
    }

    fn take(&mut self, count: u32) -> Result<u64, BeginError> {
        self.room().map_err(BeginError::Overloaded)?;
        if self.next + u64::from(count) > self.window_end {
            self.push(None);
            return Err(BeginError::Overloaded(Full::Window));
        }
        self.next += u64::from(count);
        Ok(self.next - u64::from(count))
    }

    fn begin(
        &mut self,
        now: SequencerTime,
        options: &BeginOptions,
        count: u32,
        owner: u64,
        snapshot: &Snapshot,
    ) -> Result<(u64, SequencerTime, u64), BeginError> {
        if count == 0 || count > self.limits.block_max {
            return Err(BeginError::BlockSize { asked: count.into(), max: self.limits.block_max.into() });
        }
        let deadline = match (options.kind, options.timeout_ms) {
            (Kind::Short, Some(0)) => return Err(BeginError::TimeoutNotPositive),
            (Kind::Short, Some(ms)) if ms > self.limits.short_timeout_ms_max => {
                return Err(BeginError::TimeoutTooLong { asked_ms: ms, max_ms: self.limits.short_timeout_ms_max });
            }
            (Kind::Short, None) => now.plus_ms(self.limits.short_timeout_ms),
            (Kind::Long, None) => now.plus_ms(self.limits.long_timeout_ms),
            (Kind::Long, Some(0)) => SequencerTime::NEVER,
            (_, Some(ms)) => now.plus_ms(ms),
        };
        if self.table.len() + count as usize > self.limits.open_max as usize {
            return Err(BeginError::Overloaded(Full::OpenTransactions));
        }
        let first = self.take(count)?;
        let (kind, status, ticket) = (options.kind, Status::Open, None);
        for tx in first..first + u64::from(count) {
            self.table.insert(tx, Tx { kind, snapshot: snapshot.csn.0, deadline, owner, status, ticket });
        }
        let ticket = self.push(Some(Event::Begin(Begin {
            first: WritePointer(first),
            count,
            kind,
            deferred: options.deferred,
            detached: options.detached,
            deadline,
            snapshot: snapshot.csn,
            settled: snapshot.settled(),
        })));
        Ok((first, deadline, ticket))
    }

    fn end(&mut self, tx: u64, status: Status, event: Event) -> Result<u64, Full> {
        self.room()?;
        let ticket = self.push(Some(event));
        let entry = self.table.get_mut(&tx).expect("it is in the table");
        (entry.status, entry.ticket) = (status, Some(ticket));
        Ok(ticket)
    }

    /// What a commit comes to. `said` is what the real one said, which counts only where the index may have forgotten.
    fn commit(&mut self, now: SequencerTime, at: u64, changes: &ChangeSet, said: &Decision) -> Decision {
        let tx = WritePointer(at);
        let (len, max) = (changes.len() as u64, self.limits.change_ids_max as u64);
        if len > max {
            return Decision::Denied(CommitError::ChangeSetTooLarge { len, max });
        }
        let Some(entry) = self.table.get(&at).cloned() else { return Decision::Unknown };
        match (entry.status, entry.ticket.map(Ticket)) {
            (Status::Open, _) => {}
            (Status::Refused, ticket) => {
                let error = CommitError::NotInProgress { tx, ended: Status::Refused };
                return match ticket {
                    Some(ticket) => Decision::Refused { error, ticket },
                    None => Decision::Denied(error),
                };
            }
            (_, ticket) => return Decision::Ending { ticket: ticket.expect("ended in this run") },
        }
        let refused = |ticket: Result<u64, Full>, error| match ticket {
            Ok(ticket) => Decision::Refused { error, ticket: Ticket(ticket) },
            Err(full) => Decision::Denied(CommitError::Overloaded(full)),
        };
        if now >= entry.deadline {
            let cause = InvalidCause::Expired;
            let ticket = self.end(at, Status::Invalid(cause), Event::Invalidated { tx, cause });
            return refused(ticket, CommitError::Expired { tx });
        }
        if entry.kind == Kind::Long && !changes.is_empty() {
            return Decision::Denied(CommitError::LongWithChanges { tx });
        }
        let mut error = changes.writes.iter().chain(&changes.reads).find_map(|id| match self.index.get(&id.0) {
            Some(csn) if *csn > entry.snapshot => {
                let winner = self.winners.get(csn).copied().map(WritePointer);
                Some(CommitError::Conflict { tx, change_id: id.0, csn: CommitNumber(*csn), winner, label: None })
            }
            None if entry.snapshot < self.floor => {
                Some(CommitError::TooOld { tx, snapshot: CommitNumber(entry.snapshot), mark: CommitNumber(self.floor) })
            }
            _ => None,
        });
        if let Decision::Refused { error: said @ CommitError::TooOld { mark, .. }, .. } = said
            && !self.exact_index
        {
            assert!(entry.snapshot < mark.0, "{said}");
            error = Some(said.clone());
        }
        if let Some(error) = error {
            let ticket = self.end(at, Status::Refused, Event::Refused { tx });
            return refused(ticket, error);
        }
        let stored: ChangeIds = changes.writes.iter().chain(&changes.marks).copied().collect();
        let csn = self.csn + 1;
        match self.end(at, Status::Committed(CommitNumber(csn)), Event::Commit { tx, stored: stored.clone() }) {
            Err(full) => Decision::Denied(CommitError::Overloaded(full)),
            Ok(ticket) => {
                self.csn = csn;
                self.index.extend(stored.iter().map(|id| (id.0, csn)));
                self.winners.insert(csn, at);
                self.winners.retain(|old, _| old + u64::from(self.limits.winners) > csn);
                Decision::Committed { csn: CommitNumber(csn), ticket: Ticket(ticket) }
            }
        }
    }

    fn abort_or_invalidate(&mut self, at: u64, cause: Option<InvalidCause>) -> End {
        let tx = WritePointer(at);
        let Some(entry) = self.table.get(&at).cloned() else { return End::Unknown };
        if !matches!(entry.status, Status::Open | Status::Refused) {
            return End::Ending { ticket: Ticket(entry.ticket.expect("ended in this run")) };
        }
        let cause = cause.or((entry.kind == Kind::Long).then_some(InvalidCause::LongAborted));
        let (status, event) = match cause {
            None => (Status::Aborted, Event::Aborted { tx }),
            Some(cause) => (Status::Invalid(cause), Event::Invalidated { tx, cause }),
        };
        match self.end(at, status, event) {
            Ok(ticket) => End::Ended { status, ticket: Ticket(ticket) },
            Err(full) => End::Denied(CommitError::Overloaded(full)),
        }
    }

    fn look(&self, at: u64) -> Option<Status> {
        self.table.get(&at).map(|entry| match entry.status {
            status @ (Status::Open | Status::Refused) => status,
            _ => Status::Deciding,
        })
    }

    /// Takes out as the publisher would; ends leave the table.
    fn drain(&mut self, max: usize) -> Vec<(Ticket, Event)> {
        let mut drained = Vec::new();
        while drained.len() < max && !self.ring.is_empty() {
            let ticket = Ticket(self.next_ticket - self.ring.len() as u64);
            drained.extend(self.ring.pop_front().flatten().map(|event| (ticket, event)));
        }
        for (_, event) in &drained {
            match event {
                Event::Commit { tx, .. } | Event::Aborted { tx } | Event::Invalidated { tx, .. } => {
                    self.table.remove(&tx.0);
                }
                Event::Window { end } => self.window_end = self.window_end.max(end.0),
                _ => {}
            }
        }
        drained
    }
}

/// How the steps of one run came out, to see that each of them came about.
type Counts = BTreeMap<&'static str, u64>;

struct Run {
    random: Random,
    now: SequencerTime,
    sequencer: std::sync::Arc<Sequencer>,
    house: House,
    naive: Naive,
    /// Every pointer that was handed out to a transaction, by how it ended in the published state.
    known: Vec<u64>,
    committed: BTreeMap<u64, u64>,
    boot: u64,
}

impl Run {
    fn new(seed: u64, exact_index: bool) -> Run {
        let limits = Limits {
            open_max: 12,
            conflict_index_bytes: if exact_index { 64 * IDS.next_power_of_two() as usize } else { 128 },
            event_ring_slots: 8,
            winners: 4,
            short_timeout_ms: 50,
            short_timeout_ms_max: 80,
            long_timeout_ms: 200,
            change_ids_max: 6,
            change_ids_warn: 6,
            pending_ids_max: 64,
            labels: LabelRetention::Committed,
            block_max: 5,
        };
        let (sequencer, house) = house(limits.clone(), FIRST, FIRST + WINDOW);
        let naive = Naive {
            limits,
            exact_index,
            next: FIRST,
            window_end: FIRST + WINDOW,
            csn: 0,
            table: BTreeMap::new(),
            ring: VecDeque::new(),
            next_ticket: 0,
            index: HashMap::new(),
            floor: 0,
            winners: BTreeMap::new(),
        };
        let (random, known, committed) = (Random::new(seed), vec![3], BTreeMap::new());
        Run { random, now: house::NOW, sequencer, house, naive, known, committed, boot: 1 }
    }

    fn some_tx(&mut self) -> u64 {
        let back = 1 + self.random.below(14.min(self.known.len() as u64));
        self.known[self.known.len() - back as usize]
    }

    fn change_set(&mut self) -> ChangeSet {
        let mut list = |chance| -> ChangeIds {
            let len = if self.random.one_in(chance) { 1 + self.random.below(3) } else { 0 };
            (0..len).map(|_| ChangeId(self.random.below(IDS))).collect()
        };
        ChangeSet { writes: list(1), reads: list(3), marks: list(4) }
    }

    fn step(&mut self) -> &'static str {
        match self.random.below(100) {
            0..=24 => self.begin(),
            25..=56 => self.commit(),
            57..=63 => self.end(None),
            64..=67 => self.end(Some(InvalidCause::Asked)),
            68..=85 => self.publish(),
            86..=88 => self.timestamps(),
            89 => self.tick(),
            90..=94 => self.window(),
            95..=97 => {
                self.now = self.now.plus_ms(self.random.below(30));
                "time passes"
            }
            98 => self.reset(),
            _ => self.crash(),
        }
    }

    fn begin(&mut self) -> &'static str {
        let timeouts = [None, None, Some(0), Some(1 + self.random.below(90))];
        let options = BeginOptions {
            kind: if self.random.one_in(6) { Kind::Long } else { Kind::Short },
            timeout_ms: timeouts[self.random.below(4) as usize],
            deferred: self.random.one_in(2),
            detached: self.random.one_in(2),
        };
        let (count, owner) = (self.random.below(7) as u32, self.random.below(5));
        let snapshot = self.sequencer.snapshot();
        let expected = self.naive.begin(self.now, &options, count, owner, &snapshot);
        let begun = self.sequencer.begin(self.now, &options, count, owner);
        let told = begun.as_ref().map(|begun| (begun.first.0, begun.deadline, begun.ticket.0)).map_err(|error| *error);
        assert_eq!(told, expected);
        let Ok(begun) = begun else { return "begin refused" };
        assert!(begun.first > begun.snapshot.read_pointer);
        assert_eq!(begun.snapshot.id, snapshot.id);
        self.known.extend(begun.first.0..begun.first.0 + u64::from(count));
        "begin"
    }

    fn commit(&mut self) -> &'static str {
        let (tx, mut changes) = (self.some_tx(), self.change_set());
        if self.naive.table.get(&tx).is_some_and(|tx| tx.kind == Kind::Long) && !self.random.one_in(3) {
            changes = ChangeSet::default();
        }
        self.sequencer.prefetch(&changes);
        let decision = self.sequencer.commit(self.now, WritePointer(tx), &changes, &mut Scratch::new());
        assert_eq!(decision, self.naive.commit(self.now, tx, &changes, &decision));
        match decision {
            Decision::Committed { .. } => "committed",
            Decision::Refused { error: CommitError::Conflict { winner: Some(_), .. }, .. } => "conflict, winner known",
            Decision::Refused { error: CommitError::Conflict { .. }, .. } => "conflict, winner unknown",
            Decision::Refused { error: CommitError::TooOld { .. }, .. } => "too old",
            Decision::Refused { error: CommitError::Expired { .. }, .. } => "expired",
            Decision::Refused { .. } => "refused before",
            Decision::Denied(CommitError::Overloaded(_)) => "commit overloaded",
            Decision::Denied(_) => "commit denied",
            Decision::Ending { .. } => "commit of an ended one",
            Decision::Unknown => "commit of an unknown one",
        }
    }

    fn end(&mut self, cause: Option<InvalidCause>) -> &'static str {
        let tx = self.some_tx();
        let end = match cause {
            None => self.sequencer.abort(WritePointer(tx)),
            Some(cause) => self.sequencer.invalidate(WritePointer(tx), cause),
        };
        assert_eq!(end, self.naive.abort_or_invalidate(tx, cause));
        match end {
            End::Ended { status: Status::Aborted, .. } => "aborted",
            End::Ended { .. } => "invalidated",
            End::Ending { .. } => "end of an ended one",
            End::Unknown => "end of an unknown one",
            End::Denied(_) => "end overloaded",
        }
    }

    fn publish(&mut self) -> &'static str {
        let max = self.random.below(12) as usize;
        let csn = self.house.published.csn().0;
        let events = self.house.publish_some(max);
        assert_eq!(events, self.naive.drain(max));
        let commits = events.iter().filter_map(|(_, event)| match event {
            Event::Commit { tx, .. } => Some(tx.0),
            _ => None,
        });
        self.committed.extend(commits.zip(csn + 1..));
        "publish"
    }

    fn timestamps(&mut self) -> &'static str {
        let count = 1 + self.random.below(5) as u32;
        let told = self.sequencer.timestamps(count).map(|(first, ticket)| (first.0, ticket.0));
        let expected = self.naive.take(count).map(|first| {
            let finished = Event::Finished { first: WritePointer(first), count: count.into() };
            (first, self.naive.push(Some(finished)))
        });
        assert_eq!(told, expected);
        if told.is_ok() { "timestamps" } else { "timestamps refused" }
    }

    fn tick(&mut self) -> &'static str {
        // One millisecond in pointers is more than a window, so ticks go to its end.
        let Some(tick) = self.house.publisher.tick(1) else { return "tick, nothing moved" };
        let (old_end, new_start) = (WritePointer(self.naive.next), WritePointer(self.naive.window_end));
        assert_eq!(tick, Event::Tick { old_end, new_start });
        self.naive.next = new_start.0;
        self.house.apply(tick);
        "tick"
    }

    fn window(&mut self) -> &'static str {
        let end = WritePointer(self.naive.next + WINDOW);
        let pushed = self.house.publisher.push(Event::Window { end });
        let expected = self.naive.room().map(|()| Ticket(self.naive.push(Some(Event::Window { end }))));
        assert_eq!(pushed, expected);
        if pushed.is_ok() { "window" } else { "window overloaded" }
    }

    fn reset(&mut self) -> &'static str {
        if self.naive.room().is_err() || !self.random.one_in(3) {
            return "no reset";
        }
        let floor = self.house.publisher.reset();
        assert_eq!(floor, WritePointer(self.naive.next));
        self.house.publisher.push(Event::Reset { floor }).expect("there is room");
        self.naive.push(Some(Event::Reset { floor }));
        self.naive.table.clear();
        "reset"
    }

    /// Everything that is not published is lost; a new process goes on from what is.
    fn crash(&mut self) -> &'static str {
        if !self.random.one_in(3) {
            return "no crash";
        }
        let published = &mut self.house.published;
        let first = published.first_free();
        self.boot += 1;
        apply(published, &Event::Start { boot: self.boot, first, time: self.now });
        let window_end = WritePointer(first.0 + WINDOW);
        apply(published, &Event::Window { end: window_end });
        let csn = published.csn();
        let open: Vec<OpenTransaction> = published.open().copied().collect();
        let snapshot = published.next_snapshot();
        let from = Resume { next: first, window_end, csn, index_floor: csn, snapshot, open: open.clone() };
        let (sequencer, publisher) = resume(self.naive.limits.clone(), from);
        (self.sequencer, self.house.publisher) = (sequencer, publisher);
        let entries = open.iter().map(|open| {
            let status = if open.refused { Status::Refused } else { Status::Open };
            let OpenTransaction { kind, deadline, .. } = *open;
            (open.tx.0, Tx { kind, snapshot: open.snapshot.0, deadline, owner: 0, status, ticket: None })
        });
        self.naive.table = entries.collect();
        (self.naive.next, self.naive.window_end) = (first.0, window_end.0);
        (self.naive.csn, self.naive.floor) = (csn.0, csn.0);
        (self.naive.next_ticket, self.naive.ring) = (0, VecDeque::new());
        self.naive.index.clear();
        self.naive.winners.clear();
        "crash"
    }

    /// Whatever can be looked at agrees.
    fn compare(&mut self) {
        let tx = self.some_tx();
        assert_eq!(self.sequencer.look(WritePointer(tx)), self.naive.look(tx));
        assert_eq!(self.sequencer.open_len(), self.naive.table.len() as u64);
        assert_eq!(self.sequencer.decided_csn().0, self.naive.csn);
        assert_eq!(self.house.publisher.next_pointer().0, self.naive.next);
        assert_eq!(self.house.publisher.next_ticket().0, self.naive.next_ticket);
        let mut seen = BTreeMap::new();
        self.sequencer.for_each_open(|view| {
            seen.insert(view.tx.0, (view.owner, view.kind, view.deadline, view.snapshot.0, view.status));
        });
        let expected = self.naive.table.iter().map(|(tx, entry)| {
            (*tx, (entry.owner, entry.kind, entry.deadline, entry.snapshot, self.naive.look(*tx).expect("it is there")))
        });
        assert_eq!(seen, expected.collect());
        let snapshot = self.sequencer.snapshot();
        assert_eq!(snapshot.csn, self.house.published.csn());
        for tx in self.known.iter().rev().take(40).filter(|tx| self.naive.table.contains_key(tx)) {
            let committed = self.committed.get(tx).is_some_and(|csn| *csn <= snapshot.csn.0);
            assert_eq!(snapshot.is_visible(WritePointer(*tx)), committed, "visibility of {tx}");
        }
        for (tx, csn) in self.committed.iter().rev().take(20) {
            assert!(snapshot.is_visible(WritePointer(*tx)), "commit {csn} of {tx} is not visible");
        }
    }
}

fn run(seed: u64, exact_index: bool, counts: &mut Counts) {
    let mut run = Run::new(seed, exact_index);
    for step in 0..1_500 {
        // A failed assertion says which run it was in.
        let said = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let said = run.step();
            run.compare();
            said
        }));
        match said {
            Ok(said) => *counts.entry(said).or_default() += 1,
            Err(panic) => {
                eprintln!("seed {seed}, step {step}, exact index {exact_index}");
                std::panic::resume_unwind(panic);
            }
        }
    }
}

#[test]
fn behaves_like_a_naive_sequencer() {
    let mut counts = Counts::new();
    for seed in 1..=200 {
        run(seed, true, &mut counts);
    }
    assert!(counts.len() >= 26, "some kind of answer never came about: {counts:#?}");
    assert!(counts.values().all(|count| *count >= 10), "some kind of answer hardly ever came about: {counts:#?}");
}

#[test]
fn a_tiny_index_refuses_more_but_never_commits_what_it_should_not() {
    let mut counts = Counts::new();
    for seed in 1_001..=1_100 {
        run(seed, false, &mut counts);
    }
    assert!(counts["too old"] > 100 && counts["committed"] > 100, "{counts:#?}");
}
