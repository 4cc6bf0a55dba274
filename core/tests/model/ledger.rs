//! What should be published: every transaction by its pointer, as plainly as can be.

use std::collections::{BTreeMap, BTreeSet};

use seriatim_core::event::Event;
use seriatim_core::*;

/// A transaction that is open or invalid.
#[derive(Clone, Debug)]
pub struct Entry {
    pub kind: Kind,
    pub pointers: Vec<u64>,
    pub cause: Option<InvalidCause>,
}

/// The published state.
#[derive(Default)]
pub struct Ledger {
    pub csn: u64,
    pub open: BTreeMap<u64, Entry>,
    pub invalid: BTreeMap<u64, Entry>,
    pub intervals: Vec<(u64, u64)>,
    /// Each registered store, and what it has cleaned.
    pub stores: BTreeMap<String, u64>,
    /// Each pointer of each commit, and its number.
    pub committed: BTreeMap<u64, u64>,
    /// Pointers that events have named in this run.
    named: BTreeSet<u64>,
    named_to: u64,
    window_end: u64,
    floor: u64,
}

impl Ledger {
    pub fn new(first: u64, window_end: u64) -> Ledger {
        Ledger { named_to: first, window_end, ..Ledger::default() }
    }

    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Begin(begin) => {
                for tx in begin.first.0..begin.first.0 + u64::from(begin.count) {
                    self.name(tx);
                    if tx >= self.floor {
                        self.open.insert(tx, Entry { kind: begin.kind, pointers: vec![tx], cause: None });
                    }
                }
            }
            Event::Checkpoint { tx, pointer } => {
                self.name(pointer.0);
                if pointer.0 >= self.floor {
                    self.open.get_mut(&tx.0).expect("a checkpoint of an open one").pointers.push(pointer.0);
                }
            }
            Event::Commit { tx, .. } => {
                self.csn += 1;
                let pointers = self.open.remove(&tx.0).expect("a commit of an open one").pointers;
                self.committed.extend(pointers.into_iter().map(|pointer| (pointer, self.csn)));
            }
            Event::Aborted { tx } => {
                self.open.remove(&tx.0);
                if self.invalid.get(&tx.0).is_some_and(|entry| entry.kind == Kind::Short) {
                    self.invalid.remove(&tx.0);
                }
            }
            Event::Invalidated { tx, cause } => {
                let entry = self.open.remove(&tx.0).expect("an invalidation of an open one");
                self.invalid.insert(tx.0, Entry { cause: Some(*cause), ..entry });
            }
            Event::Finished { first, count } => (first.0..first.0 + count).for_each(|pointer| self.name(pointer)),
            Event::Window { end } => self.window_end = self.window_end.max(end.0),
            Event::Truncate { tx } => {
                // Unaccounted ones go by bounds alone.
                if self.invalid.get(&tx.0).is_some_and(|entry| entry.cause != Some(InvalidCause::Unaccounted)) {
                    self.invalid.remove(&tx.0);
                }
            }
            Event::TruncateBefore { bound } => {
                self.invalid.retain(|tx, _| *tx >= bound.0);
                self.cut_intervals(bound.0);
            }
            Event::StoreRegistered { name, .. } => {
                self.stores.entry(name.to_string()).or_insert(0);
            }
            Event::StoreCleaned { name, bound, .. } => {
                if let Some(store) = self.stores.get_mut(name.as_str()) {
                    *store = bound.0.max(*store);
                }
                self.prune();
            }
            Event::StoreRemoved { name } => {
                self.stores.remove(name.as_str());
                self.prune();
            }
            Event::Reset { floor } => {
                self.open.clear();
                self.invalid.clear();
                self.intervals.clear();
                self.floor = floor.0;
            }
            Event::Refused { .. } | Event::Tick { .. } | Event::Start { .. } | Event::Stop { .. } => {}
        }
    }

    fn prune(&mut self) {
        if let Some(bound) = self.stores.values().min().copied() {
            self.invalid.retain(|_, entry| entry.pointers.iter().any(|pointer| *pointer > bound));
            self.cut_intervals(bound + 1);
        }
    }

    fn cut_intervals(&mut self, at: u64) {
        let cut = self.intervals.iter().map(|(first, end)| ((*first).max(at), *end));
        self.intervals = cut.filter(|(first, end)| first < end).collect();
    }

    /// A new process starts. What the one before handed out without a durable word is invalid.
    pub fn restart(&mut self, handed_out: &[u64], first: u64, window_end: u64) {
        for pointer in handed_out.iter().filter(|p| **p < self.named_to && **p >= self.floor) {
            if !self.named.contains(pointer) {
                let cause = Some(InvalidCause::Unaccounted);
                self.invalid.insert(*pointer, Entry { kind: Kind::Long, pointers: vec![*pointer], cause });
            }
        }
        let (from, end) = (self.named_to.max(self.floor), self.window_end);
        match self.intervals.last_mut() {
            Some(last) if from < end && last.1 == from => last.1 = end,
            _ if from < end => self.intervals.push((from, end)),
            _ => {}
        }
        (self.named_to, self.window_end) = (first, window_end);
        self.named.clear();
    }

    /// Everything that is excluded for good, pointer by pointer.
    pub fn invalid_pointers(&self) -> BTreeSet<u64> {
        self.invalid.values().flat_map(|entry| entry.pointers.iter().copied()).collect()
    }

    fn name(&mut self, pointer: u64) {
        self.named.insert(pointer);
        self.named_to = self.named_to.max(pointer + 1);
    }
}
