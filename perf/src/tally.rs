//! What a run counts while it runs.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;

/// The longest latency that is told apart: one minute. Longer ones count as that.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// Digits that a latency keeps.
const DIGITS: u8 = 3;

/// How transactions ended.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Ends {
    pub commits: u64,
    pub conflicts: u64,
    /// Transactions that were to begin and no more.
    pub begins: u64,
    /// By kind.
    pub errors: BTreeMap<&'static str, u64>,
}

impl Ends {
    pub fn errors_len(&self) -> u64 {
        self.errors.values().sum()
    }

    fn merge(&mut self, other: &Ends) {
        self.commits += other.commits;
        self.conflicts += other.conflicts;
        self.begins += other.begins;
        for (kind, count) in &other.errors {
            *self.errors.entry(kind).or_default() += count;
        }
    }
}

/// Counts of the whole run and of its measured time, and the latencies of the latter.
#[derive(Clone, Debug)]
pub(crate) struct Tally {
    /// Set for as long as the run measures.
    pub is_measuring: bool,
    /// Transactions whose begin was asked for, the whole run.
    pub begun: u64,
    pub whole: Ends,
    pub measured: Ends,
    /// Begins answered with a pointer, and bytes of the frames' bodies that brought them, measured.
    pub begins_answered: u64,
    pub begin_bytes: u64,
    /// Bytes on the wire, measured.
    pub sent_bytes: u64,
    pub received_bytes: u64,
    pub begin_ns: Histogram<u64>,
    pub commit_ns: Histogram<u64>,
}

impl Tally {
    pub fn new() -> Tally {
        let histogram = || Histogram::new_with_max(LATENCY_NS_MAX, DIGITS).expect("bounds that histograms take");
        Tally {
            is_measuring: false,
            begun: 0,
            whole: Ends::default(),
            measured: Ends::default(),
            begins_answered: 0,
            begin_bytes: 0,
            sent_bytes: 0,
            received_bytes: 0,
            begin_ns: histogram(),
            commit_ns: histogram(),
        }
    }

    /// Transactions that were asked for and have not ended.
    pub fn in_flight(&self) -> u64 {
        self.begun - self.whole.commits - self.whole.conflicts - self.whole.begins - self.whole.errors_len()
    }

    /// `count` transactions were given their pointers, after so long.
    pub fn begins_answered(&mut self, count: u32, latency: Duration) {
        if self.is_measuring {
            self.begins_answered += u64::from(count);
            record(&mut self.begin_ns, latency, u64::from(count));
        }
    }

    /// Bytes of a begin reply's body.
    pub fn begin_bytes(&mut self, bytes: u64) {
        if self.is_measuring {
            self.begin_bytes += bytes;
        }
    }

    /// Transactions have begun, which is all that was wanted of them.
    pub fn begins(&mut self, count: u32) {
        self.whole.begins += u64::from(count);
        if self.is_measuring {
            self.measured.begins += u64::from(count);
        }
    }

    /// Bytes went to the server.
    pub fn sent(&mut self, bytes: u64) {
        if self.is_measuring {
            self.sent_bytes += bytes;
        }
    }

    /// Bytes came from the server.
    pub fn received(&mut self, bytes: u64) {
        if self.is_measuring {
            self.received_bytes += bytes;
        }
    }

    /// The commits of one frame were acknowledged, after so long.
    pub fn commits(&mut self, count: u64, latency: Duration) {
        self.whole.commits += count;
        if self.is_measuring && count > 0 {
            self.measured.commits += count;
            record(&mut self.commit_ns, latency, count);
        }
    }

    pub fn conflicts(&mut self, count: u64) {
        self.whole.conflicts += count;
        if self.is_measuring {
            self.measured.conflicts += count;
        }
    }

    pub fn errors(&mut self, kind: &'static str, count: u64) {
        if count == 0 {
            return;
        }
        *self.whole.errors.entry(kind).or_default() += count;
        if self.is_measuring {
            *self.measured.errors.entry(kind).or_default() += count;
        }
    }

    /// Adds what another thread counted.
    pub fn merge(&mut self, other: &Tally) {
        self.begun += other.begun;
        self.whole.merge(&other.whole);
        self.measured.merge(&other.measured);
        self.begins_answered += other.begins_answered;
        self.begin_bytes += other.begin_bytes;
        self.sent_bytes += other.sent_bytes;
        self.received_bytes += other.received_bytes;
        self.begin_ns.add(&other.begin_ns).expect("histograms of the same bounds");
        self.commit_ns.add(&other.commit_ns).expect("histograms of the same bounds");
    }
}

fn record(histogram: &mut Histogram<u64>, latency: Duration, count: u64) {
    let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX).clamp(1, LATENCY_NS_MAX);
    histogram.record_n(ns, count).expect("held within its bounds");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_measured_counts_for_the_whole_alone() {
        let mut tally = Tally::new();
        tally.begun = 10;
        tally.commits(3, Duration::from_micros(5));
        tally.is_measuring = true;
        tally.commits(4, Duration::from_micros(7));
        tally.conflicts(1);
        tally.errors("expired", 1);
        assert_eq!((tally.whole.commits, tally.measured.commits, tally.in_flight()), (7, 4, 1));
        assert_eq!((tally.commit_ns.len(), tally.commit_ns.max() / 1000), (4, 7));
        let mut sum = Tally::new();
        sum.merge(&tally);
        sum.merge(&tally);
        assert_eq!((sum.whole.errors["expired"], sum.measured.conflicts, sum.commit_ns.len()), (2, 2, 8));
    }

    #[test]
    fn a_latency_beyond_all_bounds_is_still_counted() {
        let mut tally = Tally::new();
        tally.is_measuring = true;
        tally.begins_answered(2, Duration::MAX);
        tally.begins_answered(1, Duration::ZERO);
        assert_eq!(tally.begin_ns.len(), 3);
    }
}
