//! The published state as bytes: an image, from which recovery starts and after which it replays.
//!
//! Version 2, and reads version 1, which had no checkpoints and no stores, and did not say until when the clients of
//! invalid transactions write. Varints as in [`crate::event`]; every list is its length and its items. Invalid
//! transactions are ascending and written against the one before, about 4 bytes each; the pointers that snapshots
//! exclude follow from them. The conflict index is not part of the image: its cells may be ahead of what is durable.
//! Recovery lets every bucket start at the image's commit number and replays the commits after it, so whoever began
//! earlier is refused as too old and no update is lost.

use crate::event::{EventError, put_name, put_varint, take_name, take_varint};
use crate::invalid::{InvalidTransaction, Invalids, WRITES_WITHOUT_DEADLINE_MS};
use crate::pointer::{CommitNumber, SequencerTime, WritePointer};
use crate::pointer_page::ChunkWords;
use crate::pointer_set::PointerSet;
use crate::published::Published;
use crate::stores::RegisteredStore;
use crate::transaction::{Kind, OpenTransaction};

/// First byte of an image.
const VERSION: u8 = 2;

const FLAG_LONG: u8 = 1;
const FLAG_DEFERRED: u8 = 2;
const FLAG_DETACHED: u8 = 4;
const FLAG_REFUSED: u8 = 8;

/// Why bytes are no image. The log's checksum covers them, so this is a newer writer or a fault of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ImageError {
    /// Written by a newer version.
    #[error("image version {0} is not known to this version, which reads 1 to {VERSION}")]
    Version(u8),
    /// A field does not read.
    #[error("image is malformed: {0}")]
    Malformed(#[from] EventError),
    /// The image goes on past its end.
    #[error("image has {0} bytes too many")]
    TooLong(usize),
}

impl Published {
    /// The whole state as bytes.
    pub fn save_image(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(4096 + 12 * self.outcomes.len() + 24 * self.open.len());
        out.push(VERSION);
        for number in [
            self.boot,
            self.read_pointer.0,
            self.csn.0,
            self.window_end.0,
            self.floor.0,
            self.time.0,
            self.stopped_at.map_or(0, |next| next.0),
            self.known_to,
            self.named_to,
            self.invalid.set().version,
        ] {
            put_varint(&mut out, number);
        }
        put_pairs(&mut out, self.jumps.iter().copied());
        put_set(&mut out, &self.in_progress);
        put_varint(&mut out, self.invalid.intervals().len() as u64);
        for (first, end, until) in self.invalid.intervals() {
            [first, end, until.0].into_iter().for_each(|number| put_varint(&mut out, number));
        }
        put_varint(&mut out, self.invalid.transactions());
        self.invalid.words().fold((0, 0), |before, kept| put_invalid(&mut out, before, kept));
        put_varint(&mut out, self.open.len() as u64);
        for open in self.open.iter() {
            let flags = [
                (open.kind == Kind::Long, FLAG_LONG),
                (open.deferred, FLAG_DEFERRED),
                (open.detached, FLAG_DETACHED),
                (open.refused, FLAG_REFUSED),
            ];
            out.push(flags.iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum());
            for number in [open.tx.0, open.deadline.0, open.snapshot.0, open.settled.0] {
                put_varint(&mut out, number);
            }
        }
        put_pairs(&mut out, self.outcomes.words());
        let further = || self.checkpoints.iter().chain(self.invalid.all_further());
        put_varint(&mut out, further().count() as u64);
        for (tx, pointers) in further() {
            put_varint(&mut out, *tx);
            put_varint(&mut out, pointers.len() as u64);
            pointers.iter().for_each(|pointer| put_varint(&mut out, pointer.0 - tx));
        }
        put_varint(&mut out, self.stores.len() as u64);
        for (name, store) in self.stores.iter() {
            put_name(&mut out, name);
            for number in [store.bound.0, store.registered_ms, store.acknowledged_ms] {
                put_varint(&mut out, number);
            }
        }
        out
    }

