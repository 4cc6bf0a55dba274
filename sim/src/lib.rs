//! Simulates: the whole house on one thread, by seed.
//!
//! One server, the pipeline that ships, is driven turn by turn over a disk, a network and clocks that exist in memory
//! and fail as chance has it. Clients run transactions over a store of versions; a naive sequencer reads what becomes
//! durable and judges every answer, every snapshot and every read. Everything random comes from the seed, so a seed is a
//! run, and a failure is replayed by its number.
//!
//! ```text
//!   queue ──▶ world ──▶ server (the pipeline) ──▶ disk ──▶ reference (judges)
//!     ▲         │            ▲       │                        ▲
//!     └─────────┴── network ─┘       └── network ──▶ clients ─┘
//! ```
//!
//! # Example
//!
//! ```
//! let outcome = seriatim_sim::run(7, &seriatim_sim::RunOptions { events: 300, ..Default::default() });
//! assert_eq!(outcome.violation, None);
//! ```
#![forbid(unsafe_code)]

mod campaign;
mod client;
mod clock;
mod disk;
mod job;
mod judge;
mod knobs;
mod law;
mod log_reader;
mod mishaps;
mod network;
mod overheard;
mod plants;
mod probes;
mod queue;
mod recorder;
mod reference;
mod server;
mod store;
mod trace;
mod verdict;
mod wires;
mod worker;
mod world;

pub use campaign::{Campaign, Tally};
pub use plants::{PLANTS, PlantName};
pub use probes::{Probe, Probes};
pub use verdict::Violation;
pub use world::{Outcome, RunOptions, run};
