//! Who is started, killed and started again, and when.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::BankArgs;
use super::books::Books;
use super::clients::{Client, ClientSetup, Event};
use super::error::{CheckError, doing};
use super::messages::Order;
use super::report::Report;
use super::server::Server;

/// A client is killed this often.
const CLIENT_KILL_EVERY: Duration = Duration::from_secs(1);
/// One kill in so many strikes between the two writes of a transfer.
const HALF_WAY_ONE_IN: u64 = 4;
/// How long a client may take to get there; then it is killed where it stands.
const HALF_WAY_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a strike at the server waits for an auditor with fresh news; then the run strikes by itself.
const STRIKE_TIMEOUT: Duration = Duration::from_millis(500);
/// How long clients may take to end their last transfers.
const QUIT_TIMEOUT: Duration = Duration::from_secs(15);
/// The run looks around at least this often.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// The course of a run.
pub struct Plot<'a> {
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
    pub fn new(
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
    pub fn play(&mut self) -> Result<(), CheckError> {
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
    pub fn end_clients(&mut self) -> Result<(), CheckError> {
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

    pub fn report(&self, seed: u64, acknowledged_lost: u64, books: &Books) -> Report {
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
