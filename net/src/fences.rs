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
    /// How many are still open; `None` until they are counted.
    open: Option<u64>,
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
        self.raised.push(Fence { id, decided_to, pointer: next, snapshot, deadline, open: None });
        Ok(id)
    }

    /// Counts for one of the fences that are not counted yet, if everything decided before it is published. A count walks
    /// over everything that is open, so the others have to wait for the next call.
    pub(crate) fn count(&mut self, published: &Published, released_to: u64) {
        let uncounted = |fence: &&mut Fence| fence.open.is_none() && fence.decided_to <= released_to;
        if let Some(fence) = self.raised.iter_mut().find(uncounted) {
            let waited_for = published.open().filter(|open| fence.waits_for(open.tx, open.snapshot));
            fence.open = Some(waited_for.count() as u64);
        }
    }

    /// A transaction that was open in the published state has ended there.
    pub(crate) fn ended(&mut self, tx: WritePointer, snapshot: CommitNumber) {
        for fence in self.raised.iter_mut().filter(|fence| fence.waits_for(tx, snapshot)) {
            if let Some(open) = &mut fence.open {
                *open -= 1;
            }
        }
    }

    /// A reset has dropped everything that was open.
    pub(crate) fn all_ended(&mut self) {
        self.raised.iter_mut().filter(|fence| fence.open.is_some()).for_each(|fence| fence.open = Some(0));
    }

    /// What came of a fence, if that is known by now; it is forgotten then. If its time is over before the published
    /// state could be counted, the decided one is asked.
    pub(crate) fn outcome(&mut self, id: FenceId, now: Duration, decided: &Sequencer) -> Option<Fenced> {
        let at = self.raised.iter().position(|fence| fence.id == id)?;
        let fence = &self.raised[at];
        let outcome = match fence.open {
            Some(0) => Fenced::Passed,
            _ if now < fence.deadline => return None,
            Some(open) => Fenced::TimedOut(open),
            None => {
                let mut open = 0;
                decided.for_each_open(|view| open += u64::from(fence.waits_for(view.tx, view.snapshot)));
                Fenced::TimedOut(open)
            }
        };
        self.raised.swap_remove(at);
        Some(outcome)
    }

    /// Nobody waits for this one any more.
    pub(crate) fn lower(&mut self, id: FenceId) {
        self.raised.retain(|fence| fence.id != id);
    }
}
