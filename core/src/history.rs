//! What earlier commits left behind for later ones to be checked against. Recovery fills it while it replays the log.

use crate::change_set::ChangeId;
use crate::conflict::ConflictIndex;
use crate::labels::LabelId;
use crate::limits::Limits;
use crate::pointer::{CommitNumber, WritePointer};
use crate::winners::Winners;

/// The conflict index and the winners' names, before anybody decides.
pub struct History {
    pub(crate) index: ConflictIndex,
    pub(crate) winners: Winners,
}

impl History {
    /// A history that knows nothing about commits up to `floor`: whoever began on a snapshot before it, and would have
    /// to be checked, is refused as too old.
    ///
    /// # Panics
    /// If the limits contradict each other.
    pub fn new(limits: &Limits, floor: CommitNumber) -> History {
        if let Err(error) = limits.check() {
            panic!("limits: {error}");
        }
        History { index: ConflictIndex::new(limits.conflict_index_bytes, floor), winners: Winners::new(limits.winners) }
    }

    /// Adds the commit with this number, with the ids that it stored. Commits are added in their order.
    pub fn remember(&mut self, csn: CommitNumber, tx: WritePointer, stored: impl IntoIterator<Item = ChangeId>) {
        self.winners.put(csn, tx, LabelId::NONE);
        self.index.remember(csn, stored.into_iter());
    }
}
