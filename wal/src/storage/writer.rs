//! The ways a group gets onto a file.

use std::fs::File;
use std::io;
use std::sync::Arc;

use crate::storage::log_thread::LogThread;
use crate::storage::uring::Uring;
use crate::storage::wake::Wake;
use crate::storage::{Buffer, SegmentWrite, Wait};

/// How a write is made durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Sync {
    /// `O_DIRECT` and `RWF_DSYNC`: one request that is done when the bytes are on the medium.
    Direct,
    /// Into the page cache, then `fdatasync`.
    Buffered,
}

impl Sync {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Sync::Direct => "O_DIRECT with RWF_DSYNC",
            Sync::Buffered => "buffered with fdatasync",
        }
    }
}

/// One way of writing. At most one write is under way.
pub(crate) enum Writer {
    /// The kernel does it; no thread of ours is on the way.
    Uring(Box<Uring>),
    /// A thread of ours does it.
    Thread(LogThread),
}

impl Writer {
    pub(crate) fn uring(sync: Sync, buffers: &[Buffer], wake: Wake) -> io::Result<Writer> {
        Uring::new(sync, buffers, wake).map(|uring| Writer::Uring(Box::new(uring)))
    }

    pub(crate) fn thread(sync: Sync, wake: Wake) -> io::Result<Writer> {
        LogThread::new(sync, wake).map(Writer::Thread)
    }

    /// Starts a write to `file`, which was opened for this writer's kind of sync.
    pub(crate) fn write(&mut self, file: Arc<File>, write: SegmentWrite) {
        match self {
            Writer::Uring(uring) => uring.write(file, write),
            Writer::Thread(thread) => thread.write(file, write),
        }
    }

    /// See [`crate::Storage::written`].
    pub(crate) fn written(&mut self, wait: Wait) -> Option<io::Result<Buffer>> {
        match self {
            Writer::Uring(uring) => uring.written(wait),
            Writer::Thread(thread) => thread.written(wait),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::fs::OpenOptionsExt;
    use std::path::Path;

    use super::*;
    use crate::field::BLOCK_BYTES;
    use crate::storage::probe::open_flags;

    const SYNCS: [Sync; 2] = [Sync::Direct, Sync::Buffered];

    fn zeros(path: &Path, blocks: usize) {
        std::fs::write(path, vec![0; blocks * BLOCK_BYTES]).unwrap();
    }

    fn open(path: &Path, sync: Sync, writable: bool) -> Arc<File> {
        Arc::new(OpenOptions::new().read(true).write(writable).custom_flags(open_flags(sync)).open(path).unwrap())
    }

    fn write(writer: &mut Writer, file: Arc<File>, fill: u8) -> io::Result<Buffer> {
        let mut buffer = Buffer::new(0, 3 * BLOCK_BYTES)?;
        buffer.fill(fill);
        let range = BLOCK_BYTES..3 * BLOCK_BYTES;
        writer.write(file, SegmentWrite { segment: u64::from(fill), offset: BLOCK_BYTES as u64, buffer, range });
        writer.written(Wait::Yes).expect("a write that was started")
    }

    fn all_writers(sync: Sync) -> [Writer; 3] {
        let mut bare = Uring::new(sync, &[], Wake::new().unwrap()).unwrap();
        bare.forget_files();
        [
            // As where the kernel takes neither buffers nor files to register.
            Writer::Uring(Box::new(bare)),
            Writer::uring(sync, &[], Wake::new().unwrap()).unwrap(),
            Writer::thread(sync, Wake::new().unwrap()).unwrap(),
        ]
    }

    #[test]
    fn every_writer_writes_its_range_and_hands_the_buffer_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        for sync in SYNCS {
            for (number, mut writer) in all_writers(sync).into_iter().enumerate() {
                zeros(&path, 4);
                assert!(writer.written(Wait::Yes).is_none());
                // More segments than places for registered files.
                for fill in 1..10 {
                    let buffer = write(&mut writer, open(&path, sync, true), fill).unwrap();
                    assert!(buffer.iter().all(|byte| *byte == fill), "{sync:?} {number}");
                    let content = std::fs::read(&path).unwrap();
                    let expected = |at: usize| if (1..3).contains(&(at / BLOCK_BYTES)) { fill } else { 0 };
                    assert!((0..content.len()).all(|at| content[at] == expected(at)), "{sync:?} {number}");
                    assert!(writer.written(Wait::Yes).is_none());
                }
            }
        }
    }

    #[test]
    fn every_writer_tells_of_a_write_that_fails() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        zeros(&path, 4);
        for sync in SYNCS {
            for (number, mut writer) in all_writers(sync).into_iter().enumerate() {
                let error = write(&mut writer, open(&path, sync, false), 1).unwrap_err();
                assert_eq!(error.raw_os_error(), Some(libc::EBADF), "{sync:?} {number}");
            }
        }
        assert!(std::fs::read(&path).unwrap().iter().all(|byte| *byte == 0));
    }
}
