//! `seriatim bench`: load generators.

use std::io::{self, IsTerminal, Write};
use std::num::NonZero;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use seriatim_client::Address;
use seriatim_net::Options;
use seriatim_perf::{EmbeddedTarget, Failed, Kind, Latency, Load, Moment, Phase, Report, drive_embedded, drive_server};

use crate::output::{Outcome, OutputArgs, print_error};

/// Measure a server, or the sequencer in this process
#[derive(Subcommand)]
pub enum BenchCommand {
    /// Begin and commit transactions with random keys, as many as come back
    Tx(TxArgs),
    /// Begin transactions, as many as come back; the aborts that empty the table are not waited for
    Begin(BeginArgs),
}

/// Begin transactions, as many as come back
///
/// A closed loop, as `tx` is. The aborts that empty the server's table again are sent and not waited for.
#[derive(Args)]
pub struct BeginArgs {
    /// The server: HOST:PORT, or unix:PATH
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7600")]
    addr: String,
    /// Connections
    #[arg(long, value_name = "N", default_value_t = 1)]
    connections: u32,
    /// Begins that each connection keeps in flight
    #[arg(long, value_name = "N", default_value_t = 64)]
    depth: u32,
    /// Seconds to measure
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    secs: Duration,
    #[command(flatten)]
    output: OutputArgs,
}

/// Begin and commit transactions with random keys, as many as come back
///
/// A closed loop: each connection keeps so many transactions in flight. A conflict is rolled back and counted, not
/// retried.
#[derive(Args)]
pub struct TxArgs {
    /// The server: HOST:PORT, or unix:PATH
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7600", conflicts_with = "embedded")]
    addr: String,
    /// Connections
    #[arg(long, value_name = "N", default_value_t = 16)]
    connections: u32,
    /// Transactions that each connection keeps in flight
    #[arg(long, value_name = "N", default_value_t = 64)]
    depth: u32,
    /// Keys that a transaction writes
    #[arg(long, value_name = "N", default_value_t = 4)]
    writes: u32,
    /// Keys to draw from, each as likely as the other
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    keys: u64,
    /// Seconds to measure
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    secs: Duration,
    /// Seconds before that which are not measured [default: 1, with --count 0]
    #[arg(long, value_name = "S", value_parser = seconds)]
    warmup_secs: Option<Duration>,
    /// End after this many transactions, or when the time is over
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Start of the random numbers [default: another one every time]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Measure the sequencer in this process, without a server
    #[arg(long)]
    embedded: bool,
    /// Where the embedded sequencer keeps its log
    #[arg(long, value_enum, default_value_t = Storage::Disk, requires = "embedded")]
    storage: Storage,
    /// Directory of the embedded sequencer's log [default: a temporary one]
    #[arg(long, value_name = "DIR", requires = "embedded")]
    data: Option<PathBuf>,
    /// Threads that share the load of the embedded sequencer
    #[arg(long, value_name = "N", default_value = "1", requires = "embedded")]
    threads: NonZero<u32>,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Storage {
    /// Files, synced before anything is acknowledged
    Disk,
    /// Nothing outlives the process
    Memory,
}

/// Runs the command.
pub fn run(command: &BenchCommand) -> Outcome {
    match command {
        BenchCommand::Tx(args) => run_tx(args),
        BenchCommand::Begin(args) => run_begin(args),
    }
}

fn run_begin(args: &BeginArgs) -> Outcome {
    let BeginArgs { connections, depth, secs, .. } = *args;
    let load = Load { kind: Kind::Begin, connections, depth, measured: secs, ..Load::default() };
    let mut progress = Progress::new();
    let result = drive_server(&load, &Address::from(args.addr.as_str()), &mut |moment| progress.show(moment));
    progress.clear();
    print(result, &args.output)
}

fn run_tx(args: &TxArgs) -> Outcome {
    let load = Load {
        kind: Kind::Tx,
        connections: args.connections,
        depth: args.depth,
        writes: args.writes,
        keys: args.keys,
        seed: args.seed.unwrap_or_else(seed),
        warmup: args.warmup_secs.unwrap_or(Duration::from_secs(u64::from(args.count.is_none()))),
        measured: args.secs,
        count: args.count,
    };
    let mut progress = Progress::new();
    let mut watch = |moment: &Moment| progress.show(moment);
    let result = match args.embedded {
        false => drive_server(&load, &Address::from(args.addr.as_str()), &mut watch),
        true => embedded(args, &load, &mut watch)?,
    };
    progress.clear();
    print(result, &args.output)
}

fn print(result: Result<Report, Failed>, output: &OutputArgs) -> Outcome {
    match result {
        Ok(report) => {
            output.print(&report, write_text)?;
            Ok(ExitCode::SUCCESS)
        }
        Err(Failed { error, partial }) => {
            if let Some(report) = partial {
                output.print(&*report, write_text)?;
            }
            print_error(&error);
            Ok(ExitCode::from(1))
        }
    }
}

fn embedded(args: &TxArgs, load: &Load, watch: &mut dyn FnMut(&Moment)) -> io::Result<Result<Report, Failed>> {
    let options = Options::default();
    let mut drive = |target| drive_embedded(load, &target, &options, args.threads, watch);
    Ok(match (args.storage, &args.data) {
        (Storage::Memory, _) => drive(EmbeddedTarget::Memory),
        (Storage::Disk, Some(directory)) => drive(EmbeddedTarget::Disk(directory.clone())),
        (Storage::Disk, None) => {
            let directory = tempfile::Builder::new().prefix("seriatim-bench-").tempdir()?;
            drive(EmbeddedTarget::Disk(directory.path().join("data")))
        }
    })
}

/// A seed that is another one every time, and short enough to be typed again.
fn seed() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    (since.as_nanos() as u64 ^ u64::from(std::process::id()) << 20) & 0xffff_ffff
}

