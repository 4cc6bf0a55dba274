//! The bytes between a store's host and its clients.
//!
//! ```text
//! frame    = length u32, body                       length counts the body alone
//! question = op u8, fields                          numbers little-endian; bytes = length u32, content
//! answer   = 00, fields | 01 text | 02 text         done, refused, doubtful
//! ```

use std::io::{self, Read, Write};

use seriatim_core::WritePointer;
use seriatim_kv::{Page, PageLimits, Row, Version, Versions};

/// The longest body of a frame: 4 MiB, in both directions.
pub const FRAME_BYTES_MAX: usize = 4 << 20;
/// A page or a list of versions is ended early when it holds this much, so that its frame stays within the limit
/// whatever the size of one row.
pub const PAGE_BYTES_MAX: usize = FRAME_BYTES_MAX / 4;
/// The longest row with a value that the host takes, so that the page which holds it can be sent.
pub const WRITE_BYTES_MAX: usize = FRAME_BYTES_MAX / 4;

/// What a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Question<'a> {
    Put { row: &'a [u8], version: WritePointer, value: Option<&'a [u8]> },
    Remove { row: &'a [u8], version: WritePointer },
    Versions { row: &'a [u8], at_most: WritePointer, limit: u32 },
    Scan { start: &'a [u8], end: &'a [u8], at_most: WritePointer, rows: u32, versions: u32 },
    Flush,
    Recent { limit: u32 },
}

/// What the host answers: the encoded result, or why there is none.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer<T> {
    Done(T),
    Refused(String),
    Doubtful(String),
}

/// The bytes are not what this protocol says.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ProtocolError {
    /// They end too early.
    #[error("the frame ends within a field")]
    Short,
    /// They go on too long.
    #[error("{0} bytes follow the last field")]
    Long(usize),
    /// An op code or a flag is unknown.
    #[error("code {0} is unknown")]
    UnknownCode(u8),
}

impl Question<'_> {
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Question::Put { row, version, value } => {
                out.push(1);
                put_u64(out, version.0);
                put_bytes(out, row);
                put_value(out, value);
            }
            Question::Remove { row, version } => {
                out.push(2);
                put_u64(out, version.0);
                put_bytes(out, row);
            }
            Question::Versions { row, at_most, limit } => {
                out.push(3);
                put_u64(out, at_most.0);
                put_u32(out, limit);
                put_bytes(out, row);
            }
            Question::Scan { start, end, at_most, rows, versions } => {
                out.push(4);
                put_u64(out, at_most.0);
                put_u32(out, rows);
                put_u32(out, versions);
                put_bytes(out, start);
                put_bytes(out, end);
            }
            Question::Flush => out.push(5),
            Question::Recent { limit } => {
                out.push(6);
                put_u32(out, limit);
            }
        }
    }

    pub fn decode(body: &[u8]) -> Result<Question<'_>, ProtocolError> {
        let mut fields = Fields(body);
        let question = match fields.u8()? {
            1 => {
                let version = fields.pointer()?;
                Question::Put { row: fields.bytes()?, version, value: fields.value()? }
            }
            2 => {
                let version = fields.pointer()?;
                Question::Remove { row: fields.bytes()?, version }
            }
            3 => {
                let (at_most, limit) = (fields.pointer()?, fields.u32()?);
                Question::Versions { row: fields.bytes()?, at_most, limit }
            }
            4 => {
                let (at_most, rows, versions) = (fields.pointer()?, fields.u32()?, fields.u32()?);
                Question::Scan { start: fields.bytes()?, end: fields.bytes()?, at_most, rows, versions }
            }
            5 => Question::Flush,
            6 => Question::Recent { limit: fields.u32()? },
            code => return Err(ProtocolError::UnknownCode(code)),
        };
        fields.end()?;
        Ok(question)
    }
}

/// What can be the result in an answer.
pub trait Field: Sized {
    fn encode(&self, out: &mut Vec<u8>);
    fn decode(fields: &mut Fields<'_>) -> Result<Self, ProtocolError>;
}

impl<T: Field> Answer<T> {
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Answer::Done(result) => {
                out.push(0);
                result.encode(out);
            }
            Answer::Refused(why) => {
                out.push(1);
                put_bytes(out, why.as_bytes());
            }
            Answer::Doubtful(why) => {
                out.push(2);
                put_bytes(out, why.as_bytes());
            }
        }
    }

    pub fn decode(body: &[u8]) -> Result<Answer<T>, ProtocolError> {
        let mut fields = Fields(body);
        let answer = match fields.u8()? {
            0 => Answer::Done(T::decode(&mut fields)?),
            1 => Answer::Refused(String::from_utf8_lossy(fields.bytes()?).into_owned()),
            2 => Answer::Doubtful(String::from_utf8_lossy(fields.bytes()?).into_owned()),
            code => return Err(ProtocolError::UnknownCode(code)),
        };
        fields.end()?;
        Ok(answer)
    }
}

