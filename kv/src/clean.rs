//! Cleaning a store: out go the versions of invalid transactions, and old versions that no reader needs.
//!
//! The order is everything again:
//!
//! 1. the bounds are asked for, and a snapshot is taken after them: who is invalid up to the clean bound is in it, and
//!    nobody can write under a pointer up to there any more;
//! 2. versions are removed. A tombstone goes last, when nothing stands below it that it hides, durably;
//! 3. the removal is flushed, and only then acknowledged: what every registered store has cleaned is excluded no more,
//!    and a version that a power cut brought back would be read as if it had been committed.
//!
//! It may stop anywhere, and be run again, by several at once: nothing is removed that a reader could need, and what was
//! removed is not missed.

use seriatim_core::{BeginOptions, CleanBound, Snapshot, StoreName, WritePointer};

use crate::coordinator::Coordinator;
use crate::error::Error;
use crate::store::{DynStore, PageLimits, StoreError, Version};

/// Rows read at once, and versions of each.
const PAGE: PageLimits = PageLimits { rows: 256, versions: 16 };
/// Behind every row: they start with UTF-8.
const END: [u8; 1] = [0xff];

/// What a pass over a store came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Cleaned {
    /// Up to where it cleaned, as it was acknowledged.
    pub bounds: CleanBound,
    /// Rows that were looked at.
    pub rows: u64,
    /// Versions of invalid transactions that were removed.
    pub invalid: u64,
    /// Versions that were removed because nobody needs them any more, tombstones among them.
    pub outdated: u64,
}

/// One pass; see [`Db::clean`](crate::Db::clean).
pub(crate) fn clean(store: &dyn DynStore, coordinator: &dyn Coordinator, name: &StoreName) -> Result<Cleaned, Error> {
    coordinator.register_store(name)?;
    // The bounds end at what is finished. Somebody who ends above them brings in those who became invalid last.
    let newest = coordinator.begin(BeginOptions { deferred: true, ..BeginOptions::default() })?;
    coordinator.abort(newest.tx).map_err(Error::Transport)?;
    let bounds = coordinator.clean_bound().map_err(Error::Transport)?;
    let snapshot = coordinator.snapshot().map_err(Error::Transport)?;

    let mut pass = Pass { store, snapshot: &snapshot, cleaned: Cleaned { bounds, ..Cleaned::default() } };
    let mut next = Some(Vec::new());
    while let Some(start) = next {
        next = pass.clean_page(&start)?;
    }
    store.flush()?;
    coordinator.store_cleaned(name, bounds.clean)?;
    Ok(pass.cleaned)
}

struct Pass<'a> {
    store: &'a dyn DynStore,
    snapshot: &'a Snapshot,
    cleaned: Cleaned,
}

impl Pass<'_> {
    /// Cleans the rows from `start` on, as many as come in one page. Answers where the next one starts.
    fn clean_page(&mut self, start: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let CleanBound { clean, visible } = self.cleaned.bounds;
        let at_most = clean.max(visible);
        let page = self.store.scan(start, &END, at_most, PAGE)?;
        let mut tombstones = Vec::new();
        for row in page.rows {
            self.cleaned.rows += 1;
            let (mut versions, mut is_covered) = (row.versions, false);
            loop {
                for version in &versions.newest {
                    match self.judge(version, &mut is_covered) {
                        Verdict::Stays => {}
                        Verdict::Goes => self.store.remove(&row.row, version.pointer)?,
                        Verdict::GoesLast => tombstones.push((row.row.clone(), version.pointer)),
                    }
                }
                let oldest = versions.newest.last().map_or(0, |version| version.pointer.0);
                if !versions.more || oldest == 0 {
                    break;
                }
                versions = self.store.versions(&row.row, WritePointer(oldest - 1), PAGE.versions)?;
            }
        }
        if !tombstones.is_empty() {
            self.store.flush()?;
        }
        for (row, version) in tombstones {
            self.store.remove(&row, version)?;
        }
        Ok(page.next)
    }

    /// Judges a version, given whether a newer one of its row, itself up to the visibility bound, is what everybody reads.
    fn judge(&mut self, version: &Version, is_covered: &mut bool) -> Verdict {
        let CleanBound { clean, visible } = self.cleaned.bounds;
        if self.snapshot.invalid.contains(version.pointer) {
            if version.pointer > clean {
                return Verdict::Stays;
            }
            self.cleaned.invalid += 1;
            return Verdict::Goes;
        }
        if version.pointer > visible {
            return Verdict::Stays;
        }
        if std::mem::replace(is_covered, true) {
            self.cleaned.outdated += 1;
            return Verdict::Goes;
        }
        if version.value.is_some() {
            return Verdict::Stays;
        }
        self.cleaned.outdated += 1;
        Verdict::GoesLast
    }
}

enum Verdict {
    Stays,
    Goes,
    /// A tombstone: once what it hides is gone, nobody misses it.
    GoesLast,
}
