//! What a transaction says it read and wrote: hashes of keys, never the keys.

use smallvec::SmallVec;

/// 64-bit hash of a key that a transaction wrote or read: xxh3-64 with seed 0.
///
/// The client hashes, so the sequencer never sees keys. Two keys with one hash make a false conflict, never a
/// missed one; the chance is 1 in 2^64 for a pair.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(transparent)]
pub struct ChangeId(pub u64);

impl ChangeId {
    /// The change id of a key's bytes. Put the table's name into the bytes where tables share a sequencer.
    pub fn of(key: &[u8]) -> ChangeId {
        ChangeId(xxhash_rust::xxh3::xxh3_64(key))
    }
}

/// A list of change ids; up to eight need no allocation.
pub type ChangeIds = SmallVec<[ChangeId; 8]>;

/// The most change ids that one change set may hold, all lists together: 2^20.
pub const CHANGE_IDS_MAX: usize = 1 << 20;

/// From this many change ids on a change set is worth a warning: 2^16.
pub const CHANGE_IDS_WARN: usize = 1 << 16;

/// What a transaction submits with its commit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeSet {
    /// Checked against later commits of others, and stored so that theirs are checked against these.
    pub writes: ChangeIds,
    /// Checked, not stored: what a serializable transaction read.
    pub reads: ChangeIds,
    /// Stored, not checked: prefixes of the written keys, for those who read ranges.
    pub marks: ChangeIds,
}

impl ChangeSet {
    /// A change set of written keys alone, which is what snapshot isolation needs.
    pub fn of_writes<'k>(keys: impl IntoIterator<Item = &'k [u8]>) -> ChangeSet {
        ChangeSet { writes: keys.into_iter().map(ChangeId::of).collect(), ..ChangeSet::default() }
    }

    /// Number of ids in all lists, duplicates counted.
    pub fn len(&self) -> usize {
        self.writes.len() + self.reads.len() + self.marks.len()
    }

    /// Names the set in the second step of a commit in two: XXH3-64, seed 0, of the three lists in the order writes, reads,
    /// marks, each as its length in 8 little-endian bytes and then 8 such bytes for every id, in the order in which they stand.
    pub fn digest(&self) -> u64 {
        let mut bytes = Vec::with_capacity(8 * (3 + self.len()));
        for list in [&self.writes, &self.reads, &self.marks] {
            bytes.extend_from_slice(&(list.len() as u64).to_le_bytes());
            bytes.extend(list.iter().flat_map(|id| id.0.to_le_bytes()));
        }
        xxhash_rust::xxh3::xxh3_64(&bytes)
    }

    /// True if the set names nothing: such a commit conflicts with nobody.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The changes that a commit is about.
#[derive(Clone, Copy, Debug)]
pub enum Changes<'c> {
    /// These: the commit in one step.
    Given(&'c ChangeSet),
    /// Those with this [digest](ChangeSet::digest), which passed a check before: the second step of a commit in two.
    Checked(u64),
}

/// What a commit brings along.
#[derive(Clone, Copy, Debug)]
pub struct Submission<'c> {
    /// What it is about.
    pub changes: Changes<'c>,
    /// Checkpoints that the client knows of. The sequencer has its own count; this one is held against it.
    pub checkpoints: u32,
}

impl<'c> From<&'c ChangeSet> for Submission<'c> {
    /// A commit in one step of a transaction without checkpoints.
    fn from(changes: &'c ChangeSet) -> Submission<'c> {
        Submission { changes: Changes::Given(changes), checkpoints: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_tells_lists_and_orders_apart() {
        let ids = |ids: &[u64]| ids.iter().copied().map(ChangeId).collect::<ChangeIds>();
        let set = |writes: &[u64], reads: &[u64], marks: &[u64]| {
            ChangeSet { writes: ids(writes), reads: ids(reads), marks: ids(marks) }.digest()
        };
        let digests = [set(&[], &[], &[]), set(&[1, 2], &[], &[]), set(&[2, 1], &[], &[]), set(&[1], &[2], &[])];
        for (at, digest) in digests.iter().enumerate() {
            assert!(!digests[..at].contains(digest), "{at}");
        }
        // Of three lengths of zero: 24 bytes of zeroes.
        assert_eq!(digests[0], xxhash_rust::xxh3::xxh3_64(&[0; 24]));
    }

    #[test]
    fn a_change_id_is_xxh3_64_of_the_key() {
        // Reference values of XXH3_64bits with seed 0.
        assert_eq!(ChangeId::of(b""), ChangeId(0x2d06_8005_38d3_94c2));
        assert_eq!(ChangeId::of(b"a"), ChangeId(0xe6c6_32b6_1e96_4e1f));
    }
}
