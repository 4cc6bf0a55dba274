//! The state changes that the log remembers, and their bytes.
//!
//! Log order is the order of the event ring is the order of replay. Each event is one record of the log: its
//! [`EventKind`] is the record's kind, what [`Event::encode`] writes is the record's payload. The log sees kind and
//! bytes and knows no more.
//!
//! Numbers are LEB128 varints; pointers are zigzag varints against the pointer before them in the same group
//! ([`PointerContext`]), since neighbours in a group are neighbours in time. Change ids are 8 bytes, little-endian.

use crate::change_set::{ChangeId, ChangeIds};
use crate::pointer::{CommitNumber, SequencerTime, WritePointer};
use crate::stores::StoreName;
use crate::transaction::{InvalidCause, Kind};

/// The kinds of record that version 1 of the log knows. Numbers are for ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum EventKind {
    /// Transactions began.
    Begin = 1,
    /// A transaction committed; its commit number is its place among the log's commits.
    Commit = 2,
    /// A commit was refused; the transaction may only abort or become invalid.
    Refused = 3,
    /// A transaction was rolled back.
    Aborted = 4,
    /// A transaction ended without a clean rollback.
    Invalidated = 5,
    /// Pointers that never became transactions: timestamps, and what was given back.
    Finished = 6,
    /// The pointer counter jumped to the clock.
    Tick = 7,
    /// Pointers may be handed out up to here.
    Window = 8,
    /// A transaction took a further write pointer.
    Checkpoint = 9,
    /// An invalid transaction was forgotten: it excludes nothing any more.
    Truncate = 10,
    /// Every invalid transaction below a pointer was forgotten.
    TruncateBefore = 11,
    /// Everything open and invalid was dropped on an operator's word.
    Reset = 12,
    /// A process began to serve.
    Start = 13,
    /// A process stopped cleanly, and every pointer it handed out is accounted for.
    Stop = 14,
    /// A store registered, to say from now on what it has cleaned.
    StoreRegistered = 15,
    /// A store has taken the versions of invalid transactions up to a pointer out of its data.
    StoreCleaned = 16,
    /// A store is registered no more.
    StoreRemoved = 17,
    /// Reserved: Raft's term, vote and commit index.
    RaftHardState = 32,
    /// Reserved: what follows replaces the log from an index on.
    RaftCutFrom = 33,
    /// Reserved: a change of the members.
    RaftMembership = 34,
    /// Reserved: an empty entry of a new leader.
    RaftEmpty = 35,
    /// Reserved: an atomic batch was recorded.
    BatchRecorded = 48,
    /// Reserved: one target of a batch is durably done.
    BatchTargetDone = 49,
    /// Reserved: a batch is done and visible.
    BatchDone = 50,
    /// Reserved: an applier leased, returned or lost a batch.
    BatchLease = 51,
    /// Reserved: a batch was set aside for an operator.
    BatchQuarantined = 52,
}

/// One state change. `Ids` is [`ChangeIds`] where an event is made and [`IdBytes`] where one was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event<Ids = ChangeIds> {
    /// `count` transactions with neighbouring pointers began on one snapshot.
    Begin(Begin),
    /// See [`EventKind::Commit`].
    Commit {
        /// The transaction.
        tx: WritePointer,
        /// Its writes and marks, which later commits are checked against.
        stored: Ids,
    },
    /// See [`EventKind::Refused`].
    Refused {
        /// The transaction.
        tx: WritePointer,
    },
    /// See [`EventKind::Aborted`].
    Aborted {
        /// The transaction; an open or refused one, or an invalid SHORT whose client did roll back.
        tx: WritePointer,
    },
    /// See [`EventKind::Invalidated`].
    Invalidated {
        /// The transaction.
        tx: WritePointer,
        /// Why.
        cause: InvalidCause,
    },
    /// See [`EventKind::Finished`].
    Finished {
        /// The first pointer of the block.
        first: WritePointer,
        /// How many.
        count: u64,
    },
    /// See [`EventKind::Tick`]. Every pointer from the start of the range that `old_end` ends was handed out; none
    /// between `old_end` and `new_start` ever will be.
    Tick {
        /// The pointer that would have come next.
        old_end: WritePointer,
        /// The pointer that comes next.
        new_start: WritePointer,
    },
    /// See [`EventKind::Window`].
    Window {
        /// The first pointer that may not be handed out.
        end: WritePointer,
    },
    /// See [`EventKind::Checkpoint`].
    Checkpoint {
        /// The transaction.
        tx: WritePointer,
        /// Its further pointer.
        pointer: WritePointer,
    },
    /// See [`EventKind::Truncate`].
    Truncate {
        /// The transaction; nothing happens to one that a crash left unaccounted.
        tx: WritePointer,
    },
    /// See [`EventKind::TruncateBefore`].
    TruncateBefore {
        /// The first pointer that is kept.
        bound: WritePointer,
    },
    /// See [`EventKind::Reset`]. Transactions below `floor` are refused from here on.
    Reset {
        /// The pointer that would have come next.
        floor: WritePointer,
    },
    /// See [`EventKind::Start`]. What the process before left unaccounted is excluded from here on.
    Start {
        /// Names this run; snapshots are numbered within it.
        boot: u64,
        /// The first pointer this run may hand out.
        first: WritePointer,
        /// Sequencer time at the start; who survived has at least 5 s from here.
        time: SequencerTime,
    },
    /// See [`EventKind::Stop`].
    Stop {
        /// The pointer that would have come next.
        next: WritePointer,
    },
    /// See [`EventKind::StoreRegistered`]. One that is registered stays as it is.
    StoreRegistered {
        /// Its name.
        name: StoreName,
        /// Wall time, in ms since the Unix epoch.
        at_ms: u64,
    },
    /// See [`EventKind::StoreCleaned`]. What all stores have cleaned is not excluded any more.
    StoreCleaned {
        /// Its name.
        name: StoreName,
        /// The pointer; a lower one than before changes nothing.
        bound: WritePointer,
        /// Wall time, in ms since the Unix epoch.
        at_ms: u64,
    },
    /// See [`EventKind::StoreRemoved`].
    StoreRemoved {
        /// Its name.
        name: StoreName,
    },
}

