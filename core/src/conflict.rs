//! The conflict index: which change id was written last by which commit, in a fixed amount of memory.
//!
//! A bucket is one cache line of four ids. A commit claims the buckets of all its ids in the order of their addresses,
//! checks every id, takes its commit number, stores what it wrote, and releases. Nothing is written before every check
//! has passed, so a refusal has nothing to restore; and a claim covers the whole bucket, so two commits that bring the
//! same new id into a full bucket see each other.
//!
//! ```text
//!  word   0: [ mark: commit number, 63 bits | claimed, 1 bit ]
//!         1: base: commit number
//!       2-3: four distances of 32 bits; the commit number of id i is base + distance i; 0 = no id
//!       4-7: four change ids, whole
//! ```
//!
//! **Forgetting.** An id that finds its bucket full takes the place of the one with the smallest commit number, and the
//! bucket's mark rises to that number: whatever the bucket does not hold was last written at or before the mark. So an
//! absent id is free of conflict for a transaction whose snapshot is at or after the mark, and cannot be judged for an
//! older one, which is refused as too old. A refusal may be false; a commit never is.
//!
//! **Honest name**: fine-grained blocking by short spins. A claim is held for some loads and stores; nothing under it
//! blocks, allocates or panics. Who finds a bucket claimed looks about a hundred times, then releases what it holds,
//! yields and starts again; the order of addresses excludes a circle.
//!
//! | field          | written by           | read by    | pair                                             |
//! |----------------|----------------------|------------|--------------------------------------------------|
//! | word 0         | whoever claims       | the same   | Acquire to claim, Release to let go              |
//! | words 1-7      | the claim's holder   | the same   | Relaxed: covered by the claim                    |
//! | `floor`        | nobody after `new`   | holders    | none needed                                      |

use crate::change_set::{ChangeId, ChangeSet};
use crate::memory::{ZeroedArray, prefetch};
use crate::pointer::CommitNumber;
use crate::sync::{AtomicU64, Ordering, SPINS, spin_loop, yield_now};

const SLOTS: usize = 4;
const WORDS: usize = 8;
const BASE: usize = 1;
const DISTANCES: usize = 2;
const IDS: usize = 4;

type Bucket = [AtomicU64; WORDS];

pub(crate) struct ConflictIndex {
    buckets: ZeroedArray<Bucket>,
    /// What was written at or before this commit is not in the index.
    floor: CommitNumber,
}

/// Working memory of a commit, to be kept and used again by the thread that decides.
#[derive(Debug, Default)]
pub struct Scratch {
    /// Buckets of the change set, in the order of their addresses, each once.
    buckets: Vec<u32>,
}

impl Scratch {
    /// Empty working memory; it grows to the largest change set it meets.
    pub fn new() -> Scratch {
        Scratch::default()
    }
}

/// Why a change set cannot be committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// This id was written by a commit after the snapshot.
    Conflict { id: ChangeId, csn: CommitNumber },
    /// The snapshot is older than what is remembered.
    TooOld { mark: CommitNumber },
}

/// The claimed buckets of one change set; dropping it releases them.
pub(crate) struct Claims<'i> {
    index: &'i ConflictIndex,
    buckets: &'i [u32],
}

impl ConflictIndex {
    /// An index of at most this many bytes that knows nothing about commits up to `floor`.
    pub(crate) fn new(bytes: usize, floor: CommitNumber) -> ConflictIndex {
        let buckets = (bytes / size_of::<[u64; WORDS]>()).max(1);
        let buckets = 1 << buckets.ilog2();
        assert!(buckets <= 1 << 32, "buckets are numbered with 32 bits");
        ConflictIndex { buckets: ZeroedArray::new(buckets), floor }
    }

    /// Raises the floor: what was written at or before it may be missing.
    pub(crate) fn raise_floor(&mut self, floor: CommitNumber) {
        self.floor = self.floor.max(floor);
    }

    /// Asks for the lines that a commit of this change set will need.
    pub(crate) fn prefetch(&self, changes: &ChangeSet) {
        for id in ids(changes) {
            prefetch(&self.buckets[self.place(id) as usize]);
        }
    }

