//! P8: how long a start takes that has only the log to go by, against reading its bytes.

use std::path::PathBuf;
use std::time::Instant;

use seriatim_net::{Embedded, Options};
use seriatim_wal::{BLOCK_BYTES, DiskOptions, DiskStorage, Log};
use tempfile::TempDir;

use super::in_process::{Driver, WRITES};
use super::served::scratch;
use super::{Pair, Sizes};
use crate::error::Error;
use crate::yardstick::cold_read::{files_of, make_cold, read};

/// Commits that one run writes: a longer one would make an image, and forget what it covers.
const RUN_COMMITS: u64 = 2_000_000;
/// Transactions of a turn.
const TURN: usize = 1_000;

struct Recovery {
    directory: TempDir,
    options: Options,
    commits: u64,
    bytes: u64,
}

/// P8: a million commits, or the ten of the design.
pub(super) fn recovery(sizes: &Sizes) -> Result<Box<dyn Pair>, Error> {
    let commits = if sizes.full { 10_000_000 } else { 1_000_000 };
    let (directory, options) = (scratch()?, Options::default());
    let mut left = commits;
    while left > 0 {
        let run = left.min(RUN_COMMITS);
        let sequencer = Embedded::open(directory.path().join("data"), &options)?;
        let mut driver = Driver::new(&sequencer, sizes.seed + left, WRITES);
        for _ in 0..run / TURN as u64 {
            driver.turn(TURN, true)?;
        }
        left -= run;
    }
    let mut recovery = Recovery { directory, options, commits, bytes: 0 };
    recovery.bytes = recovery.used_bytes()?;
    Ok(Box::new(recovery))
}

impl Recovery {
    fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// Bytes of the log: its groups, padded, and a block at the start of each of its segments.
    fn used_bytes(&self) -> Result<u64, Error> {
        let open = |error: seriatim_wal::OpenError| Error::Refused(error.to_string());
        let storage = DiskStorage::new(self.data(), DiskOptions::default());
        let (_log, recovered) = Log::open(storage, self.options.log.clone()).map_err(open)?;
        let (mut bytes, mut segment) = (0, None);
        for group in recovered.groups() {
            let header = group.header();
            if segment.replace(header.segment) != Some(header.segment) {
                bytes += BLOCK_BYTES as u64;
            }
            bytes += header.padded_bytes() as u64;
        }
        Ok(bytes)
    }

    fn cool(&self) -> Result<Vec<PathBuf>, Error> {
        let io = |source| Error::Io { what: "have the log forgotten by the page cache", source };
        let mut files = files_of(&self.data()).map_err(io)?;
        files.retain(|file| file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("segment-")));
        make_cold(&files).map_err(io)?;
        Ok(files)
    }
}

impl Pair for Recovery {
    fn yardstick(&mut self) -> Result<f64, Error> {
        let files = self.cool()?;
        let done = read(&files, self.bytes).map_err(|source| Error::Io { what: "read the log", source })?;
        Ok(done.elapsed.as_secs_f64())
    }

    fn product(&mut self) -> Result<f64, Error> {
        self.cool()?;
        let started = Instant::now();
        let sequencer = Embedded::open(self.data(), &self.options)?;
        let elapsed = started.elapsed().as_secs_f64();
        drop(sequencer);
        Ok(elapsed)
    }

    fn note(&self) -> Option<String> {
        let each = self.bytes as f64 / self.commits as f64;
        Some(format!("{} commits, {} MiB, {each:.0} bytes each with padding", self.commits, self.bytes >> 20))
    }
}
