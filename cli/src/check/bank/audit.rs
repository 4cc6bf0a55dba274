//! Auditors: they read all along, remember what they saw, and hold every later snapshot against it.
//!
//! A *full* audit reads every balance in one snapshot and adds them up. A *quick* one takes a snapshot and asks the store
//! only for the versions put last, so it is over in well under a millisecond: what it saw is as fresh as can be when the
//! server is killed, and a commit that was visible before it was durable is caught.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use seriatim_core::{CommitNumber, Snapshot, WritePointer};
use seriatim_history::{Interval, Outcome, Row};
use seriatim_kv::{Db, Error, View};

use super::accounts::{Bank, OPENING_BALANCE, TransferId};
use super::books::Books;
use super::record::{self, Record};
use crate::check::host::HostedStore;

/// Versions that a quick audit asks for: more than all clients together have under way.
const RECENT: u32 = 256;
/// Violations of each kind that are kept as text.
const EXAMPLES_MAX: u64 = 4;

/// What all auditors found.
#[derive(Debug, Default)]
pub struct Findings {
    /// Full audits.
    pub audits: AtomicU64,
    /// Quick audits.
    pub quick_audits: AtomicU64,
    /// Snapshots whose balances do not add up.
    pub sum_errors: AtomicU64,
    /// Reads that a later snapshot contradicts.
    pub taken_back: AtomicU64,
    /// The first violations of each kind in words.
    pub examples: Mutex<Vec<String>>,
    /// The greatest commit number that anybody has seen: no snapshot taken later may have a smaller one.
    pub seen_csn: AtomicU64,
}

impl Findings {
    /// Notes that this commit number was seen.
    pub fn saw(&self, csn: CommitNumber) {
        self.seen_csn.fetch_max(csn.0, Ordering::SeqCst);
    }

    fn violation(&self, counter: &AtomicU64, describe: impl FnOnce() -> String) {
        if counter.fetch_add(1, Ordering::Relaxed) < EXAMPLES_MAX {
            self.examples.lock().unwrap_or_else(PoisonError::into_inner).push(describe());
        }
    }

    fn wrong_sum(&self, describe: impl FnOnce() -> String) {
        self.violation(&self.sum_errors, describe);
    }

    fn take_back(&self, describe: impl FnOnce() -> String) {
        self.violation(&self.taken_back, describe);
    }
}

/// One auditor and its memory.
pub struct Auditor<'a> {
    pub bank: &'a Bank,
    pub db: &'a Db,
    pub store: &'a HostedStore,
    pub findings: &'a Findings,
    /// The run's history, if one is written.
    record: Option<&'a Record>,
    memory: Memory,
    /// When the last quick audit asked for its snapshot.
    looked: Instant,
}

/// What one auditor saw, in the order it saw it.
#[derive(Debug, Default)]
struct Memory {
    boot: u64,
    csn: CommitNumber,
    /// Which version of each account the last full audit read.
    accounts: HashMap<u32, WritePointer>,
    /// Which rows of the ledger were ever read.
    ledger: HashMap<TransferId, Seen>,
}

/// A row of the ledger, when it was read first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    /// Who wrote it.
    version: WritePointer,
    /// The snapshot it was read in holds the commits up to this one, so its own is among them.
    csn: CommitNumber,
}

