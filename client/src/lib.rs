//! Asks: the Rust client.
//!
//! ```text
//!  Tx ──▶ Client ──▶ Link ──▶ Session ──▶ bytes     many callers, one connection, frames shared
//!      BulkConnection ──────▶ Session ──▶ bytes     one caller, many requests under way
//!       your own loop ──────▶ Session ──▶ bytes     no socket at all
//! ```
//!
//! ```no_run
//! use seriatim_client::{Client, ClientOptions};
//! use seriatim_core::{BeginOptions, ChangeSet};
//!
//! # fn main() -> Result<(), seriatim_client::Error> {
//! let client = Client::connect("127.0.0.1:7600", ClientOptions::default())?;
//! let tx = client.begin(BeginOptions::default())?;
//! // Read the newest version of each key for which `tx.is_visible(version)`; write under `tx.write_pointer()`.
//! let version = tx.write_pointer();
//! match tx.commit(&ChangeSet::of_writes([b"accounts/7".as_slice()])) {
//!     Ok(csn) => println!("{version} committed as number {csn}"),
//!     Err(error) if error.is_retryable() => { /* roll back the writes, then */ tx.abort()?; }
//!     Err(error) => return Err(error),
//! }
//! # Ok(()) }
//! ```
//!
//! **Trade-offs.** Whoever waits for an answer moves the bytes, for itself and for the others: a lone caller pays for
//! two system calls and no thread switch, and callers that come while one writes share the next frame. In return a
//! caller may have to read for others while its own answer is there already in the same read. Ends of dropped
//! transactions leave through a thread of their own, the only one a client has.
//!
//! **Not goals**: no retries of whole transactions (only the caller can run them again), no pool of connections.
#![forbid(unsafe_code)]

mod address;
mod backoff;
mod bulk_connection;
mod change_key;
mod client;
mod clock;
mod context;
mod endings;
mod error;
mod executor;
mod failure;
mod keyed_changes;
mod link;
mod options;
mod panic;
mod participant;
mod participants;
mod read_snapshot;
mod requests;
mod retry;
mod service;
mod session;
mod start_options;
mod stores;
mod tx;
mod waiters;

pub use address::Address;
pub use bulk_connection::BulkConnection;
pub use change_key::{Cell, ConflictLevel};
pub use client::{Client, Page};
pub use clock::{Clock, SystemClock};
pub use context::{Committed, SETTLE_FOR_DEFAULT, TransactionContext};
pub use error::{Cause, Error, Outcome, ServerError};
pub use executor::{Executed, GaveUp, TransactionExecutor};
pub use failure::{Conflict, ConflictKey, ContextError, Failure, Standing, Step};
pub use keyed_changes::{Access, KeyedChanges};
pub use options::ClientOptions;
pub use panic::Panic;
pub use participant::{BoxError, Participant, Rollback};
pub use read_snapshot::ReadSnapshot;
pub use retry::{Retries, RetryOn, RetryPolicy};
pub use service::TransactionService;
pub use session::{Answer, AnswerPlace, Begun, ProtocolError, Session};
pub use start_options::{CommitForm, StartOptions};
pub use tx::Tx;
