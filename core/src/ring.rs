//! The event ring: the one place where state changes get their order.
//!
//! Whoever changes state takes a slot, and with a commit's slot its commit number, in the same atomic step; so log
//! order is slot order is the order of commit numbers. The slot is filled at once after it was taken. One consumer
//! takes events in order and never passes a slot that is not filled yet. Room is found before anything is taken: a full
//! ring refuses and changes nothing, and a commit number, once taken, always reaches the consumer.
//!
//! ```text
//!  head, one word:   [ commit number, low 32 bits | slot number, low 32 bits ]   moved by compare-and-swap
//!  slot of ticket t: stamp = t          free for ticket t
//!                    stamp = t + 1      filled by ticket t
//!                    stamp = t + slots  taken out, free for the next lap
//! ```
//!
//! Both halves of the head count modulo 2^32 and are moved separately, so neither carries into the other. The full
//! numbers follow from the consumer's, which are 64 bits wide: the consumer cannot pass a slot that is not filled, so
//! whoever took one finds the consumer's position at or below its own and no more than a ring's length away. A thread
//! that sleeps between reading the head and moving it while exactly 2^32 slots and a multiple of 2^32 commits go by
//! would find the head unchanged and its room outdated; it then waits at the stamp, which is never ambiguous.
//!
//! | field             | written by             | read by       | pair                                              |
//! |-------------------|------------------------|---------------|---------------------------------------------------|
//! | `head`            | whoever takes a slot   | the same      | A: AcqRel; brings the positions others have seen  |
//! | `read`, `commits` | the consumer           | takers        | B: Release/Acquire; slots below were taken out    |
//! | `slots[i].event`  | owner of the slot      | the consumer  | C: `stamp` Release/Acquire                        |
//! | `slots[i].stamp`  | owner, then consumer   | both          | C, and back to the next owner: Release/Acquire    |

use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::event::Event;
use crate::pointer::CommitNumber;
use crate::sync::{AtomicU64, Ordering, UnsafeCell, Wait};
use crate::transaction::Full;

/// Place of a state change in the order of all of them in this run, from 0.
///
/// An answer that claims the change may leave when the event with this ticket is durable and published.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

pub(crate) struct Ring {
    head: CachePadded<AtomicU64>,
    consumed: CachePadded<Consumed>,
    slots: Box<[Slot]>,
}

/// What the consumer tells the takers.
struct Consumed {
    /// Tickets below were taken out.
    read: AtomicU64,
    /// The number of the last commit that was taken out.
    commits: AtomicU64,
}

/// Two lines, so that neighbours in the ring do not share any.
#[repr(align(128))]
struct Slot {
    stamp: AtomicU64,
    /// `None` where the slot was taken for nothing; the consumer passes over it.
    event: UnsafeCell<Option<Event>>,
}

// SAFETY: the event is touched only by the one who owns the slot: the taker from compare-and-swap to stamp, then the
// consumer from stamp to stamp. Events may move between threads. Model: `a_slot_has_one_owner` in core/tests/loom.rs.
unsafe impl Sync for Slot {}

/// The one who takes events out. There is one per ring, for only [`ring`] makes it.
pub(crate) struct Consumer {
    ring: Arc<Ring>,
    /// The next ticket to take out.
    next: u64,
    /// The number of the last commit that was taken out.
    commits: u64,
}

/// A ring of so many slots, a power of two from 2 on, whose next commit gets the number after `last`.
pub(crate) fn ring(slots: u32, last: CommitNumber) -> (Arc<Ring>, Consumer) {
    ring_at(slots, 0, last)
}

fn ring_at(slots: u32, first: u64, last: CommitNumber) -> (Arc<Ring>, Consumer) {
    assert!(slots.is_power_of_two() && (2..=1 << 24).contains(&slots));
    let length = u64::from(slots);
    let slots = (0..length).map(|index| Slot {
        // The first ticket from `first` on that falls on this slot.
        stamp: AtomicU64::new(first + (index.wrapping_sub(first) & (length - 1))),
        event: UnsafeCell::new(None),
    });
    let ring = Arc::new(Ring {
        head: CachePadded::new(AtomicU64::new(pack(last.0, first))),
        consumed: CachePadded::new(Consumed { read: AtomicU64::new(first), commits: AtomicU64::new(last.0) }),
        slots: slots.collect(),
    });
    let consumer = Consumer { ring: ring.clone(), next: first, commits: last.0 };
    (ring, consumer)
}

/// A slot that was taken and not filled. Dropping it unfilled makes the consumer pass over it.
pub(crate) struct Reserved<'r> {
    ring: &'r Ring,
    ticket: u64,
    csn: Option<CommitNumber>,
}

