//! What can be wrong with bytes, and how a server says that something is.

use seriatim_core::event::EventError;

use crate::bytes::{Reader, put_text, put_varint};
use crate::frame::FrameWriter;

/// Why bytes are no frame, request or reply of this version.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// A header announces more than the limit. Nothing was allocated for it; where the next frame starts is lost.
    #[error("a frame of {len} bytes is over the limit of {max}")]
    FrameTooLarge {
        /// Bytes that the header announces.
        len: u64,
        /// The limit.
        max: u64,
    },
    /// An operation that this version does not know, or a request where a reply was due.
    #[error("operation {0:#04x} is not known")]
    UnknownOp(u8),
    /// Flags that this version does not know.
    #[error("{what} has unknown flags {flags:#x}")]
    UnknownFlags {
        /// Whose flags.
        what: &'static str,
        /// All of them.
        flags: u32,
    },
    /// A number that stands for nothing in this version.
    #[error("{code} is no {what}")]
    UnknownNumber {
        /// What it should have stood for.
        what: &'static str,
        /// The number.
        code: u64,
    },
    /// The bytes end early.
    #[error("the body ends early")]
    TooShort,
    /// The bytes go on past the end.
    #[error("the body goes on for {extra} bytes past its end")]
    TooLong {
        /// Bytes left over.
        extra: u64,
    },
    /// A number outside what its field allows.
    #[error("{what} is out of range: {value}")]
    OutOfRange {
        /// The field.
        what: &'static str,
        /// What it holds.
        value: u64,
    },
    /// Bytes that should be UTF-8 and are not.
    #[error("{what} is not UTF-8")]
    NotText {
        /// The field.
        what: &'static str,
    },
    /// A hello that does not begin as one: the peer speaks something else.
    #[error("{0:#010x} is not the magic number of this protocol")]
    BadMagic(u32),
    /// A snapshot was sent as a difference from one that the reader did not name. Reading it anyway would hide or show
    /// the wrong versions. Forget all snapshots of this connection and ask for a whole one.
    #[error("snapshot {new} is a difference from {named}, but {have:?} was offered as its base")]
    WrongBase {
        /// Number of the snapshot sent.
        new: u64,
        /// Number of the base it was made from.
        named: u64,
        /// Number of the base at hand, if there is one.
        have: Option<u64>,
    },
    /// What was put together is not what the sender has. Forget it, and ask for a whole snapshot.
    #[error("snapshot {number} has digest {computed:#018x}, its sender says {sent:#018x}")]
    DigestMismatch {
        /// Number of the snapshot.
        number: u64,
        /// Digest of what was put together here.
        computed: u64,
        /// Digest that came with it.
        sent: u64,
    },
}

impl DecodeError {
    /// The code under which a server answers a request with this fault.
    pub fn code(&self) -> ErrorCode {
        match self {
            DecodeError::FrameTooLarge { .. } => ErrorCode::FrameTooLarge,
            DecodeError::UnknownOp(_) => ErrorCode::UnknownOp,
            DecodeError::BadMagic(_) => ErrorCode::NotHello,
            _ => ErrorCode::Malformed,
        }
    }

    /// The error frame's numbers for this fault, see [`ErrorReply::asked`]: what was met and what would have been right.
    pub fn numbers(&self) -> (u64, u64) {
        match *self {
            DecodeError::FrameTooLarge { len, max } => (len, max),
            DecodeError::UnknownOp(op) => (u64::from(op), 0),
            _ => (0, 0),
        }
    }
}

impl From<EventError> for DecodeError {
    fn from(error: EventError) -> DecodeError {
        match error {
            EventError::TooShort => DecodeError::TooShort,
            _ => DecodeError::OutOfRange { what: "varint", value: u64::MAX },
        }
    }
}

/// Why a server did not do what a request asked. The numbers are for ever; `PROTOCOL.md` says what to do about each.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[non_exhaustive]
pub enum ErrorCode {
    /// The announced frame is over the limit. Closes.
    FrameTooLarge,
    /// The operation is not known to this server. The connection stays.
    UnknownOp,
    /// No version of the client's range is spoken here. Closes.
    BadVersion,
    /// Something other than a hello came first, or a second hello. Closes.
    NotHello,
    /// The body is not what its operation asks for; nothing of the frame was done. Closes.
    Malformed,
    /// A count is over a limit of the hello's reply; nothing was done. The connection stays.
    LimitExceeded,
    /// Full for the moment; nothing was done. Repeat after a pause.
    Overloaded,
    /// The log has no room for another segment; nothing was done. Repeat when there is space.
    DiskFull,
    /// The server is stopping. Connect again; settle what was in flight.
    ShuttingDown,
    /// This is not the store that the client wants.
    WrongStore,
    /// Reserved for clusters: another member leads; the message holds its address.
    NotLeader,
    /// Reserved: the credentials do not allow this.
    Unauthorized,
    /// The log failed and the server ends. Settle what was in flight when one serves again.
    LogFailed,
    /// As many connections are open as may be. Closes.
    TooManyConnections,
    /// The client does not read its replies. Closes.
    SlowReader,
    /// A code of a newer server.
    Other(u16),
}

