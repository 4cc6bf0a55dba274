//! Fences: waiting until everybody who may not have seen a change has ended.
//!
//! What was committed before a fence was asked for is in the published snapshot, so whoever begins later sees it. Who may
//! not have seen it holds a pointer that had been handed out, or began on an older snapshot. Both are counted in the
//! published state once everything decided before the fence is published, and counted down as they end.

use std::time::Duration;

use seriatim_core::{CommitNumber, Full, Published, Sequencer, WritePointer};
use seriatim_wire::Fenced;

/// Fences that may be waited for at once: 64. Each looks at every end.
const FENCES_MAX: usize = 64;
/// The longest that anybody waits for a fence: 24 h.
const TIMEOUT_MAX: Duration = Duration::from_secs(24 * 3_600);

/// Names one fence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FenceId(u64);

/// The fences that are waited for; see the head of this file.
#[derive(Default)]
pub(crate) struct Fences {
    raised: Vec<Fence>,
    last: u64,
}

struct Fence {
    id: FenceId,
    /// Everything decided before the fence has a ticket below this one.
    decided_to: u64,
    /// Transactions from here on began after it, unless on an older snapshot than this one.
    pointer: WritePointer,
    snapshot: CommitNumber,
    deadline: Duration,
    open: Open,
}

/// How many transactions a fence waits for.
#[derive(Clone, Copy)]
enum Open {
    /// The published state does not hold everything decided before the fence yet.
    Uncounted,
    /// So many in the published state, counted down as they end there.
    Published(u64),
    /// So many in the decided state when the time was over.
    WhenTimeWasUp(u64),
}

impl Fence {
    fn waits_for(&self, tx: WritePointer, snapshot: CommitNumber) -> bool {
        tx < self.pointer || snapshot < self.snapshot
    }
}

impl Fences {
    /// Raises a fence at this moment: `next` is handed out next, `decided_to` is the next ticket.
    pub(crate) fn raise(
        &mut self,
        next: WritePointer,
        snapshot: CommitNumber,
        decided_to: u64,
        now: Duration,
        timeout_ms: u64,
    ) -> Result<FenceId, Full> {
        if self.raised.len() == FENCES_MAX {
            return Err(Full::Fences);
        }
        self.last += 1;
        let id = FenceId(self.last);
        let deadline = now + Duration::from_millis(timeout_ms).min(TIMEOUT_MAX);
        self.raised.push(Fence { id, decided_to, pointer: next, snapshot, deadline, open: Open::Uncounted });
        Ok(id)
    }

    /// Counts for one of the fences that are not counted yet, if everything decided before it is published. A count walks
    /// over everything that is open, so the others have to wait for the next call.
    pub(crate) fn count(&mut self, published: &Published, released_to: u64) {
        let uncounted = |fence: &&mut Fence| matches!(fence.open, Open::Uncounted) && fence.decided_to <= released_to;
        if let Some(fence) = self.raised.iter_mut().find(uncounted) {
            let waited_for = published.open().filter(|open| fence.waits_for(open.tx, open.snapshot));
            fence.open = Open::Published(waited_for.count() as u64);
        }
    }

    /// A transaction that was open in the published state has ended there.
    pub(crate) fn ended(&mut self, tx: WritePointer, snapshot: CommitNumber) {
        for fence in self.raised.iter_mut().filter(|fence| fence.waits_for(tx, snapshot)) {
            if let Open::Published(open) = &mut fence.open {
                *open -= 1;
            }
        }
    }

    /// A reset has dropped everything that was open.
    pub(crate) fn all_ended(&mut self) {
        for fence in &mut self.raised {
            if let Open::Published(open) = &mut fence.open {
                *open = 0;
            }
        }
    }

    /// What came of a fence, if that is known by now; it is forgotten then. If its time is over before the published
    /// state could be counted, the decided one is asked: one walk for all whose time is over.
    pub(crate) fn outcome(&mut self, id: FenceId, now: Duration, decided: &Sequencer) -> Option<Fenced> {
        let at = self.raised.iter().position(|fence| fence.id == id)?;
        let fence = &self.raised[at];
        if matches!(fence.open, Open::Uncounted) && now >= fence.deadline {
            self.count_decided(now, decided);
        }
        let fence = &self.raised[at];
        let outcome = match fence.open {
            Open::Published(0) => Fenced::Passed,
            Open::WhenTimeWasUp(open) => Fenced::TimedOut(open),
            Open::Published(open) if now >= fence.deadline => Fenced::TimedOut(open),
            Open::Published(_) | Open::Uncounted => return None,
        };
        self.raised.swap_remove(at);
        Some(outcome)
    }

    fn count_decided(&mut self, now: Duration, decided: &Sequencer) {
        let is_due = |fence: &&mut Fence| matches!(fence.open, Open::Uncounted) && now >= fence.deadline;
        let mut due: Vec<_> = self.raised.iter_mut().filter(is_due).map(|fence| (fence, 0)).collect();
        decided.for_each_open(|view| {
            for (fence, open) in &mut due {
                *open += u64::from(fence.waits_for(view.tx, view.snapshot));
            }
        });
        for (fence, open) in due {
            fence.open = Open::WhenTimeWasUp(open);
        }
    }

    /// Nobody waits for this one any more.
    pub(crate) fn lower(&mut self, id: FenceId) {
        self.raised.retain(|fence| fence.id != id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fence(pointer: u64, snapshot: u64) -> Fence {
        let (pointer, snapshot) = (WritePointer(pointer), CommitNumber(snapshot));
        Fence { id: FenceId(1), decided_to: 0, pointer, snapshot, deadline: Duration::ZERO, open: Open::Uncounted }
    }

    #[test]
    fn it_waits_for_older_pointers_and_for_older_snapshots() {
        let fence = fence(100, 10);
        assert!(fence.waits_for(WritePointer(99), CommitNumber(10)), "was handed out before the fence");
        assert!(fence.waits_for(WritePointer(100), CommitNumber(9)), "began after it, on an older snapshot");
        assert!(!fence.waits_for(WritePointer(100), CommitNumber(10)), "sees everything that the fence is about");
    }

    #[test]
    fn what_began_later_on_an_older_snapshot_is_counted_down() {
        let mut fences = Fences { raised: vec![Fence { open: Open::Published(1), ..fence(100, 10) }], last: 1 };
        fences.ended(WritePointer(100), CommitNumber(10));
        assert!(matches!(fences.raised[0].open, Open::Published(1)));
        fences.ended(WritePointer(100), CommitNumber(9));
        assert!(matches!(fences.raised[0].open, Open::Published(0)));
    }
}
