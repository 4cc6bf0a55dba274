//! Requests: what a client sends. Each function appends one whole frame.

use seriatim_core::{BeginOptions, ChangeSet, Kind, SnapshotId, Submission, WritePointer};

use crate::bytes::{Reader, put_text, put_u64, put_varint};
use crate::error::DecodeError;
use crate::frame::{Frame, FrameWriter, Op};
use crate::hello::{Hello, StoreId};
use crate::items::{Checkpoints, CommitItems, Pointers, put_checkpoint_item, put_commit_item};
use crate::state::ListRequest;
use crate::stores::StoreRequest;
use crate::upkeep::ImageRequest;

/// Asks for one or more transactions with the same options, on one snapshot, with neighbouring pointers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BeginRequest<'a> {
    /// How they wish to begin.
    pub options: BeginOptions,
    /// How many; at most the block of the server's [`HelloLimits`](crate::HelloLimits).
    pub count: u32,
    /// A snapshot that the client has, to be told the difference only.
    pub base: Option<SnapshotId>,
    /// A label of their own, instead of the session's; 64 bytes count.
    pub label: Option<&'a str>,
}

/// A request as it was read; items lie where the frame lies.
#[derive(Clone, Debug)]
pub enum Request<'a> {
    /// See [`Op::Hello`].
    Hello(Hello<'a>),
    /// See [`Op::Begin`].
    Begin(BeginRequest<'a>),
    /// See [`Op::Commit`].
    Commit(CommitItems<'a>),
    /// See [`Op::Abort`]. The client says that no write of these stands in any store.
    Abort(Pointers<'a>),
    /// See [`Op::Invalidate`].
    Invalidate(Pointers<'a>),
    /// See [`Op::Status`].
    Status(Pointers<'a>),
    /// See [`Op::Settle`].
    Settle(Pointers<'a>),
    /// See [`Op::Snapshot`].
    Snapshot {
        /// A snapshot that the client has.
        base: Option<SnapshotId>,
    },
    /// See [`Op::Timestamps`].
    Timestamps {
        /// How many.
        count: u64,
    },
    /// See [`Op::State`].
    State,
    /// See [`Op::List`].
    List(ListRequest),
    /// See [`Op::Reset`].
    Reset {
        /// The store that is meant; a server of another one refuses.
        store: StoreId,
    },
    /// See [`Op::Ping`].
    Ping(&'a [u8]),
    /// See [`Op::CanCommit`].
    CanCommit(CommitItems<'a>),
    /// See [`Op::Checkpoint`]: transactions, and which of its checkpoints each asks for, counted from 1.
    Checkpoint(Checkpoints<'a>),
    /// See [`Op::Truncate`]. Whoever asks says that nothing of these stands in any store.
    Truncate(Pointers<'a>),
    /// See [`Op::TruncateBefore`]. Whoever asks says that nothing of these stands in any store.
    TruncateBefore {
        /// The first pointer that is kept.
        bound: WritePointer,
    },
    /// See [`Op::Fence`].
    Fence {
        /// How long to wait.
        timeout_ms: u64,
    },
    /// See [`Op::Image`].
    Image(ImageRequest),
    /// What is about registered stores.
    Store(StoreRequest<'a>),
}

impl<'a> Request<'a> {
    /// Reads a frame's body as its op asks, and checks all of it.
    ///
    /// # Errors
    /// If the op is unknown, or the body is not what the op asks for. Nothing of the frame has been handed out then.
    pub fn decode(frame: &Frame<'a>) -> Result<Request<'a>, DecodeError> {
        let op = Op::from_u8(frame.op).ok_or(DecodeError::UnknownOp(frame.op))?;
        if frame.flags != 0 {
            return Err(DecodeError::UnknownFlags { what: "request", flags: u32::from(frame.flags) });
        }
        let body = frame.body;
        let mut reader = Reader(body);
        let request = match op {
            Op::Hello => return Hello::decode(body).map(Request::Hello),
            Op::Commit => return CommitItems::decode(body).map(Request::Commit),
            Op::Abort => return Pointers::decode(body).map(Request::Abort),
            Op::Invalidate => return Pointers::decode(body).map(Request::Invalidate),
            Op::Status => return Pointers::decode(body).map(Request::Status),
            Op::Settle => return Pointers::decode(body).map(Request::Settle),
            Op::CanCommit => return CommitItems::of_checks(body).map(Request::CanCommit),
            Op::Checkpoint => return Checkpoints::decode(body).map(Request::Checkpoint),
            Op::Truncate => return Pointers::decode(body).map(Request::Truncate),
            Op::List => return ListRequest::decode(body).map(Request::List),
            Op::Ping => return Ok(Request::Ping(body)),
            Op::Begin => Request::Begin(take_begin(&mut reader)?),
            Op::Snapshot => Request::Snapshot { base: take_base(&mut reader)? },
            Op::Timestamps => Request::Timestamps { count: reader.varint()? },
            Op::State => Request::State,
            Op::Reset => Request::Reset { store: StoreId(reader.u128()?) },
            Op::TruncateBefore => Request::TruncateBefore { bound: reader.pointer()? },
            Op::Fence => Request::Fence { timeout_ms: reader.varint()? },
            Op::Image => Request::Image(ImageRequest { number: reader.u64()?, offset: reader.varint()? }),
            Op::RegisterStore | Op::RemoveStore | Op::CleanBound | Op::StoreCleaned | Op::Pruning => {
                Request::Store(StoreRequest::take(op, &mut reader)?)
            }
        };
        reader.finish()?;
        Ok(request)
    }
}

const FLAG_LONG: u8 = 1;
const FLAG_DEFERRED: u8 = 2;
const FLAG_DETACHED: u8 = 4;
const FLAG_TIMEOUT: u8 = 8;
const FLAG_BASE: u8 = 16;
const FLAG_LABEL: u8 = 32;

/// Appends a begin.
pub fn begin(out: &mut Vec<u8>, id: u64, request: &BeginRequest<'_>) {
    let mut frame = FrameWriter::request(out, Op::Begin, id);
    let body = frame.body();
    let BeginOptions { kind, timeout_ms, deferred, detached } = request.options;
    let flags = [
        (kind == Kind::Long, FLAG_LONG),
        (deferred, FLAG_DEFERRED),
        (detached, FLAG_DETACHED),
        (timeout_ms.is_some(), FLAG_TIMEOUT),
        (request.base.is_some(), FLAG_BASE),
        (request.label.is_some(), FLAG_LABEL),
    ];
    body.push(flags.iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum());
    put_varint(body, u64::from(request.count));
    if let Some(timeout_ms) = timeout_ms {
        put_varint(body, timeout_ms);
    }
    if let Some(base) = request.base {
        put_u64(body, base.boot);
        put_varint(body, base.number);
    }
    if let Some(label) = request.label {
        put_text(body, label);
    }
    frame.finish();
}

fn take_begin<'a>(reader: &mut Reader<'a>) -> Result<BeginRequest<'a>, DecodeError> {
    let flags = reader.u8()?;
    if flags & !(FLAG_LONG | FLAG_DEFERRED | FLAG_DETACHED | FLAG_TIMEOUT | FLAG_BASE | FLAG_LABEL) != 0 {
        return Err(DecodeError::UnknownFlags { what: "begin", flags: u32::from(flags) });
    }
    let count = reader.varint_u32("number of transactions")?;
    let timeout_ms = if flags & FLAG_TIMEOUT != 0 { Some(reader.varint()?) } else { None };
    let base =
        if flags & FLAG_BASE != 0 { Some(SnapshotId { boot: reader.u64()?, number: reader.varint()? }) } else { None };
    let label = if flags & FLAG_LABEL != 0 { Some(reader.text("label")?) } else { None };
    let options = BeginOptions {
        kind: if flags & FLAG_LONG != 0 { Kind::Long } else { Kind::Short },
        timeout_ms,
        deferred: flags & FLAG_DEFERRED != 0,
        detached: flags & FLAG_DETACHED != 0,
    };
    Ok(BeginRequest { options, count, base, label })
}

/// Appends a commit of some transactions, answered in their order.
///
/// # Panics
/// If the items are over [`BODY_BYTES_MAX`](crate::BODY_BYTES_MAX); see [`commit_item_bytes`](crate::commit_item_bytes).
pub fn commit<'c, S: Into<Submission<'c>>>(
    out: &mut Vec<u8>,
    id: u64,
    items: impl IntoIterator<Item = (WritePointer, S)>,
) {
    put_items(out, Op::Commit, id, items);
}

/// Appends a check of what commits would come to, answered in their order.
///
/// # Panics
/// As [`commit`].
pub fn can_commit<'c>(out: &mut Vec<u8>, id: u64, items: impl IntoIterator<Item = (WritePointer, &'c ChangeSet)>) {
    put_items(out, Op::CanCommit, id, items);
}

fn put_items<'c, S: Into<Submission<'c>>>(
    out: &mut Vec<u8>,
    op: Op,
    id: u64,
    items: impl IntoIterator<Item = (WritePointer, S)>,
) {
    let mut frame = FrameWriter::request(out, op, id);
    for (tx, submission) in items {
        put_commit_item(frame.body(), tx, submission);
    }
    frame.finish();
}

/// Appends a request for further pointers: of each transaction its checkpoint with this number, counted from 1.
pub fn checkpoint(out: &mut Vec<u8>, id: u64, items: impl IntoIterator<Item = (WritePointer, u32)>) {
    let mut frame = FrameWriter::request(out, Op::Checkpoint, id);
    for (tx, number) in items {
        put_checkpoint_item(frame.body(), tx, number);
    }
    frame.finish();
}

/// Appends a request to forget everything invalid below a pointer.
pub fn truncate_before(out: &mut Vec<u8>, id: u64, bound: WritePointer) {
    let mut frame = FrameWriter::request(out, Op::TruncateBefore, id);
    put_u64(frame.body(), bound.0);
    frame.finish();
}

/// Appends a request to wait until all that is open now has ended.
pub fn fence(out: &mut Vec<u8>, id: u64, timeout_ms: u64) {
    let mut frame = FrameWriter::request(out, Op::Fence, id);
    put_varint(frame.body(), timeout_ms);
    frame.finish();
}

/// Appends a request for a page of an image.
pub fn image(out: &mut Vec<u8>, id: u64, request: ImageRequest) {
    let mut frame = FrameWriter::request(out, Op::Image, id);
    put_u64(frame.body(), request.number);
    put_varint(frame.body(), request.offset);
    frame.finish();
}

/// Appends a request that is about registered stores.
pub fn store(out: &mut Vec<u8>, id: u64, request: StoreRequest<'_>) {
    let mut frame = FrameWriter::request(out, request.op(), id);
    request.encode(frame.body());
    frame.finish();
}

/// Appends a request that names transactions: [`Op::Abort`], [`Op::Invalidate`], [`Op::Status`], [`Op::Settle`] or
/// [`Op::Truncate`].
///
/// # Panics
/// If there are more than 2^21 of them, which is what a frame holds.
pub fn pointers(out: &mut Vec<u8>, op: Op, id: u64, pointers: impl IntoIterator<Item = WritePointer>) {
    let mut frame = FrameWriter::request(out, op, id);
    for pointer in pointers {
        put_u64(frame.body(), pointer.0);
    }
    frame.finish();
}

/// Appends a request whose body was built elsewhere.
///
/// # Panics
/// If the body is over [`BODY_BYTES_MAX`](crate::BODY_BYTES_MAX).
pub fn with_body(out: &mut Vec<u8>, op: Op, id: u64, body: &[u8]) {
    let mut frame = FrameWriter::request(out, op, id);
    frame.body().extend_from_slice(body);
    frame.finish();
}

/// Appends a request for the newest snapshot.
pub fn snapshot(out: &mut Vec<u8>, id: u64, base: Option<SnapshotId>) {
    let mut frame = FrameWriter::request(out, Op::Snapshot, id);
    let body = frame.body();
    match base {
        None => body.push(0),
        Some(base) => {
            body.push(1);
            put_u64(body, base.boot);
            put_varint(body, base.number);
        }
    }
    frame.finish();
}

fn take_base(reader: &mut Reader<'_>) -> Result<Option<SnapshotId>, DecodeError> {
    match reader.u8()? {
        0 => Ok(None),
        1 => Ok(Some(SnapshotId { boot: reader.u64()?, number: reader.varint()? })),
        flags => Err(DecodeError::UnknownFlags { what: "snapshot request", flags: u32::from(flags) }),
    }
}

/// Appends a request for `count` numbers that are unique and grow.
pub fn timestamps(out: &mut Vec<u8>, id: u64, count: u64) {
    let mut frame = FrameWriter::request(out, Op::Timestamps, id);
    put_varint(frame.body(), count);
    frame.finish();
}

/// Appends a request for the server's counters.
pub fn state(out: &mut Vec<u8>, id: u64) {
    FrameWriter::request(out, Op::State, id).finish();
}

/// Appends a request for one page of a list.
pub fn list(out: &mut Vec<u8>, id: u64, request: &ListRequest) {
    let mut frame = FrameWriter::request(out, Op::List, id);
    request.encode(frame.body());
    frame.finish();
}

/// Appends a request to drop everything that is open and invalid in this store.
pub fn reset(out: &mut Vec<u8>, id: u64, store: StoreId) {
    with_body(out, Op::Reset, id, &store.0.to_le_bytes());
}

/// Appends a request for the same bytes back.
pub fn ping(out: &mut Vec<u8>, id: u64, bytes: &[u8]) {
    with_body(out, Op::Ping, id, bytes);
}