/// Every code of this version with its number.
const CODES: [(ErrorCode, u16); 15] = [
    (ErrorCode::FrameTooLarge, 1),
    (ErrorCode::UnknownOp, 2),
    (ErrorCode::BadVersion, 3),
    (ErrorCode::NotHello, 4),
    (ErrorCode::Malformed, 5),
    (ErrorCode::LimitExceeded, 6),
    (ErrorCode::Overloaded, 7),
    (ErrorCode::DiskFull, 8),
    (ErrorCode::ShuttingDown, 9),
    (ErrorCode::WrongStore, 10),
    (ErrorCode::NotLeader, 11),
    (ErrorCode::Unauthorized, 12),
    (ErrorCode::LogFailed, 13),
    (ErrorCode::TooManyConnections, 14),
    (ErrorCode::SlowReader, 15),
];

impl ErrorCode {
    /// The number on the wire.
    pub fn to_u16(self) -> u16 {
        match self {
            ErrorCode::Other(number) => number,
            code => CODES.iter().find(|(known, _)| *known == code).map_or(0, |(_, number)| *number),
        }
    }

    /// The code with this number.
    pub fn from_u16(number: u16) -> ErrorCode {
        CODES.iter().find(|(_, known)| *known == number).map_or(ErrorCode::Other(number), |(code, _)| *code)
    }

    /// True if the connection is of no use after this error.
    pub fn closes(self) -> bool {
        use ErrorCode::*;
        matches!(
            self,
            FrameTooLarge
                | BadVersion
                | NotHello
                | Malformed
                | ShuttingDown
                | LogFailed
                | TooManyConnections
                | SlowReader
        )
    }

    /// True if the same request may succeed later, here or after connecting again.
    pub fn is_retryable(self) -> bool {
        use ErrorCode::*;
        matches!(self, Overloaded | DiskFull | ShuttingDown | NotLeader | LogFailed | TooManyConnections | SlowReader)
    }
}

/// The reply to a request as a whole that was not done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ErrorReply<'a> {
    /// Why.
    pub code: ErrorCode,
    /// The server closes the connection after this frame.
    pub closes: bool,
    /// What was asked for or met, where that is a number; its meaning goes with the code.
    pub asked: u64,
    /// What would have been right, where that is a number.
    pub limit: u64,
    /// For people. Programs go by the code.
    pub message: &'a str,
}

impl<'a> ErrorReply<'a> {
    /// An error that closes if its code says so, without numbers.
    pub fn new(code: ErrorCode, message: &'a str) -> ErrorReply<'a> {
        ErrorReply { code, closes: code.closes(), asked: 0, limit: 0, message }
    }

    /// The same error with what was asked for and what would have been right; their meaning goes with the code.
    pub fn with_numbers(self, asked: u64, limit: u64) -> ErrorReply<'a> {
        ErrorReply { asked, limit, ..self }
    }

    /// Appends the error as a whole frame. `id` is the request's, or 0 if it answers none.
    pub fn encode(&self, out: &mut Vec<u8>, id: u64) {
        let mut frame = FrameWriter::error(out, id);
        let body = frame.body();
        body.extend_from_slice(&self.code.to_u16().to_le_bytes());
        body.push(u8::from(self.closes));
        put_varint(body, self.asked);
        put_varint(body, self.limit);
        put_text(body, self.message);
        frame.finish();
    }

    pub(crate) fn decode(body: &'a [u8]) -> Result<ErrorReply<'a>, DecodeError> {
        let mut reader = Reader(body);
        let code = ErrorCode::from_u16(reader.u16()?);
        let flags = reader.u8()?;
        if flags > 1 {
            return Err(DecodeError::UnknownFlags { what: "error", flags: u32::from(flags) });
        }
        let reply = ErrorReply {
            code,
            closes: flags & 1 != 0,
            asked: reader.varint()?,
            limit: reader.varint()?,
            message: reader.text("error message")?,
        };
        reader.finish()?;
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_a_number_of_its_own() {
        for (code, number) in CODES {
            assert_eq!(code.to_u16(), number);
            assert_eq!(ErrorCode::from_u16(number), code);
        }
        assert_eq!(ErrorCode::from_u16(999), ErrorCode::Other(999));
        assert_eq!(ErrorCode::Other(999).to_u16(), 999);
    }
}
