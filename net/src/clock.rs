//! Where time comes from, and what the sequencer makes of it.
//!
//! Pointers follow the wall clock and deadlines follow sequencer time; both must be steady where the wall clock is not.
//! [`Times`] holds that: a step of the wall clock of more than [`STEP_MS_MAX`] against the monotonic clock is slewed, at
//! most twice and at least half as fast as real time, and never backwards.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use seriatim_core::SequencerTime;

/// A step of the wall clock up to here is followed at once: 10 s.
pub const STEP_MS_MAX: u64 = 10_000;
/// At start the wall clock is followed up to here past the last durable time: 7 days.
pub const START_AHEAD_MS_MAX: u64 = 7 * 24 * 3_600_000;

/// A wall clock and a monotonic clock.
pub trait Clock: Send {
    /// Milliseconds since the Unix epoch. May step either way.
    fn wall_ms(&self) -> u64;
    /// Time since some fixed point. Never steps.
    fn monotonic(&self) -> Duration;
}

/// The clocks of this machine.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock(Instant);

impl Default for SystemClock {
    fn default() -> SystemClock {
        SystemClock(Instant::now())
    }
}

impl Clock for SystemClock {
    fn wall_ms(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
    }

    fn monotonic(&self) -> Duration {
        self.0.elapsed()
    }
}

/// One look at the clocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// Steady milliseconds since the Unix epoch, for pointers.
    pub wall_ms: u64,
    /// Sequencer time, for deadlines.
    pub sequencer: SequencerTime,
    /// The monotonic clock as it was read.
    pub monotonic: Duration,
}

/// Steady times out of a clock that may step; see the head of this file.
#[derive(Debug)]
pub struct Times {
    started: Duration,
    sequencer_at_start: SequencerTime,
    /// Our wall time, in microseconds so that slewing loses nothing.
    wall_us: u64,
    /// What the wall clock said when it was last looked at.
    clock_us: u64,
    looked: Duration,
    slewing: bool,
}

impl Times {
    /// Starts from a clock; sequencer time continues from its last durable value.
    pub fn start(clock: &impl Clock, sequencer: SequencerTime) -> Times {
        let (monotonic, wall_us) = (clock.monotonic(), clock.wall_ms() * 1_000);
        Times {
            started: monotonic,
            sequencer_at_start: sequencer,
            wall_us,
            clock_us: wall_us,
            looked: monotonic,
            slewing: false,
        }
    }

    /// Looks at the clock.
    pub fn look(&mut self, clock: &impl Clock) -> Now {
        let monotonic = clock.monotonic();
        let passed = (monotonic - self.looked).as_micros() as u64;
        self.looked = monotonic;
        let expected = self.wall_us + passed;
        let wall = clock.wall_ms() * 1_000;
        let unstepped = self.clock_us + passed;
        self.clock_us = wall;
        if wall.abs_diff(unstepped) > STEP_MS_MAX * 1_000 {
            self.slewing = true;
            log::warn!(
                "the wall clock stepped by {:+.1} s; pointers approach it at {} speed",
                (wall as f64 - unstepped as f64) / 1e6,
                if wall > expected { "double" } else { "half" }
            );
        }
        self.wall_us = match self.slewing {
            false => self.wall_us.max(wall),
            true if wall >= expected => wall.min(expected + passed),
            true => wall.max(expected - passed / 2).max(self.wall_us),
        };
        if self.slewing && self.wall_us.abs_diff(wall) < 1_000 {
            self.slewing = false;
            log::info!("pointers have reached the wall clock again");
        }
        Now {
            wall_ms: self.wall_us / 1_000,
            sequencer: self.sequencer_at_start.plus_ms((monotonic - self.started).as_millis() as u64),
            monotonic,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[derive(Default)]
    struct FakeClock {
        wall_ms: Cell<u64>,
        monotonic_ms: Cell<u64>,
    }

    impl FakeClock {
        fn pass(&self, ms: u64) {
            self.wall_ms.set(self.wall_ms.get() + ms);
            self.monotonic_ms.set(self.monotonic_ms.get() + ms);
        }
    }

    impl Clock for FakeClock {
        fn wall_ms(&self) -> u64 {
            self.wall_ms.get()
        }
        fn monotonic(&self) -> Duration {
            Duration::from_millis(self.monotonic_ms.get())
        }
    }

    fn clock() -> FakeClock {
        FakeClock { wall_ms: Cell::new(1_000_000_000), monotonic_ms: Cell::new(5) }
    }

    #[test]
    fn small_steps_are_followed_but_never_backwards() {
        let clock = clock();
        let mut times = Times::start(&clock, SequencerTime(500));
        clock.wall_ms.set(1_000_009_000);
        assert_eq!(times.look(&clock).wall_ms, 1_000_009_000);
        clock.wall_ms.set(1_000_001_000);
        assert_eq!(times.look(&clock).wall_ms, 1_000_009_000);
        clock.pass(8_100);
        assert_eq!(times.look(&clock).wall_ms, 1_000_009_100);
    }

    #[test]
    fn a_large_step_forward_is_approached_at_double_speed() {
        let clock = clock();
        let mut times = Times::start(&clock, SequencerTime(0));
        clock.wall_ms.set(clock.wall_ms.get() + 3_600_000);
        let mut last = times.look(&clock).wall_ms;
        for _ in 0..3_599 {
            clock.pass(1_000);
            let wall = times.look(&clock).wall_ms;
            assert_eq!(wall - last, 2_000);
            last = wall;
        }
        clock.pass(5_000);
        assert_eq!(times.look(&clock).wall_ms, clock.wall_ms.get());
    }

    #[test]
    fn a_large_step_back_is_approached_at_half_speed() {
        let clock = clock();
        let mut times = Times::start(&clock, SequencerTime(0));
        clock.wall_ms.set(clock.wall_ms.get() - 3_600_000);
        let mut last = times.look(&clock).wall_ms;
        for _ in 0..1_000 {
            clock.pass(1_000);
            let wall = times.look(&clock).wall_ms;
            assert_eq!(wall - last, 500);
            last = wall;
        }
    }

    #[test]
    fn sequencer_time_goes_on_from_where_it_was_whatever_the_wall_clock_does() {
        let clock = clock();
        let mut times = Times::start(&clock, SequencerTime(77_000));
        clock.wall_ms.set(1);
        clock.monotonic_ms.set(1_005);
        assert_eq!(times.look(&clock).sequencer, SequencerTime(78_000));
    }
}
