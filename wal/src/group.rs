//! A group: records that became durable together, with the header that proves it.

use std::fmt;

use xxhash_rust::xxh3::Xxh3;

use crate::field::{
    BLOCK_BYTES, is_sealed, put_u16, put_u32, put_u64, put_u128, seal, u16_at, u32_at, u64_at, u128_at,
};
use crate::identity::{FORMAT_VERSION, StoreId};
use crate::lsn::Lsn;
use crate::record::{Records, are_records};
use crate::segment::Origin;

const MAGIC: [u8; 8] = *b"SERIAGRP";

/// Bytes of a group's header; its records follow at once.
pub const GROUP_HEADER_BYTES: usize = 152;

/// The header's bytes that its own digest covers: all fields before it.
const DIGESTED_BYTES: usize = 128;

/// 128 bits over a group and, by the digest of the group before, over everything before it. Two logs with the same
/// digest hold the same groups. It finds accidents, not forgers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Digest(pub u128);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "digest:{self}")
    }
}

/// What the caller says about a group beside its records. The log keeps it and, but for the token, does not look at it.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Stamp {
    /// Quorum epoch. Never lower than that of the group before.
    pub token: u64,
    /// Commit number of the first commit in the group, or of the next commit if it has none.
    pub first_csn: u64,
    /// Commits of the store's life up to and with this group.
    pub commits: u64,
    /// Wall clock, milliseconds since the Unix epoch.
    pub commit_time_ms: u64,
    /// Milliseconds of the clock that advances only while a process serves.
    pub sequencer_time_ms: u64,
}

/// The header of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupHeader {
    /// The segment that holds it.
    pub segment: u64,
    /// Its place there, in blocks of 4 KiB from the start of the file.
    pub block: u32,
    /// What the caller said.
    pub stamp: Stamp,
    /// Its first record; of an empty group the record that will come next.
    pub first: Lsn,
    /// How many records. A closing group has none.
    pub records: u32,
    /// Bytes of the records.
    pub payload_bytes: u32,
    /// Digest of the group before.
    pub previous: Digest,
    /// Digest of this group.
    pub digest: Digest,
}

impl GroupHeader {
    /// The record after its last one.
    pub fn next(&self) -> Lsn {
        self.first.plus(u64::from(self.records))
    }

    /// The last record at or before the end of this group.
    pub fn last(&self) -> Lsn {
        Lsn(self.next().0 - 1)
    }

    /// Bytes that the group takes in its segment, padding included.
    pub fn padded_bytes(&self) -> usize {
        padded_group_bytes(self.payload_bytes as usize)
    }

    /// Writes the header in front of `payload`, computing its digest.
    pub(crate) fn seal(&mut self, origin: Origin, out: &mut [u8], payload: &[u8]) {
        let out = &mut out[..GROUP_HEADER_BYTES];
        self.put_fields(origin, out);
        self.digest = digest(out, payload);
        put_u128(out, 128, self.digest.0);
        seal(out);
    }

    fn put_fields(&self, origin: Origin, out: &mut [u8]) {
        out.fill(0);
        out[..8].copy_from_slice(&MAGIC);
        put_u16(out, 8, FORMAT_VERSION);
        put_u32(out, 12, self.block);
        put_u128(out, 16, origin.store.0);
        put_u64(out, 32, origin.segment);
        put_u64(out, 40, origin.salt);
        put_u64(out, 48, self.stamp.token);
        put_u64(out, 56, self.first.0);
        put_u64(out, 64, self.stamp.first_csn);
        put_u64(out, 72, self.stamp.commits);
        put_u64(out, 80, self.stamp.commit_time_ms);
        put_u64(out, 88, self.stamp.sequencer_time_ms);
        put_u32(out, 96, self.payload_bytes);
        put_u32(out, 100, self.records);
        put_u128(out, 112, self.previous.0);
    }

    /// Reads the header at `offset` of a segment's bytes and believes it only if it was written there, in this use
    /// of the segment.
    pub(crate) fn read(segment: &[u8], offset: usize, origin: Origin) -> Result<GroupHeader, Fault> {
        let header =
            segment.get(offset..).and_then(|rest| rest.first_chunk::<GROUP_HEADER_BYTES>()).ok_or(Fault::EndOfFile)?;
        if header[..8] != MAGIC {
            return Err(Fault::NoHeader);
        }
        if !is_sealed(header) {
            return Err(Fault::HeaderChecksum);
        }
        if u128_at(header, 16) != origin.store.0
            || u64_at(header, 32) != origin.segment
            || u64_at(header, 40) != origin.salt
        {
            return Err(Fault::OtherUse);
        }
        if u16_at(header, 8) != FORMAT_VERSION {
            return Err(Fault::Version(u16_at(header, 8)));
        }
        let block = u32_at(header, 12);
        if block as usize != offset / BLOCK_BYTES {
            return Err(Fault::Misplaced { block });
        }
        Ok(GroupHeader {
            segment: origin.segment,
            block,
            stamp: Stamp {
                token: u64_at(header, 48),
                first_csn: u64_at(header, 64),
                commits: u64_at(header, 72),
                commit_time_ms: u64_at(header, 80),
                sequencer_time_ms: u64_at(header, 88),
            },
            first: Lsn(u64_at(header, 56)),
            payload_bytes: u32_at(header, 96),
            records: u32_at(header, 100),
            previous: Digest(u128_at(header, 112)),
            digest: Digest(u128_at(header, 128)),
        })
    }

