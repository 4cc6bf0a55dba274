//! Remembers: groups of records in segments, durable in order. It does not know what they mean.
//!
//! ```text
//!  append ──▶ open group ──submit──▶ storage (io_uring, a thread, memory) ──poll──▶ durable group
//!                                     │
//!                                     └─ in the background: segments made ready ahead, images, tidying up
//! ```
//! Records are a kind and bytes. They go into a *group*, which is written and synced as one; a group is written only
//! when the one before is durable. Groups fill *segments*, which are made ahead. An *image* is the caller's saved state;
//! segments below the oldest image kept are recycled. `FORMAT.md` beside this crate gives every byte on disk.
//!
//! # Example
//!
//! ```
//! use seriatim_wal::{DiskOptions, DiskStorage, Log, Options, Stamp};
//!
//! # let directory = tempfile::tempdir()?;
//! # let directory = directory.path();
//! let (mut log, recovered) = Log::open(DiskStorage::new(directory, DiskOptions::default()), Options::default())?;
//! for group in recovered.groups() {
//!     for record in group.records() {
//!         println!("{}: kind {}, {} bytes", record.lsn, record.kind, record.payload.len());
//!     }
//! }
//! drop(recovered);
//!
//! let lsn = log.append(1, b"begin")?;
//! log.submit(&Stamp { token: 1, commits: 1, ..Stamp::default() })?;
//! // An event loop polls when `wake_fd` is readable; an embedded log may wait.
//! let group = log.wait()?.expect("a group in flight");
//! assert_eq!(group.header().last(), lsn);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Trade-offs
//!
//! One group in flight at a time: a second one would raise throughput on some devices, and would make "a bad group with
//! a successor" legal, which is what tells damage from an unfinished write.
//!
//! A segment is begun at every start, never continued, so that what an unfinished write left behind is dead for good;
//! the rest of the segment before is given back.
//!
//! # Not goals
//!
//! Records have no index: the log is read from an image to its end, once. It detects accidents, not forgers.
//!
//! A sealed segment is mapped while it is replayed; if the medium fails under the mapping, the process gets `SIGBUS` and
//! ends without a message of ours.
#![deny(unsafe_code)]

mod error;
mod field;
mod file_name;
mod group;
mod identity;
mod image;
mod log;
mod lsn;
mod open_group;
mod options;
mod ownership;
mod record;
mod recovered;
mod recovery;
mod segment;
mod segments;
mod storage;

pub use error::{AppendError, ForeignReason, ImageFailed, OpenError, Poisoned, SaveError, SubmitError, Successor};
pub use field::BLOCK_BYTES;
pub use file_name::FileName;
pub use group::{Digest, Fault, GROUP_HEADER_BYTES, Group, GroupHeader, Stamp};
pub use identity::{FORMAT_VERSION, StoreId};
pub use image::{ImageFile, ImageFileError};
pub use log::{Log, Stats, Submitted};
pub use lsn::Lsn;
pub use options::{BadOption, Options, RECORD_BYTES_MAX, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};
pub use record::{Record, Records};
pub use recovered::{BadImage, Cut, Image, Recovered};
pub use storage::disk::{DiskOptions, DiskStorage, Engine, SyncMode};
pub use storage::memory::MemoryStorage;
pub use storage::{
    Access, Buffer, Content, FileBytes, Finished, Job, Listing, LockError, SegmentWrite, Source, Storage, Wait,
};
