//! A thread that writes groups, where the kernel does not let us do without one; and the one that forgets, for crash
//! tests.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::unix::fs::FileExt;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::{Errno, ReadWriteFlags};

use crate::storage::transfer::{Next, Transfer};
use crate::storage::wake::Wake;
use crate::storage::writer::Sync;
use crate::storage::{Buffer, SegmentWrite, Wait};

/// A thread and the write it has.
pub(crate) struct LogThread {
    /// `None` when it is to end.
    writes: Option<Sender<(Arc<File>, SegmentWrite)>>,
    results: Receiver<io::Result<Buffer>>,
    is_busy: bool,
    thread: Option<JoinHandle<()>>,
    crash: Option<Arc<Crash>>,
}

impl LogThread {
    /// A thread that makes writes durable.
    pub(crate) fn new(sync: Sync, wake: Wake) -> io::Result<LogThread> {
        LogThread::spawn(wake, None, move |file, write| match sync {
            Sync::Direct => write_direct(file, write),
            Sync::Buffered => write_buffered(file, write),
        })
    }

    /// A thread that keeps a write to itself for `delay` and only then brings it to the file. Dropping it, like the death
    /// of the process, loses what it still keeps.
    pub(crate) fn lossy(delay: Duration, wake: Wake) -> io::Result<LogThread> {
        let crash = Arc::new(Crash::default());
        let crashed = Arc::clone(&crash);
        LogThread::spawn(wake, Some(crash), move |file, write| {
            if crashed.within(delay) {
                return Err(io::Error::other("the log was dropped before the sync"));
            }
            file.write_all_at(&write.buffer[write.range.clone()], write.offset)
        })
    }

    fn spawn(
        wake: Wake,
        crash: Option<Arc<Crash>>,
        mut perform: impl FnMut(&File, &SegmentWrite) -> io::Result<()> + Send + 'static,
    ) -> io::Result<LogThread> {
        let (writes, todo) = channel::<(Arc<File>, SegmentWrite)>();
        let (done, results) = channel();
        let thread = std::thread::Builder::new().name("seriatim-log".into()).spawn(move || {
            for (file, write) in todo {
                let result = perform(&file, &write);
                if done.send(result.map(|()| write.buffer)).is_err() {
                    return;
                }
                wake.notify();
            }
        })?;
        Ok(LogThread { writes: Some(writes), results, is_busy: false, thread: Some(thread), crash })
    }

    pub(crate) fn write(&mut self, file: Arc<File>, write: SegmentWrite) {
        assert!(!self.is_busy, "a second write to segment {} at {}", write.segment, write.offset);
        // Fails only if the thread is gone, which `written` reports.
        let _ = self.writes.as_ref().expect("a thread that was not told to end").send((file, write));
        self.is_busy = true;
    }

    pub(crate) fn written(&mut self, wait: Wait) -> Option<io::Result<Buffer>> {
        if !self.is_busy {
            return None;
        }
        let gone = || Err(io::Error::other("the log thread has ended"));
        let result = match wait {
            Wait::Yes => self.results.recv().unwrap_or_else(|_| gone()),
            Wait::No => match self.results.try_recv() {
                Ok(result) => result,
                Err(std::sync::mpsc::TryRecvError::Empty) => return None,
                Err(std::sync::mpsc::TryRecvError::Disconnected) => gone(),
            },
        };
        self.is_busy = false;
        Some(result)
    }
}

impl Drop for LogThread {
    fn drop(&mut self) {
        if let Some(crash) = &self.crash {
            crash.happen();
        }
        self.writes = None;
        if let Some(thread) = self.thread.take() {
            // It panicked if this fails; what it was asked for was never reported written.
            let _ = thread.join();
        }
    }
}

/// A crash that may happen while a write is delayed.
#[derive(Default)]
struct Crash {
    happened: Mutex<bool>,
    condition: Condvar,
}

impl Crash {
    fn happen(&self) {
        *self.happened.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.condition.notify_all();
    }

    /// Whether it happens within `delay`.
    fn within(&self, delay: Duration) -> bool {
        let until = Instant::now() + delay;
        let mut happened = self.happened.lock().unwrap_or_else(PoisonError::into_inner);
        while !*happened {
            let Some(rest) = until.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero()) else {
                return false;
            };
            happened = self.condition.wait_timeout(happened, rest).unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }
}

fn write_direct(file: &File, write: &SegmentWrite) -> io::Result<()> {
    let mut can_dsync = true;
    repeat(write, true, |transfer, bytes, offset| {
        if can_dsync {
            match rustix::io::pwritev2(file, &[IoSlice::new(bytes)], offset, ReadWriteFlags::DSYNC) {
                // An old kernel, or a file system that does not know it.
                Err(Errno::NOSYS | Errno::OPNOTSUPP) => can_dsync = false,
                answer => return transfer.on_write(answer.map_err(io::Error::from)),
            }
        }
        write_then_sync(file, transfer, bytes, offset)
    })
}

fn write_buffered(file: &File, write: &SegmentWrite) -> io::Result<()> {
    repeat(write, false, |transfer, bytes, offset| write_then_sync(file, transfer, bytes, offset))
}

fn write_then_sync(file: &File, transfer: &mut Transfer, bytes: &[u8], offset: u64) -> Next {
    let written = file.write_at(bytes, offset);
    let is_whole = written.as_ref().is_ok_and(|written| *written == bytes.len());
    let synced = if is_whole { file.sync_data() } else { Err(io::Error::from_raw_os_error(libc::ECANCELED)) };
    transfer.on_write_then_sync(written, synced)
}

fn repeat(
    write: &SegmentWrite,
    direct: bool,
    mut attempt: impl FnMut(&mut Transfer, &[u8], u64) -> Next,
) -> io::Result<()> {
    let bytes = &write.buffer[write.range.clone()];
    let mut transfer = Transfer::new(bytes.len(), direct);
    loop {
        let done = transfer.done();
        match attempt(&mut transfer, &bytes[done..], write.offset + done as u64) {
            Next::Write => {}
            Next::Done => return Ok(()),
            Next::Failed(error) => return Err(error),
        }
    }
}