    /// Claims the buckets of all ids of a change set, waiting where others hold one.
    pub(crate) fn claim<'i>(&'i self, changes: &ChangeSet, scratch: &'i mut Scratch) -> Claims<'i> {
        let buckets = &mut scratch.buckets;
        buckets.clear();
        buckets.extend(ids(changes).map(|id| self.place(id)));
        buckets.sort_unstable();
        buckets.dedup();
        while let Err(held) = self.try_claim(buckets) {
            // Whoever holds the next one may be waiting for a processor. Let go of everything, so that nobody waits for
            // us in turn.
            self.release(&buckets[..held]);
            yield_now();
        }
        Claims { index: self, buckets }
    }

    /// Stores what an earlier run's commit wrote. Commits come in order, and nobody decides yet.
    pub(crate) fn remember(&mut self, csn: CommitNumber, ids: impl Iterator<Item = ChangeId>) {
        for id in ids {
            Cells(&self.buckets[self.place(id) as usize]).store(id, csn);
        }
    }

    /// The number of the id's bucket. Ids are hashes, so any bits of theirs will do.
    #[inline]
    fn place(&self, id: ChangeId) -> u32 {
        id.0 as u32 & (self.buckets.len() - 1) as u32
    }

    #[inline]
    fn cells(&self, id: ChangeId) -> Cells<'_> {
        Cells(&self.buckets[self.place(id) as usize])
    }

    /// Claims buckets in order; or says how many were claimed before one that stays claimed by others.
    fn try_claim(&self, buckets: &[u32]) -> Result<(), usize> {
        for (held, bucket) in buckets.iter().enumerate() {
            let head = &self.buckets[*bucket as usize][0];
            let mut looks = 0;
            loop {
                let mark = head.load(Ordering::Relaxed);
                // Acquire: sees what the holder before stored.
                if mark & 1 == 0
                    && head.compare_exchange_weak(mark, mark | 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
                {
                    break;
                }
                if looks == SPINS {
                    return Err(held);
                }
                looks += 1;
                spin_loop();
            }
        }
        Ok(())
    }

    fn release(&self, buckets: &[u32]) {
        for bucket in buckets {
            let head = &self.buckets[*bucket as usize][0];
            // Release: the next holder sees what this one stored. Nobody moves the word of a claimed bucket but its
            // holder, so load and store will do.
            head.store(head.load(Ordering::Relaxed) & !1, Ordering::Release);
        }
    }
}

impl Claims<'_> {
    /// Whether a transaction with this snapshot may commit the change set that was claimed.
    pub(crate) fn check(&self, snapshot: CommitNumber, changes: &ChangeSet) -> Result<(), Verdict> {
        for id in changes.writes.iter().chain(&changes.reads) {
            let cells = self.index.cells(*id);
            match cells.find(*id) {
                Some(csn) if csn > snapshot => return Err(Verdict::Conflict { id: *id, csn }),
                Some(_) => {}
                None => {
                    let mark = cells.mark().max(self.index.floor);
                    if snapshot < mark {
                        return Err(Verdict::TooOld { mark });
                    }
                }
            }
        }
        Ok(())
    }

    /// Stores what the commit wrote. Its number was taken under these claims, so it is greater than any in the buckets.
    pub(crate) fn store(&self, csn: CommitNumber, changes: &ChangeSet) {
        for id in changes.writes.iter().chain(&changes.marks) {
            self.index.cells(*id).store(*id, csn);
        }
    }
}

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        self.index.release(self.buckets);
    }
}

fn ids(changes: &ChangeSet) -> impl Iterator<Item = ChangeId> + '_ {
    changes.writes.iter().chain(&changes.reads).chain(&changes.marks).copied()
}

/// A bucket in the hands of its holder.
struct Cells<'b>(&'b Bucket);