/// Transactions with neighbouring pointers that began together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Begin {
    /// The first one's pointer.
    pub first: WritePointer,
    /// How many.
    pub count: u32,
    /// SHORT or LONG.
    pub kind: Kind,
    /// No write reaches a store before the commit is decided.
    pub deferred: bool,
    /// Stays open when its client disconnects.
    pub detached: bool,
    /// On sequencer time; [`SequencerTime::NEVER`] for a LONG without one.
    pub deadline: SequencerTime,
    /// Commit number of the snapshot they began on.
    pub snapshot: CommitNumber,
    /// Greatest version settled for that snapshot: the bound below which garbage collection may not look for it.
    pub settled: WritePointer,
}

impl<Ids> Event<Ids> {
    /// The record kind of this event.
    pub fn kind(&self) -> EventKind {
        match self {
            Event::Begin(_) => EventKind::Begin,
            Event::Commit { .. } => EventKind::Commit,
            Event::Refused { .. } => EventKind::Refused,
            Event::Aborted { .. } => EventKind::Aborted,
            Event::Invalidated { .. } => EventKind::Invalidated,
            Event::Finished { .. } => EventKind::Finished,
            Event::Tick { .. } => EventKind::Tick,
            Event::Window { .. } => EventKind::Window,
            Event::Checkpoint { .. } => EventKind::Checkpoint,
            Event::Truncate { .. } => EventKind::Truncate,
            Event::TruncateBefore { .. } => EventKind::TruncateBefore,
            Event::Reset { .. } => EventKind::Reset,
            Event::Start { .. } => EventKind::Start,
            Event::Stop { .. } => EventKind::Stop,
            Event::StoreRegistered { .. } => EventKind::StoreRegistered,
            Event::StoreCleaned { .. } => EventKind::StoreCleaned,
            Event::StoreRemoved { .. } => EventKind::StoreRemoved,
        }
    }
}

/// The pointer that the next one in the same group is written against. A fresh one starts each group.
#[derive(Clone, Copy, Debug, Default)]
pub struct PointerContext(u64);

impl PointerContext {
    fn put(&mut self, out: &mut Vec<u8>, pointer: WritePointer) {
        let distance = pointer.0.wrapping_sub(self.0) as i64;
        put_varint(out, ((distance << 1) ^ (distance >> 63)) as u64);
        self.0 = pointer.0;
    }

    fn take(&mut self, bytes: &mut &[u8]) -> Result<WritePointer, EventError> {
        let zigzag = take_varint(bytes)?;
        let distance = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
        self.0 = self.0.wrapping_add(distance as u64);
        Ok(WritePointer(self.0))
    }
}

const FLAG_LONG: u8 = 1;
const FLAG_DEFERRED: u8 = 2;
const FLAG_DETACHED: u8 = 4;
const FLAG_DEADLINE: u8 = 8;

