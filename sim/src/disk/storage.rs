//! A process's way to the disk: the storage that its log is given.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};

use seriatim_wal::{
    Access, Buffer, FileBytes, FileName, Finished, Job, Listing, LockError, SegmentWrite, Storage, Wait,
};

use super::{Disk, Manners, Writing, lock};

/// See the head of this file.
pub(crate) struct SimStorage {
    disk: Arc<Mutex<Disk>>,
    holds_lock: bool,
}

impl SimStorage {
    pub fn new(disk: Arc<Mutex<Disk>>) -> SimStorage {
        let storage = SimStorage { disk, holds_lock: false };
        storage.disk().drawn = 0;
        storage
    }

    fn disk(&self) -> MutexGuard<'_, Disk> {
        lock(&self.disk)
    }
}

impl Storage for SimStorage {
    fn lock(&mut self) -> Result<(), LockError> {
        let mut disk = self.disk();
        if std::mem::replace(&mut disk.is_locked, true) {
            return Err(LockError::Held { directory: "disk".into() });
        }
        drop(disk);
        self.holds_lock = true;
        Ok(())
    }

    fn display(&self, file: FileName) -> String {
        format!("disk/{file}")
    }

    fn directory(&self) -> String {
        "disk".into()
    }

    fn list(&mut self) -> io::Result<Listing> {
        let files = self.disk().files.iter().map(|(file, content)| (*file, content.len() as u64)).collect();
        Ok(Listing { files, others: Vec::new() })
    }

    fn load(&mut self, file: FileName, bytes_max: u64, _access: Access) -> io::Result<FileBytes> {
        self.head(file, usize::try_from(bytes_max).unwrap_or(usize::MAX)).map(FileBytes::from)
    }

    fn head(&mut self, file: FileName, bytes: usize) -> io::Result<Vec<u8>> {
        let disk = self.disk();
        let content = disk.files.get(&file).ok_or(io::ErrorKind::NotFound)?;
        Ok(content[..bytes.min(content.len())].to_vec())
    }

    fn sync(&mut self, file: FileName) -> io::Result<()> {
        if let FileName::Segment(segment) = file {
            self.disk().land_orphan(Some(segment));
        }
        Ok(())
    }

    fn create(&mut self, file: FileName, content: &[u8]) -> io::Result<()> {
        self.disk().put(file, content.to_vec())
    }

    fn random(&mut self) -> u64 {
        let mut disk = self.disk();
        disk.drawn += 1;
        let drawn = disk.rng.u64(..);
        if disk.drawn == 1 && disk.manners.same_boot { 1 } else { drawn }
    }

    fn open_writer(&mut self, count: usize, bytes: usize) -> io::Result<Vec<Buffer>> {
        (0..count).map(|index| Buffer::new(index, bytes)).collect()
    }

    fn is_durable(&self) -> bool {
        true
    }

    fn write_path(&self) -> String {
        "simulated".into()
    }

    fn write(&mut self, write: SegmentWrite) {
        let mut disk = self.disk();
        assert!(disk.writing.is_none(), "a second write to segment {} at {}", write.segment, write.offset);
        let Manners { write_us, stalled_to_us, .. } = disk.manners;
        let done_us = (disk.clock.now_us() + disk.rng.u64(write_us.0..=write_us.1)).max(stalled_to_us);
        let fails = std::mem::take(&mut disk.manners.fails_next);
        disk.writing = Some(Writing { write, done_us, fails, is_done: false });
    }

    fn written(&mut self, wait: Wait) -> Option<io::Result<Buffer>> {
        let mut disk = self.disk();
        let done_us = disk.writing.as_ref()?.done_us;
        if wait == Wait::Yes {
            disk.clock.pass_to(done_us);
        }
        disk.pass();
        let writing = disk.writing.take_if(|writing| writing.is_done)?;
        if writing.fails {
            disk.has_failed = true;
            return Some(Err(io::Error::other("the medium failed")));
        }
        Some(Ok(writing.write.buffer))
    }

    fn start(&mut self, job: Job) {
        let mut disk = self.disk();
        let (from, to) = disk.manners.job_us;
        let pause = if matches!(job, Job::Prepare { again: true, .. }) { 100_000 } else { 0 };
        let after = disk.jobs.back().map_or(disk.clock.now_us(), |(done_us, _)| *done_us);
        let done_us = after + pause + disk.rng.u64(from..=to);
        disk.jobs.push_back((done_us, job));
    }

    fn finished(&mut self, wait: Wait) -> Option<Finished> {
        let mut disk = self.disk();
        disk.pass();
        while wait == Wait::Yes && disk.finished.is_empty() {
            let done_us = disk.jobs.front()?.0;
            disk.clock.pass_to(done_us);
            disk.pass();
        }
        disk.finished.pop_front()
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn clear_wake(&mut self) {}
}

impl Drop for SimStorage {
    fn drop(&mut self) {
        if self.holds_lock {
            let mut disk = self.disk();
            disk.is_locked = false;
            disk.writing = None;
            disk.jobs.clear();
            disk.finished.clear();
        }
    }
}
