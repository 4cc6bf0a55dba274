//! How long to wait before trying again, and the little randomness a client needs.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Pause after the first failure of several.
const PAUSE_MIN: Duration = Duration::from_millis(5);
/// No pause is longer.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// 64 random bits. The standard library keys its hashers with the system's randomness, anew for each.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(0u8)
}

/// The pause after so many failures in a row: none after the first, then doubling up to a second, each taken at random
/// from its upper half, so that clients that lost one server do not come back in step.
pub(crate) fn pause(failures: u32, random: u64) -> Duration {
    let Some(doublings) = failures.checked_sub(2) else { return Duration::ZERO };
    let full = PAUSE_MIN.saturating_mul(1 << doublings.min(20)).min(PAUSE_MAX);
    let share = random as f64 / u64::MAX as f64;
    full.mul_f64(0.5 + share / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_start_at_none_double_and_stay_within_a_second() {
        assert_eq!(pause(0, 7), Duration::ZERO);
        assert_eq!(pause(1, 7), Duration::ZERO);
        assert_eq!(pause(2, u64::MAX), PAUSE_MIN);
        assert_eq!(pause(2, 0), PAUSE_MIN / 2);
        assert_eq!(pause(4, u64::MAX), PAUSE_MIN * 4);
        assert_eq!(pause(u32::MAX, u64::MAX), PAUSE_MAX);
        assert_ne!(random(), random());
    }
}
