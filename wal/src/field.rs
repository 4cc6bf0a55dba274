//! Fixed little-endian fields in a header, and the checksum that closes it.

/// Everything is placed, written and checked in blocks of this many bytes.
pub const BLOCK_BYTES: usize = 4096;

/// `bytes` rounded up to whole blocks.
pub(crate) const fn blocks_bytes(bytes: usize) -> usize {
    bytes.next_multiple_of(BLOCK_BYTES)
}

pub(crate) fn put_u16(out: &mut [u8], at: usize, value: u16) {
    out[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_u32(out: &mut [u8], at: usize, value: u32) {
    out[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_u64(out: &mut [u8], at: usize, value: u64) {
    out[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_u128(out: &mut [u8], at: usize, value: u128) {
    out[at..at + 16].copy_from_slice(&value.to_le_bytes());
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(array_at(bytes, at))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array_at(bytes, at))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array_at(bytes, at))
}

pub(crate) fn u128_at(bytes: &[u8], at: usize) -> u128 {
    u128::from_le_bytes(array_at(bytes, at))
}

/// Closes a header: its last four bytes become the CRC32C of all before them.
pub(crate) fn seal(header: &mut [u8]) {
    let at = header.len() - 4;
    let sum = crc32c::crc32c(&header[..at]);
    put_u32(header, at, sum);
}

/// Whether a header's last four bytes are the CRC32C of all before them.
pub(crate) fn is_sealed(header: &[u8]) -> bool {
    let at = header.len() - 4;
    u32_at(header, at) == crc32c::crc32c(&header[..at])
}

fn array_at<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    *bytes[at..].first_chunk().expect("a field within its header")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_crc32c() {
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
    }

    #[test]
    fn a_sealed_header_notices_every_flipped_bit() {
        let mut header = [7u8; 64];
        put_u64(&mut header, 8, 0x0123_4567_89ab_cdef);
        seal(&mut header);
        assert!(is_sealed(&header));
        assert_eq!(u64_at(&header, 8), 0x0123_4567_89ab_cdef);
        for bit in 0..64 * 8 {
            header[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_sealed(&header), "bit {bit}");
            header[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
