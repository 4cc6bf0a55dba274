//! The publisher's side of the decided state: one owner, who carries events to the log and durable state back.

use std::sync::Arc;

use crate::current::Replacer;
use crate::event::Event;
use crate::pointer::WritePointer;
use crate::ring::{Consumer, Ticket};
use crate::sequencer::Sequencer;
use crate::snapshot::Snapshot;
use crate::sync::Ordering;
use crate::transaction::Full;

/// The publisher's role. There is one per sequencer; it may move between threads and cannot be shared or cloned.
pub struct Publisher {
    sequencer: Arc<Sequencer>,
    consumer: Consumer,
    replacer: Replacer,
}

impl Publisher {
    pub(crate) fn new(sequencer: Arc<Sequencer>, consumer: Consumer, replacer: Replacer) -> Publisher {
        Publisher { sequencer, consumer, replacer }
    }

    /// The sequencer that this is the publisher of.
    pub fn sequencer(&self) -> &Arc<Sequencer> {
        &self.sequencer
    }

    /// Lifts the pointers to the clock, but never past the end of the window. `None` if they are there already.
    ///
    /// The answer goes into the log **before** any further event is drained: it says which pointers were handed out, and
    /// an event that is drained later may name one beyond.
    #[must_use = "the log has to say which pointers were passed over"]
    pub fn tick(&mut self, now_ms: u64) -> Option<Event> {
        self.sequencer.pointers.tick(now_ms)
    }

    /// Adds an event that does not come from a transaction's own end: a window, a start, a stop, a reset, the rollback
    /// of an invalid transaction.
    ///
    /// # Errors
    /// If the ring is full; drain and repeat.
    pub fn push(&mut self, event: Event) -> Result<Ticket, Full> {
        assert!(!matches!(event, Event::Commit { .. }), "a commit has a number, and only a decision takes one");
        self.sequencer.ring.push(|_| event)
    }

    /// Takes out up to `max` events in their order and returns how many there were. Stops before a slot that was taken
    /// and is not filled yet.
    pub fn drain(&mut self, max: usize, visit: impl FnMut(Ticket, Event)) -> usize {
        self.consumer.drain(max, visit)
    }

    /// Events with lower tickets were drained. Slots that were taken for nothing have tickets and no events, so this may
    /// be further than the last event that was seen.
    pub fn drained_to(&self) -> Ticket {
        self.consumer.drained_to()
    }

    /// The ticket that the next event gets.
    pub fn next_ticket(&self) -> Ticket {
        self.sequencer.ring.next_ticket()
    }

    /// From now on begins start from this snapshot. Everything it holds is durable.
    pub fn publish(&mut self, snapshot: Arc<Snapshot>) {
        self.sequencer.current.replace(&mut self.replacer, snapshot);
    }

    /// The greatest version that is settled for every begin that is not published yet, if all events up to and
    /// including `published` are. Together with the transactions that are open in the published state it bounds what
    /// garbage collection may look at.
    pub fn settled_floor(&mut self, published: Option<Ticket>) -> WritePointer {
        self.replacer.settled_floor(published, || self.sequencer.ring.next_ticket())
    }

    /// Pointers may be handed out up to, but not including, this one; that is durable. An end never goes back.
    pub fn set_window_end(&mut self, end: WritePointer) {
        self.sequencer.pointers.set_end(end);
    }

    /// The first pointer that may not be handed out.
    pub fn window_end(&self) -> WritePointer {
        self.sequencer.pointers.end()
    }

    /// The pointer that is handed out next.
    pub fn next_pointer(&self) -> WritePointer {
        self.sequencer.pointers.next()
    }

    /// The end of this transaction is published: its entry is freed. Does nothing if it is not in the table.
    ///
    /// # Panics
    /// If the transaction is in the table and has not ended.
    pub fn forget(&mut self, tx: WritePointer) {
        self.sequencer.table.forget(tx);
    }

    /// Refuses LONG begins, or lets them in again: as many transactions are invalid as may be.
    pub fn refuse_long(&mut self, refuse: bool) {
        self.sequencer.invalid_full.store(refuse, Ordering::Relaxed);
    }

    /// Drops all open transactions from the decided state. The answer is the floor: transactions below it are unknown
    /// from now on.
    ///
    /// Nobody may begin or decide at the same time, and whoever calls pushes the [`Event::Reset`] with this floor next.
    pub fn reset(&mut self) -> WritePointer {
        self.sequencer.table.clear();
        self.sequencer.pending.clear();
        self.next_pointer()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_role_moves_between_threads_and_the_sequencer_is_shared() {
        fn moves<T: Send>() {}
        fn is_shared<T: Send + Sync>() {}
        moves::<Publisher>();
        is_shared::<Sequencer>();
    }
}
