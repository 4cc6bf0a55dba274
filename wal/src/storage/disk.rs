//! A directory on disk.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::file_name::FileName;
use crate::storage::directory::Directory;
use crate::storage::helper::{Done, Helper};
use crate::storage::log_thread::LogThread;
use crate::storage::probe::{OpenWriter, faster_sync, open_flags};
use crate::storage::wake::Wake;
use crate::storage::writer::{Sync, Writer};
use crate::storage::{Access, Buffer, FileBytes, Finished, Job, Listing, LockError, SegmentWrite, Storage, Wait};

/// Who carries groups to the disk.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Engine {
    /// io_uring, or a thread where it is denied.
    #[default]
    Auto,
    /// io_uring on the caller's thread; opening fails where it is denied, as it often is in containers.
    Uring,
    /// A thread of the log's own, to which each group is handed over: some 30 µs more per group.
    Thread,
}

/// How a group is made durable.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum SyncMode {
    /// The faster one, found by trying both for some milliseconds at each opening.
    #[default]
    Probe,
    /// `O_DIRECT` with `RWF_DSYNC`; fails where the file system knows no direct writes.
    Direct,
    /// Into the page cache, then `fdatasync`.
    Buffered,
}

/// How a disk is written.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DiskOptions {
    /// Default [`Engine::Auto`].
    pub engine: Engine,
    /// Default [`SyncMode::Probe`].
    pub sync: SyncMode,
}

/// A directory on disk. A group that it reports written survives a power cut, if the device keeps what it was told to
/// sync.
pub struct DiskStorage {
    // In this order they end: first the write in flight, then the helper, and the directory is given back last.
    writer: Option<Writer>,
    helper: Option<Helper>,
    /// Segments that are ready or being written.
    open: HashMap<u64, Arc<File>>,
    wake: Option<Wake>,
    kind: Kind,
    sync: Sync,
    write_path: String,
    directory: Directory,
}

enum Kind {
    Lasting(DiskOptions),
    Lossy(Duration),
}

impl DiskStorage {
    /// Storage in a directory, which is made when it is opened, if it is not there.
    pub fn new(directory: impl AsRef<Path>, options: DiskOptions) -> DiskStorage {
        DiskStorage::of_kind(directory.as_ref(), Kind::Lasting(options))
    }

    /// Storage whose writes stay in the process until their sync is over, `sync_delay` (2 ms is like a disk) after they
    /// began, and come to the file only then. So killing the process loses what a power cut would lose, and a reply that
    /// left before its sync is caught. Nothing is made safe from a real power cut. Dropping it is a crash too.
    pub fn lossy(directory: impl AsRef<Path>, sync_delay: Duration) -> DiskStorage {
        DiskStorage::of_kind(directory.as_ref(), Kind::Lossy(sync_delay))
    }

    fn of_kind(directory: &Path, kind: Kind) -> DiskStorage {
        DiskStorage {
            writer: None,
            helper: None,
            open: HashMap::new(),
            wake: None,
            kind,
            sync: Sync::Buffered,
            write_path: String::new(),
            directory: Directory::new(directory),
        }
    }

    fn start_threads(&mut self) -> io::Result<()> {
        let wake = Wake::new()?;
        self.helper = Some(Helper::new(self.directory.path(), wake.clone())?);
        self.wake = Some(wake);
        Ok(())
    }

    fn choose_writer(&self, buffers: &[Buffer], wake: Wake) -> io::Result<(Writer, Sync, String)> {
        let options = match self.kind {
            Kind::Lasting(options) => options,
            Kind::Lossy(delay) => {
                let writer = Writer::Thread(LogThread::lossy(delay, wake)?);
                return Ok((writer, Sync::Buffered, format!("lossy, reaches the file after {delay:?}")));
            }
        };
        let by_uring = |sync, buffers: &[Buffer], wake| Writer::uring(sync, buffers, wake);
        let by_thread = |sync, _: &[Buffer], wake| Writer::thread(sync, wake);
        let denied = match options.engine {
            Engine::Thread => Some(String::new()),
            Engine::Uring => None,
            Engine::Auto => {
                let tried = Writer::uring(Sync::Direct, &[], Wake::new()?);
                tried.err().map(|error| format!(", since io_uring is denied ({error})"))
            }
        };
        let (name, open): (_, OpenWriter<'_>) = match &denied {
            None => ("io_uring".to_string(), &by_uring),
            Some(why) => (format!("a log thread{why}"), &by_thread),
        };
        let (sync, how) = match options.sync {
            SyncMode::Probe => faster_sync(self.directory.path(), open)?,
            SyncMode::Direct => (Sync::Direct, "as set".into()),
            SyncMode::Buffered => (Sync::Buffered, "as set".into()),
        };
        let writer = open(sync, buffers, wake)?;
        Ok((writer, sync, format!("{name}, {} ({how})", sync.name())))
    }
}

