//! The one thread that does what must never be on a request's way: segments made ready, images, tidying up.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::num::NonZeroU64;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
use rustix::io::Errno;

use crate::field::BLOCK_BYTES;
use crate::file_name::FileName;
use crate::storage::directory::{await_direct_writes, make_file, sync_directory};
use crate::storage::wake::Wake;
use crate::storage::{Content, Finished, Job, Source, Wait};

/// Bytes written at a time; between two such chunks the thread looks up.
const CHUNK_BYTES: usize = 1 << 20;

/// Bytes after which they are synced, so that no sync has much to do and the log's own writes get in between.
const SYNC_BYTES: u64 = 8 << 20;

/// How long to let a lack of room pass.
const RETRY: Duration = Duration::from_millis(100);

/// The thread, its jobs and its results.
pub(crate) struct Helper {
    /// `None` when it is to end.
    jobs: Option<Sender<Task>>,
    results: Receiver<Done>,
    /// Jobs that will report.
    due: usize,
    thread: Option<JoinHandle<()>>,
}

struct Task {
    job: Job,
    /// A segment's flags beside read and write.
    open_flags: i32,
}

/// A job that is over; a segment that was made ready comes open.
pub(crate) enum Done {
    /// A segment is ready, or it is not.
    Prepared(u64, io::Result<File>),
    /// Anything else.
    Other(Finished),
}

impl Helper {
    pub(crate) fn new(directory: &Path, wake: Wake) -> io::Result<Helper> {
        let (jobs, tasks) = channel();
        let (outcomes, results) = channel();
        let worker = Worker { directory: directory.to_path_buf(), tasks, later: VecDeque::new(), outcomes, wake };
        let thread = std::thread::Builder::new().name("seriatim-helper".into()).spawn(move || worker.run())?;
        Ok(Helper { jobs: Some(jobs), results, due: 0, thread: Some(thread) })
    }

    /// Starts a job; a segment is opened with `open_flags` beside read and write.
    pub(crate) fn start(&mut self, job: Job, open_flags: i32) {
        if matches!(job, Job::Prepare { .. } | Job::Save { .. }) {
            self.due += 1;
        }
        // Fails only if the thread is gone, and then `finished` never reports: the log goes on with what it has.
        let _ = self.jobs.as_ref().expect("a helper that was not told to end").send(Task { job, open_flags });
    }

    /// See [`crate::Storage::finished`].
    pub(crate) fn finished(&mut self, wait: Wait) -> Option<Done> {
        let outcome = match wait {
            Wait::Yes if self.due > 0 => self.results.recv().ok()?,
            _ => self.results.try_recv().ok()?,
        };
        if !matches!(outcome, Done::Other(Finished::Untidy { .. })) {
            self.due -= 1;
        }
        Some(outcome)
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // It panicked if this fails; its files are then as after a crash.
            let _ = thread.join();
        }
    }
}

/// What runs on the thread. When nobody asks any more it drops what takes long and does what is quick.
struct Worker {
    directory: PathBuf,
    tasks: Receiver<Task>,
    /// Jobs that came while a long one was under way.
    later: VecDeque<Task>,
    outcomes: Sender<Done>,
    wake: Wake,
}

impl Worker {
    fn run(mut self) {
        while let Some(task) = self.later.pop_front().or_else(|| self.tasks.recv().ok()) {
            self.perform(task);
        }
    }

    fn perform(&mut self, task: Task) {
        let outcome = match task.job {
            Job::Prepare { segment, bytes, source, again } => {
                let result = if again { self.pause() } else { Ok(()) };
                let result = result.and_then(|()| self.prepare(segment, bytes, source, task.open_flags));
                Done::Prepared(segment, result)
            }
            Job::Seal { bytes: None, .. } => return,
            Job::Seal { segment, bytes: Some(bytes) } => {
                let file = FileName::Segment(segment);
                let result = self.cut(file, bytes);
                let Err(error) = result else { return };
                Done::Other(Finished::Untidy { file, error: Arc::new(error) })
            }
            Job::Remove(file) => {
                let Err(error) = std::fs::remove_file(self.path(file)) else { return };
                Done::Other(Finished::Untidy { file, error: Arc::new(error) })
            }
            Job::Save { file, content } => {
                let result = self.save(file, content);
                Done::Other(Finished::Saved { file, result })
            }
        };
        // Nobody listens any more if this fails.
        let _ = self.outcomes.send(outcome);
        self.wake.notify();
    }

    fn path(&self, file: FileName) -> PathBuf {
        self.directory.join(file.to_string())
    }

    fn cut(&self, file: FileName, bytes: u64) -> io::Result<()> {
        let file = OpenOptions::new().write(true).open(self.path(file))?;
        if file.metadata()?.len() > bytes { file.set_len(bytes) } else { Ok(()) }
    }

