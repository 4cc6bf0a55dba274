//! Who made the last commits: from commit number to transaction, so that a conflict can name its winner.
//!
//! | field      | written by              | read by             | pair                                                |
//! |------------|-------------------------|---------------------|-----------------------------------------------------|
//! | `ring[i]`  | whoever took number `i` | who lost against it | Release/Acquire; the number's own owner wrote it     |
//! | `labels[i]`| the same                | the same            | as `ring[i]`                                         |

use crate::labels::LabelId;
use crate::memory::ZeroedArray;
use crate::pointer::{CommitNumber, WritePointer};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

pub(crate) struct Winners {
    ring: ZeroedArray<AtomicU64>,
    labels: ZeroedArray<AtomicU32>,
}

impl Winners {
    /// Room for the last `len` commits, a power of two.
    pub(crate) fn new(len: u32) -> Winners {
        assert!(len.is_power_of_two());
        Winners { ring: ZeroedArray::new(len as usize), labels: ZeroedArray::new(len as usize) }
    }

    pub(crate) fn put(&self, csn: CommitNumber, tx: WritePointer, label: LabelId) {
        let place = self.place(csn);
        // Release, both: who reads either also sees that its number was taken, and so notices a lap.
        self.labels[place].store(u32::from(label.0), Ordering::Release);
        self.ring[place].store(tx.0, Ordering::Release);
    }

    /// The transaction with this commit number, which the caller found in the conflict index, so it was put before.
    /// `last` is asked for the last commit number that was taken.
    pub(crate) fn get(
        &self,
        csn: CommitNumber,
        last: impl FnOnce() -> CommitNumber,
    ) -> Option<(WritePointer, LabelId)> {
        let place = self.place(csn);
        // Acquire, both: had a later number's owner written here, `last` would show that number.
        let tx = self.ring[place].load(Ordering::Acquire);
        let label = self.labels[place].load(Ordering::Acquire);
        let lapped = last().0 >= csn.0 + self.ring.len() as u64;
        (tx != 0 && !lapped).then_some((WritePointer(tx), LabelId(label as u16)))
    }

    fn place(&self, csn: CommitNumber) -> usize {
        csn.0 as usize & (self.ring.len() - 1)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_commits_are_known() {
        let winners = Winners::new(4);
        for csn in 1..=6 {
            winners.put(CommitNumber(csn), WritePointer(100 + csn), LabelId(csn as u16));
        }
        let known = |csn| winners.get(CommitNumber(csn), || CommitNumber(6));
        assert_eq!(
            [1, 2, 3, 6].map(known),
            [None, None, Some((WritePointer(103), LabelId(3))), Some((WritePointer(106), LabelId(6)))]
        );
    }
}
