//! A short size of what the binary runs at length.

use seriatim_sim::{Campaign, PLANTS, RunOptions};

/// Seeds until a planted bug has to be caught, in this short size.
const SEEDS_FOR_A_PLANT: u64 = 3_000;

fn campaign(first_seed: u64, seeds: u64) -> Campaign {
    Campaign { first_seed, seeds, threads: 2, twice: false, until: None, run: RunOptions::default() }
}

fn assert_all_is_well(campaign: &Campaign) {
    let tally = campaign.run();
    if let Some(failure) = &tally.failure {
        let violation = failure.violation.as_ref().expect("a failure broke something");
        panic!("seed {}: {violation}\n{}", failure.seed, failure.last_lines.join("\n"));
    }
    assert!(tally.commits > tally.runs, "{} commits in {} runs prove nothing", tally.commits, tally.runs);
}

#[test]
fn every_law_holds() {
    assert_all_is_well(&campaign(1, 200));
}

#[test]
fn a_seed_is_one_run() {
    assert_all_is_well(&Campaign { twice: true, ..campaign(1_000, 3) });
}

#[test]
fn a_long_run_keeps_the_laws_too() {
    assert_all_is_well(&Campaign { run: RunOptions { events: 20_000, ..RunOptions::default() }, ..campaign(2_000, 4) });
}

#[test]
fn every_planted_bug_is_caught() {
    let missed: Vec<&str> = PLANTS
        .iter()
        .filter(|(_, plant, _)| {
            let run = RunOptions { plant: Some(*plant), ..RunOptions::default() };
            Campaign { run, ..campaign(1, SEEDS_FOR_A_PLANT) }.run().failure.is_none()
        })
        .map(|(name, _, _)| *name)
        .collect();
    assert!(missed.is_empty(), "not caught within {SEEDS_FOR_A_PLANT} seeds: {missed:?}");
}