    /// Reads an image, keeping at least `outcomes_max` outcomes.
    ///
    /// # Errors
    /// If the bytes are not an image of a version up to this one.
    pub fn load_image(bytes: &[u8], outcomes_max: usize) -> Result<Published, ImageError> {
        let rest = &mut &bytes[..];
        let version = rest.split_off_first().copied().unwrap_or(0);
        if !(1..=VERSION).contains(&version) {
            return Err(ImageError::Version(version));
        }
        let mut state = Published::new(outcomes_max);
        state.boot = take_varint(rest)?;
        state.read_pointer = WritePointer(take_varint(rest)?);
        state.csn = CommitNumber(take_varint(rest)?);
        state.window_end = WritePointer(take_varint(rest)?);
        state.floor = WritePointer(take_varint(rest)?);
        state.time = SequencerTime(take_varint(rest)?);
        state.stopped_at = Some(WritePointer(take_varint(rest)?)).filter(|next| next.0 != 0);
        state.known_to = take_varint(rest)?;
        state.named_to = take_varint(rest)?;
        let invalid_version = take_varint(rest)?;
        take_pairs(rest, |old_end, new_start| {
            state.jumps.push_back((old_end, new_start));
            Ok(())
        })?;
        state.in_progress = take_set(rest)?;
        state.invalid = Invalids::load(invalid_version);
        match version {
            1 => state.take_invalid_of_version_1(rest)?,
            _ => state.take_invalid(rest)?,
        }
        for _ in 0..take_varint(rest)? {
            let flags = *rest.split_off_first().ok_or(EventError::TooShort)?;
            state.open.insert(OpenTransaction {
                tx: WritePointer(take_varint(rest)?),
                kind: if flags & FLAG_LONG != 0 { Kind::Long } else { Kind::Short },
                deferred: flags & FLAG_DEFERRED != 0,
                detached: flags & FLAG_DETACHED != 0,
                refused: flags & FLAG_REFUSED != 0,
                checkpoints: 0,
                deadline: SequencerTime(take_varint(rest)?),
                snapshot: CommitNumber(take_varint(rest)?),
                settled: WritePointer(take_varint(rest)?),
            });
        }
        take_pairs(rest, |tx, word| {
            state.outcomes.push(tx, word);
            Ok(())
        })?;
        if version >= 2 {
            state.take_checkpoints(rest)?;
            for _ in 0..take_varint(rest)? {
                let name = take_name(rest)?;
                let (bound, registered_ms) = (WritePointer(take_varint(rest)?), take_varint(rest)?);
                let acknowledged_ms = take_varint(rest)?;
                state.stores.insert(name, RegisteredStore { bound, registered_ms, acknowledged_ms });
            }
        }
        if rest.is_empty() { Ok(state) } else { Err(ImageError::TooLong(rest.len())) }
    }

    fn take_invalid(&mut self, bytes: &mut &[u8]) -> Result<(), EventError> {
        for _ in 0..take_varint(bytes)? {
            let (first, end) = (take_varint(bytes)?, take_varint(bytes)?);
            self.invalid.load_interval(first, end, SequencerTime(take_varint(bytes)?));
        }
        let mut before = (0, 0);
        for _ in 0..take_varint(bytes)? {
            before = take_invalid(bytes, before)?;
            let kept = InvalidTransaction::of_word(before.1).ok_or(EventError::OutOfRange)?;
            self.invalid.load_transaction(WritePointer(before.0), kept);
        }
        Ok(())
    }

    /// Nothing is known of the times until which clients write, so as much is assumed as for a client without a deadline.
    fn take_invalid_of_version_1(&mut self, bytes: &mut &[u8]) -> Result<(), EventError> {
        let writes_until = self.time.plus_ms(WRITES_WITHOUT_DEADLINE_MS);
        // Its pointers are those of the transactions that follow.
        take_set(bytes)?;
        take_pairs(bytes, |first, end| {
            self.invalid.load_interval(first, end, writes_until);
            Ok(())
        })?;
        take_pairs(bytes, |tx, word| {
            let kept = InvalidTransaction::of_word(word).ok_or(EventError::OutOfRange)?;
            self.invalid.load_transaction(WritePointer(tx), InvalidTransaction { writes_until, ..kept });
            Ok(())
        })
    }

