//! `seriatim-perf`: measures the bars, and says which are met.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand, ValueEnum};
use serde::Serialize;
use seriatim_perf::bars::{Outcome, Sizes, bars, write_table};

/// A bar was missed, and that was to be a failure.
const EXIT_MISSED: u8 = 3;

/// Measure the sequencer against yardsticks that do only the physical work
#[derive(Parser)]
#[command(name = "seriatim-perf", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run yardstick and product in turn, and print a table of the bars
    Bars(BarsArgs),
}

#[derive(clap::Args)]
struct BarsArgs {
    /// Only these bars, and their parts
    #[arg(long, value_name = "ID,...", value_delimiter = ',')]
    only: Vec<String>,
    /// The sizes of the design, which take hours
    #[arg(long)]
    full: bool,
    /// A missed bar is a failure: exit code 3
    #[arg(long)]
    strict: bool,
    /// Rounds of each bar
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Milliseconds that one side of a round takes, where that can be chosen
    #[arg(long, value_name = "MS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    side_ms: u64,
    /// Start of the random numbers
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people
    Table,
    /// For programs
    Json,
}

#[derive(Serialize)]
struct Report<'r> {
    bars: &'r [Outcome],
    seed: u64,
    full: bool,
    seconds: f64,
}

fn main() -> ExitCode {
    let Command::Bars(args) = Arguments::parse().command;
    match run(&args) {
        Ok(code) => code,
        // Whoever reads has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &BarsArgs) -> io::Result<ExitCode> {
    let all = bars();
    if let Some(unknown) = args.only.iter().find(|name| !all.iter().any(|bar| bar.is_called(name))) {
        eprintln!("error: {unknown} is no bar: P1 to P13 are");
        return Ok(ExitCode::from(2));
    }
    let started = Instant::now();
    let side = Duration::from_millis(args.side_ms);
    let sizes = Sizes { full: args.full, rounds: args.rounds, side, seed: args.seed };
    let chosen = all.iter().filter(|bar| args.only.is_empty() || args.only.iter().any(|name| bar.is_called(name)));
    let mut outcomes = Vec::new();
    for bar in chosen {
        let mut tell = |round, ratio: f64| {
            if io::stderr().is_terminal() {
                eprint!("\r\x1b[K{} round {round} of {}: {ratio:.3}", bar.id, args.rounds);
            }
        };
        match bar.measure(&sizes, &mut tell) {
            Ok(outcome) => outcomes.push(outcome),
            Err(error) => {
                let error: &dyn std::error::Error = &error;
                return Err(io::Error::other(format!("{}: {}", bar.id, chain(error))));
            }
        }
    }
    if io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
    let mut out = io::stdout().lock();
    match args.output {
        Format::Table => write_table(&outcomes, &mut out)?,
        Format::Json => {
            let seconds = started.elapsed().as_secs_f64();
            let report = Report { bars: &outcomes, seed: args.seed, full: args.full, seconds };
            serde_json::to_writer_pretty(&mut out, &report)?;
            writeln!(out)?;
        }
    }
    out.flush()?;
    let is_missed = outcomes.iter().any(|outcome| outcome.met == Some(false));
    Ok(if args.strict && is_missed { ExitCode::from(EXIT_MISSED) } else { ExitCode::SUCCESS })
}

/// An error with what caused it.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
