//! Whose turn it is to carry the durable half.

use std::ops::{Deref, DerefMut};
use std::sync::{LockResult, MutexGuard};

use seriatim_core::{CommitError, Full, Status, StoreName, Ticket, WritePointer};
use seriatim_wal::Storage;
use seriatim_wire::{CleanBound, Fenced, PruneReport, StoreRefusal};

use super::Shared;
use crate::clock::{Now, SystemClock, Times};
use crate::failure::Failure;
use crate::fences::FenceId;
use crate::plant::Honest;
use crate::publication::Publication;

/// The durable half, and whose turn it is to carry it.
pub(super) struct Lead {
    pub(super) half: Box<dyn DurableHalf>,
    pub(super) times: Times,
    pub(super) clock: SystemClock,
    pub(super) failure: Option<Failure>,
}

/// The lead in somebody's hands. Whoever lets go of it, by a panic too, tells those who wait: for a ticket, or to lead.
/// Not to be let go of by who holds `waiting`, which telling takes.
pub(super) struct Leader<'s> {
    shared: &'s Shared,
    /// `None` only while it is being let go of.
    lead: Option<MutexGuard<'s, Lead>>,
}

impl<'s> Leader<'s> {
    pub(super) fn new(shared: &'s Shared, lead: LockResult<MutexGuard<'s, Lead>>) -> Leader<'s> {
        let lead = lead.unwrap_or_else(|panicked| {
            let mut lead = panicked.into_inner();
            // A panic leaves the log in an unknown place, like a failed write.
            lead.failure.get_or_insert(Failure::Panicked);
            lead
        });
        Leader { shared, lead: Some(lead) }
    }

    /// Looks at the clock.
    pub(super) fn now(&mut self) -> Now {
        let Lead { times, clock, .. } = &mut **self;
        times.look(clock)
    }

    /// Nothing can be carried any further after a failure.
    pub(super) fn check(&self) -> Result<(), Failure> {
        self.failure.clone().map_or(Ok(()), Err)
    }
}

impl Deref for Leader<'_> {
    type Target = Lead;

    fn deref(&self) -> &Lead {
        self.lead.as_ref().expect("a leader has the lead")
    }
}

impl DerefMut for Leader<'_> {
    fn deref_mut(&mut self) -> &mut Lead {
        self.lead.as_mut().expect("a leader has the lead")
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        // First the lead and then the word, so that whoever is told can have it.
        self.lead = None;
        self.shared.tell();
    }
}

/// The durable half over some storage.
pub(super) trait DurableHalf: Send {
    fn step(&mut self, times: &mut Times, clock: &SystemClock, block: bool) -> Result<(), Failure>;
    fn released_to(&self) -> u64;
    fn last_ticket(&self) -> Option<Ticket>;
    fn has_no_room(&self) -> bool;
    fn status(&self, tx: WritePointer) -> Status;
    fn abort_invalid(&mut self, tx: WritePointer) -> Option<Result<Ticket, Full>>;
    fn given_before(&self, tx: WritePointer, number: u32) -> Result<WritePointer, CommitError>;
    fn is_idle(&self) -> bool;
    fn wake(&mut self, now: Now);
    fn truncate(&mut self, tx: WritePointer) -> Result<Option<Ticket>, Full>;
    fn truncate_before(&mut self, bound: WritePointer) -> Result<Result<(u64, Ticket), WritePointer>, Full>;
    fn clean_bounds(&mut self, now: Now) -> CleanBound;
    fn register_store(&mut self, name: StoreName, now: Now) -> Result<Result<Option<Ticket>, StoreRefusal>, Full>;
    fn remove_store(&mut self, name: StoreName) -> Result<Option<Ticket>, Full>;
    fn store_cleaned(
        &mut self,
        name: StoreName,
        bound: WritePointer,
        now: Now,
    ) -> Result<Result<Ticket, StoreRefusal>, Full>;
    fn prune_report(&mut self, now: Now) -> PruneReport;
    fn raise_fence(&mut self, now: Now, timeout_ms: u64) -> Result<FenceId, Full>;
    fn fence_outcome(&mut self, fence: FenceId, now: Now) -> Option<Fenced>;
    fn image_file(&self) -> Vec<u8>;
    fn write_path(&self) -> String;
    fn stop(&mut self, times: &mut Times, clock: &SystemClock) -> Result<(), Failure>;
}

impl<S: Storage> DurableHalf for Publication<S, Honest> {
    fn step(&mut self, times: &mut Times, clock: &SystemClock, block: bool) -> Result<(), Failure> {
        let now = times.look(clock);
        self.publish(now)?;
        self.tick_after_use(now);
        self.keep(now);
        self.append()?;
        if block {
            self.hasten();
        }
        self.submit(now)?;
        let published = if block { self.publish_blocking(now) } else { self.publish(now) };
        published.map(|_| ())
    }

    fn released_to(&self) -> u64 {
        Publication::released_to(self)
    }

    fn last_ticket(&self) -> Option<Ticket> {
        Publication::last_ticket(self)
    }

    fn has_no_room(&self) -> bool {
        Publication::has_no_room(self)
    }

    fn status(&self, tx: WritePointer) -> Status {
        Publication::status(self, tx)
    }

    fn abort_invalid(&mut self, tx: WritePointer) -> Option<Result<Ticket, Full>> {
        Publication::abort_invalid(self, tx)
    }

    fn given_before(&self, tx: WritePointer, number: u32) -> Result<WritePointer, CommitError> {
        Publication::given_before(self, tx, number)
    }

    fn is_idle(&self) -> bool {
        Publication::is_idle(self)
    }

    fn wake(&mut self, now: Now) {
        self.tick(now);
    }

    fn truncate(&mut self, tx: WritePointer) -> Result<Option<Ticket>, Full> {
        Publication::truncate(self, tx)
    }

    fn truncate_before(&mut self, bound: WritePointer) -> Result<Result<(u64, Ticket), WritePointer>, Full> {
        Publication::truncate_before(self, bound)
    }

    fn clean_bounds(&mut self, now: Now) -> CleanBound {
        Publication::clean_bounds(self, now)
    }

    fn register_store(&mut self, name: StoreName, now: Now) -> Result<Result<Option<Ticket>, StoreRefusal>, Full> {
        Publication::register_store(self, name, now)
    }

    fn remove_store(&mut self, name: StoreName) -> Result<Option<Ticket>, Full> {
        Publication::remove_store(self, name)
    }

    fn store_cleaned(
        &mut self,
        name: StoreName,
        bound: WritePointer,
        now: Now,
    ) -> Result<Result<Ticket, StoreRefusal>, Full> {
        Publication::store_cleaned(self, name, bound, now)
    }

    fn prune_report(&mut self, now: Now) -> PruneReport {
        Publication::prune_report(self, now)
    }

    fn raise_fence(&mut self, now: Now, timeout_ms: u64) -> Result<FenceId, Full> {
        Publication::raise_fence(self, now, timeout_ms)
    }

    fn fence_outcome(&mut self, fence: FenceId, now: Now) -> Option<Fenced> {
        Publication::fence_outcome(self, fence, now)
    }

    fn image_file(&self) -> Vec<u8> {
        Publication::image_file(self)
    }

    fn write_path(&self) -> String {
        self.log().write_path()
    }

    fn stop(&mut self, times: &mut Times, clock: &SystemClock) -> Result<(), Failure> {
        Publication::stop(self, || times.look(clock))
    }
}
