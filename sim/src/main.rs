//! Runs seeds, reports what broke and how to see it again.
//!
//! Exit codes: 0 all is well (with a plant: it was caught), 1 a law was broken (with a plant: it was not caught), 2 wrong
//! usage, 3 a long run never met one of the rare states.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use clap::builder::PossibleValuesParser;
use seriatim_sim::{Campaign, Outcome, PLANTS, PlantName, RunOptions, Tally};

/// From so many seeds on every rare state has to be met.
const SEEDS_FOR_ALL_PROBES: u64 = 1_000;

/// The whole house on one thread, by seed: server, disk, network, clocks and clients, and everything that may fail.
#[derive(Parser)]
#[command(name = "seriatim-sim", version, max_term_width = 100)]
struct Arguments {
    /// How many seeds to run
    #[arg(long, default_value_t = 1_000, value_name = "N")]
    seeds: u64,
    /// The first seed
    #[arg(long, default_value_t = 1, value_name = "SEED")]
    first_seed: u64,
    /// Things that happen in each run while anything may fail; more follow until everybody has finished
    #[arg(long, default_value_t = RunOptions::default().events, value_name = "N")]
    events: u64,
    /// Runs at once [default: one for each processor]
    #[arg(long, value_name = "N")]
    threads: Option<usize>,
    /// Run each seed twice, and compare
    #[arg(long)]
    twice: bool,
    /// Plant a bug, or all one after the other, and stop when it is caught
    #[arg(long, value_name = "NAME", value_parser = plant_names())]
    plant: Option<String>,
    /// Begin no further seed after this many seconds
    #[arg(long, value_name = "SECONDS")]
    secs: Option<u64>,
    /// Print everything that happens, on one thread
    #[arg(long)]
    trace: bool,
    /// Leave out the table of rare states
    #[arg(long)]
    quiet: bool,
}

fn plant_names() -> PossibleValuesParser {
    PossibleValuesParser::new(PLANTS.iter().map(|(name, _, _)| *name).chain(["all"]))
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    // A panic is reported with its seed.
    std::panic::set_hook(Box::new(|_| ()));
    match arguments.plant.as_deref() {
        None => run_honest(&arguments),
        Some(asked) => {
            let wanted = PLANTS.iter().filter(|(name, _, _)| asked == "all" || asked == *name);
            let missed = wanted.filter(|(name, plant, what)| !run_planted(&arguments, name, *plant, what)).count();
            if missed == 0 { ExitCode::SUCCESS } else { ExitCode::from(1) }
        }
    }
}

fn campaign(arguments: &Arguments, plant: Option<PlantName>) -> Campaign {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Campaign {
        first_seed: arguments.first_seed,
        seeds: arguments.seeds,
        threads: if arguments.trace { 1 } else { arguments.threads.unwrap_or(cores) },
        twice: arguments.twice,
        until: arguments.secs.map(|secs| Instant::now() + Duration::from_secs(secs)),
        run: RunOptions { events: arguments.events, trace: arguments.trace, plant },
    }
}

fn run_honest(arguments: &Arguments) -> ExitCode {
    let started = Instant::now();
    let tally = campaign(arguments, None).run();
    let seconds = started.elapsed().as_secs_f64();
    if !arguments.quiet {
        print!("{}", tally.probes);
    }
    let Tally { runs, events, commits, starts, virtual_ms, .. } = tally;
    println!(
        "{runs} seeds, {events} events, {commits} commits, {starts} starts of a server, {:.1} h of virtual time, in \
         {seconds:.1} s: {:.0} events/s",
        virtual_ms as f64 / 3_600_000.0,
        events as f64 / seconds
    );
    if let Some(failure) = &tally.failure {
        report(failure, arguments, None);
        return ExitCode::from(1);
    }
    let missed = tally.probes.missed();
    if runs >= SEEDS_FOR_ALL_PROBES && !missed.is_empty() {
        println!("never met: {}", missed.join("; "));
        return ExitCode::from(3);
    }
    println!("every law held{}", if arguments.twice { ", and each seed was one run" } else { "" });
    ExitCode::SUCCESS
}

/// True if it was caught.
fn run_planted(arguments: &Arguments, name: &str, plant: PlantName, what: &str) -> bool {
    let tally = campaign(arguments, Some(plant)).run();
    let Some(Outcome { seed, violation: Some(violation), .. }) = &tally.failure else {
        println!("{name:<22} NOT CAUGHT within {} seeds ({what})", tally.runs);
        return false;
    };
    let seeds = seed - arguments.first_seed + 1;
    println!("{name:<22} caught by seed {seed}, the {seeds}. ({what})\n{:>22} {violation}", "");
    true
}

fn report(failure: &Outcome, arguments: &Arguments, plant: Option<&str>) {
    let Some(violation) = &failure.violation else { return };
    println!("\nseed {}: the last that happened:", failure.seed);
    failure.last_lines.iter().for_each(|line| println!("{line}"));
    println!("\nseed {} broke a law. {violation}", failure.seed);
    let twice = if arguments.twice { " --twice" } else { "" };
    let plant = plant.map(|name| format!(" --plant {name}")).unwrap_or_default();
    let (seed, events) = (failure.seed, arguments.events);
    println!("to see it again: seriatim-sim --first-seed {seed} --seeds 1 --events {events}{twice}{plant} --trace");
}
