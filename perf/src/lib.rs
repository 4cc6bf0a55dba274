//! Load generators: what a sequencer is asked, how hard, and what came of it.
//!
//! ```text
//!  Load ──▶ Schedule ──▶ driver ──▶ Tally ──▶ Report
//!  what      when         │          counts    for people and programs
//!                         ├─ server_driver: one thread, one poll, all connections
//!                         └─ embedded_driver: the sequencer in this process
//! ```
//!
//! The load is closed: each connection keeps `depth` transactions in flight, and a new one begins when one has ended. So
//! the latencies of a run say how long a caller waits at this depth, not how long it would wait at this rate if calls came
//! on their own time.
//!
//! A generator shares the machine with what it measures. It takes whole frames of begins and commits in one turn, draws
//! keys from a generator that costs a nanosecond, and records one latency for a frame, not for each of its transactions.
#![forbid(unsafe_code)]

pub mod bars;
mod connection;
mod cpu;
mod embedded_driver;
mod error;
mod error_kind;
mod keys;
mod load;
mod report;
mod schedule;
mod server_driver;
mod server_process;
mod socket;
mod tally;
mod watch;
pub mod yardstick;

pub use embedded_driver::{EmbeddedTarget, drive_embedded};
pub use error::{Error, Failed};
pub use load::{Kind, Load, LoadError};
pub use report::{Latency, Report, ServerInfo, Transport, WholeRun};
pub use server_driver::drive_server;
pub use watch::{Moment, Phase};
