//! The deciding part of Seriatim: write pointers, snapshots, conflicts, and the state that remembers them.
//!
//! This room reaches for nothing: it opens no socket or file, asks no clock, starts no thread, rolls no dice. Time
//! arrives as an argument, so one input has one output.
#![deny(unsafe_code)]

mod change_set;
pub mod event;
mod image;
mod open_set;
mod outcomes;
mod pointer;
mod pointer_set;
mod published;
mod snapshot;
mod transaction;

pub use change_set::{CHANGE_IDS_MAX, CHANGE_IDS_WARN, ChangeId, ChangeIds, ChangeSet};
pub use image::ImageError;
pub use outcomes::OUTCOMES_MAX_DEFAULT;
pub use pointer::{CommitNumber, POINTERS_PER_MS, SequencerTime, WritePointer};
pub use pointer_set::{ChunkWords, PointerSet, chunk_start};
pub use published::{Applied, ApplyError, InvalidTransaction, Published};
pub use snapshot::{InvalidSet, Snapshot, SnapshotId};
pub use transaction::*;
