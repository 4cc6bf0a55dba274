//! Virtual time: it passes when the queue says so, and the wall clock steps when chance says so.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use seriatim_net::Clock;

/// What the wall clock says when a run begins.
const EPOCH_MS: i64 = 1_800_000_000_000;

/// A clock that clones share.
#[derive(Clone)]
pub(crate) struct SimClock(Arc<Hands>);

struct Hands {
    now_us: AtomicU64,
    /// By how much the wall clock has stepped.
    stepped_ms: AtomicI64,
}

impl SimClock {
    pub fn new() -> SimClock {
        // The monotonic clock of a machine does not start with the process.
        SimClock(Arc::new(Hands { now_us: AtomicU64::new(1_000_000), stepped_ms: AtomicI64::new(0) }))
    }

    /// Virtual microseconds. Relaxed, here and below: there is one thread.
    pub fn now_us(&self) -> u64 {
        self.0.now_us.load(Ordering::Relaxed)
    }

    /// Time passes up to here; it never goes back.
    pub fn pass_to(&self, at_us: u64) {
        self.0.now_us.fetch_max(at_us, Ordering::Relaxed);
    }

    /// The wall clock alone steps.
    pub fn step_wall_ms(&self, ms: i64) {
        self.0.stepped_ms.fetch_add(ms, Ordering::Relaxed);
    }

    /// Whether it has stepped away from where time alone would have brought it.
    pub fn has_stepped(&self) -> bool {
        self.stepped_ms() != 0
    }

    fn stepped_ms(&self) -> i64 {
        self.0.stepped_ms.load(Ordering::Relaxed)
    }
}

impl Clock for SimClock {
    fn wall_ms(&self) -> u64 {
        (EPOCH_MS + (self.now_us() / 1_000) as i64 + self.stepped_ms()) as u64
    }

    fn monotonic(&self) -> Duration {
        Duration::from_micros(self.now_us())
    }
}
