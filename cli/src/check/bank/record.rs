//! The history of a run: a file with a row for every transaction, for `seriatim check history`.
//!
//! Who runs transactions is killed at any moment, so the run itself writes the file. A client says of a transaction what
//! it read and means to write before the store hears of it, and again how it ended; of a client that was killed in
//! between the first is what is written, and its outcome is unknown.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rustix::time::{ClockId, clock_gettime};
use seriatim_core::{Snapshot, WritePointer};
use seriatim_history::{Read, Row, SnapshotPoint};

use super::accounts::TransferId;
use super::error::{CheckError, doing};

/// The file while it is written.
pub struct Record {
    written: Mutex<io::Result<BufWriter<File>>>,
}

impl Record {
    /// Makes the file, and empties it if it is there.
    pub fn create(path: &Path) -> Result<Record, CheckError> {
        let file = File::create(path).map_err(doing("make the history's file"))?;
        Ok(Record { written: Mutex::new(Ok(BufWriter::new(file))) })
    }

    /// Adds a row. After a failure nothing more is written, and [`Record::finish`] tells.
    pub fn add(&self, row: &Row) {
        self.add_line(&line(row));
    }

    /// Adds a row that is a line already.
    pub fn add_line(&self, line: &str) {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        if let Ok(file) = written.as_mut()
            && let Err(error) = writeln!(file, "{line}")
        {
            *written = Err(error);
        }
    }

    /// Writes out what is left.
    pub fn finish(&self) -> Result<(), CheckError> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = std::mem::replace(&mut *written, Err(io::Error::other("the history has ended")));
        ended.and_then(|mut file| file.flush()).map_err(doing("write the history"))
    }
}

/// A row as a line of JSON, without its end.
pub fn line(row: &Row) -> String {
    serde_json::to_string(row).expect("a row is numbers and text")
}

/// ns of the machine's monotonic clock, the same for all processes.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// A snapshot as rows have it.
pub fn point(snapshot: &Snapshot) -> SnapshotPoint {
    SnapshotPoint { read_pointer: Some(snapshot.read_pointer.0), csn: Some(snapshot.csn.0) }
}

/// An account as rows have it.
pub fn account_key(account: u32) -> String {
    format!("account {account}")
}

/// A row of the ledger as rows have it.
pub fn ledger_key(id: TransferId) -> String {
    format!("transfer {}-{}", id.client, id.sequence)
}

/// A read of an account as rows have it.
pub fn read(account: u32, version: Option<WritePointer>) -> Read {
    Read { key: account_key(account), writer: version.map(|version| version.0), seq: None }
}
