//! What is checked of upkeep: bounds, what stores clean, what is forgotten, images.

use seriatim_core::{Status, WritePointer};
use seriatim_net::SavedState;
use seriatim_wire::{CleanBound, PruneReport, StoreReply, Truncated};

use crate::client::Facts;
use crate::law;
use crate::probes::Probe;
use crate::reference::Standing;
use crate::verdict::{Judged, broken, hold};
use crate::world::World;

impl World {
    /// A version reaches the store.
    pub fn judge_write(&mut self, tx: WritePointer, pointer: WritePointer) -> Judged {
        let standing = self.reference.standing(tx);
        if matches!(standing, Some(Standing::Committed(_))) {
            return Ok(());
        }
        self.probes.hit_if(matches!(standing, Some(Standing::Invalid(_))), Probe::WroteAfterDeadline);
        let clean = self.reference.upkeep.clean_given;
        hold(pointer > clean, law::CLEAN, || {
            format!("{tx} writes under {pointer}, and stores may clean up to {clean}")
        })?;
        hold(standing != Some(Standing::Truncated), law::FORGOTTEN, || format!("{tx} writes, and is forgotten"))
    }

    /// These pointers are excluded by nobody from here on.
    pub(super) fn judge_forgotten(&self, forgotten: &[WritePointer]) -> Judged {
        if forgotten.is_empty() {
            return Ok(());
        }
        let left = self.store.versions().find(|version| forgotten.contains(&version.pointer));
        hold(left.is_none(), law::FORGOTTEN, || format!("{left:?} is forgotten, and stands in a store"))
    }

    pub(super) fn judge_store(&mut self, said: &StoreReply, facts: &Facts) -> Judged {
        match said {
            StoreReply::CleanBound(bounds) => self.judge_clean_bound(*bounds),
            StoreReply::Pruning(report) => self.judge_report(report, facts),
            _ => Ok(()),
        }
    }

    /// Everybody up to a clean bound has ended, and nobody there writes any more.
    fn judge_clean_bound(&mut self, CleanBound { clean, visible }: CleanBound) -> Judged {
        self.note("clean bound", &[("clean", clean.0), ("visible", visible.0)]);
        let given = &mut self.reference.upkeep.clean_given;
        *given = clean.max(*given);
        let open = self.reference.unended().next().filter(|tx| *tx <= clean);
        hold(open.is_none(), law::CLEAN, || format!("stores may clean up to {clean}, and {open:?} has not ended"))?;
        let may_write = |tx| matches!(self.reference.standing(tx), Some(Standing::Invalid(_) | Standing::Truncated));
        let mut late = self.under_way.values().map(|(tx, write)| (*tx, write.version.pointer));
        let late = late.find(|(tx, pointer)| *pointer <= clean && may_write(*tx));
        hold(late.is_none(), law::CLEAN, || format!("stores may clean up to {clean}, and {late:?} is on its way"))?;
        let mut writers = self.clients.iter().flat_map(|client| client.writers());
        let writer = writers.find(|(tx, until_us)| *tx <= clean && self.now() < *until_us && may_write(*tx));
        hold(writer.is_none(), law::CLEAN, || format!("stores may clean up to {clean}, and {writer:?} may write"))?;
        self.judge_visible(visible)
    }

    /// A report names the registered stores, and no bound that is not durable.
    fn judge_report(&mut self, report: &PruneReport, facts: &Facts) -> Judged {
        self.judge_clean_bound(report.bounds)?;
        let upkeep = &self.reference.upkeep;
        for (name, store) in &report.stores {
            // One that was removed on the report's way is not there, or was registered again and starts from 0.
            let known =
                upkeep.stores().iter().find(|(known, _)| known == name && facts.stores_removed == upkeep.removed);
            let bound = known.map_or(upkeep.clean_given, |(_, bound)| *bound);
            hold(store.bound <= bound, law::DURABLE, || {
                format!("{name} is said to have cleaned up to {}, and what is durable says {known:?}", store.bound)
            })?;
        }
        Ok(())
    }

    /// Nobody is open below a clean bound, so nothing keeps what is below from being forgotten.
    pub(super) fn judge_truncated_before(&self, bound: WritePointer, truncated: Truncated) -> Judged {
        match truncated {
            Truncated::Done(_) => Ok(()),
            Truncated::InProgress(tx) => broken(law::CLEAN, format!("{tx} is open, and stores cleaned up to {bound}")),
        }
    }

    /// A reset is durable.
    pub(super) fn judge_reset(&self, floor: WritePointer) -> Judged {
        let durable = self.reference.upkeep.floor;
        hold(floor <= durable, law::DURABLE, || {
            format!("a reset below {floor} is said to be, and {durable} is durable")
        })
    }

    /// An image holds what is durable, and nothing else.
    pub(super) fn judge_image(&mut self, bytes: &[u8], total: u64, facts: &Facts) -> Judged {
        if bytes.len() as u64 != total {
            return broken(law::PROTOCOL, format!("{} bytes of an image of {total} came", bytes.len()));
        }
        let SavedState { lsn, published, .. } = match SavedState::read(bytes) {
            Ok(saved) => saved,
            Err(error) => return broken(law::PROTOCOL, format!("an image does not read: {error}")),
        };
        self.probes.hit(Probe::ImageTaken);
        let (csn, last) = (published.csn().0, self.reference.csn());
        hold((facts.told_csn..=last).contains(&csn) && lsn < self.reference.next_lsn(), law::DURABLE, || {
            format!("an image holds {csn} commits of {} to {last}, up to record {lsn}", facts.told_csn)
        })?;
        for (tx, known) in &self.reference.transactions {
            let status = published.status(*tx);
            let fits = match (status, known.standing) {
                (Status::Committed(csn), standing) => standing == Standing::Committed(csn.0),
                (Status::Open | Status::Refused, Standing::Committed(csn)) => csn > published.csn().0,
                (Status::Invalid(cause), Standing::Invalid(known)) => cause == known,
                (Status::Invalid(_), standing) => matches!(standing, Standing::Aborted | Standing::Truncated),
                (Status::Aborted, standing) => standing == Standing::Aborted,
                _ => true,
            };
            hold(fits, law::DURABLE, || format!("{tx} is {status:?} in an image, and {:?} on disk", known.standing))?;
        }
        Ok(())
    }
}
