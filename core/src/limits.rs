//! The bounds of the decided state: everything that waits or grows has one.

use crate::change_set::{CHANGE_IDS_MAX, CHANGE_IDS_WARN};
use crate::labels::LabelRetention;
use crate::pointer::SequencerTime;
use crate::transaction::{
    BeginError, BeginOptions, Kind, LONG_TIMEOUT_MS_DEFAULT, SHORT_TIMEOUT_MS_DEFAULT, SHORT_TIMEOUT_MS_MAX,
};

/// The bounds of the decided state. Memory for all of them is reserved at the start and touched when it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Transactions that may be open at once, those whose end is not published yet included. Default 2^20; at most
    /// 2^28. Each takes 88 bytes.
    pub open_max: u32,
    /// Bytes of the conflict index, rounded down to a power of two. Default 256 MiB: it remembers the last 16 million
    /// written change ids. At least 64 bytes, at most 256 GiB.
    pub conflict_index_bytes: usize,
    /// State changes that may wait for the log; a power of two. Default 2^16, each 128 bytes; 2 to 2^24.
    pub event_ring_slots: u32,
    /// The last commits whose transactions are known by commit number, so that a conflict can name its winner; a power
    /// of two. Default 2^20, each 12 bytes; 1 to 2^28.
    pub winners: u32,
    /// Deadline of a SHORT transaction that asks for none. Default 30 s.
    pub short_timeout_ms: u64,
    /// Longest deadline that a SHORT transaction may ask for. Default 24 h.
    pub short_timeout_ms_max: u64,
    /// Deadline of a LONG transaction that asks for none. Default 24 h; 0 = no deadline.
    pub long_timeout_ms: u64,
    /// Change ids in one change set. Default 2^20.
    pub change_ids_max: usize,
    /// From this many change ids on a change set is worth a warning. Default 2^16.
    pub change_ids_warn: usize,
    /// Change ids that all change sets between the two steps of their commits may hold together, each set counted as 36
    /// more. Default 2^24, 128 MiB. A set beyond is not kept, and its commit is asked to bring its changes along.
    pub pending_ids_max: usize,
    /// How long labels are kept. Default: with open transactions and the last commits.
    pub labels: LabelRetention,
    /// Pointers that may be taken in one block, for a begin or for timestamps. Default 2^20.
    pub block_max: u32,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            open_max: 1 << 20,
            conflict_index_bytes: 256 << 20,
            event_ring_slots: 1 << 16,
            winners: 1 << 20,
            short_timeout_ms: SHORT_TIMEOUT_MS_DEFAULT,
            short_timeout_ms_max: SHORT_TIMEOUT_MS_MAX,
            long_timeout_ms: LONG_TIMEOUT_MS_DEFAULT,
            change_ids_max: CHANGE_IDS_MAX,
            change_ids_warn: CHANGE_IDS_WARN,
            pending_ids_max: 1 << 24,
            labels: LabelRetention::default(),
            block_max: 1 << 20,
        }
    }
}

/// Why limits cannot be worked with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LimitsError {
    /// A limit outside its own limits.
    #[error("{name} = {value} is not between {min} and {max}")]
    OutOfRange {
        /// The field of [`Limits`].
        name: &'static str,
        /// What it was set to.
        value: u64,
        /// The least that it may be.
        min: u64,
        /// The most that it may be.
        max: u64,
    },
    /// A limit that has to be a power of two and is none.
    #[error("{name} = {value} is no power of two")]
    NotPowerOfTwo {
        /// The field of [`Limits`].
        name: &'static str,
        /// What it was set to.
        value: u64,
    },
    /// A limit that may not be greater than another one and is.
    #[error("{lesser} = {value} is greater than {greater} = {max}")]
    Contradiction {
        /// The field of [`Limits`] that is too great.
        lesser: &'static str,
        /// What it was set to.
        value: u64,
        /// The field of [`Limits`] that bounds it.
        greater: &'static str,
        /// What that one was set to.
        max: u64,
    },
}