    /// The header at `offset` of segment number `segment`, whichever use of the file it is from.
    pub(crate) fn read_any_salt(bytes: &[u8], offset: usize, store: StoreId, segment: u64) -> Option<GroupHeader> {
        let salt = u64_at(bytes.get(offset..offset + GROUP_HEADER_BYTES)?, 40);
        GroupHeader::read(bytes, offset, Origin { store, segment, salt }).ok()
    }

    pub(crate) fn has_magic(bytes: &[u8]) -> bool {
        bytes.starts_with(&MAGIC)
    }

    /// Checks the group at `offset` whole: that it follows `previous`, that it ends within `end`, its digest, its framing.
    pub(crate) fn check(
        segment: &[u8],
        offset: usize,
        end: usize,
        origin: Origin,
        next: Lsn,
        previous: Digest,
    ) -> Result<GroupHeader, Fault> {
        let header = GroupHeader::read(segment, offset, origin)?;
        if header.first != next {
            return Err(Fault::OutOfOrder { expected: next, found: header.first });
        }
        if header.previous != previous {
            return Err(Fault::Chain);
        }
        // The length comes from the file: it is compared before it is used.
        if header.padded_bytes() > end.min(segment.len()) - offset {
            return Err(Fault::Length { payload_bytes: header.payload_bytes });
        }
        let payload = &segment[offset + GROUP_HEADER_BYTES..][..header.payload_bytes as usize];
        if digest(&segment[offset..], payload) != header.digest {
            return Err(Fault::Digest);
        }
        if !are_records(payload, header.records) {
            return Err(Fault::Records);
        }
        Ok(header)
    }
}

/// A group's bytes in its segment, padding included.
pub(crate) const fn padded_group_bytes(payload_bytes: usize) -> usize {
    (GROUP_HEADER_BYTES + payload_bytes).next_multiple_of(BLOCK_BYTES)
}

fn digest(header: &[u8], payload: &[u8]) -> Digest {
    let mut hasher = Xxh3::new();
    hasher.update(&header[..DIGESTED_BYTES]);
    hasher.update(payload);
    Digest(hasher.digest128())
}

/// The first place at or after `from` where a group of this use of the segment begins.
pub(crate) fn find_group(segment: &[u8], from: usize, origin: Origin) -> Option<usize> {
    (from..segment.len()).step_by(BLOCK_BYTES).find(|at| GroupHeader::read(segment, *at, origin).is_ok())
}

/// Why the bytes at a place are not the group that belongs there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// The file ends.
    #[error("the file ends before the group does")]
    EndOfFile,
    /// No group begins here.
    #[error("no group begins there")]
    NoHeader,
    /// A header whose bytes changed.
    #[error("the group's header does not match its checksum")]
    HeaderChecksum,
    /// A header of an earlier use of the file, or of another store.
    #[error("the group there belongs to another use of the file")]
    OtherUse,
    /// A header of a version that is not known here.
    #[error("the group has format version {0}")]
    Version(u16),
    /// A header that was meant for another place.
    #[error("the group there was written for block {block}")]
    Misplaced {
        /// Where it belongs.
        block: u32,
    },
    /// A group that does not follow the one before.
    #[error("the group begins with record {found}, due was {expected}")]
    OutOfOrder {
        /// The record that was due.
        expected: Lsn,
        /// The record it begins with.
        found: Lsn,
    },
    /// A group with other ancestors.
    #[error("the group follows another group than the one before it")]
    Chain,
    /// A group that claims more room than there is.
    #[error("the group claims {payload_bytes} bytes, which do not fit")]
    Length {
        /// What it claims.
        payload_bytes: u32,
    },
    /// Records whose bytes changed.
    #[error("the group's records do not match their digest")]
    Digest,
    /// Records that do not add up.
    #[error("the group's records do not fill it exactly")]
    Records,
    /// The first block of a segment whose bytes changed.
    #[error("the segment's first block is damaged")]
    SegmentHeader,
    /// A segment that does not follow the one before.
    #[error("the segment continues segment {previous} at byte {previous_end}, not what is there")]
    SegmentChain {
        /// The segment it says it continues.
        previous: u64,
        /// From where.
        previous_end: u32,
    },
}

