//! What operators ask of an embedded sequencer.

use std::io::{self, Write};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use seriatim_core::{Full, StoreName, WritePointer};
use seriatim_wire::{CleanBound, Fenced, PruneReport, StoreRefusal, Truncated};

use super::lead::Leader;
use super::{Embedded, EmbeddedError, KEEPER_EVERY};
use crate::failure::Failure;

/// Why an embedded sequencer did not do what a registered store asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreError {
    /// It would not be right.
    #[error(transparent)]
    Refused(#[from] StoreRefusal),
    /// Full for the moment; nothing was done.
    #[error("overloaded: {0}")]
    Overloaded(#[from] Full),
}

fn refused<T>(said: Result<Result<T, StoreRefusal>, Full>) -> Result<T, EmbeddedError<StoreError>> {
    said.map_err(StoreError::from).and_then(|said| said.map_err(StoreError::from)).map_err(EmbeddedError::Refused)
}

impl Embedded {
    /// The lead, for a change that is no end of a transaction: refused while the log has no room for another segment.
    fn lead_to_change(&self) -> Result<Leader<'_>, EmbeddedError<Full>> {
        let shared = &self.house.shared;
        match shared.is_short.load(Ordering::Relaxed) {
            true => Err(EmbeddedError::Refused(Full::Disk)),
            false => Ok(shared.leader()?),
        }
    }

    fn lead_for_a_store(&self) -> Result<Leader<'_>, EmbeddedError<StoreError>> {
        self.lead_to_change().map_err(|error| match error {
            EmbeddedError::Refused(full) => EmbeddedError::Refused(full.into()),
            EmbeddedError::Failed(failure) => EmbeddedError::Failed(failure),
        })
    }

    /// Forgets an invalid transaction with all of its pointers: it is excluded no more. Whoever asks says that nothing of it
    /// stands in any store. False if it was not invalid, or if a crash left it
    /// [unaccounted](seriatim_core::InvalidCause::Unaccounted): that goes by [`Embedded::truncate_before`], or when every
    /// registered store is clean of it. Waits until that is durable.
    ///
    /// # Errors
    /// If the log failed or is full.
    pub fn truncate(&self, tx: WritePointer) -> Result<bool, EmbeddedError<Full>> {
        let shared = &self.house.shared;
        let ticket = self.lead_to_change()?.half.truncate(tx).map_err(EmbeddedError::Refused)?;
        shared.wait_for(ticket)?;
        Ok(ticket.is_some())
    }

    /// Forgets every invalid transaction below a pointer, as [`Embedded::truncate`] does; refused while one that began
    /// below it is open. Waits until that is durable.
    ///
    /// # Errors
    /// If the log failed or is full.
    pub fn truncate_before(&self, bound: WritePointer) -> Result<Truncated, EmbeddedError<Full>> {
        let shared = &self.house.shared;
        let truncated = self.lead_to_change()?.half.truncate_before(bound).map_err(EmbeddedError::Refused)?;
        match truncated {
            Ok((forgotten, ticket)) => {
                shared.wait_for(Some(ticket))?;
                Ok(Truncated::Done(forgotten))
            }
            Err(open) => Ok(Truncated::InProgress(open)),
        }
    }

    /// Registers a store, which says from then on what it has cleaned: while it is registered, nothing is forgotten that it
    /// may still hold. False if it was registered before. Waits until that is durable.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn register_store(&self, name: &StoreName) -> Result<bool, EmbeddedError<StoreError>> {
        let shared = &self.house.shared;
        let mut leader = self.lead_for_a_store()?;
        let now = leader.now();
        let ticket = refused(leader.half.register_store(name.clone(), now))?;
        drop(leader);
        shared.wait_for(ticket)?;
        Ok(ticket.is_some())
    }

    /// Takes a store out: its data is gone, or nobody reads it under transactions any more. False if it was not
    /// registered. Waits until that is durable.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn remove_store(&self, name: &StoreName) -> Result<bool, EmbeddedError<StoreError>> {
        let shared = &self.house.shared;
        let ticket = refused(self.lead_for_a_store()?.half.remove_store(name.clone()).map(Ok))?;
        shared.wait_for(ticket)?;
        Ok(ticket.is_some())
    }

    /// How far a store may clean now. Take a snapshot after this call, and clean by that.
    ///
    /// # Errors
    /// If the log failed.
    pub fn clean_bound(&self) -> Result<CleanBound, Failure> {
        let mut leader = self.house.shared.leader()?;
        let now = leader.now();
        Ok(leader.half.clean_bounds(now))
    }

    /// A registered store holds no version of an invalid transaction at or below `bound`, and that is durable. What is true
    /// of every registered store is forgotten. A lower bound than before changes nothing. Waits until that is durable.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub fn store_cleaned(&self, name: &StoreName, bound: WritePointer) -> Result<(), EmbeddedError<StoreError>> {
        let shared = &self.house.shared;
        let mut leader = self.lead_for_a_store()?;
        let now = leader.now();
        let ticket = refused(leader.half.store_cleaned(name.clone(), bound, now))?;
        drop(leader);
        Ok(shared.wait_for(Some(ticket))?)
    }

    /// Who keeps the invalid set from becoming smaller.
    ///
    /// # Errors
    /// If the log failed.
    pub fn pruning(&self) -> Result<PruneReport, Failure> {
        let mut leader = self.house.shared.leader()?;
        let now = leader.now();
        Ok(leader.half.prune_report(now))
    }

    /// How long a snapshot may be read through without a transaction.
    pub fn snapshot_age_max(&self) -> Duration {
        self.house.shared.snapshot_age
    }

    /// Waits until every transaction that was open at this call has ended: what was committed before it has then been
    /// seen by everybody who goes on. At most for `timeout`, cut to 24 h.
    ///
    /// # Errors
    /// If the log failed, or too many fences are waited for.
    pub fn fence(&self, timeout: Duration) -> Result<Fenced, EmbeddedError<Full>> {
        let shared = &self.house.shared;
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let mut leader = shared.leader()?;
        let now = leader.now();
        let fence = leader.half.raise_fence(now, timeout_ms).map_err(EmbeddedError::Refused)?;
        drop(leader);
        loop {
            let mut leader = shared.leader()?;
            shared.lead_on(&mut leader, false)?;
            let now = leader.now();
            if let Some(fenced) = leader.half.fence_outcome(fence, now) {
                return Ok(fenced);
            }
            drop(leader);
            let waiting = shared.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            shared.hear(waiting, KEEPER_EVERY);
        }
    }

    /// Writes an image of the published state to `out`, byte for byte as the log's image files are.
    ///
    /// # Errors
    /// What `out` says, or the failure of the log.
    pub fn dump_image(&self, out: &mut dyn Write) -> io::Result<()> {
        let file = self.house.shared.leader().map_err(io::Error::other)?.half.image_file();
        out.write_all(&file)
    }

    /// Which way the log is written, for people.
    pub fn storage(&self) -> Result<String, Failure> {
        Ok(self.house.shared.leader()?.half.write_path())
    }
}