impl Field for () {
    fn encode(&self, _: &mut Vec<u8>) {}

    fn decode(_: &mut Fields<'_>) -> Result<(), ProtocolError> {
        Ok(())
    }
}

impl Field for Versions {
    fn encode(&self, out: &mut Vec<u8>) {
        put_u32(out, self.newest.len() as u32);
        for version in &self.newest {
            put_u64(out, version.pointer.0);
            put_value(out, version.value.as_deref());
        }
        out.push(u8::from(self.more));
    }

    fn decode(fields: &mut Fields<'_>) -> Result<Versions, ProtocolError> {
        let newest = (0..fields.u32()?)
            .map(|_| {
                let pointer = fields.pointer()?;
                Ok(Version { pointer, value: fields.value()?.map(<[u8]>::to_vec) })
            })
            .collect::<Result<_, _>>()?;
        Ok(Versions { newest, more: fields.flag()? })
    }
}

impl Field for Page {
    fn encode(&self, out: &mut Vec<u8>) {
        put_u32(out, self.rows.len() as u32);
        for row in &self.rows {
            put_bytes(out, &row.row);
            row.versions.encode(out);
        }
        put_value(out, self.next.as_deref());
    }

    fn decode(fields: &mut Fields<'_>) -> Result<Page, ProtocolError> {
        let rows = (0..fields.u32()?)
            .map(|_| {
                let row = fields.bytes()?.to_vec();
                Ok(Row { row, versions: Versions::decode(fields)? })
            })
            .collect::<Result<_, _>>()?;
        Ok(Page { rows, next: fields.value()?.map(<[u8]>::to_vec) })
    }
}

/// Rows with a version each.
impl Field for Vec<(Vec<u8>, WritePointer)> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_u32(out, self.len() as u32);
        for (row, version) in self {
            put_bytes(out, row);
            put_u64(out, version.0);
        }
    }

    fn decode(fields: &mut Fields<'_>) -> Result<Self, ProtocolError> {
        (0..fields.u32()?).map(|_| Ok((fields.bytes()?.to_vec(), fields.pointer()?))).collect()
    }
}

/// The limits of a page, held to what fits a `u32`.
pub fn limits_to_wire(limits: PageLimits) -> (u32, u32) {
    let clamp = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    (clamp(limits.rows), clamp(limits.versions))
}

/// Reads one frame's body into `body`; false at a clean end of the stream.
pub fn read_frame(stream: &mut impl Read, body: &mut Vec<u8>) -> io::Result<bool> {
    let mut length = [0; 4];
    match stream.read(&mut length[..1])? {
        0 => return Ok(false),
        _ => stream.read_exact(&mut length[1..])?,
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a frame of {length} bytes")));
    }
    body.resize(length, 0);
    stream.read_exact(body)?;
    Ok(true)
}

/// Writes one frame; `encode` appends its body. False if the body is over the limit, and then nothing was written.
pub fn write_frame(
    stream: &mut impl Write,
    buffer: &mut Vec<u8>,
    encode: impl FnOnce(&mut Vec<u8>),
) -> io::Result<bool> {
    buffer.clear();
    buffer.extend_from_slice(&[0; 4]);
    encode(buffer);
    let length = buffer.len() - 4;
    if length > FRAME_BYTES_MAX {
        return Ok(false);
    }
    buffer[..4].copy_from_slice(&(length as u32).to_le_bytes());
    stream.write_all(buffer)?;
    Ok(true)
}

