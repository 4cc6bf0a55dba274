//! The frame: 16 bytes of header, then a body whose meaning goes with the header's op.
//!
//! ```text
//!  0        4     5      6          8            16
//! ┌────────┬─────┬──────┬──────────┬────────────┬──────────┐
//! │ len u32│op u8│flags │ zero u16 │ request id │ body …   │   len counts the body alone
//! └────────┴─────┴──────┴──────────┴────────────┴──────────┘
//! ```

use crate::error::DecodeError;
use crate::{BODY_BYTES_MAX, HEADER_BYTES};

/// Flag of a reply that goes on in the next frame: a snapshot of millions of exclusions does not fit one.
pub const FLAG_MORE: u8 = 1;

/// What a request asks for. A reply carries its request's op with the highest bit set.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum Op {
    /// Says who is there; comes first, and once.
    Hello = 1,
    /// Begins transactions.
    Begin = 2,
    /// Commits transactions.
    Commit = 3,
    /// Ends transactions whose writes were rolled back.
    Abort = 4,
    /// Ends transactions whose writes may stand.
    Invalidate = 5,
    /// Looks where transactions stand.
    Status = 6,
    /// Ends doubts about transactions.
    Settle = 7,
    /// Asks for the newest snapshot, without beginning anything.
    Snapshot = 8,
    /// Takes numbers that are unique and grow.
    Timestamps = 9,
    /// Asks for the server's counters.
    State = 10,
    /// Asks which transactions are open or invalid.
    List = 11,
    /// Drops everything that is open and invalid.
    Reset = 12,
    /// Asks for the same bytes back.
    Ping = 13,
    /// Checks what commits would come to, and keeps their change sets.
    CanCommit = 14,
    /// Takes further write pointers.
    Checkpoint = 15,
    /// Forgets invalid transactions one by one.
    Truncate = 16,
    /// Forgets invalid transactions up to a pointer.
    TruncateBefore = 17,
    /// Waits until every transaction that was open when it was asked has ended.
    Fence = 18,
    /// Reads the published state, page by page.
    Image = 19,
    /// Registers a store, which says from then on what it has cleaned.
    RegisterStore = 20,
    /// Takes a store out.
    RemoveStore = 21,
    /// Asks how far stores may clean.
    CleanBound = 22,
    /// Says that a store holds nothing of invalid transactions up to a pointer.
    StoreCleaned = 23,
    /// Asks who keeps the invalid set from becoming smaller.
    Pruning = 24,
}

const OPS: [Op; 24] = [
    Op::Hello,
    Op::Begin,
    Op::Commit,
    Op::Abort,
    Op::Invalidate,
    Op::Status,
    Op::Settle,
    Op::Snapshot,
    Op::Timestamps,
    Op::State,
    Op::List,
    Op::Reset,
    Op::Ping,
    Op::CanCommit,
    Op::Checkpoint,
    Op::Truncate,
    Op::TruncateBefore,
    Op::Fence,
    Op::Image,
    Op::RegisterStore,
    Op::RemoveStore,
    Op::CleanBound,
    Op::StoreCleaned,
    Op::Pruning,
];

impl Op {
    /// The bit that makes a request's op its reply's.
    pub const REPLY: u8 = 0x80;

    /// Op of an error frame, which may be the reply to any request.
    pub const ERROR: u8 = 0xff;

    /// The op with this number.
    pub fn from_u8(code: u8) -> Option<Op> {
        OPS.get(usize::from(code).wrapping_sub(1)).copied()
    }
}

/// One frame, where it lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// See [`Op`]; a reply's with [`Op::REPLY`], an error's [`Op::ERROR`].
    pub op: u8,
    /// Replies: [`FLAG_MORE`]. Requests: none in this version.
    pub flags: u8,
    /// Chosen by the client, echoed by the server.
    pub id: u64,
    /// What follows the header.
    pub body: &'a [u8],
}

/// Takes the complete frames off the front of some bytes.
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    rest: &'a [u8],
    taken: usize,
    body_max: u32,
}

impl<'a> Frames<'a> {
    /// Frames whose bodies hold at most `body_max` bytes.
    pub fn new(bytes: &'a [u8], body_max: u32) -> Frames<'a> {
        Frames { rest: bytes, taken: 0, body_max }
    }

    /// Bytes of the frames taken so far.
    pub fn taken(&self) -> usize {
        self.taken
    }

    /// The next frame; `None` until more bytes arrive.
    ///
    /// # Errors
    /// If a header is none of this protocol. Where the next frame starts is lost then: the connection has to close.
    #[expect(clippy::should_implement_trait, reason = "an error ends the walk, which an iterator cannot say")]
    pub fn next(&mut self) -> Result<Option<Frame<'a>>, DecodeError> {
        let Some((header, rest)) = self.rest.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let [l0, l1, l2, l3, op, flags, z0, z1, id @ ..] = *header;
        let len = u32::from_le_bytes([l0, l1, l2, l3]);
        if len > self.body_max {
            return Err(DecodeError::FrameTooLarge { len: u64::from(len), max: u64::from(self.body_max) });
        }
        let reserved = u16::from_le_bytes([z0, z1]);
        if reserved != 0 {
            return Err(DecodeError::UnknownFlags { what: "header", flags: u32::from(reserved) });
        }
        let Some((body, rest)) = rest.split_at_checked(len as usize) else { return Ok(None) };
        self.rest = rest;
        self.taken += HEADER_BYTES + body.len();
        Ok(Some(Frame { op, flags, id: u64::from_le_bytes(id), body }))
    }
}