/// One line on the terminal that is written again every second.
struct Progress {
    is_shown: bool,
    last: (Duration, u64),
}

impl Progress {
    fn new() -> Progress {
        Progress { is_shown: io::stderr().is_terminal(), last: (Duration::ZERO, 0) }
    }

    fn show(&mut self, moment: &Moment) {
        let (elapsed, commits) = self.last;
        self.last = (moment.elapsed, moment.commits);
        if !self.is_shown {
            return;
        }
        let rate = (moment.commits - commits) as f64 / (moment.elapsed - elapsed).as_secs_f64();
        let phase = match moment.phase {
            Phase::WarmUp => "  warming up",
            Phase::Measured => "",
            Phase::Draining => "  ending",
        };
        let elapsed = moment.elapsed.as_secs();
        let rate = thousands(rate as u64);
        let (conflicts, errors) = (moment.conflicts, moment.errors);
        eprint!("\r\x1b[K{elapsed:4} s  {rate} tx/s  {conflicts} conflicts  {errors} errors{phase}");
    }

    fn clear(&self) {
        if self.is_shown && self.last.0 > Duration::ZERO {
            eprint!("\r\x1b[K");
        }
    }
}

fn write_text(report: &Report, out: &mut dyn Write) -> io::Result<()> {
    let Report { connections, depth, writes, keys, seed, measured_secs, server, .. } = report;
    let durable = if report.durable { "durable" } else { "NOT durable" };
    let broken_off = if report.complete { "" } else { ", broken off" };
    writeln!(out, "{connections} connections x {depth} in flight, {writes} of {keys} keys each, seed {seed}")?;
    writeln!(
        out,
        "seriatim {}, {}, {durable}; {measured_secs:.2} s measured{broken_off}",
        server.version, server.storage
    )?;
    writeln!(out)?;
    writeln!(out, "  transactions   {:>13} /s", thousands(report.tx_per_s as u64))?;
    let tried = report.commits + report.conflicts + report.errors.values().sum::<u64>();
    for (name, count) in [("commits", report.commits), ("conflicts", report.conflicts)] {
        writeln!(out, "  {name:<14} {:>13}  {:.3} %", thousands(count), percent(count, tried))?;
    }
    for (kind, count) in &report.errors {
        writeln!(out, "  {kind:<14} {:>13}  {:.3} %", thousands(*count), percent(*count, tried))?;
    }
    writeln!(out)?;
    writeln!(out, "  latency, us    {:>10} {:>10} {:>10} {:>10}", "p50", "p99", "p99.9", "max")?;
    for (name, latency) in [("begin", report.begin_us), ("commit", report.commit_us)] {
        if let Some(Latency { p50, p99, p999, max }) = latency {
            writeln!(out, "  {name:<14} {p50:>10.1} {p99:>10.1} {p999:>10.1} {max:>10.1}")?;
        }
    }
    writeln!(out)?;
    let costs = [
        ("reply bytes", report.bytes_per_begin, "a begin"),
        ("client CPU, us", report.client_cpu_us_per_tx, "a commit"),
        ("server CPU, us", report.server_cpu_us_per_tx, "a commit"),
    ];
    for (name, cost, of) in costs {
        if let Some(cost) = cost {
            writeln!(out, "  {name:<14} {cost:>13.2}  for {of}")?;
        }
    }
    Ok(())
}

fn percent(part: u64, of: u64) -> f64 {
    100.0 * part as f64 / of.max(1) as f64
}

/// A number with its thousands apart.
fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

fn seconds(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>().map(Duration::try_from_secs_f64) {
        Ok(Ok(duration)) => Ok(duration),
        _ => Err("a number of seconds".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_stand_apart() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(thousands), ["0", "999", "1 000", "1 234 567"]);
    }

    #[test]
    fn seconds_may_be_broken_but_not_negative() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        assert!(["-1", "x", "inf", "nan"].iter().all(|text| seconds(text).is_err()));
    }
}
