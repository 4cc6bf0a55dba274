//! A snapshot to read through without a transaction, for as long as it is good.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use seriatim_core::{CommitNumber, Snapshot, WritePointer};

use crate::clock::Clock;
use crate::error::Error;

/// A snapshot to read through without a transaction: nothing to end, and nothing that holds its versions, so it is
/// good only for the time that the server grants (60 s by default).
///
/// It has no versions of its own, so [levels of visibility](seriatim_core::Visibility) would make no difference to it.
#[derive(Clone)]
pub struct ReadSnapshot {
    snapshot: Arc<Snapshot>,
    asked: Instant,
    age_max: Duration,
    clock: Arc<dyn Clock>,
}

impl ReadSnapshot {
    /// A snapshot that was asked for at a time of this clock, and is good from then on for so long. The time is that
    /// before the question, so that it is never younger than it looks.
    pub fn new(snapshot: Arc<Snapshot>, asked: Instant, age_max: Duration, clock: Arc<dyn Clock>) -> ReadSnapshot {
        ReadSnapshot { snapshot, asked, age_max, clock }
    }

    /// The snapshot.
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`] past its time, for versions that it needs may be gone.
    pub fn get(&self) -> Result<&Arc<Snapshot>, Error> {
        let (age, max) = (self.age(), self.age_max);
        if age <= max { Ok(&self.snapshot) } else { Err(Error::SnapshotTooOld { age, max }) }
    }

    /// True if a version written under this pointer is part of the snapshot. Ask after the version was read: what was
    /// read before the snapshot's time was over was there.
    ///
    /// # Errors
    /// [`Error::SnapshotTooOld`] past its time.
    pub fn is_visible(&self, version: WritePointer) -> Result<bool, Error> {
        Ok(self.get()?.is_visible(version))
    }

    /// Place in the order of commits: the snapshot holds exactly the commits up to this one. Known at any age.
    pub fn csn(&self) -> CommitNumber {
        self.snapshot.csn
    }

    /// How old it is.
    pub fn age(&self) -> Duration {
        self.clock.now().saturating_duration_since(self.asked)
    }

    /// How long it may still be read through; zero if no more.
    pub fn time_left(&self) -> Duration {
        self.age_max.saturating_sub(self.age())
    }
}

impl fmt::Debug for ReadSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadSnapshot")
            .field("snapshot", &self.snapshot.id)
            .field("csn", &self.snapshot.csn)
            .field("time_left", &self.time_left())
            .finish_non_exhaustive()
    }
}
