//! A whole history in memory: rows with their keys turned into numbers.
//!
//! Rows of text are large and are looked through many times; here a transaction is a fixed-size record, a read is 24 bytes
//! and a written key 12, and each key's text is kept once.

use std::ops::Range;
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};

use crate::row::{Interval, Isolation, Outcome, Row, SnapshotPoint};

/// Most transactions of a history, distinct keys, reads, and written keys, of each.
pub const COUNT_MAX: usize = 1 << 31;

/// Transactions to be judged together. It only grows.
#[derive(Debug, Default)]
pub struct History {
    transactions: Vec<Transaction>,
    reads: Vec<Access>,
    writes: Vec<Write>,
    overwrites: Vec<Replaced>,
    keys: Vec<Arc<str>>,
    numbers: FxHashMap<Arc<str>, u32>,
    by_pointer: FxHashMap<u64, u32>,
}

/// A row that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RowError {
    /// Versions are named by their writer's pointer.
    #[error("it writes, and has no write pointer")]
    WriterWithoutPointer,
    /// Only commits have a place in their order.
    #[error("it has commit number {csn}, and its outcome is not committed")]
    NumberWithoutCommit {
        /// The number.
        csn: u64,
    },
    /// An answer came before its question.
    #[error("its {what} was sent at {sent} ns and answered before, at {answered} ns")]
    Backwards {
        /// `begin` or `end`.
        what: &'static str,
        /// When it was sent.
        sent: u64,
        /// When it was answered.
        answered: u64,
    },
    /// Writes of a key are counted from 1, and only versions that somebody wrote are counted.
    #[error("its read of {key:?} has seq {seq}, without a writer or below 1")]
    BadSequence {
        /// The key.
        key: String,
        /// The number given.
        seq: u32,
    },
    /// Only what is written is overwritten.
    #[error("it overwrites {key:?}, and does not write it")]
    OverwriteWithoutWrite {
        /// The key.
        key: String,
    },
    /// See [`COUNT_MAX`].
    #[error("the history has more than {COUNT_MAX} {what}")]
    Full {
        /// Of what there are too many.
        what: &'static str,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Transaction {
    pub pointer: Option<u64>,
    pub session: Option<u64>,
    pub label: Option<Box<str>>,
    pub isolation: Isolation,
    pub begin: Option<Interval>,
    pub end: Option<Interval>,
    pub snapshot: SnapshotPoint,
    pub outcome: Outcome,
    pub csn: Option<u64>,
    reads: Range<u32>,
    writes: Range<u32>,
}

/// A read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub writer: Option<u64>,
    pub key: u32,
    /// 0 for the writer's last.
    pub seq: u32,
}

/// What a store told of the version that was there before a write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replaced {
    pub by: u32,
    pub key: u32,
    /// Whose it was.
    pub pointer: u64,
}

/// A key that a transaction wrote, once for each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Write {
    pub key: u32,
    /// How many versions it wrote, a deletion counted as one.
    pub versions: u32,
    pub deleted: bool,
}

impl History {
    /// A history of nothing.
    pub fn new() -> History {
        History::default()
    }

    /// Number of transactions.
    pub fn len(&self) -> usize {
        self.transactions.len()
    }

    /// True if there is no transaction.
    pub fn is_empty(&self) -> bool {
        self.transactions.is_empty()
    }

    /// Adds a transaction. Rows of one session come in the order in which they ran; else the order does not matter.
    ///
    /// # Errors
    /// If the row contradicts itself, or there are too many; the row is not taken then.
    pub fn push(&mut self, row: Row) -> Result<(), RowError> {
        self.check(&row)?;
        let number = self.transactions.len() as u32;
        let reads = self.reads.len() as u32;
        for read in row.reads {
            let key = self.number(read.key);
            self.reads.push(Access { writer: read.writer, key, seq: read.seq.unwrap_or(0) });
        }
        let writes = self.writes.len() as u32;
        let put = row.writes.into_iter().map(|key| (key, false));
        for (key, deleted) in put.chain(row.deletes.into_iter().map(|key| (key, true))) {
            let key = self.number(key);
            self.writes.push(Write { key, versions: 1, deleted });
        }
        self.gather_writes(writes as usize);
        for overwrite in row.overwrites {
            let key = self.number(overwrite.key);
            self.overwrites.push(Replaced { by: number, key, pointer: overwrite.writer });
        }
        if let Some(pointer) = row.tx {
            // The first one keeps the pointer; that there is a second is found by the numbers.
            self.by_pointer.entry(pointer).or_insert(number);
        }
        self.transactions.push(Transaction {
            pointer: row.tx,
            session: row.session,
            label: row.label.map(String::into_boxed_str),
            isolation: row.isolation,
            begin: row.begin,
            end: row.end,
            snapshot: row.snapshot.unwrap_or_default(),
            outcome: row.outcome,
            csn: row.csn,
            reads: reads..self.reads.len() as u32,
            writes: writes..self.writes.len() as u32,
        });
        Ok(())
    }