    fn prepare(&mut self, segment: u64, bytes: u64, source: Source, open_flags: i32) -> io::Result<File> {
        let name = FileName::Segment(segment);
        match source {
            Source::New => {
                let directory = self.directory.clone();
                drop(make_file(&directory, name, |file| self.fill(file, 0, bytes))?);
            }
            Source::Recycle(old) => self.recycle(FileName::Segment(old), name, bytes)?,
            Source::Existing => self.check_unused(name)?,
        }
        let file = OpenOptions::new().read(true).write(true).custom_flags(open_flags).open(self.path(name))?;
        let found = file.metadata()?.len();
        if found != bytes {
            let text = format!("a segment made ready has {found} bytes, not {bytes}");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        Ok(file)
    }

    /// What an earlier process made ready must still be so when its last write has ended.
    fn check_unused(&self, name: FileName) -> io::Result<()> {
        let file = OpenOptions::new().read(true).write(true).open(self.path(name))?;
        await_direct_writes(&file)?;
        let mut first = [0; BLOCK_BYTES];
        file.read_exact_at(&mut first, 0)?;
        if first.iter().any(|byte| *byte != 0) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a write of an earlier process landed in it late"));
        }
        Ok(())
    }

    /// Its blocks were written once already, which is most of the work. The first block goes to zero before the file gets
    /// its new name, so it is never taken for a segment in use.
    fn recycle(&mut self, old: FileName, new: FileName, bytes: u64) -> io::Result<()> {
        let mut file = OpenOptions::new().read(true).write(true).open(self.path(old))?;
        file.write_all_at(&[0; BLOCK_BYTES], 0)?;
        file.sync_data()?;
        let found = file.metadata()?.len();
        if found > bytes {
            file.set_len(bytes)?;
        } else {
            self.fill(&mut file, found, bytes)?;
        }
        file.sync_all()?;
        std::fs::rename(self.path(old), self.path(new))?;
        sync_directory(&self.directory)
    }

    /// Allocates and writes zeros from `from` to `to`. A block that was written once is synced at half the cost of one that
    /// was only allocated: the file system has nothing to note down about it any more.
    fn fill(&mut self, file: &mut File, from: u64, to: u64) -> io::Result<()> {
        if from == to {
            return Ok(());
        }
        match fallocate(&*file, FallocateFlags::empty(), from, to - from) {
            // Then writing allocates.
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
            Err(error) => return Err(error.into()),
        }
        let zeros = vec![0; CHUNK_BYTES];
        let mut at = from;
        while at < to {
            self.check_wanted()?;
            let bytes = (to - at).min(CHUNK_BYTES as u64);
            file.write_all_at(&zeros[..bytes as usize], at)?;
            at += bytes;
            if at.is_multiple_of(SYNC_BYTES) {
                file.sync_data()?;
            }
        }
        file.sync_all()?;
        // Nobody reads the zeros, and direct writes would have to push them out page by page.
        let _ = fadvise(&*file, 0, NonZeroU64::new(to), Advice::DontNeed);
        Ok(())
    }

    fn save(&mut self, name: FileName, content: Content) -> io::Result<u64> {
        let directory = self.directory.clone();
        let file = make_file(&directory, name, |file| {
            let mut out = Chunks { file, buffer: Vec::with_capacity(CHUNK_BYTES), written: 0, worker: self };
            // The content is a stranger's; its panic must not take this thread along, without which the log runs dry.
            let panicked = |_| Err(io::Error::other("the content of the image panicked"));
            catch_unwind(AssertUnwindSafe(|| content(&mut out))).unwrap_or_else(panicked)?;
            out.write_chunk()
        })?;
        let bytes = file.metadata()?.len();
        let _ = fadvise(&file, 0, NonZeroU64::new(bytes), Advice::DontNeed);
        Ok(bytes)
    }

    /// Whether anybody still waits for what this thread does. Jobs that come meanwhile are kept.
    fn check_wanted(&mut self) -> io::Result<()> {
        loop {
            match self.tasks.try_recv() {
                Ok(task) => self.later.push_back(task),
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => return Err(dropped()),
            }
        }
    }

    fn pause(&mut self) -> io::Result<()> {
        match self.tasks.recv_timeout(RETRY) {
            // Something else to do is as good as a pause: it may be what gives room.
            Ok(task) => {
                self.perform(task);
                Ok(())
            }
            Err(RecvTimeoutError::Timeout) => Ok(()),
            Err(RecvTimeoutError::Disconnected) => Err(dropped()),
        }
    }

    /// Makes segments ready that were asked for while an image is being written: a log must not run dry because of one.
    fn prepare_between(&mut self) -> io::Result<()> {
        self.check_wanted()?;
        while let Some(at) = self.later.iter().position(|task| matches!(task.job, Job::Prepare { again: false, .. })) {
            let task = self.later.remove(at).expect("a task that was found");
            self.perform(task);
        }
        Ok(())
    }
}

fn dropped() -> io::Error {
    // Not `Interrupted`: whoever writes would try again.
    io::Error::other("the log was dropped")
}

/// A file written in chunks.
struct Chunks<'a> {
    file: &'a mut File,
    buffer: Vec<u8>,
    written: u64,
    worker: &'a mut Worker,
}

