//! The published snapshot that begins start from, swapped under them.
//!
//! A begin pins an epoch, loads the snapshot, takes its pointer, enters the table, takes its place in the event ring,
//! and unpins. So when a replaced snapshot is reclaimed, every begin that stands on it has its place in the ring: until
//! those events are published too, the snapshot counts for the visibility bound ([`Current::settled_floor`]).
//!
//! | field       | written by             | read by       | pair                                                      |
//! |-------------|------------------------|---------------|-----------------------------------------------------------|
//! | `cell`      | the publisher, alone   | every begin   | A: Release/Acquire; who sees a snapshot sees what made it |
//! | `reclaimed` | the epoch's destructor | the publisher | B: Release/Acquire; begins on it are in the ring          |

use std::collections::VecDeque;
use std::sync::Arc;

use crossbeam_epoch::{Atomic, Guard, Owned, pin};

use crate::pointer::WritePointer;
use crate::ring::Ticket;
use crate::snapshot::Snapshot;
use crate::sync::{AtomicBool, Ordering};

/// Replaced snapshots that are remembered one by one; beyond that the oldest ones count as one.
const REPLACED_MAX: usize = 1024;

/// A snapshot as begins find it.
pub(crate) struct Entry {
    pub(crate) snapshot: Arc<Snapshot>,
    /// The greatest version settled for it.
    pub(crate) settled: WritePointer,
    reclaimed: Arc<AtomicBool>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        // Release, pair B: whoever was pinned while this could be loaded has unpinned, and all it did came before.
        self.reclaimed.store(true, Ordering::Release);
    }
}

/// The readers' side.
pub(crate) struct Current {
    cell: Atomic<Entry>,
}

/// The publisher's side: there is one, for only [`current`] makes it.
pub(crate) struct Replacer {
    settled: WritePointer,
    reclaimed: Arc<AtomicBool>,
    /// Snapshots that were replaced and may still stand under a begin that is not published, oldest first.
    replaced: VecDeque<Replaced>,
}

struct Replaced {
    settled: WritePointer,
    reclaimed: Arc<AtomicBool>,
    /// Once it was reclaimed: begins that stand on it have tickets below this one.
    begins_below: Option<Ticket>,
}

pub(crate) fn current(snapshot: Arc<Snapshot>) -> (Current, Replacer) {
    let entry = Entry::new(snapshot);
    let replacer = Replacer { settled: entry.settled, reclaimed: entry.reclaimed.clone(), replaced: VecDeque::new() };
    (Current { cell: Atomic::new(entry) }, replacer)
}

impl Entry {
    fn new(snapshot: Arc<Snapshot>) -> Entry {
        let settled = snapshot.settled();
        Entry { snapshot, settled, reclaimed: Arc::new(AtomicBool::new(false)) }
    }
}

impl Current {
    /// The snapshot of this moment, for as long as the guard is held.
    pub(crate) fn load<'g>(&self, guard: &'g Guard) -> &'g Entry {
        // Acquire, pair A.
        let shared = self.cell.load(Ordering::Acquire, guard);
        // SAFETY: the cell always holds an entry that was made by `Owned`; it is reclaimed only when every guard that
        // was held when it was replaced is gone, and the reference lives no longer than this guard.
        unsafe { shared.deref() }
    }

    /// Replaces the snapshot.
    pub(crate) fn replace(&self, replacer: &mut Replacer, snapshot: Arc<Snapshot>) {
        let entry = Entry::new(snapshot);
        assert!(entry.settled >= replacer.settled, "settled versions went back");
        let old_reclaimed = std::mem::replace(&mut replacer.reclaimed, entry.reclaimed.clone());
        let old_settled = std::mem::replace(&mut replacer.settled, entry.settled);
        replacer.remember(Replaced { settled: old_settled, reclaimed: old_reclaimed, begins_below: None });
        let guard = pin();
        // AcqRel, pair A: who sees this snapshot also sees the pointers that it counts as finished handed out.
        let old = self.cell.swap(Owned::new(entry), Ordering::AcqRel, &guard);
        // SAFETY: `old` came out of the cell by this swap, so it is retired once, and nobody loads it from now on.
        unsafe { guard.defer_destroy(old) };
        guard.flush();
    }
}

impl Replacer {
    fn remember(&mut self, replaced: Replaced) {
        self.replaced.push_back(replaced);
        if self.replaced.len() > REPLACED_MAX {
            // The two oldest become one that leaves with the later of them, which is reclaimed last.
            let oldest = self.replaced.pop_front().expect("there are many");
            self.replaced.front_mut().expect("there are many").settled = oldest.settled;
        }
    }

    /// The greatest version that is settled for every begin that is not published yet, given that all events up to and
    /// including `published` are, and given what the ring hands out next.
    pub(crate) fn settled_floor(
        &mut self,
        published: Option<Ticket>,
        next_ticket: impl FnOnce() -> Ticket,
    ) -> WritePointer {
        // Reclaiming advances with pins, and nobody else may be pinning.
        pin().flush();
        // The flags are read before the ring is asked, so the ticket lies beyond every begin on a reclaimed snapshot.
        let reclaimed = self.replaced.iter().take_while(|old| {
            // Acquire, pair B.
            old.begins_below.is_some() || old.reclaimed.load(Ordering::Acquire)
        });
        let reclaimed = reclaimed.count();
        if reclaimed > 0 {
            let next = next_ticket();
            for old in self.replaced.iter_mut().take(reclaimed) {
                old.begins_below.get_or_insert(next);
            }
        }
        let published_below = published.map_or(0, |ticket| ticket.0 + 1);
        while self.replaced.front().is_some_and(|old| old.begins_below.is_some_and(|end| end.0 <= published_below)) {
            self.replaced.pop_front();
        }
        // Settled versions only grow from snapshot to snapshot, so the oldest has the smallest.
        self.replaced.front().map_or(self.settled, |oldest| oldest.settled)
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        // SAFETY: the cell is being dropped, so nobody can load from it any more; it always holds an entry.
        drop(unsafe { std::mem::take(&mut self.cell).into_owned() });
    }
}
