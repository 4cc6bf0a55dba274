//! Bars: the sequencer against its yardsticks, in turn, in one run.
//!
//! A bar is measured in rounds. Each round runs the yardstick and then the product, and its ratio is the one by the other;
//! so whatever slows the machine down for a while slows both. What counts is the median of the ratios.

mod in_process;
mod recovery;
mod served;
mod table;

use std::time::Duration;

use serde::Serialize;

use crate::error::Error;
pub use table::write_table;

/// How large a measurement is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sizes {
    /// The sizes that the design names, where they take long: 10 million commits for P8, ten minutes for P9.
    pub full: bool,
    /// Rounds of each bar, at least 1.
    pub rounds: u32,
    /// How long one side of one round takes, about, where that can be chosen.
    pub side: Duration,
    /// Start of the random numbers.
    pub seed: u64,
}

impl Default for Sizes {
    /// Five rounds of a second for each side.
    fn default() -> Sizes {
        Sizes { full: false, rounds: 5, side: Duration::from_secs(1), seed: 1 }
    }
}

/// What the median of a bar's ratios has to be.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Bound {
    /// At least this, where more is better.
    AtLeast(f64),
    /// At most this, where less is better.
    AtMost(f64),
}

impl Bound {
    fn is_met_by(self, ratio: f64) -> bool {
        match self {
            Bound::AtLeast(least) => ratio >= least,
            Bound::AtMost(most) => ratio <= most,
        }
    }

    /// The number in it.
    pub fn value(self) -> f64 {
        let (Bound::AtLeast(value) | Bound::AtMost(value)) = self;
        value
    }
}

/// Both sides of a bar, ready to be measured again and again.
trait Pair {
    /// The physical work alone, in the unit of the bar.
    fn yardstick(&mut self) -> Result<f64, Error>;
    /// The same with everything that a sequencer does.
    fn product(&mut self) -> Result<f64, Error>;
    /// How many rounds it takes, where so many were asked for.
    fn rounds(&self, asked: u32) -> u32 {
        asked
    }
    /// What else was seen.
    fn note(&self) -> Option<String> {
        None
    }
}

type Prepare = fn(&Sizes) -> Result<Box<dyn Pair>, Error>;

/// One bar.
pub struct Bar {
    /// `P1`; a bar of several parts has one for each: `P1/one`.
    pub id: &'static str,
    /// What is measured.
    pub what: &'static str,
    /// The unit of both sides.
    pub unit: &'static str,
    /// What the ratio has to be.
    pub bound: Bound,
    /// `None` if a part that it measures is not built yet.
    prepare: Option<Prepare>,
}

/// Least, median and greatest of the rounds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Spread {
    /// The least.
    pub min: f64,
    /// Half of the rounds are at or below it.
    pub median: f64,
    /// The greatest.
    pub max: f64,
}

impl Spread {
    /// The spread of some rounds; `None` of none.
    fn of(rounds: impl IntoIterator<Item = f64>) -> Option<Spread> {
        let mut rounds: Vec<f64> = rounds.into_iter().collect();
        rounds.sort_by(f64::total_cmp);
        let (min, max) = (*rounds.first()?, *rounds.last()?);
        let middle = rounds.len() / 2;
        let median = if rounds.len() % 2 == 1 { rounds[middle] } else { (rounds[middle - 1] + rounds[middle]) / 2.0 };
        Some(Spread { min, median, max })
    }
}

/// What came of a bar.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Outcome {
    /// See [`Bar::id`].
    pub id: &'static str,
    /// See [`Bar::what`].
    pub what: &'static str,
    /// See [`Bar::unit`].
    pub unit: &'static str,
    /// The product, in its unit; `None` if the bar is not built.
    pub product: Option<Spread>,
    /// The yardstick, in the same unit.
    pub yardstick: Option<Spread>,
    /// The one by the other, round by round.
    pub ratio: Option<Spread>,
    /// The number of [`Bar::bound`].
    pub bar: f64,
    /// `>=` or `<=`: the ratio has to be so to the bar.
    pub bound: &'static str,
    /// Whether the median of the ratios is; `None` if the bar is not built.
    pub met: Option<bool>,
    /// Rounds that were measured.
    pub rounds: u32,
    /// What else was seen.
    pub note: Option<String>,
}

