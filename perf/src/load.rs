//! What a run asks of a sequencer, and for how long.

use std::time::Duration;

use seriatim_core::CHANGE_IDS_MAX;

/// The most connections that one run opens: what a server takes by default.
const CONNECTIONS_MAX: u64 = 10_000;
/// The most transactions that one connection keeps in flight: what a server keeps open by default.
const DEPTH_MAX: u64 = 1 << 20;
/// The longest run: a week.
const DURATION_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Kind {
    /// Begin, then commit with some random change ids.
    #[default]
    Tx,
    /// Begin. The aborts that empty the table again are sent and not waited for.
    Begin,
}

/// A closed loop of transactions: each that ends makes room for another.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Load {
    /// What is asked for.
    pub kind: Kind,
    /// Connections, 1 to 10 000.
    pub connections: u32,
    /// Transactions that each connection keeps in flight, 1 to 2^20.
    pub depth: u32,
    /// Written keys of a transaction, 0 to 2^20. Few of many keys may be the same one twice.
    pub writes: u32,
    /// How many keys there are to draw from, each as likely as the other. At least 1.
    pub keys: u64,
    /// Start of the random numbers. The same load and seed draw the same keys, connection by connection.
    pub seed: u64,
    /// Time before the measurement starts.
    pub warmup: Duration,
    /// Time that is measured; at most 7 days with the warm-up.
    pub measured: Duration,
    /// Begin this many transactions, all connections and the warm-up together, and end when they have ended. The time
    /// still bounds the run.
    pub count: Option<u64>,
}

impl Default for Load {
    /// 16 connections × 64 transactions of 4 keys out of 10 million, for ten seconds after one of warm-up.
    fn default() -> Load {
        Load {
            kind: Kind::Tx,
            connections: 16,
            depth: 64,
            writes: 4,
            keys: 10_000_000,
            seed: 0,
            warmup: Duration::from_secs(1),
            measured: Duration::from_secs(10),
            count: None,
        }
    }
}

/// Why a load cannot be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A number outside its bounds.
    #[error("{name} = {value} is not between {min} and {max}")]
    OutOfRange {
        /// The field of [`Load`].
        name: &'static str,
        /// What it was set to.
        value: u64,
        /// The least that it may be.
        min: u64,
        /// The most that it may be.
        max: u64,
    },
    /// Begins alone are asked of a server: in one process they are a load on nobody.
    #[error("begins alone are measured on a server")]
    BeginsEmbedded,
    /// Nothing would be measured, or it would never end.
    #[error("a run of {asked:?} is not between 1 ms and 7 days")]
    Duration {
        /// Warm-up and measured time together, or the measured time alone if that is 0.
        asked: Duration,
    },
}

impl Load {
    /// Refuses a load that cannot be made.
    ///
    /// # Errors
    /// If a number is out of its bounds.
    pub fn check(&self) -> Result<(), LoadError> {
        let within = [
            ("connections", u64::from(self.connections), 1, CONNECTIONS_MAX),
            ("depth", u64::from(self.depth), 1, DEPTH_MAX),
            ("writes", u64::from(self.writes), 0, CHANGE_IDS_MAX as u64),
            ("keys", self.keys, 1, u64::MAX),
            ("count", self.count.unwrap_or(1), 1, u64::MAX),
        ];
        for (name, value, min, max) in within {
            if !(min..=max).contains(&value) {
                return Err(LoadError::OutOfRange { name, value, min, max });
            }
        }
        if self.measured < Duration::from_millis(1) {
            return Err(LoadError::Duration { asked: self.measured });
        }
        match self.warmup.checked_add(self.measured) {
            Some(whole) if whole <= DURATION_MAX => Ok(()),
            _ => Err(LoadError::Duration { asked: self.measured.max(self.warmup) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_that_cannot_be_made_is_refused_by_name() {
        assert_eq!(Load::default().check(), Ok(()));
        let wrong = Load { depth: 0, ..Load::default() };
        assert_eq!(wrong.check(), Err(LoadError::OutOfRange { name: "depth", value: 0, min: 1, max: DEPTH_MAX }));
        let wrong = Load { keys: 0, ..Load::default() };
        assert!(matches!(wrong.check(), Err(LoadError::OutOfRange { name: "keys", .. })));
        let wrong = Load { measured: Duration::ZERO, ..Load::default() };
        assert!(matches!(wrong.check(), Err(LoadError::Duration { .. })));
        let wrong = Load { warmup: Duration::MAX, ..Load::default() };
        assert!(matches!(wrong.check(), Err(LoadError::Duration { .. })));
    }
}
