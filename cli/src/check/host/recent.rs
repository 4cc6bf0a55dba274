//! The versions that were put last and not removed since.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use seriatim_core::WritePointer;

/// How many versions are remembered. At some thousand transfers per second of three versions each, that is what many
/// syncs of a log hold.
pub const RECENT_MAX: usize = 1024;

/// See the head of this file.
#[derive(Default)]
pub struct Recent {
    versions: Mutex<VecDeque<(Vec<u8>, WritePointer)>>,
}

impl Recent {
    /// Notes a version after it was put.
    pub fn put(&self, row: &[u8], version: WritePointer) {
        let mut versions = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
        if versions.len() == RECENT_MAX {
            versions.pop_front();
        }
        versions.push_back((row.to_vec(), version));
    }

    /// Forgets a version before it is removed: who finds one here and then sees in an older snapshot that its
    /// transaction has ended knows that it is no leftover of a rollback.
    pub fn remove(&self, row: &[u8], version: WritePointer) {
        let mut versions = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
        versions.retain(|(other_row, other)| *other != version || other_row != row);
    }

    /// The last `limit` ones, newest first.
    pub fn newest(&self, limit: usize) -> Vec<(Vec<u8>, WritePointer)> {
        let versions = self.versions.lock().unwrap_or_else(PoisonError::into_inner);
        versions.iter().rev().take(limit).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_versions_are_remembered_and_removed_ones_are_not() {
        let recent = Recent::default();
        for n in 0..RECENT_MAX as u64 + 10 {
            recent.put(&[n as u8 % 2], WritePointer(n));
        }
        let last = RECENT_MAX as u64 + 9;
        recent.remove(&[last as u8 % 2], WritePointer(last));
        recent.remove(b"another row", WritePointer(last - 1));
        let newest = recent.newest(2);
        assert_eq!(newest.iter().map(|(_, version)| version.0).collect::<Vec<_>>(), [last - 1, last - 2]);
        assert_eq!(recent.newest(usize::MAX).len(), RECENT_MAX - 1);
    }
}
