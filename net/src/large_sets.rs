//! A warning for change sets that are large, for whoever runs the server: such a one claims much of the conflict index and
//! delays whoever is behind it.

use std::time::Duration;

use seriatim_core::{Limits, WritePointer};

/// At most one warning in ten seconds.
const WARN_EVERY: Duration = Duration::from_secs(10);

/// How many have been seen.
#[derive(Default)]
pub(crate) struct LargeSets {
    warned_at: Option<Duration>,
    unsaid: u64,
}

impl LargeSets {
    /// Whether a set of so many ids is one of them.
    pub(crate) fn is_large(limits: &Limits, ids: usize) -> bool {
        ids >= limits.change_ids_warn
    }

    /// Notes a set if it is one of them, and says so if there was no warning for a while; true then.
    pub(crate) fn note(&mut self, limits: &Limits, now: Duration, tx: WritePointer, ids: usize) -> bool {
        if !LargeSets::is_large(limits, ids) {
            return false;
        }
        if self.warned_at.is_some_and(|at| now.saturating_sub(at) < WARN_EVERY) {
            self.unsaid += 1;
            return false;
        }
        let (max, unsaid) = (limits.change_ids_max, self.unsaid);
        log::warn!("transaction {tx} brings {ids} change ids of {max} allowed; {unsaid} such since the last warning");
        *self = LargeSets { warned_at: Some(now), unsaid: 0 };
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_warning_in_ten_seconds_and_the_next_counts_the_others() {
        let limits = Limits { change_ids_warn: 40, change_ids_max: 50, ..Limits::default() };
        assert!(LargeSets::is_large(&limits, 40) && !LargeSets::is_large(&limits, 39));
        let mut large = LargeSets::default();
        let said = [0, 1, 9_999, 10_000, 10_001, 30_000]
            .map(|ms| large.note(&limits, Duration::from_millis(ms), WritePointer(1), 45));
        assert_eq!(said, [true, false, false, true, false, true]);
        assert_eq!(large.unsaid, 0);
    }
}
