//! The deciding part of Seriatim: write pointers, snapshots, conflicts, and the state that remembers them.
//!
//! This room reaches for nothing: it opens no socket or file, asks no clock, starts no thread, rolls no dice. Time
//! arrives as an argument, so one input has one output.
#![deny(unsafe_code)]

mod change_set;
mod conflict;
#[allow(unsafe_code)]
mod current;
pub mod event;
mod history;
mod image;
mod invalid;
mod labels;
mod limits;
#[allow(unsafe_code)]
mod memory;
mod open_set;
mod outcomes;
mod pending;
mod pointer;
mod pointer_set;
mod pointers;
mod published;
mod publisher;
#[allow(unsafe_code)]
mod ring;
mod sequencer;
mod snapshot;
mod stores;
mod sync;
mod table;
mod transaction;
mod view;
mod winners;

pub use change_set::{CHANGE_IDS_MAX, CHANGE_IDS_WARN, ChangeId, ChangeIds, ChangeSet, Changes, Submission};
pub use conflict::Scratch;
pub use history::History;
pub use image::ImageError;
pub use invalid::{InvalidTransaction, StillWriting, WRITES_WITHOUT_DEADLINE_MS};
pub use labels::{LABEL_BYTES_MAX, LABELS_MAX, LabelId, LabelRetention};
pub use limits::{Limits, LimitsError};
pub use outcomes::OUTCOMES_MAX_DEFAULT;
pub use pointer::{CommitNumber, POINTERS_PER_MS, SequencerTime, WritePointer};
pub use pointer_set::{ChunkWords, PointerSet, chunk_start};
pub use published::{Applied, ApplyError, Published};
pub use publisher::Publisher;
pub use ring::Ticket;
pub use sequencer::{Advice, Begun, Checkpointing, Decision, End, Owner, Resume, Sequencer, resume, resume_with};
pub use snapshot::{InvalidSet, Snapshot, SnapshotId};
pub use stores::{
    CleanBound, RegisteredStore, STORE_NAME_BYTES_MAX, STORES_MAX, StoreName, StoreNameError, StoreRefusal, Stores,
};
pub use table::{CHECKPOINTS_MAX, OpenView};
pub use transaction::*;
pub use view::{TransactionView, Visibility};
