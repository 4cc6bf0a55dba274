//! The history of a run as its clients saw it, for a second judge: one that knows nothing of the log, and asks whether
//! reads, writes and answers together are what snapshot isolation, or serializability, allows.
//!
//! Transactions that nobody checks for conflicts are left out, and so are those that write after their commit: a reader
//! may well miss what is not written yet. Nobody else touches their keys.

use std::collections::BTreeMap;

use rustc_hash::FxHashMap;
use seriatim_core::{Snapshot, WritePointer};
use seriatim_history::{History, Interval, Isolation, Outcome, Read, Row, SnapshotPoint};

use crate::law;
use crate::reference::Reference;
use crate::store::Key;
use crate::verdict::{Judged, broken};

/// See the head of this file. Times are in µs.
#[derive(Default)]
pub(crate) struct Recorder {
    told: BTreeMap<WritePointer, Told>,
    /// Who read without a transaction.
    readers: Vec<Told>,
    /// Whose a further pointer is.
    owners: FxHashMap<WritePointer, WritePointer>,
}

/// What a client knows of a transaction of its own.
#[derive(Clone, Default)]
pub(crate) struct Told {
    pub is_serializable: bool,
    pub begin_us: (u64, u64),
    pub snapshot: (WritePointer, u64),
    /// Keys, and the pointers of the versions that were read.
    pub reads: Vec<(Key, Option<WritePointer>)>,
    /// When it first asked to commit.
    pub asked_us: Option<u64>,
    pub answered_us: Option<u64>,
    /// How it ended, if it was told.
    pub outcome: Outcome,
    pub csn: Option<u64>,
}

impl Told {
    /// Somebody reads from here on.
    pub fn new(snapshot: &Snapshot, is_serializable: bool, begin_us: (u64, u64)) -> Told {
        Told { snapshot: (snapshot.read_pointer, snapshot.csn.0), is_serializable, begin_us, ..Told::default() }
    }

    fn row(&self, owners: &FxHashMap<WritePointer, WritePointer>) -> Row {
        let owner = |pointer: WritePointer| owners.get(&pointer).map_or(pointer.0, |tx| tx.0);
        let reads = self.reads.iter().map(|(key, version)| Read {
            key: key.to_string(),
            writer: version.map(owner),
            seq: None,
        });
        let end =
            self.asked_us.map(|sent| Interval { sent: sent * 1_000, answered: self.answered_us.map(|us| us * 1_000) });
        Row {
            isolation: if self.is_serializable { Isolation::Serializable } else { Isolation::Snapshot },
            begin: Some(Interval { sent: self.begin_us.0 * 1_000, answered: Some(self.begin_us.1 * 1_000) }),
            snapshot: Some(SnapshotPoint { read_pointer: Some(self.snapshot.0.0), csn: Some(self.snapshot.1) }),
            reads: reads.collect(),
            outcome: self.outcome,
            csn: self.csn,
            end,
            ..Row::default()
        }
    }
}

impl Recorder {
    /// A transaction began.
    pub fn begun(&mut self, tx: WritePointer, told: Told) {
        self.told.insert(tx, told);
    }

    /// It has a further pointer.
    pub fn checkpoint(&mut self, tx: WritePointer, pointer: WritePointer) {
        self.owners.insert(pointer, tx);
    }

    pub fn read(&mut self, tx: WritePointer, key: Key, version: Option<WritePointer>) {
        if let Some(told) = self.told.get_mut(&tx) {
            told.reads.push((key, version));
        }
    }

    /// It asks to commit, perhaps not for the first time.
    pub fn asked(&mut self, tx: WritePointer, at_us: u64) {
        if let Some(told) = self.told.get_mut(&tx) {
            told.asked_us.get_or_insert(at_us);
        }
    }

    /// Its client heard how it ended: with this commit number, or without.
    pub fn ended(&mut self, tx: WritePointer, csn: Option<u64>, at_us: u64) {
        if let Some(told) = self.told.get_mut(&tx) {
            told.answered_us.get_or_insert(at_us);
            told.csn = csn;
            told.outcome = if csn.is_some() { Outcome::Committed } else { Outcome::Aborted };
        }
    }

    /// Somebody has read through a snapshot alone.
    pub fn reader(&mut self, told: Told) {
        self.readers.push(Told { outcome: Outcome::Committed, ..told });
    }

    /// The judgement, and how many skews there were that are allowed. What was written stands in the reference, who has
    /// it from the clients.
    pub fn judge(&self, reference: &Reference) -> Result<u64, crate::verdict::Violation> {
        let mut history = History::new();
        let transactions = self.told.iter().map(|(tx, told)| {
            let submitted = reference.transactions.get(tx).and_then(|known| known.submitted.as_ref());
            let writes = submitted.iter().flat_map(|submitted| &submitted.writes).map(|write| write.key.to_string());
            Row { tx: Some(tx.0), writes: writes.collect(), ..told.row(&self.owners) }
        });
        let readers = self.readers.iter().map(|told| told.row(&self.owners));
        for row in transactions.chain(readers) {
            history.push(row).map_or_else(|error| broken(law::HISTORY, error.to_string()), Ok)?;
        }
        let report = history.judge(1);
        let found: Vec<String> = report.anomalies.iter().map(ToString::to_string).collect();
        let judged: Judged = if report.failed { broken(law::HISTORY, found.join("; ")) } else { Ok(()) };
        judged.map(|()| report.write_skews_allowed)
    }
}

#[cfg(test)]
mod tests {
    use seriatim_core::ChangeSet;

    use super::*;
    use crate::reference::{Submitted, Write};
    use crate::store::Version;

    /// Two transactions read the first version of key 3 and overwrite it, one after the other.
    #[test]
    fn a_lost_update_is_found_without_the_log() {
        let (mut recorder, mut reference) = (Recorder::default(), Reference::new());
        for (csn, pointer) in [(1, 10), (2, 20), (3, 30)] {
            let tx = WritePointer(pointer);
            let (at_us, read_pointer, seen) = if csn == 1 { (0, 0, 0) } else { (10, 10, 1) };
            let told =
                Told { snapshot: (WritePointer(read_pointer), seen), begin_us: (at_us, at_us + 1), ..Told::default() };
            recorder.begun(tx, told);
            if csn > 1 {
                recorder.read(tx, 3, Some(WritePointer(10)));
            }
            recorder.asked(tx, at_us + 2);
            recorder.ended(tx, Some(csn), at_us + 3);
            reference.handed(tx, seen, 1, None).expect("a pointer that nobody has");
            let writes = vec![Write { key: 3, version: Version { pointer: tx, value: 1 } }];
            let submitted = Submitted { changes: ChangeSet::default(), writes, told_csn: 0 };
            reference.known_mut(tx).expect("it was handed out").submitted = Some(submitted);
            let judged = recorder.judge(&reference);
            assert_eq!(judged.is_err(), csn == 3, "{judged:?}");
        }
        let violation = recorder.judge(&reference).expect_err("an update is lost");
        assert!(violation.text.contains("lost-update"), "{violation}");
    }
}
