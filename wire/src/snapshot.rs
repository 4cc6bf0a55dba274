//! Snapshots on the wire: nothing if the reader has it, else the difference from one that it has, else the whole.
//!
//! A snapshot's two sets are bitmaps in chunks of 256 pointers, and neighbouring snapshots share nearly all of them.
//! What goes out is the chunks that differ, each with its new bits in the shortest of four forms, so a difference is
//! as long as what changed and a whole is the difference from nothing.

use std::sync::Arc;

use seriatim_core::{ChunkWords, CommitNumber, InvalidSet, PointerSet, Snapshot, SnapshotId, WritePointer};

use crate::bytes::{Reader, put_distance, put_u64, put_varint, unzigzag, zigzag};
use crate::error::DecodeError;

const UNCHANGED: u8 = 0;
const DELTA: u8 = 1;
const WHOLE: u8 = 2;

const FLAG_DIGEST: u8 = 1;
const FLAG_INVALID: u8 = 2;
const FLAG_INTERVALS: u8 = 4;

/// A difference carries a digest when it passes a multiple of this number, so at least every 64th does.
const DIGEST_EVERY: u64 = 64;

/// Two bits at the bottom of a chunk's header: how its bits are written.
const FORM_EMPTY: u64 = 0;
const FORM_ONE_BIT: u64 = 1;
const FORM_BYTES: u64 = 2;
const FORM_FULL: u64 = 3;
const FORM_BITS: u32 = 2;

/// Greatest number that a chunk can have: its pointers must fit 64 bits.
const CHUNK_NUMBER_MAX: u64 = u64::MAX >> 8;

/// Appends a snapshot for a reader that has `base`, or nothing.
///
/// A base of another boot, one newer than `new`, and number 0 (which names no snapshot) count as nothing.
pub fn encode_snapshot(out: &mut Vec<u8>, new: &Snapshot, base: Option<&Snapshot>) {
    let fits = |base: &&Snapshot| base.id.boot == new.id.boot && (1..=new.id.number).contains(&base.id.number);
    match base.filter(fits) {
        Some(base) if base.id == new.id => {
            out.push(UNCHANGED);
            put_varint(out, new.id.number);
        }
        Some(base) => {
            out.push(DELTA);
            put_varint(out, new.id.number);
            put_varint(out, new.id.number - base.id.number);
            let digest = new.id.number / DIGEST_EVERY != base.id.number / DIGEST_EVERY;
            put_content(out, new, base, digest);
        }
        None => {
            out.push(WHOLE);
            put_u64(out, new.id.boot);
            put_varint(out, new.id.number);
            put_content(out, new, &Snapshot::default(), true);
        }
    }
}

fn put_content(out: &mut Vec<u8>, new: &Snapshot, base: &Snapshot, digest: bool) {
    // The version stands for the content, which is too long to compare; only from nothing it says too little.
    let invalid = if base.id.number == 0 {
        new.invalid.version != 0 || !new.invalid.is_empty()
    } else {
        new.invalid.version != base.invalid.version
    };
    let intervals = invalid && new.invalid.intervals != base.invalid.intervals;
    let flags = [(digest, FLAG_DIGEST), (invalid, FLAG_INVALID), (intervals, FLAG_INTERVALS)];
    out.push(flags.iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum());
    put_distance(out, base.read_pointer.0, new.read_pointer.0);
    put_distance(out, base.csn.0, new.csn.0);
    let origin = new.read_pointer.0 >> 8;
    put_chunks(out, origin, &new.in_progress, &base.in_progress);
    if invalid {
        put_distance(out, base.invalid.version, new.invalid.version);
        put_chunks(out, origin, &new.invalid.pointers, &base.invalid.pointers);
    }
    if intervals {
        put_varint(out, new.invalid.intervals.len() as u64);
        let mut last_end = 0;
        for (first, end) in &new.invalid.intervals {
            put_varint(out, first - last_end);
            put_varint(out, end - first);
            last_end = *end;
        }
    }
    if digest {
        put_u64(out, new.digest());
    }
}

/// Chunks in ascending order, each after its distance from the one before; 0 ends them.
fn put_chunks(out: &mut Vec<u8>, origin: u64, new: &PointerSet, base: &PointerSet) {
    let mut last: Option<u64> = None;
    new.for_each_difference(base, |number, words| {
        // The first may lie on either side of the origin; plus one, so that it is never taken for the end.
        let distance = last.map_or_else(|| zigzag(number.wrapping_sub(origin) as i64) + 1, |last| number - last);
        last = Some(number);
        put_chunk(out, distance << FORM_BITS, words);
    });
    out.push(0);
}

