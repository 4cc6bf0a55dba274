//! `seriatim check bank`: money moves between accounts while the server and the clients are killed over and over, and
//! auditors look on. In the end no coin may be missing, no acknowledged transfer lost, and nothing that was ever read
//! taken back.
//!
//! ```text
//!  this process ── spawns and kills ──▶ server (SIGKILL every few seconds, same directory, same port)
//!       │        ── spawns and kills ──▶ clients (one every second; one in four between its two writes)
//!       │        ── spawns ───────────▶ the store's host, which is never killed
//!       └─ auditors: threads that take snapshots and remember what they saw
//! ```
//!
//! A check that cannot fail proves nothing: `--plant` starts a server with a known bug, and the check must notice.

mod accounts;
mod audit;
mod books;
mod client;
mod clients;
mod error;
mod messages;
mod plot;
mod record;
mod report;
mod run;
mod scribe;
mod server;

use std::fmt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};

use seriatim_client::{Client, ClientOptions};

use super::EXIT_FAILED;
use crate::output::{Outcome, OutputArgs};

pub use client::ClientArgs;

/// Exit code of a usage that cannot be carried out.
const EXIT_USAGE: u8 = 2;
/// Exit code after Ctrl-C.
const EXIT_INTERRUPTED: u8 = 130;
/// How long a connection is tried for: longer than a restart of the server takes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause between two tries.
const CONNECT_PAUSE: Duration = Duration::from_millis(5);

/// Bounds and choices of a bank check.
#[derive(Clone, Debug, clap::Args)]
pub struct BankArgs {
    /// Accounts in the bank
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(i64::from(accounts::ACCOUNTS_MIN)..=1_000_000))]
    accounts: u32,
    /// Client processes that run at a time
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=128))]
    clients: u32,
    /// How long money moves, in seconds
    #[arg(long, value_name = "SECS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    secs: u64,
    /// Kill the server every so many seconds; 0 never does
    #[arg(long, value_name = "SECS", default_value_t = 3)]
    kill_every: u64,
    /// What the server keeps its log on. Memory forgets everything with a kill, so it takes --kill-every 0
    #[arg(long, value_enum, default_value_t = StorageKind::Disk)]
    storage: StorageKind,
    /// Start a server with this bug: the check must fail
    #[arg(long, value_enum)]
    plant: Option<Planted>,
    /// Chooses transfers and victims; random if not given
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// An empty or new directory for everything; kept. By default a temporary one, kept only if something went
    /// wrong and no bug was planted
    #[arg(long)]
    dir: Option<PathBuf>,
    /// Write every transaction to this file as it was seen from outside, for `seriatim check history`
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgs,
}

/// What a server keeps its log on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum StorageKind {
    /// Files, synced before anything is acknowledged
    Disk,
    /// Nothing outlives the process
    Memory,
    /// Files, but a killed server loses what was not synced, as in a power cut
    Lossy,
}

/// Bugs that a server can be started with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Planted {
    /// Commits are not checked for conflicts
    LostUpdate,
    /// Commits are visible before they are durable. Shows with --storage lossy
    EarlyVisible,
    /// The open transactions of a connection that ends are aborted at once
    AbortOnDisconnect,
}

/// Carries the check out, and prints what it found.
pub fn run(args: &BankArgs) -> Outcome {
    if args.storage == StorageKind::Memory && args.kill_every > 0 {
        eprintln!("seriatim: a server in memory forgets everything when it is killed: give --kill-every 0 as well");
        return Ok(ExitCode::from(EXIT_USAGE));
    }
    match run::run(args) {
        Ok(report) => {
            args.output.print(&report, |report, out| writeln!(out, "{report}"))?;
            Ok(if report.failed { ExitCode::from(EXIT_FAILED) } else { ExitCode::SUCCESS })
        }
        Err(error::CheckError::Interrupted) => Ok(ExitCode::from(EXIT_INTERRUPTED)),
        Err(error) => Err(error.into()),
    }
}

/// Runs one client, for [`run()`].
pub fn run_client(args: &ClientArgs) -> Outcome {
    // Every second one leaves lost connections to its transactions, the others to the connection's own repeats: each has
    // to find out what became of a commit.
    let attempts_max = if args.number.is_multiple_of(2) { ClientOptions::default().attempts_max } else { 1 };
    let label = format!("bank-{}", args.number);
    let coordinator = connect(&args.server, ClientOptions { attempts_max, label, ..ClientOptions::default() })?;
    client::run(args, coordinator)?;
    Ok(ExitCode::SUCCESS)
}

/// Connects, and again while the server is being started.
fn connect(address: &str, options: ClientOptions) -> Result<Client, error::CheckError> {
    let give_up = Instant::now() + CONNECT_TIMEOUT;
    loop {
        match Client::connect(address, options.clone()) {
            Ok(client) => return Ok(client),
            Err(error) if Instant::now() >= give_up || !error.is_retryable() => {
                return Err(error::CheckError::Connect(error.into()));
            }
            Err(_) => thread::sleep(CONNECT_PAUSE),
        }
    }
}

impl fmt::Display for StorageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        value_name(self, f)
    }
}

impl fmt::Display for Planted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        value_name(self, f)
    }
}

/// The name of a value on the command line.
fn value_name(value: &impl clap::ValueEnum, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let value = value.to_possible_value().expect("no value is skipped");
    f.write_str(value.get_name())
}
