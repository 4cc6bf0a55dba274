//! What can be asked of a transaction and what it can answer: kinds, options, outcomes, refusals.

use std::sync::Arc;

use crate::pointer::{CommitNumber, SequencerTime, WritePointer};

/// Default deadline of a SHORT transaction: 30 s.
pub const SHORT_TIMEOUT_MS_DEFAULT: u64 = 30_000;
/// Longest deadline that a SHORT transaction may ask for: 24 h.
pub const SHORT_TIMEOUT_MS_MAX: u64 = 24 * 3_600_000;
/// Default deadline of a LONG transaction: 24 h; 0 stands for none.
pub const LONG_TIMEOUT_MS_DEFAULT: u64 = 24 * 3_600_000;
/// What a transaction that survived a restart has left at least: 5 s.
pub const SURVIVOR_TIMEOUT_MS_MIN: u64 = 5_000;

/// The two kinds of transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum Kind {
    /// Has a deadline and takes part in conflict detection.
    #[default]
    Short,
    /// No conflict detection (a change set is refused), and an abort makes it invalid, for its writes are too many
    /// to be rolled back.
    Long,
}

/// Which anomalies a transaction rules out. It is chosen by what its commit brings along: the sequencer checks what it
/// is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
pub enum Isolation {
    /// One snapshot for all reads, and no lost updates: of two transactions that overlap and write the same key, one
    /// is refused. Two that read what the other writes may both commit (write skew).
    #[default]
    Snapshot,
    /// As if the transactions had run one after the other: what was read is checked too. It holds among transactions
    /// that all ask for it.
    Serializable,
}

/// How a transaction wishes to begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct BeginOptions {
    /// SHORT or LONG.
    pub kind: Kind,
    /// Deadline in ms from now; `None` takes the sequencer's default for the kind. 0 is refused for SHORT; for LONG
    /// it means no deadline.
    pub timeout_ms: Option<u64>,
    /// The client promises that no write reaches a store before the commit is decided, so losing the client means
    /// an abort rather than an invalid transaction.
    pub deferred: bool,
    /// The transaction stays open when its client disconnects, until its deadline.
    pub detached: bool,
}

/// Why a transaction became invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum InvalidCause {
    /// Its client, or an operator, said so.
    Asked = 1,
    /// Its deadline passed.
    Expired = 2,
    /// Its client went away and did not come back within the grace.
    Disconnected = 3,
    /// Somebody settled the doubt about it while it was open.
    Settled = 4,
    /// It was LONG and aborted.
    LongAborted = 5,
    /// A crash lost track of it: its pointer may have been handed out, nobody knows to whom.
    Unaccounted = 6,
}

impl InvalidCause {
    /// The cause with this number on disk or on the wire.
    pub fn from_u8(code: u8) -> Option<InvalidCause> {
        use InvalidCause::*;
        [Asked, Expired, Disconnected, Settled, LongAborted, Unaccounted].into_iter().find(|c| *c as u8 == code)
    }
}

/// Where a transaction stands, as far as the asked side knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Status {
    /// Begun, not ended.
    Open,
    /// An end is decided or being decided, and not durable yet.
    Deciding,
    /// Committed, durably, at this place in the order.
    Committed(CommitNumber),
    /// A commit was refused; the transaction is still excluded and may only abort or be invalidated.
    Refused,
    /// Aborted: its writes were rolled back, or there were none.
    Aborted,
    /// Ended without a clean rollback: excluded from every snapshot.
    Invalid(InvalidCause),
    /// Not known: never begun, or ended so long ago that the outcome was dropped. Never guessed.
    Forgotten,
}

