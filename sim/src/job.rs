//! What a worker sets out to do: which keys, which kind of transaction, and how it is to end.

use std::sync::Arc;

use seriatim_core::{BeginOptions, ChangeId, ChangeSet, Kind, Snapshot, WritePointer};
use seriatim_wire::{ListKind, StoreRequest};

use crate::client::Call;
use crate::knobs::{JobKind, Knobs, pick};
use crate::recorder::Told;
use crate::reference::{Reference, Write};
use crate::store::{ACCOUNTS, BULK, COUNTERS, KEYS, Key, LATE, PAIRS, REGISTERS, SKEWS, SPARE, STORES};
use crate::store::{change_id, range_id};

/// Ids of a change set that names very much.
const WIDE_IDS: u64 = 450;

/// See the head of this file.
#[derive(Clone)]
pub(crate) struct Job {
    pub kind: JobKind,
    pub options: BeginOptions,
    pub is_serializable: bool,
    pub in_two_steps: bool,
    /// It names one checkpoint too many at first, which has to be noticed.
    pub miscounts: bool,
    /// Its change set names very much.
    is_wide: bool,
    /// If it is serializable and about registers, it reads all of them as one range.
    reads_range: bool,
    pub ending: Ending,
    pub wanted_checkpoints: u32,
    /// Looked at or settled, for those who look.
    looks_at: Option<(WritePointer, bool)>,
    stamps: u64,
    /// Transactions that begin at once.
    begins: u32,
    fence_ms: u64,
    inspects: Inspection,
    /// It says who it is in this transaction.
    pub label: Option<&'static str>,
    /// The keys that it cleans, the store that it speaks for if any, and what it does for the one that holds nothing.
    pub cleans: std::ops::Range<Key>,
    pub speaks_for: Option<&'static str>,
    spare: Spare,
    /// How far it cleans.
    pub clean: WritePointer,
    pub stage: Stage,
    pub tx: Option<WritePointer>,
    /// Its checkpoints.
    pub further: Vec<WritePointer>,
    pub snapshot: Option<Arc<Snapshot>>,
    /// A snapshot without a transaction is good up to this time.
    pub reads_to_us: u64,
    /// After this time it writes nothing any more: the server may take what it began for ended.
    pub writes_to_us: u64,
    /// What is recorded of a reader without a transaction.
    pub told: Told,
    pub reads: Vec<Key>,
    pub values: Vec<i64>,
    pub writes: Vec<(Key, i64)>,
    pub written: Vec<Write>,
    pub changes: ChangeSet,
    /// A commit left and its answer was lost.
    pub doubt: bool,
    /// Everything else is over, and this looks at what is left.
    pub is_final: bool,
}

/// How a transaction is to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    Commit,
    Abort,
    Invalidate,
    /// Not at all: its worker forgets about it.
    Vanish,
}

/// What an operator looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Inspection {
    Counters,
    Open,
    Invalid,
}

/// What an operator does with the store that holds nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Spare {
    Register,
    Acknowledge,
    Remove,
}

/// Where a worker goes on when it wakes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    /// Reads the key at this place, or is through with reading.
    Read(usize),
    /// Writes the key at this place, or is through with writing.
    Write(usize),
    /// Cleans the store from this key on, or is through with cleaning.
    Clean(Key),
    /// Makes a call once more.
    Again(Call),
}

