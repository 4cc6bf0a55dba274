//! `seriatim serve`: a server in the foreground.

use std::error::Error;
use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde::Serialize;
use seriatim_core::LabelRetention;
use seriatim_net::{Planted, Server, ServerOptions, Stop, StorageKind};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::output::{Outcome, OutputArgs};

/// Name of the file that marks a directory whose log was written by a planted server.
const PLANTED_MARK: &str = "planted";

/// Run a server in the foreground
#[derive(Args)]
pub struct ServeArgs {
    /// Directory of the log and its images; made if it is not there
    #[arg(long, value_name = "DIR", default_value = "seriatim-data")]
    data: PathBuf,
    /// Where clients connect; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7600")]
    listen: SocketAddr,
    /// A Unix socket to listen on as well
    #[arg(long, value_name = "PATH")]
    unix: Option<PathBuf>,
    /// Write the addresses to this file as JSON, by rename, once they are listened on
    #[arg(long, value_name = "FILE")]
    ports_file: Option<PathBuf>,
    /// Where the log is kept
    #[arg(long, value_enum, default_value_t = Storage::Disk)]
    storage: Storage,
    /// For development: nothing outlives the process (the same as --storage memory)
    #[arg(long, conflicts_with = "storage")]
    dev: bool,
    /// Listen beyond loopback, where nothing is encrypted and everybody is trusted
    #[arg(long)]
    trust_network: bool,
    /// Follow the wall clock though it is more than 7 days past the last durable time
    #[arg(long)]
    accept_clock: bool,
    /// Transactions that may be open at once
    #[arg(long, value_name = "N", default_value_t = 1 << 20)]
    open_max: u32,
    /// Megabytes of the conflict index
    #[arg(long, value_name = "MB", default_value_t = 256)]
    conflict_index_mb: usize,
    /// Seconds for which somebody may read through a snapshot without a transaction
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u32).range(..=86_400))]
    snapshot_age_secs: u32,
    /// Seconds after its deadline in which a write of an invalid transaction may still reach a store
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u32).range(..=86_400))]
    write_delay_secs: u32,
    /// How long labels of transactions are kept
    #[arg(long, value_enum, default_value_t = Labels::Committed)]
    labels: Labels,
    #[command(flatten)]
    output: OutputArgs,
    /// A bug to plant, so that a check can show that it fails
    #[arg(long, value_enum, hide = true)]
    plant: Option<Plant>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Storage {
    /// Files, synced before anything is acknowledged
    Disk,
    /// Nothing outlives the process
    Memory,
    /// Files, but what is not synced dies with the process: a killed server loses what a power cut would take
    Lossy,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Labels {
    /// Not at all
    Off,
    /// While the transaction is open
    Active,
    /// And among the last commits, so that a conflict names its winner's
    Committed,
}

#[derive(Clone, Copy, ValueEnum)]
enum Plant {
    LostUpdate,
    EarlyVisible,
    AbortOnDisconnect,
}

/// Runs the command.
pub fn run(args: &ServeArgs) -> Outcome {
    let storage = match (args.dev, args.storage) {
        (true, _) | (_, Storage::Memory) => StorageKind::Memory,
        (_, Storage::Disk) => StorageKind::Disk(args.data.clone()),
        (_, Storage::Lossy) => StorageKind::Lossy(args.data.clone()),
    };
    let mut options = ServerOptions::new(storage.clone());
    options.listen = args.listen;
    options.unix = args.unix.clone();
    options.trust_network = args.trust_network;
    options.pipeline.accept_clock = args.accept_clock;
    options.pipeline.on_replay = |commits| eprintln!("seriatim: recovering, {commits} commits replayed");
    options.pipeline.snapshot_age_ms = args.snapshot_age_secs * 1000;
    options.pipeline.write_delay_ms = u64::from(args.write_delay_secs) * 1000;
    options.pipeline.limits.open_max = args.open_max;
    options.pipeline.limits.conflict_index_bytes = args.conflict_index_mb << 20;
    options.pipeline.limits.labels = match args.labels {
        Labels::Off => LabelRetention::Off,
        Labels::Active => LabelRetention::Active,
        Labels::Committed => LabelRetention::Committed,
    };
    options.plant = match args.plant {
        None => Planted::Nothing,
        Some(Plant::LostUpdate) => Planted::LostUpdate,
        Some(Plant::EarlyVisible) => Planted::EarlyVisible,
        Some(Plant::AbortOnDisconnect) => Planted::AbortOnDisconnect,
    };
    let directory = (storage != StorageKind::Memory).then_some(args.data.as_path());
    if let Some(directory) = directory {
        check_mark(directory, args.plant.is_some())?;
    }
    let server = Server::start(options)?;
    if let Some(directory) = directory.filter(|_| args.plant.is_some()) {
        fs::write(
            directory.join(PLANTED_MARK),
            "The log in this directory was written by a server with a planted bug.\n",
        )?;
    }
    stop_on_signals(server.stop_handle())?;
    if let Some(file) = &args.ports_file
        && let Err(error) = write_ports(file, &server)
    {
        // Nobody was served, but the log was opened: leave it as a stop leaves it.
        server.stop_handle().stop();
        server.run()?;
        return Err(format!("write the ports file {}: {error}", file.display()).into());
    }
    args.output.print(&Started::of(&server, args, directory), say_hello)?;
    server.run()?;
    eprintln!(
        "seriatim: stopped; everything acknowledged is {}",
        if directory.is_some() { "on disk" } else { "forgotten" }
    );
    Ok(ExitCode::SUCCESS)
}

/// A planted server works in directories that planted servers made, and no other server does.
fn check_mark(directory: &Path, planted: bool) -> Result<(), Box<dyn Error>> {
    let is_marked = directory.join(PLANTED_MARK).exists();
    let is_new = fs::read_dir(directory).map_or(true, |mut entries| entries.next().is_none());
    let directory = directory.display();
    match (planted, is_marked) {
        (true, false) if !is_new => {
            Err(format!("{directory} was not made by a planted server: name a new directory for the planted bug")
                .into())
        }
        (false, true) => {
            Err(format!("{directory} was written by a server with a planted bug: name another directory").into())
        }
        _ => Ok(()),
    }
}

fn stop_on_signals(stop: Stop) -> io::Result<()> {
    let mut signals = Signals::new([SIGTERM, SIGINT])?;
    std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for _ in signals.forever() {
            stop.stop();
        }
    })?;
    Ok(())
}

