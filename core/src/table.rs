//! The table of open transactions: who is open, and who is ending it.
//!
//! A fixed number of entries, found by pointer. A busy sequencer hands out neighbouring pointers, so a pointer's low
//! bits spread best: eight neighbours share a bucket, whose state words fill one cache line. A pointer that finds its
//! bucket full goes on to the next, and each bucket passed on the way counts it, so that a search knows where to stop.
//! The table has at least twice as many entries as transactions may be open; whatever the spread, there is room.
//!
//! ```text
//!  state word:   [ pointer, low 61 bits | state, 3 bits ]      0 = free
//!
//!   free ─▶ entering ─▶ OPEN ◀──────┐
//!                        │ ╲        │ nothing came of it
//!                        │  ▼       │
//!                     DECIDING ─────┴─▶ COMMITTING, ABORTING, INVALIDATING ─▶ free, once that end is published
//!                        ▲  ╲
//!                        │   ▼
//!                       REFUSED
//! ```
//!
//! `DECIDING` is the one state that somebody owns. It is entered by compare-and-swap from `OPEN` or `REFUSED`, before
//! claims and before a place in the event ring, and left by its owner alone; so a transaction has one end, and a commit
//! number once taken always gets its transaction. Owners never block, so others wait for them by looking again.
//!
//! | field      | written by                      | read by       | pair                                                  |
//! |------------|---------------------------------|---------------|-------------------------------------------------------|
//! | `words[i]` | CAS to enter and to decide; then its owner; the publisher frees | anyone | A: Release/Acquire, brings the fields |
//! | `fields`   | who enters; the owner (`ticket`) | owner; anyone | A; others read the word again after them (B: fences)  |
//! | `extras`   | who enters; the owner           | the owner; anyone | as `fields`                                       |
//! | `passed`   | who enters, who frees           | searches      | Relaxed: who knows a pointer sees that it was entered |
//! | `open`     | who begins, the publisher       | anyone        | Relaxed: a number of seats                            |

use crossbeam_utils::CachePadded;

use crate::labels::LabelId;
use crate::memory::ZeroedArray;
use crate::pointer::{CommitNumber, SequencerTime, WritePointer};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence, yield_now};
use crate::transaction::{Kind, Status};

mod held;

pub(crate) use held::{Ending, Held, Hold};

/// State words in one bucket: a cache line. Models have small ones, for every word looked at doubles the model.
const WIDTH: usize = if cfg!(loom) { 2 } else { 8 };
/// log2 of [`WIDTH`].
const WIDTH_BITS: u32 = WIDTH.trailing_zeros();

const FREE: u64 = 0;
const ENTERING: u64 = 1;
const OPEN: u64 = 2;
const DECIDING: u64 = 3;
const COMMITTING: u64 = 4;
const REFUSED: u64 = 5;
const ABORTING: u64 = 6;
const INVALIDATING: u64 = 7;
const STATE_BITS: u32 = 3;
const STATE_MASK: u64 = (1 << STATE_BITS) - 1;

/// `fields[BEGUN]`: the commit number of the snapshot, then three flags, then what the state word has no room for.
const BEGUN: usize = 0;
const DEADLINE: usize = 1;
const OWNER: usize = 2;
/// The ticket of the end, or of the refusal, plus one; 0 = none in this run.
const TICKET: usize = 3;

const CSN_BITS: u32 = 58;
const FLAG_LONG: u64 = 1 << CSN_BITS;
const FLAG_DEFERRED: u64 = 2 << CSN_BITS;
const FLAG_DETACHED: u64 = 4 << CSN_BITS;
const HIGH_SHIFT: u32 = CSN_BITS + 3;

/// Further write pointers that one transaction may take: 32 767.
pub const CHECKPOINTS_MAX: u32 = (1 << 15) - 1;

/// `extras`: the label's number, whether a checked change set is kept, the number of checkpoints.
const LABEL_MASK: u32 = u16::MAX as u32;
const FLAG_PENDING: u32 = 1 << 16;
const CHECKPOINTS_SHIFT: u32 = 17;

