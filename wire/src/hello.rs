//! The first exchange of a connection: who is there, which version is spoken, which limits hold.
//!
//! These two bodies never change their beginnings, in no version, and whoever reads them ignores what follows: that
//! is how later versions add to them.

use crate::bytes::{Reader, put_text, put_u64, put_varint};
use crate::error::DecodeError;
use crate::frame::{FrameWriter, Op};
use crate::{BLOCK_MAX_DEFAULT, BODY_BYTES_MAX, MAGIC, VERSION};

/// Which store a server serves: random, made with the data directory, for life.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Default)]
pub struct StoreId(pub u128);

impl std::fmt::Display for StoreId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// What a client says first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello<'a> {
    /// The oldest version that the client speaks.
    pub version_min: u16,
    /// The newest version that the client speaks.
    pub version_max: u16,
    /// Chosen at random by the client, kept over its reconnects: transactions belong to it, not to the connection.
    pub session: u64,
    /// The store that the client expects, if it knows; a server of another one refuses.
    pub store: Option<StoreId>,
    /// Name for people, shown where the client's transactions are listed. At most 64 bytes count.
    pub label: &'a str,
    /// Reserved: proof of who this is. Empty in version 1.
    pub credentials: &'a [u8],
}

const FLAG_STORE: u8 = 1;

impl<'a> Hello<'a> {
    /// A hello in this crate's version.
    pub fn new(session: u64) -> Hello<'a> {
        Hello { version_min: VERSION, version_max: VERSION, session, store: None, label: "", credentials: &[] }
    }

    /// The newest version that both sides speak.
    pub fn choose_version(&self) -> Option<u16> {
        (self.version_min..=self.version_max).contains(&VERSION).then_some(VERSION)
    }

    /// Appends the hello as a whole frame.
    pub fn encode(&self, out: &mut Vec<u8>, id: u64) {
        let mut frame = FrameWriter::request(out, Op::Hello, id);
        let body = frame.body();
        body.extend_from_slice(&MAGIC.to_le_bytes());
        body.extend_from_slice(&self.version_min.to_le_bytes());
        body.extend_from_slice(&self.version_max.to_le_bytes());
        put_u64(body, self.session);
        body.push(if self.store.is_some() { FLAG_STORE } else { 0 });
        if let Some(StoreId(store)) = self.store {
            body.extend_from_slice(&store.to_le_bytes());
        }
        put_text(body, self.label);
        put_varint(body, self.credentials.len() as u64);
        body.extend_from_slice(self.credentials);
        frame.finish();
    }

    pub(crate) fn decode(body: &'a [u8]) -> Result<Hello<'a>, DecodeError> {
        let mut reader = Reader(body);
        let magic = reader.u32()?;
        if magic != MAGIC {
            return Err(DecodeError::BadMagic(magic));
        }
        let (version_min, version_max, session) = (reader.u16()?, reader.u16()?, reader.u64()?);
        // What follows is read only if the versions meet: a later one may put something else there.
        let mut hello = Hello { version_min, version_max, session, store: None, label: "", credentials: &[] };
        if hello.choose_version().is_none() {
            return Ok(hello);
        }
        let flags = reader.u8()?;
        if flags & !FLAG_STORE != 0 {
            return Err(DecodeError::UnknownFlags { what: "hello", flags: u32::from(flags) });
        }
        if flags & FLAG_STORE != 0 {
            hello.store = Some(StoreId(reader.u128()?));
        }
        hello.label = reader.text("label")?;
        let length = reader.varint()?;
        hello.credentials = reader.bytes(length)?;
        Ok(hello)
    }
}

/// Bounds that a server tells its clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HelloLimits {
    /// Bytes of a request's body. At most, and by default, [`BODY_BYTES_MAX`].
    pub body_bytes: u32,
    /// Change ids in one change set, all lists together. Default 2^20.
    pub change_ids: u32,
    /// Transactions in one begin. Default [`BLOCK_MAX_DEFAULT`].
    pub block: u32,
    /// Age in ms past which nobody may read through a snapshot that no open transaction holds. Default 60 s.
    pub snapshot_age_ms: u32,
    /// Time in ms that a client has to come back before its open transactions end. Default 5 s.
    pub grace_ms: u32,
}

impl Default for HelloLimits {
    fn default() -> HelloLimits {
        HelloLimits {
            body_bytes: BODY_BYTES_MAX,
            change_ids: seriatim_core::CHANGE_IDS_MAX as u32,
            block: BLOCK_MAX_DEFAULT,
            snapshot_age_ms: 60_000,
            grace_ms: 5_000,
        }
    }
}

/// What a server answers to a hello.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HelloReply {
    /// The version that is spoken from here on.
    pub version: u16,
    /// The store that is served.
    pub store: StoreId,
    /// Names this run of the server; snapshots are numbered within it.
    pub boot: u64,
    /// The server's wall clock, in ms since the Unix epoch.
    pub server_time_ms: u64,
    /// Its bounds.
    pub limits: HelloLimits,
}

impl HelloReply {
    /// Appends the reply as a whole frame.
    pub fn encode(&self, out: &mut Vec<u8>, id: u64) {
        let mut frame = FrameWriter::reply(out, Op::Hello, id);
        let body = frame.body();
        body.extend_from_slice(&self.version.to_le_bytes());
        body.extend_from_slice(&self.store.0.to_le_bytes());
        put_u64(body, self.boot);
        put_u64(body, self.server_time_ms);
        let HelloLimits { body_bytes, change_ids, block, snapshot_age_ms, grace_ms } = self.limits;
        for limit in [body_bytes, change_ids, block, snapshot_age_ms, grace_ms] {
            body.extend_from_slice(&limit.to_le_bytes());
        }
        frame.finish();
    }

    pub(crate) fn decode(body: &[u8]) -> Result<HelloReply, DecodeError> {
        let mut reader = Reader(body);
        Ok(HelloReply {
            version: reader.u16()?,
            store: StoreId(reader.u128()?),
            boot: reader.u64()?,
            server_time_ms: reader.u64()?,
            limits: HelloLimits {
                body_bytes: reader.u32()?,
                change_ids: reader.u32()?,
                block: reader.u32()?,
                snapshot_age_ms: reader.u32()?,
                grace_ms: reader.u32()?,
            },
        })
    }
}
