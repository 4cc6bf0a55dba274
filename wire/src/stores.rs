//! What registered stores say to a server and hear from it: how far they may clean, how far they have, who blocks.

use seriatim_core::{
    CleanBound, InvalidCause, Kind, RegisteredStore, STORE_NAME_BYTES_MAX, StoreName, StoreRefusal, WritePointer,
};

use crate::bytes::{Reader, put_text, put_u64, put_varint};
use crate::error::DecodeError;
use crate::frame::Op;
use crate::outcome::{put_status, take_status};
use crate::state::Listed;

/// A request that is about registered stores.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreRequest<'a> {
    /// See [`Op::RegisterStore`].
    Register {
        /// Its name, 1 to 64 bytes.
        name: &'a str,
    },
    /// See [`Op::RemoveStore`].
    Remove {
        /// Its name, 1 to 64 bytes.
        name: &'a str,
    },
    /// See [`Op::CleanBound`].
    CleanBound,
    /// See [`Op::StoreCleaned`].
    Cleaned {
        /// Its name, 1 to 64 bytes.
        name: &'a str,
        /// It holds no version of an invalid transaction at or below this pointer, and that is durable.
        bound: WritePointer,
    },
    /// See [`Op::Pruning`].
    Pruning,
}

impl<'a> StoreRequest<'a> {
    /// The operation.
    pub fn op(&self) -> Op {
        match self {
            StoreRequest::Register { .. } => Op::RegisterStore,
            StoreRequest::Remove { .. } => Op::RemoveStore,
            StoreRequest::CleanBound => Op::CleanBound,
            StoreRequest::Cleaned { .. } => Op::StoreCleaned,
            StoreRequest::Pruning => Op::Pruning,
        }
    }

    /// True if the server remembers it on disk.
    pub fn changes(&self) -> bool {
        !matches!(self, StoreRequest::CleanBound | StoreRequest::Pruning)
    }

    pub(crate) fn encode(&self, body: &mut Vec<u8>) {
        match self {
            StoreRequest::Register { name } | StoreRequest::Remove { name } => put_text(body, name),
            StoreRequest::Cleaned { name, bound } => {
                put_text(body, name);
                put_u64(body, bound.0);
            }
            StoreRequest::CleanBound | StoreRequest::Pruning => {}
        }
    }

    pub(crate) fn take(op: Op, reader: &mut Reader<'a>) -> Result<StoreRequest<'a>, DecodeError> {
        Ok(match op {
            Op::RegisterStore => StoreRequest::Register { name: take_name(reader)? },
            Op::RemoveStore => StoreRequest::Remove { name: take_name(reader)? },
            Op::StoreCleaned => StoreRequest::Cleaned { name: take_name(reader)?, bound: reader.pointer()? },
            Op::CleanBound => StoreRequest::CleanBound,
            Op::Pruning => StoreRequest::Pruning,
            other => unreachable!("{other:?} is about no store"),
        })
    }
}

/// The answer to a [`StoreRequest`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreReply {
    /// To `Register`: false if it was registered before.
    Registered(Result<bool, StoreRefusal>),
    /// To `Remove`: whether it was registered.
    Removed(bool),
    /// To `CleanBound`.
    CleanBound(CleanBound),
    /// To `Cleaned`.
    Cleaned(Result<(), StoreRefusal>),
    /// To `Pruning`.
    Pruning(Box<PruneReport>),
}

impl StoreReply {
    /// The operation that it answers.
    pub fn op(&self) -> Op {
        match self {
            StoreReply::Registered(_) => Op::RegisterStore,
            StoreReply::Removed(_) => Op::RemoveStore,
            StoreReply::CleanBound(_) => Op::CleanBound,
            StoreReply::Cleaned(_) => Op::StoreCleaned,
            StoreReply::Pruning(_) => Op::Pruning,
        }
    }

    pub(crate) fn encode(&self, body: &mut Vec<u8>) {
        match self {
            StoreReply::Registered(Ok(is_new)) => body.extend_from_slice(&[0, u8::from(*is_new)]),
            StoreReply::Registered(Err(refusal)) | StoreReply::Cleaned(Err(refusal)) => put_refusal(body, *refusal),
            StoreReply::Removed(was_there) => body.push(u8::from(*was_there)),
            StoreReply::CleanBound(bounds) => {
                put_u64(body, bounds.clean.0);
                put_u64(body, bounds.visible.0);
            }
            StoreReply::Cleaned(Ok(())) => body.push(0),
            StoreReply::Pruning(report) => report.encode(body),
        }
    }

    pub(crate) fn take(op: Op, reader: &mut Reader<'_>) -> Result<StoreReply, DecodeError> {
        Ok(match op {
            Op::RegisterStore => StoreReply::Registered(match take_refusal(reader)? {
                None => Ok(take_bool(reader)?),
                Some(refusal) => Err(refusal),
            }),
            Op::RemoveStore => StoreReply::Removed(take_bool(reader)?),
            Op::CleanBound => {
                StoreReply::CleanBound(CleanBound { clean: reader.pointer()?, visible: reader.pointer()? })
            }
            Op::StoreCleaned => StoreReply::Cleaned(take_refusal(reader)?.map_or(Ok(()), Err)),
            Op::Pruning => StoreReply::Pruning(Box::new(PruneReport::take(reader)?)),
            other => unreachable!("{other:?} is about no store"),
        })
    }
}

