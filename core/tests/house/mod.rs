//! A publisher with its published state, for which every event is durable as soon as it is applied; and dice.
#![allow(dead_code, reason = "every test uses a part of it")]

use std::sync::Arc;

use seriatim_core::event::{Event, PointerContext};
use seriatim_core::*;

/// When the tests take place, unless they say otherwise.
pub const NOW: SequencerTime = SequencerTime(100);

/// The publisher's side of a sequencer.
pub struct House {
    /// The publisher.
    pub publisher: Publisher,
    /// The published state.
    pub published: Published,
    /// Every end that was published.
    pub ends: Vec<Event>,
}

/// A sequencer from an empty log that may hand out `[first, window_end)`.
pub fn house(limits: Limits, first: u64, window_end: u64) -> (Arc<Sequencer>, House) {
    let mut published = Published::new(16);
    let (first, window_end) = (WritePointer(first), WritePointer(window_end));
    apply(&mut published, &Event::Start { boot: 1, first, time: NOW });
    apply(&mut published, &Event::Window { end: window_end });
    let csn = CommitNumber(0);
    let snapshot = published.next_snapshot();
    let from = Resume { next: first, window_end, csn, index_floor: csn, snapshot, open: Vec::new() };
    let (sequencer, publisher) = resume(limits, from);
    (sequencer, House { publisher, published, ends: Vec::new() })
}

/// Applies an event as it would be read from the log.
pub fn apply(published: &mut Published, event: &Event) -> Applied {
    let mut bytes = Vec::new();
    event.encode(&mut PointerContext::default(), &mut bytes);
    let read = Event::decode(event.kind() as u8, &bytes, &mut PointerContext::default()).expect("reads back");
    published.apply(&read).unwrap_or_else(|error| panic!("{event:?} cannot follow: {error}"))
}

impl House {
    /// Applies an event and does for the decided state what it asks for.
    pub fn apply(&mut self, event: Event) {
        match apply(&mut self.published, &event) {
            Applied::Ended { tx, .. } => {
                self.publisher.forget(tx);
                self.ends.push(event);
            }
            Applied::Window(end) => self.publisher.set_window_end(end),
            Applied::Nothing | Applied::Reset(_) => {}
        }
    }

    /// Drains up to `max` events and publishes what they came to; the events.
    pub fn publish_some(&mut self, max: usize) -> Vec<(Ticket, Event)> {
        let mut events = Vec::new();
        self.publisher.drain(max, |ticket, event| events.push((ticket, event)));
        if !events.is_empty() {
            events.iter().for_each(|(_, event)| self.apply(event.clone()));
            self.publisher.publish(self.published.next_snapshot());
        }
        events
    }

    /// Drains and publishes all there is; the events.
    pub fn publish(&mut self) -> Vec<(Ticket, Event)> {
        self.publish_some(usize::MAX)
    }

    /// Lifts the pointers to the clock and writes that down.
    pub fn tick(&mut self, now_ms: u64) {
        if let Some(tick) = self.publisher.tick(now_ms) {
            self.apply(tick);
        }
    }
}

/// Begins one SHORT transaction.
pub fn begin(sequencer: &Sequencer) -> Begun {
    sequencer.begin(NOW, &BeginOptions::default(), 1, 0).expect("there is room")
}

/// A change set of writes.
pub fn writes(ids: &[u64]) -> ChangeSet {
    ChangeSet { writes: ids.iter().map(|id| ChangeId(*id)).collect(), ..ChangeSet::default() }
}

/// Commits a change set of writes.
pub fn commit(sequencer: &Sequencer, tx: WritePointer, ids: &[u64]) -> Decision {
    sequencer.commit(NOW, tx, &writes(ids), &mut Scratch::new())
}

/// Dice with a seed.
pub struct Random(fastrand::Rng);

impl Random {
    /// Dice that fall as this seed says.
    pub fn new(seed: u64) -> Random {
        Random(fastrand::Rng::with_seed(seed))
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.u64(..bound)
    }

    /// True once in so many times.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}
