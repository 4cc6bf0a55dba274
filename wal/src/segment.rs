//! The first block of a segment: which part of the log it holds and what came before it.

use crate::field::{BLOCK_BYTES, put_u16, put_u32, put_u64, put_u128, seal, u32_at, u64_at, u128_at};
use crate::group::Digest;
use crate::identity::{FORMAT_VERSION, StoreId, Unreadable, check_header};
use crate::lsn::Lsn;

const MAGIC: [u8; 8] = *b"SERIASEG";

/// Bytes of the fields; the rest of the block is zero.
const HEADER_BYTES: usize = 128;

/// What every header within one use of a segment must say; anything else there is of another use or another store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Origin {
    pub store: StoreId,
    pub segment: u64,
    /// Drawn anew for each use of a file, so that groups of an earlier use are never taken for groups of this one.
    pub salt: u64,
}

/// The first block of a segment that is in use. It is written together with the segment's first group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SegmentHeader {
    pub origin: Origin,
    pub token: u64,
    /// First record of the first group.
    pub first: Lsn,
    /// Wall clock, informational.
    pub created_ms: u64,
    /// The segment before; 0 for the first of a store.
    pub previous: u64,
    /// Where the groups of the segment before end. What lies there beyond is dead for ever, whatever it looks like.
    pub previous_end: u32,
    /// Digest of the last group before this segment.
    pub digest: Digest,
}

/// What the first block of a segment file shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FirstBlock {
    /// All zero: room made ahead, not in use yet.
    Unused,
    /// In use.
    Used(SegmentHeader),
    /// Neither.
    Unreadable(Unreadable),
}

impl SegmentHeader {
    pub(crate) fn encode(&self, block: &mut [u8]) {
        let block = &mut block[..BLOCK_BYTES];
        block.fill(0);
        block[..8].copy_from_slice(&MAGIC);
        put_u16(block, 8, FORMAT_VERSION);
        put_u32(block, 12, self.previous_end);
        put_u128(block, 16, self.origin.store.0);
        put_u64(block, 32, self.origin.segment);
        put_u64(block, 40, self.origin.salt);
        put_u64(block, 48, self.token);
        put_u64(block, 56, self.first.0);
        put_u64(block, 64, self.created_ms);
        put_u64(block, 72, self.previous);
        put_u128(block, 80, self.digest.0);
        seal(&mut block[..HEADER_BYTES]);
    }

    /// Reads the first block of a segment file.
    pub(crate) fn read(file: &[u8]) -> FirstBlock {
        let Some(block) = file.first_chunk::<BLOCK_BYTES>() else {
            return FirstBlock::Unreadable(Unreadable::Damaged);
        };
        if block.iter().all(|byte| *byte == 0) {
            return FirstBlock::Unused;
        }
        match Self::decode(&block[..HEADER_BYTES]) {
            Ok(header) => FirstBlock::Used(header),
            Err(why) => FirstBlock::Unreadable(why),
        }
    }

    fn decode(header: &[u8]) -> Result<SegmentHeader, Unreadable> {
        check_header(header, MAGIC)?;
        Ok(SegmentHeader {
            origin: Origin {
                store: StoreId(u128_at(header, 16)),
                segment: u64_at(header, 32),
                salt: u64_at(header, 40),
            },
            token: u64_at(header, 48),
            first: Lsn(u64_at(header, 56)),
            created_ms: u64_at(header, 64),
            previous: u64_at(header, 72),
            previous_end: u32_at(header, 12),
            digest: Digest(u128_at(header, 80)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> SegmentHeader {
        SegmentHeader {
            origin: Origin { store: StoreId(9), segment: 8, salt: 7 },
            token: 6,
            first: Lsn(5),
            created_ms: 4,
            previous: 3,
            previous_end: 8192,
            digest: Digest(2),
        }
    }

    #[test]
    fn a_first_block_reads_back_and_zeros_are_unused_room() {
        let mut file = vec![0xaa; 3 * BLOCK_BYTES];
        example().encode(&mut file);
        assert_eq!(SegmentHeader::read(&file), FirstBlock::Used(example()));
        assert_eq!(SegmentHeader::read(&[0; BLOCK_BYTES]), FirstBlock::Unused);
        assert_eq!(SegmentHeader::read(&file[..100]), FirstBlock::Unreadable(Unreadable::Damaged));
    }

    #[test]
    fn no_flipped_bit_of_the_header_goes_unnoticed() {
        let mut file = vec![0; BLOCK_BYTES];
        example().encode(&mut file);
        for bit in 0..HEADER_BYTES * 8 {
            file[bit / 8] ^= 1 << (bit % 8);
            assert!(matches!(SegmentHeader::read(&file), FirstBlock::Unreadable(_)), "bit {bit}");
            file[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