impl Limits {
    /// Refuses limits that cannot be worked with.
    ///
    /// # Errors
    /// If a limit is outside its own limits, or two of them contradict each other.
    pub fn check(&self) -> Result<(), LimitsError> {
        let within = [
            ("open_max", u64::from(self.open_max), 1, 1 << 28),
            ("conflict_index_bytes", self.conflict_index_bytes as u64, 64, 256 << 30),
            ("event_ring_slots", u64::from(self.event_ring_slots), 2, 1 << 24),
            ("winners", u64::from(self.winners), 1, 1 << 28),
            ("short_timeout_ms", self.short_timeout_ms, 1, u64::MAX),
            ("block_max", u64::from(self.block_max), 1, 1 << 28),
            ("change_ids_max", self.change_ids_max as u64, 0, u64::from(u32::MAX)),
        ];
        for (name, value, min, max) in within {
            if !(min..=max).contains(&value) {
                return Err(LimitsError::OutOfRange { name, value, min, max });
            }
        }
        for (name, value) in [("event_ring_slots", self.event_ring_slots), ("winners", self.winners)] {
            if !value.is_power_of_two() {
                return Err(LimitsError::NotPowerOfTwo { name, value: u64::from(value) });
            }
        }
        let ordered = [
            ("short_timeout_ms", self.short_timeout_ms, "short_timeout_ms_max", self.short_timeout_ms_max),
            ("change_ids_warn", self.change_ids_warn as u64, "change_ids_max", self.change_ids_max as u64),
        ];
        match ordered.into_iter().find(|(_, value, _, max)| value > max) {
            Some((lesser, value, greater, max)) => Err(LimitsError::Contradiction { lesser, value, greater, max }),
            None => Ok(()),
        }
    }

    /// When a transaction that begins now with these options expires.
    pub(crate) fn deadline(&self, now: SequencerTime, options: &BeginOptions) -> Result<SequencerTime, BeginError> {
        let after_ms = match (options.kind, options.timeout_ms) {
            (Kind::Short, None) => self.short_timeout_ms,
            (Kind::Short, Some(0)) => return Err(BeginError::TimeoutNotPositive),
            (Kind::Short, Some(asked_ms)) if asked_ms > self.short_timeout_ms_max => {
                return Err(BeginError::TimeoutTooLong { asked_ms, max_ms: self.short_timeout_ms_max });
            }
            (Kind::Long, None) => self.long_timeout_ms,
            (_, Some(asked_ms)) => asked_ms,
        };
        Ok(if after_ms == 0 { SequencerTime::NEVER } else { now.plus_ms(after_ms) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_agree_with_each_other_and_contradictions_are_named() {
        let limits = Limits::default();
        assert_eq!(limits.check(), Ok(()));
        let wrong = Limits { short_timeout_ms: limits.short_timeout_ms_max + 1, ..limits.clone() };
        assert!(matches!(wrong.check(), Err(LimitsError::Contradiction { lesser: "short_timeout_ms", .. })));
        let wrong = Limits { event_ring_slots: 3, ..limits.clone() };
        assert_eq!(wrong.check(), Err(LimitsError::NotPowerOfTwo { name: "event_ring_slots", value: 3 }));
        let wrong = Limits { open_max: 0, ..limits };
        assert!(matches!(wrong.check(), Err(LimitsError::OutOfRange { name: "open_max", .. })));
    }

    #[test]
    fn deadlines_follow_kind_and_wish() {
        let limits = Limits::default();
        let now = SequencerTime(1_000);
        let ask =
            |kind, timeout_ms| limits.deadline(now, &BeginOptions { kind, timeout_ms, ..BeginOptions::default() });
        assert_eq!(ask(Kind::Short, None), Ok(now.plus_ms(30_000)));
        assert_eq!(ask(Kind::Short, Some(7)), Ok(now.plus_ms(7)));
        assert_eq!(ask(Kind::Short, Some(0)), Err(BeginError::TimeoutNotPositive));
        let max_ms = limits.short_timeout_ms_max;
        assert_eq!(ask(Kind::Short, Some(max_ms)), Ok(now.plus_ms(max_ms)));
        let asked_ms = max_ms + 1;
        assert_eq!(ask(Kind::Short, Some(asked_ms)), Err(BeginError::TimeoutTooLong { asked_ms, max_ms }));
        assert_eq!(ask(Kind::Long, None), Ok(now.plus_ms(24 * 3_600_000)));
        assert_eq!(ask(Kind::Long, Some(0)), Ok(SequencerTime::NEVER));
        assert_eq!(ask(Kind::Long, Some(u64::MAX)), Ok(SequencerTime::NEVER));
    }
}