impl<'a> Auditor<'a> {
    pub fn new(
        bank: &'a Bank,
        db: &'a Db,
        store: &'a HostedStore,
        findings: &'a Findings,
        record: Option<&'a Record>,
    ) -> Auditor<'a> {
        Auditor { bank, db, store, findings, record, memory: Memory::default(), looked: Instant::now() }
    }

    /// Reads every balance in one snapshot.
    ///
    /// # Errors
    /// If the server does not answer, which it may not, or the store, which it must.
    pub fn audit(&mut self) -> Result<(), Error> {
        let sent = record::now();
        let view = self.look()?;
        let begin = Interval { sent, answered: Some(record::now()) };
        let balances = self.bank.balances(&view)?;
        let csn = view.snapshot().csn;
        if let Some(record) = self.record {
            record.add(&Row {
                label: Some("audit".into()),
                begin: Some(begin),
                snapshot: Some(record::point(view.snapshot())),
                reads: balances.iter().map(|(account, _, version)| record::read(*account, Some(*version))).collect(),
                outcome: Outcome::Committed,
                ..Row::default()
            });
        }
        self.add_up(csn, &balances);
        for (account, _, version) in balances {
            let before = self.memory.accounts.insert(account, version);
            if let Some(before) = before.filter(|before| *before > version) {
                self.findings.take_back(|| {
                    format!("account {account}: {before:?} was read, and at {csn:?} {version:?} is newest")
                });
            }
        }
        self.findings.audits.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Takes a snapshot and reads the newest rows of the ledger in it. If it holds a commit that this auditor had not seen
    /// before, `on_news` is first told how old that is at most: whatever it does to the server, the store keeps what the
    /// snapshot shows.
    ///
    /// # Errors
    /// As for [`Auditor::audit`].
    pub fn quick_audit(&mut self, on_news: impl FnOnce(Duration)) -> Result<(), Error> {
        let (before, looked_before) = (self.memory.csn, self.looked);
        self.looked = Instant::now();
        let view = self.look()?;
        if view.snapshot().csn > before {
            on_news(looked_before.elapsed());
            // A version that is still in the store although the snapshot says that its transaction ended was committed:
            // of an aborted one the versions are removed first.
            for (row, version) in self.store.recent(RECENT)? {
                let id = self.bank.ledger.key_of(&row).and_then(|key| TransferId::from_key(&key));
                if let Some(id) = id.filter(|_| view.snapshot().is_visible(version)) {
                    self.memory.ledger.entry(id).or_insert(Seen { version, csn: view.snapshot().csn });
                }
            }
        }
        self.findings.quick_audits.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Reads everything once more, at the end of the run, and holds it against all that was seen and acknowledged.
    /// Answers how many acknowledged transfers are lost.
    ///
    /// # Errors
    /// As for [`Auditor::audit`].
    pub fn close(mut self, others: Vec<Auditor<'_>>, books: &Books) -> Result<u64, Error> {
        self.audit()?;
        let view = self.look()?;
        let csn = view.snapshot().csn;
        let transfers = self.bank.transfers(&view)?;
        let balances = self.bank.balances(&view)?;

        let mut expected: HashMap<u32, i128> = HashMap::new();
        for (_, transfer, _) in &transfers {
            *expected.entry(transfer.from).or_default() -= i128::from(transfer.amount);
            *expected.entry(transfer.to).or_default() += i128::from(transfer.amount);
        }
        let wrong = balances.iter().find(|(account, balance, _)| {
            let moved = expected.get(account).copied().unwrap_or_default();
            i128::from(*balance) != i128::from(OPENING_BALANCE) + moved
        });
        if let Some((account, balance, _)) = wrong {
            self.findings.wrong_sum(|| format!("account {account} holds {balance}, and the ledger says otherwise"));
        }

        let ledger: HashMap<TransferId, WritePointer> =
            transfers.into_iter().map(|(id, _, version)| (id, version)).collect();
        for memory in others.iter().map(|other| &other.memory).chain([&self.memory]) {
            for (id, seen) in &memory.ledger {
                let Seen { version, csn: seen_csn } = *seen;
                if ledger.get(id) != Some(&version) {
                    self.findings.take_back(|| format!("{id:?} by {version:?} was read, and at {csn:?} it is missing"));
                }
                let told = books.acknowledged.get(id).filter(|told| told.tx == version && told.csn > seen_csn);
                if let Some(told) = told {
                    let number = told.csn;
                    self.findings.take_back(|| {
                        format!("{id:?} by {version:?} was read at {seen_csn:?}, and committed as {number:?}")
                    });
                }
            }
        }
        for csn in books.commit_numbers_twice() {
            self.findings.take_back(|| format!("two transfers were acknowledged as {csn:?}"));
        }
        Ok(books.lost(&ledger))
    }

    /// Takes a snapshot and holds it against what was seen before.
    fn look(&mut self) -> Result<View, Error> {
        let seen_before = CommitNumber(self.findings.seen_csn.load(Ordering::SeqCst)).max(self.memory.csn);
        let view = self.db.snapshot()?;
        self.memory.hold_against(view.snapshot(), seen_before, self.findings);
        self.findings.saw(view.snapshot().csn);
        Ok(view)
    }

    fn add_up(&self, csn: CommitNumber, balances: &[(u32, u64, WritePointer)]) {
        let sum: u128 = balances.iter().map(|(_, balance, _)| u128::from(*balance)).sum();
        let (total, count) = (self.bank.total(), self.bank.count());
        if sum != u128::from(total) || balances.len() != count as usize {
            let accounts = balances.len();
            self.findings
                .wrong_sum(|| format!("at commit {csn} {accounts} of {count} accounts hold {sum}, not {total}"));
        }
    }
}

impl Memory {
    fn hold_against(&mut self, snapshot: &Snapshot, seen_before: CommitNumber, findings: &Findings) {
        let csn = snapshot.csn;
        if csn < seen_before {
            findings.take_back(|| format!("a snapshot at {csn:?} was taken after {seen_before:?} had been seen"));
        }
        // Within one run of the server a pointer that has ended stays ended; only a restart may have forgotten.
        if snapshot.id.boot != self.boot {
            self.boot = snapshot.id.boot;
            let missing = |version: &WritePointer| !snapshot.is_visible(*version);
            for (id, Seen { version, .. }) in self.ledger.extract_if(|_, seen| missing(&seen.version)) {
                findings.take_back(|| format!("{id:?} by {version:?} was read, and at {csn:?} it is excluded"));
            }
            for (account, version) in self.accounts.extract_if(|_, version| missing(version)) {
                findings.take_back(|| format!("account {account} by {version:?} was read, and at {csn:?} is excluded"));
            }
        }
        self.csn = csn;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use seriatim_core::{InvalidSet, SnapshotId};

    use super::*;

    fn snapshot(boot: u64, csn: u64, invalid: &[u64]) -> Snapshot {
        let pointers = invalid.iter().copied().map(WritePointer).collect();
        Snapshot {
            id: SnapshotId { boot, number: 1 },
            read_pointer: WritePointer(1000),
            csn: CommitNumber(csn),
            invalid: Arc::new(InvalidSet { pointers, ..InvalidSet::default() }),
            ..Snapshot::default()
        }
    }

    #[test]
    fn a_smaller_commit_number_is_noticed_whoever_saw_the_greater() {
        let (mut memory, findings) = (Memory::default(), Findings::default());
        memory.hold_against(&snapshot(1, 5, &[]), CommitNumber(5), &findings);
        assert_eq!(findings.taken_back.load(Ordering::Relaxed), 0);
        memory.hold_against(&snapshot(1, 5, &[]), CommitNumber(6), &findings);
        assert_eq!(findings.taken_back.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_version_that_was_read_and_is_excluded_after_a_restart_is_noticed_once() {
        let (mut memory, findings) = (Memory::default(), Findings::default());
        memory.hold_against(&snapshot(1, 5, &[]), CommitNumber(0), &findings);
        let id = |sequence| TransferId { client: 1, sequence };
        let seen = |version| Seen { version: WritePointer(version), csn: CommitNumber(5) };
        memory.ledger.extend([(id(1), seen(10)), (id(2), seen(11))]);
        memory.accounts.insert(3, WritePointer(11));
        memory.hold_against(&snapshot(2, 6, &[10]), CommitNumber(5), &findings);
        memory.hold_against(&snapshot(3, 7, &[10]), CommitNumber(6), &findings);
        assert_eq!(findings.taken_back.load(Ordering::Relaxed), 1);
        assert_eq!(memory.ledger.len(), 1);
        memory.hold_against(&snapshot(4, 7, &[10, 11]), CommitNumber(7), &findings);
        assert_eq!(findings.taken_back.load(Ordering::Relaxed), 3);
        assert_eq!(findings.examples.lock().unwrap().len(), 3);
    }
}
