//! `seriatim tx`: look at transactions, and end them.

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::Serialize;
use seriatim_core::{InvalidCause, Kind, Status, WritePointer};
use seriatim_wire::{ListKind, ListRequest, Listed};

use crate::output::{Outcome, OutputArgs};
use crate::status::duration;
use crate::target::TargetArgs;

/// Look at transactions, and end them
#[derive(Subcommand)]
pub enum TxCommand {
    /// List the open transactions, or the invalid ones
    Ls(LsArgs),
    /// Show where one transaction stands
    Show(OneArgs),
    /// Abort a transaction whose writes were rolled back, or that wrote nothing
    Abort(OneArgs),
    /// Invalidate a transaction whose writes may stand: they stay excluded
    Invalidate(OneArgs),
}

/// Which to list.
#[derive(Args)]
pub struct LsArgs {
    #[command(flatten)]
    page: PageArgs,
    /// List the invalid transactions instead of the open ones
    #[arg(long)]
    invalid: bool,
}

/// Which part of a list.
#[derive(Args)]
pub struct PageArgs {
    #[command(flatten)]
    target: TargetArgs,
    /// Start behind this transaction
    #[arg(long, value_name = "TX", default_value_t = 0)]
    after: u64,
    /// List no more than this many
    #[arg(long, value_name = "N", default_value_t = 1000)]
    max: usize,
    #[command(flatten)]
    output: OutputArgs,
}

/// Which transaction.
#[derive(Args)]
pub struct OneArgs {
    /// The transaction: its write pointer
    #[arg(value_parser = pointer)]
    tx: u64,
    #[command(flatten)]
    target: TargetArgs,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Row {
    tx: u64,
    /// More than 1 for a range that a crash left unaccounted.
    count: u64,
    #[serde(flatten)]
    status: StatusReport,
    born_ms: u64,
    #[serde(flatten)]
    open: OpenReport,
}

#[derive(Serialize)]
struct List {
    transactions: Vec<Row>,
    /// There are more behind the last one.
    more: bool,
}

#[derive(Serialize)]
struct One {
    tx: u64,
    #[serde(flatten)]
    status: StatusReport,
    born_ms: u64,
}

#[derive(Serialize)]
struct Shown {
    tx: u64,
    #[serde(flatten)]
    status: StatusReport,
    born_ms: u64,
    #[serde(flatten)]
    open: Option<OpenReport>,
}

/// What is known of a transaction only while it is open.
#[derive(Serialize)]
struct OpenReport {
    kind: &'static str,
    remaining_ms: Option<u64>,
    session: u64,
    deferred: bool,
    detached: bool,
    snapshot: u64,
    checkpoints: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    label: Option<String>,
}

#[derive(Serialize)]
struct StatusReport {
    status: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    commit_number: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cause: Option<&'static str>,
}

impl From<Status> for StatusReport {
    fn from(status: Status) -> StatusReport {
        let (status, commit_number, cause) = match status {
            Status::Open => ("open", None, None),
            Status::Deciding => ("deciding", None, None),
            Status::Committed(csn) => ("committed", Some(csn.0), None),
            Status::Refused => ("refused", None, None),
            Status::Aborted => ("aborted", None, None),
            Status::Invalid(cause) => ("invalid", None, Some(cause_name(cause))),
            Status::Forgotten => ("forgotten", None, None),
        };
        StatusReport { status, commit_number, cause }
    }
}

/// Why a transaction is invalid, for people.
pub fn cause_name(cause: InvalidCause) -> &'static str {
    match cause {
        InvalidCause::Asked => "asked for",
        InvalidCause::Expired => "deadline passed",
        InvalidCause::Disconnected => "client went away",
        InvalidCause::Settled => "settled while open",
        InvalidCause::LongAborted => "LONG, aborted",
        InvalidCause::Unaccounted => "lost in a crash",
    }
}

impl std::fmt::Display for StatusReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.commit_number, self.cause) {
            (Some(number), _) => write!(f, "{} as number {number}", self.status),
            (_, Some(cause)) => write!(f, "{} ({cause})", self.status),
            _ => f.write_str(self.status),
        }
    }
}

/// SHORT or LONG.
pub fn kind_name(kind: Kind) -> &'static str {
    if kind == Kind::Long { "LONG" } else { "SHORT" }
}

/// Reads a write pointer.
pub fn pointer(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(pointer) if pointer > 0 => Ok(pointer),
        _ => Err("a transaction is named by its write pointer, a number like 1796079087692000000".to_owned()),
    }
}

