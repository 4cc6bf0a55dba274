//! One run of the check, from an empty directory to its report.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use seriatim_client::ClientOptions;
use seriatim_history::{Outcome, Row};
use seriatim_kv::{Db, Error};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::accounts::{Bank, Opened};
use super::audit::{Auditor, Findings};
use super::books::Books;
use super::clients::ClientSetup;
use super::error::{CheckError, doing, running};
use super::plot::Plot;
use super::record::{self, Record};
use super::report::Report;
use super::server::{Server, ServerSetup, open_log};
use super::{BankArgs, connect};
use crate::check::HOST_READY;
use crate::check::children::Owned;
use crate::check::host::HostedStore;

/// News are fresh if they are younger than a sync of lossy storage takes: what was committed so lately is durable only
/// where it became durable before it became visible.
const FRESH: Duration = Duration::from_millis(1);
/// Pause of a full auditor between two audits, so that it leaves the machine to the clients.
const AUDIT_PAUSE: Duration = Duration::from_millis(20);
/// Pause of a quick auditor, while no strike is wanted.
const QUICK_AUDIT_PAUSE: Duration = Duration::from_millis(2);
/// Pause of an auditor whose question was not answered because the server is down.
const SERVER_DOWN_PAUSE: Duration = Duration::from_millis(1);
/// Quick auditors.
const QUICK_AUDITORS: usize = 2;

/// Carries the check out.
pub fn run(args: &BankArgs) -> Result<Report, CheckError> {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, interrupted.clone()).map_err(doing("catch signals"))?;
    }
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    eprintln!("seed {seed}");
    let record = args.history.as_deref().map(Record::create).transpose()?.map(Arc::new);
    let directory = Directory::prepare(args.dir.as_deref())?;
    let result = run_in(directory.path(), args, seed, record.clone(), interrupted);
    let result = result.and_then(|report| record.map_or(Ok(()), |record| record.finish()).map(|()| report));
    let is_of_use = match &result {
        Ok(report) => report.failed && args.plant.is_none(),
        Err(CheckError::Interrupted) => false,
        Err(_) => true,
    };
    if is_of_use {
        directory.keep();
    }
    result
}

fn run_in(
    directory: &Path,
    args: &BankArgs,
    seed: u64,
    record: Option<Arc<Record>>,
    interrupted: Arc<AtomicBool>,
) -> Result<Report, CheckError> {
    let path = |name: &str| directory.join(name);
    let _host = start_host(directory)?;
    let server = Server::start(ServerSetup {
        data: path("server"),
        ports_file: path("ports"),
        log: path("server.log"),
        storage: args.storage,
        plant: args.plant,
    })?;
    let store = Arc::new(HostedStore::new(&path("store.sock")));
    // The run looks again by itself, and sooner than the client would.
    let (label, request_timeout) = ("bank-auditors".into(), Duration::from_secs(10));
    let options = ClientOptions { attempts_max: 1, request_timeout, label, ..ClientOptions::default() };
    let db = Db::new(store.clone(), connect(server.address(), options)?);
    let bank = Bank::new(args.accounts);
    for opened in bank.open(&db).map_err(running("open the accounts"))? {
        if let Some(record) = &record {
            record.add(&opening(opened));
        }
    }

    let (events, heard) = mpsc::channel();
    let setup = ClientSetup {
        server: server.address().to_string(),
        store: path("store.sock"),
        log: path("clients.log"),
        accounts: args.accounts,
        seed,
        books: Arc::new(Mutex::new(Books::default())),
        findings: Arc::new(Findings::default()),
        events,
        record: record.clone(),
    };
    let findings = setup.findings.clone();
    let auditor = || Auditor::new(&bank, &db, &store, &findings, record.as_deref());
    let audits_end = AtomicBool::new(false);
    let report = thread::scope(|scope| {
        // Dropped by an error or a panic as well, so that the scope does not wait for auditors for ever.
        let ends_audits = RaiseOnDrop(&audits_end);
        let mut auditors: Vec<_> = (0..QUICK_AUDITORS)
            .map(|_| scope.spawn(|| watch(auditor(), &audits_end, |auditor| quick_watch(auditor, &server))))
            .collect();
        auditors.push(scope.spawn(|| {
            watch(auditor(), &audits_end, |auditor| {
                auditor.audit()?;
                thread::sleep(AUDIT_PAUSE);
                Ok(())
            })
        }));

        let mut plot = Plot::new(args, &server, setup.clone(), heard, interrupted.clone());
        plot.play()?;
        plot.end_clients()?;
        drop(ends_audits);
        let mut seen = Vec::new();
        for auditor in auditors {
            // An auditor that panicked takes the run with it.
            let watched = auditor.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            seen.push(watched.map_err(running("audit"))?);
        }
        let books = setup.books.lock().unwrap_or_else(PoisonError::into_inner);
        let lost = auditor().close(seen, &books).map_err(running("make the last audit"))?;
        Ok(plot.report(seed, lost, &books))
    })?;
    server.end();
    if report.transfers == 0 {
        return Err(CheckError::Nothing("no transfer was acknowledged"));
    }
    Ok(report)
}