fn put_chunk(out: &mut Vec<u8>, distance: u64, words: ChunkWords) {
    let bytes: [u8; 32] = bytes_of(words);
    let mask = mask_of(&bytes);
    match (words.iter().map(|word| word.count_ones()).sum::<u32>(), mask.count_ones()) {
        (0, _) => put_varint(out, distance | FORM_EMPTY),
        (1, _) => {
            put_varint(out, distance | FORM_ONE_BIT);
            let byte = mask.trailing_zeros() as u8;
            out.push(byte * 8 + bytes[usize::from(byte)].trailing_zeros() as u8);
        }
        (_, 29..) => {
            put_varint(out, distance | FORM_FULL);
            out.extend_from_slice(&bytes);
        }
        _ => {
            put_varint(out, distance | FORM_BYTES);
            out.extend_from_slice(&mask.to_le_bytes());
            out.extend(bytes.iter().filter(|byte| **byte != 0));
        }
    }
}

fn bytes_of(words: ChunkWords) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (place, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *place = word.to_le_bytes();
    }
    bytes
}

/// One bit for each byte that is not zero.
fn mask_of(bytes: &[u8; 32]) -> u32 {
    bytes.iter().enumerate().map(|(index, byte)| u32::from(*byte != 0) << index).sum()
}

/// An encoded snapshot, where it lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotBytes<'a>(pub &'a [u8]);

impl SnapshotBytes<'_> {
    /// True if the reader has the snapshot already: the base that its request named.
    pub fn is_unchanged(&self) -> bool {
        self.0.first() == Some(&UNCHANGED)
    }

    /// True if it can be read without a base.
    pub fn is_whole(&self) -> bool {
        self.0.first() == Some(&WHOLE)
    }

    /// As [`decode_snapshot`], but an unchanged snapshot is the base itself rather than a copy.
    ///
    /// # Errors
    /// As [`decode_snapshot`].
    pub fn decode(&self, base: Option<&Arc<Snapshot>>) -> Result<Arc<Snapshot>, DecodeError> {
        match base {
            Some(base) if self.is_unchanged() => {
                check_unchanged(self.0, Some(base))?;
                Ok(Arc::clone(base))
            }
            _ => decode_snapshot(self.0, base.map(Arc::as_ref)).map(Arc::new),
        }
    }
}

/// Reads what [`encode_snapshot`] wrote, given the base that the request had named.
///
/// Memory grows with the bytes at hand: about 40 bytes for every two of them at worst.
///
/// # Errors
/// [`DecodeError::WrongBase`] if the bytes are a difference from another snapshot, [`DecodeError::DigestMismatch`] if
/// what was put together is not what the sender has, and others if the bytes are no snapshot.
pub fn decode_snapshot(bytes: &[u8], base: Option<&Snapshot>) -> Result<Snapshot, DecodeError> {
    let mut reader = Reader(bytes);
    match reader.u8()? {
        UNCHANGED => check_unchanged(bytes, base).cloned(),
        DELTA => {
            let number = reader.varint()?;
            let distance = reader.varint()?;
            let named = number.checked_sub(distance).filter(|named| *named < number);
            let named = named.ok_or(DecodeError::OutOfRange { what: "distance of a snapshot", value: distance })?;
            let base = base_named(number, named, base)?;
            take_content(reader, SnapshotId { boot: base.id.boot, number }, base)
        }
        WHOLE => {
            let id = SnapshotId { boot: reader.u64()?, number: reader.varint()? };
            take_content(reader, id, &Snapshot::default())
        }
        code => Err(DecodeError::UnknownNumber { what: "form of a snapshot", code: u64::from(code) }),
    }
}

fn base_named(new: u64, named: u64, base: Option<&Snapshot>) -> Result<&Snapshot, DecodeError> {
    let have = base.map(|base| base.id.number);
    base.filter(|base| base.id.number == named).ok_or(DecodeError::WrongBase { new, named, have })
}

fn check_unchanged<'b>(bytes: &[u8], base: Option<&'b Snapshot>) -> Result<&'b Snapshot, DecodeError> {
    let mut reader = Reader(bytes);
    reader.u8()?;
    let number = reader.varint()?;
    reader.finish()?;
    base_named(number, number, base)
}

