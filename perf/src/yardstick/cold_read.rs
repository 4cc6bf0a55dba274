//! The work of reading a log again: every byte of its files, from the disk, checked.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{Advice, fadvise};

/// Bytes that are read at once.
const READ_BYTES: usize = 1 << 20;

/// What was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ColdRead {
    /// Bytes of all files.
    pub bytes: u64,
    /// CRC32C of all of them, one after the other.
    pub crc: u32,
    /// How long it took.
    pub elapsed: Duration,
}

/// Has the system forget what it holds of these files, so that they are read from the disk.
///
/// # Errors
/// If one cannot be opened, or synced.
pub fn make_cold(files: &[PathBuf]) -> io::Result<()> {
    for file in files {
        let file = File::open(file)?;
        // Only what is on disk is let go of.
        file.sync_all()?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    Ok(())
}

/// Reads files from their beginning to their end, one after the other, and at most so many bytes of all of them: files
/// that are made ahead are longer than what is in them.
///
/// # Errors
/// If one cannot be read.
pub fn read(files: &[PathBuf], bytes_max: u64) -> io::Result<ColdRead> {
    let mut buffer = vec![0; READ_BYTES];
    let (mut bytes, mut crc) = (0, 0);
    let started = Instant::now();
    for file in files {
        let mut file = File::open(file)?.take(bytes_max - bytes);
        loop {
            let count = file.read(&mut buffer)?;
            if count == 0 {
                break;
            }
            crc = crc32c::crc32c_append(crc, &buffer[..count]);
            bytes += count as u64;
        }
    }
    Ok(ColdRead { bytes, crc, elapsed: started.elapsed() })
}

/// The files of a directory, by name.
///
/// # Errors
/// If it cannot be listed.
pub fn files_of(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(directory)?.collect::<io::Result<Vec<_>>>()?;
    let mut files: Vec<_> = entries.into_iter().map(|entry| entry.path()).filter(|path| path.is_file()).collect();
    files.sort();
    Ok(files)
}
