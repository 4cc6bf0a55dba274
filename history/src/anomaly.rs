//! The kinds of anomalies, and one of them with its evidence.

use std::fmt;

use serde::Serialize;

/// What can be wrong with a history. The name in brackets is that of the literature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Two transactions have one write pointer.
    DuplicatePointer,
    /// Two transactions have one commit number.
    DuplicateCsn,
    /// A transaction's own numbers contradict each other: its write pointer is not above its read pointer, or its
    /// commit number not above its snapshot's.
    BadNumbers,
    /// A version was read that no row has written.
    UnwrittenRead,
    /// A version of a transaction that did not commit was read (G1a).
    AbortedRead,
    /// A version was read that its writer overwrote itself (G1b).
    IntermediateRead,
    /// A version was read that was not in the snapshot: it was committed later, or not yet committed (G-SIa).
    DirtyRead,
    /// An older version was read than the snapshot holds (G-SIb).
    StaleRead,
    /// Two transactions that overlap have both committed a write of one key: the first committer has not won.
    BothCommitted,
    /// Of two versions of a key the one committed later has the smaller write pointer.
    PointerOrder,
    /// A commit was acknowledged before a begin was sent, and is not in its snapshot.
    StaleSnapshot,
    /// A snapshot holds a commit that was asked for only after the snapshot had been answered.
    EarlySnapshot,
    /// A snapshot is older than one that was answered before it was asked for, or a later one of its session.
    SnapshotBack,
    /// A write pointer is smaller than one that was answered before it was asked for.
    PointerBack,
    /// A commit has a smaller number than one that was acknowledged before it was asked for.
    CommitBack,
    /// A cycle of overwrites (G0).
    WriteCycle,
    /// A cycle of reads and overwrites, each of what was committed before (G1c).
    CircularFlow,
    /// A transaction overwrote a key that somebody else had overwritten since it read it.
    LostUpdate,
    /// A transaction saw one part of another's effects and missed the other (G-single).
    ReadSkew,
    /// Two transactions saw two others in opposite orders (G-nonadjacent).
    LongFork,
    /// Serializable transactions each missed what the next one wrote (G2-item). Allowed under snapshot isolation.
    WriteSkew,
}

impl Kind {
    /// All kinds, in the order in which they are reported.
    pub const ALL: [Kind; 21] = [
        Kind::DuplicatePointer,
        Kind::DuplicateCsn,
        Kind::BadNumbers,
        Kind::UnwrittenRead,
        Kind::AbortedRead,
        Kind::IntermediateRead,
        Kind::DirtyRead,
        Kind::StaleRead,
        Kind::BothCommitted,
        Kind::PointerOrder,
        Kind::StaleSnapshot,
        Kind::EarlySnapshot,
        Kind::SnapshotBack,
        Kind::PointerBack,
        Kind::CommitBack,
        Kind::WriteCycle,
        Kind::CircularFlow,
        Kind::LostUpdate,
        Kind::ReadSkew,
        Kind::LongFork,
        Kind::WriteSkew,
    ];

    /// Its name, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Kind::DuplicatePointer => "duplicate-pointer",
            Kind::DuplicateCsn => "duplicate-csn",
            Kind::BadNumbers => "bad-numbers",
            Kind::UnwrittenRead => "unwritten-read",
            Kind::AbortedRead => "aborted-read",
            Kind::IntermediateRead => "intermediate-read",
            Kind::DirtyRead => "dirty-read",
            Kind::StaleRead => "stale-read",
            Kind::BothCommitted => "both-committed",
            Kind::PointerOrder => "pointer-order",
            Kind::StaleSnapshot => "stale-snapshot",
            Kind::EarlySnapshot => "early-snapshot",
            Kind::SnapshotBack => "snapshot-back",
            Kind::PointerBack => "pointer-back",
            Kind::CommitBack => "commit-back",
            Kind::WriteCycle => "write-cycle",
            Kind::CircularFlow => "circular-flow",
            Kind::LostUpdate => "lost-update",
            Kind::ReadSkew => "read-skew",
            Kind::LongFork => "long-fork",
            Kind::WriteSkew => "write-skew",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A transaction of the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Member {
    /// The row's number, from 1; for a file without blank lines that of the line.
    pub row: u32,
    /// Its write pointer, if it has one.
    pub tx: Option<u64>,
    /// Its name for people, if it has one.
    pub label: Option<String>,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.label, self.tx) {
            (Some(label), Some(tx)) => write!(f, "{label} ({tx})"),
            (Some(label), None) => write!(f, "{label} (row {})", self.row),
            (None, Some(tx)) => write!(f, "{tx}"),
            (None, None) => write!(f, "row {}", self.row),
        }
    }
}

/// Something that a history must not hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Anomaly {
    /// What it is.
    pub kind: Kind,
    /// Who takes part; those of a cycle in its order.
    pub members: Vec<Member>,
    /// The keys it happened on; those of a cycle in its order.
    pub keys: Vec<String>,
    /// What happened, in a sentence.
    pub why: String,
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.kind, self.why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_has_one_name() {
        for kind in Kind::ALL {
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.name());
        }
        assert!(Kind::ALL.is_sorted() && Kind::ALL.len() == Kind::WriteSkew as usize + 1);
    }
}
