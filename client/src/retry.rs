//! Whether, and when, a transaction that came to nothing is run again.

use std::time::Duration;

use crate::backoff::random;
use crate::failure::ContextError;

/// Decides about running a transaction again. Closures `|error, failures| …` are policies too.
///
/// It is asked only about transactions that have come to nothing: one that has committed, or may have, is never run again.
pub trait RetryPolicy: Send + Sync {
    /// How long to wait before the next attempt, after this many have failed, the last one with this error; `None` to give
    /// up.
    fn pause(&self, error: &ContextError, failures: u32) -> Option<Duration>;
}

impl<F: Fn(&ContextError, u32) -> Option<Duration> + Send + Sync> RetryPolicy for F {
    fn pause(&self, error: &ContextError, failures: u32) -> Option<Duration> {
        self(error, failures)
    }
}

/// Which failures are worth another attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum RetryOn {
    /// Lost races, and transactions too old for their races to be told.
    Conflicts,
    /// Those, and whatever else passes: an overload, a lost connection, a deadline.
    Retryable,
}

/// A bounded number of attempts, with pauses that stay or double. Each is taken at random from its upper half, so that
/// those who met once do not meet again.
///
/// The default is for lost races: 20 more attempts, with 100 ms between them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retries {
    /// Attempts after the first. Default 20.
    pub retries_max: u32,
    /// The longest pause before the second attempt; it doubles from there. Default 100 ms.
    pub pause_first: Duration,
    /// No pause is longer. Default 100 ms, so that pauses stay as they are.
    pub pause_max: Duration,
    /// Default [`RetryOn::Conflicts`].
    pub on: RetryOn,
}

impl Default for Retries {
    fn default() -> Retries {
        Retries::fixed(20, Duration::from_millis(100))
    }
}

impl Retries {
    /// One attempt.
    pub fn none() -> Retries {
        Retries::fixed(0, Duration::ZERO)
    }

    /// So many more attempts after lost races, with such a pause before each.
    pub fn fixed(retries_max: u32, pause: Duration) -> Retries {
        Retries::exponential(retries_max, pause, pause)
    }

    /// So many more attempts after lost races, with pauses that double from the first up to the longest.
    pub fn exponential(retries_max: u32, pause_first: Duration, pause_max: Duration) -> Retries {
        Retries { retries_max, pause_first, pause_max, on: RetryOn::Conflicts }
    }

    /// The same after all failures that pass.
    #[must_use]
    pub fn on_retryable(self) -> Retries {
        Retries { on: RetryOn::Retryable, ..self }
    }

    fn pause_at_most(&self, failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        self.pause_first.saturating_mul(1 << doublings).min(self.pause_max)
    }
}

impl RetryPolicy for Retries {
    fn pause(&self, error: &ContextError, failures: u32) -> Option<Duration> {
        let passes = match self.on {
            RetryOn::Conflicts => error.is_conflict(),
            RetryOn::Retryable => error.is_conflict() || error.is_retryable(),
        };
        let share = 0.5 + random() as f64 / u64::MAX as f64 / 2.0;
        (passes && failures <= self.retries_max).then(|| self.pause_at_most(failures).mul_f64(share))
    }
}
