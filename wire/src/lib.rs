//! The protocol's bytes: frames, requests and replies. No sockets.
//!
//! `wire/PROTOCOL.md` gives every byte; this crate writes and reads them. It knows `core`'s words and nothing else of
//! the house: who has bytes and wants requests, or has replies and wants bytes, comes here.
//!
//! ```text
//! server:  bytes ──▶ FrameBuffer ──▶ Frame ──▶ Request::decode ──▶ …decides… ──▶ reply::* ──▶ bytes
//! client:  request::* ──▶ bytes ──▶ … ──▶ bytes ──▶ FrameBuffer ──▶ Frame ──▶ Reply::decode
//! ```
//!
//! - Every byte that comes in is somebody else's: each read is checked, nothing is allocated for what a length or
//!   count merely claims, and a frame is checked as a whole before its first item is handed out, so that a broken
//!   frame has done nothing.
//! - Reading a request allocates nothing: items are walked where they lie.
//!
//! **Not goals**: no encryption, no compression beyond what [`encode_snapshot`] does, no versions before 1.
#![forbid(unsafe_code)]

mod bytes;
mod error;
mod frame;
mod frame_buffer;
mod hello;
mod items;
mod outcome;
pub mod reply;
pub mod request;
mod snapshot;
mod state;
mod stores;
mod upkeep;

pub use error::{DecodeError, ErrorCode, ErrorReply};
pub use frame::{FLAG_MORE, Frame, FrameWriter, Frames, Op};
pub use frame_buffer::FrameBuffer;
pub use hello::{Hello, HelloLimits, HelloReply, StoreId};
pub use items::{
    Checkpoints, CommitItem, CommitItems, Pointers, commit_item_bytes, put_checkpoint_item, put_commit_item,
};
pub use outcome::{Bools, Outcomes, Results, Statuses};
pub use reply::{Block, Reply};
pub use request::{BeginRequest, Request};
pub use snapshot::{SnapshotBytes, decode_snapshot, encode_snapshot};
pub use state::{ListKind, ListRequest, Listed, Listing, State};
// What stores are answered, in core's words.
pub use seriatim_core::{CleanBound, StoreRefusal};
pub use stores::{CleanHolder, PruneReport, StoreReply, StoreRequest};
pub use upkeep::{Fenced, IMAGE_PAGE_BYTES_MAX, ImagePage, ImageRequest, Truncated};

/// The protocol's version; there has been no other.
pub const VERSION: u16 = 1;

/// First bytes of a hello's body: `SRTM`.
pub const MAGIC: u32 = u32::from_le_bytes(*b"SRTM");

/// Bytes of a frame's header.
pub const HEADER_BYTES: usize = 16;

/// The most bytes that a frame may hold after its header: 16 MiB.
pub const BODY_BYTES_MAX: u32 = 16 << 20;

/// The most transactions in one begin that a client may ask for before it has heard the server's limit.
pub const BLOCK_MAX_DEFAULT: u32 = 1024;