    fn check(&self, row: &Row) -> Result<(), RowError> {
        if row.tx.is_none() && !(row.writes.is_empty() && row.deletes.is_empty()) {
            return Err(RowError::WriterWithoutPointer);
        }
        if let (Some(csn), true) = (row.csn, row.outcome != Outcome::Committed) {
            return Err(RowError::NumberWithoutCommit { csn });
        }
        for (what, interval) in [("begin", row.begin), ("end", row.end)] {
            if let Some(Interval { sent, answered: Some(answered) }) = interval
                && answered < sent
            {
                return Err(RowError::Backwards { what, sent, answered });
            }
        }
        for read in &row.reads {
            if let Some(seq) = read.seq
                && (seq == 0 || read.writer.is_none())
            {
                return Err(RowError::BadSequence { key: read.key.clone(), seq });
            }
        }
        let writes: FxHashSet<&String> = if row.overwrites.is_empty() {
            FxHashSet::default()
        } else {
            row.writes.iter().chain(&row.deletes).collect()
        };
        if let Some(overwrite) = row.overwrites.iter().find(|overwrite| !writes.contains(&overwrite.key)) {
            return Err(RowError::OverwriteWithoutWrite { key: overwrite.key.clone() });
        }
        let counts = [
            ("transactions", self.transactions.len() + 1),
            ("keys", self.keys.len() + row.reads.len() + row.writes.len() + row.deletes.len()),
            ("reads", self.reads.len() + row.reads.len()),
            ("written keys", self.writes.len() + row.writes.len() + row.deletes.len()),
        ];
        match counts.into_iter().find(|(_, count)| *count > COUNT_MAX) {
            Some((what, _)) => Err(RowError::Full { what }),
            None => Ok(()),
        }
    }

    /// Makes one write of each key out of those from `first` on.
    fn gather_writes(&mut self, first: usize) {
        self.writes[first..].sort_by_key(|write| write.key);
        let mut end = first;
        for at in first..self.writes.len() {
            let write = self.writes[at];
            if end > first && self.writes[end - 1].key == write.key {
                self.writes[end - 1].versions += 1;
                self.writes[end - 1].deleted |= write.deleted;
            } else {
                self.writes[end] = write;
                end += 1;
            }
        }
        self.writes.truncate(end);
    }

    fn number(&mut self, key: String) -> u32 {
        if let Some(number) = self.numbers.get(key.as_str()) {
            return *number;
        }
        let number = self.keys.len() as u32;
        let key: Arc<str> = key.into();
        self.keys.push(key.clone());
        self.numbers.insert(key, number);
        number
    }

    /// The transactions with their numbers, in the order in which they came.
    pub(crate) fn transactions(&self) -> impl Iterator<Item = (u32, &Transaction)> {
        (0..).zip(&self.transactions)
    }

    pub(crate) fn transaction(&self, number: u32) -> &Transaction {
        &self.transactions[number as usize]
    }

    /// Whose write pointer this is.
    pub(crate) fn with_pointer(&self, pointer: u64) -> Option<u32> {
        self.by_pointer.get(&pointer).copied()
    }

    pub(crate) fn reads(&self) -> &[Access] {
        &self.reads
    }

    /// Where in [`History::reads`] those of a transaction stand.
    pub(crate) fn read_range(&self, number: u32) -> Range<usize> {
        let reads = &self.transaction(number).reads;
        reads.start as usize..reads.end as usize
    }

    pub(crate) fn overwrites(&self) -> &[Replaced] {
        &self.overwrites
    }

    pub(crate) fn writes(&self) -> &[Write] {
        &self.writes
    }

    /// What a transaction wrote, by key.
    pub(crate) fn writes_of(&self, number: u32) -> &[Write] {
        let writes = &self.transaction(number).writes;
        &self.writes[writes.start as usize..writes.end as usize]
    }

    /// A transaction's write of a key.
    pub(crate) fn write_of(&self, number: u32, key: u32) -> Option<&Write> {
        let writes = self.writes_of(number);
        writes.binary_search_by_key(&key, |write| write.key).ok().map(|at| &writes[at])
    }

    pub(crate) fn keys(&self) -> usize {
        self.keys.len()
    }

    pub(crate) fn key(&self, number: u32) -> &str {
        &self.keys[number as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::{Overwrite, Read};

    fn row() -> Row {
        Row {
            tx: Some(7),
            writes: vec!["b".into(), "a".into(), "b".into()],
            deletes: vec!["a".into()],
            outcome: Outcome::Committed,
            csn: Some(1),
            ..Row::default()
        }
    }

    #[test]
    fn writes_of_one_key_are_counted() {
        let mut history = History::new();
        history.push(row()).unwrap();
        let write = |key: &str| history.write_of(0, history.numbers[key]).copied().unwrap();
        assert_eq!((write("a").versions, write("a").deleted), (2, true));
        assert_eq!((write("b").versions, write("b").deleted), (2, false));
        assert_eq!(history.writes_of(0).len(), 2);
    }

    #[test]
    fn a_row_that_contradicts_itself_is_not_taken() {
        let wrong: [(Row, RowError); 6] = [
            (Row { tx: None, ..row() }, RowError::WriterWithoutPointer),
            (Row { outcome: Outcome::Unknown, ..row() }, RowError::NumberWithoutCommit { csn: 1 }),
            (
                Row { end: Some(Interval { sent: 5, answered: Some(4) }), ..row() },
                RowError::Backwards { what: "end", sent: 5, answered: 4 },
            ),
            (
                Row { reads: vec![Read { key: "k".into(), writer: Some(1), seq: Some(0) }], ..row() },
                RowError::BadSequence { key: "k".into(), seq: 0 },
            ),
            (
                Row { reads: vec![Read { key: "k".into(), writer: None, seq: Some(1) }], ..row() },
                RowError::BadSequence { key: "k".into(), seq: 1 },
            ),
            (
                Row { overwrites: vec![Overwrite { key: "k".into(), writer: 1 }], ..row() },
                RowError::OverwriteWithoutWrite { key: "k".into() },
            ),
        ];
        let mut history = History::new();
        for (row, error) in wrong {
            assert_eq!(history.push(row), Err(error));
        }
        assert!(history.is_empty() && history.keys() == 0);
    }
}
