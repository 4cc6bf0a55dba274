//! The identity file: whose directory this is, and in which format.

use std::fmt;

use crate::field::{is_sealed, put_u16, put_u64, put_u128, seal, u16_at, u64_at, u128_at};

/// The version of every format in `FORMAT.md`.
pub const FORMAT_VERSION: u16 = 1;

/// Names one store for ever; drawn at random when its directory is made. In every header, so that a file of another
/// store is recognised wherever it turns up.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StoreId(pub u128);

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "store:{self}")
    }
}

const MAGIC: [u8; 8] = *b"SERIATIM";
const BYTES: usize = 64;

/// What the identity file says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Identity {
    pub store: StoreId,
    /// Wall clock, informational.
    pub created_ms: u64,
}

/// Why a file of ours cannot be read as one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unreadable {
    /// Not this kind of file at all.
    NotOurs,
    /// Ours, from a version that is not known here.
    Version(u16),
    /// Ours, and not what was written.
    Damaged,
}

impl Identity {
    pub(crate) fn encode(&self) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        put_u16(&mut bytes, 8, FORMAT_VERSION);
        put_u128(&mut bytes, 16, self.store.0);
        put_u64(&mut bytes, 32, self.created_ms);
        seal(&mut bytes);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Identity, Unreadable> {
        let header = bytes.first_chunk::<BYTES>().ok_or(Unreadable::NotOurs)?;
        check_header(header, MAGIC)?;
        if bytes.len() != BYTES {
            return Err(Unreadable::Damaged);
        }
        Ok(Identity { store: StoreId(u128_at(header, 16)), created_ms: u64_at(header, 32) })
    }
}

/// Checks what every header has in common: its magic, its version right behind, and the checksum that ends it. These
/// keep their places in all versions, so a changed byte is never taken for a newer version.
pub(crate) fn check_header(header: &[u8], magic: [u8; 8]) -> Result<(), Unreadable> {
    if header[..8] != magic {
        return Err(Unreadable::NotOurs);
    }
    if !is_sealed(header) {
        return Err(Unreadable::Damaged);
    }
    match u16_at(header, 8) {
        FORMAT_VERSION => Ok(()),
        other => Err(Unreadable::Version(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_reads_back_and_a_changed_one_does_not() {
        let identity = Identity { store: StoreId(0x1234), created_ms: 1_700_000_000_000 };
        let bytes = identity.encode();
        assert_eq!(Identity::decode(&bytes), Ok(identity));
        assert_eq!(Identity::decode(&bytes[..40]), Err(Unreadable::NotOurs));
        for bit in 0..BYTES * 8 {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(Identity::decode(&changed).is_err(), "bit {bit}");
        }
        let mut newer = bytes;
        newer[8] = 2;
        assert_eq!(Identity::decode(&newer), Err(Unreadable::Damaged));
        seal(&mut newer);
        assert_eq!(Identity::decode(&newer), Err(Unreadable::Version(2)));
    }
}