    fn take_checkpoints(&mut self, bytes: &mut &[u8]) -> Result<(), EventError> {
        for _ in 0..take_varint(bytes)? {
            let tx = take_varint(bytes)?;
            let count = take_varint(bytes)?;
            let mut pointers = Vec::new();
            for _ in 0..count {
                let distance = take_varint(bytes)?;
                pointers.push(WritePointer(tx.checked_add(distance).ok_or(EventError::OutOfRange)?));
            }
            if let Some(open) = self.open.get_mut(WritePointer(tx)) {
                open.checkpoints = u32::try_from(count).map_err(|_| EventError::OutOfRange)?;
                self.checkpoints.insert(tx, pointers);
            } else if !pointers.is_empty() && self.invalid.get(WritePointer(tx)).is_some() {
                self.invalid.load_further(WritePointer(tx), pointers);
            } else {
                return Err(EventError::OutOfRange);
            }
        }
        Ok(())
    }
}

/// Writes an invalid transaction against the one before: the distance of the pointers, the distance of the times until
/// which they are written under, and kind and cause, as they stand in the low bits of the word.
fn put_invalid(out: &mut Vec<u8>, before: (u64, u64), (tx, word): (u64, u64)) -> (u64, u64) {
    let later = (word >> 4).wrapping_sub(before.1 >> 4) as i64;
    put_varint(out, tx - before.0);
    put_varint(out, (((later << 1) ^ (later >> 63)) as u64) << 4 | (word & 15));
    (tx, word)
}

fn take_invalid(bytes: &mut &[u8], before: (u64, u64)) -> Result<(u64, u64), EventError> {
    let tx = before.0.checked_add(take_varint(bytes)?).ok_or(EventError::OutOfRange)?;
    let packed = take_varint(bytes)?;
    let zigzag = packed >> 4;
    let later = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
    let until = (before.1 >> 4).wrapping_add(later as u64);
    if until >> 58 != 0 {
        return Err(EventError::OutOfRange);
    }
    Ok((tx, until << 4 | (packed & 15)))
}

fn put_pairs(out: &mut Vec<u8>, pairs: impl Iterator<Item = (u64, u64)> + Clone) {
    put_varint(out, pairs.clone().count() as u64);
    for (a, b) in pairs {
        put_varint(out, a);
        put_varint(out, b);
    }
}

fn take_pairs(bytes: &mut &[u8], mut each: impl FnMut(u64, u64) -> Result<(), EventError>) -> Result<(), EventError> {
    for _ in 0..take_varint(bytes)? {
        each(take_varint(bytes)?, take_varint(bytes)?)?;
    }
    Ok(())
}

fn put_set(out: &mut Vec<u8>, set: &PointerSet) {
    let mut chunks = 0;
    set.for_each_difference(&PointerSet::new(), |_, _| chunks += 1);
    put_varint(out, chunks);
    set.for_each_difference(&PointerSet::new(), |number, words| {
        put_varint(out, number);
        for word in words {
            out.extend_from_slice(&word.to_le_bytes());
        }
    });
}

