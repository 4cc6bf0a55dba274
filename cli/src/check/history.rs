//! `seriatim check history`: reads a history of transactions, as `history/FORMAT.md` describes it, and judges it.

use std::fs::File;
use std::io::{self, BufReader, IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use seriatim_history::{History, ReadError};

use super::EXIT_FAILED;
use crate::output::{Outcome, OutputArgs};

/// Rows after which the reader says how far it is.
const PROGRESS_ROWS: u64 = 1_000_000;

/// The history to be judged.
#[derive(Clone, Debug, clap::Args)]
pub struct HistoryArgs {
    /// Rows as lines of JSON; `-` for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Anomalies of each kind that are shown; all are counted
    #[arg(long, value_name = "N", default_value_t = 5)]
    examples: u64,
    #[command(flatten)]
    output: OutputArgs,
}

/// A history that cannot be judged.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the history {}", file.display())]
struct HistoryError {
    file: PathBuf,
    source: ReadError,
}

/// A file that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot open {}", file.display())]
struct OpenError {
    file: PathBuf,
    source: io::Error,
}

/// A history that proves nothing. It would pass, where most likely its recorder has failed.
#[derive(Debug, thiserror::Error)]
#[error("the history {} holds no transaction: there is nothing to judge", file.display())]
struct EmptyError {
    file: PathBuf,
}

/// Judges the history, and prints what was found.
pub fn run(args: &HistoryArgs) -> Outcome {
    let input: Box<dyn Read> = if args.file == Path::new("-") {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(&args.file).map_err(|source| OpenError { file: args.file.clone(), source })?)
    };
    let history = History::read(BufReader::with_capacity(1 << 20, input), say_progress)
        .map_err(|source| HistoryError { file: args.file.clone(), source })?;
    if history.is_empty() {
        return Err(EmptyError { file: args.file.clone() }.into());
    }
    let report = history.judge(args.examples);
    args.output.print(&report, |report, out| writeln!(out, "{report}"))?;
    Ok(if report.failed { ExitCode::from(EXIT_FAILED) } else { ExitCode::SUCCESS })
}

fn say_progress(rows: u64) {
    if rows.is_multiple_of(PROGRESS_ROWS) && io::stderr().is_terminal() {
        eprintln!("{rows} transactions read");
    }
}
