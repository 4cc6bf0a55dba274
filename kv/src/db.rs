//! A database: a store and a sequencer, and transactions over both.

#[cfg(all(feature = "fjall", feature = "embedded"))]
use std::path::Path;
#[cfg(feature = "embedded")]
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use seriatim_core::{BeginOptions, CommitNumber, Isolation, SHORT_TIMEOUT_MS_DEFAULT, StoreName, WritePointer};

use crate::clean::{Cleaned, clean};
use crate::coordinator::Coordinator;
#[cfg(all(feature = "fjall", feature = "embedded"))]
use crate::error::BoxError;
use crate::error::Error;
use crate::finish::{Open, finish};
use crate::read::Good;
use crate::retry::RetryPolicy;
use crate::row::Table;
use crate::store::{DynStore, Store};
use crate::tx::Tx;
use crate::view::View;

/// Tables in a store, with transactions that a sequencer orders. Clones share both.
#[derive(Clone)]
pub struct Db {
    inner: Arc<Inner>,
}

struct Inner {
    store: Box<dyn DynStore>,
    coordinator: Box<dyn Coordinator>,
}

/// How one transaction is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct RunOptions {
    /// Default [`Isolation::Snapshot`]. Under [`Isolation::Serializable`] what was read is checked at the commit as well:
    /// keys against every writer, ranges against writers that are serializable too; see the crate's page.
    pub isolation: Isolation,
    /// Deadline of each attempt in ms; `None` is the sequencer's default, 30 s. At most 24 h.
    pub timeout_ms: Option<u64>,
    /// Bounds on attempts and pauses.
    pub retry: RetryPolicy,
}

/// A transaction that ran to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done<T> {
    /// What the closure returned.
    pub value: T,
    /// The transaction.
    pub tx: WritePointer,
    /// Its place in the order of commits; `None` if it wrote nothing and so had nothing to commit.
    pub csn: Option<CommitNumber>,
    /// How often the closure ran.
    pub attempts: u32,
    /// True if the commit's answer was lost and the outcome was learned by asking.
    pub settled: bool,
}

impl Db {
    /// A database over a store and a sequencer. Everyone who writes to the store's tables must use the same sequencer.
    ///
    /// A store that keeps only the newest version does not compile here.
    pub fn new<S: Store, C: Coordinator>(store: S, coordinator: C) -> Db {
        const { assert!(S::VERSIONED, "snapshots need a store that keeps old versions") };
        Db { inner: Arc::new(Inner { store: Box::new(store), coordinator: Box::new(coordinator) }) }
    }

    /// A database in a directory of its own: a fjall store in `store`, and a durable sequencer in `log`, both in this
    /// process. They are made if they are not there; what is there is recovered.
    ///
    /// A commit is durable in both before it is acknowledged. The last clone to be dropped stops both cleanly.
    ///
    /// # Errors
    /// If the directory cannot be used: another process has it open, or what is there cannot be recovered.
    #[cfg(all(feature = "fjall", feature = "embedded"))]
    pub fn open(directory: impl AsRef<Path>) -> Result<Db, Error> {
        let directory = directory.as_ref();
        let failed = |source: BoxError| Error::Open { directory: directory.to_path_buf(), source };
        let sequencer = seriatim_net::Embedded::open(directory.join("log"), &seriatim_net::Options::default())
            .map_err(|error| failed(error.into()))?;
        let store = crate::FjallStore::open(directory.join("store"), crate::Durability::Sync)
            .map_err(|error| failed(error.into()))?;
        Ok(Db::new(store, sequencer))
    }

    /// A database in memory, with a sequencer in this process: for tests and first steps. Nothing survives it.
    ///
    /// # Errors
    /// If the sequencer's memory cannot be had, 256 MiB for its conflict index.
    #[cfg(feature = "embedded")]
    pub fn in_memory() -> Result<Db, Error> {
        let sequencer = seriatim_net::Embedded::in_memory(&seriatim_net::Options::default())
            .map_err(|error| Error::Open { directory: PathBuf::new(), source: error.into() })?;
        Ok(Db::new(crate::MemoryStore::new(), sequencer))
    }

    /// The table of this name; see [`Table::new`].
    pub fn table(&self, name: &str) -> Table {
        Table::new(name)
    }

