//! Two doors to memory: arrays of zeroes that cost nothing until they are used, and a hint to fetch a line early.
//!
//! The conflict index and the table of open transactions are large and mostly empty after a start. The operating
//! system hands out zeroed pages on first touch, but only to an allocation that asks for zeroes without asking for an
//! alignment beyond the allocator's own; so the array asks for one line more and starts at the first aligned one.

#[cfg(not(loom))]
use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::Deref;
#[cfg(not(loom))]
use std::ptr::NonNull;

use crate::sync::{AtomicU32, AtomicU64};

/// Bytes of a cache line.
#[cfg(not(loom))]
const LINE_BYTES: usize = 64;

/// Types for which all bits zero is a value, and which need no drop.
///
/// # Safety
/// Both must hold.
pub(crate) unsafe trait Zeroed: Default {}

// SAFETY: an atomic integer has the representation of its integer, and zero is one. (Loom's are never made this way.)
unsafe impl Zeroed for AtomicU32 {}
// SAFETY: as above.
unsafe impl Zeroed for AtomicU64 {}
// SAFETY: an array is its items and nothing else.
unsafe impl<T: Zeroed, const N: usize> Zeroed for [T; N] where [T; N]: Default {}

/// A fixed number of zeroed `T`, the first of which starts a cache line.
#[cfg(not(loom))]
pub(crate) struct ZeroedArray<T> {
    first: NonNull<T>,
    len: usize,
    allocation: NonNull<u8>,
    layout: Layout,
}

#[cfg(not(loom))]
impl<T> ZeroedArray<T> {
    /// An array of `len` zeroes, whose memory is touched when it is used.
    pub(crate) fn new(len: usize) -> ZeroedArray<T>
    where
        T: Zeroed,
    {
        assert!(size_of::<T>() > 0 && align_of::<T>() <= 8);
        let bytes = size_of::<T>().checked_mul(len).and_then(|bytes| bytes.checked_add(LINE_BYTES));
        let layout = bytes.and_then(|bytes| Layout::from_size_align(bytes, 8).ok()).expect("the array fits memory");
        // SAFETY: the size is not zero, for it holds a line.
        let Some(allocation) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        let skip = allocation.align_offset(LINE_BYTES);
        assert!(skip < LINE_BYTES);
        // SAFETY: `skip` is less than the line by which the allocation is larger than the array.
        let first = unsafe { allocation.add(skip) }.cast();
        ZeroedArray { first, len, allocation, layout }
    }
}

#[cfg(not(loom))]
impl<T> Deref for ZeroedArray<T> {
    type Target = [T];

    #[inline]
    fn deref(&self) -> &[T] {
        // SAFETY: `new` allocated `len` items from `first` on, aligned for a line and so for `T`, and zero is a `T`.
        unsafe { std::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}

#[cfg(not(loom))]
impl<T> Drop for ZeroedArray<T> {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout; items need no drop.
        unsafe { dealloc(self.allocation.as_ptr(), self.layout) }
    }
}

// SAFETY: the array owns its items as a boxed slice does.
#[cfg(not(loom))]
unsafe impl<T: Send> Send for ZeroedArray<T> {}
// SAFETY: as above; only shared references are given out.
#[cfg(not(loom))]
unsafe impl<T: Sync> Sync for ZeroedArray<T> {}

/// Loom's atomics have to be made one by one.
#[cfg(loom)]
pub(crate) struct ZeroedArray<T>(Box<[T]>);

#[cfg(loom)]
impl<T> ZeroedArray<T> {
    pub(crate) fn new(len: usize) -> ZeroedArray<T>
    where
        T: Zeroed,
    {
        ZeroedArray((0..len).map(|_| T::default()).collect())
    }
}

#[cfg(loom)]
impl<T> Deref for ZeroedArray<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.0
    }
}

/// Asks the processor to fetch the line of `item`, which will be needed soon. A hint, without an effect otherwise.
#[inline]
pub(crate) fn prefetch<T>(item: &T) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    // SAFETY: a prefetch reads nothing and cannot fault; the instruction is part of every x86_64.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(item).cast());
    }
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    let _ = item;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::Ordering::Relaxed;

    #[test]
    fn an_array_is_zero_starts_a_line_and_keeps_what_is_stored() {
        for len in [1, 7, 4096] {
            let array = ZeroedArray::<[AtomicU64; 8]>::new(len);
            assert_eq!(array.len(), len);
            assert_eq!(array.as_ptr().addr() % LINE_BYTES, 0);
            assert!(array.iter().flatten().all(|word| word.load(Relaxed) == 0));
            array[len - 1][7].store(9, Relaxed);
            prefetch(&array[len - 1]);
            assert_eq!(array[len - 1][7].load(Relaxed), 9);
        }
    }
}