/// Who keeps the invalid set from becoming smaller.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PruneReport {
    /// How far stores may clean now.
    pub bounds: CleanBound,
    /// Invalid transactions, and intervals.
    pub invalid: u64,
    /// What holds the clean bound back.
    pub holder: CleanHolder,
    /// The registered stores in the order of their names.
    pub stores: Vec<(StoreName, RegisteredStore)>,
}

/// What holds the clean bound back.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum CleanHolder {
    /// Nothing: everything up to the newest finished pointer may be cleaned.
    #[default]
    Nothing,
    /// This transaction is open.
    Open(Box<Listed>),
    /// The transaction with this pointer began, or is ending, in a part of the log that is not durable yet.
    Deciding(WritePointer),
    /// This invalid transaction, or interval: its client may still write, or a write of it may still be on its way.
    Writing {
        /// The transaction, or the first pointer of an interval that a crash left unaccounted.
        tx: WritePointer,
        /// SHORT or LONG.
        kind: Kind,
        /// Why it is invalid.
        cause: InvalidCause,
        /// Time until it holds nothing back any more, in ms of sequencer time.
        remaining_ms: u64,
    },
}

impl PruneReport {
    /// The store that has cleaned least: what it has not cleaned stays in the invalid set.
    pub fn slowest(&self) -> Option<&(StoreName, RegisteredStore)> {
        self.stores.iter().min_by_key(|(_, store)| store.bound)
    }

    fn encode(&self, body: &mut Vec<u8>) {
        put_u64(body, self.bounds.clean.0);
        put_u64(body, self.bounds.visible.0);
        put_varint(body, self.invalid);
        match &self.holder {
            CleanHolder::Nothing => body.push(0),
            CleanHolder::Open(listed) => {
                body.push(1);
                listed.encode(body);
            }
            CleanHolder::Deciding(tx) => {
                body.push(2);
                put_u64(body, tx.0);
            }
            CleanHolder::Writing { tx, kind, cause, remaining_ms } => {
                body.push(3);
                put_u64(body, tx.0);
                body.push(u8::from(*kind == Kind::Long));
                put_status(body, seriatim_core::Status::Invalid(*cause));
                put_varint(body, *remaining_ms);
            }
        }
        put_varint(body, self.stores.len() as u64);
        for (name, store) in &self.stores {
            put_text(body, name.as_str());
            put_u64(body, store.bound.0);
            put_varint(body, store.registered_ms);
            put_varint(body, store.acknowledged_ms);
        }
    }

    fn take(reader: &mut Reader<'_>) -> Result<PruneReport, DecodeError> {
        let bounds = CleanBound { clean: reader.pointer()?, visible: reader.pointer()? };
        let invalid = reader.varint()?;
        let holder = match reader.u8()? {
            0 => CleanHolder::Nothing,
            1 => CleanHolder::Open(Box::new(Listed::decode(reader)?)),
            2 => CleanHolder::Deciding(reader.pointer()?),
            3 => {
                let (tx, is_long) = (reader.pointer()?, take_bool(reader)?);
                let seriatim_core::Status::Invalid(cause) = take_status(reader)? else {
                    return Err(DecodeError::UnknownNumber { what: "status of an invalid transaction", code: 0 });
                };
                let kind = if is_long { Kind::Long } else { Kind::Short };
                CleanHolder::Writing { tx, kind, cause, remaining_ms: reader.varint()? }
            }
            code => return Err(DecodeError::UnknownNumber { what: "holder of a bound", code: u64::from(code) }),
        };
        let mut stores = Vec::new();
        for _ in 0..reader.varint()? {
            let name = take_name(reader)?;
            let name = StoreName::new(name).map_err(|error| too_long(error.bytes))?;
            let bound = reader.pointer()?;
            let (registered_ms, acknowledged_ms) = (reader.varint()?, reader.varint()?);
            stores.push((name, RegisteredStore { bound, registered_ms, acknowledged_ms }));
        }
        Ok(PruneReport { bounds, invalid, holder, stores })
    }
}

fn put_refusal(body: &mut Vec<u8>, refusal: StoreRefusal) {
    match refusal {
        StoreRefusal::Unknown => body.push(1),
        StoreRefusal::NotHandedOut { bound, greatest } => {
            body.push(2);
            put_u64(body, bound.0);
            put_u64(body, greatest.0);
        }
        StoreRefusal::TooMany { max } => {
            body.push(3);
            put_varint(body, max);
        }
    }
}

fn take_refusal(reader: &mut Reader<'_>) -> Result<Option<StoreRefusal>, DecodeError> {
    Ok(Some(match reader.u8()? {
        0 => return Ok(None),
        1 => StoreRefusal::Unknown,
        2 => StoreRefusal::NotHandedOut { bound: reader.pointer()?, greatest: reader.pointer()? },
        3 => StoreRefusal::TooMany { max: reader.varint()? },
        code => return Err(DecodeError::UnknownNumber { what: "answer to a store", code: u64::from(code) }),
    }))
}

fn take_name<'a>(reader: &mut Reader<'a>) -> Result<&'a str, DecodeError> {
    let name = reader.text("name of a store")?;
    match name.len() {
        1..=STORE_NAME_BYTES_MAX => Ok(name),
        bytes => Err(too_long(bytes)),
    }
}

fn too_long(bytes: usize) -> DecodeError {
    DecodeError::OutOfRange { what: "length of a store's name", value: bytes as u64 }
}

fn take_bool(reader: &mut Reader<'_>) -> Result<bool, DecodeError> {
    match reader.u8()? {
        code @ 0..=1 => Ok(code == 1),
        code => Err(DecodeError::UnknownNumber { what: "yes or no", code: u64::from(code) }),
    }
}
