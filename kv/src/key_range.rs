//! Ranges of keys as callers write them: `..`, `"a".."c"`, `key..=key`.

use std::ops::{Bound, Range, RangeBounds, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

/// A range of keys: any of Rust's ranges over something that has bytes, a pair of bounds, or `..` for a whole table.
pub trait KeyRange {
    /// Where the range starts and ends.
    fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>);
}

impl KeyRange for RangeFull {
    fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (Bound::Unbounded, Bound::Unbounded)
    }
}

/// One line for each of the standard ranges.
macro_rules! standard_ranges {
    ($($range:ty),*) => {$(
        impl<K: AsRef<[u8]>> KeyRange for $range {
            fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
                (self.start_bound().map(K::as_ref), self.end_bound().map(K::as_ref))
            }
        }
    )*};
}

standard_ranges!(Range<K>, RangeFrom<K>, RangeInclusive<K>, RangeTo<K>, RangeToInclusive<K>, (Bound<K>, Bound<K>));
