//! Replies: what a server sends. Each function appends one whole frame.

use seriatim_core::{BeginError, CommitError, CommitNumber, Snapshot, Status, WritePointer};

use crate::bytes::{Reader, put_u64, put_varint};
use crate::error::{DecodeError, ErrorReply};
use crate::frame::{Frame, FrameWriter, Op};
use crate::hello::HelloReply;
use crate::outcome::{
    Bools, Outcomes, Results, Statuses, put_advice, put_begin_error, put_checkpoint, put_outcome, put_status,
    take_begin_error,
};
use crate::snapshot::{SnapshotBytes, encode_snapshot};
use crate::state::{Listed, Listing, State};
use crate::stores::StoreReply;
use crate::upkeep::{Fenced, ImagePage, Truncated};

/// Neighbouring pointers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// The first.
    pub first: WritePointer,
    /// How many.
    pub count: u64,
}

impl Block {
    /// The pointers in order.
    pub fn iter(self) -> impl Iterator<Item = WritePointer> {
        (0..self.count).map(move |index| WritePointer(self.first.0 + index))
    }

    fn put(self, body: &mut Vec<u8>) {
        put_u64(body, self.first.0);
        put_varint(body, self.count);
    }

    fn take(reader: &mut Reader<'_>) -> Result<Block, DecodeError> {
        let block = Block { first: reader.pointer()?, count: reader.varint()? };
        match block.first.0.checked_add(block.count) {
            Some(_) => Ok(block),
            None => Err(DecodeError::OutOfRange { what: "number of pointers", value: block.count }),
        }
    }
}

