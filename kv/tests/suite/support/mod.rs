//! What the tests stand on: a naive sequencer that can lose messages, and a store that can be stopped at every write.

pub mod sequencer;
#[cfg(all(feature = "client", feature = "embedded"))]
pub mod serving;
pub mod store;

use std::sync::Arc;

use seriatim_kv::{Db, PageLimits, RetryPolicy, RunOptions, Store, Table};

pub use sequencer::{CommitFault, GoesDeaf, Sequencer};
pub use store::{HookedStore, Op};

/// A database with handles on both of its halves.
pub struct House<S: Store> {
    pub db: Db,
    pub store: Arc<HookedStore<S>>,
    pub sequencer: Arc<Sequencer>,
}

impl<S: Store> House<S> {
    pub fn new(store: S) -> House<S> {
        let store = Arc::new(HookedStore::new(store));
        let sequencer = Arc::new(Sequencer::default());
        House { db: Db::new(store.clone(), sequencer.clone()), store, sequencer }
    }

    /// Commits one value, without any hook.
    pub fn set(&self, table: &Table, key: &[u8], value: &[u8]) {
        self.db.run(|tx| tx.put(table, key, value)).unwrap();
    }

    /// The value that a new snapshot holds.
    pub fn now(&self, table: &Table, key: &[u8]) -> Option<Vec<u8>> {
        self.db.snapshot().unwrap().get(table, key).unwrap()
    }

    /// Every version in the store, whoever may see it.
    pub fn versions(&self) -> usize {
        let all = PageLimits { rows: usize::MAX, versions: usize::MAX };
        let page = self.store.scan(b"", &[0xff; 8], seriatim_kv::core::WritePointer::MAX, all).unwrap();
        page.rows.iter().map(|row| row.versions.newest.len()).sum()
    }
}

pub fn once() -> RunOptions {
    RunOptions { retry: RetryPolicy::once(), ..RunOptions::default() }
}

/// Runs every case over every store, as `memory::case` and `fjall::case`.
#[macro_export]
macro_rules! on_every_store {
    ($($case:ident),* $(,)?) => {
        mod memory {
            $(#[test] fn $case() { super::$case(seriatim_kv::MemoryStore::new()); })*
        }
        #[cfg(feature = "fjall")]
        mod fjall {
            $(#[test] fn $case() {
                let directory = tempfile::tempdir().unwrap();
                super::$case(seriatim_kv::FjallStore::open(&directory, seriatim_kv::Durability::Process).unwrap());
            })*
        }
    };
}
