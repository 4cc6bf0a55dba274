//! The memory work of deciding a transaction: look every id up in a table, then store it there.
//!
//! The table has the layout and the size of the sequencer's conflict index: 64-byte buckets on lines of their own, four
//! ids each with the distance of its commit from the bucket's base, and the commit up to which the bucket has forgotten.
//! It belongs to one thread, claims nothing and fetches nothing early but what the processor finds out by itself.

use seriatim_core::ChangeId;

use crate::keys::Keys;

const SLOTS: usize = 4;
/// Ids of a transaction that only fills the table.
const FILL_WRITES: u32 = 64;

#[derive(Clone, Copy, Default)]
#[repr(align(64))]
struct Bucket {
    mark: u64,
    base: u64,
    /// Distance of the commit from the base; 0 = no id.
    distances: [u32; SLOTS],
    ids: [u64; SLOTS],
}

/// See the head of this file.
pub struct Table {
    buckets: Box<[Bucket]>,
    commits: u64,
    probes: u64,
    conflicts: u64,
}

impl Table {
    /// A table of at most this many bytes, half full at least with ids drawn from `seed`.
    pub fn half_full(bytes: usize, seed: u64) -> Table {
        let buckets = 1 << (bytes / size_of::<Bucket>()).max(1).ilog2();
        let (commits, probes, conflicts) = (0, 0, 0);
        let mut table = Table { buckets: vec![Bucket::default(); buckets].into(), commits, probes, conflicts };
        let mut keys = Keys::new(seed, u64::MAX, FILL_WRITES);
        // Three quarters of the places; some buckets are full by then and forget, so a little less is filled.
        for _ in 0..(buckets * SLOTS * 3 / 4).div_ceil(FILL_WRITES as usize) {
            table.transaction(&keys.next().writes);
        }
        table.probes = 0;
        table
    }

    /// Looks every id up, then stores all of them under the next commit. Says how many were there already.
    pub fn transaction(&mut self, ids: &[ChangeId]) -> u64 {
        let mut found = 0;
        for id in ids {
            let bucket = &self.buckets[self.place(*id)];
            found += u64::from(bucket.find(*id).is_some_and(|csn| csn > bucket.mark));
        }
        self.commits += 1;
        for id in ids {
            let place = self.place(*id);
            self.buckets[place].store(*id, self.commits);
        }
        self.probes += ids.len() as u64;
        self.conflicts += found;
        found
    }

    /// Ids that were looked up and stored since the table was filled.
    pub fn probes(&self) -> u64 {
        self.probes
    }

    /// Share of the places that hold an id.
    pub fn fill(&self) -> f64 {
        let filled = |bucket: &Bucket| bucket.distances.iter().filter(|distance| **distance != 0).count();
        self.buckets.iter().map(filled).sum::<usize>() as f64 / (self.buckets.len() * SLOTS) as f64
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> usize {
        size_of_val(&*self.buckets)
    }

    fn place(&self, id: ChangeId) -> usize {
        id.0 as usize & (self.buckets.len() - 1)
    }
}

impl Bucket {
    fn find(&self, id: ChangeId) -> Option<u64> {
        let slot = (0..SLOTS).find(|slot| self.ids[*slot] == id.0 && self.distances[*slot] != 0)?;
        Some(self.base + u64::from(self.distances[slot]))
    }

    fn store(&mut self, id: ChangeId, csn: u64) {
        if self.distances == [0; SLOTS] {
            self.base = csn - 1;
        }
        let distances = &mut self.distances;
        let is_id = |slot: &usize| self.ids[*slot] == id.0 && distances[*slot] != 0;
        let free = || distances.iter().position(|distance| *distance == 0);
        let slot = (0..SLOTS).find(is_id).or_else(free).unwrap_or_else(|| {
            let oldest = (0..SLOTS).min_by_key(|slot| distances[*slot]).expect("a bucket has slots");
            self.mark = self.base + u64::from(distances[oldest]);
            oldest
        });
        self.ids[slot] = id.0;
        self.distances[slot] = (csn - self.base) as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_is_probed_and_stored_and_the_table_is_half_full() {
        let mut table = Table::half_full(1 << 20, 7);
        assert_eq!((table.bytes(), table.probes(), size_of::<Bucket>()), (1 << 20, 0, 64));
        assert!(table.fill() >= 0.5, "{}", table.fill());
        let mut keys = Keys::new(8, u64::MAX, 4);
        for _ in 0..100 {
            let ids = keys.next().writes.clone();
            assert_eq!(table.transaction(&ids), 0, "nobody has drawn these before");
            assert_eq!(table.transaction(&ids), 4, "now somebody has");
        }
        assert_eq!(table.probes(), 800);
    }

    #[test]
    fn a_full_bucket_forgets_its_oldest() {
        let mut bucket = Bucket::default();
        (1..=5).for_each(|csn| bucket.store(ChangeId(100 + csn), csn));
        assert_eq!((bucket.find(ChangeId(101)), bucket.mark), (None, 1));
        assert_eq!((2..=5).map(|csn| bucket.find(ChangeId(100 + csn))).collect::<Vec<_>>(), [2, 3, 4, 5].map(Some));
        bucket.store(ChangeId(102), 9);
        assert_eq!(bucket.find(ChangeId(102)), Some(9));
    }
}
