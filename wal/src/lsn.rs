//! Where in the log: record numbers.

use std::fmt;

/// Position in the log: the number of a record, counted 1, 2, 3 … over the whole life of a store, without holes.
///
/// A number and not a place in a file, so it does not depend on how records were grouped, padded or rolled over. Three
/// positions matter, and `released ≤ durable ≤ appended` holds at any moment:
///
/// - *appended*: the last record taken into the open group; only memory has it ([`crate::Log::appended`]);
/// - *durable*: the last record whose group was written and synced ([`crate::Log::durable`]);
/// - *released*: the last record whose claim was told to somebody; the caller's to keep, and never above durable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

impl Lsn {
    /// Before the first record.
    pub const ZERO: Lsn = Lsn(0);

    /// The position `records` further on.
    pub fn plus(self, records: u64) -> Lsn {
        Lsn(self.0 + records)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lsn:{}", self.0)
    }
}