/// Appends one frame: opened with its header, filled through [`FrameWriter::body`], closed by [`FrameWriter::finish`].
#[must_use = "a frame that is not finished has no length"]
#[derive(Debug)]
pub struct FrameWriter<'o> {
    out: &'o mut Vec<u8>,
    start: usize,
}

impl<'o> FrameWriter<'o> {
    /// Opens a request. Its body may not pass [`BODY_BYTES_MAX`].
    pub fn request(out: &'o mut Vec<u8>, op: Op, id: u64) -> FrameWriter<'o> {
        FrameWriter::open(out, op as u8, id)
    }

    /// Opens the reply to a request. A body over [`BODY_BYTES_MAX`] goes out in parts.
    pub fn reply(out: &'o mut Vec<u8>, op: Op, id: u64) -> FrameWriter<'o> {
        FrameWriter::open(out, op as u8 | Op::REPLY, id)
    }

    pub(crate) fn error(out: &'o mut Vec<u8>, id: u64) -> FrameWriter<'o> {
        FrameWriter::open(out, Op::ERROR, id)
    }

    fn open(out: &'o mut Vec<u8>, op: u8, id: u64) -> FrameWriter<'o> {
        let start = out.len();
        let [i0, i1, i2, i3, i4, i5, i6, i7] = id.to_le_bytes();
        out.extend_from_slice(&[0, 0, 0, 0, op, 0, 0, 0, i0, i1, i2, i3, i4, i5, i6, i7]);
        FrameWriter { out, start }
    }

    /// Where the body goes. Only append.
    pub fn body(&mut self) -> &mut Vec<u8> {
        self.out
    }

    /// Writes the length.
    ///
    /// # Panics
    /// If a request's body passed [`BODY_BYTES_MAX`]: who builds requests counts what goes in.
    pub fn finish(self) {
        finish(self.out, self.start, BODY_BYTES_MAX as usize);
    }
}

/// Writes the length of the frame that starts at `start` and ends where `out` ends, or cuts it into parts.
fn finish(out: &mut Vec<u8>, start: usize, body_max: usize) {
    let body = start + HEADER_BYTES;
    let len = out.len() - body;
    if len <= body_max {
        out[start..start + 4].copy_from_slice(&(len as u32).to_le_bytes());
        return;
    }
    assert!(out[start + 4] & Op::REPLY != 0, "a request of {len} bytes is over the limit of {body_max}");
    let header: [u8; HEADER_BYTES] = out[start..body].try_into().expect("a header's length");
    let parts = len.div_ceil(body_max);
    out.resize(out.len() + (parts - 1) * HEADER_BYTES, 0);
    // From the last part to the first, so that none is overwritten before it has moved.
    for part in (0..parts).rev() {
        let part_len = body_max.min(len - part * body_max);
        let from = body + part * body_max;
        let to = from + part * HEADER_BYTES;
        out.copy_within(from..from + part_len, to);
        let mut header = header;
        header[..4].copy_from_slice(&(part_len as u32).to_le_bytes());
        header[5] = if part + 1 < parts { FLAG_MORE } else { 0 };
        out[to - HEADER_BYTES..to].copy_from_slice(&header);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ops_are_numbered_as_they_are_listed() {
        for op in OPS {
            assert_eq!(Op::from_u8(op as u8), Some(op));
        }
        assert_eq!(Op::from_u8(0), None);
        assert_eq!(Op::from_u8(OPS.len() as u8 + 1), None);
    }

    #[test]
    fn a_reply_over_the_limit_goes_out_in_parts_that_join_to_the_same_bytes() {
        for body_len in 0..70usize {
            let content: Vec<u8> = (0..body_len as u8).collect();
            let mut out = vec![0xee; 3];
            FrameWriter::reply(&mut out, Op::Snapshot, 77).body().extend_from_slice(&content);
            finish(&mut out, 3, 16);
            let mut frames = Frames::new(&out[3..], 16);
            let (mut joined, mut last) = (Vec::new(), FLAG_MORE);
            while let Some(frame) = frames.next().unwrap() {
                assert_eq!((frame.op, frame.id, last), (Op::Snapshot as u8 | Op::REPLY, 77, FLAG_MORE));
                joined.extend_from_slice(frame.body);
                last = frame.flags;
            }
            assert_eq!((joined, last, frames.taken()), (content, 0, out.len() - 3));
        }
    }

    #[test]
    #[should_panic(expected = "a request of 17 bytes is over the limit of 16")]
    fn a_request_is_never_cut_into_parts() {
        let mut out = Vec::new();
        FrameWriter::request(&mut out, Op::Ping, 1).body().extend_from_slice(&[0; 17]);
        finish(&mut out, 0, 16);
    }

    #[test]
    fn a_header_is_checked_before_its_body_has_come() {
        let mut header = [0u8; HEADER_BYTES];
        header[..4].copy_from_slice(&1001u32.to_le_bytes());
        assert_eq!(Frames::new(&header, 1000).next(), Err(DecodeError::FrameTooLarge { len: 1001, max: 1000 }));
        header[..4].copy_from_slice(&1000u32.to_le_bytes());
        assert_eq!(Frames::new(&header, 1000).next(), Ok(None));
        header[7] = 1;
        assert_eq!(Frames::new(&header, 1000).next(), Err(DecodeError::UnknownFlags { what: "header", flags: 0x100 }));
    }
}
