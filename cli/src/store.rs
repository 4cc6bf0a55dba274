//! `seriatim store`: the registered stores, which say what they have cleaned.

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::Serialize;
use seriatim_core::{RegisteredStore, StoreName, WritePointer};
use seriatim_wire::CleanBound;

use crate::output::{Outcome, OutputArgs};
use crate::status::duration;
use crate::target::TargetArgs;

/// The registered stores: what they have cleaned, and how far they may
#[derive(Subcommand)]
pub enum StoreCommand {
    /// List the registered stores
    Ls(PlainArgs),
    /// Register a store: until it acknowledges, no invalid transaction is forgotten
    Register(NameArgs),
    /// Take a store out, whose data is gone
    Remove(RemoveArgs),
    /// Show how far stores may clean now
    CleanBound(PlainArgs),
    /// Say that a store holds nothing of invalid transactions up to a bound, durably
    Ack(AckArgs),
}

/// Of whom.
#[derive(Args)]
pub struct PlainArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// Which store.
#[derive(Args)]
pub struct NameArgs {
    /// The store's name, 1 to 64 bytes
    #[arg(value_parser = name)]
    name: StoreName,
    #[command(flatten)]
    plain: PlainArgs,
}

/// Which store to take out.
#[derive(Args)]
pub struct RemoveArgs {
    #[command(flatten)]
    store: NameArgs,
    /// Its data is gone, or nobody reads it under transactions any more
    #[arg(long)]
    yes: bool,
}

/// What was cleaned.
#[derive(Args)]
pub struct AckArgs {
    /// The store's name
    #[arg(value_parser = name)]
    name: StoreName,
    /// The bound that `clean-bound` showed before the store was cleaned: a write pointer
    bound: u64,
    #[command(flatten)]
    plain: PlainArgs,
}

/// A store, for people and programs.
#[derive(Serialize)]
pub struct StoreRow {
    name: String,
    bound: u64,
    registered_ms: u64,
    /// `None` if it never has.
    acknowledged_ms: Option<u64>,
}

impl StoreRow {
    /// The row of a store.
    pub fn of(name: &StoreName, store: &RegisteredStore) -> StoreRow {
        let RegisteredStore { bound, registered_ms, acknowledged_ms } = *store;
        let acknowledged_ms = (acknowledged_ms > 0).then_some(acknowledged_ms);
        StoreRow { name: name.to_string(), bound: bound.0, registered_ms, acknowledged_ms }
    }
}

/// How far stores may clean, for people and programs.
#[derive(Clone, Copy, Serialize)]
pub struct Bounds {
    clean_bound: u64,
    visibility_bound: u64,
}

impl From<CleanBound> for Bounds {
    fn from(bounds: CleanBound) -> Bounds {
        Bounds { clean_bound: bounds.clean.0, visibility_bound: bounds.visible.0 }
    }
}

#[derive(Serialize)]
struct List {
    stores: Vec<StoreRow>,
    server_time_ms: u64,
}

#[derive(Serialize)]
struct Changed {
    name: String,
    changed: bool,
}

#[derive(Serialize)]
struct Acknowledged {
    name: String,
    bound: u64,
    invalid: u64,
}

fn name(text: &str) -> Result<StoreName, String> {
    StoreName::new(text).map_err(|error| error.to_string())
}

/// Runs a command.
pub fn run(command: &StoreCommand) -> Outcome {
    match command {
        StoreCommand::Ls(args) => list(args),
        StoreCommand::Register(args) => {
            let changed = args.plain.target.connect()?.register_store(&args.name)?;
            let report = Changed { name: args.name.to_string(), changed };
            args.plain.output.print(&report, |report, out| match report.changed {
                true => writeln!(out, "registered {:?}; nothing is forgotten until it acknowledges", report.name),
                false => writeln!(out, "{:?} was registered before", report.name),
            })?;
            Ok(ExitCode::SUCCESS)
        }
        StoreCommand::Remove(args) => remove(args),
        StoreCommand::CleanBound(args) => {
            let bounds = Bounds::from(args.target.connect()?.clean_bound()?);
            args.output.print(&bounds, bounds_text)?;
            Ok(ExitCode::SUCCESS)
        }
        StoreCommand::Ack(args) => acknowledge(args),
    }
}

fn list(args: &PlainArgs) -> Outcome {
    let client = args.target.connect()?;
    let report = client.pruning()?;
    let stores = report.stores.iter().map(|(name, store)| StoreRow::of(name, store)).collect();
    let list = List { stores, server_time_ms: client.state()?.server_time_ms };
    args.output.print(&list, |list, out| stores_text(&list.stores, list.server_time_ms, out))?;
    Ok(ExitCode::SUCCESS)
}

fn remove(args: &RemoveArgs) -> Outcome {
    let (name, plain) = (&args.store.name, &args.store.plain);
    if !args.yes {
        let message = format!(
            "nothing was done: what {name:?} has not cleaned may be forgotten then, and would be read as if it had \
             committed. Is its data gone? Say so with --yes",
            name = name.as_str()
        );
        return Err(message.into());
    }
    let changed = plain.target.connect()?.remove_store(name)?;
    let report = Changed { name: name.to_string(), changed };
    plain.output.print(&report, |report, out| match report.changed {
        true => writeln!(out, "took {:?} out", report.name),
        false => writeln!(out, "{:?} was not registered", report.name),
    })?;
    Ok(ExitCode::SUCCESS)
}

fn acknowledge(args: &AckArgs) -> Outcome {
    let client = args.plain.target.connect()?;
    let acknowledged = client.store_cleaned(&args.name, WritePointer(args.bound));
    acknowledged.map_err(|error| -> Box<dyn Error> { format!("{:?}: {error}", args.name.as_str()).into() })?;
    let report = client.pruning()?;
    let bound = report.stores.iter().find(|(name, _)| *name == args.name).map_or(0, |(_, store)| store.bound.0);
    let report = Acknowledged { name: args.name.to_string(), bound, invalid: report.invalid };
    args.plain.output.print(&report, |report, out| {
        writeln!(out, "{:?} is clean up to {}; {} left invalid", report.name, report.bound, report.invalid)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the bounds as lines.
pub fn bounds_text(bounds: &Bounds, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "clean bound       {}", bounds.clean_bound)?;
    writeln!(out, "visibility bound  {}", bounds.visibility_bound)
}

/// Writes stores as a table.
pub fn stores_text(stores: &[StoreRow], now_ms: u64, out: &mut dyn Write) -> io::Result<()> {
    if stores.is_empty() {
        return writeln!(out, "no store is registered: no invalid transaction is forgotten by itself");
    }
    let ago = |ms: u64| format!("{} ago", duration(now_ms.saturating_sub(ms)));
    writeln!(out, "{:<24} {:<20} {:<18} acknowledged", "store", "clean up to", "registered")?;
    for row in stores {
        let acknowledged = row.acknowledged_ms.map_or("never".to_owned(), ago);
        // A name is anybody's choice, and must not act on the operator's terminal.
        let name = row.name.escape_debug().to_string();
        writeln!(out, "{name:<24} {:<20} {:<18} {acknowledged}", row.bound, ago(row.registered_ms))?;
    }
    Ok(())
}
