//! A read-only view: one snapshot, no transaction.

use std::sync::Arc;
use std::time::{Duration, Instant};

use seriatim_core::Snapshot;

use crate::db::Db;
use crate::error::Error;
use crate::key_range::KeyRange;
use crate::read::{Entry, Reader, Scan};
use crate::row::Table;

/// How long a view may be read through unless the sequencer says otherwise: 60 s. Past that, versions it holds may be
/// collected.
pub const SNAPSHOT_AGE_MAX: Duration = Duration::from_secs(60);

/// Everything that was committed when it was taken, and nothing else. It never conflicts and ends without a word.
#[derive(Clone)]
pub struct View {
    db: Db,
    snapshot: Arc<Snapshot>,
    /// Before the snapshot was asked for, so that it is never younger than it looks.
    taken: Instant,
    age_max: Duration,
}

impl View {
    pub(crate) fn new(db: Db, snapshot: Arc<Snapshot>, taken: Instant, age_max: Duration) -> View {
        View { db, snapshot, taken, age_max }
    }

    /// The snapshot that is read through.
    pub fn snapshot(&self) -> &Arc<Snapshot> {
        &self.snapshot
    }

    /// The value of a key.
    ///
    /// # Errors
    /// If the view is too old, see [`SNAPSHOT_AGE_MAX`], the key too long, or the store fails.
    pub fn get(&self, table: &Table, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.entry(table, key)?.map(|entry| entry.value))
    }

    /// The value of a key and who wrote it.
    ///
    /// # Errors
    /// As for [`View::get`].
    pub fn entry(&self, table: &Table, key: &[u8]) -> Result<Option<Entry>, Error> {
        let found = self.reader()?.newest(&table.row(key)?)?;
        Ok(found.map(|(version, value)| Entry { key: key.to_vec(), value, version: Some(version) }))
    }

    /// The entries of a range of keys, ascending. Take `..` for the whole table.
    ///
    /// # Errors
    /// As for [`View::get`]; a failure of the store comes from the iterator.
    pub fn scan(&self, table: &Table, range: impl KeyRange) -> Result<Scan<'_>, Error> {
        let (start, end) = table.rows(&range)?;
        Ok(Scan::new(self.reader()?, None, start, end))
    }

    fn reader(&self) -> Result<Reader<'_>, Error> {
        check_age(self.taken.elapsed(), self.age_max)?;
        Ok(Reader { store: self.db.store(), snapshot: &self.snapshot })
    }
}

fn check_age(age: Duration, max: Duration) -> Result<(), Error> {
    if age <= max {
        return Ok(());
    }
    let [age_ms, max_ms] = [age, max].map(|d| d.as_millis() as u64);
    Err(Error::SnapshotTooOld { age_ms, max_ms })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_view_is_not_read_through() {
        assert!(check_age(SNAPSHOT_AGE_MAX, SNAPSHOT_AGE_MAX).is_ok());
        let late = check_age(SNAPSHOT_AGE_MAX + Duration::from_millis(1), SNAPSHOT_AGE_MAX);
        assert!(matches!(late, Err(Error::SnapshotTooOld { age_ms: 60_001, max_ms: 60_000 })), "{late:?}");
    }
}
