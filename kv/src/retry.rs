//! How often and how patiently a transaction is run again.

use std::time::Duration;

/// Bounds on running a transaction again, and on asking for an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Attempts in all, the first included; 0 counts as 1. Default 32.
    pub attempts_max: u32,
    /// Longest pause before the second attempt; the longest pause doubles from then on. Default 1 ms.
    pub pause_first: Duration,
    /// No pause is longer. Default 250 ms.
    pub pause_max: Duration,
    /// How long an unknown outcome is asked for before it is given up as [`Error::Unknown`](crate::Error::Unknown).
    /// Default 30 s: a restart of the sequencer takes less.
    pub settle_for: Duration,
}

impl Default for RetryPolicy {
    fn default() -> RetryPolicy {
        RetryPolicy {
            attempts_max: 32,
            pause_first: Duration::from_millis(1),
            pause_max: Duration::from_millis(250),
            settle_for: Duration::from_secs(30),
        }
    }
}

impl RetryPolicy {
    /// A policy of one attempt.
    pub fn once() -> RetryPolicy {
        RetryPolicy { attempts_max: 1, ..RetryPolicy::default() }
    }

    /// The longest pause after this many attempts.
    fn pause_at_most(&self, attempts: u32) -> Duration {
        let doublings = attempts.saturating_sub(1).min(31);
        self.pause_first.saturating_mul(1 << doublings).min(self.pause_max)
    }

    /// A pause after this many attempts: anything up to the longest, so that those who collided once do not collide
    /// again.
    pub(crate) fn pause(&self, attempts: u32) -> Duration {
        self.pause_at_most(attempts).mul_f64(fastrand::f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_limit() {
        let policy = RetryPolicy::default();
        let longest: Vec<u128> = (1..=10).map(|n| policy.pause_at_most(n).as_millis()).collect();
        assert_eq!(longest, [1, 2, 4, 8, 16, 32, 64, 128, 250, 250]);
        assert_eq!(policy.pause_at_most(u32::MAX), policy.pause_max);
        assert!((0..1000).all(|_| policy.pause(5) <= Duration::from_millis(16)));
    }
}
