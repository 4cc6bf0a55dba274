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

    /// True if the set names nothing: such a commit conflicts with nobody.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_id_is_xxh3_64_of_the_key() {
        // Reference values of XXH3_64bits with seed 0.
        assert_eq!(ChangeId::of(b""), ChangeId(0x2d06_8005_38d3_94c2));
        assert_eq!(ChangeId::of(b"a"), ChangeId(0xe6c6_32b6_1e96_4e1f));
    }
}
