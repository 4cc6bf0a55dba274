//! A directory in memory, for tests and simulation.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::field::BLOCK_BYTES;
use crate::file_name::FileName;
use crate::storage::{
    Access, Buffer, FileBytes, Finished, Job, Listing, LockError, SegmentWrite, Source, Storage, Wait,
};

/// Files in memory. Clones share them, so a clone is what remains when the log that had the storage is gone: opening
/// the clone is the restart after a crash.
///
/// A write changes the file only when its result is taken, so dropping a log between `submit` and `poll` loses the
/// group, as a power cut would. Every run is the same: it asks no clock, starts no thread, and its random numbers are
/// a sequence that goes on over reopenings.
///
/// With a capacity, preparing a segment or saving an image beyond it fails as on a full disk.
pub struct MemoryStorage {
    directory: Arc<Mutex<Directory>>,
    holds_lock: bool,
    writing: Option<SegmentWrite>,
    finished: VecDeque<Finished>,
}

struct Directory {
    files: BTreeMap<FileName, Vec<u8>>,
    capacity_bytes: u64,
    locked: bool,
    random: u64,
}

impl Default for MemoryStorage {
    fn default() -> MemoryStorage {
        MemoryStorage::with_seed(1)
    }
}

impl Clone for MemoryStorage {
    fn clone(&self) -> MemoryStorage {
        MemoryStorage {
            directory: Arc::clone(&self.directory),
            holds_lock: false,
            writing: None,
            finished: VecDeque::new(),
        }
    }
}

impl MemoryStorage {
    /// An empty directory without limit.
    pub fn new() -> MemoryStorage {
        MemoryStorage::default()
    }

    /// An empty directory whose random numbers come from `seed`.
    pub fn with_seed(seed: u64) -> MemoryStorage {
        MemoryStorage {
            directory: Arc::new(Mutex::new(Directory {
                files: BTreeMap::new(),
                capacity_bytes: u64::MAX,
                locked: false,
                random: seed,
            })),
            holds_lock: false,
            writing: None,
            finished: VecDeque::new(),
        }
    }

    /// From now on files may grow only up to this many bytes in sum.
    pub fn set_capacity_bytes(&self, bytes: u64) {
        self.shared().capacity_bytes = bytes;
    }

    /// Bytes of all files.
    pub fn used_bytes(&self) -> u64 {
        self.shared().used_bytes()
    }

    /// A copy of a file, for a test to look at.
    pub fn file(&self, file: FileName) -> Option<Vec<u8>> {
        self.shared().files.get(&file).cloned()
    }

    /// Puts a file in place, or with `None` takes it away: how a test damages a directory.
    pub fn set_file(&self, file: FileName, content: Option<Vec<u8>>) {
        let mut directory = self.shared();
        match content {
            Some(content) => directory.files.insert(file, content),
            None => directory.files.remove(&file),
        };
    }

    /// A directory of its own with the same content, as if the machine had stopped now.
    pub fn fork(&self) -> MemoryStorage {
        let now = self.shared();
        let copy = MemoryStorage::with_seed(now.random ^ 0x5851_f42d_4c95_7f2d);
        copy.shared().files.clone_from(&now.files);
        copy.shared().capacity_bytes = now.capacity_bytes;
        copy
    }

