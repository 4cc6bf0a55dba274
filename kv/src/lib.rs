//! Uses: MVCC tables over real stores.
//!
//! A [`Store`] keeps versions and knows nothing of transactions; a [`Coordinator`] orders transactions and never sees
//! a key. A [`Db`] puts the two together: snapshot isolation over keys, tables and machines.
//!
//! ```text
//!  Db::run(|tx| …) ── begin ──▶ Coordinator      a write pointer and a snapshot
//!        │ reads at the snapshot, writes into a buffer
//!        ├── put … put, flush ──▶ Store           versions under the write pointer, excluded from every snapshot
//!        ├── commit ──▶ Coordinator               decides; from here on new snapshots hold the versions
//!        └── refused: remove the versions, flush, and only then abort
//! ```
//!
//! ```
//! # fn main() -> Result<(), seriatim_kv::Error> {
//! # let directory = tempfile::tempdir().unwrap();
//! let db = seriatim_kv::Db::open(&directory)?;
//! let purses = db.table("purses");
//! db.run(|tx| {
//!     let alice = tx.get(&purses, b"alice")?.map_or(0, |coins| coins[0]);
//!     tx.put(&purses, b"alice", &[alice + 1])
//! })?;
//! assert_eq!(db.snapshot()?.get(&purses, b"alice")?, Some(vec![1]));
//! # Ok(())
//! # }
//! ```
//!
//! The same over a server is `Db::new(store, seriatim_client::Client::connect(…)?)`, with a store that all its clients
//! reach.
//!
//! Transactions over other stores than these, or over several, are the client's: a
//! [`TransactionContext`](seriatim_client::TransactionContext) over its participants. It takes a client, or an embedded
//! sequencer as an [`EmbeddedService`].
//!
//! # Trade-offs
//!
//! * Under [`Isolation::Snapshot`], the default, two transactions that read what the other writes may both commit
//!   (write skew). [`Isolation::Serializable`] refuses one of them: a key that was read, there or not, is checked against
//!   every later writer; a range that was scanned against those that are serializable too, so let all who write to a
//!   table be that where one scans it so. Ranges are known by the first 0, 4, 8, 16 or 32 bytes that all of their keys
//!   share: the longer the prefix, the fewer who write beside the range are refused with those who write into it. The
//!   price is a few more ids in each serializable commit, and conflicts between those who would not have met.
//! * Writes reach the store before the commit is decided, so that a commit is one question; a transaction whose client
//!   dies in between becomes invalid and its versions stay in the store, excluded.
//! * Calls block. From async code use `spawn_blocking`: everything here is `Send + Sync + 'static`.
//!
//! * What is not needed any more stays until somebody calls [`Db::clean`]: now and then, as one does with a store's
//!   compaction. It reads everything once.
#![forbid(unsafe_code)]

mod clean;
mod coordinator;
mod db;
#[cfg(all(feature = "client", feature = "embedded"))]
mod embedded_service;
mod error;
mod finish;
mod key_range;
mod predicate;
mod read;
mod retry;
mod row;
pub mod store;
mod tx;
mod view;

pub use clean::Cleaned;
pub use coordinator::{BeginFailure, Begun, CommitFailure, Coordinator, StoreFailure, TransportError};
pub use db::{Db, Done, RunOptions};
#[cfg(all(feature = "client", feature = "embedded"))]
pub use embedded_service::EmbeddedService;
pub use error::{BoxError, Error, Outcome};
pub use key_range::KeyRange;
pub use read::{Entry, Scan};
pub use retry::RetryPolicy;
pub use row::{KEY_BYTES_MAX, TABLE_BYTES_MAX, Table};
#[cfg(feature = "fjall")]
pub use store::fjall::{Durability, FjallStore};
pub use store::memory::MemoryStore;
pub use store::{Page, PageLimits, Row, Store, StoreError, Version, Versions};
pub use tx::{TX_BYTES_MAX, Tx, VALUE_BYTES_MAX};
pub use view::{SNAPSHOT_AGE_MAX, View};

// The words of the sequencer that stand in this crate's signatures.
pub use seriatim_core as core;
pub use seriatim_core::{Isolation, StoreName};

/// Compiles the README's example.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