pub(crate) struct Table {
    open: CachePadded<AtomicU64>,
    open_max: u64,
    words: ZeroedArray<[AtomicU64; WIDTH]>,
    fields: ZeroedArray<[AtomicU64; 4]>,
    extras: ZeroedArray<AtomicU32>,
    /// How many entries were sought in this bucket or before it and stand behind it.
    passed: ZeroedArray<AtomicU32>,
}

/// What a transaction brings into the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entering {
    pub(crate) kind: Kind,
    pub(crate) deferred: bool,
    pub(crate) detached: bool,
    pub(crate) snapshot: CommitNumber,
    pub(crate) deadline: SequencerTime,
    pub(crate) owner: u64,
    pub(crate) label: LabelId,
    pub(crate) checkpoints: u32,
}

/// An open transaction as the decided state knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenView {
    /// The transaction.
    pub tx: WritePointer,
    /// Whom it was begun for: what [`crate::Sequencer::begin`] was given. 0 after a restart.
    pub owner: u64,
    /// Its label; [`crate::Sequencer::label`] knows the text.
    pub label: LabelId,
    /// Further write pointers that it took.
    pub checkpoints: u32,
    /// SHORT or LONG.
    pub kind: Kind,
    /// No write reaches a store before the commit is decided.
    pub deferred: bool,
    /// Stays open when its client disconnects.
    pub detached: bool,
    /// When it expires.
    pub deadline: SequencerTime,
    /// Commit number of its snapshot.
    pub snapshot: CommitNumber,
    /// `Open`, `Deciding` (an end is decided, or being decided, and not published) or `Refused`.
    pub status: Status,
}

impl Table {
    /// A table for `open_max` transactions, or for `survivors` if there are more of them.
    pub(crate) fn new(open_max: u32, survivors: usize) -> Table {
        let seats = u64::from(open_max).max(survivors as u64);
        let entries = (2 * seats).next_power_of_two().max(WIDTH as u64) as usize;
        Table {
            open: CachePadded::new(AtomicU64::new(0)),
            open_max: u64::from(open_max),
            words: ZeroedArray::new(entries / WIDTH),
            fields: ZeroedArray::new(entries),
            extras: ZeroedArray::new(entries),
            passed: ZeroedArray::new(entries / WIDTH),
        }
    }

