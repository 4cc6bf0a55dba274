//! The numbers everything else is said in: write pointers, commit numbers, sequencer time.

use std::fmt;

/// How many write pointers share one millisecond of the clock.
pub const POINTERS_PER_MS: u64 = 1_000_000;

/// A version that a transaction stamps on its writes, and that transaction's identity.
///
/// `ms_since_epoch * 1_000_000 + n`: strictly increasing, never reused, readable as a birth time, good until the
/// year 2262. Zero is never handed out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct WritePointer(pub u64);

impl WritePointer {
    /// The greatest pointer that fits the arithmetic of versioned stores, which often have signed versions.
    pub const MAX: WritePointer = WritePointer(i64::MAX as u64);

    /// The first pointer of a millisecond since the Unix epoch, held at [`WritePointer::MAX`].
    pub fn at_ms(ms_since_epoch: u64) -> WritePointer {
        WritePointer(ms_since_epoch.saturating_mul(POINTERS_PER_MS).min(Self::MAX.0))
    }

    /// The millisecond since the Unix epoch at which this pointer's number lies.
    pub fn ms_since_epoch(self) -> u64 {
        self.0 / POINTERS_PER_MS
    }

    /// When a transaction that began under this pointer with such a timeout expires: milliseconds since the Unix epoch,
    /// for a timeout in milliseconds, held at the greatest number.
    ///
    /// An estimate, for people and dashboards: a pointer's number is near its begin and not exactly at it, and the
    /// sequencer measures deadlines on [`SequencerTime`], which stands while nobody serves.
    pub fn expiration_ms(self, timeout_ms: u64) -> u64 {
        self.ms_since_epoch().saturating_add(timeout_ms)
    }
}

impl fmt::Display for WritePointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for WritePointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "wp:{}", self.0)
    }
}

/// Place of a commit in the order of commit decisions: 1, 2, 3 … without holes.
///
/// A snapshot holds exactly the commits up to its own number, so snapshots are prefixes and no two disagree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CommitNumber(pub u64);

impl fmt::Display for CommitNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for CommitNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "csn:{}", self.0)
    }
}

/// Milliseconds of a clock that advances only while a process serves.
///
/// Deadlines are measured on it, so neither downtime nor a step of the wall clock ends a transaction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct SequencerTime(pub u64);

impl SequencerTime {
    /// A time that never comes: the deadline of a transaction that has none.
    pub const NEVER: SequencerTime = SequencerTime(u64::MAX);

    /// This time plus some milliseconds, held at [`SequencerTime::NEVER`].
    pub fn plus_ms(self, ms: u64) -> SequencerTime {
        SequencerTime(self.0.saturating_add(ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_tells_its_birth_time() {
        let pointer = WritePointer(WritePointer::at_ms(1_700_000_000_123).0 + 999_999);
        assert_eq!(pointer.ms_since_epoch(), 1_700_000_000_123);
        assert_eq!(WritePointer::at_ms(u64::MAX), WritePointer::MAX);
    }

    #[test]
    fn a_pointer_tells_when_its_transaction_expires() {
        let pointer = WritePointer(WritePointer::at_ms(1_700_000_000_123).0 + 999_999);
        assert_eq!(pointer.expiration_ms(30_000), 1_700_000_030_123);
        assert_eq!(pointer.expiration_ms(0), pointer.ms_since_epoch());
        // A day, as a LONG one has it.
        assert_eq!(WritePointer::at_ms(1_000).expiration_ms(86_400_000), 86_401_000);
        assert_eq!(WritePointer::MAX.expiration_ms(u64::MAX), u64::MAX);
    }
}