/// Every bar, in order.
pub fn bars() -> Vec<Bar> {
    use Bound::{AtLeast, AtMost};
    let bar = |id, what, unit, bound, prepare| Bar { id, what, unit, bound, prepare };
    let built = |prepare: Prepare| Some(prepare);
    vec![
        bar("P1", "begin+commit in process, turns of 64", "tx/s", AtLeast(0.4), built(in_process::turns)),
        bar("P1/one", "the same, one by one", "tx/s", AtLeast(0.25), built(in_process::one_by_one)),
        bar("P2", "P1 with 10 000 open and 1 000 000 invalid", "tx/s", AtLeast(0.9), built(in_process::many_open)),
        bar("P3", "P1 with one open for 1 000 000 commits", "tx/s", AtLeast(0.9), built(in_process::one_open)),
        bar("P4/1", "durable server: begins at depth 1", "begins/s", AtLeast(0.85), built(served::begins_1)),
        bar("P4/16", "durable server: begins at depth 16", "begins/s", AtLeast(0.85), built(served::begins_16)),
        bar("P4/128", "durable server: begins at depth 128", "begins/s", AtLeast(0.85), built(served::begins_128)),
        bar("P5", "durable begin+commit over loopback, 16 x 64", "tx/s", AtLeast(0.5), built(served::transactions)),
        bar("P6", "durable commit, one client, one at a time: p50", "us", AtMost(1.15), built(served::one_commit)),
        bar("P7", "log bytes of a transaction of 4 ids", "bytes", AtMost(1.0), built(in_process::log_bytes)),
        bar("P8", "recovery from cold files", "s", AtMost(2.0), built(recovery::recovery)),
        bar("P9", "resident memory under full load", "MiB", AtMost(1.05), None),
        bar("P10/quiet", "reply bytes of a begin, 100 000 invalid", "bytes", AtMost(1.0), None),
        bar("P10/busy", "the same at 100 000 tx/s, 1 000 open", "bytes", AtMost(1.0), None),
        bar("P11", "share of TooOld at an age of 500 000 commits", "share", AtMost(1.0), built(in_process::too_old)),
        bar("P12", "P1 on two threads, turns of 16, sum", "tx/s", AtLeast(0.8), built(in_process::two_threads)),
        bar("P13", "p99 of a begin while a sync stalls", "us", AtMost(2.0), None),
    ]
}

impl Bar {
    /// True if `name` asks for it: by its id, or by that of all its parts.
    pub fn is_called(&self, name: &str) -> bool {
        let rest = self.id.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Measures it. `tell` hears the ratio of every round.
    ///
    /// # Errors
    /// If one of its sides could not be run.
    pub fn measure(&self, sizes: &Sizes, tell: &mut dyn FnMut(u32, f64)) -> Result<Outcome, Error> {
        let mut rounds = Vec::new();
        let mut note = None;
        if let Some(prepare) = self.prepare {
            let mut pair = prepare(sizes)?;
            for round in 1..=pair.rounds(sizes.rounds.max(1)) {
                let yardstick = pair.yardstick()?;
                let product = pair.product()?;
                tell(round, product / yardstick);
                rounds.push((product, yardstick));
            }
            note = pair.note();
        }
        let ratio = Spread::of(rounds.iter().map(|(product, yardstick)| product / yardstick));
        Ok(Outcome {
            id: self.id,
            what: self.what,
            unit: self.unit,
            product: Spread::of(rounds.iter().map(|(product, _)| *product)),
            yardstick: Spread::of(rounds.iter().map(|(_, yardstick)| *yardstick)),
            ratio,
            bar: self.bound.value(),
            bound: match self.bound {
                Bound::AtLeast(_) => ">=",
                Bound::AtMost(_) => "<=",
            },
            met: ratio.map(|ratio| self.bound.is_met_by(ratio.median)),
            rounds: rounds.len() as u32,
            note,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_its_middle() {
        let spread = |rounds: &[f64]| Spread::of(rounds.iter().copied()).map(|spread| spread.median);
        assert_eq!([spread(&[]), spread(&[3.0]), spread(&[4.0, 1.0, 2.0, 9.0])], [None, Some(3.0), Some(3.0)]);
    }

    #[test]
    fn a_bar_is_called_by_its_id_and_by_that_of_all_its_parts() {
        let called = |name: &str| bars().iter().filter(|bar| bar.is_called(name)).count();
        assert_eq!([called("P1"), called("P1/one"), called("P10"), called("P"), called("P14")], [2, 1, 2, 0, 0]);
    }

    #[test]
    fn a_bar_that_is_not_built_says_so_and_a_missed_one_is_no_error() {
        struct Slow;
        impl Pair for Slow {
            fn yardstick(&mut self) -> Result<f64, Error> {
                Ok(2.0)
            }
            fn product(&mut self) -> Result<f64, Error> {
                Ok(1.0)
            }
        }
        let bar = |bound, prepare| Bar { id: "P", what: "", unit: "", bound, prepare };
        let measure = |bar: Bar| bar.measure(&Sizes::default(), &mut |_, _| {}).expect("measured");
        let slow: Prepare = |_| Ok(Box::new(Slow));
        assert_eq!(measure(bar(Bound::AtLeast(0.4), None)).met, None);
        assert_eq!(measure(bar(Bound::AtLeast(0.6), Some(slow))).met, Some(false));
        let met = measure(bar(Bound::AtMost(0.5), Some(slow)));
        assert_eq!((met.met, met.rounds, met.ratio.map(|ratio| ratio.max)), (Some(true), 5, Some(0.5)));
    }
}
