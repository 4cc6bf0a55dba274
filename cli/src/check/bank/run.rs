//! One run of the check, from an empty directory to its report.

use std::fs;
use std::io::{BufRead, BufReader, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use seriatim_client::ClientOptions;
use seriatim_kv::{Db, Error};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::accounts::Bank;
use super::audit::{Auditor, Findings};
use super::books::Books;
use super::clients::{Client, ClientSetup, Event};
use super::error::{CheckError, doing, running};
use super::messages::Order;
use super::report::Report;
use super::server::{Server, ServerSetup, open_log};
use super::{BankArgs, connect};
use crate::check::HOST_READY;
use crate::check::children::Owned;
use crate::check::host::HostedStore;

/// A client is killed this often.
const CLIENT_KILL_EVERY: Duration = Duration::from_secs(1);
/// One kill in so many strikes between the two writes of a transfer.
const HALF_WAY_ONE_IN: u64 = 4;
/// How long a client may take to get there; then it is killed where it stands.
const HALF_WAY_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a strike at the server waits for an auditor with fresh news; then the run strikes by itself.
const STRIKE_TIMEOUT: Duration = Duration::from_millis(500);
/// News are fresh if they are younger than a sync of lossy storage takes: what was committed so lately is durable only
/// where it became durable before it became visible.
const FRESH: Duration = Duration::from_millis(1);
/// How long clients may take to end their last transfers.
const QUIT_TIMEOUT: Duration = Duration::from_secs(15);
/// The run looks around at least this often.
const LOOK_EVERY: Duration = Duration::from_millis(10);
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
    let directory = Directory::prepare(args.dir.as_deref())?;
    let result = run_in(directory.path(), args, seed, interrupted);
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

fn run_in(directory: &Path, args: &BankArgs, seed: u64, interrupted: Arc<AtomicBool>) -> Result<Report, CheckError> {
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
    let options = ClientOptions { attempts_max: 1, label: "bank-auditors".into(), ..ClientOptions::default() };
    let db = Db::new(store.clone(), connect(server.address(), options)?);
    let bank = Bank::new(args.accounts);
    bank.open(&db).map_err(running("open the accounts"))?;

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
    };
    let findings = setup.findings.clone();
    let auditor = || Auditor::new(&bank, &db, &store, &findings);
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

/// What happens when.
struct Plot<'a> {
    args: &'a BankArgs,
    server: &'a Server,
    setup: ClientSetup,
    heard: Receiver<Event>,
    interrupted: Arc<AtomicBool>,
    random: fastrand::Rng,
    started: Instant,
    clients: Vec<Client>,
    next_number: u32,
    striking: Option<Instant>,
    restarts: u64,
    client_kills: u64,
    half_way_kills: u64,
}