/// Writes the addresses where other programs look for them: whole, or not at all.
fn write_ports(file: &Path, server: &Server) -> io::Result<()> {
    let ports = serde_json::json!({ "client": server.address().to_string() });
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.tmp", std::process::id()));
    let temporary = file.with_file_name(name);
    fs::write(&temporary, format!("{ports}\n"))?;
    fs::rename(&temporary, file)
}

/// What a server says when it starts.
#[derive(Serialize)]
struct Started {
    version: &'static str,
    address: String,
    unix: Option<PathBuf>,
    data: Option<PathBuf>,
    durable: bool,
    storage: String,
    new_store: bool,
    clean: bool,
    replayed_commits: u64,
    open: u64,
    notes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    planted: Option<String>,
}

impl Started {
    fn of(server: &Server, args: &ServeArgs, directory: Option<&Path>) -> Started {
        let report = server.report();
        Started {
            version: env!("CARGO_PKG_VERSION"),
            address: server.address().to_string(),
            unix: args.unix.clone(),
            data: directory.map(Path::to_owned),
            durable: server.is_durable(),
            storage: server.write_path().to_owned(),
            new_store: report.new_store,
            clean: report.clean,
            replayed_commits: report.commits,
            open: report.open,
            notes: report.notes.clone(),
            planted: args.plant.and_then(|plant| Some(plant.to_possible_value()?.get_name().to_owned())),
        }
    }
}

fn say_hello(started: &Started, out: &mut dyn Write) -> io::Result<()> {
    let Started { version, address, storage, .. } = started;
    match &started.data {
        Some(directory) => {
            writeln!(out, "seriatim {version} serves {}, {storage}", directory.display())?;
            match started.new_store {
                true => writeln!(out, "a new store")?,
                false => writeln!(
                    out,
                    "recovered after a {}: {} commits replayed, {} transactions open",
                    if started.clean { "clean stop" } else { "crash" },
                    started.replayed_commits,
                    started.open
                )?,
            }
        }
        None => writeln!(out, "seriatim {version} serves from memory: nothing outlives this process")?,
    }
    for note in &started.notes {
        writeln!(out, "note: {note}")?;
    }
    if let Some(plant) = &started.planted {
        writeln!(out, "PLANTED: this server is broken on purpose ({plant})")?;
    }
    writeln!(out, "listening on {address}")?;
    if let Some(path) = &started.unix {
        writeln!(out, "         and unix:{}", path.display())?;
    }
    writeln!(out, "next:  seriatim status --addr {address}")?;
    writeln!(out, "       seriatim bench tx --addr {address}")
}
