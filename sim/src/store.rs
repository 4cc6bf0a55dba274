//! The store that the transactions are about: versions of a few keys, in memory, never lost.
//!
//! It knows nothing of transactions. Clients write versions under their pointers, read the newest that their snapshot
//! shows them, and take versions away again when they roll back; its garbage collector goes by the published bound and
//! nothing else.

use std::ops::Range;

use seriatim_core::{ChangeId, Snapshot, WritePointer};

/// A key, by its number.
pub(crate) type Key = usize;

/// Money is moved between these; its sum stays.
pub(crate) const ACCOUNTS: Range<Key> = 0..8;
/// Read, incremented, written.
pub(crate) const COUNTERS: Range<Key> = 8..12;
/// Written with whatever comes, together and alone.
pub(crate) const REGISTERS: Range<Key> = 12..20;
/// Pairs of which one at least stays above zero; only serializable transactions write them.
pub(crate) const PAIRS: Range<Key> = 20..24;
/// Written only after the commit is known.
pub(crate) const LATE: Range<Key> = 24..28;
/// Written by LONG transactions, which nobody checks for conflicts.
pub(crate) const BULK: Range<Key> = 28..32;
/// Pairs as above, written by transactions that are not serializable: both of a pair may come to be zero.
pub(crate) const SKEWS: Range<Key> = 32..36;
/// All of them.
pub(crate) const KEYS: usize = 36;

/// The keys are in two stores, which register by these names and clean each for itself.
pub(crate) const STORES: [(&str, Range<Key>); 2] = [("left", 0..18), ("right", 18..KEYS)];
/// A store that holds nothing, comes and goes, and counts all the same.
pub(crate) const SPARE: &str = "spare";

/// What every account starts with.
pub(crate) const DEPOSIT: i64 = 100;

/// What a key holds before anybody wrote it.
pub(crate) fn first_value(key: Key) -> i64 {
    match key {
        _ if ACCOUNTS.contains(&key) => DEPOSIT,
        _ if PAIRS.contains(&key) || SKEWS.contains(&key) => 1,
        _ => 0,
    }
}

/// The change id of a key.
pub(crate) fn change_id(key: Key) -> ChangeId {
    ChangeId::of(&[b'k', key as u8])
}

/// The change id of all registers together: writers mark it, and who reads the registers as a range names it.
pub(crate) fn range_id() -> ChangeId {
    ChangeId::of(b"registers")
}

/// A version and its value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Version {
    pub pointer: WritePointer,
    pub value: i64,
}

/// See the head of this file.
pub(crate) struct Store {
    /// Of each key, in the order of their pointers.
    versions: Vec<Vec<Version>>,
    /// Versions that the collector took.
    pub collected: u64,
}

impl Store {
    pub fn new() -> Store {
        Store { versions: vec![Vec::new(); KEYS], collected: 0 }
    }

    /// The newest version that the snapshot shows.
    pub fn read(&self, key: Key, snapshot: &Snapshot) -> Option<Version> {
        self.versions[key].iter().rev().find(|version| snapshot.is_visible(version.pointer)).copied()
    }

    pub fn write(&mut self, key: Key, version: Version) {
        let versions = &mut self.versions[key];
        match versions.binary_search_by_key(&version.pointer, |version| version.pointer) {
            Ok(place) => versions[place] = version,
            Err(place) => versions.insert(place, version),
        }
    }

    /// A rollback takes its version away.
    pub fn remove(&mut self, key: Key, pointer: WritePointer) {
        self.versions[key].retain(|version| version.pointer != pointer);
    }

    /// All versions of all keys.
    pub fn versions(&self) -> impl Iterator<Item = &Version> {
        self.versions.iter().flatten()
    }

    /// Takes these versions away, of whatever keys.
    pub fn remove_all(&mut self, pointers: &[WritePointer]) {
        for versions in &mut self.versions {
            versions.retain(|version| !pointers.contains(&version.pointer));
        }
    }

    /// Takes the versions of a key away that are at or below the bound and that the snapshot holds invalid; how many.
    pub fn clean(&mut self, key: Key, bound: WritePointer, snapshot: &Snapshot) -> u64 {
        let versions = &mut self.versions[key];
        let before = versions.len();
        versions.retain(|version| version.pointer > bound || !snapshot.invalid.contains(version.pointer));
        (before - versions.len()) as u64
    }

    /// Takes what no reader can need: of the versions up to the bound, whose fate is known to the snapshot, all but the
    /// newest that counts. Readers at or above the bound read that one or a newer one.
    pub fn collect(&mut self, bound: WritePointer, snapshot: &Snapshot) {
        for versions in &mut self.versions {
            let newest = versions.iter().rev().find(|v| v.pointer <= bound && snapshot.is_visible(v.pointer));
            let Some(newest) = newest.map(|version| version.pointer) else { continue };
            let before = versions.len();
            versions.retain(|v| v.pointer >= newest || !snapshot.is_visible(v.pointer));
            self.collected += (before - versions.len()) as u64;
        }
    }
}
