//! Groups by io_uring: the kernel writes from our buffers while the caller's thread goes on.
//!
//! A group is one request (`O_DIRECT`, `RWF_DSYNC`), or two linked ones (write, then `fdatasync`). The buffer belongs to
//! this module from the submission to the last completion; if that completion cannot be had, the buffer is leaked, since a
//! buffer that is freed while the device reads it puts foreign bytes into the log.
#![allow(unsafe_code)] // requests name memory by its address

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use io_uring::{IoUring, opcode, squeue, types};

use crate::storage::transfer::{Next, Transfer};
use crate::storage::wake::Wake;
use crate::storage::writer::Sync;
use crate::storage::{Buffer, SegmentWrite, Wait};

/// How much of each buffer is registered. Registered memory is pinned and counts against a limit of often 8 MiB; a larger
/// group is written the plain way.
const REGISTERED_BYTES_MAX: usize = 1 << 20;

/// Places for registered files: the active segment has one, its successors take the others in turn.
const FILE_SLOTS: usize = 4;

const WRITE: u64 = 1;
const SYNC: u64 = 2;

/// A ring and the write it has.
pub(crate) struct Uring {
    ring: IoUring,
    sync: Sync,
    /// How much of each buffer the kernel knows; 0 if it would not take any.
    registered_bytes: usize,
    /// Which segment's file lies where; `None` if the kernel would not take any.
    slots: Option<[Option<u64>; FILE_SLOTS]>,
    flight: Option<Flight>,
    /// The ring signals it, and must not outlive it.
    _wake: Wake,
}

struct Flight {
    file: Arc<File>,
    write: ManuallyDrop<SegmentWrite>,
    transfer: Transfer,
    /// Answers that are still to come.
    due: u32,
    /// Requests may lie in the queue that the kernel has not taken yet.
    is_queued: bool,
    written: Option<io::Result<usize>>,
    synced: Option<io::Result<()>>,
}

impl Uring {
    /// # Errors
    /// If the kernel or a filter denies io_uring, or there is no memory for it.
    pub(crate) fn new(sync: Sync, buffers: &[Buffer], wake: Wake) -> io::Result<Uring> {
        let ring = new_ring()?;
        ring.submitter().register_eventfd(wake.as_raw_fd())?;
        let registered_bytes = buffers.iter().map(|buffer| buffer.len()).min().unwrap_or(0).min(REGISTERED_BYTES_MAX);
        let known: Vec<libc::iovec> = buffers
            .iter()
            .map(|buffer| libc::iovec { iov_base: buffer.as_ptr().cast_mut().cast(), iov_len: registered_bytes })
            .collect();
        // SAFETY: each entry is the front part of a live anonymous mapping. The kernel pins the pages, so they stay theirs
        // even after the mapping is gone; what a request reads from them is argued where requests are made.
        let takes_buffers = unsafe { ring.submitter().register_buffers(&known) }.is_ok();
        let takes_files = ring.submitter().register_files(&[-1; FILE_SLOTS]).is_ok();
        Ok(Uring {
            ring,
            sync,
            registered_bytes: if takes_buffers { registered_bytes } else { 0 },
            slots: takes_files.then_some([None; FILE_SLOTS]),
            flight: None,
            _wake: wake,
        })
    }

    /// As if the kernel had not taken any files.
    #[cfg(test)]
    pub(crate) fn forget_files(&mut self) {
        self.slots = None;
    }

    pub(crate) fn write(&mut self, file: Arc<File>, write: SegmentWrite) {
        assert!(self.flight.is_none(), "a second write to segment {} at {}", write.segment, write.offset);
        self.register_file(write.segment, &file);
        self.flight = Some(Flight {
            file,
            transfer: Transfer::new(write.range.len(), self.sync == Sync::Direct),
            write: ManuallyDrop::new(write),
            due: 0,
            is_queued: false,
            written: None,
            synced: None,
        });
        self.queue();
        // What goes wrong here shows up again in `written`, which tries again.
        let _ = self.submit(0);
    }

