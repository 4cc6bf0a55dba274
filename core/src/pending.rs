//! Change sets that passed a check and wait for their commit: the first half of a commit in two steps.
//!
//! A set is kept by its transaction and named by its digest. It reserves nothing: whoever commits first wins, and a
//! commit checks the set again. Sets live in memory alone. A restart forgets them, and so does the bound below; the commit
//! is then told to bring its changes along, which is as good in one step.
//!
//! Only the owner of a transaction ([`crate::table::Held`]) puts its set or takes it away, so a set never outlives its
//! transaction. The lock is held for a look into the map and taken by commits in two steps alone: an entry in the table
//! says whether there is a set at all.

use std::sync::{Arc, Mutex, MutexGuard};

use rustc_hash::FxHashMap;

use crate::change_set::ChangeSet;
use crate::pointer::WritePointer;

/// What a set costs beside its ids, in ids: its place in the map, its counts and its spare room, 280 bytes and a little as measured
/// with a million sets of one id each.
const SET_COST: usize = 36;

#[derive(Debug)]
pub(crate) struct PendingSets {
    kept: Mutex<Kept>,
    /// Change ids that all sets together may hold.
    ids_max: usize,
}

#[derive(Debug, Default)]
struct Kept {
    sets: FxHashMap<WritePointer, (u64, Arc<ChangeSet>)>,
    ids: usize,
}

impl PendingSets {
    pub(crate) fn new(ids_max: usize) -> PendingSets {
        PendingSets { kept: Mutex::default(), ids_max }
    }

    /// Keeps a set, which replaces the one before. False if there is no room; then none is kept.
    pub(crate) fn put(&self, tx: WritePointer, digest: u64, changes: &ChangeSet) -> bool {
        let mut kept = self.kept();
        kept.take(tx);
        let cost = SET_COST + changes.len();
        if kept.ids + cost > self.ids_max {
            return false;
        }
        kept.ids += cost;
        kept.sets.insert(tx, (digest, Arc::new(changes.clone())));
        true
    }

    /// The set of this transaction, if it has this digest.
    pub(crate) fn get(&self, tx: WritePointer, digest: u64) -> Option<Arc<ChangeSet>> {
        let kept = self.kept();
        kept.sets.get(&tx).filter(|(kept, _)| *kept == digest).map(|(_, changes)| changes.clone())
    }

    pub(crate) fn remove(&self, tx: WritePointer) {
        self.kept().take(tx);
    }

    pub(crate) fn clear(&self) {
        *self.kept() = Kept::default();
    }

    /// Sets that are kept.
    pub(crate) fn len(&self) -> usize {
        self.kept().sets.len()
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // Nothing panics while the lock is held, so it is never poisoned half-way.
        self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Kept {
    fn take(&mut self, tx: WritePointer) {
        if let Some((_, changes)) = self.sets.remove(&tx) {
            self.ids -= SET_COST + changes.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_is_found_by_its_digest_replaced_and_bounded() {
        let pending = PendingSets::new(2 * SET_COST + 3);
        let set = |keys: &[&[u8]]| ChangeSet::of_writes(keys.iter().copied());
        let (one, two) = (set(&[b"a"]), set(&[b"a", b"b"]));
        assert!(pending.put(WritePointer(1), one.digest(), &one));
        assert!(pending.put(WritePointer(1), two.digest(), &two));
        assert_eq!(pending.get(WritePointer(1), one.digest()), None);
        assert_eq!(pending.get(WritePointer(1), two.digest()).as_deref(), Some(&two));
        assert!(pending.put(WritePointer(2), one.digest(), &one), "what was replaced counts no more");
        assert!(!pending.put(WritePointer(3), one.digest(), &one));
        assert!(!pending.put(WritePointer(2), two.digest(), &two), "over the bound");
        assert_eq!((pending.get(WritePointer(2), one.digest()), pending.len()), (None, 1));
        pending.remove(WritePointer(1));
        assert!(pending.put(WritePointer(3), two.digest(), &two));
        pending.clear();
        assert_eq!(pending.len(), 0);
    }
}
