//! Checks that a person can run: the house under load, with everything killed that may be killed, and recorded histories.

mod bank;
mod children;
mod history;
mod host;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use seriatim_kv::{Durability, FjallStore};

use crate::output::Outcome;

/// Exit code of a check that was carried out and failed.
const EXIT_FAILED: u8 = 3;
/// What the store's host says on its standard output when it listens.
const HOST_READY: &str = "ready";

/// What can be checked.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum CheckCommand {
    /// Move money while everything is killed, and see that no coin is lost
    ///
    /// Starts a server, a store and clients of its own, kills server and clients over and over, and ends with code 0 if
    /// nothing was lost, torn or taken back, and with 3 if something was.
    Bank(bank::BankArgs),
    /// Judge a recorded history of transactions against what it was promised
    ///
    /// Ends with code 0 if the history is what snapshot isolation allows (and serializability, for transactions that asked
    /// for it), with 3 if it is not, and with 1 if it cannot be read.
    History(history::HistoryArgs),
    /// A client of the bank
    #[command(hide = true)]
    BankClient(bank::ClientArgs),
    /// The store's host
    #[command(hide = true)]
    StoreHost(StoreHostArgs),
    /// A subcommand that dies with its parent
    #[command(hide = true)]
    Child(children::ChildArgs),
}

/// A store in a process of its own; started by checks.
#[derive(Clone, Debug, clap::Args)]
pub struct StoreHostArgs {
    /// The socket to make.
    #[arg(long)]
    socket: PathBuf,
    /// Where the store keeps its files.
    #[arg(long)]
    dir: PathBuf,
}

/// Carries a check out. Exit codes: 0 passed, 1 could not be carried out, 2 wrong usage, 3 failed, 130 interrupted.
pub fn run(command: &CheckCommand) -> Outcome {
    match command {
        CheckCommand::Bank(args) => bank::run(args),
        CheckCommand::History(args) => history::run(args),
        CheckCommand::BankClient(args) => bank::run_client(args),
        CheckCommand::StoreHost(args) => host_store(args),
        CheckCommand::Child(args) => Err(children::become_child(args).into()),
    }
}

fn host_store(args: &StoreHostArgs) -> Outcome {
    // Nobody kills this process, so what the operating system has is safe.
    let store = FjallStore::open(&args.dir, Durability::Process)?;
    let host = host::StoreHost::bind(&args.socket, store)?;
    writeln!(std::io::stdout(), "{HOST_READY}")?;
    host.serve()?;
    Ok(ExitCode::SUCCESS)
}
