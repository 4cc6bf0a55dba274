//! How the last transactions ended.
//!
//! Outcomes are appended in the order of the ends, in shared chunks, so that an image can be written from a clone. A
//! chunk knows its smallest and greatest pointer; pointers end nearly in order, so a question about one looks into
//! one or two chunks. Asking is rare (a lost reply), ending is not: appending is a store of 16 bytes.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::pointer::{CommitNumber, WritePointer};
use crate::transaction::Status;

/// Outcomes kept by default: 2^20, 16 MiB.
pub const OUTCOMES_MAX_DEFAULT: usize = 1 << 20;
/// Outcomes in one chunk, unless there are few in all.
const CHUNK: usize = 1024;

/// The word of an aborted transaction; every other word is a commit number, and commit numbers start at 1.
const ABORTED: u64 = 0;

#[derive(Clone, Debug)]
struct Chunk {
    min: u64,
    max: u64,
    entries: Vec<(u64, u64)>,
}

/// The last outcomes, in the order of the ends. Cloning shares all full chunks.
#[derive(Clone, Debug)]
pub struct Outcomes {
    chunks: VecDeque<Arc<Chunk>>,
    max: usize,
    /// Outcomes in one chunk.
    chunk: usize,
}

impl Outcomes {
    /// Keeps at least `max` outcomes and less than 1024 more.
    pub fn new(max: usize) -> Outcomes {
        // A small memory forgets in small steps.
        Outcomes { chunks: VecDeque::new(), max, chunk: (max / 4).clamp(16, CHUNK) }
    }

    /// Notes that a transaction committed.
    pub fn committed(&mut self, tx: WritePointer, csn: CommitNumber) {
        debug_assert_ne!(csn.0, ABORTED);
        self.push(tx.0, csn.0);
    }

    /// Notes that a transaction was rolled back.
    pub fn aborted(&mut self, tx: WritePointer) {
        self.push(tx.0, ABORTED);
    }

    /// How a transaction ended: [`Status::Committed`] or [`Status::Aborted`], the latest word on it.
    pub fn get(&self, tx: WritePointer) -> Option<Status> {
        let chunks = self.chunks.iter().rev().filter(|chunk| (chunk.min..=chunk.max).contains(&tx.0));
        let word = chunks.flat_map(|chunk| chunk.entries.iter().rev()).find(|(pointer, _)| *pointer == tx.0)?.1;
        Some(if word == ABORTED { Status::Aborted } else { Status::Committed(CommitNumber(word)) })
    }

    /// Number of outcomes kept.
    pub fn len(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.entries.len()).sum()
    }

    /// Drops everything.
    pub fn clear(&mut self) {
        self.chunks.clear();
    }

    /// The outcomes in the order of the ends, as pointer and word.
    pub(crate) fn words(&self) -> impl Iterator<Item = (u64, u64)> + Clone + '_ {
        self.chunks.iter().flat_map(|chunk| chunk.entries.iter().copied())
    }

    /// Appends an outcome by its word.
    pub(crate) fn push(&mut self, tx: u64, word: u64) {
        if self.chunks.back().is_none_or(|chunk| chunk.entries.len() == self.chunk) {
            if self.chunks.len() * self.chunk >= self.max + self.chunk {
                self.chunks.pop_front();
            }
            let empty = Chunk { min: u64::MAX, max: 0, entries: Vec::with_capacity(self.chunk) };
            self.chunks.push_back(Arc::new(empty));
        }
        let chunk = Arc::make_mut(self.chunks.back_mut().expect("a chunk was just made"));
        chunk.min = chunk.min.min(tx);
        chunk.max = chunk.max.max(tx);
        chunk.entries.push((tx, word));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_outcomes_are_kept_and_older_ones_are_not_guessed() {
        let mut outcomes = Outcomes::new(4 * CHUNK);
        for n in 1..=20_000u64 {
            // Ends come nearly in pointer order: neighbours swap.
            let tx = WritePointer(n ^ 1);
            if n % 3 == 0 { outcomes.aborted(tx) } else { outcomes.committed(tx, CommitNumber(n)) }
        }
        assert!(outcomes.len() >= 4 * CHUNK && outcomes.len() <= 5 * CHUNK, "{}", outcomes.len());
        for n in 20_000 - 4 * CHUNK as u64 + 1..=20_000 {
            let expected = if n % 3 == 0 { Status::Aborted } else { Status::Committed(CommitNumber(n)) };
            assert_eq!(outcomes.get(WritePointer(n ^ 1)), Some(expected));
        }
        assert_eq!(outcomes.get(WritePointer(17)), None);
        assert_eq!(outcomes.get(WritePointer(30_000)), None);
    }

    #[test]
    fn the_latest_word_counts() {
        let mut outcomes = Outcomes::new(CHUNK);
        outcomes.committed(WritePointer(5), CommitNumber(1));
        outcomes.aborted(WritePointer(5));
        assert_eq!(outcomes.get(WritePointer(5)), Some(Status::Aborted));
    }
}
