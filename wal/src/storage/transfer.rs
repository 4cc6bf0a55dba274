//! How far a write has come, and what the answer of the system means for it.
//!
//! One rule for every way of writing, so that no answer is ever taken for success but the one that is: all bytes
//! written, then synced.

use std::io;

use crate::field::BLOCK_BYTES;

/// Attempts in a row that may bring nothing before the write counts as failed.
const IDLE_ATTEMPTS_MAX: u32 = 64;

/// A write of `total` bytes, of which the first `done` are written.
#[derive(Debug)]
pub(crate) struct Transfer {
    done: usize,
    total: usize,
    idle_attempts: u32,
    restarts: u32,
    /// Bytes may only be written in whole blocks.
    direct: bool,
}

/// What to do next.
#[derive(Debug)]
pub(crate) enum Next {
    /// Write the rest, from [`Transfer::done`] on (and sync, where that is a step of its own).
    Write,
    /// Nothing: all is durable.
    Done,
    /// Nothing ever again.
    Failed(io::Error),
}

impl Transfer {
    pub(crate) fn new(total: usize, direct: bool) -> Transfer {
        Transfer { done: 0, total, idle_attempts: 0, restarts: 0, direct }
    }

    /// Bytes written so far.
    pub(crate) fn done(&self) -> usize {
        self.done
    }

    /// A write that syncs by itself answered.
    pub(crate) fn on_write(&mut self, answer: io::Result<usize>) -> Next {
        match self.advance(answer) {
            Ok(true) => Next::Done,
            Ok(false) => Next::Write,
            Err(error) => Next::Failed(error),
        }
    }

    /// A write and the sync that was to follow it answered.
    pub(crate) fn on_write_then_sync(&mut self, write: io::Result<usize>, sync: io::Result<()>) -> Next {
        let written = match self.advance(write) {
            Ok(all) => all,
            Err(error) => return Next::Failed(error),
        };
        match sync {
            Ok(()) if written => Next::Done,
            // A short write cancels the sync behind it.
            Ok(()) => Next::Write,
            Err(error) if !written && error.raw_os_error() == Some(libc::ECANCELED) => Next::Write,
            // Interrupted before it was over. Nobody was told of this group, so all of it may be written again; that
            // dirties every page anew, so that the next sync answers for every one of them.
            Err(error) if is_passing(&error) && self.restarts < IDLE_ATTEMPTS_MAX => {
                self.restarts += 1;
                self.done = 0;
                Next::Write
            }
            Err(error) => Next::Failed(error),
        }
    }

    /// Whether all is written.
    fn advance(&mut self, answer: io::Result<usize>) -> io::Result<bool> {
        let written = match answer {
            Ok(bytes) => bytes,
            Err(error) if is_passing(&error) => 0,
            Err(error) => return Err(error),
        };
        let rest = self.total - self.done;
        assert!(written <= rest, "{written} bytes written of {rest}");
        // A block of which a part was written is written again: nobody was told of it.
        let step = if written < rest && self.direct { written - written % BLOCK_BYTES } else { written };
        self.done += step;
        if step == 0 && rest > 0 {
            self.idle()?;
        } else {
            self.idle_attempts = 0;
        }
        Ok(self.done == self.total)
    }

    fn idle(&mut self) -> io::Result<()> {
        self.idle_attempts += 1;
        if self.idle_attempts > IDLE_ATTEMPTS_MAX {
            return Err(io::Error::new(io::ErrorKind::WriteZero, "the medium takes no more bytes"));
        }
        Ok(())
    }
}

/// Whether an answer means "ask again" and not "it failed".
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOTAL: usize = 4 * BLOCK_BYTES;

    fn os(code: i32) -> io::Error {
        io::Error::from_raw_os_error(code)
    }

    #[test]
    fn only_all_bytes_written_and_synced_are_success() {
        assert!(matches!(Transfer::new(TOTAL, true).on_write(Ok(TOTAL)), Next::Done));
        assert!(matches!(Transfer::new(TOTAL, false).on_write_then_sync(Ok(TOTAL), Ok(())), Next::Done));
        for code in [libc::ENOSPC, libc::EIO, libc::ECANCELED, libc::EINVAL, libc::EROFS, libc::EFBIG, libc::EBADF] {
            assert!(matches!(Transfer::new(TOTAL, true).on_write(Err(os(code))), Next::Failed(_)), "{code}");
            let sync_failed = Transfer::new(TOTAL, false).on_write_then_sync(Ok(TOTAL), Err(os(code)));
            assert!(matches!(sync_failed, Next::Failed(_)), "{code}");
            let write_failed = Transfer::new(TOTAL, false).on_write_then_sync(Err(os(code)), Err(os(libc::ECANCELED)));
            assert!(matches!(write_failed, Next::Failed(ref error) if error.raw_os_error() == Some(code)), "{code}");
            // A short write does not excuse a sync that failed by itself.
            let both = Transfer::new(TOTAL, false).on_write_then_sync(Ok(1), Err(os(code)));
            assert_eq!(matches!(both, Next::Failed(_)), code != libc::ECANCELED, "{code}");
        }
    }

    #[test]
    fn a_short_write_goes_on_where_it_stopped() {
        for short in 0..TOTAL {
            let mut buffered = Transfer::new(TOTAL, false);
            assert!(matches!(buffered.on_write_then_sync(Ok(short), Err(os(libc::ECANCELED))), Next::Write));
            assert_eq!(buffered.done(), short);
            assert!(matches!(buffered.on_write_then_sync(Ok(TOTAL - short), Ok(())), Next::Done));
            let mut direct = Transfer::new(TOTAL, true);
            assert!(matches!(direct.on_write(Ok(short)), Next::Write));
            assert_eq!(direct.done(), short / BLOCK_BYTES * BLOCK_BYTES);
            assert!(matches!(direct.on_write(Ok(TOTAL - direct.done())), Next::Done));
        }
    }

    #[test]
    fn an_interruption_is_asked_again_and_not_for_ever() {
        for code in [libc::EINTR, libc::EAGAIN] {
            let mut transfer = Transfer::new(TOTAL, true);
            for _ in 0..IDLE_ATTEMPTS_MAX {
                assert!(matches!(transfer.on_write(Err(os(code))), Next::Write));
            }
            assert!(matches!(transfer.on_write(Err(os(code))), Next::Failed(_)));
        }
        let mut transfer = Transfer::new(TOTAL, true);
        for _ in 0..IDLE_ATTEMPTS_MAX {
            assert!(matches!(transfer.on_write(Ok(0)), Next::Write));
        }
        assert!(matches!(transfer.on_write(Ok(0)), Next::Failed(_)));
    }

    #[test]
    fn an_interrupted_sync_writes_everything_again() {
        let mut transfer = Transfer::new(TOTAL, false);
        assert!(matches!(transfer.on_write_then_sync(Ok(TOTAL), Err(os(libc::EINTR))), Next::Write));
        assert_eq!(transfer.done(), 0);
        assert!(matches!(transfer.on_write_then_sync(Ok(TOTAL), Ok(())), Next::Done));
    }

    #[test]
    fn a_sync_that_is_always_interrupted_fails_in_the_end() {
        let mut transfer = Transfer::new(TOTAL, false);
        for _ in 0..IDLE_ATTEMPTS_MAX {
            assert!(matches!(transfer.on_write_then_sync(Ok(TOTAL), Err(os(libc::EINTR))), Next::Write));
        }
        assert!(matches!(transfer.on_write_then_sync(Ok(TOTAL), Err(os(libc::EINTR))), Next::Failed(_)));
    }
}
