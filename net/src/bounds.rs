//! How far garbage may be collected: the visibility bound, and the bound up to which stores clean.
//!
//! **Visibility bound**: every reader there is has settled what lies at or below it. It is the least of three. Open
//! transactions brought what their snapshot had settled with their begin; a begin that is not published yet stands on
//! the current snapshot, or on one that is not reclaimed; and whoever reads through a snapshot without a transaction is
//! known to nobody, so what counts for those is the newest snapshot of as long ago as they may read. After a start that
//! is the snapshot of the start: what the run before had published is unknown and may be read for as long, so until then
//! the bound is 0.
//!
//! **Clean bound**: nobody can write under a pointer up to it any more. Everybody up to it has ended, and whoever ended
//! invalid is past its deadline and a delay for writes that were on their way.

use std::collections::VecDeque;
use std::time::Duration;

use seriatim_core::event::Event;
use seriatim_core::{
    Full, InvalidTransaction, STORES_MAX, SequencerTime, StillWriting, StoreName, Ticket, WritePointer,
};
use seriatim_wal::Storage;
use seriatim_wire::{CleanBound, CleanHolder, PruneReport, StoreRefusal};

use crate::clock::Now;
use crate::desk::listed;
use crate::plant::Plant;
use crate::publication::Publication;
use crate::recovery::Options;

/// How often what is settled is noted down.
const NOTE_EVERY: Duration = Duration::from_millis(250);
/// What is added to the age of a snapshot, for clocks that run apart.
const AGE_MARGIN: Duration = Duration::from_secs(1);
/// With more open transactions than this the walk over them is made four times a second at most. It takes about a
/// millisecond then.
const OPEN_WALK_MAX: usize = 1 << 16;

/// What has to be remembered for the bounds; see the head of this file.
pub(crate) struct Bounds {
    /// For how long somebody may read through a snapshot without a transaction.
    age_ms: u32,
    /// That and the margin.
    age: Duration,
    write_delay_ms: u64,
    /// What was settled when, oldest first; of those older than `age` the newest alone.
    settled: VecDeque<(Duration, WritePointer)>,
    /// The visibility bound, and when it was found.
    visible: Option<(Duration, WritePointer)>,
    /// The greatest clean bound that anybody was given. Starts with the greatest that was ever acknowledged.
    given: WritePointer,
    /// Tickets of registrations that are not published yet.
    registering: Vec<Ticket>,
}

impl Bounds {
    /// Nothing was given out in this run yet.
    pub(crate) fn new(options: &Options, acknowledged: WritePointer) -> Bounds {
        Bounds {
            age_ms: options.snapshot_age_ms,
            age: Duration::from_millis(u64::from(options.snapshot_age_ms)) + AGE_MARGIN,
            write_delay_ms: options.write_delay_ms,
            settled: VecDeque::new(),
            visible: None,
            given: acknowledged,
            registering: Vec::new(),
        }
    }

    /// Notes what is settled for the newest snapshot.
    pub(crate) fn note(&mut self, now: Duration, settled: impl FnOnce() -> WritePointer) {
        if self.settled.back().is_none_or(|(at, _)| now.saturating_sub(*at) >= NOTE_EVERY) {
            self.settled.push_back((now, settled()));
            while self.settled.get(1).is_some_and(|(at, _)| *at + self.age <= now) {
                self.settled.pop_front();
            }
        }
    }

    /// What every snapshot has settled that may still be read through without a transaction.
    fn settled_for_unknown(&self, now: Duration) -> WritePointer {
        let old_enough = self.settled.iter().take_while(|(at, _)| *at + self.age <= now);
        old_enough.last().map_or(WritePointer(0), |(_, settled)| *settled)
    }
}

impl<S: Storage, P: Plant> Publication<S, P> {
    /// For how long somebody may read through a snapshot without a transaction.
    pub(crate) fn snapshot_age_ms(&mut self) -> u32 {
        self.for_bounds().2.age_ms
    }

    /// The visibility bound; see the head of this file. It never goes back while this process runs.
    pub(crate) fn visibility_bound(&mut self, now: Now) -> WritePointer {
        let (published, publisher, bounds, released_to) = self.for_bounds();
        let at = now.monotonic;
        if let Some((found, bound)) = bounds.visible
            && (found == at || (published.open_len() > OPEN_WALK_MAX && at.saturating_sub(found) < NOTE_EVERY))
        {
            return bound;
        }
        if P::bound_by_pointers() {
            let smallest = published.open().map(|open| open.tx.0 - 1).min();
            return smallest.map_or(published.read_pointer(), WritePointer);
        }
        let open = published.open().map(|open| open.settled).min();
        let begun = publisher.settled_floor(released_to.checked_sub(1).map(Ticket));
        let bound = open.into_iter().chain([begun, bounds.settled_for_unknown(at)]).min().expect("there are two");
        let before = bounds.visible.map_or(WritePointer(0), |(_, before)| before);
        assert!(bound >= before, "the visibility bound went back from {before} to {bound}");
        bounds.visible = Some((at, bound));
        bound
    }

