//! The group that takes records: its bytes grow in the buffer that will be written.

use std::ops::Range;

use crate::field::BLOCK_BYTES;
use crate::group::{Digest, GROUP_HEADER_BYTES, GroupHeader, Stamp};
use crate::lsn::Lsn;
use crate::record::{put_record, record_bytes};
use crate::segment::{Origin, SegmentHeader};
use crate::segments::Place;
use crate::storage::Buffer;

/// Where a group's records begin in its buffer: before them are room for the segment's first block and its own header.
const PAYLOAD_AT: usize = BLOCK_BYTES + GROUP_HEADER_BYTES;

/// A group in memory.
pub(crate) struct OpenGroup {
    buffer: Buffer,
    first: Lsn,
    records: u32,
    payload_bytes: usize,
}

impl OpenGroup {
    pub(crate) fn new(buffer: Buffer, first: Lsn) -> OpenGroup {
        OpenGroup { buffer, first, records: 0, payload_bytes: 0 }
    }

    /// Its first record, or the one that will be it.
    pub(crate) fn first(&self) -> Lsn {
        self.first
    }

    /// Its last record, or the one before it.
    pub(crate) fn last(&self) -> Lsn {
        Lsn(self.first.0 + u64::from(self.records) - 1)
    }

    pub(crate) fn records(&self) -> u32 {
        self.records
    }

    pub(crate) fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }

    /// Bytes of its records if one with `payload` came to them.
    pub(crate) fn bytes_with(&self, payload: &[u8]) -> usize {
        self.payload_bytes + record_bytes(payload.len())
    }

    /// Takes a record, for which the caller made sure that there is room.
    pub(crate) fn push(&mut self, kind: u8, payload: &[u8]) {
        put_record(&mut self.buffer[PAYLOAD_AT + self.payload_bytes..], kind, payload);
        self.payload_bytes = self.bytes_with(payload);
        self.records += 1;
    }

    /// Writes the headers in front of the records and the padding behind them; says which part of the buffer is to be
    /// written.
    pub(crate) fn seal(
        &mut self,
        origin: Origin,
        place: &Place,
        stamp: &Stamp,
        previous: Digest,
    ) -> (GroupHeader, Range<usize>) {
        let mut header = GroupHeader {
            segment: place.segment,
            block: u32::try_from(place.offset / BLOCK_BYTES as u64).expect("a segment within its limit"),
            stamp: *stamp,
            first: self.first,
            records: self.records,
            payload_bytes: u32::try_from(self.payload_bytes).expect("a group within its limit"),
            previous,
            digest: Digest::default(),
        };
        let padded = header.padded_bytes();
        let (front, rest) = self.buffer.split_at_mut(PAYLOAD_AT);
        let (payload, after) = rest.split_at_mut(self.payload_bytes);
        header.seal(origin, &mut front[BLOCK_BYTES..], payload);
        after[..padded - GROUP_HEADER_BYTES - self.payload_bytes].fill(0);
        let end = BLOCK_BYTES + padded;
        let Some((previous_segment, previous_end)) = place.continues else { return (header, BLOCK_BYTES..end) };
        let first_block = SegmentHeader {
            origin,
            token: stamp.token,
            first: self.first,
            created_ms: stamp.commit_time_ms,
            previous: previous_segment,
            previous_end,
            digest: previous,
        };
        first_block.encode(front);
        (header, 0..end)
    }

    /// Begins the next group in `buffer` and hands this one's over.
    pub(crate) fn hand_over(&mut self, buffer: Buffer) -> Buffer {
        let next = OpenGroup::new(buffer, self.last().plus(1));
        std::mem::replace(self, next).buffer
    }
}

/// The records of a group that was sealed in `buffer`.
pub(crate) fn payload_in<'a>(buffer: &'a Buffer, header: &GroupHeader) -> &'a [u8] {
    &buffer[PAYLOAD_AT..][..header.payload_bytes as usize]
}
