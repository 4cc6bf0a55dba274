//! A read-only view: one snapshot, no transaction.

use std::sync::Arc;
use std::time::Duration;

use seriatim_core::Snapshot;

use crate::db::Db;
use crate::error::Error;
use crate::key_range::KeyRange;
use crate::read::{Entry, Good, Reader, Scan};
use crate::row::Table;

/// How long a view may be read through unless the sequencer says otherwise: 60 s. Past that, versions it holds may be
/// collected.
pub const SNAPSHOT_AGE_MAX: Duration = Duration::from_secs(60);

/// Everything that was committed when it was taken, and nothing else. It never conflicts and ends without a word.
#[derive(Clone)]
pub struct View {
    db: Db,
    snapshot: Arc<Snapshot>,
    good: Good,
}

impl View {
    pub(crate) fn new(db: Db, snapshot: Arc<Snapshot>, good: Good) -> View {
        View { db, snapshot, good }
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
        let found = self.reader().newest(&table.row(key)?)?;
        Ok(found.map(|(version, value)| Entry { key: key.to_vec(), value, version: Some(version) }))
    }

    /// The entries of a range of keys, ascending. Take `..` for the whole table.
    ///
    /// # Errors
    /// If a bound is too long. That the view is too old, and a failure of the store, come from the iterator.
    pub fn scan(&self, table: &Table, range: impl KeyRange) -> Result<Scan<'_>, Error> {
        let (start, end) = table.rows(&range)?;
        Ok(Scan::new(self.reader(), None, start, end))
    }

    fn reader(&self) -> Reader<'_> {
        Reader { store: self.db.store(), snapshot: &self.snapshot, good: self.good }
    }
}
