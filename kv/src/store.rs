//! What this crate asks of a store: versions of rows, put and taken back one by one, read newest first.

#[cfg(feature = "fjall")]
pub mod fjall;
pub mod memory;

use std::sync::Arc;

use seriatim_core::WritePointer;

use crate::error::BoxError;

/// A store of versioned rows.
///
/// Rows are opaque bytes, none a prefix of another. A version is a write pointer with a value, or with none: a
/// tombstone, which a reader takes for "deleted". The store needs no transactions and no snapshot of its own: what a
/// reader may see is decided by the sequencer's snapshot, and versions that a snapshot holds do not change.
///
/// All calls may come from many threads at once. Each of `put` and `remove` is atomic, and seen by every call that
/// starts after it returned.
pub trait Store: Send + Sync + 'static {
    /// True if old versions stay readable below newer ones. A [`Db`](crate::Db) needs that; a store that keeps only the
    /// last writer's value cannot serve a snapshot.
    const VERSIONED: bool;

    /// Writes one version of a row; `None` is a tombstone. Writing the same version again replaces it.
    ///
    /// # Errors
    /// [`StoreError::Refused`] promises that the version was not written and never will be. Anything else leaves it
    /// open, and the transaction becomes invalid instead of aborted.
    fn put(&self, row: &[u8], version: WritePointer, value: Option<&[u8]>) -> Result<(), StoreError>;

    /// Takes one version away, wherever it stands among the others; one that is not there is no error.
    ///
    /// # Errors
    /// As for `put`.
    fn remove(&self, row: &[u8], version: WritePointer) -> Result<(), StoreError>;

    /// The newest `limit` versions of a row at or below `at_most`, newest first.
    ///
    /// # Errors
    /// If the store cannot answer.
    fn versions(&self, row: &[u8], at_most: WritePointer, limit: usize) -> Result<Versions, StoreError>;

    /// Rows from `start` up to, but not including, `end`, in order, each with its newest versions at or below
    /// `at_most`. Rows without one are left out. The page may end early, for any reason, as long as
    /// [`Page::next`] says where it goes on and lies behind `start`.
    ///
    /// # Errors
    /// If the store cannot answer.
    fn scan(&self, start: &[u8], end: &[u8], at_most: WritePointer, limits: PageLimits) -> Result<Page, StoreError>;

    /// Makes every `put` and `remove` that returned before this call durable, as far as the store promises at all.
    /// It stands before each commit, and between taking versions back and reporting that.
    ///
    /// # Errors
    /// If it is not known whether all of it is durable.
    fn flush(&self) -> Result<(), StoreError>;
}

/// One version of a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// The write pointer of the transaction that wrote it.
    pub pointer: WritePointer,
    /// What it wrote; `None` is a tombstone.
    pub value: Option<Vec<u8>>,
}

/// Some versions of one row, newest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    /// The versions, newest first.
    pub newest: Vec<Version>,
    /// True if there may be older ones.
    pub more: bool,
}

/// A row with some of its versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The row's bytes.
    pub row: Vec<u8>,
    /// Its newest versions within the bound that was asked for; at least one.
    pub versions: Versions,
}

/// One page of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Rows in ascending order.
    pub rows: Vec<Row>,
    /// Where the next page starts; `None` if this was the last.
    pub next: Option<Vec<u8>>,
}

/// How much one page of a scan may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageLimits {
    /// Rows in the page, at least 1. Default 256.
    pub rows: usize,
    /// Versions of each row, at least 1. Default 4: the newest one is nearly always the one that is read.
    pub versions: usize,
}

impl Default for PageLimits {
    fn default() -> PageLimits {
        PageLimits { rows: 256, versions: 4 }
    }
}

/// Why a store did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// It did nothing, and this request never will do anything.
    #[error("the store refused to {action}")]
    Refused {
        /// What was asked: a verb and its object.
        action: &'static str,
        /// Why.
        source: BoxError,
    },
    /// It may have done it, or may still.
    #[error("the store failed to {action}, and may have done so all the same")]
    Doubtful {
        /// What was asked: a verb and its object.
        action: &'static str,
        /// Why.
        source: BoxError,
    },
    /// What is stored is not what this crate writes.
    #[error("the store holds a broken {what}: {bytes:02x?}")]
    Corrupt {
        /// What the bytes should have been.
        what: &'static str,
        /// The bytes.
        bytes: Vec<u8>,
    },
}

impl StoreError {
    /// True if the request left no trace and will leave none.
    pub fn is_definite(&self) -> bool {
        matches!(self, StoreError::Refused { .. })
    }
}

impl<S: Store> Store for Arc<S> {
    const VERSIONED: bool = S::VERSIONED;

    fn put(&self, row: &[u8], version: WritePointer, value: Option<&[u8]>) -> Result<(), StoreError> {
        (**self).put(row, version, value)
    }

    fn remove(&self, row: &[u8], version: WritePointer) -> Result<(), StoreError> {
        (**self).remove(row, version)
    }

    fn versions(&self, row: &[u8], at_most: WritePointer, limit: usize) -> Result<Versions, StoreError> {
        (**self).versions(row, at_most, limit)
    }

    fn scan(&self, start: &[u8], end: &[u8], at_most: WritePointer, limits: PageLimits) -> Result<Page, StoreError> {
        (**self).scan(start, end, at_most, limits)
    }

    fn flush(&self) -> Result<(), StoreError> {
        (**self).flush()
    }
}

/// [`Store`] without its constant, so that transactions need not name the type of their store.
pub(crate) trait DynStore: Send + Sync {
    fn put(&self, row: &[u8], version: WritePointer, value: Option<&[u8]>) -> Result<(), StoreError>;
    fn remove(&self, row: &[u8], version: WritePointer) -> Result<(), StoreError>;
    fn versions(&self, row: &[u8], at_most: WritePointer, limit: usize) -> Result<Versions, StoreError>;
    fn scan(&self, start: &[u8], end: &[u8], at_most: WritePointer, limits: PageLimits) -> Result<Page, StoreError>;
    fn flush(&self) -> Result<(), StoreError>;
}

impl<S: Store> DynStore for S {
    fn put(&self, row: &[u8], version: WritePointer, value: Option<&[u8]>) -> Result<(), StoreError> {
        Store::put(self, row, version, value)
    }

    fn remove(&self, row: &[u8], version: WritePointer) -> Result<(), StoreError> {
        Store::remove(self, row, version)
    }

    fn versions(&self, row: &[u8], at_most: WritePointer, limit: usize) -> Result<Versions, StoreError> {
        Store::versions(self, row, at_most, limit)
    }

    fn scan(&self, start: &[u8], end: &[u8], at_most: WritePointer, limits: PageLimits) -> Result<Page, StoreError> {
        Store::scan(self, start, end, at_most, limits)
    }

    fn flush(&self) -> Result<(), StoreError> {
        Store::flush(self)
    }
}