/// A reply as it was read; items lie where the frame lies.
#[derive(Clone, Debug)]
pub enum Reply<'a> {
    /// See [`Op::Hello`].
    Hello(HelloReply),
    /// See [`Op::Begin`].
    Begin(Result<(Block, SnapshotBytes<'a>), BeginError>),
    /// See [`Op::Commit`].
    Commit(Outcomes<'a>),
    /// See [`Op::Abort`]: how each ended. `Committed` says that the abort came too late, `Open` that nothing was done.
    Abort(Statuses<'a>),
    /// See [`Op::Invalidate`]: whether each was ended by this.
    Invalidate(Bools<'a>),
    /// See [`Op::Status`].
    Status(Statuses<'a>),
    /// See [`Op::Settle`].
    Settle(Statuses<'a>),
    /// See [`Op::Snapshot`].
    Snapshot(SnapshotBytes<'a>),
    /// See [`Op::Timestamps`].
    Timestamps(Result<Block, BeginError>),
    /// See [`Op::State`].
    State(State),
    /// See [`Op::List`].
    List(Listing<'a>),
    /// See [`Op::Reset`].
    Reset {
        /// Transactions below this pointer are refused from here on.
        floor: WritePointer,
    },
    /// See [`Op::Ping`].
    Ping(&'a [u8]),
    /// See [`Op::CanCommit`].
    CanCommit(Results<'a, ()>),
    /// See [`Op::Checkpoint`].
    Checkpoint(Results<'a, WritePointer>),
    /// See [`Op::Truncate`]: whether each was forgotten.
    Truncate(Bools<'a>),
    /// See [`Op::TruncateBefore`].
    TruncateBefore(Truncated),
    /// See [`Op::Fence`].
    Fence(Fenced),
    /// See [`Op::Image`].
    Image(ImagePage<'a>),
    /// What registered stores hear.
    Store(StoreReply),
    /// The request was not done.
    Error(ErrorReply<'a>),
}

impl<'a> Reply<'a> {
    /// Reads a reply of one frame, see [`Reply::decode_body`] for one of many.
    ///
    /// # Errors
    /// If the frame is no complete reply of this version.
    pub fn decode(frame: &Frame<'a>) -> Result<Reply<'a>, DecodeError> {
        if frame.flags != 0 {
            return Err(DecodeError::UnknownFlags { what: "reply", flags: u32::from(frame.flags) });
        }
        Reply::decode_body(frame.op, frame.body)
    }

    /// Reads the body of a reply, put together from all its frames.
    ///
    /// Everything is checked but the snapshot of a begin, which is checked when it is decoded against its base.
    ///
    /// # Errors
    /// If the op or the body is none of this version.
    pub fn decode_body(op: u8, body: &'a [u8]) -> Result<Reply<'a>, DecodeError> {
        if op == Op::ERROR {
            return ErrorReply::decode(body).map(Reply::Error);
        }
        let request = Op::from_u8(op ^ Op::REPLY).ok_or(DecodeError::UnknownOp(op))?;
        let mut reader = Reader(body);
        let reply = match request {
            Op::Hello => return HelloReply::decode(body).map(Reply::Hello),
            Op::Commit => return Outcomes::decode(body).map(Reply::Commit),
            Op::Abort => return Statuses::decode(body).map(Reply::Abort),
            Op::Invalidate => return Bools::decode(body).map(Reply::Invalidate),
            Op::Status => return Statuses::decode(body).map(Reply::Status),
            Op::Settle => return Statuses::decode(body).map(Reply::Settle),
            Op::State => return State::decode(body).map(Reply::State),
            Op::List => return Listing::decode(body).map(Reply::List),
            Op::CanCommit => return Results::of_checks(body).map(Reply::CanCommit),
            Op::Checkpoint => return Results::of_checkpoints(body).map(Reply::Checkpoint),
            Op::Truncate => return Bools::decode(body).map(Reply::Truncate),
            Op::Snapshot => return Ok(Reply::Snapshot(SnapshotBytes(body))),
            Op::Ping => return Ok(Reply::Ping(body)),
            Op::Begin => Reply::Begin(match take_begin_error(&mut reader)? {
                None => Ok((Block::take(&mut reader)?, SnapshotBytes(reader.rest()))),
                Some(error) => Err(error),
            }),
            Op::Timestamps => Reply::Timestamps(match take_begin_error(&mut reader)? {
                None => Ok(Block::take(&mut reader)?),
                Some(error) => Err(error),
            }),
            Op::Reset => Reply::Reset { floor: reader.pointer()? },
            Op::TruncateBefore => Reply::TruncateBefore(Truncated::take(&mut reader)?),
            Op::Fence => Reply::Fence(Fenced::take(&mut reader)?),
            Op::Image => Reply::Image(ImagePage::take(&mut reader)?),
            Op::RegisterStore | Op::RemoveStore | Op::CleanBound | Op::StoreCleaned | Op::Pruning => {
                Reply::Store(StoreReply::take(request, &mut reader)?)
            }
        };
        reader.finish()?;
        Ok(reply)
    }
}

/// Appends the reply to a begin, for a client that named `base` and whose base is still at hand.
pub fn begin(out: &mut Vec<u8>, id: u64, block: Block, new: &Snapshot, base: Option<&Snapshot>) {
    let mut frame = FrameWriter::reply(out, Op::Begin, id);
    frame.body().push(0);
    block.put(frame.body());
    encode_snapshot(frame.body(), new, base);
    frame.finish();
}

/// Appends the reply to a begin with a snapshot that [`encode_snapshot`] wrote before, once for many clients.
pub fn begin_encoded(out: &mut Vec<u8>, id: u64, block: Block, snapshot: &[u8]) {
    let mut frame = FrameWriter::reply(out, Op::Begin, id);
    frame.body().push(0);
    block.put(frame.body());
    frame.body().extend_from_slice(snapshot);
    frame.finish();
}

/// Appends the reply to a begin that was refused.
pub fn begin_refused(out: &mut Vec<u8>, id: u64, error: &BeginError) {
    let mut frame = FrameWriter::reply(out, Op::Begin, id);
    put_begin_error(frame.body(), error);
    frame.finish();
}

/// Appends the reply to a commit: what each of its transactions came to, in its order.
pub fn commit(out: &mut Vec<u8>, id: u64, outcomes: impl IntoIterator<Item = Result<CommitNumber, CommitError>>) {
    let mut frame = FrameWriter::reply(out, Op::Commit, id);
    let mut last = 0;
    for outcome in outcomes {
        put_outcome(frame.body(), &outcome, &mut last);
    }
    frame.finish();
}

/// Appends the reply to [`Op::Abort`], [`Op::Status`] or [`Op::Settle`]: where each transaction stands, in its order.
pub fn statuses(out: &mut Vec<u8>, op: Op, id: u64, statuses: impl IntoIterator<Item = Status>) {
    let mut frame = FrameWriter::reply(out, op, id);
    for status in statuses {
        put_status(frame.body(), status);
    }
    frame.finish();
}

/// Appends the reply to an [`Op::Invalidate`] or an [`Op::Truncate`]: whether it changed anything for each transaction, in
/// its order.
pub fn bools(out: &mut Vec<u8>, op: Op, id: u64, ended: impl IntoIterator<Item = bool>) {
    let mut frame = FrameWriter::reply(out, op, id);
    frame.body().extend(ended.into_iter().map(u8::from));
    frame.finish();
}

/// Appends the newest snapshot, for a client that named `base` and whose base is still at hand.
pub fn snapshot(out: &mut Vec<u8>, id: u64, new: &Snapshot, base: Option<&Snapshot>) {
    let mut frame = FrameWriter::reply(out, Op::Snapshot, id);
    encode_snapshot(frame.body(), new, base);
    frame.finish();
}

/// Appends the newest snapshot as [`encode_snapshot`] wrote it before.
pub fn snapshot_encoded(out: &mut Vec<u8>, id: u64, snapshot: &[u8]) {
    let mut frame = FrameWriter::reply(out, Op::Snapshot, id);
    frame.body().extend_from_slice(snapshot);
    frame.finish();
}

/// Appends the reply to a request for timestamps.
pub fn timestamps(out: &mut Vec<u8>, id: u64, block: &Result<Block, BeginError>) {
    let mut frame = FrameWriter::reply(out, Op::Timestamps, id);
    let body = frame.body();
    match block {
        Ok(block) => {
            body.push(0);
            block.put(body);
        }
        Err(error) => put_begin_error(body, error),
    }
    frame.finish();
}

/// Appends the server's counters.
pub fn state(out: &mut Vec<u8>, id: u64, state: &State) {
    let mut frame = FrameWriter::reply(out, Op::State, id);
    state.encode(frame.body());
    frame.finish();
}

/// Appends one page of a list; `more` if there is another.
pub fn list<'l>(out: &mut Vec<u8>, id: u64, more: bool, entries: impl IntoIterator<Item = &'l Listed>) {
    let mut frame = FrameWriter::reply(out, Op::List, id);
    frame.body().push(u8::from(more));
    for entry in entries {
        entry.encode(frame.body());
    }
    frame.finish();
}

/// Appends the reply to a reset.
pub fn reset(out: &mut Vec<u8>, id: u64, floor: WritePointer) {
    let mut frame = FrameWriter::reply(out, Op::Reset, id);
    put_u64(frame.body(), floor.0);
    frame.finish();
}

/// Appends the reply to a ping.
pub fn ping(out: &mut Vec<u8>, id: u64, bytes: &[u8]) {
    let mut frame = FrameWriter::reply(out, Op::Ping, id);
    frame.body().extend_from_slice(bytes);
    frame.finish();
}

/// Appends the reply to a check: what each commit would come to, in its order.
pub fn can_commit(out: &mut Vec<u8>, id: u64, checks: impl IntoIterator<Item = Result<(), CommitError>>) {
    let mut frame = FrameWriter::reply(out, Op::CanCommit, id);
    checks.into_iter().for_each(|check| put_advice(frame.body(), &check));
    frame.finish();
}

/// Appends the reply to checkpoints: the pointer of each, in their order.
pub fn checkpoint(out: &mut Vec<u8>, id: u64, taken: impl IntoIterator<Item = Result<WritePointer, CommitError>>) {
    let mut frame = FrameWriter::reply(out, Op::Checkpoint, id);
    taken.into_iter().for_each(|taken| put_checkpoint(frame.body(), &taken));
    frame.finish();
}

/// Appends the reply to a truncation up to a pointer.
pub fn truncate_before(out: &mut Vec<u8>, id: u64, truncated: Truncated) {
    let mut frame = FrameWriter::reply(out, Op::TruncateBefore, id);
    truncated.encode(frame.body());
    frame.finish();
}

/// Appends the reply to a fence.
pub fn fence(out: &mut Vec<u8>, id: u64, fenced: Fenced) {
    let mut frame = FrameWriter::reply(out, Op::Fence, id);
    fenced.encode(frame.body());
    frame.finish();
}

/// Appends a page of an image.
pub fn image(out: &mut Vec<u8>, id: u64, page: ImagePage<'_>) {
    let mut frame = FrameWriter::reply(out, Op::Image, id);
    page.encode(frame.body());
    frame.finish();
}

/// Appends what a registered store hears.
pub fn store(out: &mut Vec<u8>, id: u64, reply: &StoreReply) {
    let mut frame = FrameWriter::reply(out, reply.op(), id);
    reply.encode(frame.body());
    frame.finish();
}

/// Appends an error that answers request `id`, or none if 0; see [`ErrorReply`].
pub fn error(out: &mut Vec<u8>, id: u64, error: &ErrorReply<'_>) {
    error.encode(out, id);
}
