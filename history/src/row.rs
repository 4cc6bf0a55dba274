//! A row of a history: one transaction as whoever ran it saw it. `FORMAT.md` gives every field.

use serde::{Deserialize, Serialize};

/// One transaction, as one line of JSON.
///
/// What a row leaves out is not asked about: a store without commit numbers is judged by its reads and writes alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Write pointer: the transaction's id, and the version of everything it wrote. Only a transaction that wrote
    /// nothing may be without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tx: Option<u64>,
    /// Who ran it. The rows of one session stand in the order in which they ran, one after the other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<u64>,
    /// A name for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// What the transaction was promised. Default: snapshot.
    #[serde(default, skip_serializing_if = "Isolation::is_default")]
    pub isolation: Isolation,
    /// When its begin was sent and answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begin: Option<Interval>,
    /// What it read from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<SnapshotPoint>,
    /// What it read. Default: nothing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reads: Vec<Read>,
    /// The keys it wrote, in order; a key written twice stands here twice. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub writes: Vec<String>,
    /// The keys it deleted, after whatever it wrote to them. Default: none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deletes: Vec<String>,
    /// Whose versions its own ones replaced, where the store tells. Default: not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overwrites: Vec<Overwrite>,
    /// How it ended, as far as was heard.
    pub outcome: Outcome,
    /// Commit number; only where the outcome is `committed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csn: Option<u64>,
    /// When its end was asked for and answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<Interval>,
}

/// What a transaction was promised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Isolation {
    /// One snapshot, no lost updates; write skew is allowed.
    #[default]
    Snapshot,
    /// As if one after the other, among those that all ask for it.
    Serializable,
}

impl Isolation {
    fn is_default(&self) -> bool {
        *self == Isolation::default()
    }
}

/// How a transaction ended. A row always says so; the default is for rows that are being written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It was said to have committed.
    Committed,
    /// It was given up.
    Aborted,
    /// It ended without a clean rollback.
    Invalid,
    /// Its commit was refused.
    Refused,
    /// Nobody heard: it counts as committed if somebody read from it, and else as if it had never been.
    #[default]
    Unknown,
}

/// From the moment a request was sent to that of its answer, `[sent, answered]`, in ns of one clock that all rows share;
/// `null` for an answer that never came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, Option<u64>)", into = "(u64, Option<u64>)")]
pub struct Interval {
    /// Not before this.
    pub sent: u64,
    /// Not after this, if an answer came.
    pub answered: Option<u64>,
}

impl From<(u64, Option<u64>)> for Interval {
    fn from((sent, answered): (u64, Option<u64>)) -> Interval {
        Interval { sent, answered }
    }
}

impl From<Interval> for (u64, Option<u64>) {
    fn from(interval: Interval) -> (u64, Option<u64>) {
        (interval.sent, interval.answered)
    }
}

/// The snapshot a transaction read from. Both parts may be missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotPoint {
    /// No version above this may be read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_pointer: Option<u64>,
    /// It holds exactly the commits up to this number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub csn: Option<u64>,
}

/// One read of one key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Read {
    /// The key.
    pub key: String,
    /// Write pointer of the version that was returned; `null` or missing if nothing was.
    #[serde(default)]
    pub writer: Option<u64>,
    /// Which of the writer's writes of this key was returned, from 1; missing stands for its last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seq: Option<u32>,
}

/// The version that a write replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overwrite {
    /// The key, which the row must have written.
    pub key: String,
    /// Write pointer of the version that was there.
    pub writer: u64,
}
