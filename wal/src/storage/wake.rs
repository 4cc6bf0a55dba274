//! A descriptor that becomes readable when there is news.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use rustix::event::{EventfdFlags, eventfd};

/// An eventfd; clones are the same one.
#[derive(Clone, Debug)]
pub(crate) struct Wake(Arc<OwnedFd>);

impl Wake {
    pub(crate) fn new() -> io::Result<Wake> {
        Ok(Wake(Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?)))
    }

    /// Makes it readable.
    pub(crate) fn notify(&self) {
        // Fails only when it is readable and has been notified 2^64 - 1 times.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Makes it unreadable.
    pub(crate) fn clear(&self) {
        // Fails only when it is unreadable.
        let _ = rustix::io::read(&self.0, &mut [0u8; 8]);
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub(crate) fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}
