//! What operators ask of a server: to forget invalid transactions, to wait for everybody, to hand out its state.

use seriatim_core::WritePointer;

use crate::bytes::{Reader, put_u64, put_varint};
use crate::error::DecodeError;

/// The most bytes of one page of an image: 1 MiB.
pub const IMAGE_PAGE_BYTES_MAX: usize = 1 << 20;

/// What came of forgetting everything invalid before a pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Truncated {
    /// So many transactions and intervals were forgotten, or cut.
    Done(u64),
    /// Nothing was: this one began before the pointer, is open, and may still become invalid.
    InProgress(WritePointer),
}

impl Truncated {
    pub(crate) fn encode(self, body: &mut Vec<u8>) {
        match self {
            Truncated::Done(forgotten) => {
                body.push(0);
                put_varint(body, forgotten);
            }
            Truncated::InProgress(tx) => {
                body.push(1);
                put_u64(body, tx.0);
            }
        }
    }

    pub(crate) fn take(reader: &mut Reader<'_>) -> Result<Truncated, DecodeError> {
        match reader.u8()? {
            0 => Ok(Truncated::Done(reader.varint()?)),
            1 => Ok(Truncated::InProgress(reader.pointer()?)),
            code => Err(DecodeError::UnknownNumber { what: "outcome of a truncation", code: u64::from(code) }),
        }
    }
}

/// What came of waiting for a fence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fenced {
    /// Every transaction that was open when it was asked has ended.
    Passed,
    /// The time was up, and so many of them are open.
    TimedOut(u64),
}

impl Fenced {
    pub(crate) fn encode(self, body: &mut Vec<u8>) {
        match self {
            Fenced::Passed => body.push(0),
            Fenced::TimedOut(open) => {
                body.push(1);
                put_varint(body, open);
            }
        }
    }

    pub(crate) fn take(reader: &mut Reader<'_>) -> Result<Fenced, DecodeError> {
        match reader.u8()? {
            0 => Ok(Fenced::Passed),
            1 => Ok(Fenced::TimedOut(reader.varint()?)),
            code => Err(DecodeError::UnknownNumber { what: "outcome of a fence", code: u64::from(code) }),
        }
    }
}

/// Asks for a part of an image of the published state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImageRequest {
    /// The image that an earlier page was of, or 0 for a new one.
    pub number: u64,
    /// The first byte asked for.
    pub offset: u64,
}

/// A part of an image, at most [`IMAGE_PAGE_BYTES_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ImagePage<'a> {
    /// Which image; the next page names it.
    pub number: u64,
    /// Bytes of the whole image.
    pub total: u64,
    /// The bytes from the offset that was asked for.
    pub bytes: &'a [u8],
}

impl<'a> ImagePage<'a> {
    pub(crate) fn encode(self, body: &mut Vec<u8>) {
        put_u64(body, self.number);
        put_varint(body, self.total);
        body.extend_from_slice(self.bytes);
    }

    pub(crate) fn take(reader: &mut Reader<'a>) -> Result<ImagePage<'a>, DecodeError> {
        Ok(ImagePage { number: reader.u64()?, total: reader.varint()?, bytes: reader.rest() })
    }
}
