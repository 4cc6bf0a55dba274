//! A client process: it moves money until it is told to quit, or killed.

use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use seriatim_core::{BeginOptions, ChangeSet, CleanBound, CommitNumber, Snapshot, Status, StoreName, WritePointer};
use seriatim_kv::{
    BeginFailure, Begun, CommitFailure, Coordinator, Db, Error, Page, PageLimits, RetryPolicy, RunOptions, Store,
    StoreError, StoreFailure, TransportError, Versions,
};

use super::accounts::{ACCOUNTS_MIN, Bank, TransferId};
use super::messages::{Message, Order};
use super::record;
use super::scribe::Scribe;
use crate::check::host::HostedStore;

/// A client of the bank check; started by it, never by hand.
#[derive(Clone, Debug, clap::Args)]
pub struct ClientArgs {
    /// Address of the server.
    #[arg(long)]
    pub server: String,
    /// Socket of the store's host.
    #[arg(long)]
    pub store: PathBuf,
    /// Accounts in the bank.
    #[arg(long, value_parser = clap::value_parser!(u32).range(i64::from(ACCOUNTS_MIN)..))]
    pub accounts: u32,
    /// This client's number: no two clients of a run have the same.
    #[arg(long)]
    pub number: u32,
    /// Chooses the transfers.
    #[arg(long)]
    pub seed: u64,
    /// Tell what each transaction read and wrote.
    #[arg(long)]
    pub record: bool,
}

/// Attempts at one transfer: a server that is down for some seconds must not end a client.
const ATTEMPTS_MAX: u32 = 10_000;
/// Longest pause between attempts.
const PAUSE_MAX: Duration = Duration::from_millis(20);

/// Moves money over `coordinator` until told to quit.
///
/// # Errors
/// If the store or the sequencer failed in a way that no restart of the server explains.
pub fn run(args: &ClientArgs, coordinator: impl Coordinator) -> Result<(), Error> {
    let orders = Arc::new(Orders::default());
    let listener = orders.clone();
    // Not joined: it sits in a read, and ends with the process.
    thread::spawn(move || listener.listen(io::stdin().lock()));
    let result = move_money(args, coordinator, &orders);
    if let Err(error) = &result {
        say(&Message::Failed(with_causes(error)));
    }
    result
}

