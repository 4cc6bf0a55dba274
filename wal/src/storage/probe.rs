//! Which way of writing is the faster one here, found by trying both.
//!
//! Which one wins depends on the device, the file system and the kernel, and on a busy host single answers are late by
//! whole scheduler ticks. So the ways take turns, and their medians are compared.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::field::BLOCK_BYTES;
use crate::file_name::TEMPORARY_SUFFIX;
use crate::storage::wake::Wake;
use crate::storage::writer::{Sync, Writer};
use crate::storage::{Buffer, SegmentWrite, Wait, is_out_of_space};

/// The file that is written to, without [`TEMPORARY_SUFFIX`].
pub(crate) const NAME: &str = "probe";

const ROUNDS: usize = 3;
const WRITES_PER_ROUND: usize = 8;

/// Opens a writer of one kind of sync.
pub(crate) type OpenWriter<'a> = &'a dyn Fn(Sync, &[Buffer], Wake) -> io::Result<Writer>;

/// The faster sync for writers that `open` makes in `directory`, and how that was found, in words.
///
/// # Errors
/// If neither works.
pub(crate) fn faster_sync(directory: &Path, open: OpenWriter<'_>) -> io::Result<(Sync, String)> {
    let path = directory.join(format!("{NAME}{TEMPORARY_SUFFIX}"));
    if let Err(error) = make_probe_file(&path) {
        // Whatever is left of it is removed at the next start.
        let _ = std::fs::remove_file(&path);
        if is_out_of_space(&error) {
            return Ok((Sync::Buffered, "not probed: no room for the probe".into()));
        }
        return Err(error);
    }
    let direct = Candidate::open(Sync::Direct, &path, open);
    let buffered = Candidate::open(Sync::Buffered, &path, open);
    let choice = race(direct, buffered);
    let _ = std::fs::remove_file(&path);
    choice
}

fn race(direct: io::Result<Candidate>, buffered: io::Result<Candidate>) -> io::Result<(Sync, String)> {
    let mut candidates = [direct, buffered];
    for _ in 0..ROUNDS {
        for candidate in &mut candidates {
            if let Ok(entrant) = candidate
                && let Err(error) = entrant.round()
            {
                *candidate = Err(error);
            }
        }
    }
    let [direct, buffered] = candidates.map(|candidate| candidate.map(Candidate::median));
    match (direct, buffered) {
        (Ok(direct), Ok(buffered)) if direct <= buffered => {
            Ok((Sync::Direct, format!("probed: {direct:.0?} against {buffered:.0?} buffered")))
        }
        (Ok(direct), Ok(buffered)) => {
            Ok((Sync::Buffered, format!("probed: {buffered:.0?} against {direct:.0?} direct")))
        }
        (Ok(direct), Err(error)) => Ok((Sync::Direct, format!("probed: {direct:.0?}; buffered failed: {error}"))),
        (Err(error), Ok(buffered)) => Ok((Sync::Buffered, format!("probed: {buffered:.0?}; direct failed: {error}"))),
        (Err(error), Err(_)) => Err(error),
    }
}

struct Candidate {
    writer: Writer,
    file: Arc<File>,
    /// `None` while it is being written.
    buffer: Option<Buffer>,
    times: Vec<Duration>,
}

impl Candidate {
    fn open(sync: Sync, path: &Path, open: OpenWriter<'_>) -> io::Result<Candidate> {
        let file = OpenOptions::new().write(true).custom_flags(open_flags(sync)).open(path)?;
        let buffer = Buffer::new(0, BLOCK_BYTES)?;
        let writer = open(sync, std::slice::from_ref(&buffer), Wake::new()?)?;
        Ok(Candidate { writer, file: Arc::new(file), buffer: Some(buffer), times: Vec::new() })
    }

    fn round(&mut self) -> io::Result<()> {
        for place in 0..WRITES_PER_ROUND {
            let buffer = self.buffer.take().expect("a candidate that did not fail");
            let offset = (place * BLOCK_BYTES) as u64;
            let started = Instant::now();
            self.writer
                .write(Arc::clone(&self.file), SegmentWrite { segment: 0, offset, buffer, range: 0..BLOCK_BYTES });
            self.buffer = Some(self.writer.written(Wait::Yes).expect("a write that was started")?);
            self.times.push(started.elapsed());
        }
        Ok(())
    }

    fn median(mut self) -> Duration {
        self.times.sort_unstable();
        self.times[self.times.len() / 2]
    }
}

/// How a file is opened for a kind of sync, beside reading and writing.
pub(crate) fn open_flags(sync: Sync) -> i32 {
    match sync {
        Sync::Direct => libc::O_DIRECT,
        Sync::Buffered => 0,
    }
}

/// Written once and synced, like a segment made ready.
fn make_probe_file(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    file.write_all_at(&[0; WRITES_PER_ROUND * BLOCK_BYTES], 0)?;
    file.sync_all()
}