impl Event<ChangeIds> {
    /// Appends the event's payload to `out`.
    pub fn encode(&self, context: &mut PointerContext, out: &mut Vec<u8>) {
        match self {
            Event::Begin(begin) => begin.encode(context, out),
            Event::Commit { tx, stored } => {
                context.put(out, *tx);
                for id in stored {
                    out.extend_from_slice(&id.0.to_le_bytes());
                }
            }
            Event::Refused { tx } | Event::Aborted { tx } | Event::Truncate { tx } => context.put(out, *tx),
            Event::Checkpoint { tx, pointer } => {
                context.put(out, *tx);
                context.put(out, *pointer);
            }
            Event::Invalidated { tx, cause } => {
                context.put(out, *tx);
                out.push(*cause as u8);
            }
            Event::Finished { first, count } => {
                context.put(out, *first);
                put_varint(out, *count);
            }
            Event::Tick { old_end, new_start } => {
                context.put(out, *old_end);
                context.put(out, *new_start);
            }
            Event::Window { end: pointer }
            | Event::TruncateBefore { bound: pointer }
            | Event::Reset { floor: pointer }
            | Event::Stop { next: pointer } => context.put(out, *pointer),
            Event::Start { boot, first, time } => {
                out.extend_from_slice(&boot.to_le_bytes());
                context.put(out, *first);
                put_varint(out, time.0);
            }
            Event::StoreRegistered { name, at_ms } => {
                put_name(out, name);
                put_varint(out, *at_ms);
            }
            Event::StoreCleaned { name, bound, at_ms } => {
                put_name(out, name);
                context.put(out, *bound);
                put_varint(out, *at_ms);
            }
            Event::StoreRemoved { name } => put_name(out, name),
        }
    }
}

impl Begin {
    fn encode(&self, context: &mut PointerContext, out: &mut Vec<u8>) {
        let has_deadline = self.deadline != SequencerTime::NEVER;
        let flags = [
            (self.kind == Kind::Long, FLAG_LONG),
            (self.deferred, FLAG_DEFERRED),
            (self.detached, FLAG_DETACHED),
            (has_deadline, FLAG_DEADLINE),
        ];
        out.push(flags.iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum());
        context.put(out, self.first);
        put_varint(out, u64::from(self.count));
        if has_deadline {
            put_varint(out, self.deadline.0);
        }
        put_varint(out, self.snapshot.0);
        // Settled versions lie below the pointer, so this distance is never negative.
        put_varint(out, self.first.0.wrapping_sub(self.settled.0));
        // The later ones of the block are as near as the first, and the next event most likely names the last.
        context.0 = self.first.0.wrapping_add(u64::from(self.count)).wrapping_sub(1);
    }

    fn decode(context: &mut PointerContext, bytes: &mut &[u8]) -> Result<Begin, EventError> {
        let flags = take_byte(bytes)?;
        if flags & !(FLAG_LONG | FLAG_DEFERRED | FLAG_DETACHED | FLAG_DEADLINE) != 0 {
            return Err(EventError::UnknownFlags(flags));
        }
        let first = context.take(bytes)?;
        let count = u32::try_from(take_varint(bytes)?).map_err(|_| EventError::OutOfRange)?;
        let deadline =
            if flags & FLAG_DEADLINE != 0 { SequencerTime(take_varint(bytes)?) } else { SequencerTime::NEVER };
        let snapshot = CommitNumber(take_varint(bytes)?);
        let settled = WritePointer(first.0.wrapping_sub(take_varint(bytes)?));
        context.0 = first.0.wrapping_add(u64::from(count)).wrapping_sub(1);
        Ok(Begin {
            first,
            count,
            kind: if flags & FLAG_LONG != 0 { Kind::Long } else { Kind::Short },
            deferred: flags & FLAG_DEFERRED != 0,
            detached: flags & FLAG_DETACHED != 0,
            deadline,
            snapshot,
            settled,
        })
    }
}

/// Change ids as they stand in a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IdBytes<'a>(&'a [[u8; 8]]);

impl<'a> IdBytes<'a> {
    /// Ids that stand in somebody's bytes, 8 little-endian bytes each.
    pub fn new(ids: &'a [[u8; 8]]) -> IdBytes<'a> {
        IdBytes(ids)
    }

    /// The ids in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = ChangeId> + Clone + 'a {
        self.0.iter().map(|bytes| ChangeId(u64::from_le_bytes(*bytes)))
    }
}