fn move_money(args: &ClientArgs, coordinator: impl Coordinator, orders: &Arc<Orders>) -> Result<(), Error> {
    let bank = Bank::new(args.accounts);
    let store = Halting { store: HostedStore::new(&args.store), orders: orders.clone(), last: AtomicU64::new(0) };
    let scribe = args.record.then(|| Arc::new(Scribe::new(args.number)));
    let db = Db::new(store, Telling { coordinator, scribe: scribe.clone() });
    let mut random = fastrand::Rng::with_seed(args.seed);
    let retry = RetryPolicy { attempts_max: ATTEMPTS_MAX, pause_max: PAUSE_MAX, ..RetryPolicy::default() };
    for sequence in 0.. {
        let order = orders.now();
        let plan = match order {
            Some(Order::Quit) => break,
            Some(Order::Halt) => bank.quiet_plan(&mut random),
            None => bank.plan(&mut random),
        };
        if order == Some(Order::Halt) {
            orders.halt_in_next_transfer();
        }
        let id = TransferId { client: args.number, sequence };
        let done = db.run_with(RunOptions { retry, ..RunOptions::default() }, |tx| {
            let moved = bank.transfer(tx, id, plan)?;
            say_all(scribe.as_ref().and_then(|scribe| scribe.moves(id, &moved)));
            Ok(())
        });
        match done {
            Ok(done) => {
                let csn = done.csn.expect("a transfer writes");
                say(&Message::Acknowledged { sequence, tx: done.tx, csn });
            }
            Err(Error::Unknown { .. }) => say(&Message::Unknown { sequence }),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// An error and its causes in one line, none said twice.
fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.ends_with(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// Says something, if there is something.
fn say_all(message: Option<Message>) {
    message.iter().for_each(say);
}

/// Writes a line, whole, or ends the process: without its run a client has no business.
fn say(message: &Message) {
    let line = format!("{message}\n");
    if io::stdout().lock().write_all(line.as_bytes()).is_err() {
        std::process::exit(1);
    }
}

/// The last order that came.
#[derive(Default)]
struct Orders {
    /// 0 before the first one.
    state: AtomicU8,
}

/// Ordered to halt; the transfer under way may have chosen its accounts before.
const TO_HALT: u8 = 1;
/// The transfer under way is between quiet accounts and halts after its first write.
const HALTS_NOW: u8 = 2;
const TO_QUIT: u8 = 3;

impl Orders {
    fn listen(&self, input: impl BufRead) {
        for line in input.lines() {
            let state = match line.map(|line| line.parse()) {
                Ok(Ok(Order::Halt)) => TO_HALT,
                Ok(Ok(Order::Quit)) | Err(_) => TO_QUIT,
                Ok(Err(_)) => continue,
            };
            self.state.store(state, Ordering::SeqCst);
        }
        self.state.store(TO_QUIT, Ordering::SeqCst);
    }

    fn now(&self) -> Option<Order> {
        match self.state.load(Ordering::SeqCst) {
            TO_HALT => Some(Order::Halt),
            TO_QUIT => Some(Order::Quit),
            _ => None,
        }
    }

    fn halt_in_next_transfer(&self) {
        // Quit may have come in between, and wins.
        let _ = self.state.compare_exchange(TO_HALT, HALTS_NOW, Ordering::SeqCst, Ordering::SeqCst);
    }

    fn halts_now(&self) -> bool {
        self.state.load(Ordering::SeqCst) == HALTS_NOW
    }
}

/// The store, but for one order: it stands still before a transaction's second write.
struct Halting<S> {
    store: S,
    orders: Arc<Orders>,
    /// Whose write was the last one.
    last: AtomicU64,
}

impl<S: Store> Store for Halting<S> {
    const VERSIONED: bool = S::VERSIONED;

    fn put(&self, row: &[u8], version: WritePointer, value: Option<&[u8]>) -> Result<(), StoreError> {
        let second = self.last.swap(version.0, Ordering::Relaxed) == version.0;
        if second && self.orders.halts_now() {
            say(&Message::Halted(version));
            loop {
                thread::park();
            }
        }
        self.store.put(row, version, value)
    }

    fn remove(&self, row: &[u8], version: WritePointer) -> Result<(), StoreError> {
        self.store.remove(row, version)
    }

    fn versions(&self, row: &[u8], at_most: WritePointer, limit: usize) -> Result<Versions, StoreError> {
        self.store.versions(row, at_most, limit)
    }

    fn scan(&self, start: &[u8], end: &[u8], at_most: WritePointer, limits: PageLimits) -> Result<Page, StoreError> {
        self.store.scan(start, end, at_most, limits)
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.store.flush()
    }
}

/// The sequencer, with a line about every pointer received and every doubt settled, and what the scribe makes of it.
struct Telling<C> {
    coordinator: C,
    scribe: Option<Arc<Scribe>>,
}

impl<C: Coordinator> Coordinator for Telling<C> {
    fn begin(&self, options: BeginOptions) -> Result<Begun, BeginFailure> {
        let sent = record::now();
        let begun = self.coordinator.begin(options)?;
        if let Some(scribe) = &self.scribe {
            scribe.began(sent, &begun);
        }
        say(&Message::Began(begun.tx));
        Ok(begun)
    }

    fn commit(&self, tx: WritePointer, changes: ChangeSet) -> Result<CommitNumber, CommitFailure> {
        let sent = record::now();
        let answer = self.coordinator.commit(tx, changes);
        say_all(self.scribe.as_ref().and_then(|scribe| scribe.committed(sent, &answer)));
        answer
    }

    fn abort(&self, tx: WritePointer) -> Result<Status, TransportError> {
        self.coordinator.abort(tx)
    }

    fn invalidate(&self, tx: WritePointer) -> Result<bool, TransportError> {
        self.coordinator.invalidate(tx)
    }

    fn settle(&self, tx: WritePointer) -> Result<Status, TransportError> {
        let sent = record::now();
        let status = self.coordinator.settle(tx)?;
        say(&Message::Settled);
        say_all(self.scribe.as_ref().and_then(|scribe| scribe.settled(sent, status)));
        Ok(status)
    }

    fn snapshot(&self) -> Result<Arc<Snapshot>, TransportError> {
        self.coordinator.snapshot()
    }

    fn snapshot_age_max(&self) -> Duration {
        self.coordinator.snapshot_age_max()
    }

    fn register_store(&self, name: &StoreName) -> Result<bool, StoreFailure> {
        self.coordinator.register_store(name)
    }

    fn clean_bound(&self) -> Result<CleanBound, TransportError> {
        self.coordinator.clean_bound()
    }

    fn store_cleaned(&self, name: &StoreName, bound: WritePointer) -> Result<(), StoreFailure> {
        self.coordinator.store_cleaned(name, bound)
    }
}
