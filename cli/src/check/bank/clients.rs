//! The client processes of a run, from the side of the run.

use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{ChildStdin, ChildStdout, Stdio};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::audit::Findings;
use super::books::Books;
use super::error::{CheckError, doing};
use super::messages::{Message, NoMessage, Order};
use super::record::Record;
use super::server::open_log;
use crate::check::children::Owned;

/// What happened to a client, by its number.
#[derive(Debug)]
pub enum Event {
    /// It stands between its two writes.
    Halted(u32),
    /// It said why it cannot go on.
    Failed(u32, String),
    /// It said something else than it should.
    Talked(u32, NoMessage),
    /// Its output has ended; everything it said before is in the books.
    Ended(u32),
}

/// What all clients of a run are told at their start, and where their words go.
#[derive(Clone)]
pub struct ClientSetup {
    pub server: String,
    pub store: PathBuf,
    pub log: PathBuf,
    pub accounts: u32,
    pub seed: u64,
    pub books: Arc<Mutex<Books>>,
    pub findings: Arc<Findings>,
    pub events: Sender<Event>,
    /// The run's history, if one is written.
    pub record: Option<Arc<Record>>,
}

/// A client process.
pub struct Client {
    /// Its number; every process has its own.
    pub number: u32,
    /// Since when it has been ordered to halt.
    pub halting: Option<Instant>,
    /// False once its output has ended.
    pub talks: bool,
    process: Owned,
    orders: ChildStdin,
    listener: Option<JoinHandle<()>>,
}

impl Client {
    /// Starts a client.
    pub fn start(setup: &ClientSetup, number: u32) -> Result<Client, CheckError> {
        let mut arguments: Vec<String> = vec![
            "check".into(),
            "bank-client".into(),
            "--server".into(),
            setup.server.clone(),
            "--store".into(),
            setup.store.to_string_lossy().into_owned(),
            "--accounts".into(),
            setup.accounts.to_string(),
            "--number".into(),
            number.to_string(),
            "--seed".into(),
            setup.seed.wrapping_add(u64::from(number)).to_string(),
        ];
        if setup.record.is_some() {
            arguments.push("--record".into());
        }
        let log = open_log(&setup.log)?;
        let started =
            Owned::start(arguments, |command| command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log));
        let mut process = started.map_err(doing("start a client"))?;
        let pipes = process.pipes();
        let orders = pipes.stdin.take().expect("asked for above");
        let words = pipes.stdout.take().expect("asked for above");
        let setup = setup.clone();
        let listener = thread::Builder::new()
            .name(format!("client-{number}"))
            .spawn(move || listen(&setup, number, words))
            .map_err(doing("start a thread"))?;
        Ok(Client { number, halting: None, talks: true, process, orders, listener: Some(listener) })
    }

    /// Gives an order. A client that is gone does not hear it; the end of its output tells.
    pub fn order(&mut self, order: Order) -> io::Result<()> {
        self.orders.write_all(format!("{order}\n").as_bytes())
    }

    /// Kills it with SIGKILL and waits until all that it said is in the books.
    pub fn kill(&mut self) {
        self.process.kill();
        if let Some(listener) = self.listener.take() {
            // It panics only if the books are broken, and then nobody reads on.
            let _ = listener.join();
        }
    }
}

fn listen(setup: &ClientSetup, number: u32, words: ChildStdout) {
    // Whoever listens for events may have ended: then the run is over, and this client with it.
    let tell = |event| drop(setup.events.send(event));
    let mut opened = None;
    let add = |row: Option<String>| {
        if let (Some(row), Some(record)) = (row, &setup.record) {
            record.add_line(&row);
        }
    };
    for line in BufReader::new(words).lines() {
        let Ok(line) = line else { break };
        let message = match line.parse::<Message>() {
            Ok(message) => message,
            Err(error) => {
                tell(Event::Talked(number, error));
                break;
            }
        };
        let acknowledged = setup.books.lock().unwrap_or_else(PoisonError::into_inner).note(number, &message);
        if let Some(csn) = acknowledged {
            setup.findings.saw(csn);
        }
        match message {
            // Of the one before nobody heard how it ended.
            Message::Opened(row) => add(opened.replace(row)),
            Message::Closed(row) => {
                opened = None;
                add(Some(row));
            }
            Message::Halted(_) => tell(Event::Halted(number)),
            Message::Failed(why) => tell(Event::Failed(number, why)),
            _ => {}
        }
    }
    add(opened);
    tell(Event::Ended(number));
}