    pub(crate) fn written(&mut self, wait: Wait) -> Option<io::Result<Buffer>> {
        loop {
            self.flight.as_ref()?;
            self.reap();
            match self.judge() {
                Some(Next::Done) => {
                    let flight = self.flight.take().expect("a flight that was judged");
                    return Some(Ok(ManuallyDrop::into_inner(flight.write).buffer));
                }
                Some(Next::Failed(error)) => {
                    // All answers are in, so the kernel has let go of the buffer.
                    let flight = self.flight.take().expect("a flight that was judged");
                    drop(ManuallyDrop::into_inner(flight.write));
                    return Some(Err(error));
                }
                Some(Next::Write) => self.queue(),
                None => {}
            }
            let want = if wait == Wait::Yes { 1 } else { 0 };
            match self.submit(want) {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    // The kernel may have some of the requests or none: the buffer is never touched again.
                    self.flight = None;
                    return Some(Err(error));
                }
            }
        }
    }

    fn register_file(&mut self, segment: u64, file: &File) {
        let Some(slots) = &mut self.slots else { return };
        let slot = segment as usize % FILE_SLOTS;
        if slots[slot] == Some(segment) {
            return;
        }
        match self.ring.submitter().register_files_update(slot as u32, &[file.as_raw_fd()]) {
            Ok(1) => slots[slot] = Some(segment),
            _ => self.slots = None,
        }
    }

    /// Puts the rest of the write into the queue.
    fn queue(&mut self) {
        let flight = self.flight.as_mut().expect("a write to queue");
        let done = flight.transfer.done();
        let rest = flight.write.range.start + done..flight.write.range.end;
        let offset = flight.write.offset + done as u64;
        let bytes = &flight.write.buffer[rest.clone()];
        let (from, length) = (bytes.as_ptr(), u32::try_from(bytes.len()).expect("a group within its limit"));
        let flags = if self.sync == Sync::Direct { libc::RWF_DSYNC } else { 0 };
        let index = flight.write.buffer.index() as u16;
        let slot = types::Fixed((flight.write.segment as usize % FILE_SLOTS) as u32);
        let fd = types::Fd(flight.file.as_raw_fd());
        let is_registered = rest.end <= self.registered_bytes;
        let has_slot = self.slots.is_some();
        let write = match (is_registered, has_slot) {
            (true, true) => opcode::WriteFixed::new(slot, from, length, index).offset(offset).rw_flags(flags).build(),
            (true, false) => opcode::WriteFixed::new(fd, from, length, index).offset(offset).rw_flags(flags).build(),
            (false, true) => opcode::Write::new(slot, from, length).offset(offset).rw_flags(flags).build(),
            (false, false) => opcode::Write::new(fd, from, length).offset(offset).rw_flags(flags).build(),
        };
        let write = write.user_data(WRITE);
        let requests = match self.sync {
            Sync::Direct => vec![write],
            Sync::Buffered => {
                let datasync = types::FsyncFlags::DATASYNC;
                let sync = if has_slot {
                    opcode::Fsync::new(slot).flags(datasync).build()
                } else {
                    opcode::Fsync::new(fd).flags(datasync).build()
                };
                vec![write.flags(squeue::Flags::IO_LINK), sync.user_data(SYNC)]
            }
        };
        // SAFETY: the memory named lies in `flight.write.buffer` and the descriptor is held by `flight.file`; both stay
        // until every answer is in (`due` is 0), and are leaked if that never comes: `Flight` keeps the write in a
        // `ManuallyDrop`, which only `written` and `drop` open, and only then. No one has a reference to the buffer
        // meanwhile, so no one changes what the device reads. Shown by `a_log_dropped_in_flight_writes_its_own_bytes`.
        let queued = unsafe { self.ring.submission().push_multiple(&requests) };
        assert!(queued.is_ok(), "the queue holds {} requests beyond its size", requests.len());
        flight.due = requests.len() as u32;
        flight.is_queued = true;
        (flight.written, flight.synced) = (None, None);
    }

    /// Gives the kernel what it has not taken, and waits for `want` answers. Says whether it is worth to look for answers.
    fn submit(&mut self, want: usize) -> io::Result<bool> {
        let Some(flight) = &mut self.flight else { return Ok(false) };
        // The kernel may hold answers back until this thread enters it.
        let is_held_back = self.ring.submission().taskrun();
        if want == 0 && !flight.is_queued && !is_held_back {
            return Ok(false);
        }
        match self.ring.submit_and_wait(want) {
            Ok(_) => {
                flight.is_queued = !self.ring.submission().is_empty();
                Ok(want > 0 || is_held_back)
            }
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR) => Ok(true),
                // Short of memory for the moment: with a wait at once again, without one at the next look.
                Some(libc::EAGAIN | libc::EBUSY) => Ok(want > 0),
                _ => Err(error),
            },
        }
    }

    fn reap(&mut self) {
        let Some(flight) = &mut self.flight else { return };
        for answer in self.ring.completion() {
            let result = match answer.result() {
                code if code < 0 => Err(io::Error::from_raw_os_error(-code)),
                bytes => Ok(bytes as usize),
            };
            match answer.user_data() {
                WRITE => flight.written = Some(result),
                SYNC => flight.synced = Some(result.map(|_| ())),
                other => unreachable!("an answer to request {other}, which was never made"),
            }
            flight.due = flight.due.checked_sub(1).expect("one answer for each request");
        }
    }

    /// What the answers mean, once all are in.
    fn judge(&mut self) -> Option<Next> {
        let flight = self.flight.as_mut().filter(|flight| flight.due == 0)?;
        let written = flight.written.take()?;
        Some(match self.sync {
            Sync::Direct => flight.transfer.on_write(written),
            Sync::Buffered => {
                let synced = flight.synced.take().expect("the answer to a sync");
                flight.transfer.on_write_then_sync(written, synced)
            }
        })
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        // The write goes on to its end: its bytes are ours to lose, but not its buffer. Should the kernel refuse to say
        // when that is, the buffer stays for ever.
        let _ = self.written(Wait::Yes);
    }
}

fn new_ring() -> io::Result<IoUring> {
    // Completions wait for this thread to enter the kernel, which it does every turn, instead of interrupting it.
    let cooperative = IoUring::builder().setup_coop_taskrun().setup_taskrun_flag().build(8);
    // Kernels before 5.19 do not know that.
    cooperative.or_else(|_| IoUring::builder().build(8))
}
