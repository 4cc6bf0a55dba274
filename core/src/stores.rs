//! The stores that say what they have cleaned: who decides how far the invalid set may shrink.
//!
//! A store registers by name. It then asks how far it may clean, takes the versions of invalid transactions up to that
//! bound out of its data, makes that durable, and acknowledges the bound. What every registered store has cleaned is
//! in nobody's data any more, so nobody needs to be told to exclude it: it is forgotten ([`crate::Published::apply`]).
//! A new store starts at 0 and so holds everything back until its first acknowledgement.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::pointer::WritePointer;

/// The longest name of a store: 64 bytes.
pub const STORE_NAME_BYTES_MAX: usize = 64;
/// Stores that may be registered: 1024.
pub const STORES_MAX: usize = 1024;

/// The name of a registered store: 1 to 64 bytes of UTF-8.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StoreName(Arc<str>);

/// A name that no store can have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the name of a store has 1 to {STORE_NAME_BYTES_MAX} bytes, not {bytes}")]
pub struct StoreNameError {
    /// How long it was.
    pub bytes: usize,
}

impl StoreName {
    /// A name.
    ///
    /// # Errors
    /// If it is empty or too long.
    pub fn new(name: &str) -> Result<StoreName, StoreNameError> {
        match name.len() {
            1..=STORE_NAME_BYTES_MAX => Ok(StoreName(name.into())),
            bytes => Err(StoreNameError { bytes }),
        }
    }

    /// Its text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for StoreName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl Borrow<str> for StoreName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// What is known of a registered store.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RegisteredStore {
    /// It holds no version of a transaction that is invalid and at or below this pointer.
    pub bound: WritePointer,
    /// When it registered, in ms since the Unix epoch.
    pub registered_ms: u64,
    /// When it last acknowledged a bound, in ms since the Unix epoch; 0 = never.
    pub acknowledged_ms: u64,
}

/// How far a store may clean.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CleanBound {
    /// Nobody can write under a pointer up to here any more: whatever a snapshot that was taken *after* this answer holds
    /// invalid up to here may be taken out of the store, for good.
    pub clean: WritePointer,
    /// The visibility bound: of the versions of a key up to here, no reader needs any but the newest that such a snapshot
    /// does not hold invalid.
    pub visible: WritePointer,
}

/// Why a sequencer did not do what a store asked. Nothing was done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum StoreRefusal {
    /// It is not registered, or no longer. Register, clean from the start, and acknowledge then.
    #[error("the store is not registered")]
    Unknown,
    /// Nobody was told in this run of the sequencer that anything may be cleaned up to there. Ask for the bound, and clean.
    #[error("nobody was told to clean up to {bound}; the greatest bound that was given is {greatest}")]
    NotHandedOut {
        /// What was acknowledged.
        bound: WritePointer,
        /// The greatest bound that anybody was given.
        greatest: WritePointer,
    },
    /// As many stores are registered as may be.
    #[error("{max} stores are registered, which is the limit")]
    TooMany {
        /// The limit.
        max: u64,
    },
}

impl StoreRefusal {
    /// As many stores as may be are there.
    pub const FULL: StoreRefusal = StoreRefusal::TooMany { max: STORES_MAX as u64 };
}

/// The registered stores; see the head of this file.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stores {
    by_name: BTreeMap<StoreName, RegisteredStore>,
}

impl Stores {
    /// Number of registered stores.
    pub fn len(&self) -> usize {
        self.by_name.len()
    }

    /// True if none is registered: then nothing is ever forgotten without an operator's word.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// The store with this name.
    pub fn get(&self, name: &str) -> Option<&RegisteredStore> {
        self.by_name.get(name)
    }

    /// The stores in the order of their names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&StoreName, &RegisteredStore)> + Clone {
        self.by_name.iter()
    }

    /// What every store has cleaned; `None` if there is no store.
    pub fn cleaned_to(&self) -> Option<WritePointer> {
        self.by_name.values().map(|store| store.bound).min()
    }

    /// Adds a store at bound 0. One that is there stays as it is.
    pub(crate) fn register(&mut self, name: &StoreName, registered_ms: u64) {
        let new = RegisteredStore { registered_ms, ..RegisteredStore::default() };
        self.by_name.entry(name.clone()).or_insert(new);
    }

    /// Notes that a store has cleaned up to a bound, which never goes back. Nothing happens if it is gone.
    pub(crate) fn cleaned(&mut self, name: &StoreName, bound: WritePointer, acknowledged_ms: u64) {
        if let Some(store) = self.by_name.get_mut(name) {
            store.bound = store.bound.max(bound);
            store.acknowledged_ms = acknowledged_ms;
        }
    }

    /// Takes a store out: its data is gone, or others care for it.
    pub(crate) fn remove(&mut self, name: &StoreName) {
        self.by_name.remove(name);
    }

    pub(crate) fn insert(&mut self, name: StoreName, store: RegisteredStore) {
        self.by_name.insert(name, store);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_store_decides_and_no_bound_goes_back() {
        let name = |name| StoreName::new(name).unwrap();
        let (a, b) = (name("a"), name("b"));
        let mut stores = Stores::default();
        assert_eq!(stores.cleaned_to(), None);
        stores.register(&a, 1);
        stores.cleaned(&a, WritePointer(70), 2);
        stores.cleaned(&a, WritePointer(60), 3);
        stores.register(&a, 4);
        assert_eq!(stores.cleaned_to(), Some(WritePointer(70)), "registering again changes nothing");
        stores.register(&b, 5);
        stores.cleaned(&name("c"), WritePointer(9), 6);
        assert_eq!((stores.cleaned_to(), stores.len()), (Some(WritePointer(0)), 2));
        let expected = RegisteredStore { bound: WritePointer(70), registered_ms: 1, acknowledged_ms: 3 };
        assert_eq!(stores.get("a"), Some(&expected));
        stores.remove(&b);
        assert_eq!(stores.cleaned_to(), Some(WritePointer(70)));
    }

    #[test]
    fn a_name_is_neither_empty_nor_long() {
        assert_eq!(StoreName::new(""), Err(StoreNameError { bytes: 0 }));
        assert_eq!(StoreName::new(&"ß".repeat(32)).unwrap().as_str().len(), 64);
        assert_eq!(StoreName::new(&"x".repeat(65)), Err(StoreNameError { bytes: 65 }));
    }
}