impl Job {
    pub fn draw(rng: &mut fastrand::Rng, knobs: &Knobs, reference: &Reference) -> Job {
        let kind = pick(rng, &knobs.jobs);
        let mut job = Job::new(kind);
        match kind {
            JobKind::Transfer => {
                let from = rng.usize(ACCOUNTS);
                let to = ACCOUNTS.start + (from + rng.usize(1..ACCOUNTS.len())) % ACCOUNTS.len();
                job.reads = vec![from, to];
            }
            JobKind::Count => job.reads = vec![rng.usize(COUNTERS)],
            JobKind::Register => job.reads = (0..rng.usize(..3)).map(|_| rng.usize(REGISTERS)).collect(),
            JobKind::Pair => job.reads = some_pair(rng, PAIRS),
            JobKind::Skew => job.reads = some_pair(rng, SKEWS),
            JobKind::Late => job.reads = vec![rng.usize(LATE)],
            JobKind::Bulk | JobKind::Dump | JobKind::Reset => {}
            JobKind::Clean => {
                let (name, keys) = STORES[rng.usize(..STORES.len())].clone();
                (job.speaks_for, job.cleans) = (Some(name), keys);
            }
            JobKind::Forget => job.cleans = 0..KEYS,
            JobKind::Spare => {
                job.speaks_for = Some(SPARE);
                job.spare = [Spare::Register, Spare::Acknowledge, Spare::Acknowledge, Spare::Remove][rng.usize(..4)];
            }
            JobKind::Read => job.reads = ACCOUNTS.collect(),
            JobKind::Fence => job.fence_ms = rng.u64(1..2_000),
            JobKind::Inspect => {
                job.inspects = [Inspection::Counters, Inspection::Open, Inspection::Invalid][rng.usize(..3)];
            }
            JobKind::Stamps => job.stamps = rng.u64(1..20),
            JobKind::Look => {
                // To settle what another client runs is allowed, and ends it.
                job.looks_at = Some((some_transaction(rng, reference), rng.u8(..5) == 0));
            }
        }
        job.options = BeginOptions {
            kind: if kind == JobKind::Bulk { Kind::Long } else { Kind::Short },
            timeout_ms: (rng.u8(..3) > 0).then(|| rng.u64(knobs.timeout_ms.0..=knobs.timeout_ms.1)),
            deferred: kind == JobKind::Late,
            detached: rng.u8(..8) == 0,
        };
        job.is_serializable = kind == JobKind::Pair || (kind != JobKind::Skew && rng.u8(..4) == 0);
        job.label = rng.bool().then(|| kind.label());
        job.miscounts = rng.u8(..32) == 0;
        job.reads_range = rng.u8(..3) == 0;
        job.is_wide = rng.u8(..knobs.wide_one_in) == 0;
        job.in_two_steps = kind != JobKind::Bulk && rng.u8(..6) == 0;
        job.wanted_checkpoints = if rng.u8(..6) == 0 { rng.u32(1..3) } else { 0 };
        job.begins = if rng.u8(..12) == 0 { rng.u32(2..4) } else { 1 };
        job.ending = match rng.u8(..32) {
            0..2 => Ending::Abort,
            2 => Ending::Invalidate,
            3 => Ending::Vanish,
            _ => Ending::Commit,
        };
        job
    }

    /// Looks at all that is left.
    pub fn last_look() -> Job {
        Job { reads: ACCOUNTS.collect(), is_final: true, ..Job::new(JobKind::Read) }
    }

    fn new(kind: JobKind) -> Job {
        Job {
            kind,
            options: BeginOptions::default(),
            is_serializable: false,
            in_two_steps: false,
            miscounts: false,
            is_wide: false,
            reads_range: false,
            ending: Ending::Commit,
            wanted_checkpoints: 0,
            looks_at: None,
            stamps: 1,
            begins: 1,
            fence_ms: 0,
            inspects: Inspection::Counters,
            label: None,
            cleans: 0..0,
            speaks_for: None,
            spare: Spare::Register,
            clean: WritePointer(0),
            stage: Stage::Read(0),
            tx: None,
            further: Vec::new(),
            snapshot: None,
            reads_to_us: 0,
            writes_to_us: 0,
            told: Told::default(),
            reads: Vec::new(),
            values: Vec::new(),
            writes: Vec::new(),
            written: Vec::new(),
            changes: ChangeSet::default(),
            doubt: false,
            is_final: false,
        }
    }

    /// It cleans stores, and runs no transaction.
    pub fn is_upkeep(&self) -> bool {
        matches!(self.kind, JobKind::Clean | JobKind::Forget | JobKind::Spare)
    }

