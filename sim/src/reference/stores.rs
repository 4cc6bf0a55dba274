//! The registered stores as the reference keeps them, and what is forgotten for what they have cleaned.

use seriatim_core::event::{Event, IdBytes};
use seriatim_core::{InvalidCause, StoreName, WritePointer};
use seriatim_wire::StoreRequest;

use super::{Known, Reference, Seen, Standing};
use crate::client::Call;
use crate::law;
use crate::verdict::{Judged, hold};

/// What operators and stores have asked for, and what the stores have cleaned.
#[derive(Default)]
pub(crate) struct Upkeep {
    asked_before: Vec<WritePointer>,
    asked_of_stores: Vec<StoreRequest<'static>>,
    /// By name.
    cleaned: Vec<(StoreName, WritePointer)>,
    /// The greatest bound that anybody was told to clean up to.
    pub clean_given: WritePointer,
    /// The last reset dropped everything below that had not ended well.
    pub floor: WritePointer,
    /// How often a store was removed.
    pub removed: u64,
    asked_to_reset: u64,
    /// Everything invalid below was forgotten once.
    pub forgotten_below: u64,
}

impl Upkeep {
    /// Somebody has asked for a reset.
    pub fn was_reset_asked(&self) -> bool {
        self.asked_to_reset > 0
    }

    /// The stores with what they have cleaned.
    pub fn stores(&self) -> &[(StoreName, WritePointer)] {
        &self.cleaned
    }

    fn was_asked(&self, request: StoreRequest<'_>) -> Judged {
        hold(self.asked_of_stores.contains(&request), law::TABLE, || {
            format!("{request:?} is durable, and nobody asked")
        })
    }
}

impl Reference {
    /// Somebody makes this call.
    pub fn asked(&mut self, call: Call) {
        match call {
            Call::Reset => self.upkeep.asked_to_reset += 1,
            Call::TruncateBefore(bound) => self.upkeep.asked_before.push(bound),
            Call::Store(request) if request.changes() && !self.upkeep.asked_of_stores.contains(&request) => {
                self.upkeep.asked_of_stores.push(request);
            }
            _ => {}
        }
    }

    /// An event of a store, or for what stores have cleaned.
    pub(super) fn upkeep_event(&mut self, event: &Event<IdBytes<'_>>, seen: &mut Seen) -> Judged {
        match event {
            Event::TruncateBefore { bound } => {
                let was_asked = self.upkeep.asked_before.contains(bound);
                hold(was_asked, law::ROLLED_BACK, || format!("all below {bound} is forgotten, and nobody asked"))?;
                let before = seen.forgotten.len();
                self.forget(bound.0, |_| true, seen);
                seen.truncated_before += (seen.forgotten.len() - before) as u64;
            }
            Event::StoreRegistered { name, .. } => {
                self.upkeep.was_asked(StoreRequest::Register { name: name.as_str() })?;
                if !self.upkeep.cleaned.iter().any(|(known, _)| known == name) {
                    self.upkeep.cleaned.push((name.clone(), WritePointer(0)));
                }
            }
            Event::StoreCleaned { name, bound, .. } => {
                self.upkeep.was_asked(StoreRequest::Cleaned { name: name.as_str(), bound: *bound })?;
                let given = self.upkeep.clean_given;
                hold(*bound <= given, law::TABLE, || {
                    format!("{name} has cleaned up to {bound}, and {given} was given")
                })?;
                if let Some((_, cleaned)) = self.upkeep.cleaned.iter_mut().find(|(known, _)| known == name) {
                    *cleaned = (*cleaned).max(*bound);
                }
                self.prune(seen);
            }
            Event::StoreRemoved { name } => {
                self.upkeep.was_asked(StoreRequest::Remove { name: name.as_str() })?;
                self.upkeep.cleaned.retain(|(known, _)| known != name);
                self.upkeep.removed += 1;
                seen.stores_removed += 1;
                self.prune(seen);
            }
            _ => {}
        }
        Ok(())
    }

    /// Everything that is open or invalid is dropped, as if it had never been.
    pub(super) fn reset(&mut self, floor: WritePointer, seen: &mut Seen) -> Judged {
        hold(self.upkeep.was_reset_asked(), law::TABLE, || format!("a reset below {floor}, and nobody asked"))?;
        hold(floor >= self.upkeep.floor, law::POINTERS, || {
            format!("a reset below {floor} after {}", self.upkeep.floor)
        })?;
        for (tx, known) in self.transactions.range_mut(..floor) {
            if !matches!(known.standing, Standing::Committed(_) | Standing::Aborted | Standing::Truncated) {
                seen.forgotten.extend(known.checkpoints.iter().chain([tx]));
                known.standing = Standing::Truncated;
                known.ended_place = self.outcomes;
            }
        }
        self.upkeep.floor = floor;
        self.upkeep.forgotten_below = self.upkeep.forgotten_below.max(floor.0);
        seen.is_reset = true;
        Ok(())
    }

    /// What every store has cleaned is forgotten, with all of its pointers or not at all.
    fn prune(&mut self, seen: &mut Seen) {
        let Some(bound) = self.upkeep.cleaned.iter().map(|(_, bound)| *bound).min() else { return };
        let before = seen.forgotten.len();
        let is_within = |known: &Known| known.checkpoints.iter().all(|pointer| *pointer <= bound);
        self.forget(bound.0 + 1, is_within, seen);
        seen.pruned += (seen.forgotten.len() - before) as u64;
    }

    fn forget(&mut self, below: u64, goes: impl Fn(&Known) -> bool, seen: &mut Seen) {
        for (tx, known) in self.transactions.range_mut(..WritePointer(below)) {
            if let Standing::Invalid(cause) = known.standing
                && goes(known)
            {
                seen.forgotten_unaccounted += u64::from(cause == InvalidCause::Unaccounted);
                seen.forgotten.extend(known.checkpoints.iter().chain([tx]));
                known.standing = Standing::Truncated;
                known.ended_place = self.outcomes;
            }
        }
        self.upkeep.forgotten_below = self.upkeep.forgotten_below.max(below);
    }
}