impl Ring {
    /// Takes a slot for an event that is yet to be made. Until it is filled the consumer stands still before it.
    pub(crate) fn reserve(&self) -> Result<Reserved<'_>, Full> {
        self.take(false)
    }

    /// Takes a slot and fills it. `make` learns the ticket before the consumer can see the event.
    pub(crate) fn push(&self, make: impl FnOnce(Ticket) -> Event) -> Result<Ticket, Full> {
        let slot = self.take(false)?;
        let event = make(slot.ticket());
        Ok(slot.fill(event))
    }

    /// Takes a slot and the next commit number in one step and fills the slot. `make` may not panic.
    pub(crate) fn push_commit(
        &self,
        make: impl FnOnce(Ticket, CommitNumber) -> Event,
    ) -> Result<(Ticket, CommitNumber), Full> {
        let slot = self.take(true)?;
        let csn = slot.csn.expect("taken with a commit number");
        let event = make(slot.ticket(), csn);
        Ok((slot.fill(event), csn))
    }

    /// The ticket that the next event gets.
    pub(crate) fn next_ticket(&self) -> Ticket {
        // Acquire, pair A; the position of the consumer is read later and so is not far behind this head.
        let head = self.head.load(Ordering::Acquire);
        Ticket(self.full_number(&self.consumed.read, head as u32))
    }

    /// The number of the last commit that was decided.
    pub(crate) fn last_commit(&self) -> CommitNumber {
        let head = self.head.load(Ordering::Acquire);
        CommitNumber(self.full_number(&self.consumed.commits, (head >> 32) as u32))
    }

    /// The full number whose low half is `low`, which is near to the consumer's `base`, above or below.
    fn full_number(&self, base: &AtomicU64, low: u32) -> u64 {
        let base = base.load(Ordering::Acquire);
        base.wrapping_add_signed(i64::from(low.wrapping_sub(base as u32) as i32))
    }

    fn take(&self, commit: bool) -> Result<Reserved<'_>, Full> {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // Acquire, pair B: a slot that counts as free was stamped free.
            let read = self.consumed.read.load(Ordering::Acquire);
            // The consumer was looked at after the head: what it took out meanwhile only adds room. If it passed this
            // head, the head is outdated, the distance negative, and the exchange below fails.
            let waiting = (head as u32).wrapping_sub(read as u32) as i32;
            if waiting >= self.slots.len() as i32 {
                return Err(Full::EventRing);
            }
            let commits = (head >> 32).wrapping_add(u64::from(commit));
            let next = pack(commits, u64::from((head as u32).wrapping_add(1)));
            // AcqRel, pair A: whoever moved the head before had seen the consumer at most a ring's length behind it,
            // so the base that `full_number` reads next is near.
            match self.head.compare_exchange_weak(head, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        let ticket = self.full_number(&self.consumed.read, head as u32);
        let csn = commit.then(|| {
            let before = self.full_number(&self.consumed.commits, (head >> 32) as u32);
            CommitNumber(before + 1)
        });
        Ok(Reserved { ring: self, ticket, csn })
    }

    fn slot(&self, ticket: u64) -> &Slot {
        &self.slots[ticket as usize & (self.slots.len() - 1)]
    }

    fn write(&self, ticket: u64, event: Option<Event>) {
        let slot = self.slot(ticket);
        let mut wait = Wait::default();
        // Acquire, pair C: the consumer has taken out what was here a lap ago. Room was found before the slot was
        // taken, so this holds at once but for the case told at the head of this file.
        while slot.stamp.load(Ordering::Acquire) != ticket {
            wait.a_moment();
        }
        slot.event.with_mut(|content| {
            // SAFETY: this ticket was taken by one compare-and-swap, so it has one owner; the stamp says that the
            // slot is free for it, and nobody else touches the slot until the stamp below.
            unsafe { *content = event }
        });
        // Release, pair C: who sees the stamp sees the event.
        slot.stamp.store(ticket + 1, Ordering::Release);
    }
}

fn pack(commits: u64, slot: u64) -> u64 {
    commits << 32 | slot & u64::from(u32::MAX)
}

impl Reserved<'_> {
    pub(crate) fn ticket(&self) -> Ticket {
        Ticket(self.ticket)
    }

    /// Fills the slot and gives it to the consumer.
    pub(crate) fn fill(self, event: Event) -> Ticket {
        let ticket = self.ticket();
        self.ring.write(self.ticket, Some(event));
        std::mem::forget(self);
        ticket
    }
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        if self.csn.is_some() {
            // A number without its event would be a hole in the order of commits, and every snapshot after it wrong.
            std::process::abort();
        }
        self.ring.write(self.ticket, None);
    }
}

impl Consumer {
    /// Every slot with a lower ticket was taken out, or passed over because it was taken for nothing.
    pub(crate) fn drained_to(&self) -> Ticket {
        Ticket(self.next)
    }