    pub fn first_call(&self) -> Call {
        match (self.kind, self.looks_at) {
            (JobKind::Read, _) => Call::Snapshot,
            (JobKind::Stamps, _) => Call::Stamps(self.stamps),
            (_, Some((tx, true))) => Call::Settle(tx),
            (_, Some((tx, false))) => Call::Status(tx),
            (JobKind::Fence, _) => Call::Fence(self.fence_ms),
            (JobKind::Inspect, _) => match self.inspects {
                Inspection::Counters => Call::State,
                Inspection::Open => Call::List(ListKind::Open),
                Inspection::Invalid => Call::List(ListKind::Invalid),
            },
            (JobKind::Spare, _) if self.spare == Spare::Register => Call::Store(StoreRequest::Register { name: SPARE }),
            (JobKind::Spare, _) if self.spare == Spare::Remove => Call::Store(StoreRequest::Remove { name: SPARE }),
            (JobKind::Clean | JobKind::Forget | JobKind::Spare, _) => {
                Call::Store(StoreRequest::Register { name: STORES[0].0 })
            }
            (JobKind::Dump, _) => Call::Image,
            (JobKind::Reset, _) => Call::Reset,
            _ => Call::Begin(self.begins),
        }
    }

    /// What it writes, now that it has read.
    pub fn plan_writes(&mut self, rng: &mut fastrand::Rng) {
        let values = &self.values;
        self.writes = match self.kind {
            JobKind::Transfer => {
                let amount = rng.i64(1..20);
                vec![(self.reads[0], values[0] - amount), (self.reads[1], values[1] + amount)]
            }
            JobKind::Count | JobKind::Late => vec![(self.reads[0], values[0] + 1)],
            JobKind::Register => some_of(rng, REGISTERS),
            JobKind::Bulk => some_of(rng, BULK),
            JobKind::Pair | JobKind::Skew => {
                let mine = rng.usize(..2);
                let value = if values[mine] > 0 && values[1 - mine] > 0 { 0 } else { 1 };
                vec![(self.reads[mine], value)]
            }
            JobKind::Read
            | JobKind::Stamps
            | JobKind::Look
            | JobKind::Fence
            | JobKind::Inspect
            | JobKind::Clean
            | JobKind::Forget
            | JobKind::Spare
            | JobKind::Dump
            | JobKind::Reset => Vec::new(),
        };
    }

    /// What it asks to commit.
    pub fn gather_changes(&mut self) {
        if self.options.kind == Kind::Long {
            return;
        }
        self.changes.writes = self.written.iter().map(|write| change_id(write.key)).collect();
        if self.is_serializable {
            self.changes.reads = self.reads.iter().map(|key| change_id(*key)).collect();
        }
        if self.kind == JobKind::Register {
            self.changes.marks.push(range_id());
            if self.is_serializable && self.reads_range {
                self.changes.reads.push(range_id());
            }
        } else if self.is_wide {
            // Ids that nobody else has, to fill groups, segments and buckets.
            let first = self.tx.map_or(0, |tx| tx.0 << 9);
            self.changes.marks.extend((0..WIDE_IDS).map(|place| ChangeId::of(&(first + place).to_le_bytes())));
        }
    }
}

/// One of the pairs among these keys.
fn some_pair(rng: &mut fastrand::Rng, keys: std::ops::Range<Key>) -> Vec<Key> {
    let first = keys.start + 2 * rng.usize(..keys.len() / 2);
    vec![first, first + 1]
}

/// One of the last, or one of them all, or one that never was.
fn some_transaction(rng: &mut fastrand::Rng, reference: &Reference) -> WritePointer {
    let (recent, all) = (&reference.recent, &reference.transactions);
    if rng.bool() {
        return recent.get(rng.usize(..recent.len().max(1))).copied().unwrap_or(WritePointer(1));
    }
    let (first, last) = (all.keys().next().map_or(1, |tx| tx.0), all.keys().next_back().map_or(1, |tx| tx.0));
    let from = WritePointer(rng.u64(first..=last));
    all.range(from..).next().map_or(from, |(tx, _)| *tx)
}

/// One to three keys, each once, with values of no meaning.
fn some_of(rng: &mut fastrand::Rng, keys: std::ops::Range<Key>) -> Vec<(Key, i64)> {
    let first = rng.usize(keys.clone());
    let count = rng.usize(1..=3.min(keys.len()));
    (0..count).map(|place| (keys.start + (first - keys.start + place) % keys.len(), rng.i64(1..1 << 40))).collect()
}
