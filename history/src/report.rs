//! The judgement on a history, for people and for programs.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use crate::anomaly::{Anomaly, Kind};
use crate::findings::Findings;
use crate::history::History;
use crate::row::Outcome;
use crate::versions::Versions;
use crate::{cycles, reads, real_time, snapshots};

/// What was found. Field names are for programs and stay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// True if there is any anomaly.
    pub failed: bool,
    /// Rows.
    pub transactions: u64,
    /// Of these committed.
    pub committed: u64,
    /// Of these without a known outcome.
    pub unknown: u64,
    /// Of the unknown ones, those that somebody read from: they must have committed.
    pub unknown_read: u64,
    /// Reads, in transactions of every outcome.
    pub reads: u64,
    /// Keys that were written, counted once for each transaction.
    pub writes: u64,
    /// Distinct keys.
    pub keys: u64,
    /// What gave versions their order.
    pub order: Order,
    /// Transactions that read from a numbered snapshot: only these are held against what their snapshot holds.
    pub on_snapshots: u64,
    /// Groups of transactions that no serial order explains and snapshot isolation allows. No anomaly.
    pub write_skews_allowed: u64,
    /// Number of anomalies of each kind, without those that there are none of. Of cycles it is a lower bound.
    pub counts: BTreeMap<Kind, u64>,
    /// The first of each kind.
    pub anomalies: Vec<Anomaly>,
}

/// What gives the versions of a key their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// The commit numbers of their writers.
    CommitNumbers,
    /// The write pointers of their writers: neither commits nor snapshots have numbers.
    WritePointers,
}

impl History {
    /// Judges the history. Up to `kept_max` anomalies of each kind are kept with their evidence; all are counted.
    pub fn judge(&self, kept_max: u64) -> Report {
        let versions = Versions::new(self);
        let mut findings = Findings::new(self, kept_max);
        reads::judge(self, &versions, &mut findings);
        snapshots::judge(self, &versions, &mut findings);
        real_time::judge(self, &mut findings);
        let write_skews_allowed = cycles::judge(self, &versions, &mut findings);
        let (counts, anomalies) = findings.into_parts();
        let counts: BTreeMap<Kind, u64> = Kind::ALL.into_iter().zip(counts).filter(|(_, count)| *count > 0).collect();

        let number_of = |outcome| self.transactions().filter(|(_, tx)| tx.outcome == outcome).count() as u64;
        let unknown_read =
            self.transactions().filter(|(number, tx)| tx.outcome == Outcome::Unknown && versions.counts(*number));
        Report {
            failed: !counts.is_empty(),
            transactions: self.len() as u64,
            committed: number_of(Outcome::Committed),
            unknown: number_of(Outcome::Unknown),
            unknown_read: unknown_read.count() as u64,
            reads: self.reads().len() as u64,
            writes: self.writes().len() as u64,
            keys: self.keys() as u64,
            order: if versions.is_numbered() { Order::CommitNumbers } else { Order::WritePointers },
            on_snapshots: self.transactions().filter(|(_, tx)| tx.snapshot.csn.is_some()).count() as u64,
            write_skews_allowed,
            counts,
            anomalies,
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            ("transactions", self.transactions),
            ("  committed", self.committed),
            ("  unknown", self.unknown),
            ("  unknown but read", self.unknown_read),
            ("  on numbered snapshots", self.on_snapshots),
            ("reads", self.reads),
            ("writes", self.writes),
            ("keys", self.keys),
            ("write skews (allowed)", self.write_skews_allowed),
        ];
        for (name, count) in counts {
            writeln!(f, "{name:<24} {count:>12}")?;
        }
        for (kind, count) in &self.counts {
            writeln!(f, "{kind:<24} {count:>12}")?;
        }
        for anomaly in &self.anomalies {
            writeln!(f, "  {anomaly}")?;
        }
        f.write_str(if self.failed { "FAILED" } else { "passed" })
    }
}