/// Runs a command.
pub fn run(command: &TxCommand) -> Outcome {
    match command {
        TxCommand::Ls(args) => list(&args.page, if args.invalid { ListKind::Invalid } else { ListKind::Open }),
        TxCommand::Show(args) => show(args),
        TxCommand::Abort(args) => one(args, |client, tx| client.abort(tx).map_err(Into::into)),
        TxCommand::Invalidate(args) => one(args, |client, tx| {
            client.invalidate(tx)?;
            Ok(client.status(tx)?)
        }),
    }
}

/// Lists transactions, page by page.
pub fn list(args: &PageArgs, kind: ListKind) -> Outcome {
    let client = args.target.connect()?;
    let mut list = List { transactions: Vec::new(), more: true };
    let mut after = WritePointer(args.after);
    while list.more && list.transactions.len() < args.max {
        let max = (args.max - list.transactions.len()).min(1000) as u32;
        let page = client.list(ListRequest { kind, after, max })?;
        after = page.entries.last().map_or(after, |entry| entry.tx);
        list.more = page.more;
        list.transactions.extend(page.entries.iter().map(row));
    }
    args.output.print(&list, |list, out| list_text(list, kind == ListKind::Invalid, out))?;
    Ok(ExitCode::SUCCESS)
}

fn show(args: &OneArgs) -> Outcome {
    let client = args.target.connect()?;
    let tx = WritePointer(args.tx);
    let status = client.status(tx)?;
    let mut shown = Shown { tx: tx.0, status: status.into(), born_ms: tx.ms_since_epoch(), open: None };
    if matches!(status, Status::Open | Status::Refused) {
        let after = WritePointer(tx.0 - 1);
        let page = client.list(ListRequest { kind: ListKind::Open, after, max: 1 })?;
        shown.open = page.entries.first().filter(|entry| entry.tx == tx).map(|entry| row(entry).open);
    }
    args.output.print(&shown, |shown, out| {
        writeln!(out, "{} is {}", shown.tx, shown.status)?;
        let Some(open) = &shown.open else { return Ok(()) };
        let expires = open.remaining_ms.map_or("never".to_owned(), |ms| format!("in {}", duration(ms)));
        writeln!(
            out,
            "{}, expires {expires}, begun at commit {} by session {:016x}",
            open.kind, open.snapshot, open.session
        )?;
        if open.checkpoints > 0 {
            writeln!(out, "{} checkpoints", open.checkpoints)?;
        }
        open.label.as_ref().map_or(Ok(()), |label| writeln!(out, "label {label:?}"))
    })?;
    Ok(ExitCode::SUCCESS)
}

fn row(entry: &Listed) -> Row {
    Row {
        tx: entry.tx.0,
        count: entry.count,
        status: entry.status.into(),
        born_ms: entry.tx.ms_since_epoch(),
        open: OpenReport {
            kind: kind_name(entry.kind),
            remaining_ms: entry.remaining_ms,
            session: entry.session,
            deferred: entry.deferred,
            detached: entry.detached,
            snapshot: entry.snapshot.0,
            checkpoints: entry.checkpoints,
            label: entry.label.as_deref().map(str::to_owned),
        },
    }
}

fn list_text(list: &List, invalid: bool, out: &mut dyn Write) -> io::Result<()> {
    if list.transactions.is_empty() {
        return writeln!(out, "no transaction is {}", if invalid { "invalid" } else { "open" });
    }
    writeln!(out, "{:<20} {:<6} {:<12} status", "transaction", "kind", "expires in")?;
    for row in &list.transactions {
        let expires = row.open.remaining_ms.map_or("-".to_owned(), duration);
        let more = if row.count > 1 { format!(" and {} more", row.count - 1) } else { String::new() };
        let label = row.open.label.as_ref().map_or(String::new(), |label| format!(", label {label:?}"));
        writeln!(out, "{:<20} {:<6} {:<12} {}{more}{label}", row.tx, row.open.kind, expires, row.status)?;
    }
    if list.more {
        writeln!(out, "… and more; go on with --after {}", list.transactions.last().map_or(0, |row| row.tx))?;
    }
    Ok(())
}

fn one(
    args: &OneArgs,
    ask: impl FnOnce(&seriatim_client::Client, WritePointer) -> Result<Status, Box<dyn Error>>,
) -> Outcome {
    let tx = WritePointer(args.tx);
    let status = ask(&args.target.connect()?, tx)?;
    let report = One { tx: tx.0, status: status.into(), born_ms: tx.ms_since_epoch() };
    args.output.print(&report, |report, out| writeln!(out, "{} is {}", report.tx, report.status))?;
    Ok(ExitCode::SUCCESS)
}