impl<'a> Event<IdBytes<'a>> {
    /// Reads the payload of a record.
    ///
    /// # Errors
    /// If the kind is not known to this version, or the payload is not exactly what its kind asks for. The bytes were
    /// covered by the log's checksum, so either is a newer writer or a fault of ours, never a torn write.
    pub fn decode(
        kind: u8,
        mut bytes: &'a [u8],
        context: &mut PointerContext,
    ) -> Result<Event<IdBytes<'a>>, EventError> {
        let rest = &mut bytes;
        let event = match kind {
            1 => Event::Begin(Begin::decode(context, rest)?),
            2 => {
                let tx = context.take(rest)?;
                let (ids, tail) = rest.as_chunks::<8>();
                *rest = tail;
                Event::Commit { tx, stored: IdBytes(ids) }
            }
            3 => Event::Refused { tx: context.take(rest)? },
            4 => Event::Aborted { tx: context.take(rest)? },
            5 => {
                let tx = context.take(rest)?;
                let cause = InvalidCause::from_u8(take_byte(rest)?).ok_or(EventError::OutOfRange)?;
                Event::Invalidated { tx, cause }
            }
            6 => Event::Finished { first: context.take(rest)?, count: take_varint(rest)? },
            7 => Event::Tick { old_end: context.take(rest)?, new_start: context.take(rest)? },
            8 => Event::Window { end: context.take(rest)? },
            9 => Event::Checkpoint { tx: context.take(rest)?, pointer: context.take(rest)? },
            10 => Event::Truncate { tx: context.take(rest)? },
            11 => Event::TruncateBefore { bound: context.take(rest)? },
            12 => Event::Reset { floor: context.take(rest)? },
            13 => {
                let boot = rest.split_first_chunk::<8>().ok_or(EventError::TooShort)?;
                *rest = boot.1;
                Event::Start {
                    boot: u64::from_le_bytes(*boot.0),
                    first: context.take(rest)?,
                    time: SequencerTime(take_varint(rest)?),
                }
            }
            14 => Event::Stop { next: context.take(rest)? },
            15 => Event::StoreRegistered { name: take_name(rest)?, at_ms: take_varint(rest)? },
            16 => {
                let (name, bound) = (take_name(rest)?, context.take(rest)?);
                Event::StoreCleaned { name, bound, at_ms: take_varint(rest)? }
            }
            17 => Event::StoreRemoved { name: take_name(rest)? },
            unknown => return Err(EventError::UnknownKind(unknown)),
        };
        if rest.is_empty() { Ok(event) } else { Err(EventError::TooLong) }
    }
}

/// Why a payload is no event.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EventError {
    /// Written by a newer version.
    #[error("event kind {0} is not known to this version")]
    UnknownKind(u8),
    /// Written by a newer version.
    #[error("event flags {0:#04x} are not known to this version")]
    UnknownFlags(u8),
    /// The payload ends early.
    #[error("event payload is too short")]
    TooShort,
    /// The payload goes on past its event.
    #[error("event payload is too long")]
    TooLong,
    /// A number beyond what its field allows.
    #[error("event holds a number out of range")]
    OutOfRange,
}

/// Appends an unsigned LEB128 varint.
pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Takes an unsigned LEB128 varint off the front.
///
/// # Errors
/// If the bytes end inside it, or it is over 64 bits.
pub fn take_varint(bytes: &mut &[u8]) -> Result<u64, EventError> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = take_byte(bytes)?;
        if shift == 63 && byte > 1 {
            return Err(EventError::OutOfRange);
        }
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(EventError::OutOfRange)
}

/// Appends a name: its length in bytes, and those.
pub(crate) fn put_name(out: &mut Vec<u8>, name: &StoreName) {
    put_varint(out, name.as_str().len() as u64);
    out.extend_from_slice(name.as_str().as_bytes());
}

pub(crate) fn take_name(bytes: &mut &[u8]) -> Result<StoreName, EventError> {
    let length = usize::try_from(take_varint(bytes)?).map_err(|_| EventError::OutOfRange)?;
    let name = bytes.split_off(..length).ok_or(EventError::TooShort)?;
    let name = std::str::from_utf8(name).map_err(|_| EventError::OutOfRange)?;
    StoreName::new(name).map_err(|_| EventError::OutOfRange)
}