/// Why a commit did not commit, or a check or a checkpoint was refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CommitError {
    /// Somebody who committed after this transaction's snapshot wrote one of its keys. Roll back, abort, begin again.
    #[error("transaction {tx} conflicts on change id {change_id:#018x} with {}, number {csn}", named(winner, label))]
    Conflict {
        /// The transaction that was refused.
        tx: WritePointer,
        /// The first common id that was found.
        change_id: u64,
        /// Commit number of the winner.
        csn: CommitNumber,
        /// The winner, if it is among the last commits, [`Limits::winners`](crate::Limits::winners) of them.
        winner: Option<WritePointer>,
        /// The winner's label, if it had one that was kept.
        label: Option<Arc<str>>,
    },
    /// The transaction's snapshot is older than what the conflict index still remembers. Roll back, abort, begin again.
    #[error(
        "transaction {tx} is too old to be checked: its snapshot ends at commit {snapshot}, the index starts at {mark}"
    )]
    TooOld {
        /// The transaction that was refused.
        tx: WritePointer,
        /// Commit number of its snapshot.
        snapshot: CommitNumber,
        /// The smallest snapshot that could still be checked.
        mark: CommitNumber,
    },
    /// The deadline passed; the transaction is invalid now.
    #[error("transaction {tx} passed its deadline")]
    Expired {
        /// The transaction that was refused.
        tx: WritePointer,
    },
    /// The transaction is not open. Do not repeat.
    #[error("transaction {tx} is not in progress: {ended:?}")]
    NotInProgress {
        /// The transaction that was named.
        tx: WritePointer,
        /// How it ended, as far as is known.
        ended: Status,
    },
    /// More change ids than the limit. The transaction stays open.
    #[error("a change set of {len} ids is over the limit of {max}")]
    ChangeSetTooLarge {
        /// Ids in the change set.
        len: u64,
        /// The limit.
        max: u64,
    },
    /// A LONG transaction takes no part in conflict detection. The transaction stays open.
    #[error("transaction {tx} is LONG and may not bring a change set")]
    LongWithChanges {
        /// The transaction that was named.
        tx: WritePointer,
    },
    /// The second step of a commit in two names a change set that is not kept: it was never checked, was replaced, or a
    /// restart or the bound has dropped it. The transaction stays open; commit it with its changes, in one step.
    #[error("the checked change set of transaction {tx} is not kept: commit with the changes")]
    NeedChanges {
        /// The transaction that was named.
        tx: WritePointer,
    },
    /// The client does not know of all checkpoints, or of too many. The transaction stays open.
    #[error("transaction {tx} has {known} checkpoints, not {named}")]
    CheckpointMismatch {
        /// The transaction that was named.
        tx: WritePointer,
        /// Checkpoints that it took.
        known: u32,
        /// Checkpoints that the request named.
        named: u32,
    },
    /// As many checkpoints as one transaction may have. The transaction stays open.
    #[error("transaction {tx} has {max} checkpoints, which is the limit")]
    TooManyCheckpoints {
        /// The transaction that was named.
        tx: WritePointer,
        /// The limit.
        max: u32,
    },
    /// The server is full for the moment. Nothing happened; repeat after a pause.
    #[error("overloaded: {0}")]
    Overloaded(Full),
}

fn named(winner: &Option<WritePointer>, label: &Option<Arc<str>>) -> String {
    match (winner, label) {
        (None, _) => "a transaction that is forgotten".to_owned(),
        (Some(winner), None) => winner.to_string(),
        (Some(winner), Some(label)) => format!("{winner} ({label})"),
    }
}

impl CommitError {
    /// True if the whole transaction may be run again from its begin.
    pub fn is_retryable(&self) -> bool {
        matches!(self, Self::Conflict { .. } | Self::TooOld { .. } | Self::Expired { .. } | Self::Overloaded(_))
    }
}

/// Why a begin, or a block of timestamps, was refused. Nothing was handed out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BeginError {
    /// A SHORT deadline of zero.
    #[error("a SHORT transaction needs a timeout of at least 1 ms")]
    TimeoutNotPositive,
    /// A deadline beyond the limit.
    #[error("a timeout of {asked_ms} ms is over the limit of {max_ms} ms")]
    TimeoutTooLong {
        /// What was asked for.
        asked_ms: u64,
        /// The limit for the kind.
        max_ms: u64,
    },
    /// A block of zero, or of more than fits.
    #[error("a block of {asked} is not between 1 and {max}")]
    BlockSize {
        /// What was asked for.
        asked: u64,
        /// The limit.
        max: u64,
    },
    /// The server is full for the moment. Repeat after a pause.
    #[error("overloaded: {0}")]
    Overloaded(Full),
}

/// Which bound was met.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, thiserror::Error)]
#[repr(u8)]
pub enum Full {
    /// The durable window of pointers is used up: the disk has stalled for half a window.
    #[error("the window of durable pointers is used up")]
    Window = 1,
    /// As many transactions are open as may be.
    #[error("too many transactions are open")]
    OpenTransactions = 2,
    /// The event ring is full: the log is not keeping up.
    #[error("the log is not keeping up")]
    EventRing = 3,
    /// As many transactions are invalid as may be; only LONG begins are refused for it.
    #[error("too many transactions are invalid")]
    Invalid = 4,
    /// The log has no room for a further segment.
    #[error("the log has no room for a further segment")]
    Disk = 5,
    /// As many fences are waited for as may be.
    #[error("too many fences are waited for")]
    Fences = 6,
    /// As many images are being read as may be.
    #[error("too many images are being read")]
    Images = 7,
}

impl Full {
    /// The bound with this number on the wire.
    pub fn from_u8(code: u8) -> Option<Full> {
        use Full::*;
        [Window, OpenTransactions, EventRing, Invalid, Disk, Fences, Images].into_iter().find(|f| *f as u8 == code)
    }
}

/// A transaction that has not ended, as the published state keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpenTransaction {
    /// The transaction.
    pub tx: WritePointer,
    /// SHORT or LONG.
    pub kind: Kind,
    /// No write reaches a store before the commit is decided.
    pub deferred: bool,
    /// Stays open when its client disconnects.
    pub detached: bool,
    /// A commit was refused: it may only abort or become invalid.
    pub refused: bool,
    /// Further write pointers that it took.
    pub checkpoints: u32,
    /// When it expires; [`SequencerTime::NEVER`] for a LONG without a deadline.
    pub deadline: SequencerTime,
    /// Commit number of the snapshot it began on.
    pub snapshot: CommitNumber,
    /// Greatest version settled for that snapshot.
    pub settled: WritePointer,
}