    /// How far stores may clean now, and what is in the way of more.
    fn clean_bound(&mut self, now: Now) -> (WritePointer, Option<Holder>) {
        let settled = self.snapshot().settled();
        let in_progress = (settled < self.snapshot().read_pointer).then(|| WritePointer(settled.0 + 1));
        let (published, _, bounds, _) = self.for_bounds();
        let past = SequencerTime(now.sequencer.0.saturating_sub(bounds.write_delay_ms));
        let writing = published.first_writing_after(past);
        let (clean, holder) = match (writing, in_progress) {
            (Some(writing), _) if writing.tx <= settled && !P::clean_early() => {
                (WritePointer(writing.tx.0 - 1), Some(Holder::Writing(writing)))
            }
            (_, Some(tx)) => (settled, Some(Holder::InProgress(tx))),
            (_, None) => (settled, None),
        };
        bounds.given = bounds.given.max(clean);
        (clean, holder)
    }

    /// How far a store may clean, for somebody who does.
    pub(crate) fn clean_bounds(&mut self, now: Now) -> CleanBound {
        let (clean, _) = self.clean_bound(now);
        CleanBound { clean, visible: self.visibility_bound(now) }
    }

    /// Registers a store; `None` if it is there.
    pub(crate) fn register_store(
        &mut self,
        name: StoreName,
        now: Now,
    ) -> Result<Result<Option<Ticket>, StoreRefusal>, Full> {
        let (published, _, bounds, released_to) = self.for_bounds();
        if published.stores().get(name.as_str()).is_some() {
            return Ok(Ok(None));
        }
        bounds.registering.retain(|ticket| ticket.0 >= released_to);
        if published.stores().len() + bounds.registering.len() >= STORES_MAX {
            return Ok(Err(StoreRefusal::FULL));
        }
        let ticket = self.push(Event::StoreRegistered { name, at_ms: now.wall_ms })?;
        self.for_bounds().2.registering.push(ticket);
        Ok(Ok(Some(ticket)))
    }

    /// Takes a store out; `None` if it is not there.
    pub(crate) fn remove_store(&mut self, name: StoreName) -> Result<Option<Ticket>, Full> {
        if self.published().stores().get(name.as_str()).is_none() {
            return Ok(None);
        }
        self.push(Event::StoreRemoved { name }).map(Some)
    }

    /// A store has cleaned up to a bound. What every store has is then forgotten.
    pub(crate) fn store_cleaned(
        &mut self,
        name: StoreName,
        bound: WritePointer,
        now: Now,
    ) -> Result<Result<Ticket, StoreRefusal>, Full> {
        let (published, _, bounds, _) = self.for_bounds();
        if published.stores().get(name.as_str()).is_none() {
            return Ok(Err(StoreRefusal::Unknown));
        }
        let greatest = bounds.given;
        if bound > greatest {
            return Ok(Err(StoreRefusal::NotHandedOut { bound, greatest }));
        }
        let bound = if P::cleaned_beyond() { greatest } else { bound };
        self.push(Event::StoreCleaned { name, bound, at_ms: now.wall_ms }).map(Ok)
    }

    /// Who keeps the invalid set from becoming smaller.
    pub(crate) fn prune_report(&mut self, now: Now) -> PruneReport {
        let (clean, holder) = self.clean_bound(now);
        let bounds = CleanBound { clean, visible: self.visibility_bound(now) };
        let holder = match holder {
            None => CleanHolder::Nothing,
            Some(Holder::InProgress(tx)) => match self.core().view(tx) {
                Some(open) => CleanHolder::Open(Box::new(listed(&open, self.core(), now))),
                None => CleanHolder::Deciding(tx),
            },
            Some(Holder::Writing(StillWriting { tx, kept: InvalidTransaction { kind, cause, writes_until } })) => {
                let until = writes_until.plus_ms(self.for_bounds().2.write_delay_ms);
                let remaining_ms = until.0.saturating_sub(now.sequencer.0);
                CleanHolder::Writing { tx, kind, cause, remaining_ms }
            }
        };
        let published = self.published();
        let stores = published.stores().iter().map(|(name, store)| (name.clone(), *store)).collect();
        PruneReport { bounds, invalid: published.invalid_len(), holder, stores }
    }
}

/// What holds the clean bound back.
enum Holder {
    /// This one has not ended.
    InProgress(WritePointer),
    /// The client of this one may still write.
    Writing(StillWriting),
}
