//! What the log asks of the thing it writes to.
//!
//! [`Storage`] is all the log knows of files. Everything that takes time is asked for and reported later, so that the
//! caller of the log never waits: one segment write at a time ([`Storage::write`], [`Storage::written`]), and jobs in
//! the background ([`Storage::start`], [`Storage::finished`]). What is done once, at the start, simply blocks.
//!
//! | storage | where bytes live | what a crash of the process takes | for |
//! |---|---|---|---|
//! | [`crate::DiskStorage`] | files, synced | what was never acknowledged | serving |
//! | [`crate::MemoryStorage`] | memory, shared by its clones | what was not reported written | tests, simulation |
//! | [`crate::DiskStorage::lossy`] | files, but unsynced bytes in the process | what a power cut would take | crash tests |

pub(crate) mod buffer;
mod directory;
pub(crate) mod disk;
mod helper;
mod log_thread;
pub(crate) mod memory;
mod probe;
mod transfer;
mod uring;
mod wake;
mod writer;

use std::fmt;
use std::io::{self, Write};
use std::ops::{Deref, Range};
use std::os::fd::BorrowedFd;
use std::sync::Arc;

pub use buffer::Buffer;

use crate::file_name::FileName;

/// A directory of segments and images, and the way bytes get there.
pub trait Storage: Send {
    /// Takes the directory for this process alone until the storage is dropped, makes it if it is not there, and
    /// removes what was being made when an earlier process ended. Comes before every other call.
    ///
    /// # Errors
    /// If another process holds it, or the directory cannot be used.
    fn lock(&mut self) -> Result<(), LockError>;

    /// How to name a file to an operator.
    fn display(&self, file: FileName) -> String;

    /// How to name the directory to an operator.
    fn directory(&self) -> String;

    /// What is in the directory.
    ///
    /// # Errors
    /// If it cannot be read.
    fn list(&mut self) -> io::Result<Listing>;

    /// The content of a file, up to `bytes_max`.
    ///
    /// # Errors
    /// If it is not there or cannot be read.
    fn load(&mut self, file: FileName, bytes_max: u64, access: Access) -> io::Result<FileBytes>;

    /// The first `bytes` of a file, or all of it if it is shorter.
    ///
    /// # Errors
    /// If it is not there or cannot be read.
    fn head(&mut self, file: FileName, bytes: usize) -> io::Result<Vec<u8>>;

    /// Makes a file's present content durable, so that what is read from now on cannot be taken back by a power cut.
    ///
    /// # Errors
    /// If it cannot be made durable.
    fn sync(&mut self, file: FileName) -> io::Result<()>;

    /// Makes a small file, whole and durable when this returns, or not there at all.
    ///
    /// # Errors
    /// If it cannot be written.
    fn create(&mut self, file: FileName, content: &[u8]) -> io::Result<()>;

    /// A number that nobody can foretell and that no other run drew.
    fn random(&mut self) -> u64;

    /// Makes the writer ready, and the only buffers that it will ever be given: `count` of `bytes` each, aligned to
    /// 4 KiB. Called once.
    ///
    /// # Errors
    /// If there is no memory, or a way of writing that was asked for is not to be had.
    fn open_writer(&mut self, count: usize, bytes: usize) -> io::Result<Vec<Buffer>>;

    /// Whether what was reported written outlives the process and a power cut.
    fn is_durable(&self) -> bool;

    /// Which way [`Storage::open_writer`] chose, for the operator.
    fn write_path(&self) -> String;

    /// Starts to write to a segment that a [`Job::Prepare`] made ready. At most one write is under way. The storage
    /// owns the buffer until it hands it back: nothing can free or change it while a device may still read it.
    fn write(&mut self, write: SegmentWrite);

    /// The result of the write under way, if it is over (or, with [`Wait::Yes`], when it is). `None` if there is none
    /// or it is not over. The buffer comes back when all its bytes are on the medium and stay there. After an error it
    /// does not: a device may still have it, and there is nothing more to write.
    fn written(&mut self, wait: Wait) -> Option<io::Result<Buffer>>;

    /// Starts a job in the background. Jobs of a kind end in the order in which they were started.
    fn start(&mut self, job: Job);

    /// A job that is over (or, with [`Wait::Yes`], the next one). `None` if there is none or none is over.
    fn finished(&mut self, wait: Wait) -> Option<Finished>;

    /// Readable when [`Storage::written`] or [`Storage::finished`] have something new; edge-triggered pollers may rely
    /// on it. `None` if they always have their results at once.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Makes [`Storage::wake_fd`] unreadable until the next news. Look for news once more after it.
    fn clear_wake(&mut self);
}

impl<S: Storage + ?Sized> Storage for Box<S> {
    fn lock(&mut self) -> Result<(), LockError> {
        (**self).lock()
    }

    fn display(&self, file: FileName) -> String {
        (**self).display(file)
    }

    fn directory(&self) -> String {
        (**self).directory()
    }

    fn list(&mut self) -> io::Result<Listing> {
        (**self).list()
    }

    fn load(&mut self, file: FileName, bytes_max: u64, access: Access) -> io::Result<FileBytes> {
        (**self).load(file, bytes_max, access)
    }

