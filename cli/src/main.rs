//! Operates: the one binary `seriatim`.
//!
//! Exit codes: 0 done, 1 error, 2 wrong usage, 3 a check failed.
#![forbid(unsafe_code)]

mod bench;
mod check;
mod fence;
mod image;
mod invalid;
mod moment;
mod output;
mod serve;
mod status;
mod store;
mod target;
mod tx;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A transaction sequencer: write pointers, snapshots, conflict detection, durable decisions.
#[derive(Parser)]
#[command(name = "seriatim", version, propagate_version = true, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a server
    Serve(serve::ServeArgs),
    /// Ask a server how it is
    Status(status::StatusArgs),
    /// Measure a server, or the sequencer in this process
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    /// Look at transactions, and end them
    #[command(subcommand)]
    Tx(tx::TxCommand),
    /// Look at the invalid transactions, and forget them
    #[command(subcommand)]
    Invalid(invalid::InvalidCommand),
    /// The registered stores: what they have cleaned, and how far they may
    #[command(subcommand)]
    Store(store::StoreCommand),
    /// Wait until every transaction that is open now has ended
    Fence(fence::FenceArgs),
    /// The published state as a file
    #[command(subcommand)]
    Image(image::ImageCommand),
    /// Run a check: the house under load while everything is killed, or a recorded history
    #[command(subcommand)]
    Check(check::CheckCommand),
}

fn main() -> ExitCode {
    let command = Arguments::parse().command;
    // A server says how it is, others what went wrong.
    let level = if matches!(command, Command::Serve(_)) { "info" } else { "warn" };
    env_logger::Builder::from_env(env_logger::Env::new().filter_or("SERIATIM_LOG", level)).init();
    let outcome = match command {
        Command::Serve(args) => serve::run(&args),
        Command::Status(args) => status::run(&args),
        Command::Bench(command) => bench::run(&command),
        Command::Tx(command) => tx::run(&command),
        Command::Invalid(command) => invalid::run(&command),
        Command::Store(command) => store::run(&command),
        Command::Fence(args) => fence::run(&args),
        Command::Image(command) => image::run(&command),
        Command::Check(command) => check::run(&command),
    };
    outcome.unwrap_or_else(|error| {
        output::print_error(error.as_ref());
        ExitCode::from(1)
    })
}
