//! What a server tells about itself: counters, and lists of what is open or invalid.

use std::sync::Arc;

use seriatim_core::{CommitNumber, Kind, Status, WritePointer};

use crate::bytes::{Reader, put_text, put_u64, put_varint};
use crate::error::DecodeError;
use crate::hello::StoreId;
use crate::outcome::{put_status, take_label, take_status};

/// A server's counters at one moment: of its published state, which is durable, but for the open transactions and the
/// pointer that comes next.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct State {
    /// The store.
    pub store: StoreId,
    /// Names this run of the server.
    pub boot: u64,
    /// Time since the start, in ms.
    pub uptime_ms: u64,
    /// The server's wall clock, in ms since the Unix epoch.
    pub server_time_ms: u64,
    /// The clock that deadlines are measured on, in ms: it advances only while a process serves.
    pub sequencer_time_ms: u64,
    /// Number of the newest snapshot in this run.
    pub snapshot: u64,
    /// Greatest finished write pointer.
    pub read_pointer: WritePointer,
    /// Commits so far.
    pub csn: CommitNumber,
    /// The write pointer that comes next, if the clock does not move first.
    pub next_pointer: WritePointer,
    /// The first write pointer that may not be handed out yet.
    pub window_end: WritePointer,
    /// The visibility bound: of the versions of a key at or below it, no reader needs any but the newest that is not
    /// invalid. 0 for the first minute of a run: snapshots of the run before may still be read through.
    pub visibility_bound: WritePointer,
    /// Open transactions.
    pub open: u64,
    /// Invalid transactions, an interval counted once.
    pub invalid: u64,
    /// Pointers that the newest snapshot excludes, in progress and invalid together.
    pub excluded: u64,
    /// Outcomes of ended transactions that are still known.
    pub outcomes: u64,
    /// Connections.
    pub connections: u64,
    /// Number of the last record of the log that is durable.
    pub durable_lsn: u64,
    /// True if what is acknowledged survives the process and the machine.
    pub durable: bool,
    /// Which way the log is written, for people.
    pub storage: String,
    /// The server's version, for people.
    pub version: String,
}

impl State {
    /// The numbers in the order of the protocol.
    fn numbers(&mut self) -> [&mut u64; 15] {
        [
            &mut self.uptime_ms,
            &mut self.server_time_ms,
            &mut self.sequencer_time_ms,
            &mut self.snapshot,
            &mut self.read_pointer.0,
            &mut self.csn.0,
            &mut self.next_pointer.0,
            &mut self.window_end.0,
            &mut self.visibility_bound.0,
            &mut self.open,
            &mut self.invalid,
            &mut self.excluded,
            &mut self.outcomes,
            &mut self.connections,
            &mut self.durable_lsn,
        ]
    }

    pub(crate) fn encode(&self, body: &mut Vec<u8>) {
        body.extend_from_slice(&self.store.0.to_le_bytes());
        put_u64(body, self.boot);
        body.push(u8::from(self.durable));
        put_text(body, &self.storage);
        put_text(body, &self.version);
        let mut copy = self.clone();
        let numbers = copy.numbers();
        put_varint(body, numbers.len() as u64);
        for number in numbers {
            put_varint(body, *number);
        }
    }

    /// Numbers that this version does not know are skipped, those that an older server does not send are 0.
    pub(crate) fn decode(body: &[u8]) -> Result<State, DecodeError> {
        let mut reader = Reader(body);
        let mut state = State { store: StoreId(reader.u128()?), boot: reader.u64()?, ..State::default() };
        state.durable = reader.u8()? & 1 != 0;
        state.storage = reader.text("storage")?.to_owned();
        state.version = reader.text("version")?.to_owned();
        let count = reader.varint()?;
        for index in 0..count {
            let value = reader.varint()?;
            if let Some(number) = state.numbers().get_mut(index as usize) {
                **number = value;
            }
        }
        reader.finish()?;
        Ok(state)
    }
}

/// Which transactions to list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum ListKind {
    /// The open ones, refused ones included.
    Open = 0,
    /// The invalid ones.
    Invalid = 1,
}

/// Asks for one page of a list, in the order of pointers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListRequest {
    /// Which transactions.
    pub kind: ListKind,
    /// Only those with greater pointers: the last one of the page before, or 0.
    pub after: WritePointer,
    /// At most so many; the server may send fewer.
    pub max: u32,
}

impl ListRequest {
    pub(crate) fn encode(&self, body: &mut Vec<u8>) {
        body.push(self.kind as u8);
        put_u64(body, self.after.0);
        body.extend_from_slice(&self.max.to_le_bytes());
    }

