//! What a run found, for people and for programs.

use std::fmt;

use serde::Serialize;

/// The findings of a run. Field names are for programs and stay.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// True if one of the four counts that must be zero is not.
    pub failed: bool,
    /// Transfers acknowledged to clients.
    pub transfers: u64,
    /// Acknowledged transfers that are not in the ledger at the end. Must be 0.
    pub acknowledged_lost: u64,
    /// Snapshots whose balances do not add up, or do not agree with the ledger. Must be 0.
    pub snapshot_sum_errors: u64,
    /// Reads that a later snapshot contradicts. Must be 0.
    pub reads_taken_back: u64,
    /// Write pointers that were handed out more than once. Must be 0.
    pub duplicate_write_pointers: u64,
    /// How often the server was killed and started again.
    pub restarts: u64,
    /// How many client processes were killed.
    pub client_kills: u64,
    /// How many of these stood between their two writes.
    pub half_way_kills: u64,
    /// Snapshots in which all balances were added up.
    pub audits: u64,
    /// Snapshots in which only the newest rows were read.
    pub quick_audits: u64,
    /// Commits whose answer was lost and whose outcome was learned by asking.
    pub unknown_settled: u64,
    /// Transfers whose outcome could not be learned; they count as nothing.
    pub unknown: u64,
    /// Length of the run in whole seconds.
    pub secs: u64,
    /// Chooses the transfers and the victims.
    pub seed: u64,
    /// The first violations in words.
    pub examples: Vec<String>,
}

impl Report {
    /// Sets [`Report::failed`] by the counts.
    pub fn judge(mut self) -> Report {
        self.failed =
            [self.acknowledged_lost, self.snapshot_sum_errors, self.reads_taken_back, self.duplicate_write_pointers]
                .iter()
                .any(|count| *count > 0);
        self
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            ("transfers acknowledged", self.transfers),
            ("  of these lost", self.acknowledged_lost),
            ("audits", self.audits),
            ("quick audits", self.quick_audits),
            ("  sums wrong", self.snapshot_sum_errors),
            ("  reads taken back", self.reads_taken_back),
            ("write pointers twice", self.duplicate_write_pointers),
            ("server restarts", self.restarts),
            ("clients killed", self.client_kills),
            ("  half-way", self.half_way_kills),
            ("doubts settled", self.unknown_settled),
            ("outcomes unknown", self.unknown),
            ("seconds", self.secs),
            ("seed", self.seed),
        ];
        for (name, count) in counts {
            writeln!(f, "{name:<24} {count:>12}")?;
        }
        for example in &self.examples {
            writeln!(f, "  {example}")?;
        }
        f.write_str(if self.failed { "FAILED" } else { "passed" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clean() -> Report {
        Report {
            failed: false,
            transfers: 100,
            acknowledged_lost: 0,
            snapshot_sum_errors: 0,
            reads_taken_back: 0,
            duplicate_write_pointers: 0,
            restarts: 3,
            client_kills: 9,
            half_way_kills: 2,
            audits: 50,
            quick_audits: 500,
            unknown_settled: 4,
            unknown: 0,
            secs: 10,
            seed: 1,
            examples: vec![],
        }
    }

    #[test]
    fn each_of_four_counts_fails_the_run_and_no_other() {
        assert!(!clean().judge().failed);
        let failures: [fn(&mut Report); 4] = [
            |report| report.acknowledged_lost = 1,
            |report| report.snapshot_sum_errors = 1,
            |report| report.reads_taken_back = 1,
            |report| report.duplicate_write_pointers = 1,
        ];
        for fail in failures {
            let mut report = clean();
            fail(&mut report);
            assert!(report.judge().failed);
        }
    }

    #[test]
    fn programs_find_every_count_under_its_name() {
        let json = serde_json::to_value(clean()).unwrap();
        for name in [
            "transfers",
            "acknowledged_lost",
            "snapshot_sum_errors",
            "reads_taken_back",
            "duplicate_write_pointers",
            "restarts",
            "client_kills",
            "audits",
            "unknown_settled",
            "seed",
        ] {
            assert!(json[name].is_u64(), "{name}");
        }
        assert!(json["failed"].is_boolean());
    }
}
