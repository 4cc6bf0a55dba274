//! The decided state against a naive sequencer: random steps, every answer and every event foretold exactly. Publishing
//! lags behind by random amounts, everything is small so that everything is often full, and now and then the process
//! dies with all that was not published.
#![cfg(not(loom))]

#[path = "../house/mod.rs"]
mod house;
mod ledger;
mod naive;

use std::collections::BTreeMap;

use house::{House, Random, apply, house};
use ledger::Ledger;
use naive::{Naive, Tx};
use seriatim_core::event::Event;
use seriatim_core::*;

const FIRST: u64 = 1_000;
const WINDOW: u64 = 300;
const IDS: u64 = 24;
const STORES: [&str; 3] = ["ash", "birch", "cedar"];
const LABELS: [Option<&str>; 4] = [None, Some("north"), Some("south"), Some("west")];

/// How the steps of one run came out, to see that each of them came about.
type Counts = BTreeMap<&'static str, u64>;

struct Run {
    random: Random,
    now: SequencerTime,
    sequencer: std::sync::Arc<Sequencer>,
    house: House,
    naive: Naive,
    ledger: Ledger,
    /// Every transaction that began.
    known: Vec<u64>,
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
            pending_ids_max: 120,
            labels: LabelRetention::Committed,
            block_max: 5,
        };
        let (sequencer, house) = house(limits.clone(), FIRST, FIRST + WINDOW);
        let naive = Naive::new(limits, exact_index, FIRST, FIRST + WINDOW);
        let ledger = Ledger::new(FIRST, FIRST + WINDOW);
        Run { random: Random::new(seed), now: house::NOW, sequencer, house, naive, ledger, known: vec![3], boot: 1 }
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
        match self.random.below(123) {
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
            98..=107 => self.can_commit(),
            108..=113 => self.checkpoint(),
            114..=115 => self.truncate(),
            116 => self.truncate_before(),
            117 => self.abort_invalid(),
            118 => self.reset(),
            119 => self.crash(),
            _ => self.store(),
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
        let (count, session) = (self.random.below(7) as u32, self.random.below(5));
        let label = LABELS[self.random.below(LABELS.len() as u64) as usize];
        let snapshot = self.sequencer.snapshot();
        let expected = self.naive.begin(self.now, &options, count, (session, label), &snapshot);
        let label = label.map_or(LabelId::NONE, |label| self.sequencer.label_id(label));
        let begun = self.sequencer.begin(self.now, &options, count, Owner { session, label });
        let told = begun.as_ref().map(|begun| (begun.first.0, begun.deadline, begun.ticket.0)).map_err(|error| *error);
        assert_eq!(told, expected);
        let Ok(begun) = begun else { return "begin refused" };
        assert!(begun.first > begun.snapshot.read_pointer);
        assert_eq!(begun.snapshot.id, snapshot.id);
        self.known.extend(begun.first.0..begun.first.0 + u64::from(count));
        "begin"
    }

    /// Changes for a transaction; a LONG one mostly brings none, as it should.
    fn change_set_for(&mut self, tx: u64) -> ChangeSet {
        let changes = self.change_set();
        let is_long = self.naive.table.get(&tx).is_some_and(|tx| tx.kind == Kind::Long);
        if is_long && !self.random.one_in(3) { ChangeSet::default() } else { changes }
    }

    fn can_commit(&mut self) -> &'static str {
        let tx = self.some_tx();
        let changes = self.change_set_for(tx);
        let advice = self.sequencer.can_commit(self.now, WritePointer(tx), &changes, &mut Scratch::new());
        assert_eq!(advice, self.naive.can_commit(self.now, tx, &changes, &advice));
        match advice {
            Advice::Passes { .. } => "check passes",
            Advice::Fails(CommitError::Conflict { .. }) => "check conflicts",
            Advice::Fails(_) => "check fails",
            Advice::Refused { .. } => "check of a refused one",
            Advice::Ending { .. } => "check of an ended one",
            Advice::Unknown => "check of an unknown one",
        }
    }

    fn commit(&mut self) -> &'static str {
        let tx = self.some_tx();
        let changes = self.change_set_for(tx);
        let entry = self.naive.table.get(&tx);
        let checkpoints = match entry.map_or(0, |entry| entry.checkpoints) {
            known if self.random.one_in(12) => known ^ 1,
            known => known,
        };
        let pending = entry.and_then(|entry| entry.pending.as_ref()).map(ChangeSet::digest);
        let by_digest = match pending {
            Some(digest) if !self.random.one_in(4) => Some(digest),
            _ if self.random.one_in(20) => Some(changes.digest()),
            _ => None,
        };
        let changes = by_digest.map_or(Changes::Given(&changes), Changes::Checked);
        let submission = Submission { changes, checkpoints };
        if let Changes::Given(changes) = changes {
            self.sequencer.prefetch(changes);
        }
        let decision = self.sequencer.commit(self.now, WritePointer(tx), submission, &mut Scratch::new());
        assert_eq!(decision, self.naive.commit(self.now, tx, submission, &decision));
        match decision {
            Decision::Committed { .. } if by_digest.is_some() => "committed in two steps",
            Decision::Committed { .. } if checkpoints > 0 => "committed with checkpoints",
            Decision::Committed { .. } => "committed",
            Decision::Refused { error: CommitError::Conflict { label: Some(_), .. }, .. } => "conflict, label known",
            Decision::Refused { error: CommitError::Conflict { winner: Some(_), .. }, .. } => "conflict, winner known",
            Decision::Refused { error: CommitError::Conflict { .. }, .. } => "conflict, winner unknown",
            Decision::Refused { error: CommitError::TooOld { .. }, .. } => "too old",
            Decision::Refused { error: CommitError::Expired { .. }, .. } => "expired",
            Decision::Refused { .. } => "refused before",
            Decision::Denied(CommitError::Overloaded(_)) => "commit overloaded",
            Decision::Denied(CommitError::NeedChanges { .. }) => "changes needed",
            Decision::Denied(CommitError::CheckpointMismatch { .. }) => "commit with a wrong number of checkpoints",
            Decision::Denied(_) => "commit denied",
            Decision::Ending { .. } => "commit of an ended one",
            Decision::Unknown => "commit of an unknown one",
        }
    }

    fn checkpoint(&mut self) -> &'static str {
        let tx = self.some_tx();
        let known = self.naive.table.get(&tx).map_or(0, |entry| entry.checkpoints);
        let number = if self.random.one_in(4) { self.random.below(4) as u32 } else { known + 1 };
        let taken = self.sequencer.checkpoint(self.now, WritePointer(tx), number);
        assert_eq!(taken, self.naive.checkpoint(self.now, tx, number));
        match taken {
            Checkpointing::Taken { .. } => "checkpoint",
            Checkpointing::Repeated => "checkpoint repeated",
            Checkpointing::Refused { .. } => "checkpoint of an expired one",
            Checkpointing::Denied(CommitError::CheckpointMismatch { .. }) => "checkpoint with a wrong number",
            Checkpointing::Denied(_) => "checkpoint denied",
            Checkpointing::Ending { .. } => "checkpoint of an ended one",
            Checkpointing::Unknown => "checkpoint of an unknown one",
        }
    }

    /// An event of the publisher's own.
    fn push(&mut self, event: Event) -> bool {
        let pushed = self.house.publisher.push(event.clone());
        let expected = self.naive.room().map(|()| Ticket(self.naive.push(Some(event))));
        assert_eq!(pushed, expected);
        pushed.is_ok()
    }

    fn some_invalid(&mut self) -> Option<u64> {
        let intervals = self.ledger.intervals.iter().map(|(first, _)| *first);
        let invalid: Vec<u64> = self.ledger.invalid.keys().copied().chain(intervals).collect();
        (!invalid.is_empty()).then(|| invalid[self.random.below(invalid.len() as u64) as usize])
    }

    fn truncate(&mut self) -> &'static str {
        // Now and then one that is open, or gone: nothing happens to those.
        let tx = match self.some_invalid() {
            Some(tx) if !self.random.one_in(5) => tx,
            _ => self.some_tx(),
        };
        if self.push(Event::Truncate { tx: WritePointer(tx) }) { "truncated" } else { "truncation overloaded" }
    }

    fn truncate_before(&mut self) -> &'static str {
        // As the server does, only where nobody who began below is open.
        let open = self.naive.table.keys().next().copied().unwrap_or(self.naive.next);
        let bound = WritePointer(open.saturating_sub(self.random.below(60)));
        if self.push(Event::TruncateBefore { bound }) { "truncated before" } else { "truncation overloaded" }
    }

    fn store(&mut self) -> &'static str {
        let name = StoreName::new(STORES[self.random.below(3) as usize]).unwrap();
        let at_ms = self.now.0;
        let (event, said) = match self.random.below(14) {
            0 => (Event::StoreRemoved { name }, "store removed"),
            1..=2 => (Event::StoreRegistered { name, at_ms }, "store registered"),
            // As the server does, only up to where everybody has ended.
            _ => {
                let settled = self.sequencer.snapshot().settled().0;
                let bound = WritePointer(settled.saturating_sub(self.random.below(40)));
                (Event::StoreCleaned { name, bound, at_ms }, "store cleaned")
            }
        };
        let invalid = self.ledger.invalid.len();
        match self.push(event) {
            true if invalid > 0 => said,
            true => "store, and nothing was invalid",
            false => "store overloaded",
        }
    }

    fn abort_invalid(&mut self) -> &'static str {
        let tx = self.some_invalid();
        let is_short = |tx: &u64| self.ledger.invalid.get(tx).is_some_and(|entry| entry.kind == Kind::Short);
        let Some(tx) = tx.filter(is_short) else { return "nothing to roll back" };
        if self.push(Event::Aborted { tx: WritePointer(tx) }) { "rolled back" } else { "rollback overloaded" }
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
        let events = self.house.publish_some(max);
        assert_eq!(events, self.naive.drain(max));
        events.iter().for_each(|(_, event)| self.ledger.apply(event));
        "publish"
    }

    fn timestamps(&mut self) -> &'static str {
        let count = 1 + self.random.below(5) as u32;
        let told = self.sequencer.timestamps(count).map(|(first, ticket)| (first.0, ticket.0));
        let expected = self.naive.take(count).map_err(BeginError::Overloaded).map(|first| {
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
        if self.push(Event::Window { end }) { "window" } else { "window overloaded" }
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
        self.ledger.restart(&self.naive.handed_out, first.0, window_end.0);
        self.naive.restart(first.0, window_end.0, csn.0, open.into_iter());
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
            let label = self.sequencer.label(view.label).map(|label| label.to_string());
            let OpenView { owner, kind, deadline, snapshot, status, checkpoints, .. } = *view;
            seen.insert(view.tx.0, (owner, label, kind, deadline, snapshot.0, status, checkpoints));
        });
        let expected = self.naive.table.iter().map(|(tx, entry)| {
            let Tx { session, label, kind, deadline, snapshot, checkpoints, .. } = *entry;
            let status = self.naive.look(*tx).expect("it is there");
            (*tx, (session, label.map(str::to_owned), kind, deadline, snapshot, status, checkpoints))
        });
        assert_eq!(seen, expected.collect());
        let pending = self.naive.table.values().filter(|tx| tx.pending.is_some()).count();
        assert_eq!(self.sequencer.pending_len(), pending);
        let snapshot = self.sequencer.snapshot();
        assert_eq!(snapshot.csn, self.house.published.csn());
        self.compare_published(&snapshot);
    }

    /// The published state holds what the ledger does, and the snapshot shows it.
    fn compare_published(&self, snapshot: &Snapshot) {
        let (ledger, published) = (&self.ledger, &self.house.published);
        assert_eq!(snapshot.csn.0, ledger.csn);
        let open: BTreeMap<u64, Vec<u64>> = published.open().map(|open| self.pointers(open.tx)).collect();
        assert_eq!(open, ledger.open.iter().map(|(tx, entry)| (*tx, entry.pointers.clone())).collect());
        assert_eq!(published.invalid().intervals, ledger.intervals);
        let stores = published.stores().iter().map(|(name, store)| (name.to_string(), store.bound.0));
        assert_eq!(stores.collect::<BTreeMap<_, _>>(), ledger.stores);
        let pointers: Vec<u64> = published.invalid().pointers.iter().map(|pointer| pointer.0).collect();
        assert_eq!(pointers, ledger.invalid_pointers().into_iter().collect::<Vec<_>>());
        let transactions = ledger.invalid.len() as u64;
        assert_eq!(published.invalid_len(), transactions + ledger.intervals.len() as u64);
        assert!(published.invalid_after(WritePointer(0)).map(|(tx, _)| tx.0).eq(ledger.invalid.keys().copied()));
        for (tx, entry) in &ledger.invalid {
            let kept = published.invalid_transaction(WritePointer(*tx)).expect("it is invalid");
            assert_eq!((kept.kind, Some(kept.cause)), (entry.kind, entry.cause), "{tx}");
            assert_eq!(self.pointers(WritePointer(*tx)).1, entry.pointers);
        }
        for pointer in ledger.open.values().flat_map(|entry| &entry.pointers).chain(&pointers) {
            assert!(!snapshot.is_visible(WritePointer(*pointer)), "{pointer} is visible");
        }
        for (pointer, csn) in ledger.committed.iter().rev().take(20) {
            assert!(snapshot.is_visible(WritePointer(*pointer)), "commit {csn} of {pointer} is not visible");
        }
    }

    /// A transaction and all of its pointers.
    fn pointers(&self, tx: WritePointer) -> (u64, Vec<u64>) {
        let further = self.house.published.checkpoints(tx).iter();
        (tx.0, [tx.0].into_iter().chain(further.map(|pointer| pointer.0)).collect())
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
    assert!(counts.len() >= 56, "some kind of answer never came about: {counts:#?}");
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