    fn shared(&self) -> MutexGuard<'_, Directory> {
        self.directory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Directory {
    fn used_bytes(&self) -> u64 {
        self.files.values().map(|file| file.len() as u64).sum()
    }

    fn put(&mut self, file: FileName, content: Vec<u8>) -> io::Result<()> {
        let before = self.files.get(&file).map_or(0, |file| file.len() as u64);
        if self.used_bytes() - before + content.len() as u64 > self.capacity_bytes {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.files.insert(file, content);
        Ok(())
    }

    fn prepare(&mut self, segment: u64, bytes: u64, source: Source) -> io::Result<()> {
        let target = FileName::Segment(segment);
        let from = match source {
            Source::New => return self.put(target, vec![0; bytes as usize]),
            Source::Recycle(old) => FileName::Segment(old),
            Source::Existing => target,
        };
        let mut content = self.files.get(&from).cloned().ok_or(io::ErrorKind::NotFound)?;
        let before = content.len() as u64;
        if self.used_bytes() - before + bytes > self.capacity_bytes {
            return Err(io::ErrorKind::StorageFull.into());
        }
        content.resize(bytes as usize, 0);
        content[..BLOCK_BYTES].fill(0);
        self.files.remove(&from);
        self.files.insert(target, content);
        Ok(())
    }

    fn write(&mut self, write: &SegmentWrite) -> io::Result<()> {
        let file = self.files.get_mut(&FileName::Segment(write.segment)).ok_or(io::ErrorKind::NotFound)?;
        let bytes = &write.buffer[write.range.clone()];
        let place = file.get_mut(write.offset as usize..).and_then(|rest| rest.get_mut(..bytes.len()));
        place.ok_or(io::ErrorKind::UnexpectedEof)?.copy_from_slice(bytes);
        Ok(())
    }
}

impl Storage for MemoryStorage {
    fn lock(&mut self) -> Result<(), LockError> {
        let mut directory = self.shared();
        if directory.locked {
            return Err(LockError::Held { directory: "memory".into() });
        }
        directory.locked = true;
        drop(directory);
        self.holds_lock = true;
        Ok(())
    }

    fn display(&self, file: FileName) -> String {
        format!("memory/{file}")
    }

    fn directory(&self) -> String {
        "memory".into()
    }

    fn list(&mut self) -> io::Result<Listing> {
        let files = self.shared().files.iter().map(|(file, content)| (*file, content.len() as u64)).collect();
        Ok(Listing { files, others: Vec::new() })
    }

    fn load(&mut self, file: FileName, bytes_max: u64, _access: Access) -> io::Result<FileBytes> {
        let bytes_max = usize::try_from(bytes_max).unwrap_or(usize::MAX);
        self.head(file, bytes_max).map(FileBytes::from)
    }

    fn head(&mut self, file: FileName, bytes: usize) -> io::Result<Vec<u8>> {
        let directory = self.shared();
        let content = directory.files.get(&file).ok_or(io::ErrorKind::NotFound)?;
        Ok(content[..bytes.min(content.len())].to_vec())
    }

    fn sync(&mut self, _file: FileName) -> io::Result<()> {
        Ok(())
    }

    fn create(&mut self, file: FileName, content: &[u8]) -> io::Result<()> {
        self.shared().put(file, content.to_vec())
    }

    fn random(&mut self) -> u64 {
        let mut directory = self.shared();
        directory.random = directory.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        xxhash_rust::xxh3::xxh3_64(&directory.random.to_le_bytes())
    }

    fn open_writer(&mut self, count: usize, bytes: usize) -> io::Result<Vec<Buffer>> {
        (0..count).map(|index| Buffer::new(index, bytes)).collect()
    }

    fn is_durable(&self) -> bool {
        false
    }

    fn write_path(&self) -> String {
        "memory".into()
    }

    fn write(&mut self, write: SegmentWrite) {
        assert!(self.writing.is_none(), "a second write to segment {} at {}", write.segment, write.offset);
        self.writing = Some(write);
    }

    fn written(&mut self, _wait: Wait) -> Option<io::Result<Buffer>> {
        let write = self.writing.take()?;
        let result = self.shared().write(&write);
        Some(result.map(|()| write.buffer))
    }

    fn start(&mut self, job: Job) {
        let finished = match job {
            Job::Prepare { segment, bytes, source, again: _ } => {
                let result = self.shared().prepare(segment, bytes, source);
                Some(Finished::Prepared { segment, result })
            }
            Job::Seal { segment, bytes } => {
                if let (Some(bytes), Some(file)) = (bytes, self.shared().files.get_mut(&FileName::Segment(segment))) {
                    file.truncate(bytes as usize);
                }
                None
            }
            Job::Remove(file) => {
                self.shared().files.remove(&file);
                None
            }
            Job::Save { file, content } => {
                let mut bytes = Vec::new();
                let result = content(&mut bytes).and_then(|()| {
                    let length = bytes.len() as u64;
                    self.shared().put(file, bytes).map(|()| length)
                });
                Some(Finished::Saved { file, result })
            }
        };
        self.finished.extend(finished);
    }

    fn finished(&mut self, _wait: Wait) -> Option<Finished> {
        self.finished.pop_front()
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn clear_wake(&mut self) {}
}

impl Drop for MemoryStorage {
    fn drop(&mut self) {
        if self.holds_lock {
            self.shared().locked = false;
        }
    }
}
