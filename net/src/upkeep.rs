//! What operators ask of the durable half: to forget invalid transactions, to raise fences, to hand out its state, and a
//! line for the log now and then.

use std::time::Duration;

use seriatim_core::event::Event;
use seriatim_core::{CommitNumber, Full, LABELS_MAX, Ticket, WritePointer};
use seriatim_wal::Storage;
use seriatim_wire::Fenced;

use crate::clock::Now;
use crate::fences::FenceId;
use crate::plant::Plant;
use crate::publication::Publication;

/// How often statistics are logged, if anything has changed: 10 s.
const STATISTICS_EVERY: Duration = Duration::from_secs(10);

/// What the last line of statistics said.
#[derive(Default)]
pub(crate) struct Statistics {
    said_at: Option<Duration>,
    csn: CommitNumber,
    next: WritePointer,
    /// That there is no room for further labels was said.
    said_labels: bool,
}

impl<S: Storage, P: Plant> Publication<S, P> {
    /// Forgets an invalid transaction. `None` if it is not invalid, or lost in a crash.
    pub(crate) fn truncate(&mut self, tx: WritePointer) -> Result<Option<Ticket>, Full> {
        if !self.published().may_truncate(tx) {
            return Ok(None);
        }
        self.push(Event::Truncate { tx }).map(Some)
    }

    /// Forgets every invalid transaction below a pointer: how many there are. If one that began below it is open, this is
    /// the answer instead: it may still become invalid. Walks over everything that is open or invalid.
    pub(crate) fn truncate_before(&mut self, bound: WritePointer) -> Result<Result<(u64, Ticket), WritePointer>, Full> {
        let mut oldest = bound;
        self.core().for_each_open(|open| oldest = oldest.min(open.tx));
        if oldest < bound {
            return Ok(Err(oldest));
        }
        let forgotten = self.published().invalid_before(bound);
        Ok(Ok((forgotten, self.push(Event::TruncateBefore { bound })?)))
    }

    /// Raises a fence at this moment; see `fences.rs`.
    pub(crate) fn raise_fence(&mut self, now: Now, timeout_ms: u64) -> Result<FenceId, Full> {
        // The pointer first: who takes a lower one has its place in the order of events already.
        let next = self.next_pointer();
        let (snapshot, decided_to) = (self.published().csn(), self.next_ticket().0);
        self.fences.raise(next, snapshot, decided_to, now.monotonic, timeout_ms)
    }

    /// What came of a fence, if that is known by now; it is forgotten then.
    pub(crate) fn fence_outcome(&mut self, fence: FenceId, now: Now) -> Option<Fenced> {
        let core = self.core().clone();
        self.fences.outcome(fence, now.monotonic, &core)
    }

    /// The published state as a whole image file. Copies all of it.
    pub(crate) fn image_file(&self) -> Vec<u8> {
        let mut file = Vec::new();
        self.log()
            .write_image(&mut file, |out| out.write_all(&self.published().save_image()))
            .expect("memory takes all that is written");
        file
    }

    /// Logs how the sequencer is, every ten seconds in which anything happened.
    pub(crate) fn say_statistics(&mut self, now: Now) {
        let since = match self.statistics.said_at {
            Some(at) if now.monotonic.saturating_sub(at) < STATISTICS_EVERY => return,
            at => at,
        };
        let (csn, next) = (self.published().csn(), self.next_pointer());
        let said_labels = self.core().labels_are_full();
        let said = Statistics { said_at: Some(now.monotonic), csn, next, said_labels };
        let before = std::mem::replace(&mut self.statistics, said);
        if said_labels && !before.said_labels {
            log::warn!(
                "{LABELS_MAX} different labels have come: transactions with further ones have none until the next start. A \
                 label says what a transaction is for; a number of its own in each is too much"
            );
        }
        // The first look is at the start.
        let Some(since) = since.filter(|_| (csn, next) != (before.csn, before.next)) else { return };
        let passed = now.monotonic.saturating_sub(since);
        let published = self.published();
        log::info!(
            "statistics: {} commits, {:.0}/s; open {}, invalid {}, excluded {}, checked sets {}, outcomes {}; \
             next pointer {next}, read pointer {}, record {}",
            csn,
            (csn.0 - before.csn.0) as f64 / passed.as_secs_f64(),
            self.core().open_len(),
            published.invalid().len(),
            self.snapshot().excluded_len(),
            self.core().pending_len(),
            published.outcomes_len(),
            published.read_pointer(),
            self.log().durable(),
        );
    }
}
