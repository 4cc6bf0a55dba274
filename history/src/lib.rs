//! Judges histories of transactions: are they what snapshot isolation, or serializability, allows?
//!
//! A history has a row for every transaction: what it read, from whom, what it wrote, how it ended, and, where the store
//! tells, its snapshot, its commit number and when all this was. `FORMAT.md` gives the rows as lines of JSON.
//!
//! ```text
//!  lines ──▶ Row ──▶ History ──▶ versions of each key, in their order
//!                                  ├──▶ reads       was it ever written, and committed
//!                                  ├──▶ snapshots   is it what the snapshot holds; first committer wins
//!                                  ├──▶ real_time   does what was answered come before what was asked later
//!                                  └──▶ cycles      of who overwrote, read and missed whom
//!                                            └──▶ Report
//! ```
//!
//! ```
//! use seriatim_history::{History, Kind};
//!
//! // Both read the version of 1, and both overwrite it.
//! let lines = r#"
//!     {"tx":1,"writes":["purse"],"outcome":"committed"}
//!     {"tx":2,"reads":[{"key":"purse","writer":1}],"writes":["purse"],"outcome":"committed"}
//!     {"tx":3,"reads":[{"key":"purse","writer":1}],"writes":["purse"],"outcome":"committed"}
//! "#;
//! let report = History::read(lines.as_bytes(), |_| ())?.judge(10);
//! assert_eq!(report.counts[&Kind::LostUpdate], 1);
//! # Ok::<(), seriatim_history::ReadError>(())
//! ```
//!
//! # Trade-offs
//!
//! * The whole history is held in memory; see [`History`].
//! * Versions are named by their writers, never by their values, so whoever records a history must know who wrote what
//!   it read: stores that keep versions do.
//! * Of cycles a bounded number is searched for in each knot. A history without an anomaly is told from one with some
//!   exactly; how many there are of the kinds that are cycles is a lower bound.
//!
//! # Not goals
//!
//! Predicates: what a scan did not return is not looked at (phantoms). LONG transactions take no part in conflict
//! detection, so a history that holds any is found wrong.
#![forbid(unsafe_code)]

mod anomaly;
mod cycles;
mod findings;
mod graph;
mod history;
mod reader;
mod reads;
mod real_time;
mod report;
mod row;
mod snapshots;
mod versions;

pub use anomaly::{Anomaly, Kind, Member};
pub use history::{COUNT_MAX, History, RowError};
pub use reader::{LINE_BYTES_MAX, ReadError};
pub use report::{Order, Report};
pub use row::{Interval, Isolation, Outcome, Overwrite, Read, Row, SnapshotPoint};
