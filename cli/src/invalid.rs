//! `seriatim invalid`: the invalid transactions, who keeps them, and how to forget them by hand.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::Serialize;
use seriatim_client::Client;
use seriatim_core::WritePointer;
use seriatim_wire::{CleanHolder, ListKind, ListRequest, PruneReport, Truncated};

use crate::moment::Moment;
use crate::output::{Outcome, OutputArgs};
use crate::status::duration;
use crate::store::{Bounds, StoreRow, bounds_text, stores_text};
use crate::target::TargetArgs;
use crate::tx::{self, PageArgs, cause_name, kind_name, pointer};

/// Look at the invalid transactions, and forget them
#[derive(Subcommand)]
pub enum InvalidCommand {
    /// List the invalid transactions
    Ls(PageArgs),
    /// Count the invalid transactions
    Size(PlainArgs),
    /// Show who keeps the invalid transactions from being forgotten
    Blocked(PlainArgs),
    /// Forget invalid transactions of which nothing stands in any store
    Truncate(TruncateArgs),
}

/// Of whom.
#[derive(Args)]
pub struct PlainArgs {
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

/// What to forget.
#[derive(Args)]
#[command(group = clap::ArgGroup::new("which").required(true))]
pub struct TruncateArgs {
    /// The transactions: their write pointers
    #[arg(value_name = "TX", value_parser = pointer, group = "which")]
    transactions: Vec<u64>,
    /// All that began before this moment: now, now-7d, now-1h30m (d, h, m, s), or milliseconds since 1970
    #[arg(long, value_name = "TIME", group = "which")]
    before: Option<Moment>,
    /// Nothing of them stands in any store: what does would be read as if it had committed
    #[arg(long)]
    yes: bool,
    #[command(flatten)]
    plain: PlainArgs,
}

#[derive(Serialize)]
struct Size {
    /// Transactions, and intervals that a crash left unaccounted.
    invalid: u64,
    /// Pointers that snapshots exclude for them, each interval counted once.
    excluded: u64,
}

#[derive(Serialize)]
struct Blocked {
    #[serde(flatten)]
    bounds: Bounds,
    invalid: u64,
    holder: Holder,
    stores: Vec<StoreRow>,
    /// The store that has cleaned least.
    slowest: Option<String>,
    server_time_ms: u64,
}

/// What holds the clean bound back.
#[derive(Serialize)]
#[serde(tag = "what", rename_all = "snake_case")]
enum Holder {
    Nothing,
    Open { tx: u64, kind: &'static str, remaining_ms: Option<u64>, session: u64, label: Option<String> },
    Deciding { tx: u64 },
    Writing { tx: u64, kind: &'static str, cause: &'static str, remaining_ms: u64 },
}

#[derive(Serialize)]
struct Forgotten {
    /// False if it was only asked what would be forgotten.
    done: bool,
    /// Transactions and intervals.
    forgotten: u64,
    /// Those named that are not invalid, or were lost in a crash.
    left: Vec<u64>,
    /// Where everything before a moment was asked for: its first pointer.
    before: Option<u64>,
}

/// Runs a command.
pub fn run(command: &InvalidCommand) -> Outcome {
    match command {
        InvalidCommand::Ls(args) => tx::list(args, ListKind::Invalid),
        InvalidCommand::Size(args) => size(args),
        InvalidCommand::Blocked(args) => blocked(args),
        InvalidCommand::Truncate(args) => truncate(args),
    }
}

fn size(args: &PlainArgs) -> Outcome {
    let client = args.target.connect()?;
    let size = Size { invalid: client.pruning()?.invalid, excluded: client.state()?.invalid };
    args.output.print(&size, |size, out| {
        writeln!(out, "{} invalid transactions, {} pointers excluded", size.invalid, size.excluded)
    })?;
    Ok(ExitCode::SUCCESS)
}

fn blocked(args: &PlainArgs) -> Outcome {
    let client = args.target.connect()?;
    let report = client.pruning()?;
    let blocked = Blocked {
        bounds: report.bounds.into(),
        invalid: report.invalid,
        holder: holder(&report),
        stores: report.stores.iter().map(|(name, store)| StoreRow::of(name, store)).collect(),
        slowest: report.slowest().map(|(name, _)| name.to_string()),
        server_time_ms: client.state()?.server_time_ms,
    };
    args.output.print(&blocked, blocked_text)?;
    Ok(ExitCode::SUCCESS)
}

fn holder(report: &PruneReport) -> Holder {
    match &report.holder {
        CleanHolder::Nothing => Holder::Nothing,
        CleanHolder::Open(open) => Holder::Open {
            tx: open.tx.0,
            kind: kind_name(open.kind),
            remaining_ms: open.remaining_ms,
            session: open.session,
            label: open.label.as_deref().map(str::to_owned),
        },
        CleanHolder::Deciding(tx) => Holder::Deciding { tx: tx.0 },
        CleanHolder::Writing { tx, kind, cause, remaining_ms } => {
            Holder::Writing { tx: tx.0, kind: kind_name(*kind), cause: cause_name(*cause), remaining_ms: *remaining_ms }
        }
    }
}

fn blocked_text(blocked: &Blocked, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "{} invalid", blocked.invalid)?;
    bounds_text(&blocked.bounds, out)?;
    match &blocked.holder {
        Holder::Nothing => writeln!(out, "stores may clean up to the newest transaction that has finished")?,
        Holder::Open { tx, kind, remaining_ms, session, label } => {
            let label = label.as_ref().map_or(String::new(), |label| format!(" {label:?}"));
            let expires = remaining_ms.map_or("never expires".to_owned(), |ms| format!("expires in {}", duration(ms)));
            writeln!(
                out,
                "stores may clean no further: {kind} {tx}{label} of session {session:016x} is open, {expires}"
            )?;
        }
        Holder::Deciding { tx } => writeln!(out, "stores may clean no further: {tx} is being decided")?,
        Holder::Writing { tx, kind, cause, remaining_ms } => writeln!(
            out,
            "stores may clean no further for {}: {kind} {tx} ({cause}) may still write, or a write of it arrive",
            duration(*remaining_ms)
        )?,
    }
    stores_text(&blocked.stores, blocked.server_time_ms, out)?;
    match &blocked.slowest {
        Some(slowest) => writeln!(out, "what {slowest:?} has not cleaned is kept"),
        None => Ok(()),
    }
}

fn truncate(args: &TruncateArgs) -> Outcome {
    let client = args.plain.target.connect()?;
    let before = match args.before {
        Some(moment) => Some(moment.pointer(client.state()?.server_time_ms)),
        None => None,
    };
    let report = match (before, args.yes) {
        (Some(bound), false) => {
            Forgotten { done: false, forgotten: count_before(&client, bound)?, left: Vec::new(), before: Some(bound.0) }
        }
        (Some(bound), true) => match client.truncate_before(bound)? {
            Truncated::Done(forgotten) => Forgotten { done: true, forgotten, left: Vec::new(), before: Some(bound.0) },
            Truncated::InProgress(open) => {
                let message = format!("nothing was done: {open} began before, is open, and may still become invalid");
                return Err(message.into());
            }
        },
        (None, false) => {
            Forgotten { done: false, forgotten: args.transactions.len() as u64, left: Vec::new(), before: None }
        }
        (None, true) => {
            let mut left = Vec::new();
            for tx in &args.transactions {
                if !client.truncate(WritePointer(*tx))? {
                    left.push(*tx);
                }
            }
            Forgotten { done: true, forgotten: (args.transactions.len() - left.len()) as u64, left, before: None }
        }
    };
    let is_whole = report.done && report.left.is_empty();
    args.plain.output.print(&report, |report, out| {
        for tx in &report.left {
            writeln!(out, "{tx} is not invalid, or was lost in a crash and goes by --before")?;
        }
        // A moment may be meant otherwise than it was read.
        let before = report.before.map_or(String::new(), |bound| format!(" from before {}", utc(bound)));
        if report.done {
            return writeln!(out, "forgot {}{before}", report.forgotten);
        }
        writeln!(out, "would forget up to {}{before}; nothing was done", report.forgotten)?;
        writeln!(out, "if nothing of them stands in any store, say so with --yes")
    })?;
    Ok(if is_whole { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

/// The moment of a pointer, as people read it.
fn utc(pointer: u64) -> String {
    let ms = WritePointer(pointer).ms_since_epoch();
    let timestamp = i64::try_from(ms).ok().and_then(|ms| jiff::Timestamp::from_millisecond(ms).ok());
    timestamp.map_or_else(|| format!("{ms} ms"), |timestamp| timestamp.to_string())
}

/// How many invalid transactions and intervals begin before a pointer.
fn count_before(client: &Client, bound: WritePointer) -> Result<u64, seriatim_client::Error> {
    let (mut count, mut after, mut more) = (0, WritePointer(0), true);
    while more {
        let page = client.list(ListRequest { kind: ListKind::Invalid, after, max: 10_000 })?;
        let below = page.entries.iter().take_while(|entry| entry.tx < bound).count();
        count += below as u64;
        after = page.entries.last().map_or(after, |entry| entry.tx);
        more = page.more && below == page.entries.len();
    }
    Ok(count)
}
