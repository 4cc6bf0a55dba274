//! A participant of a few lines: versioned rows in memory, behind a buffer.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

use seriatim_client::{BoxError, KeyedChanges, Participant, Rollback};
use seriatim_kv::core::{CommitNumber, Snapshot, TransactionView, WritePointer};
use seriatim_kv::{MemoryStore, Store};

type Hook = Box<dyn FnOnce() + Send>;

pub struct Shelf {
    name: &'static str,
    pub store: Arc<MemoryStore>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    view: Option<TransactionView>,
    /// Key, the pointer that was current when it was written, and value.
    buffer: Vec<(String, WritePointer, u64)>,
    written: BTreeSet<String>,
    read: BTreeSet<String>,
    /// A rollback leaves everything where it is, and says so.
    keeps: bool,
    before_flush: Option<Hook>,
    committed: Vec<CommitNumber>,
    rollbacks: usize,
}

impl Shelf {
    pub fn new(name: &'static str) -> Arc<Shelf> {
        Arc::new(Shelf { name, store: Arc::default(), state: Mutex::default() })
    }

    /// Another client's participant for the same rows.
    pub fn over_the_same_store(&self) -> Arc<Shelf> {
        Arc::new(Shelf { name: self.name, store: Arc::clone(&self.store), state: Mutex::default() })
    }

    pub fn put(&self, key: &str, value: u64) {
        let mut state = self.state();
        let pointer = state.view.as_ref().expect("a transaction is active").write_pointer();
        state.buffer.push((key.to_owned(), pointer, value));
        state.written.insert(key.to_owned());
    }

    /// The newest value that the active transaction may read.
    pub fn get(&self, key: &str) -> Option<u64> {
        self.visible(key).first().copied()
    }

    /// Every value that the active transaction may read of its own, newest first, and then the newest committed one.
    pub fn all(&self, key: &str) -> Vec<u64> {
        self.visible(key)
    }

    /// The newest value that a snapshot holds.
    pub fn at(&self, snapshot: &Snapshot, key: &str) -> Option<u64> {
        let versions = self.stored(key, snapshot.read_pointer);
        versions.into_iter().find(|(version, _)| snapshot.is_visible(*version)).map(|(_, value)| value)
    }

    /// A rollback is dirty from now on, or clean again.
    pub fn keeps(&self, keeps: bool) {
        self.state().keeps = keeps;
    }

    /// Calls this once, before the next flush.
    pub fn before_flush(&self, hook: impl FnOnce() + Send + 'static) {
        self.state().before_flush = Some(Box::new(hook));
    }

    /// The numbers under which it heard that its transactions had committed.
    pub fn committed(&self) -> Vec<CommitNumber> {
        self.state().committed.clone()
    }

    pub fn rollbacks(&self) -> usize {
        self.state().rollbacks
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn visible(&self, key: &str) -> Vec<u64> {
        let mut state = self.state();
        state.read.insert(key.to_owned());
        let view = state.view.clone().expect("a transaction is active");
        let mut found = self.stored(key, view.version_max());
        // What was written last under one pointer counts, so it comes first.
        let buffered = state.buffer.iter().rev().filter(|(own, ..)| own == key);
        found.extend(buffered.map(|(_, pointer, value)| (*pointer, *value)));
        found.sort_by_key(|(pointer, _)| std::cmp::Reverse(*pointer));
        found.retain(|(pointer, _)| view.is_visible(*pointer));
        let committed = found.iter().position(|(pointer, _)| !view.is_own(*pointer));
        found.truncate(committed.map_or(found.len(), |at| at + 1));
        found.into_iter().map(|(_, value)| value).collect()
    }

    fn stored(&self, key: &str, at_most: WritePointer) -> Vec<(WritePointer, u64)> {
        let versions = self.store.versions(key.as_bytes(), at_most, usize::MAX).unwrap();
        let value = |bytes: Option<Vec<u8>>| u64::from_le_bytes(bytes.unwrap().try_into().unwrap());
        versions.newest.into_iter().map(|version| (version.pointer, value(version.value))).collect()
    }
}

impl Participant for Shelf {
    fn name(&self) -> Cow<'_, str> {
        self.name.into()
    }

    fn start(&self, view: &TransactionView) -> Result<(), BoxError> {
        let mut state = self.state();
        state.buffer.clear();
        state.written.clear();
        state.read.clear();
        state.view = Some(view.clone());
        Ok(())
    }

    fn update(&self, view: &TransactionView) -> Result<(), BoxError> {
        self.state().view = Some(view.clone());
        Ok(())
    }

    fn changes(&self, changes: &mut KeyedChanges) -> Result<(), BoxError> {
        let state = self.state();
        let key = |key: &String| format!("{}/{key}", self.name).into_bytes();
        state.written.iter().for_each(|written| changes.write(&key(written)));
        state.read.iter().for_each(|read| changes.read(&key(read)));
        Ok(())
    }

    fn flush(&self) -> Result<(), BoxError> {
        let hook = self.state().before_flush.take();
        if let Some(hook) = hook {
            hook();
        }
        for (key, pointer, value) in self.state().buffer.drain(..) {
            self.store.put(key.as_bytes(), pointer, Some(&value.to_le_bytes()))?;
        }
        Ok(self.store.flush()?)
    }

    fn rollback(&self) -> Result<Rollback, BoxError> {
        let mut state = self.state();
        state.rollbacks += 1;
        if state.keeps {
            return Ok(Rollback::Dirty);
        }
        let view = state.view.take().expect("a transaction is active");
        for key in &state.written {
            view.pointers().try_for_each(|pointer| self.store.remove(key.as_bytes(), pointer))?;
        }
        self.store.flush()?;
        Ok(Rollback::Clean)
    }

    fn after_commit(&self, csn: CommitNumber) -> Result<(), BoxError> {
        self.state().committed.push(csn);
        Ok(())
    }
}
