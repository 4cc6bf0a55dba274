//! Anomalies while they are being found: all are counted, the first of each kind kept with their evidence.

use crate::anomaly::{Anomaly, Kind, Member};
use crate::history::History;

/// See the head of this file.
pub struct Findings<'a> {
    history: &'a History,
    kept_max: u64,
    counts: [u64; Kind::ALL.len()],
    anomalies: Vec<Anomaly>,
}

impl<'a> Findings<'a> {
    /// Keeps up to `kept_max` anomalies of each kind.
    pub fn new(history: &'a History, kept_max: u64) -> Findings<'a> {
        Findings { history, kept_max, counts: [0; Kind::ALL.len()], anomalies: Vec::new() }
    }

    /// Adds an anomaly. `why` is asked only if it is kept.
    pub fn add(&mut self, kind: Kind, members: &[u32], keys: &[u32], why: impl FnOnce() -> String) {
        let count = &mut self.counts[kind as usize];
        *count += 1;
        if *count <= self.kept_max {
            let members = members.iter().map(|number| member(self.history, *number)).collect();
            let keys = keys.iter().map(|key| self.history.key(*key).to_owned()).collect();
            self.anomalies.push(Anomaly { kind, members, keys, why: why() });
        }
    }

    /// How many there are of each kind, and those that were kept, by kind.
    pub fn into_parts(mut self) -> ([u64; Kind::ALL.len()], Vec<Anomaly>) {
        // Stable: those of one kind stay in the order in which they were found.
        self.anomalies.sort_by_key(|anomaly| anomaly.kind);
        (self.counts, self.anomalies)
    }
}

/// A transaction as reports name it.
pub fn member(history: &History, number: u32) -> Member {
    let tx = history.transaction(number);
    Member { row: number + 1, tx: tx.pointer, label: tx.label.as_deref().map(str::to_owned) }
}
