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
