//! The counter that write pointers come from.
//!
//! The argument that carries everything else: a begin **loads its snapshot first and takes its pointer then**. The
//! snapshot's read pointer R was taken from this counter, ended, and went through the event ring into the snapshot,
//! which the begin loaded; so the taking of R happened before ours, and by the coherence of one counter our pointer is
//! greater than R. Hence no transaction is excluded from its own snapshot, and every pointer at or below R that will
//! ever exist had been handed out when the snapshot was built.
//!
//! A taking is one `fetch_add`, so a begin is wait-free. The end of the durable window is looked at before and after: a
//! block that crosses it, which takes a race between the two looks, is given back whole, as finished, and was never
//! handed to anybody. Hence an event may name pointers beyond a durable end, but no answer ever does.
//!
//! | field  | written by                        | read by      | pair                                               |
//! |--------|-----------------------------------|--------------|----------------------------------------------------|
//! | `next` | whoever takes; the publisher lifts | whoever takes | Relaxed: read-modify-write on one counter is enough |
//! | `end`  | the publisher                     | whoever takes | Relaxed: it only grows, a stale end refuses          |

use crossbeam_utils::CachePadded;

use crate::event::Event;
use crate::pointer::WritePointer;
use crate::ring::{Reserved, Ticket};
use crate::sync::{AtomicU64, Ordering};
use crate::transaction::Full;

pub(crate) struct Pointers {
    /// The pointer that is handed out next.
    next: CachePadded<AtomicU64>,
    /// The first pointer that may not be handed out.
    end: CachePadded<AtomicU64>,
}

impl Pointers {
    pub(crate) fn new(next: WritePointer, end: WritePointer) -> Pointers {
        assert!(next.0 > 0, "pointer 0 is never handed out");
        Pointers {
            next: CachePadded::new(AtomicU64::new(next.0)),
            end: CachePadded::new(AtomicU64::new(end.min(WritePointer::MAX).0)),
        }
    }

    /// Takes `count` neighbouring pointers, whose one end will be told through `slot`.
    pub(crate) fn take<'r>(&self, slot: Reserved<'r>, count: u32) -> Result<Block<'r>, Full> {
        // A look first, so that refusals move nothing: refused begins without number do not run through the pointers.
        self.check_end(self.next.load(Ordering::Relaxed), count)?;
        // Relaxed: see the head of this file; the order with the snapshot comes from the loads around.
        let first = self.next.fetch_add(u64::from(count), Ordering::Relaxed);
        // From here on the block reports itself when it is dropped.
        let block = Block { slot: Some(slot), first: WritePointer(first), count };
        self.check_end(first, count)?;
        Ok(block)
    }

    fn check_end(&self, first: u64, count: u32) -> Result<(), Full> {
        // Relaxed: an end is durable before it is stored, and an older one is smaller and only refuses more.
        let fits = first.saturating_add(u64::from(count)) <= self.end.load(Ordering::Relaxed);
        if fits { Ok(()) } else { Err(Full::Window) }
    }

    /// Lifts the counter to the first pointer of this millisecond, or to the end of the window if that is less. The
    /// answer is the exact range that ended and where the next one starts; `None` if the counter is there already.
    ///
    /// Only the publisher may call this, and writes the answer down before it takes further events. A pointer from the
    /// new range was taken after the lift, so its end is seen by the publisher after the lift too: had the publisher
    /// seen it before, the taking would have happened before the lift and got a smaller number.
    pub(crate) fn tick(&self, now_ms: u64) -> Option<Event> {
        let target = WritePointer::at_ms(now_ms).0.min(self.end.load(Ordering::Relaxed));
        let old = self.next.fetch_max(target, Ordering::Relaxed);
        (old < target).then_some(Event::Tick { old_end: WritePointer(old), new_start: WritePointer(target) })
    }

    pub(crate) fn next(&self) -> WritePointer {
        WritePointer(self.next.load(Ordering::Relaxed))
    }

    pub(crate) fn end(&self) -> WritePointer {
        WritePointer(self.end.load(Ordering::Relaxed))
    }

    /// Moves the end of the window; the new one is durable. An end never goes back.
    pub(crate) fn set_end(&self, end: WritePointer) {
        self.end.fetch_max(end.min(WritePointer::MAX).0, Ordering::Relaxed);
    }
}

/// Pointers that were taken and have no end yet. They become transactions, or are reported as finished when the block
/// is dropped: every pointer handed out has exactly one end.
#[must_use]
pub(crate) struct Block<'r> {
    slot: Option<Reserved<'r>>,
    first: WritePointer,
    count: u32,
}

impl Block<'_> {
    pub(crate) fn first(&self) -> WritePointer {
        self.first
    }

    pub(crate) fn pointers(&self) -> impl Iterator<Item = WritePointer> + use<> {
        (self.first.0..self.first.0 + u64::from(self.count)).map(WritePointer)
    }

    /// The pointers are transactions now, as this event says.
    pub(crate) fn begun(mut self, event: Event) -> Ticket {
        self.slot.take().expect("a block has its slot until it ends").fill(event)
    }

    /// The pointers will never be transactions.
    pub(crate) fn finish(mut self) -> Ticket {
        let finished = self.finished();
        self.slot.take().expect("a block has its slot until it ends").fill(finished)
    }

    fn finished(&self) -> Event {
        Event::Finished { first: self.first, count: u64::from(self.count) }
    }
}

impl Drop for Block<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            slot.fill(self.finished());
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::pointer::CommitNumber;
    use crate::ring::ring;

    #[test]
    fn a_block_that_would_cross_the_window_is_not_taken() {
        let (ring, mut consumer) = ring(8, CommitNumber(0));
        let pointers = Pointers::new(WritePointer(10), WritePointer(15));
        assert_eq!(pointers.take(ring.reserve().unwrap(), 6).err(), Some(Full::Window));
        assert_eq!(pointers.next(), WritePointer(10));
        let block = pointers.take(ring.reserve().unwrap(), 5).unwrap();
        assert!(block.pointers().map(|p| p.0).eq(10..15));
        drop(block);
        assert_eq!(pointers.take(ring.reserve().unwrap(), 1).err(), Some(Full::Window));
        pointers.set_end(WritePointer(12));
        assert_eq!(pointers.end(), WritePointer(15), "an end never goes back");
        let mut events = Vec::new();
        consumer.drain(9, |_, event| events.push(event));
        assert_eq!(events, [Event::Finished { first: WritePointer(10), count: 5 }], "a dropped block reports itself");
    }

    #[test]
    fn a_tick_names_the_exact_jump_and_stops_at_the_window() {
        let pointers = Pointers::new(WritePointer(1_000_007), WritePointer(3_500_000));
        assert_eq!(pointers.tick(1), None);
        let jump = |old, new| Some(Event::Tick { old_end: WritePointer(old), new_start: WritePointer(new) });
        assert_eq!(pointers.tick(2), jump(1_000_007, 2_000_000));
        assert_eq!(pointers.tick(9), jump(2_000_000, 3_500_000));
        assert_eq!(pointers.tick(10), None);
    }
}
