//! `seriatim status`: how a server is.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use crate::output::{Outcome, OutputArgs};
use crate::target::TargetArgs;

/// Ask a server how it is
#[derive(Args)]
pub struct StatusArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Report {
    address: String,
    version: String,
    store: String,
    durable: bool,
    storage: String,
    uptime_ms: u64,
    boot: u64,
    read_pointer: u64,
    next_pointer: u64,
    window_end: u64,
    commit_number: u64,
    snapshot: u64,
    visibility_bound: u64,
    open: u64,
    invalid: u64,
    excluded: u64,
    outcomes: u64,
    connections: u64,
    durable_lsn: u64,
    sequencer_time_ms: u64,
}

/// Runs the command.
pub fn run(args: &StatusArgs) -> Outcome {
    let state = args.target.connect()?.state()?;
    let report = Report {
        address: args.target.addr.clone(),
        version: state.version,
        store: state.store.to_string(),
        durable: state.durable,
        storage: state.storage,
        uptime_ms: state.uptime_ms,
        boot: state.boot,
        read_pointer: state.read_pointer.0,
        next_pointer: state.next_pointer.0,
        window_end: state.window_end.0,
        commit_number: state.csn.0,
        snapshot: state.snapshot,
        visibility_bound: state.visibility_bound.0,
        open: state.open,
        invalid: state.invalid,
        excluded: state.excluded,
        outcomes: state.outcomes,
        connections: state.connections,
        durable_lsn: state.durable_lsn,
        sequencer_time_ms: state.sequencer_time_ms,
    };
    args.output.print(&report, text)?;
    Ok(ExitCode::SUCCESS)
}

fn text(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let durable = if report.durable { "durable" } else { "NOT durable" };
    writeln!(out, "seriatim {} at {}, up {}", report.version, report.address, duration(report.uptime_ms))?;
    writeln!(out, "store          {}", report.store)?;
    writeln!(out, "log            {durable}: {}", report.storage)?;
    writeln!(out, "commits        {}", report.commit_number)?;
    writeln!(out, "open           {}", report.open)?;
    writeln!(out, "invalid        {}", report.invalid)?;
    writeln!(out, "read pointer   {}", report.read_pointer)?;
    writeln!(out, "next pointer   {}", report.next_pointer)?;
    writeln!(out, "window end     {}", report.window_end)?;
    writeln!(out, "connections    {}", report.connections)
}

/// Milliseconds as people say them.
pub fn duration(ms: u64) -> String {
    let seconds = ms / 1000;
    match (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60, seconds % 60) {
        (0, 0, 0, _) => format!("{:.1} s", ms as f64 / 1000.0),
        (0, 0, minutes, seconds) => format!("{minutes} min {seconds} s"),
        (0, hours, minutes, _) => format!("{hours} h {minutes} min"),
        (days, hours, ..) => format!("{days} d {hours} h"),
    }
}
