//! Memory that a device may read from: page-aligned, and owned by one party at a time.

use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};

use memmap2::MmapMut;

/// An anonymous mapping, aligned to a page. It costs memory only where it was touched.
///
/// It moves into the storage with a write and comes back with its result, so whoever holds it may change or drop it.
pub struct Buffer {
    memory: MmapMut,
    index: usize,
}

impl Buffer {
    /// `bytes` of zeros; `index` says which of the writer's buffers this is.
    ///
    /// # Errors
    /// If there is no memory.
    pub fn new(index: usize, bytes: usize) -> io::Result<Buffer> {
        Ok(Buffer { memory: MmapMut::map_anon(bytes)?, index })
    }

    /// Which of the writer's buffers this is, from 0.
    pub fn index(&self) -> usize {
        self.index
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "buffer {} of {} bytes", self.index, self.len())
    }
}
