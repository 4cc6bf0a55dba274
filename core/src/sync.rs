//! Where atomics come from: the standard library, or loom when a model runs (`--cfg loom`), so that the models run the
//! shipped code. No other file of this room names an atomic, a fence or a yield of its own.

#[cfg(not(loom))]
pub(crate) use std::{
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
    thread::yield_now,
};

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    hint::spin_loop,
    sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
    thread::yield_now,
};

/// How often a loop looks again before it lets others run. Every turn of a modelled loop doubles the model.
pub(crate) const SPINS: u32 = if cfg!(loom) { 1 } else { 100 };

/// A cell whose content is reached through a closure, as loom wants it in order to watch the accesses.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> UnsafeCell<T> {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    /// Lends the content to `touch`. Whoever dereferences the pointer has to know that nobody else does.
    #[inline]
    pub(crate) fn with_mut<R>(&self, touch: impl FnOnce(*mut T) -> R) -> R {
        touch(self.0.get())
    }
}

/// Waiting for another thread that is about to be done: a few looks, then the processor is offered to others.
#[derive(Debug, Default)]
pub(crate) struct Wait(u32);

impl Wait {
    /// Lets a little time pass.
    pub(crate) fn a_moment(&mut self) {
        self.0 += 1;
        if self.0 > SPINS {
            yield_now();
        } else {
            spin_loop();
        }
    }
}