fn take_content(mut reader: Reader<'_>, id: SnapshotId, base: &Snapshot) -> Result<Snapshot, DecodeError> {
    let flags = reader.u8()?;
    if flags & !(FLAG_DIGEST | FLAG_INVALID | FLAG_INTERVALS) != 0
        || flags & (FLAG_INVALID | FLAG_INTERVALS) == FLAG_INTERVALS
    {
        return Err(DecodeError::UnknownFlags { what: "snapshot", flags: u32::from(flags) });
    }
    let read_pointer = WritePointer(reader.distance(base.read_pointer.0)?);
    let csn = CommitNumber(reader.distance(base.csn.0)?);
    let origin = read_pointer.0 >> 8;
    let mut in_progress = base.in_progress.clone();
    take_chunks(&mut reader, origin, &mut in_progress)?;
    let mut invalid = Arc::clone(&base.invalid);
    if flags & FLAG_INVALID != 0 {
        let mut set =
            InvalidSet { version: reader.distance(base.invalid.version)?, ..InvalidSet::clone(&base.invalid) };
        take_chunks(&mut reader, origin, &mut set.pointers)?;
        if flags & FLAG_INTERVALS != 0 {
            set.intervals = take_intervals(&mut reader)?;
        }
        invalid = Arc::new(set);
    }
    let snapshot = Snapshot { id, read_pointer, csn, in_progress, invalid };
    if flags & FLAG_DIGEST != 0 {
        let (computed, sent) = (snapshot.digest(), reader.u64()?);
        if computed != sent {
            return Err(DecodeError::DigestMismatch { number: id.number, computed, sent });
        }
    }
    reader.finish()?;
    Ok(snapshot)
}

fn take_chunks(reader: &mut Reader<'_>, origin: u64, set: &mut PointerSet) -> Result<(), DecodeError> {
    let mut last: Option<u64> = None;
    loop {
        let header = reader.varint()?;
        if header == 0 {
            return Ok(());
        }
        let distance = header >> FORM_BITS;
        let out_of_range = DecodeError::OutOfRange { what: "distance of a chunk", value: distance };
        if distance == 0 {
            return Err(out_of_range);
        }
        let number = match last {
            None => origin.checked_add_signed(unzigzag(distance - 1)),
            Some(last) => last.checked_add(distance),
        };
        let number = number.filter(|number| *number <= CHUNK_NUMBER_MAX).ok_or(out_of_range)?;
        last = Some(number);
        set.put_chunk(number, take_words(reader, header)?);
    }
}

fn take_words(reader: &mut Reader<'_>, header: u64) -> Result<ChunkWords, DecodeError> {
    let mut bytes = [0u8; 32];
    match header & ((1 << FORM_BITS) - 1) {
        FORM_EMPTY => {}
        FORM_ONE_BIT => {
            let bit = reader.u8()?;
            bytes[usize::from(bit / 8)] = 1 << (bit % 8);
        }
        FORM_BYTES => {
            let mask = reader.u32()?;
            for (index, byte) in bytes.iter_mut().enumerate() {
                if mask & (1 << index) != 0 {
                    *byte = reader.u8()?;
                }
            }
        }
        _ => bytes.copy_from_slice(reader.bytes(32)?),
    }
    let mut words = [0; 4];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    Ok(words)
}

fn take_intervals(reader: &mut Reader<'_>) -> Result<Vec<(u64, u64)>, DecodeError> {
    let count = reader.varint()?;
    // Each takes two bytes at least, so this many fit or the count lies.
    if count > reader.0.len() as u64 / 2 {
        return Err(DecodeError::TooShort);
    }
    let mut intervals = Vec::with_capacity(count as usize);
    let mut last_end = 0u64;
    for _ in 0..count {
        let (gap, length) = (reader.varint()?, reader.varint()?);
        let first = last_end.checked_add(gap);
        let end = first.and_then(|first| first.checked_add(length)).filter(|_| length > 0);
        let (Some(first), Some(end)) = (first, end) else {
            return Err(DecodeError::OutOfRange { what: "interval", value: length });
        };
        intervals.push((first, end));
        last_end = end;
    }
    Ok(intervals)
}

const _: () = assert!(CHUNK_NUMBER_MAX << FORM_BITS >> FORM_BITS == CHUNK_NUMBER_MAX);