/// The transaction that opened accounts, as a row of the history.
fn opening(opened: Opened) -> Row {
    Row {
        tx: Some(opened.tx.0),
        label: Some("opening".into()),
        writes: opened.accounts.map(record::account_key).collect(),
        outcome: Outcome::Committed,
        csn: opened.csn.map(|csn| csn.0),
        ..Row::default()
    }
}

/// Runs an auditor until the run ends. Questions that a server which is down did not answer are asked again.
fn watch<'a>(
    mut auditor: Auditor<'a>,
    end: &AtomicBool,
    mut look: impl FnMut(&mut Auditor<'a>) -> Result<(), Error>,
) -> Result<Auditor<'a>, Error> {
    while !end.load(Ordering::SeqCst) {
        match look(&mut auditor) {
            Ok(()) => {}
            Err(Error::Transport(error)) if error.transient => thread::sleep(SERVER_DOWN_PAUSE),
            Err(Error::SnapshotTooOld { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(auditor)
}

/// A quick audit; and if one is wanted, a strike at the server at the worst of moments: as soon as somebody has seen what
/// was committed just now.
fn quick_watch(auditor: &mut Auditor<'_>, server: &Server) -> Result<(), Error> {
    auditor.quick_audit(|age| {
        if age <= FRESH {
            server.strike();
        }
    })?;
    if !server.is_strike_wanted() {
        thread::sleep(QUICK_AUDIT_PAUSE);
    }
    Ok(())
}

struct RaiseOnDrop<'a>(&'a AtomicBool);

impl Drop for RaiseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Where a run keeps its files.
enum Directory {
    /// The user's.
    Given(PathBuf),
    /// Removed in the end, unless it is kept.
    Temporary(tempfile::TempDir),
}

impl Directory {
    fn prepare(given: Option<&Path>) -> Result<Directory, CheckError> {
        let Some(given) = given else {
            let temporary = tempfile::Builder::new().prefix("seriatim-bank-").tempdir();
            return temporary.map(Directory::Temporary).map_err(doing("make a temporary directory"));
        };
        fs::create_dir_all(given).map_err(doing("make the directory"))?;
        if fs::read_dir(given).map_err(doing("read the directory"))?.next().is_some() {
            return Err(CheckError::DirectoryInUse(given.to_path_buf()));
        }
        // Absolute, for the processes that are told of it.
        given.canonicalize().map(Directory::Given).map_err(doing("find the directory"))
    }

    fn path(&self) -> &Path {
        match self {
            Directory::Given(path) => path,
            Directory::Temporary(directory) => directory.path(),
        }
    }

    fn keep(self) {
        if let Directory::Temporary(directory) = self {
            eprintln!("everything of this run is kept in {}", directory.keep().display());
        }
    }
}

/// Starts the store's host and waits until it listens.
fn start_host(directory: &Path) -> Result<Owned, CheckError> {
    let text = |name: &str| directory.join(name).to_string_lossy().into_owned();
    let arguments =
        ["check".into(), "store-host".into(), "--socket".into(), text("store.sock"), "--dir".into(), text("store")];
    let log = open_log(&directory.join("store.log"))?;
    let started = Owned::start::<String>(arguments, |command| command.stdout(Stdio::piped()).stderr(log));
    let mut host = started.map_err(doing("start the store's host"))?;
    let words = host.pipes().stdout.take().expect("asked for above");
    let mut line = String::new();
    BufReader::new(words).read_line(&mut line).map_err(doing("hear from the store's host"))?;
    if line.trim_end() == HOST_READY { Ok(host) } else { Err(CheckError::HostSilent) }
}
