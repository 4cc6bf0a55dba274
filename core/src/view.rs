//! What one transaction may see: its snapshot, and of its own versions those that its level of visibility shows.
//!
//! ```text
//!  visible(v) = in the snapshot(v)  or  own(v) and not (the level excludes the current pointer and v is that one)
//! ```

use std::sync::Arc;

use crate::pointer::WritePointer;
use crate::snapshot::Snapshot;

/// Which of its own versions a transaction reads. It is the reader's affair: the sequencer never hears of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Visibility {
    /// Own versions are read like committed ones, and of several the newest counts.
    #[default]
    Snapshot,
    /// As `Snapshot`, but what was written under the current write pointer stays out. Before the first checkpoint that
    /// hides all own versions; after it, what was written since the newest one: a scan does not meet what it writes.
    SnapshotExcludeCurrent,
    /// What is visible is the same as in `Snapshot`, but readers get every own version of a key, deletes among them, and
    /// then the newest committed one.
    SnapshotAll,
}

impl Visibility {
    /// True if readers get all own versions of a key instead of the newest.
    pub fn shows_all_own(self) -> bool {
        self == Visibility::SnapshotAll
    }
}

/// One transaction as a reader and writer of versions sees it. Clones share the snapshot.
///
/// All of its pointers are greater than its snapshot's read pointer, so what is its own is never excluded by the
/// snapshot, nor in it.
#[derive(Clone, Debug)]
pub struct TransactionView {
    id: WritePointer,
    snapshot: Arc<Snapshot>,
    checkpoints: Vec<WritePointer>,
    visibility: Visibility,
}

impl TransactionView {
    /// A transaction that has just begun, without checkpoints.
    pub fn new(id: WritePointer, snapshot: Arc<Snapshot>) -> TransactionView {
        TransactionView { id, snapshot, checkpoints: Vec::new(), visibility: Visibility::default() }
    }

    /// A view in which every version is visible, for tools that read whatever is there. It writes nothing.
    pub fn all_visible() -> TransactionView {
        let snapshot = Snapshot { read_pointer: WritePointer::MAX, ..Snapshot::default() };
        TransactionView::new(WritePointer::MAX, Arc::new(snapshot))
    }

    /// The same transaction at another level.
    pub fn with_visibility(self, visibility: Visibility) -> TransactionView {
        TransactionView { visibility, ..self }
    }

    /// The same transaction after a further checkpoint. Its level and its snapshot stay.
    ///
    /// # Panics
    /// If the pointer is not greater than those before it: it was never handed out to this transaction.
    pub fn with_checkpoint(mut self, pointer: WritePointer) -> TransactionView {
        let newest = self.write_pointer();
        assert!(pointer > newest, "checkpoint {pointer} does not come after {newest}");
        self.checkpoints.push(pointer);
        self
    }

    /// Its identity: its first pointer, for life.
    pub fn id(&self) -> WritePointer {
        self.id
    }

    /// The version to write under: its newest pointer.
    pub fn write_pointer(&self) -> WritePointer {
        self.checkpoints.last().copied().unwrap_or(self.id)
    }

    /// Its further pointers, ascending.
    pub fn checkpoints(&self) -> &[WritePointer] {
        &self.checkpoints
    }

    /// All of its pointers, ascending: under one of these stands whatever it wrote.
    pub fn pointers(&self) -> impl Iterator<Item = WritePointer> + '_ {
        std::iter::once(self.id).chain(self.checkpoints.iter().copied())
    }

    /// What others had committed when it began.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// Which of its own versions it reads.
    pub fn visibility(&self) -> Visibility {
        self.visibility
    }

    /// True if the version is one of its checkpoints.
    pub fn is_checkpoint(&self, version: WritePointer) -> bool {
        self.checkpoints.binary_search(&version).is_ok()
    }

    /// True if it wrote the version itself, whatever its level shows.
    pub fn is_own(&self, version: WritePointer) -> bool {
        version == self.id || self.is_checkpoint(version)
    }

    /// True if it may read the version.
    pub fn is_visible(&self, version: WritePointer) -> bool {
        if self.snapshot.is_visible(version) {
            return true;
        }
        let hidden = self.visibility == Visibility::SnapshotExcludeCurrent && version == self.write_pointer();
        self.is_own(version) && !hidden
    }

    /// The greatest version that it may read: where a scan of versions from the newest down may start. Inclusive, so
    /// that it is a version itself and no sum can overflow.
    pub fn version_max(&self) -> WritePointer {
        self.write_pointer().max(self.snapshot.read_pointer)
    }

    /// The greatest version that is settled for it: what is at or below it will not change its mind.
    pub fn settled(&self) -> WritePointer {
        self.snapshot.settled().min(WritePointer(self.id.0.saturating_sub(1)))
    }

    /// A store that has dropped from all of its data what this view's snapshot excludes as invalid holds nothing more
    /// of any invalid transaction up to here.
    ///
    /// Below every pointer in progress, for that one may become invalid yet, and at most the greatest invalid one, for
    /// about those above it the snapshot has said nothing. Never above the read pointer, up to which alone a snapshot
    /// knows of all that is in progress. With nothing excluded it is the read pointer less one.
    pub fn prune_upper_bound(&self) -> WritePointer {
        let snapshot = &self.snapshot;
        let invalid = snapshot.invalid.last();
        let below_progress = snapshot.in_progress.first().map(|first| WritePointer(first.0.saturating_sub(1)));
        match (invalid, below_progress) {
            (None, None) => WritePointer(snapshot.read_pointer.0.saturating_sub(1)),
            (invalid, below_progress) => {
                [invalid, below_progress].into_iter().flatten().fold(snapshot.read_pointer, Ord::min)
            }
        }
    }
}
