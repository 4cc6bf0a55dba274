//! Simulates: the whole house on one thread, by seed.
//!
//! One server, the pipeline that ships, is driven turn by turn over a disk, a network and clocks that exist in memory
//! and fail as chance has it. Clients, each a session of the client that ships, run transactions over stores of versions
//! by the rules of the product, and keep the stores clean. Everything random comes from the seed, so a seed is a run, and
//! a failure is replayed by its number.
//!
//! ```text
//!   queue ──▶ world ──▶ server (the pipeline) ──▶ disk ──▶ log_reader ──▶ reference ─┐
//!     ▲         │            ▲       │                                               ▼
//!     └─────────┴── network ─┘       └── network ──▶ clients ──▶ store ───────────▶ judge
//!                                                       └──────▶ recorder ──▶ room `history`
//! ```
//!
//! **A run** draws its own limits, delays, faults and workload (`knobs.rs`). At first anything may fail: connections break
//! anywhere in their bytes, the disk stalls, tears, fills up, fails and is damaged, machines stop, processes are killed,
//! clocks step, clients die, a night passes (`mishaps.rs`). Then the faults are over, everybody has to finish within a
//! bound of virtual time, and what is left is compared with what was committed.
//!
//! **Judges** there are three. The reference is a naive sequencer of sorted maps: it reads each write as it reaches
//! the medium, by the format's description, and refuses what may not follow. The judge holds every answer, snapshot,
//! read and bound against it, at the moment it arrives. At the end the recorder has the room `history` judge what the
//! clients saw, which knows nothing of the log. `overheard.rs` reads along on every connection, so that no begin waits.
//!
//! **To believe it**: [`PLANTS`] are bugs that it must find, and [`Probe`]s are rare states that a long run must meet;
//! with either missing the binary fails. The hash of a run's trace shows that a seed is one run.
//!
//! A further fault goes to `mishaps.rs`, a further kind of work to `job.rs` and `worker.rs`, a further law to `law.rs`
//! and the judge, each with its knob, its probe, and a planted bug that only it finds.
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
