//! Reading foreign bytes with every step checked, and the few ways of writing numbers.

use seriatim_core::WritePointer;
use seriatim_core::event::take_varint;

use crate::error::DecodeError;

pub(crate) use seriatim_core::event::put_varint;

/// What is left to read of a body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (bytes, rest) = self.0.split_first_chunk::<N>().ok_or(DecodeError::TooShort)?;
        self.0 = rest;
        Ok(*bytes)
    }

    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u16(&mut self) -> Result<u16, DecodeError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub fn u64(&mut self) -> Result<u64, DecodeError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub fn u128(&mut self) -> Result<u128, DecodeError> {
        Ok(u128::from_le_bytes(self.array()?))
    }

    pub fn pointer(&mut self) -> Result<WritePointer, DecodeError> {
        Ok(WritePointer(self.u64()?))
    }

    pub fn varint(&mut self) -> Result<u64, DecodeError> {
        match self.0.split_first() {
            Some((byte, rest)) if *byte < 0x80 => {
                self.0 = rest;
                Ok(u64::from(*byte))
            }
            _ => Ok(take_varint(&mut self.0)?),
        }
    }

    /// A varint that must fit 32 bits; `what` names it when it does not.
    pub fn varint_u32(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        let value = self.varint()?;
        u32::try_from(value).map_err(|_| DecodeError::OutOfRange { what, value })
    }

    /// A number written as its zigzag distance from `base`.
    pub fn distance(&mut self, base: u64) -> Result<u64, DecodeError> {
        Ok(base.wrapping_add(unzigzag(self.varint()?) as u64))
    }

    pub fn bytes(&mut self, count: u64) -> Result<&'a [u8], DecodeError> {
        let count = usize::try_from(count).map_err(|_| DecodeError::TooShort)?;
        let (bytes, rest) = self.0.split_at_checked(count).ok_or(DecodeError::TooShort)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// `count` words of 8 bytes, where they lie.
    pub fn words(&mut self, count: u64) -> Result<&'a [[u8; 8]], DecodeError> {
        let bytes = self.bytes(count.checked_mul(8).ok_or(DecodeError::TooShort)?)?;
        Ok(bytes.as_chunks().0)
    }

    /// Text after its length in bytes.
    pub fn text(&mut self, what: &'static str) -> Result<&'a str, DecodeError> {
        let length = self.varint()?;
        std::str::from_utf8(self.bytes(length)?).map_err(|_| DecodeError::NotText { what })
    }

    /// Whatever is left.
    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    pub fn finish(self) -> Result<(), DecodeError> {
        if self.0.is_empty() { Ok(()) } else { Err(DecodeError::TooLong { extra: self.0.len() as u64 }) }
    }
}

pub(crate) fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(&value.to_le_bytes());
}

/// Writes a number as its distance from `base`, which may lie on either side.
pub(crate) fn put_distance(out: &mut Vec<u8>, base: u64, value: u64) {
    put_varint(out, zigzag(value.wrapping_sub(base) as i64));
}

pub(crate) fn put_text(out: &mut Vec<u8>, text: &str) {
    put_varint(out, text.len() as u64);
    out.extend_from_slice(text.as_bytes());
}

pub(crate) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

pub(crate) fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}