    /// Number of seats taken: open transactions, those included whose end is not published.
    pub(crate) fn len(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    /// Where a transaction stands; `None` if it is not in the table.
    pub(crate) fn look(&self, tx: WritePointer) -> Option<Status> {
        self.find(tx).map(|(_, word)| status(word))
    }

    /// Everything about a transaction; `None` if it is not in the table.
    pub(crate) fn view(&self, tx: WritePointer) -> Option<OpenView> {
        loop {
            let (at, word) = self.find(tx)?;
            let view = self.read(at, word);
            if self.is_still(at, word) {
                return Some(view);
            }
        }
    }

    /// Visits every transaction that is in the table during the whole walk, and maybe some that come or go meanwhile.
    pub(crate) fn for_each(&self, mut visit: impl FnMut(&OpenView)) {
        if self.len() == 0 {
            return;
        }
        for at in 0..self.fields.len() {
            loop {
                // Acquire, pair A.
                let word = self.word(at).load(Ordering::Acquire);
                if matches!(word & STATE_MASK, FREE | ENTERING) {
                    break;
                }
                let view = self.read(at, word);
                if self.is_still(at, word) {
                    visit(&view);
                    break;
                }
            }
        }
    }

    /// Frees the entry of a transaction whose end is published. Only the publisher calls this. Does nothing if the
    /// transaction is not in the table.
    pub(crate) fn forget(&self, tx: WritePointer) {
        let Some((at, word)) = self.find(tx) else { return };
        assert!(
            matches!(word & STATE_MASK, COMMITTING | ABORTING | INVALIDATING),
            "transaction {tx} was forgotten in state {} without an end",
            word & STATE_MASK
        );
        // Release, pair A: whoever enters here next comes after us. Nobody moves a word that has ended, so a store will do.
        self.word(at).store(FREE, Ordering::Release);
        let (home, bucket) = (self.home(tx), at >> WIDTH_BITS);
        self.pass(home, bucket.wrapping_sub(home) & self.bucket_mask(), false);
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Empties the table. Nobody may enter or decide at the same time.
    pub(crate) fn clear(&self) {
        for word in self.words.iter().flatten().filter(|word| word.load(Ordering::Acquire) != FREE) {
            word.store(FREE, Ordering::Release);
        }
        for passed in self.passed.iter().filter(|passed| passed.load(Ordering::Relaxed) != 0) {
            passed.store(0, Ordering::Relaxed);
        }
        self.open.store(0, Ordering::Relaxed);
    }

    /// The entry of a transaction and its state word, if it has entered.
    fn find(&self, tx: WritePointer) -> Option<(usize, u64)> {
        let home = self.home(tx);
        for distance in 0..self.words.len() {
            let bucket = (home + distance) & self.bucket_mask();
            for step in 0..WIDTH {
                let at = bucket << WIDTH_BITS | (tx.0 as usize ^ step) & (WIDTH - 1);
                // Acquire, pair A: brings the fields.
                let word = self.word(at).load(Ordering::Acquire);
                if word & !STATE_MASK == tag(tx) && !matches!(word & STATE_MASK, FREE | ENTERING) {
                    // Pointers that differ only in what the word has no room for are 73 years apart, but anybody may
                    // ask for any number.
                    let same = self.fields[at][BEGUN].load(Ordering::Relaxed) >> HIGH_SHIFT == high(tx);
                    return same.then_some((at, word));
                }
            }
            if self.passed[bucket].load(Ordering::Relaxed) == 0 {
                return None;
            }
        }
        None
    }

    /// True if the fields that were read since the word was loaded belong to it.
    fn is_still(&self, at: usize, word: u64) -> bool {
        // Acquire, pair B: a field of a later entry was stored after that entry's word was taken, so it shows.
        fence(Ordering::Acquire);
        self.word(at).load(Ordering::Relaxed) == word
    }

    fn read(&self, at: usize, word: u64) -> OpenView {
        let fields = &self.fields[at];
        let begun = fields[BEGUN].load(Ordering::Relaxed);
        let extra = self.extras[at].load(Ordering::Relaxed);
        OpenView {
            tx: WritePointer(word >> STATE_BITS | (begun >> HIGH_SHIFT) << (64 - STATE_BITS)),
            owner: fields[OWNER].load(Ordering::Relaxed),
            label: LabelId((extra & LABEL_MASK) as u16),
            checkpoints: extra >> CHECKPOINTS_SHIFT,
            kind: kind(begun),
            deferred: begun & FLAG_DEFERRED != 0,
            detached: begun & FLAG_DETACHED != 0,
            deadline: SequencerTime(fields[DEADLINE].load(Ordering::Relaxed)),
            snapshot: snapshot(begun),
            status: status(word),
        }
    }

    fn enter(&self, tx: WritePointer, entering: &Entering, refused: bool) {
        let (at, entered) = self.take_entry(tx);
        // Release, pair B: who reads a field stored below and then the word again finds the word taken.
        fence(Ordering::Release);
        let flags = [
            (entering.kind == Kind::Long, FLAG_LONG),
            (entering.deferred, FLAG_DEFERRED),
            (entering.detached, FLAG_DETACHED),
        ];
        assert!(entering.snapshot.0 < 1 << CSN_BITS, "commit number {} is out of range", entering.snapshot);
        let flags: u64 = flags.iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum();
        let fields = &self.fields[at];
        fields[BEGUN].store(entering.snapshot.0 | flags | high(tx) << HIGH_SHIFT, Ordering::Relaxed);
        fields[DEADLINE].store(entering.deadline.0, Ordering::Relaxed);
        fields[OWNER].store(entering.owner, Ordering::Relaxed);
        fields[TICKET].store(0, Ordering::Relaxed);
        let extra = u32::from(entering.label.0) | entering.checkpoints << CHECKPOINTS_SHIFT;
        self.extras[at].store(extra, Ordering::Relaxed);
        // Release, pair A: who finds the transaction finds its fields.
        entered.store(tag(tx) | if refused { REFUSED } else { OPEN }, Ordering::Release);
    }

    /// Takes a free entry, the nearest to the pointer's own bucket. There is one, for the caller has a seat.
    fn take_entry(&self, tx: WritePointer) -> (usize, &AtomicU64) {
        let home = self.home(tx);
        loop {
            for distance in 0..self.words.len() {
                let bucket = (home + distance) & self.bucket_mask();
                for step in 0..WIDTH {
                    let at = bucket << WIDTH_BITS | (tx.0 as usize ^ step) & (WIDTH - 1);
                    let word = self.word(at);
                    if word.load(Ordering::Relaxed) == FREE
                        // Acquire, pair A: after the publisher freed it.
                        && word
                            .compare_exchange(FREE, tag(tx) | ENTERING, Ordering::Acquire, Ordering::Relaxed)
                            .is_ok()
                    {
                        self.pass(home, distance, true);
                        return (at, word);
                    }
                }
            }
            // Every bucket was full at the moment it was looked at, though half of the entries are free.
            yield_now();
        }
    }

    /// Counts an entry in, or out of, the buckets from `home` on that it had to pass.
    fn pass(&self, home: usize, distance: usize, enters: bool) {
        for step in 0..distance {
            let passed = &self.passed[(home + step) & self.bucket_mask()];
            if enters {
                passed.fetch_add(1, Ordering::Relaxed);
            } else {
                passed.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    fn home(&self, tx: WritePointer) -> usize {
        (tx.0 >> WIDTH_BITS) as usize & self.bucket_mask()
    }

    fn bucket_mask(&self) -> usize {
        self.words.len() - 1
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.words[at >> WIDTH_BITS][at & (WIDTH - 1)]
    }
}

fn tag(tx: WritePointer) -> u64 {
    tx.0 << STATE_BITS
}

fn high(tx: WritePointer) -> u64 {
    tx.0 >> (64 - STATE_BITS)
}

fn kind(begun: u64) -> Kind {
    if begun & FLAG_LONG != 0 { Kind::Long } else { Kind::Short }
}

fn snapshot(begun: u64) -> CommitNumber {
    CommitNumber(begun & ((1 << CSN_BITS) - 1))
}

fn status(word: u64) -> Status {
    match word & STATE_MASK {
        OPEN => Status::Open,
        REFUSED => Status::Refused,
        _ => Status::Deciding,
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::ring::Ticket;
    use crate::transaction::Full;
    use std::collections::BTreeMap;

    const ENTERING: Entering = Entering {
        kind: Kind::Short,
        deferred: false,
        detached: false,
        snapshot: CommitNumber(3),
        deadline: SequencerTime(9),
        owner: 0,
        label: LabelId::NONE,
        checkpoints: 0,
    };

    fn held(table: &Table, tx: u64) -> Held<'_> {
        match table.hold(WritePointer(tx)) {
            Hold::Held(held) => held,
            Hold::Ended(ticket) => panic!("{tx} was ended by {ticket:?}"),
            Hold::Absent => panic!("{tx} is absent"),
        }
    }

    #[test]
    fn holds_as_many_as_may_be_open_whatever_their_spread() {
        const OPEN_MAX: u32 = 1000;
        let spreads: [fn(u64) -> u64; 6] = [
            |n| 1 + n,
            |n| 1 + n * 1_000_000,
            |n| 5 + (n << 20),
            |n| 8 + (n << 40),
            |n| WritePointer::MAX.0 - n * 4096,
            |n| (n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 1,
        ];
        for (index, spread) in spreads.iter().enumerate() {
            let table = Table::new(OPEN_MAX, 0);
            // Twice, so that the second lot enters what the first has left.
            for lot in 0..2u64 {
                let pointers = (0..u64::from(OPEN_MAX)).map(|n| WritePointer(spread(n + lot * u64::from(OPEN_MAX))));
                let pointers: Vec<WritePointer> = pointers.collect();
                let mut seats = table.seats(OPEN_MAX).unwrap();
                pointers.iter().for_each(|tx| seats.enter(*tx, &Entering { owner: tx.0 ^ 1, ..ENTERING }));
                drop(seats);
                assert_eq!(table.seats(1).err(), Some(Full::OpenTransactions));
                let mut seen = Vec::new();
                table.for_each(|view| seen.push((view.tx, view.owner)));
                seen.sort();
                let mut expected: Vec<_> = pointers.iter().map(|tx| (*tx, tx.0 ^ 1)).collect();
                expected.sort();
                assert_eq!(seen, expected, "spread {index}");
                for tx in &pointers {
                    held(&table, tx.0).end(Ending::Aborting, Ticket(1));
                    table.forget(*tx);
                    assert_eq!(table.look(*tx), None);
                }
                assert_eq!(table.len(), 0);
                assert!(table.passed.iter().all(|passed| passed.load(Ordering::Relaxed) == 0), "spread {index}");
            }
        }
    }

    #[test]
    fn behaves_like_a_map() {
        for seed in 1..=30u64 {
            let mut dice = fastrand::Rng::with_seed(seed);
            let mut random = |below: u64| dice.u64(..below);
            let table = Table::new(24, 0);
            let mut model = BTreeMap::new();
            let range = [64, 4_096, 1 << 50][(seed % 3) as usize];
            for step in 0..3_000 {
                let context = format!("seed {seed} step {step}");
                let tx = WritePointer((1 + random(range)) * if seed % 2 == 0 { 1 } else { 512 });
                match random(5) {
                    0 | 1 if !model.contains_key(&tx) => match table.seats(1) {
                        Ok(mut seats) => {
                            seats.enter(tx, &ENTERING);
                            model.insert(tx, Status::Open);
                        }
                        Err(full) => assert_eq!((full, model.len()), (Full::OpenTransactions, 24), "{context}"),
                    },
                    2 => {
                        if let Some((tx, status)) = model.iter_mut().next() {
                            held(&table, tx.0).refuse(Ticket(step));
                            *status = Status::Refused;
                        }
                    }
                    3 => {
                        if let Some((tx, _)) = model.pop_last() {
                            held(&table, tx.0).end(Ending::Invalidating, Ticket(step));
                            assert!(
                                matches!(table.hold(tx), Hold::Ended(Ticket(ticket)) if ticket == step),
                                "{context}"
                            );
                            table.forget(tx);
                        }
                    }
                    _ => assert_eq!(table.look(tx), model.get(&tx).copied(), "{context}"),
                }
                assert_eq!(table.len(), model.len() as u64, "{context}");
                for (tx, status) in &model {
                    assert_eq!(table.look(*tx), Some(*status), "{context}");
                }
            }
        }
    }

    #[test]
    fn a_pointer_that_shares_its_low_bits_is_another_transaction() {
        let table = Table::new(4, 0);
        table.seats(1).unwrap().enter(WritePointer(77), &ENTERING);
        for high in 1..4 {
            assert_eq!(table.look(WritePointer(77 | high << 61)), None);
        }
        table.seats(1).unwrap().enter(WritePointer(99 | 1 << 61), &ENTERING);
        assert_eq!(table.view(WritePointer(99 | 1 << 61)).unwrap().tx, WritePointer(99 | 1 << 61));
        assert_eq!(table.look(WritePointer(0)), None);
        assert_eq!(table.look(WritePointer(u64::MAX)), None);
    }

    #[test]
    fn what_is_held_and_let_go_is_what_it_was() {
        let table = Table::new(4, 0);
        let mut seats = table.seats(2).unwrap();
        let entering = Entering { kind: Kind::Long, deferred: true, detached: true, owner: 5, ..ENTERING };
        seats.enter(WritePointer(10), &entering);
        drop(seats);
        assert_eq!(table.len(), 1, "a seat that was not used is given back");
        let before = table.view(WritePointer(10));
        let owner = held(&table, 10);
        assert_eq!(table.look(WritePointer(10)), Some(Status::Deciding));
        assert_eq!((owner.kind(), owner.snapshot(), owner.deadline()), (Kind::Long, CommitNumber(3), SequencerTime(9)));
        drop(owner);
        assert_eq!(table.view(WritePointer(10)), before);
        held(&table, 10).refuse(Ticket(0));
        assert_eq!(held(&table, 10).refusal(), Some(Ticket(0)));
        assert_eq!(table.look(WritePointer(10)), Some(Status::Refused));
    }
}
