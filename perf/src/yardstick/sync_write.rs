//! The disk work of a commit: write some blocks, and wait until they will survive a power cut.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::Instant;

use hdrhistogram::Histogram;
use rustix::fs::OFlags;
use rustix::io::{ReadWriteFlags, pwritev2};

/// Bytes of a block: what is written is a whole number of them.
pub const BLOCK_BYTES: usize = 4096;

/// How a write is made durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SyncPath {
    /// Past the page cache, synced by the write itself (`O_DIRECT`, `RWF_DSYNC`).
    Direct,
    /// Into the page cache, then `fdatasync`.
    Buffered,
}

/// What was done.
#[derive(Clone, Debug)]
pub struct Synced {
    /// Writes, each of them synced.
    pub writes: u64,
    /// Bytes that were written.
    pub bytes: u64,
    /// Nanoseconds of each.
    pub latency_ns: Histogram<u64>,
}

/// Memory that direct writes take.
#[derive(Clone)]
#[repr(align(4096))]
struct Block([u8; BLOCK_BYTES]);

/// A file of zeroes that was written once before, as a log makes its segments ahead.
pub struct SyncFile {
    file: File,
    blocks: u64,
    next: u64,
    path: SyncPath,
}

impl SyncFile {
    /// Makes the file, of so many bytes in whole blocks, and syncs it.
    ///
    /// # Errors
    /// If it cannot be made, or its file system takes no direct writes.
    pub fn create(file: &Path, bytes: u64, path: SyncPath) -> io::Result<SyncFile> {
        let blocks = (bytes / BLOCK_BYTES as u64).max(1);
        let zeroes = File::create(file)?;
        for block in 0..blocks {
            zeroes.write_all_at(&[0; BLOCK_BYTES], block * BLOCK_BYTES as u64)?;
        }
        zeroes.sync_all()?;
        let flags = if path == SyncPath::Direct { OFlags::DIRECT } else { OFlags::empty() };
        let file = OpenOptions::new().write(true).custom_flags(flags.bits() as i32).open(file)?;
        Ok(SyncFile { file, blocks, next: 0, path })
    }

    /// Writes so many bytes, in whole blocks, `writes` times, each where the one before ended, and syncs each.
    ///
    /// # Errors
    /// If a write or a sync fails, or is not whole.
    pub fn write(&mut self, bytes: usize, writes: u64) -> io::Result<Synced> {
        let count = bytes.div_ceil(BLOCK_BYTES).clamp(1, self.blocks as usize);
        let blocks = vec![Block([0xa5; BLOCK_BYTES]); count];
        let slices: Vec<IoSlice<'_>> = blocks.iter().map(|block| IoSlice::new(&block.0)).collect();
        let latency_ns = Histogram::new_with_max(60_000_000_000, 3).expect("bounds that histograms take");
        let mut synced = Synced { writes: 0, bytes: 0, latency_ns };
        for _ in 0..writes {
            if self.next + count as u64 > self.blocks {
                self.next = 0;
            }
            let offset = self.next * BLOCK_BYTES as u64;
            let started = Instant::now();
            let written = match self.path {
                SyncPath::Direct => pwritev2(&self.file, &slices, offset, ReadWriteFlags::DSYNC)?,
                SyncPath::Buffered => {
                    let written = pwritev2(&self.file, &slices, offset, ReadWriteFlags::empty())?;
                    self.file.sync_data()?;
                    written
                }
            };
            let ns = started.elapsed().as_nanos() as u64;
            if written != count * BLOCK_BYTES {
                return Err(io::ErrorKind::WriteZero.into());
            }
            synced.latency_ns.record(ns.clamp(1, 60_000_000_000)).expect("within bounds");
            synced.writes += 1;
            synced.bytes += written as u64;
            self.next += count as u64;
        }
        Ok(synced)
    }
}