impl<'a> Plot<'a> {
    fn new(
        args: &'a BankArgs,
        server: &'a Server,
        setup: ClientSetup,
        heard: Receiver<Event>,
        interrupted: Arc<AtomicBool>,
    ) -> Plot<'a> {
        let random = fastrand::Rng::with_seed(setup.seed);
        Plot {
            args,
            server,
            setup,
            heard,
            interrupted,
            random,
            started: Instant::now(),
            clients: Vec::new(),
            next_number: 1,
            striking: None,
            restarts: 0,
            client_kills: 0,
            half_way_kills: 0,
        }
    }

    /// Starts the clients and kills whom it must, until the time is over. The server is up when it returns.
    fn play(&mut self) -> Result<(), CheckError> {
        for _ in 0..self.args.clients {
            let client = self.start_client()?;
            self.clients.push(client);
        }
        self.started = Instant::now();
        let end = self.started + Duration::from_secs(self.args.secs);
        let kill_every = (self.args.kill_every > 0).then(|| Duration::from_secs(self.args.kill_every));
        let mut next_server_kill = kill_every.map(|every| self.started + every);
        let mut next_client_kill = self.started + CLIENT_KILL_EVERY;
        let mut progress = Progress::default();
        loop {
            self.hear(LOOK_EVERY)?;
            let now = Instant::now();
            if self.striking.is_none() && now >= end {
                break;
            }
            if let (Some(at), Some(every)) = (next_server_kill, kill_every)
                && now >= at
                && now < end
            {
                next_server_kill = Some(at + every);
                self.striking = Some(now);
                self.server.want_strike();
            }
            if now >= next_client_kill {
                next_client_kill += CLIENT_KILL_EVERY;
                self.choose_victim()?;
            }
            self.kill_stuck_victims(now)?;
            self.mind_server(now)?;
            progress.show(self, now);
        }
        progress.done();
        Ok(())
    }

    /// Lets the clients end their last transfers, and kills who does not.
    fn end_clients(&mut self) -> Result<(), CheckError> {
        for client in &mut self.clients {
            // Who is gone has no ears, and is found below.
            let _ = client.order(Order::Quit);
        }
        let give_up = Instant::now() + QUIT_TIMEOUT;
        while self.clients.iter().any(|client| client.talks) && Instant::now() < give_up {
            self.hear(LOOK_EVERY)?;
        }
        self.clients.iter_mut().for_each(Client::kill);
        Ok(())
    }

    fn report(&self, seed: u64, acknowledged_lost: u64, books: &Books) -> Report {
        let findings = &self.setup.findings;
        let examples = findings.examples.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let report = Report {
            failed: false,
            transfers: books.acknowledged.len() as u64,
            acknowledged_lost,
            snapshot_sum_errors: findings.sum_errors.load(Ordering::Relaxed),
            reads_taken_back: findings.taken_back.load(Ordering::Relaxed),
            duplicate_write_pointers: books.duplicate_write_pointers,
            restarts: self.restarts,
            client_kills: self.client_kills,
            half_way_kills: self.half_way_kills,
            audits: findings.audits.load(Ordering::Relaxed),
            quick_audits: findings.quick_audits.load(Ordering::Relaxed),
            unknown_settled: books.unknown_settled,
            unknown: books.unknown,
            secs: self.args.secs,
            seed,
            examples,
        };
        report.judge()
    }

    fn start_client(&mut self) -> Result<Client, CheckError> {
        let number = self.next_number;
        self.next_number += 1;
        Client::start(&self.setup, number)
    }

    /// Waits for events, at most so long, and sees to all that are there.
    fn hear(&mut self, wait: Duration) -> Result<(), CheckError> {
        if self.interrupted.load(Ordering::SeqCst) {
            return Err(CheckError::Interrupted);
        }
        let mut event = self.heard.recv_timeout(wait).ok();
        while let Some(heard) = event {
            match heard {
                Event::Failed(number, why) => return Err(CheckError::Client { number, why }),
                Event::Talked(number, source) => return Err(CheckError::ClientTalk { number, source }),
                Event::Halted(number) => {
                    if let Some(index) = self.clients.iter().position(|client| client.number == number) {
                        self.half_way_kills += 1;
                        self.replace(index)?;
                    }
                }
                // One that was killed has been replaced, and nobody has its number any more.
                Event::Ended(number) => {
                    if let Some(client) = self.clients.iter_mut().find(|client| client.number == number) {
                        client.talks = false;
                    }
                }
            }
            event = self.heard.try_recv().ok();
        }
        Ok(())
    }

    /// Kills a client, or orders it to stand still where it hurts most, to be killed there.
    fn choose_victim(&mut self) -> Result<(), CheckError> {
        let candidates: Vec<usize> = (0..self.clients.len()).filter(|i| self.clients[*i].halting.is_none()).collect();
        let Some(victim) = self.random.choice(candidates) else { return Ok(()) };
        if !self.clients[victim].talks {
            let number = self.clients[victim].number;
            return Err(CheckError::Client { number, why: "it ended by itself".into() });
        }
        let chosen = self.client_kills + self.clients.iter().filter(|client| client.halting.is_some()).count() as u64;
        if chosen.is_multiple_of(HALF_WAY_ONE_IN) {
            self.clients[victim].halting = Some(Instant::now());
            self.clients[victim].order(Order::Halt).map_err(doing("give a client an order"))
        } else {
            self.replace(victim)
        }
    }

    fn kill_stuck_victims(&mut self, now: Instant) -> Result<(), CheckError> {
        let stuck = |client: &Client| client.halting.is_some_and(|since| now >= since + HALF_WAY_TIMEOUT);
        while let Some(index) = self.clients.iter().position(stuck) {
            self.replace(index)?;
        }
        Ok(())
    }

    fn replace(&mut self, index: usize) -> Result<(), CheckError> {
        self.clients[index].kill();
        self.client_kills += 1;
        self.clients[index] = self.start_client()?;
        Ok(())
    }

    /// Starts a server that was struck again. One that ends unasked is the end of the run.
    fn mind_server(&mut self, now: Instant) -> Result<(), CheckError> {
        let down = self.server.is_down()?;
        match self.striking {
            Some(_) if down => {
                self.server.restart()?;
                self.striking = None;
                self.restarts += 1;
                Ok(())
            }
            Some(since) => {
                if now >= since + STRIKE_TIMEOUT {
                    self.server.strike();
                }
                Ok(())
            }
            None if down => Err(CheckError::Nothing("the server ended by itself")),
            None => Ok(()),
        }
    }
}

/// A line about the run, every second.
#[derive(Default)]
struct Progress {
    shown: Option<u64>,
}

impl Progress {
    fn show(&mut self, plot: &Plot<'_>, now: Instant) {
        let second = (now - plot.started).as_secs();
        if self.shown == Some(second) {
            return;
        }
        self.shown = Some(second);
        let findings = &plot.setup.findings;
        let transfers = plot.setup.books.lock().unwrap_or_else(PoisonError::into_inner).acknowledged.len();
        let [audits, wrong, back] = [&findings.audits, &findings.sum_errors, &findings.taken_back]
            .map(|counter| counter.load(Ordering::Relaxed));
        let (restarts, kills) = (plot.restarts, plot.client_kills);
        let line = format!(
            "{second:>4} s  {transfers} transfers, {audits} audits, {restarts} restarts, {kills} clients killed, \
             {wrong} wrong sums, {back} reads taken back"
        );
        if std::io::stderr().is_terminal() { eprint!("\r{line}\x1b[K") } else { eprintln!("{line}") }
    }

    fn done(&self) {
        if std::io::stderr().is_terminal() {
            eprintln!();
        }
    }
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
