//! What a run shows while it runs.

use std::time::Duration;

/// How far a run is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Not measured yet.
    WarmUp,
    /// Measured.
    Measured,
    /// Nothing more begins; what is in flight ends.
    Draining,
}

/// A run at one moment; shown about once a second.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Moment {
    /// Since the first transaction.
    pub elapsed: Duration,
    /// How far the run is.
    pub phase: Phase,
    /// Acknowledged commits since the first transaction.
    pub commits: u64,
    /// Conflicts since then.
    pub conflicts: u64,
    /// Transactions that ended otherwise since then.
    pub errors: u64,
}

/// Time between two moments.
pub(crate) const MOMENT_EVERY: Duration = Duration::from_secs(1);