    fn head(&mut self, file: FileName, bytes: usize) -> io::Result<Vec<u8>> {
        (**self).head(file, bytes)
    }

    fn sync(&mut self, file: FileName) -> io::Result<()> {
        (**self).sync(file)
    }

    fn create(&mut self, file: FileName, content: &[u8]) -> io::Result<()> {
        (**self).create(file, content)
    }

    fn random(&mut self) -> u64 {
        (**self).random()
    }

    fn open_writer(&mut self, count: usize, bytes: usize) -> io::Result<Vec<Buffer>> {
        (**self).open_writer(count, bytes)
    }

    fn is_durable(&self) -> bool {
        (**self).is_durable()
    }

    fn write_path(&self) -> String {
        (**self).write_path()
    }

    fn write(&mut self, write: SegmentWrite) {
        (**self).write(write);
    }

    fn written(&mut self, wait: Wait) -> Option<io::Result<Buffer>> {
        (**self).written(wait)
    }

    fn start(&mut self, job: Job) {
        (**self).start(job);
    }

    fn finished(&mut self, wait: Wait) -> Option<Finished> {
        (**self).finished(wait)
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        (**self).wake_fd()
    }

    fn clear_wake(&mut self) {
        (**self).clear_wake();
    }
}

/// Whether to block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Look and return.
    No,
    /// Block until there is a result, if one is to come.
    Yes,
}

/// How [`Storage::load`] may bring a file's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Nobody changes the file while the bytes are in use, so they may be a mapping of it.
    Stable,
    /// The file may change: the bytes are a copy.
    Live,
}

/// The files of a directory.
#[derive(Clone, Default, Debug)]
pub struct Listing {
    /// Ours, in order, with their lengths in bytes.
    pub files: Vec<(FileName, u64)>,
    /// Names that are not ours.
    pub others: Vec<String>,
}

/// The bytes of a file.
pub struct FileBytes(pub(crate) Bytes);

pub(crate) enum Bytes {
    Owned(Vec<u8>),
    Mapped(memmap2::Mmap),
}

impl From<Vec<u8>> for FileBytes {
    fn from(bytes: Vec<u8>) -> FileBytes {
        FileBytes(Bytes::Owned(bytes))
    }
}

impl Deref for FileBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Owned(bytes) => bytes,
            Bytes::Mapped(map) => map,
        }
    }
}

impl fmt::Debug for FileBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if matches!(self.0, Bytes::Mapped(_)) { "mapped" } else { "owned" };
        write!(f, "{} bytes, {how}", self.len())
    }
}

/// One write to a segment.
#[derive(Debug)]
pub struct SegmentWrite {
    /// Which.
    pub segment: u64,
    /// Where in it; a multiple of 4 KiB.
    pub offset: u64,
    /// What, in a buffer of [`Storage::open_writer`].
    pub buffer: Buffer,
    /// Which part of the buffer; from and to multiples of 4 KiB.
    pub range: Range<usize>,
}

/// Work for the background.
pub enum Job {
    /// Make a segment ready to be written: a file of that length, its first block zero, its blocks allocated and
    /// written once, all of that durable.
    Prepare {
        /// The segment's number; its file is not there yet, unless it is its own source.
        segment: u64,
        /// Its length.
        bytes: u64,
        /// From what.
        source: Source,
        /// The same job failed before: let a moment pass first.
        again: bool,
    },
    /// Cut a segment that will never be written again down to `bytes`, and close it.
    Seal {
        /// Which.
        segment: u64,
        /// Its length from now on, or `None` to leave it.
        bytes: Option<u64>,
    },
    /// Remove a file for ever.
    Remove(FileName),
    /// Write a file: whole and durable under its name, or not there at all.
    Save {
        /// Which.
        file: FileName,
        /// Writes its content.
        content: Content,
    },
}

/// Writes the content of a file.
pub type Content = Box<dyn FnOnce(&mut dyn Write) -> io::Result<()> + Send>;

/// From what a segment is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// A new file.
    New,
    /// The file of a segment whose groups nobody needs any more.
    Recycle(u64),
    /// Itself: an earlier process had made it ready.
    Existing,
}

/// A job that is over.
#[derive(Debug)]
pub enum Finished {
    /// A [`Job::Prepare`].
    Prepared {
        /// Which segment.
        segment: u64,
        /// Whether it is ready.
        result: io::Result<()>,
    },
    /// A [`Job::Save`].
    Saved {
        /// Which file.
        file: FileName,
        /// Its length if it is there.
        result: io::Result<u64>,
    },
    /// A [`Job::Seal`] or [`Job::Remove`] that failed. It costs room and no more.
    Untidy {
        /// The file it was about.
        file: FileName,
        /// Why.
        error: Arc<io::Error>,
    },
}

/// Why a directory could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process has it.
    #[error("another process has the data directory {directory}")]
    Held {
        /// The directory.
        directory: String,
    },
    /// It holds files of somebody else and no store.
    #[error("{file} is in a directory that holds files but no identity of a store")]
    Occupied {
        /// One of the files.
        file: String,
    },
    /// It cannot be used.
    #[error("cannot {action} {path}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: String,
        /// Why it failed.
        source: io::Error,
    },
}

/// Whether an error says that the medium is full, which passes, and not that it is broken.
pub(crate) fn is_out_of_space(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