impl Chunks<'_> {
    fn write_chunk(&mut self) -> io::Result<()> {
        self.file.write_all(&self.buffer)?;
        self.written += self.buffer.len() as u64;
        self.buffer.clear();
        if self.written.is_multiple_of(SYNC_BYTES) {
            self.file.sync_data()?;
        }
        self.worker.prepare_between()
    }
}

impl Write for Chunks<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let take = bytes.len().min(CHUNK_BYTES - self.buffer.len());
        self.buffer.extend_from_slice(&bytes[..take]);
        if self.buffer.len() == CHUNK_BYTES {
            self.write_chunk()?;
        }
        Ok(take)
    }

    /// Does nothing: the file is durable as a whole or not there.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: u64 = 64 << 10;

    fn prepare(helper: &mut Helper, segment: u64, source: Source) -> io::Result<File> {
        helper.start(Job::Prepare { segment, bytes: BYTES, source, again: false }, 0);
        match helper.finished(Wait::Yes) {
            Some(Done::Prepared(prepared, result)) if prepared == segment => result,
            _ => panic!("segment {segment} was asked for"),
        }
    }

    fn content(directory: &Path, segment: u64) -> Vec<u8> {
        std::fs::read(directory.join(FileName::Segment(segment).to_string())).unwrap()
    }

    #[test]
    fn a_new_segment_is_zeros_and_a_recycled_one_begins_with_a_block_of_them() {
        let directory = tempfile::tempdir().unwrap();
        let mut helper = Helper::new(directory.path(), Wake::new().unwrap()).unwrap();
        let file = prepare(&mut helper, 1, Source::New).unwrap();
        assert!(content(directory.path(), 1) == vec![0; BYTES as usize]);
        file.write_all_at(&[7; BYTES as usize], 0).unwrap();
        prepare(&mut helper, 2, Source::Recycle(1)).unwrap();
        let recycled = content(directory.path(), 2);
        assert!(recycled[..BLOCK_BYTES] == [0; BLOCK_BYTES] && recycled[BLOCK_BYTES..].iter().all(|byte| *byte == 7));
        assert!(!directory.path().join(FileName::Segment(1).to_string()).exists());
        // One that was cut to its end is filled up again.
        file.set_len(2 * BLOCK_BYTES as u64).unwrap();
        prepare(&mut helper, 3, Source::Recycle(2)).unwrap();
        assert_eq!(content(directory.path(), 3).len() as u64, BYTES);
    }

    /// A write of a killed process may land in a segment that it had made ready.
    #[test]
    fn a_prepared_segment_that_was_written_after_all_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let mut helper = Helper::new(directory.path(), Wake::new().unwrap()).unwrap();
        let file = prepare(&mut helper, 1, Source::New).unwrap();
        prepare(&mut helper, 1, Source::Existing).unwrap();
        file.write_all_at(b"late", 100).unwrap();
        let refused = prepare(&mut helper, 1, Source::Existing).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
        file.write_all_at(&[0; 4], 100).unwrap();
        file.set_len(BYTES / 2).unwrap();
        let refused = prepare(&mut helper, 1, Source::Existing).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn segments_are_made_while_an_image_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let mut helper = Helper::new(directory.path(), Wake::new().unwrap()).unwrap();
        let (go_on, may_go_on) = channel::<()>();
        let image = move |out: &mut dyn Write| {
            out.write_all(&vec![1; CHUNK_BYTES])?;
            may_go_on.recv().expect("a test that goes on");
            out.write_all(&vec![2; 2 * CHUNK_BYTES])
        };
        helper.start(Job::Save { file: FileName::Image(1), content: Box::new(image) }, 0);
        helper.start(Job::Prepare { segment: 1, bytes: BYTES, source: Source::New, again: false }, 0);
        go_on.send(()).unwrap();
        assert!(matches!(helper.finished(Wait::Yes), Some(Done::Prepared(1, Ok(_)))));
        let saved = helper.finished(Wait::Yes);
        let Some(Done::Other(Finished::Saved { file: FileName::Image(1), result: Ok(bytes) })) = saved else {
            panic!("the image was asked for")
        };
        assert_eq!(bytes, 3 * CHUNK_BYTES as u64);
        assert!(helper.finished(Wait::Yes).is_none());
    }

    #[test]
    fn a_helper_that_is_dropped_leaves_no_half_files_under_their_names() {
        let directory = tempfile::tempdir().unwrap();
        let mut helper = Helper::new(directory.path(), Wake::new().unwrap()).unwrap();
        let (started, has_started) = channel::<()>();
        let (go_on, may_go_on) = channel::<()>();
        let image = move |out: &mut dyn Write| {
            started.send(()).expect("a test that listens");
            may_go_on.recv().expect_err("the test drops its end");
            (0..1000).try_for_each(|_| out.write_all(&[3; CHUNK_BYTES]))
        };
        helper.start(Job::Save { file: FileName::Image(1), content: Box::new(image) }, 0);
        helper.start(Job::Prepare { segment: 1, bytes: 1 << 30, source: Source::New, again: false }, 0);
        has_started.recv().unwrap();
        // Its queue is closed before the image goes on.
        helper.jobs = None;
        drop(go_on);
        drop(helper);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