    /// Takes out the next event, if the slot after the last one is filled.
    fn pop(&mut self) -> Option<(Ticket, Option<Event>)> {
        let slot = self.ring.slot(self.next);
        // Acquire, pair C: who sees the stamp sees the event.
        if slot.stamp.load(Ordering::Acquire) != self.next + 1 {
            return None;
        }
        // SAFETY: the stamp says that the owner is done with the slot; the next owner waits for the stamp below, and
        // there is one consumer, which is borrowed exclusively.
        let event = slot.event.with_mut(|content| unsafe { (*content).take() });
        // Release, pair C: the next owner finds the slot empty.
        slot.stamp.store(self.next + self.ring.slots.len() as u64, Ordering::Release);
        let ticket = Ticket(self.next);
        self.next += 1;
        self.commits += u64::from(matches!(event, Some(Event::Commit { .. })));
        Some((ticket, event))
    }

    /// Takes out up to `max` events in order; returns how many. Stops before the first slot that is not filled.
    pub(crate) fn drain(&mut self, max: usize, mut visit: impl FnMut(Ticket, Event)) -> usize {
        /// Takers are told in steps: their line is not taken from them for every event.
        const STEP: u64 = 64;
        let telling = Telling(self);
        let mut visited = 0;
        while visited < max
            && let Some((ticket, event)) = telling.0.pop()
        {
            if ticket.0 % STEP == STEP - 1 {
                telling.0.tell();
            }
            if let Some(event) = event {
                visited += 1;
                visit(ticket, event);
            }
        }
        visited
    }

    fn tell(&self) {
        // Release, pair B: slots below were stamped free before.
        self.ring.consumed.commits.store(self.commits, Ordering::Release);
        self.ring.consumed.read.store(self.next, Ordering::Release);
    }
}

/// Tells the takers at the end of a drain, however it ends.
struct Telling<'c>(&'c mut Consumer);

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        self.0.tell();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::pointer::WritePointer;

    fn aborted(tx: u64) -> Event {
        Event::Aborted { tx: WritePointer(tx) }
    }

    fn commit(tx: u64) -> Event {
        Event::Commit { tx: WritePointer(tx), stored: Default::default() }
    }

    fn drained(consumer: &mut Consumer) -> Vec<(u64, Event)> {
        let mut events = Vec::new();
        consumer.drain(usize::MAX, |ticket, event| events.push((ticket.0, event)));
        events
    }

    #[test]
    fn a_full_ring_refuses_and_takes_no_commit_number() {
        let (ring, mut consumer) = ring(2, CommitNumber(7));
        assert_eq!(ring.push_commit(|_, _| commit(1)), Ok((Ticket(0), CommitNumber(8))));
        assert_eq!(ring.push(|_| aborted(2)), Ok(Ticket(1)));
        assert_eq!(ring.push_commit(|_, _| unreachable!()), Err(Full::EventRing));
        assert_eq!(ring.last_commit(), CommitNumber(8));
        assert_eq!(drained(&mut consumer), [(0, commit(1)), (1, aborted(2))]);
        assert_eq!(ring.push_commit(|_, _| commit(3)), Ok((Ticket(2), CommitNumber(9))));
    }

    #[test]
    fn the_consumer_never_passes_a_slot_that_is_not_filled() {
        let (ring, mut consumer) = ring(8, CommitNumber(0));
        let first = ring.reserve().unwrap();
        let second = ring.reserve().unwrap();
        ring.push(|_| aborted(3)).unwrap();
        assert_eq!(drained(&mut consumer), []);
        drop(second);
        first.fill(aborted(1));
        assert_eq!(
            drained(&mut consumer),
            [(0, aborted(1)), (2, aborted(3))],
            "a slot taken for nothing is passed over"
        );
    }

    #[test]
    fn both_numbers_are_exact_where_their_low_halves_wrap() {
        const LOW: u64 = 1 << 32;
        for (slot, csn) in [(LOW - 3, LOW - 5), (LOW - 5, LOW - 3), (LOW - 1, 0), (5 * LOW - 2, 9 * LOW - 2), (7, 3)] {
            let (ring, mut consumer) = ring_at(4, slot, CommitNumber(csn));
            let (mut slot, mut csn) = (slot, csn);
            for round in 0..20 {
                for _ in 0..round % 4 {
                    csn += 1;
                    assert_eq!(ring.push_commit(|_, _| commit(slot)), Ok((Ticket(slot), CommitNumber(csn))));
                    slot += 1;
                }
                assert_eq!(ring.push(|_| aborted(slot)), Ok(Ticket(slot)));
                slot += 1;
                assert_eq!((ring.next_ticket(), ring.last_commit()), (Ticket(slot), CommitNumber(csn)));
                let events = drained(&mut consumer);
                assert_eq!(events.len(), round % 4 + 1);
                assert_eq!(events.last(), Some(&(slot - 1, aborted(slot - 1))));
                assert_eq!((ring.next_ticket(), ring.last_commit()), (Ticket(slot), CommitNumber(csn)));
            }
        }
    }

    #[test]
    fn a_slot_is_two_lines() {
        assert_eq!(size_of::<Slot>(), 128);
    }
}
