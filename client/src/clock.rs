//! Time as whoever waits or counts sees it, so that a test can stand in for it.

use std::time::{Duration, Instant};

/// Tells the time and lets it pass.
pub trait Clock: Send + Sync {
    /// Now; never goes back.
    fn now(&self) -> Instant;

    /// Returns when so much time has passed.
    fn sleep(&self, time: Duration);
}

/// The system's monotonic clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant::now()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}
