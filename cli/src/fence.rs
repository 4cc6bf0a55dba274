//! `seriatim fence`: wait until nobody is left who may not have seen a change.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use seriatim_wire::Fenced;

use crate::output::{Outcome, OutputArgs};
use crate::target::TargetArgs;

/// Wait until every transaction that is open now has ended
#[derive(Args)]
pub struct FenceArgs {
    /// Seconds to wait for them; 0 asks who is there
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(..=86_400))]
    wait_secs: u64,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Report {
    passed: bool,
    /// Transactions that were waited for and are open yet.
    open: u64,
}

/// Runs the command: exit 1 if some are left.
pub fn run(args: &FenceArgs) -> Outcome {
    let fenced = args.target.connect()?.fence(Duration::from_secs(args.wait_secs))?;
    let report = match fenced {
        Fenced::Passed => Report { passed: true, open: 0 },
        Fenced::TimedOut(open) => Report { passed: false, open },
    };
    args.output.print(&report, |report, out| match report.passed {
        true => writeln!(out, "everybody who was open has ended"),
        false => writeln!(out, "{} still open after {} s; see `seriatim tx ls`", report.open, args.wait_secs),
    })?;
    Ok(if report.passed { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
