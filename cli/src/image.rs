//! `seriatim image`: the published state as a file.

use std::fs::{self, OpenOptions};
use std::io::{self, BufWriter, IsTerminal, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde::Serialize;
use seriatim_net::SavedState;

use crate::output::{Outcome, OutputArgs};
use crate::status::duration;
use crate::target::TargetArgs;

/// The published state as a file
#[derive(Subcommand)]
pub enum ImageCommand {
    /// Write an image of a server's published state to a file, or to standard output
    Dump(DumpArgs),
    /// Show what an image file holds
    Show(ShowArgs),
}

/// Where to.
#[derive(Args)]
pub struct DumpArgs {
    /// The file; `-` is standard output. It appears whole or not at all
    #[arg(value_name = "FILE")]
    to: PathBuf,
    #[command(flatten)]
    target: TargetArgs,
}

/// Which file.
#[derive(Args)]
pub struct ShowArgs {
    /// The file; `-` is standard input. An image of a data directory will do
    #[arg(value_name = "FILE")]
    from: PathBuf,
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Serialize)]
struct Shown {
    store: String,
    record: u64,
    written_ms: u64,
    stopped_cleanly: bool,
    commits: u64,
    read_pointer: u64,
    window_end: u64,
    sequencer_time_ms: u64,
    open: u64,
    /// Pointers of transactions that took checkpoints are counted with them.
    invalid: u64,
    outcomes: u64,
    stores: u64,
}

/// Runs a command.
pub fn run(command: &ImageCommand) -> Outcome {
    match command {
        ImageCommand::Dump(args) => dump(args),
        ImageCommand::Show(args) => show(args),
    }
}

fn dump(args: &DumpArgs) -> Outcome {
    if args.to == Path::new("-") {
        if io::stdout().is_terminal() {
            return Err("an image is binary, and standard output is a terminal: name a file or a pipe".into());
        }
        let mut out = io::stdout().lock();
        args.target.connect()?.dump_image(&mut out)?;
        out.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    let client = args.target.connect()?;
    let named = |error: io::Error| format!("write {}: {error}", args.to.display());
    // A link stands for what it points to, and what is no file (a device, a pipe) is written to, not replaced.
    let to = fs::canonicalize(&args.to).unwrap_or_else(|_| args.to.clone());
    if fs::metadata(&to).is_ok_and(|there| !there.is_file()) {
        let mut out = BufWriter::new(OpenOptions::new().write(true).open(&to).map_err(named)?);
        client.dump_image(&mut out)?;
        out.flush().map_err(named)?;
        return Ok(ExitCode::SUCCESS);
    }
    let directory = to.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // Removed again if anything fails on the way.
    let part =
        tempfile::Builder::new().prefix(".image-").suffix(".part").permissions(world_readable()).tempfile_in(directory);
    let mut out = BufWriter::new(part.map_err(named)?);
    client.dump_image(&mut out)?;
    let part = out.into_inner().map_err(|error| named(error.into_error()))?;
    part.as_file().sync_all().map_err(named)?;
    part.persist(&to).map_err(|error| named(error.error))?;
    Ok(ExitCode::SUCCESS)
}

/// As files are made everywhere, less what the user's mask takes away.
fn world_readable() -> fs::Permissions {
    fs::Permissions::from_mode(0o666)
}

fn show(args: &ShowArgs) -> Outcome {
    let read = if args.from == Path::new("-") {
        let mut file = Vec::new();
        io::stdin().lock().read_to_end(&mut file).map(|_| file)
    } else {
        fs::read(&args.from)
    };
    let named = |error: &dyn std::fmt::Display| format!("read {}: {error}", args.from.display());
    let file = read.map_err(|error| named(&error))?;
    let SavedState { store, lsn, written_ms, published } = SavedState::read(&file).map_err(|error| named(&error))?;
    let shown = Shown {
        store: store.to_string(),
        record: lsn,
        written_ms,
        stopped_cleanly: published.stopped_cleanly(),
        commits: published.csn().0,
        read_pointer: published.read_pointer().0,
        window_end: published.window_end().0,
        sequencer_time_ms: published.time().0,
        open: published.open_len() as u64,
        invalid: published.invalid().len(),
        outcomes: published.outcomes_len() as u64,
        stores: published.stores().len() as u64,
    };
    args.output.print(&shown, |shown, out| {
        let stop = if shown.stopped_cleanly { ", after a clean stop" } else { "" };
        writeln!(out, "store {}, up to record {}{stop}", shown.store, shown.record)?;
        writeln!(out, "{} commits, read pointer {}", shown.commits, shown.read_pointer)?;
        writeln!(
            out,
            "{} open, {} invalid, {} outcomes, {} stores",
            shown.open, shown.invalid, shown.outcomes, shown.stores
        )?;
        writeln!(out, "window up to {}, {} of sequencer time", shown.window_end, duration(shown.sequencer_time_ms))
    })?;
    Ok(ExitCode::SUCCESS)
}
