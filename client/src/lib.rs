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
//! Several stores in one transaction: each takes part by a [`Participant`], and a [`TransactionContext`] sees to it that
//! all of them write under one pointer, that nothing is undone before the outcome is known, and that what cannot be
//! undone is read by nobody. A [`TransactionExecutor`] runs a closure so, again and again while it loses races.
//!
//! ```no_run
//! use std::borrow::Cow;
//! use std::collections::BTreeMap;
//! use std::sync::{Arc, Mutex};
//!
//! use seriatim_client::*;
//! use seriatim_core::{TransactionView, WritePointer};
//!
//! /// A client of some store that keeps versions, with a buffer in front.
//! struct Accounts {
//!     city: &'static str,
//!     store: Store,
//!     view: Mutex<Option<TransactionView>>,
//!     buffer: Mutex<BTreeMap<(String, WritePointer), i64>>,
//! }
//!
//! impl Accounts {
//!     fn put(&self, key: &str, coins: i64) {
//!         let version = self.view.lock().unwrap().as_ref().expect("a transaction is active").write_pointer();
//!         self.buffer.lock().unwrap().insert((key.to_owned(), version), coins);
//!     }
//! }
//!
//! impl Participant for Accounts {
//!     fn name(&self) -> Cow<'_, str> {
//!         self.city.into()
//!     }
//!
//!     fn start(&self, view: &TransactionView) -> Result<(), BoxError> {
//!         self.buffer.lock().unwrap().clear();
//!         self.update(view)
//!     }
//!
//!     fn update(&self, view: &TransactionView) -> Result<(), BoxError> {
//!         *self.view.lock().unwrap() = Some(view.clone());
//!         Ok(())
//!     }
//!
//!     fn changes(&self, changes: &mut KeyedChanges) -> Result<(), BoxError> {
//!         // Whatever shares a sequencer shares a space of keys.
//!         let key = |key: &str| format!("{}/{key}", self.city).into_bytes();
//!         self.buffer.lock().unwrap().keys().for_each(|(written, _)| changes.write(&key(written)));
//!         Ok(())
//!     }
//!
//!     fn flush(&self) -> Result<(), BoxError> {
//!         self.buffer.lock().unwrap().iter().try_for_each(|((key, version), coins)| self.store.put(key, *version, *coins))
//!     }
//!
//!     fn rollback(&self) -> Result<Rollback, BoxError> {
//!         self.buffer.lock().unwrap().keys().try_for_each(|(key, version)| self.store.remove(key, *version))?;
//!         Ok(Rollback::Clean)
//!     }
//! }
//!
//! # #[derive(Default)]
//! # struct Store;
//! # impl Store {
//! #     fn put(&self, _: &str, _: WritePointer, _: i64) -> Result<(), BoxError> { Ok(()) }
//! #     fn remove(&self, _: &str, _: WritePointer) -> Result<(), BoxError> { Ok(()) }
//! # }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Arc::new(Client::connect("127.0.0.1:7600", ClientOptions::default())?);
//! let [bern, rome] = ["bern", "rome"].map(|city| {
//!     Arc::new(Accounts { city, store: Store::default(), view: Mutex::default(), buffer: Mutex::default() })
//! });
//! let mut context = TransactionContext::new(client, [bern.clone() as Arc<dyn Participant>, rome.clone()]);
//! context.start(StartOptions { label: Some("transfer".into()), ..StartOptions::default() })?;
//! bern.put("alice", 70);
//! rome.put("bob", 30);
//! match context.finish() {
//!     Ok(committed) => println!("{} committed as number {}", committed.tx, committed.csn),
//!     Err(error) => match error.conflict() {
//!         // Its key, its winner, and the winner's label.
//!         Some(conflict) => println!("{conflict}"),
//!         None => println!("{error}: {:?}", error.standing()),
//!     },
//! }
//! # Ok(()) }
//! ```
//!
//! **Trade-offs.** Whoever waits for an answer moves the bytes, for itself and for the others: a lone caller pays for
//! two system calls and no thread switch, and callers that come while one writes share the next frame. In return a
//! caller may have to read for others while its own answer is there already in the same read. Ends of dropped
//! transactions leave through a thread of their own, the only one a client has.
//!
//! **Not goals**: no retries of whole transactions but by an executor (only the caller can run them again), no pool of
//! connections.
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
pub use keyed_changes::{Access, KEY_BYTES_MAX_DEFAULT, KeyedChanges};
pub use options::ClientOptions;
pub use panic::Panic;
pub use participant::{BoxError, Participant, Rollback};
pub use read_snapshot::ReadSnapshot;
pub use retry::{Retries, RetryOn, RetryPolicy};
pub use service::TransactionService;
pub use session::{Answer, AnswerPlace, Begun, ProtocolError, Session};
pub use start_options::{CommitForm, StartOptions};
pub use tx::Tx;
