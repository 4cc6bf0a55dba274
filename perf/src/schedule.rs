//! When a run begins transactions, and when it measures.

use std::time::{Duration, Instant};

use crate::load::Load;
use crate::watch::Phase;

/// The phases of one run, or of one thread's share of it.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    phase: Phase,
    /// When the phase ends, unless it is the last.
    ends_at: Instant,
    measured: Duration,
    /// Transactions that may still begin.
    left: u64,
}

impl Schedule {
    /// A run that starts at `start` and begins at most `count` transactions.
    pub fn new(load: &Load, start: Instant, count: u64) -> Schedule {
        Schedule { phase: Phase::WarmUp, ends_at: start + load.warmup, measured: load.measured, left: count }
    }

    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// When the phase ends, if time ends it.
    pub fn phase_ends(&self) -> Option<Instant> {
        (self.phase != Phase::Draining).then_some(self.ends_at)
    }

    /// Moves on to the phase of this moment, one step at most; true if that is another than before. `in_flight` counts
    /// the transactions that have begun and not ended.
    pub fn advance(&mut self, now: Instant, in_flight: u64) -> bool {
        let is_done = self.left == 0 && in_flight == 0;
        let next = match self.phase {
            Phase::WarmUp if now >= self.ends_at => {
                // Counted from here, so that a late look does not measure less than was asked.
                self.ends_at = now + self.measured;
                Phase::Measured
            }
            Phase::WarmUp | Phase::Measured if is_done || now >= self.ends_at => Phase::Draining,
            _ => return false,
        };
        self.phase = next;
        true
    }

    /// How many of `wanted` transactions may begin.
    pub fn take(&mut self, wanted: u32) -> u32 {
        if self.phase == Phase::Draining {
            return 0;
        }
        let taken = u32::try_from(self.left).map_or(wanted, |left| left.min(wanted));
        self.left -= u64::from(taken);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(warmup_ms: u64, count: u64) -> (Schedule, Instant) {
        let load =
            Load { warmup: Duration::from_millis(warmup_ms), measured: Duration::from_millis(100), ..Load::default() };
        let start = Instant::now();
        (Schedule::new(&load, start, count), start)
    }

    #[test]
    fn time_moves_a_run_through_its_phases() {
        let (mut schedule, start) = schedule(10, u64::MAX);
        let mut seen = Vec::new();
        for ms in [0, 9, 10, 50, 109, 110, 500] {
            schedule.advance(start + Duration::from_millis(ms), 1);
            seen.push((schedule.phase(), schedule.take(5)));
        }
        let (warm, on, drain) = ((Phase::WarmUp, 5), (Phase::Measured, 5), (Phase::Draining, 0));
        assert_eq!(seen, [warm, warm, on, on, on, drain, drain]);
    }

    #[test]
    fn a_count_ends_a_run_when_the_last_transaction_has_ended() {
        let (mut schedule, start) = schedule(0, 7);
        assert!(schedule.advance(start, 0));
        assert_eq!((schedule.take(5), schedule.take(5), schedule.take(5)), (5, 2, 0));
        assert!(!schedule.advance(start, 1));
        assert!(schedule.advance(start, 0));
        assert_eq!(schedule.phase(), Phase::Draining);
    }
}