fn take_byte(bytes: &mut &[u8]) -> Result<u8, EventError> {
    let (first, rest) = bytes.split_first().ok_or(EventError::TooShort)?;
    *bytes = rest;
    Ok(*first)
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::*;

    fn examples() -> Vec<Event> {
        let wp = |n: u64| WritePointer(1_700_000_000_000 * 1_000_000 + n);
        let name = StoreName::new("orders").unwrap();
        let begin = Begin {
            first: wp(5),
            count: 64,
            kind: Kind::Short,
            deferred: true,
            detached: false,
            deadline: SequencerTime(30_123),
            snapshot: CommitNumber(1_000_000),
            settled: wp(3),
        };
        vec![
            Event::Window { end: wp(2_000_000_000) },
            Event::Start { boot: 0x0123_4567_89ab_cdef, first: wp(0), time: SequencerTime(77) },
            Event::Tick { old_end: wp(0), new_start: wp(5) },
            Event::Begin(begin),
            Event::Begin(Begin {
                first: wp(70),
                count: 1,
                kind: Kind::Long,
                deadline: SequencerTime::NEVER,
                detached: true,
                ..begin
            }),
            Event::Commit { tx: wp(68), stored: smallvec![ChangeId(1), ChangeId(u64::MAX), ChangeId(3), ChangeId(4)] },
            Event::Commit { tx: wp(5), stored: smallvec![] },
            Event::Refused { tx: wp(6) },
            Event::Aborted { tx: wp(6) },
            Event::Invalidated { tx: wp(7), cause: InvalidCause::Expired },
            Event::Finished { first: wp(71), count: 1 << 20 },
            Event::Checkpoint { tx: wp(70), pointer: wp(90) },
            Event::Truncate { tx: wp(7) },
            Event::TruncateBefore { bound: wp(8) },
            Event::Reset { floor: wp(1 << 21) },
            Event::Stop { next: wp(1 << 21) },
            Event::StoreRegistered { name: name.clone(), at_ms: 1_700_000_000_000 },
            Event::StoreCleaned { name: name.clone(), bound: wp(6), at_ms: 1_700_000_000_001 },
            Event::StoreRemoved { name },
        ]
    }

    #[test]
    fn every_event_reads_back_as_it_was_written() {
        let (mut writing, mut reading) = (PointerContext::default(), PointerContext::default());
        for event in examples() {
            let mut bytes = Vec::new();
            event.encode(&mut writing, &mut bytes);
            let read = Event::decode(event.kind() as u8, &bytes, &mut reading).unwrap();
            let owned = match read {
                Event::Commit { tx, stored } => Event::Commit { tx, stored: stored.iter().collect() },
                Event::Begin(begin) => Event::Begin(begin),
                Event::Refused { tx } => Event::Refused { tx },
                Event::Aborted { tx } => Event::Aborted { tx },
                Event::Invalidated { tx, cause } => Event::Invalidated { tx, cause },
                Event::Finished { first, count } => Event::Finished { first, count },
                Event::Tick { old_end, new_start } => Event::Tick { old_end, new_start },
                Event::Window { end } => Event::Window { end },
                Event::Checkpoint { tx, pointer } => Event::Checkpoint { tx, pointer },
                Event::Truncate { tx } => Event::Truncate { tx },
                Event::TruncateBefore { bound } => Event::TruncateBefore { bound },
                Event::Reset { floor } => Event::Reset { floor },
                Event::Start { boot, first, time } => Event::Start { boot, first, time },
                Event::Stop { next } => Event::Stop { next },
                Event::StoreRegistered { name, at_ms } => Event::StoreRegistered { name, at_ms },
                Event::StoreCleaned { name, bound, at_ms } => Event::StoreCleaned { name, bound, at_ms },
                Event::StoreRemoved { name } => Event::StoreRemoved { name },
            };
            assert_eq!(owned, event);
        }
    }

    #[test]
    fn a_transaction_of_four_writes_costs_at_most_48_bytes_in_a_busy_log() {
        let mut context = PointerContext::default();
        let mut bytes = Vec::new();
        examples()[3].encode(&mut context, &mut bytes);
        let begin = bytes.len() + 2;
        bytes.clear();
        examples()[5].encode(&mut context, &mut bytes);
        let commit = bytes.len() + 2;
        assert!(begin / 64 + commit <= 8 * 4 + 16, "begin of 64: {begin} bytes, commit: {commit} bytes");
    }

    #[test]
    fn a_payload_that_is_cut_extended_or_of_another_kind_is_refused() {
        for event in examples() {
            let mut bytes = Vec::new();
            event.encode(&mut PointerContext::default(), &mut bytes);
            let kind = event.kind() as u8;
            for cut in 0..bytes.len() {
                let cut = Event::decode(kind, &bytes[..cut], &mut PointerContext::default());
                assert!(cut.is_err() || matches!(cut, Ok(Event::Commit { .. })), "{event:?}");
            }
            bytes.push(0);
            assert!(Event::decode(kind, &bytes, &mut PointerContext::default()).is_err(), "{event:?}");
        }
        assert_eq!(Event::decode(200, &[], &mut PointerContext::default()), Err(EventError::UnknownKind(200)));
    }
}
