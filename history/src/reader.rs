//! Reading a history from JSON lines, one row at a time.

use std::io::{self, BufRead, Read as _};

use crate::history::{History, RowError};
use crate::row::Row;

/// Longest line: 64 MiB.
pub const LINE_BYTES_MAX: u64 = 64 << 20;

/// A history that cannot be read. Lines are counted from 1.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The input failed.
    #[error("cannot read line {line}")]
    Io {
        /// The line that was to be read.
        line: u64,
        /// What the operating system says.
        source: io::Error,
    },
    /// A line is over [`LINE_BYTES_MAX`].
    #[error("line {line} is longer than {LINE_BYTES_MAX} bytes")]
    LineTooLong {
        /// The line.
        line: u64,
    },
    /// A line is not a row in JSON.
    #[error("line {line} is no row of a history")]
    Malformed {
        /// The line.
        line: u64,
        /// What is wrong with it, and where in the line.
        source: serde_json::Error,
    },
    /// A row contradicts itself.
    #[error("line {line} is refused")]
    Refused {
        /// The line.
        line: u64,
        /// Why.
        source: RowError,
    },
}

impl History {
    /// Reads rows to the end of `input`; blank lines are passed over. `progress` is called after each row with the number
    /// of rows so far.
    ///
    /// Beside the history itself, memory holds one line and one row at a time.
    ///
    /// # Errors
    /// At the first line that is no row, with its number.
    pub fn read(mut input: impl BufRead, mut progress: impl FnMut(u64)) -> Result<History, ReadError> {
        let mut history = History::new();
        let mut bytes = Vec::new();
        for line in 1.. {
            bytes.clear();
            let mut limited = input.by_ref().take(LINE_BYTES_MAX + 1);
            let len = limited.read_until(b'\n', &mut bytes).map_err(|source| ReadError::Io { line, source })?;
            if len == 0 {
                break;
            }
            if len as u64 > LINE_BYTES_MAX {
                return Err(ReadError::LineTooLong { line });
            }
            if bytes.trim_ascii().is_empty() {
                continue;
            }
            let row: Row = serde_json::from_slice(&bytes).map_err(|source| ReadError::Malformed { line, source })?;
            history.push(row).map_err(|source| ReadError::Refused { line, source })?;
            progress(history.len() as u64);
        }
        Ok(history)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<History, ReadError> {
        History::read(text.as_bytes(), |_| ())
    }

    #[test]
    fn blank_lines_and_a_missing_last_line_end_are_taken() {
        let history = read("\n{\"outcome\":\"aborted\"}\n  \r\n{\"tx\":1,\"outcome\":\"unknown\"}").unwrap();
        assert_eq!(history.len(), 2);
        assert!(read("").unwrap().is_empty());
    }

    #[test]
    fn errors_name_the_line() {
        for text in ["{\"outcome\":\"lost\"}", "{}", "[]", "x", "{\"outcome\":\"aborted\",\"colour\":1}"] {
            let error = read(&format!("\n{{\"outcome\":\"aborted\"}}\n{text}\n")).unwrap_err();
            assert!(matches!(error, ReadError::Malformed { line: 3, .. }), "{text}: {error}");
        }
        let error = read("{\"outcome\":\"aborted\",\"csn\":3}").unwrap_err();
        let source = RowError::NumberWithoutCommit { csn: 3 };
        assert!(matches!(error, ReadError::Refused { line: 1, source: found } if found == source));
    }

    #[test]
    fn a_line_without_end_is_not_read_for_ever() {
        let endless = io::BufReader::new(io::repeat(b' '));
        assert!(matches!(History::read(endless, |_| ()), Err(ReadError::LineTooLong { line: 1 })));
    }
}
