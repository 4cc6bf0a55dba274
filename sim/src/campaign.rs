//! Many seeds, over some threads: the first failure by number ends it, whichever thread meets it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::probes::Probes;
use crate::verdict::Violation;
use crate::world::{Outcome, RunOptions, run};

/// What to run.
#[derive(Clone, Copy, Debug)]
pub struct Campaign {
    /// The first seed.
    pub first_seed: u64,
    /// How many.
    pub seeds: u64,
    /// Runs at once. Each is on one thread.
    pub threads: usize,
    /// Run each seed twice, and compare.
    pub twice: bool,
    /// Begin no further seed after this time.
    pub until: Option<Instant>,
    /// What each run is like.
    pub run: RunOptions,
}

/// What came of it.
#[derive(Clone, Default)]
pub struct Tally {
    /// Runs.
    pub runs: u64,
    /// Things that happened, in all of them.
    pub events: u64,
    /// Commits.
    pub commits: u64,
    /// Runs of servers.
    pub starts: u64,
    /// Virtual time, in ms.
    pub virtual_ms: u64,
    /// Rare states.
    pub probes: Probes,
    /// The failure with the smallest seed.
    pub failure: Option<Outcome>,
}

impl Tally {
    fn add(&mut self, outcome: &Outcome) {
        self.runs += 1;
        self.events += outcome.events;
        self.commits += outcome.commits;
        self.starts += outcome.starts;
        self.virtual_ms += outcome.virtual_ms;
        self.probes.join(&outcome.probes);
    }
}

impl Campaign {
    /// Runs the seeds; no further ones once one has failed.
    pub fn run(&self) -> Tally {
        let next = AtomicU64::new(self.first_seed);
        let end = AtomicU64::new(self.first_seed.saturating_add(self.seeds));
        let tally = Mutex::new(Tally::default());
        std::thread::scope(|scope| {
            for _ in 0..self.threads.max(1) {
                scope.spawn(|| self.take_seeds(&next, &end, &tally));
            }
        });
        tally.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_seeds(&self, next: &AtomicU64, end: &AtomicU64, tally: &Mutex<Tally>) {
        loop {
            // Relaxed: a seed too many changes nothing.
            let seed = next.fetch_add(1, Ordering::Relaxed);
            let is_late = self.until.is_some_and(|until| Instant::now() >= until);
            if is_late || seed >= end.load(Ordering::Relaxed) {
                return;
            }
            let outcome = self.run_seed(seed);
            let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
            tally.add(&outcome);
            let is_first = tally.failure.as_ref().is_none_or(|failure| failure.seed > seed);
            if outcome.violation.is_some() && is_first {
                end.fetch_min(seed, Ordering::Relaxed);
                tally.failure = Some(outcome);
            }
        }
    }

    fn run_seed(&self, seed: u64) -> Outcome {
        let mut outcome = run(seed, &self.run);
        if self.twice && outcome.violation.is_none() {
            let again = run(seed, &self.run);
            if again.hash != outcome.hash {
                let text = format!("hash {:016x}, and then {:016x}", outcome.hash, again.hash);
                outcome.violation = Some(Violation { law: "one seed is one run", text });
            }
        }
        outcome
    }
}
