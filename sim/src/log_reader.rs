//! Reads what was written to a segment, by the format's description and none of the log's own code: a second opinion on
//! what is durable.

use seriatim_core::event::{Event, IdBytes, PointerContext};

/// Where groups start in a segment, and what they are padded to.
const BLOCK_BYTES: usize = 4096;
const HEADER_BYTES: usize = 152;

/// A group as it was written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrittenGroup<'a> {
    /// The first record; of an empty group the one that comes next.
    pub first_lsn: u64,
    /// Commit number of the first commit, or of the next one.
    pub first_csn: u64,
    /// Commits up to and with it.
    pub commits: u64,
    /// Sequencer time.
    pub sequencer_ms: u64,
    /// Number of records.
    pub records: u32,
    /// Where its header starts in the write.
    pub header_at: usize,
    payload: &'a [u8],
}

impl<'a> WrittenGroup<'a> {
    /// The group of a write, which may bring its segment's first block along.
    pub fn read(bytes: &'a [u8]) -> Option<WrittenGroup<'a>> {
        let header_at = if bytes.starts_with(b"SERIASEG") { BLOCK_BYTES } else { 0 };
        let bytes = bytes.get(header_at..)?;
        let header = bytes.get(..HEADER_BYTES)?;
        let u32_at = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four bytes"));
        let u64_at = |at: usize| u64::from_le_bytes(header[at..at + 8].try_into().expect("eight bytes"));
        if !header.starts_with(b"SERIAGRP") {
            return None;
        }
        Some(WrittenGroup {
            first_lsn: u64_at(56),
            first_csn: u64_at(64),
            commits: u64_at(72),
            sequencer_ms: u64_at(88),
            records: u32_at(100),
            header_at,
            payload: bytes.get(HEADER_BYTES..HEADER_BYTES + u32_at(96) as usize)?,
        })
    }

    /// Where its records end in the write.
    pub fn end(&self) -> usize {
        self.header_at + HEADER_BYTES + self.payload.len()
    }

    /// Its events, in order; `None` at the first record that is none.
    pub fn events(&self) -> impl Iterator<Item = Option<Event<IdBytes<'a>>>> {
        let mut rest = self.payload;
        let mut context = PointerContext::default();
        std::iter::from_fn(move || {
            let (kind, after) = rest.split_first()?;
            let read = take_payload(after).and_then(|(payload, after)| {
                rest = after;
                Event::decode(*kind, payload, &mut context).ok()
            });
            if read.is_none() {
                rest = &[];
            }
            Some(read)
        })
    }
}

/// A length of seven bits a byte, and so many bytes.
fn take_payload(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut length = 0usize;
    for (place, byte) in bytes.iter().enumerate().take(5) {
        length |= usize::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return bytes[place + 1..].split_at_checked(length);
        }
    }
    None
}
