//! What operators ask of an embedded sequencer.

use std::io::{self, Write};
use std::sync::PoisonError;
use std::time::Duration;

use seriatim_core::{Full, WritePointer};
use seriatim_wire::{Fenced, Truncated};

use super::{Embedded, EmbeddedError, KEEPER_EVERY};
use crate::failure::Failure;

impl Embedded {
    /// Forgets an invalid transaction with all of its pointers, or an interval that a crash left unaccounted by its first
    /// pointer: it is excluded no more. Whoever asks says that nothing of it stands in any store. False if it was not
    /// invalid. Waits until that is durable.
    ///
    /// # Errors
    /// If the log failed or is full.
    pub fn truncate(&self, tx: WritePointer) -> Result<bool, EmbeddedError<Full>> {
        let shared = &self.house.shared;
        let ticket = shared.leader()?.half.truncate(tx).map_err(EmbeddedError::Refused)?;
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
        let truncated = shared.leader()?.half.truncate_before(bound).map_err(EmbeddedError::Refused)?;
        match truncated {
            Ok((forgotten, ticket)) => {
                shared.wait_for(Some(ticket))?;
                Ok(Truncated::Done(forgotten))
            }
            Err(open) => Ok(Truncated::InProgress(open)),
        }
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
            drop(shared.news.wait_timeout(waiting, KEEPER_EVERY).unwrap_or_else(PoisonError::into_inner));
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