/// A call before `lock` or `open_writer`.
const TOO_EARLY: &str = "storage that was locked and has a writer";

impl Storage for DiskStorage {
    fn lock(&mut self) -> Result<(), LockError> {
        self.directory.lock()?;
        self.start_threads().map_err(|source| LockError::Io {
            action: "start the helper thread for",
            path: self.directory(),
            source,
        })
    }

    fn display(&self, file: FileName) -> String {
        self.directory.file_path(file).display().to_string()
    }

    fn directory(&self) -> String {
        self.directory.path().display().to_string()
    }

    fn list(&mut self) -> io::Result<Listing> {
        self.directory.list()
    }

    fn load(&mut self, file: FileName, bytes_max: u64, access: Access) -> io::Result<FileBytes> {
        self.directory.load(file, bytes_max, access)
    }

    fn head(&mut self, file: FileName, bytes: usize) -> io::Result<Vec<u8>> {
        self.directory.head(file, bytes)
    }

    fn sync(&mut self, file: FileName) -> io::Result<()> {
        self.directory.sync(file)
    }

    fn create(&mut self, file: FileName, content: &[u8]) -> io::Result<()> {
        self.directory.create(file, content)
    }

    fn random(&mut self) -> u64 {
        let mut bytes = [0; 8];
        // Blocks only before the machine has gathered any randomness, and is not interrupted for eight bytes.
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty()).expect("random bytes of the system");
        u64::from_ne_bytes(bytes)
    }

    fn open_writer(&mut self, count: usize, bytes: usize) -> io::Result<Vec<Buffer>> {
        let buffers = (0..count).map(|index| Buffer::new(index, bytes)).collect::<io::Result<Vec<_>>>()?;
        let wake = self.wake.clone().expect(TOO_EARLY);
        let (writer, sync, write_path) = self.choose_writer(&buffers, wake)?;
        self.writer = Some(writer);
        self.sync = sync;
        self.write_path = write_path;
        Ok(buffers)
    }

    fn is_durable(&self) -> bool {
        matches!(self.kind, Kind::Lasting(_))
    }

    fn write_path(&self) -> String {
        self.write_path.clone()
    }

    fn write(&mut self, write: SegmentWrite) {
        let file = self.open.get(&write.segment).expect("a segment that was made ready");
        self.writer.as_mut().expect(TOO_EARLY).write(Arc::clone(file), write);
    }

    fn written(&mut self, wait: Wait) -> Option<io::Result<Buffer>> {
        self.writer.as_mut().expect(TOO_EARLY).written(wait)
    }

    fn start(&mut self, job: Job) {
        if let Job::Seal { segment, .. } = job {
            self.open.remove(&segment);
        }
        self.helper.as_mut().expect(TOO_EARLY).start(job, open_flags(self.sync));
    }

    fn finished(&mut self, wait: Wait) -> Option<Finished> {
        match self.helper.as_mut().expect(TOO_EARLY).finished(wait)? {
            Done::Other(finished) => Some(finished),
            Done::Prepared(segment, result) => {
                let result = result.map(|file| {
                    self.open.insert(segment, Arc::new(file));
                });
                Some(Finished::Prepared { segment, result })
            }
        }
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.wake.as_ref().map(Wake::as_fd)
    }

    fn clear_wake(&mut self) {
        self.wake.as_ref().expect(TOO_EARLY).clear();
    }
}
