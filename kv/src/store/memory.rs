//! A store in memory: for tests, and for whoever needs no more. Nothing survives the process.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{PoisonError, RwLock};

use seriatim_core::WritePointer;

use super::{Page, PageLimits, Row, Store, StoreError, Version, Versions};

/// Versions of one row: newest first.
type RowVersions = BTreeMap<Reverse<WritePointer>, Option<Vec<u8>>>;

/// Rows in a tree behind one lock.
#[derive(Debug, Default)]
pub struct MemoryStore {
    rows: RwLock<BTreeMap<Vec<u8>, RowVersions>>,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> MemoryStore {
        MemoryStore::default()
    }

    /// Number of versions in the store, tombstones counted.
    pub fn version_count(&self) -> usize {
        self.rows.read().unwrap_or_else(PoisonError::into_inner).values().map(RowVersions::len).sum()
    }
}

// A panic under the lock can only be a failed allocation, before which no tree was left half changed: a poisoned lock
// is as good as any.
impl Store for MemoryStore {
    const VERSIONED: bool = true;

    fn put(&self, row: &[u8], version: WritePointer, value: Option<&[u8]>) -> Result<(), StoreError> {
        let value = value.map(<[u8]>::to_vec);
        let mut rows = self.rows.write().unwrap_or_else(PoisonError::into_inner);
        match rows.get_mut(row) {
            Some(versions) => drop(versions.insert(Reverse(version), value)),
            None => drop(rows.insert(row.to_vec(), BTreeMap::from([(Reverse(version), value)]))),
        }
        Ok(())
    }

    fn remove(&self, row: &[u8], version: WritePointer) -> Result<(), StoreError> {
        let mut rows = self.rows.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(versions) = rows.get_mut(row) {
            versions.remove(&Reverse(version));
            if versions.is_empty() {
                rows.remove(row);
            }
        }
        Ok(())
    }

    fn versions(&self, row: &[u8], at_most: WritePointer, limit: usize) -> Result<Versions, StoreError> {
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        Ok(rows.get(row).map(|versions| newest(versions, at_most, limit)).unwrap_or_default())
    }

    fn scan(&self, start: &[u8], end: &[u8], at_most: WritePointer, limits: PageLimits) -> Result<Page, StoreError> {
        let mut page = Page::default();
        if start >= end {
            return Ok(page);
        }
        let rows = self.rows.read().unwrap_or_else(PoisonError::into_inner);
        for (row, versions) in rows.range::<[u8], _>((Bound::Included(start), Bound::Excluded(end))) {
            let versions = newest(versions, at_most, limits.versions.max(1));
            if versions.newest.is_empty() {
                continue;
            }
            if page.rows.len() >= limits.rows.max(1) {
                page.next = Some(row.clone());
                break;
            }
            page.rows.push(Row { row: row.clone(), versions });
        }
        Ok(page)
    }

    fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }
}

fn newest(versions: &RowVersions, at_most: WritePointer, limit: usize) -> Versions {
    let mut older = versions.range(Reverse(at_most)..);
    let newest = older
        .by_ref()
        .take(limit)
        .map(|(pointer, value)| Version { pointer: pointer.0, value: value.clone() })
        .collect();
    Versions { newest, more: older.next().is_some() }
}
