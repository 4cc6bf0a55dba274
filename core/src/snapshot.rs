//! What one reader may see: a read pointer and the pointers at or below it that do not count.

use std::sync::Arc;

use crate::pointer::{CommitNumber, WritePointer};
use crate::pointer_set::PointerSet;

/// Name of a snapshot: the run of the sequencer that built it, and its number in that run.
///
/// Numbers start again with every run, so a difference is only ever applied to a base of the same run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub struct SnapshotId {
    /// The boot token: one run of a sequencer.
    pub boot: u64,
    /// 1, 2, 3 … within that run; 0 names no snapshot.
    pub number: u64,
}

/// The transactions that ended without a clean rollback: excluded whatever the read pointer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InvalidSet {
    /// Grows with every change of the set.
    pub version: u64,
    /// The invalid pointers one by one.
    pub pointers: PointerSet,
    /// Whole ranges `[first, end)` that a crash left unaccounted, ascending; each counts as one LONG transaction.
    pub intervals: Vec<(u64, u64)>,
}

impl InvalidSet {
    /// True if the pointer is invalid.
    pub fn contains(&self, pointer: WritePointer) -> bool {
        self.pointers.contains(pointer) || self.intervals.iter().any(|(first, end)| (*first..*end).contains(&pointer.0))
    }

    /// Number of invalid transactions, each interval counted once.
    pub fn len(&self) -> u64 {
        self.pointers.len() + self.intervals.len() as u64
    }

    /// The greatest invalid pointer.
    pub fn last(&self) -> Option<WritePointer> {
        let in_intervals = self.intervals.last().map(|(_, end)| WritePointer(end - 1));
        self.pointers.last().max(in_intervals)
    }

    /// True if nothing is invalid.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// What one reader may see. Immutable; clones share their sets.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    /// Which snapshot this is.
    pub id: SnapshotId,
    /// Greatest finished write pointer when the snapshot was built: the upper bound of what may be read.
    pub read_pointer: WritePointer,
    /// The snapshot holds exactly the commits up to this number.
    pub csn: CommitNumber,
    /// Pointers that were handed out and had not ended: all of those at or below the read pointer, and maybe some above.
    pub in_progress: PointerSet,
    /// Pointers that will never count.
    pub invalid: Arc<InvalidSet>,
}

impl Snapshot {
    /// True if a version written under this pointer is part of the snapshot.
    pub fn is_visible(&self, version: WritePointer) -> bool {
        version <= self.read_pointer && !self.in_progress.contains(version) && !self.invalid.contains(version)
    }

    /// The greatest version that is settled for this reader: what is at or below it will not change its mind.
    pub fn settled(&self) -> WritePointer {
        match self.in_progress.first() {
            Some(first) if first <= self.read_pointer => WritePointer(first.0 - 1),
            _ => self.read_pointer,
        }
    }

    /// Number of pointers in progress and invalid transactions together.
    pub fn excluded_len(&self) -> u64 {
        self.in_progress.len() + self.invalid.len()
    }

    /// A digest over everything that decides visibility: equal for equal snapshots, different otherwise but for chance.
    pub fn digest(&self) -> u64 {
        let intervals = self.invalid.intervals.iter().flat_map(|(first, end)| [*first, *end]);
        [self.read_pointer.0, self.csn.0, self.in_progress.digest(), self.invalid.pointers.digest()]
            .into_iter()
            .chain(intervals)
            .fold(0, |digest: u64, part| (digest.rotate_left(23) ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_visible_if_finished_and_not_excluded() {
        let snapshot = Snapshot {
            read_pointer: WritePointer(100),
            in_progress: [95].into_iter().map(WritePointer).collect(),
            invalid: Arc::new(InvalidSet {
                version: 1,
                pointers: [90, 110].into_iter().map(WritePointer).collect(),
                intervals: vec![(40, 50)],
            }),
            ..Snapshot::default()
        };
        let visible: Vec<u64> = (36..=111).filter(|v| snapshot.is_visible(WritePointer(*v))).collect();
        let expected: Vec<u64> = (36..=100).filter(|v| !matches!(v, 40..=49 | 90 | 95)).collect();
        assert_eq!(visible, expected);
        assert_eq!(snapshot.excluded_len(), 4);
    }
}