fn take_set(bytes: &mut &[u8]) -> Result<PointerSet, EventError> {
    let mut set = PointerSet::new();
    for _ in 0..take_varint(bytes)? {
        let number = take_varint(bytes)?;
        let mut words: ChunkWords = [0; 4];
        for word in &mut words {
            let (first, rest) = bytes.split_first_chunk::<8>().ok_or(EventError::TooShort)?;
            *word = u64::from_le_bytes(*first);
            *bytes = rest;
        }
        set.put_chunk(number, words);
    }
    Ok(set)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Begin, Event, IdBytes, PointerContext};
    use crate::stores::StoreName;
    use crate::transaction::InvalidCause;

    fn state(with_checkpoints: bool) -> Published {
        let mut state = Published::new(4096);
        let begin = |first, count, kind| {
            Event::Begin(Begin {
                first: WritePointer(first),
                count,
                kind,
                deferred: first % 2 == 0,
                detached: first % 3 == 0,
                deadline: if kind == Kind::Long { SequencerTime::NEVER } else { SequencerTime(30_000) },
                snapshot: CommitNumber(3),
                settled: WritePointer(90),
            })
        };
        let mut events = vec![
            Event::Start { boot: 9, first: WritePointer(100), time: SequencerTime(1) },
            Event::Window { end: WritePointer(9_000) },
            begin(100, 600, Kind::Short),
            Event::Tick { old_end: WritePointer(700), new_start: WritePointer(2_000) },
            begin(2_000, 5, Kind::Long),
            Event::Tick { old_end: WritePointer(2_005), new_start: WritePointer(3_000) },
        ];
        events
            .extend((100..600).step_by(3).map(|tx| Event::Commit { tx: WritePointer(tx), stored: Default::default() }));
        events.extend((101..600).step_by(6).map(|tx| Event::Aborted { tx: WritePointer(tx) }));
        events.extend([605, 2_001].map(|tx| Event::Invalidated { tx: WritePointer(tx), cause: InvalidCause::Expired }));
        events.push(Event::Refused { tx: WritePointer(606) });
        // What version 1 could hold ends here.
        if with_checkpoints {
            let checkpoint = |tx, pointer| Event::Checkpoint { tx: WritePointer(tx), pointer: WritePointer(pointer) };
            events.extend([checkpoint(607, 3_000), checkpoint(608, 3_001), checkpoint(607, 3_002)]);
            events.push(Event::Invalidated { tx: WritePointer(608), cause: InvalidCause::Asked });
            events
                .extend([609, 604].map(|tx| Event::Invalidated { tx: WritePointer(tx), cause: InvalidCause::Settled }));
            events.push(Event::Start { boot: 10, first: WritePointer(9_000), time: SequencerTime(5) });
            let [a, b] = ["a", "b"].map(|name| StoreName::new(name).unwrap());
            events.extend([&a, &b].map(|name| Event::StoreRegistered { name: name.clone(), at_ms: 7 }));
            events.push(Event::StoreCleaned { name: b, bound: WritePointer(604), at_ms: 8 });
        }
        for event in events {
            let mut bytes = Vec::new();
            event.encode(&mut PointerContext::default(), &mut bytes);
            let event: Event<IdBytes> =
                Event::decode(event.kind() as u8, &bytes, &mut PointerContext::default()).unwrap();
            state.apply(&event).unwrap();
        }
        state
    }

    #[test]
    fn an_image_reads_back_as_the_state_it_was_taken_of() {
        let mut state = state(true);
        assert_eq!((state.invalid().intervals.len(), state.stores().len()), (1, 2));
        let read = Published::load_image(&state.save_image(), 4096).unwrap();
        assert_same(&mut state, read);
    }

    #[test]
    fn an_image_of_version_1_reads_as_the_state_it_was_taken_of() {
        let mut state = state(false);
        let read = Published::load_image(include_bytes!("../tests/golden/image-1.bin"), 4096).unwrap();
        // It does not say until when clients write, so a day is assumed.
        let writes_until = state.time.plus_ms(WRITES_WITHOUT_DEADLINE_MS);
        for (tx, word) in state.invalid.words().collect::<Vec<_>>() {
            let kept = InvalidTransaction { writes_until, ..InvalidTransaction::of_word(word).unwrap() };
            state.invalid.load_transaction(WritePointer(tx), kept);
        }
        assert_same(&mut state, read);
    }

    fn assert_same(state: &mut Published, mut read: Published) {
        read.number = state.number;
        let (old, new) = (state.next_snapshot(), read.next_snapshot());
        assert_eq!(old.digest(), new.digest());
        assert_eq!((&old.in_progress, &old.invalid), (&new.in_progress, &new.invalid));
        assert!(state.invalid.intervals().eq(read.invalid.intervals()));
        assert_eq!(state.stores(), read.stores());
        for tx in (90..3_100).map(WritePointer) {
            assert_eq!(state.status(tx), read.status(tx));
            assert_eq!(state.open_transaction(tx), read.open_transaction(tx));
            assert_eq!(state.invalid_transaction(tx), read.invalid_transaction(tx));
            assert_eq!(state.checkpoints(tx), read.checkpoints(tx));
        }
        assert_eq!((state.first_free(), &state.jumps, state.known_to), (read.first_free(), &read.jumps, read.known_to));
    }

    #[test]
    fn bytes_that_are_cut_extended_or_newer_are_refused() {
        let mut bytes = state(true).save_image();
        for cut in (0..bytes.len()).step_by(7) {
            assert!(Published::load_image(&bytes[..cut], 4096).is_err(), "cut at {cut}");
        }
        bytes.push(0);
        assert!(matches!(Published::load_image(&bytes, 4096), Err(ImageError::TooLong(1))));
        bytes[0] = 3;
        assert!(matches!(Published::load_image(&bytes, 4096), Err(ImageError::Version(3))));
    }
}