    pub(crate) fn decode(body: &[u8]) -> Result<ListRequest, DecodeError> {
        let mut reader = Reader(body);
        let kind = match reader.u8()? {
            0 => ListKind::Open,
            1 => ListKind::Invalid,
            code => return Err(DecodeError::UnknownNumber { what: "list", code: u64::from(code) }),
        };
        let request = ListRequest { kind, after: reader.pointer()?, max: reader.u32()? };
        reader.finish()?;
        Ok(request)
    }
}

/// One line of a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Listed {
    /// The transaction, or the first pointer of an interval that a crash left unaccounted.
    pub tx: WritePointer,
    /// Pointers: 1, or the length of the interval.
    pub count: u64,
    /// Where it stands.
    pub status: Status,
    /// SHORT or LONG.
    pub kind: Kind,
    /// Begun with [`seriatim_core::BeginOptions::deferred`].
    pub deferred: bool,
    /// Begun with [`seriatim_core::BeginOptions::detached`].
    pub detached: bool,
    /// Time to its deadline in ms of sequencer time, if it has one.
    pub remaining_ms: Option<u64>,
    /// The client session that began it, 0 if unknown.
    pub session: u64,
    /// Commit number of its snapshot, 0 if unknown.
    pub snapshot: CommitNumber,
    /// Further write pointers that it took.
    pub checkpoints: u32,
    /// Its label, if it has one that is kept.
    pub label: Option<Arc<str>>,
}

const FLAG_LONG: u8 = 1;
const FLAG_DEFERRED: u8 = 2;
const FLAG_DETACHED: u8 = 4;
const FLAG_REMAINING: u8 = 8;
const FLAG_CHECKPOINTS: u8 = 16;
const FLAG_LABEL: u8 = 32;

impl Listed {
    pub(crate) fn encode(&self, body: &mut Vec<u8>) {
        put_u64(body, self.tx.0);
        put_varint(body, self.count);
        let flags = [
            (self.kind == Kind::Long, FLAG_LONG),
            (self.deferred, FLAG_DEFERRED),
            (self.detached, FLAG_DETACHED),
            (self.remaining_ms.is_some(), FLAG_REMAINING),
            (self.checkpoints > 0, FLAG_CHECKPOINTS),
            (self.label.is_some(), FLAG_LABEL),
        ];
        body.push(flags.iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum());
        put_status(body, self.status);
        if let Some(remaining_ms) = self.remaining_ms {
            put_varint(body, remaining_ms);
        }
        put_u64(body, self.session);
        put_varint(body, self.snapshot.0);
        if self.checkpoints > 0 {
            put_varint(body, u64::from(self.checkpoints));
        }
        if let Some(label) = &self.label {
            put_text(body, label);
        }
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Listed, DecodeError> {
        let (tx, count, flags) = (reader.pointer()?, reader.varint()?, reader.u8()?);
        if flags & !(FLAG_LONG | FLAG_DEFERRED | FLAG_DETACHED | FLAG_REMAINING | FLAG_CHECKPOINTS | FLAG_LABEL) != 0 {
            return Err(DecodeError::UnknownFlags { what: "list entry", flags: u32::from(flags) });
        }
        Ok(Listed {
            tx,
            count,
            status: take_status(reader)?,
            kind: if flags & FLAG_LONG != 0 { Kind::Long } else { Kind::Short },
            deferred: flags & FLAG_DEFERRED != 0,
            detached: flags & FLAG_DETACHED != 0,
            remaining_ms: if flags & FLAG_REMAINING != 0 { Some(reader.varint()?) } else { None },
            session: reader.u64()?,
            snapshot: CommitNumber(reader.varint()?),
            checkpoints: if flags & FLAG_CHECKPOINTS != 0 { reader.varint_u32("number of checkpoints")? } else { 0 },
            label: if flags & FLAG_LABEL != 0 { take_label(reader)? } else { None },
        })
    }
}

/// One page of a list.
#[derive(Clone, Debug)]
pub struct Listing<'a> {
    /// True if there is at least one more page.
    pub more: bool,
    rest: Reader<'a>,
    left: usize,
}

impl<'a> Listing<'a> {
    pub(crate) fn decode(body: &'a [u8]) -> Result<Listing<'a>, DecodeError> {
        let mut reader = Reader(body);
        let more = match reader.u8()? {
            more @ 0..=1 => more == 1,
            flags => return Err(DecodeError::UnknownFlags { what: "list", flags: u32::from(flags) }),
        };
        let (rest, mut left) = (reader, 0);
        while !reader.is_empty() {
            Listed::decode(&mut reader)?;
            left += 1;
        }
        Ok(Listing { more, rest, left })
    }
}

impl Iterator for Listing<'_> {
    type Item = Listed;

    fn next(&mut self) -> Option<Listed> {
        self.left = self.left.checked_sub(1)?;
        Listed::decode(&mut self.rest).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Listing<'_> {}