impl Cells<'_> {
    fn word(&self, index: usize) -> u64 {
        // Relaxed, here and below: covered by the claim.
        self.0[index].load(Ordering::Relaxed)
    }

    fn set_word(&self, index: usize, value: u64) {
        self.0[index].store(value, Ordering::Relaxed);
    }

    /// Whatever the bucket does not hold was last written at or before this commit.
    fn mark(&self) -> CommitNumber {
        CommitNumber(self.word(0) >> 1)
    }

    fn raise_mark(&self, csn: CommitNumber) {
        let word = self.word(0);
        self.set_word(0, word.max(csn.0 << 1 | word & 1));
    }

    fn distances(&self) -> [u32; SLOTS] {
        let (low, high) = (self.word(DISTANCES), self.word(DISTANCES + 1));
        [low as u32, (low >> 32) as u32, high as u32, (high >> 32) as u32]
    }

    fn set_distances(&self, distances: [u32; SLOTS]) {
        let [a, b, c, d] = distances.map(u64::from);
        self.set_word(DISTANCES, b << 32 | a);
        self.set_word(DISTANCES + 1, d << 32 | c);
    }

    /// The commit that wrote this id last, if the bucket holds it.
    fn find(&self, id: ChangeId) -> Option<CommitNumber> {
        let slot = (0..SLOTS).find(|slot| self.word(IDS + slot) == id.0 && self.distances()[*slot] != 0)?;
        Some(CommitNumber(self.word(BASE) + u64::from(self.distances()[slot])))
    }

    /// Stores an id under a commit number that is not smaller than any in the bucket.
    fn store(&self, id: ChangeId, csn: CommitNumber) {
        let (mut base, mut distances) = self.near(csn);
        let distance = (csn.0 - base) as u32;
        let is_id = |slot: &usize| self.word(IDS + slot) == id.0 && distances[*slot] != 0;
        let slot = match (0..SLOTS).find(is_id).or_else(|| distances.iter().position(|distance| *distance == 0)) {
            Some(slot) => slot,
            None => {
                let oldest = (0..SLOTS).min_by_key(|slot| distances[*slot]).expect("a bucket has slots");
                self.raise_mark(CommitNumber(base + u64::from(distances[oldest])));
                if distances[oldest] == distance {
                    // The bucket is full of this very commit: the mark at its own number stands for the rest.
                    return;
                }
                oldest
            }
        };
        if distances == [0; SLOTS] {
            base = csn.0 - 1;
        }
        distances[slot] = (csn.0 - base) as u32;
        self.set_word(BASE, base);
        self.set_word(IDS + slot, id.0);
        self.set_distances(distances);
    }

    /// Base and distances such that `csn` has a distance of 32 bits. What is too old for that is forgotten.
    fn near(&self, csn: CommitNumber) -> (u64, [u32; SLOTS]) {
        let (mut base, mut distances) = (self.word(BASE), self.distances());
        while csn.0 - base > u64::from(u32::MAX) {
            let Some(oldest) = distances.iter().copied().filter(|distance| *distance != 0).min() else {
                return (csn.0 - 1, distances);
            };
            let oldest_csn = base + u64::from(oldest);
            if csn.0 - (oldest_csn - 1) > u64::from(u32::MAX) {
                self.raise_mark(CommitNumber(oldest_csn));
                distances.iter_mut().filter(|distance| **distance == oldest).for_each(|distance| *distance = 0);
            } else {
                distances.iter_mut().filter(|distance| **distance != 0).for_each(|distance| *distance -= oldest - 1);
                base = oldest_csn - 1;
            }
        }
        (base, distances)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::collections::HashMap;

    fn writes(ids: &[u64]) -> ChangeSet {
        ChangeSet { writes: ids.iter().map(|id| ChangeId(*id)).collect(), ..ChangeSet::default() }
    }

    fn check(index: &ConflictIndex, snapshot: u64, ids: &[u64]) -> Result<(), Verdict> {
        let changes = writes(ids);
        index.claim(&changes, &mut Scratch::new()).check(CommitNumber(snapshot), &changes)
    }

    fn store(index: &ConflictIndex, csn: u64, ids: &[u64]) {
        let changes = writes(ids);
        index.claim(&changes, &mut Scratch::new()).store(CommitNumber(csn), &changes);
    }

    fn conflict(id: u64, csn: u64) -> Result<(), Verdict> {
        Err(Verdict::Conflict { id: ChangeId(id), csn: CommitNumber(csn) })
    }

    fn too_old(mark: u64) -> Result<(), Verdict> {
        Err(Verdict::TooOld { mark: CommitNumber(mark) })
    }

    #[test]
    fn a_full_bucket_forgets_its_oldest_and_says_so_to_older_snapshots() {
        let index = ConflictIndex::new(64, CommitNumber(0));
        (1..=4).for_each(|n| store(&index, n, &[100 + n]));
        assert_eq!(check(&index, 0, &[200]), Ok(()), "nothing was forgotten yet");
        store(&index, 5, &[105]);
        assert_eq!(check(&index, 0, &[101]), too_old(1));
        assert_eq!(check(&index, 1, &[101]), Ok(()), "whatever was forgotten is in this snapshot");
        assert_eq!(check(&index, 0, &[102]), conflict(102, 2), "what is there is judged exactly");
        store(&index, 6, &[103]);
        assert_eq!(check(&index, 5, &[103]), conflict(103, 6), "an id that is there keeps its place");
        store(&index, 7, &[107]);
        assert_eq!(check(&index, 1, &[102]), too_old(2));
    }

    #[test]
    fn ids_of_one_commit_that_do_not_fit_raise_the_mark_to_its_own_number() {
        let index = ConflictIndex::new(64, CommitNumber(0));
        store(&index, 9, &[1, 2, 3, 4, 5, 6]);
        assert_eq!(check(&index, 8, &[1]), conflict(1, 9));
        assert_eq!(check(&index, 8, &[6]), too_old(9));
        assert_eq!(check(&index, 9, &[6]), Ok(()));
    }

    #[test]
    fn below_the_floor_only_what_is_remembered_is_judged() {
        let mut index = ConflictIndex::new(1 << 12, CommitNumber(50));
        index.remember(CommitNumber(51), [ChangeId(7)].into_iter());
        assert_eq!(check(&index, 49, &[8]), too_old(50));
        assert_eq!(check(&index, 50, &[8]), Ok(()));
        assert_eq!(check(&index, 50, &[7]), conflict(7, 51));
    }

    #[test]
    fn a_distance_beyond_32_bits_moves_the_base_and_forgets_what_is_left_behind() {
        const FAR: u64 = u32::MAX as u64;
        let index = ConflictIndex::new(64, CommitNumber(0));
        store(&index, 10, &[1]);
        store(&index, 1_000, &[2]);
        store(&index, 9 + FAR, &[3]);
        assert_eq!(check(&index, 9, &[1]), conflict(1, 10), "exactly 32 bits away");
        assert_eq!(check(&index, 999, &[2]), conflict(2, 1_000));
        store(&index, 10 + FAR, &[4]);
        assert_eq!(check(&index, 9, &[1]), too_old(10));
        assert_eq!(check(&index, 999, &[2]), conflict(2, 1_000), "the base moved, the number did not");
        assert_eq!(check(&index, 8 + FAR, &[3]), conflict(3, 9 + FAR));
        store(&index, 10 * FAR, &[5]);
        assert_eq!(check(&index, 9 + FAR, &[4]), too_old(10 + FAR));
        assert_eq!(check(&index, 10 * FAR - 1, &[5]), conflict(5, 10 * FAR));
        assert_eq!(check(&index, 10 + FAR, &[4]), Ok(()));
    }

    #[test]
    fn a_refusal_is_never_missing_and_false_only_below_the_mark() {
        for seed in 1..=20u64 {
            let mut dice = fastrand::Rng::with_seed(seed);
            let mut random = |below: u64| dice.u64(..below);
            let index = ConflictIndex::new(64 << (seed % 4), CommitNumber(0));
            let ids_max = 4 + 6 * (seed % 5);
            let mut last: HashMap<u64, u64> = HashMap::new();
            let mut csn = 0;
            for step in 0..4_000 {
                csn += if random(500) == 0 { u64::from(u32::MAX) - random(1_000) } else { 1 };
                let ids: Vec<u64> = (0..random(7)).map(|_| random(ids_max)).collect();
                let snapshot = csn.saturating_sub(1 + random(2 + 8 * (seed % 3)));
                let first =
                    ids.iter().find_map(|id| last.get(id).filter(|csn| **csn > snapshot).map(|csn| (*id, *csn)));
                match check(&index, snapshot, &ids) {
                    Ok(()) => assert_eq!(first, None, "seed {seed} step {step}: a lost update"),
                    Err(Verdict::Conflict { id, csn }) => {
                        assert_eq!(last.get(&id.0), Some(&csn.0), "seed {seed} step {step}");
                        assert!(csn.0 > snapshot, "seed {seed} step {step}");
                    }
                    Err(Verdict::TooOld { mark }) => {
                        assert!(snapshot < mark.0 && mark.0 < csn, "seed {seed} step {step}");
                    }
                }
                if step % 3 != 0 {
                    store(&index, csn, &ids);
                    last.extend(ids.iter().map(|id| (*id, csn)));
                }
            }
            let clean = index.buckets.iter().all(|bucket| bucket[0].load(Ordering::Relaxed) & 1 == 0);
            assert!(clean, "seed {seed}: every claim was released");
        }
    }
}