/// What is left of a body.
pub struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], ProtocolError> {
        let (taken, rest) = self.0.split_at_checked(len).ok_or(ProtocolError::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], ProtocolError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(ProtocolError::Short)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn u8(&mut self) -> Result<u8, ProtocolError> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Result<u32, ProtocolError> {
        self.array().map(u32::from_le_bytes)
    }

    fn pointer(&mut self) -> Result<WritePointer, ProtocolError> {
        self.array().map(u64::from_le_bytes).map(WritePointer)
    }

    fn flag(&mut self) -> Result<bool, ProtocolError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            code => Err(ProtocolError::UnknownCode(code)),
        }
    }

    fn bytes(&mut self) -> Result<&'a [u8], ProtocolError> {
        let len = self.u32()? as usize;
        self.take(len)
    }

    fn value(&mut self) -> Result<Option<&'a [u8]>, ProtocolError> {
        if self.flag()? { self.bytes().map(Some) } else { Ok(None) }
    }

    fn end(&self) -> Result<(), ProtocolError> {
        if self.0.is_empty() { Ok(()) } else { Err(ProtocolError::Long(self.0.len())) }
    }
}

fn put_u32(out: &mut Vec<u8>, number: u32) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn put_u64(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(&number.to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(out, bytes.len() as u32);
    out.extend_from_slice(bytes);
}

fn put_value(out: &mut Vec<u8>, value: Option<&[u8]>) {
    out.push(u8::from(value.is_some()));
    if let Some(bytes) = value {
        put_bytes(out, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn questions() -> Vec<Question<'static>> {
        let (version, at_most) = (WritePointer(7), WritePointer(u64::MAX));
        vec![
            Question::Put { row: b"row", version, value: Some(b"") },
            Question::Put { row: b"", version, value: None },
            Question::Remove { row: b"row", version },
            Question::Versions { row: b"row", at_most, limit: 3 },
            Question::Scan { start: b"a", end: b"b", at_most, rows: 1, versions: u32::MAX },
            Question::Flush,
            Question::Recent { limit: 9 },
        ]
    }

    #[test]
    fn questions_come_back_and_broken_ones_are_errors() {
        for question in questions() {
            let mut body = Vec::new();
            question.encode(&mut body);
            assert_eq!(Question::decode(&body), Ok(question));
            for cut in 0..body.len() {
                assert_eq!(Question::decode(&body[..cut]), Err(ProtocolError::Short), "{question:?} cut at {cut}");
            }
            body.push(0);
            assert_eq!(Question::decode(&body), Err(ProtocolError::Long(1)));
        }
        assert_eq!(Question::decode(&[99]), Err(ProtocolError::UnknownCode(99)));
    }

    #[test]
    fn answers_come_back_and_broken_ones_are_errors() {
        fn check<T: Field + PartialEq + std::fmt::Debug>(answer: Answer<T>) {
            let mut body = Vec::new();
            answer.encode(&mut body);
            assert_eq!(Answer::decode(&body).as_ref(), Ok(&answer));
            for cut in 0..body.len() {
                assert_eq!(Answer::<T>::decode(&body[..cut]), Err(ProtocolError::Short), "{answer:?} cut at {cut}");
            }
        }
        let version =
            |n: u64, value: Option<&[u8]>| Version { pointer: WritePointer(n), value: value.map(<[u8]>::to_vec) };
        let versions = Versions { newest: vec![version(2, Some(b"two")), version(1, None)], more: true };
        check(Answer::Done(()));
        check(Answer::<()>::Refused("full".into()));
        check(Answer::<()>::Doubtful("on fire".into()));
        check(Answer::Done(versions.clone()));
        check(Answer::Done(vec![(b"row".to_vec(), WritePointer(5))]));
        let row = Row { row: b"row".to_vec(), versions };
        check(Answer::Done(Page { rows: vec![row.clone()], next: None }));
        check(Answer::Done(Page { rows: vec![row.clone(), row], next: Some(b"next".to_vec()) }));
    }

    #[test]
    fn frames_are_bounded() {
        let mut stream = Vec::new();
        let mut buffer = Vec::new();
        assert!(write_frame(&mut stream, &mut buffer, |out| out.extend_from_slice(b"body")).unwrap());
        assert!(!write_frame(&mut stream, &mut buffer, |out| out.resize(FRAME_BYTES_MAX + 5, 0)).unwrap());
        let (mut reader, mut body) = (stream.as_slice(), Vec::new());
        assert!(read_frame(&mut reader, &mut body).unwrap());
        assert_eq!(body, b"body");
        assert!(!read_frame(&mut reader, &mut body).unwrap());
        let too_long = (FRAME_BYTES_MAX as u32 + 1).to_le_bytes();
        assert_eq!(read_frame(&mut &too_long[..], &mut body).unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(read_frame(&mut &stream[..6], &mut body).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