/// A durable group.
#[derive(Clone, Copy, Debug)]
pub struct Group<'a> {
    header: GroupHeader,
    payload: &'a [u8],
    after: Lsn,
}

impl<'a> Group<'a> {
    pub(crate) fn new(header: GroupHeader, payload: &'a [u8], after: Lsn) -> Group<'a> {
        assert_eq!(header.payload_bytes as usize, payload.len(), "payload of {:?}", header.first);
        Group { header, payload, after }
    }

    /// Its header.
    pub fn header(&self) -> &GroupHeader {
        &self.header
    }

    /// What the caller said about it.
    pub fn stamp(&self) -> &Stamp {
        &self.header.stamp
    }

    /// Its records in order; in recovery without those that the image covers.
    pub fn records(&self) -> Records<'a> {
        Records::new(self.header.first, self.payload).after(self.after)
    }

    /// The bytes of all its records, as they stand on disk.
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{put_record, record_bytes};

    const ORIGIN: Origin = Origin { store: StoreId(77), segment: 5, salt: 0xdead_beef };

    fn example(payload_bytes: usize) -> (GroupHeader, Vec<u8>) {
        let mut payload = vec![0; record_bytes(payload_bytes)];
        put_record(&mut payload, 2, &vec![0x33; payload_bytes]);
        let mut header = GroupHeader {
            segment: ORIGIN.segment,
            block: 1,
            stamp: Stamp { token: 1, first_csn: 2, commits: 3, commit_time_ms: 4, sequencer_time_ms: 5 },
            first: Lsn(10),
            records: 1,
            payload_bytes: payload.len() as u32,
            previous: Digest(99),
            digest: Digest(0),
        };
        let mut segment = vec![0; BLOCK_BYTES + header.padded_bytes()];
        let mut head = [0; GROUP_HEADER_BYTES];
        header.seal(ORIGIN, &mut head, &payload);
        segment[BLOCK_BYTES..][..GROUP_HEADER_BYTES].copy_from_slice(&head);
        segment[BLOCK_BYTES + GROUP_HEADER_BYTES..][..payload.len()].copy_from_slice(&payload);
        (header, segment)
    }

    fn check(segment: &[u8]) -> Result<GroupHeader, Fault> {
        GroupHeader::check(segment, BLOCK_BYTES, segment.len(), ORIGIN, Lsn(10), Digest(99))
    }

    #[test]
    fn a_group_reads_back() {
        let (header, segment) = example(5000);
        assert_eq!(check(&segment), Ok(header));
        assert_eq!(header.next(), Lsn(11));
        assert_eq!(find_group(&segment, 0, ORIGIN), Some(BLOCK_BYTES));
    }

    #[test]
    fn no_flipped_bit_of_header_or_records_goes_unnoticed() {
        let (header, mut segment) = example(60);
        for bit in 0..(GROUP_HEADER_BYTES + header.payload_bytes as usize) * 8 {
            segment[BLOCK_BYTES + bit / 8] ^= 1 << (bit % 8);
            assert!(check(&segment).is_err(), "bit {bit}");
            segment[BLOCK_BYTES + bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_group_out_of_its_place_order_chain_or_use_is_refused() {
        let (header, segment) = example(60);
        let next = |next, previous, origin| {
            GroupHeader::check(&segment, BLOCK_BYTES, segment.len(), origin, next, previous).unwrap_err()
        };
        assert_eq!(next(Lsn(9), Digest(99), ORIGIN), Fault::OutOfOrder { expected: Lsn(9), found: Lsn(10) });
        assert_eq!(next(Lsn(10), Digest(98), ORIGIN), Fault::Chain);
        assert_eq!(next(Lsn(10), Digest(99), Origin { salt: 1, ..ORIGIN }), Fault::OtherUse);
        let mut moved = segment.clone();
        moved.extend_from_slice(&segment[BLOCK_BYTES..]);
        let at = BLOCK_BYTES + header.padded_bytes();
        assert_eq!(GroupHeader::read(&moved, at, ORIGIN), Err(Fault::Misplaced { block: 1 }));
        assert_eq!(GroupHeader::read(&segment, segment.len(), ORIGIN), Err(Fault::EndOfFile));
    }

    #[test]
    fn a_length_beyond_the_file_is_refused_before_it_is_used() {
        let (mut header, mut segment) = example(60);
        header.payload_bytes = u32::MAX - 100;
        let mut head = [0; GROUP_HEADER_BYTES];
        header.seal(ORIGIN, &mut head, &[]);
        segment[BLOCK_BYTES..][..GROUP_HEADER_BYTES].copy_from_slice(&head);
        assert_eq!(check(&segment), Err(Fault::Length { payload_bytes: u32::MAX - 100 }));
    }
}