    /// Runs a transaction: the closure reads at a snapshot and buffers writes, which are then committed together.
    ///
    /// On a conflict, or where the transaction was refused for another passing reason, the closure is run again on a
    /// new snapshot after a short random pause, so it should have no effects outside of `tx`. If it fails or panics,
    /// the transaction is aborted and has written nothing. `Ok` means that the commit is durable and visible to every
    /// snapshot that is taken from now on.
    ///
    /// # Errors
    /// Whatever the closure returned, or why the transaction did not commit; only where [`Error::outcome`] is
    /// [`Unknown`](crate::Outcome::Unknown) may it have.
    pub fn run<T>(&self, closure: impl FnMut(&mut Tx<'_>) -> Result<T, Error>) -> Result<T, Error> {
        self.run_with(RunOptions::default(), closure).map(|done| done.value)
    }

    /// [`Db::run`] with options, and more told about the end.
    ///
    /// # Errors
    /// As for [`Db::run`].
    pub fn run_with<T>(
        &self,
        options: RunOptions,
        mut closure: impl FnMut(&mut Tx<'_>) -> Result<T, Error>,
    ) -> Result<Done<T>, Error> {
        let mut attempts = 0;
        loop {
            attempts += 1;
            match self.attempt(&options, &mut closure) {
                Ok(done) => return Ok(Done { attempts, ..done }),
                Err(error) if !error.is_retryable() => return Err(error),
                Err(error) if attempts >= options.retry.attempts_max => {
                    return Err(Error::RetriesExhausted { attempts, last: Box::new(error) });
                }
                Err(_) => thread::sleep(options.retry.pause(attempts)),
            }
        }
    }

    /// A read-only view of everything committed so far.
    ///
    /// # Errors
    /// If the sequencer does not answer.
    pub fn snapshot(&self) -> Result<View, Error> {
        let taken = Instant::now();
        let snapshot = self.inner.coordinator.snapshot().map_err(Error::Transport)?;
        let good = Good { taken, age_max: self.inner.coordinator.snapshot_age_max() };
        Ok(View::new(self.clone(), snapshot, good))
    }

    /// Cleans the store in one pass: removes the versions of invalid transactions under which nobody writes any more, and
    /// old versions and tombstones that no reader needs. Then it says so to the sequencer, under this name, which from the
    /// first time on forgets an invalid transaction only when every registered store is clean of it. Reads every version
    /// once; transactions and views go on meanwhile.
    ///
    /// One name stands for one store, whoever cleans it. A store that is not the only one of its sequencer should be
    /// cleaned once while it is new: what was forgotten before it was registered it is not told. Its acknowledgement is as
    /// durable as [`Store::flush`] is; one that does not survive a power cut may bring back what was forgotten.
    ///
    /// # Errors
    /// If the store fails, or the sequencer does not answer or has more stores than may be. What was removed stays
    /// removed; run it again.
    pub fn clean(&self, name: &StoreName) -> Result<Cleaned, Error> {
        clean(self.store(), &*self.inner.coordinator, name)
    }

    pub(crate) fn store(&self) -> &dyn DynStore {
        &*self.inner.store
    }

    fn attempt<T>(
        &self,
        options: &RunOptions,
        closure: &mut impl FnMut(&mut Tx<'_>) -> Result<T, Error>,
    ) -> Result<Done<T>, Error> {
        let timeout = Duration::from_millis(options.timeout_ms.unwrap_or(SHORT_TIMEOUT_MS_DEFAULT));
        // Before the begin is sent, so that this side gives up no later than the sequencer.
        let taken = Instant::now();
        let begin = BeginOptions { timeout_ms: options.timeout_ms, ..BeginOptions::default() };
        let begun = self.inner.coordinator.begin(begin)?;
        // From here on an error or a panic ends the transaction.
        let open = Open::new(&*self.inner.coordinator, begun.tx, taken, timeout);
        // While it is open it keeps what it reads, and for a while its snapshot is kept for anybody.
        let good = Good { taken, age_max: timeout.max(self.inner.coordinator.snapshot_age_max()) };
        let mut tx = Tx::new(self.store(), &begun.snapshot, good, begun.tx, options.isolation);
        let value = closure(&mut tx)?;
        let end = finish(open, self.store(), tx.into_touched(), &options.retry)?;
        Ok(Done { value, tx: begun.tx, csn: end.csn, attempts: 1, settled: end.settled })
    }
}
