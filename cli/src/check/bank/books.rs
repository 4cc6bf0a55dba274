//! What the run was told by its clients, and has to find true in the end.

use std::collections::{HashMap, HashSet};

use seriatim_core::{CommitNumber, WritePointer};

use super::accounts::TransferId;
use super::messages::Message;

/// What a client was told about a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The transaction.
    pub tx: WritePointer,
    /// Its place in the order of commits.
    pub csn: CommitNumber,
}

/// Everything that clients reported. It grows by about a hundred bytes per transfer, for as long as the run lasts.
#[derive(Debug, Default)]
pub struct Books {
    /// Acknowledged transfers.
    pub acknowledged: HashMap<TransferId, Committed>,
    /// Write pointers that were received more than once.
    pub duplicate_write_pointers: u64,
    /// Lost answers whose outcome was learned by asking.
    pub unknown_settled: u64,
    /// Transfers whose outcome could not be learned.
    pub unknown: u64,
    pointers: HashSet<WritePointer>,
}

impl Books {
    /// Notes what a client said. Answers the commit number that it saw acknowledged, if it did.
    pub fn note(&mut self, client: u32, message: &Message) -> Option<CommitNumber> {
        match *message {
            Message::Began(tx) => self.duplicate_write_pointers += u64::from(!self.pointers.insert(tx)),
            Message::Acknowledged { sequence, tx, csn } => {
                self.acknowledged.insert(TransferId { client, sequence }, Committed { tx, csn });
                return Some(csn);
            }
            Message::Settled => self.unknown_settled += 1,
            Message::Unknown { .. } => self.unknown += 1,
            Message::Opened(_) | Message::Closed(_) | Message::Halted(_) | Message::Failed(_) => {}
        }
        None
    }

    /// How many acknowledged transfers `ledger` does not hold as they were acknowledged.
    pub fn lost(&self, ledger: &HashMap<TransferId, WritePointer>) -> u64 {
        self.acknowledged.iter().filter(|(id, committed)| ledger.get(id) != Some(&committed.tx)).count() as u64
    }

    /// Commit numbers that two transfers were acknowledged under.
    pub fn commit_numbers_twice(&self) -> Vec<CommitNumber> {
        let mut numbers: Vec<CommitNumber> = self.acknowledged.values().map(|committed| committed.csn).collect();
        numbers.sort_unstable();
        numbers.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_that_comes_twice_is_noticed_whoever_gets_it() {
        let mut books = Books::default();
        books.note(1, &Message::Began(WritePointer(5)));
        books.note(2, &Message::Began(WritePointer(6)));
        assert_eq!(books.duplicate_write_pointers, 0);
        books.note(2, &Message::Began(WritePointer(5)));
        assert_eq!(books.duplicate_write_pointers, 1);
    }

    #[test]
    fn an_acknowledged_transfer_is_lost_if_missing_or_somebody_elses() {
        let mut books = Books::default();
        for (sequence, tx) in [(0, 10), (1, 11), (2, 12)] {
            let csn = CommitNumber(sequence + 1);
            let message = Message::Acknowledged { sequence, tx: WritePointer(tx), csn };
            assert_eq!(books.note(7, &message), Some(csn));
        }
        let id = |sequence| TransferId { client: 7, sequence };
        let mut ledger = HashMap::from([(id(0), WritePointer(10)), (id(1), WritePointer(99))]);
        assert_eq!(books.lost(&ledger), 2);
        assert_eq!(books.commit_numbers_twice(), []);
        let again = Message::Acknowledged { sequence: 3, tx: WritePointer(13), csn: CommitNumber(2) };
        books.note(7, &again);
        assert_eq!(books.commit_numbers_twice(), [CommitNumber(2)]);
        ledger.insert(id(3), WritePointer(13));
        ledger.insert(id(1), WritePointer(11));
        ledger.insert(id(2), WritePointer(12));
        assert_eq!(books.lost(&ledger), 0);
    }
}
