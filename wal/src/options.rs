//! What can be set when a log is opened.

use crate::field::{BLOCK_BYTES, blocks_bytes};
use crate::group::GROUP_HEADER_BYTES;
use crate::identity::StoreId;
use crate::record::RECORD_OVERHEAD_MAX;

/// The smallest segment.
pub const SEGMENT_BYTES_MIN: u64 = 64 << 10;

/// The largest segment.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// The largest payload of a record, if the segment has room for it: 16 MiB.
pub const RECORD_BYTES_MAX: usize = 16 << 20;

/// Settings of a log.
#[derive(Clone, Debug)]
pub struct Options {
    /// Length of the segments that are made from now on: a multiple of 4 KiB from 64 KiB to 1 GiB, default 64 MiB.
    /// Segments of another length stay readable.
    pub segment_bytes: u64,
    /// Bound of the open group's records: a record that would cross it is answered `Full`, unless it is the first.
    /// From 4 KiB up, default 8 MiB; held to what fits a segment.
    pub group_bytes_max: usize,
    /// Segments kept ready ahead of the one being written: 1 to 64, default 2.
    pub segments_ahead: usize,
    /// Images kept: 1 to 64, default 2. While there are fewer, no segment is recycled, so that a damaged image always
    /// has something to fall back to.
    pub images_kept: usize,
    /// Which store this must be; `None` takes any. A new directory gets it as its identity.
    pub store: Option<StoreId>,
    /// Wall clock, written into the identity of a new store; informational. Default 0.
    pub created_ms: u64,
    /// A planted bug, for simulations that have to find it: damage is cut off though something follows it. Default false.
    #[doc(hidden)]
    pub cuts_damage: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            segment_bytes: 64 << 20,
            group_bytes_max: 8 << 20,
            segments_ahead: 2,
            images_kept: 2,
            store: None,
            created_ms: 0,
            cuts_damage: false,
        }
    }
}

/// A setting outside its limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("setting {setting} is {value}, allowed is {from} to {to}{}", if *blocks { " in steps of 4096" } else { "" })]
pub struct BadOption {
    /// Its name.
    pub setting: &'static str,
    /// What was asked for.
    pub value: u64,
    /// The least allowed.
    pub from: u64,
    /// The most allowed.
    pub to: u64,
    blocks: bool,
}

impl Options {
    pub(crate) fn check(&self) -> Result<(), BadOption> {
        let limits = [
            ("segment_bytes", self.segment_bytes, SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX, true),
            ("group_bytes_max", self.group_bytes_max as u64, BLOCK_BYTES as u64, SEGMENT_BYTES_MAX, false),
            ("segments_ahead", self.segments_ahead as u64, 1, 64, false),
            ("images_kept", self.images_kept as u64, 1, 64, false),
        ];
        for (setting, value, from, to, blocks) in limits {
            let out_of_step = blocks && !value.is_multiple_of(BLOCK_BYTES as u64);
            if value < from || value > to || out_of_step {
                return Err(BadOption { setting, value, from, to, blocks });
            }
        }
        Ok(())
    }

    /// The most bytes of records that a segment can take as one group.
    fn payload_bytes_max(&self) -> usize {
        self.segment_bytes as usize - BLOCK_BYTES - GROUP_HEADER_BYTES
    }

    /// Where the open group is full.
    pub(crate) fn group_payload_bytes_max(&self) -> usize {
        self.group_bytes_max.min(self.payload_bytes_max())
    }

    /// The largest payload of one record.
    pub(crate) fn record_bytes_max(&self) -> usize {
        RECORD_BYTES_MAX.min(self.payload_bytes_max() - RECORD_OVERHEAD_MAX)
    }

    /// Room for a segment's first block and the largest group.
    pub(crate) fn buffer_bytes(&self) -> usize {
        let payload = self.group_payload_bytes_max().max(self.record_bytes_max() + RECORD_OVERHEAD_MAX);
        BLOCK_BYTES + blocks_bytes(GROUP_HEADER_BYTES + payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_allowed_and_their_largest_group_fits_a_segment() {
        let defaults = Options::default();
        defaults.check().unwrap();
        assert_eq!(defaults.record_bytes_max(), RECORD_BYTES_MAX);
        for segment_bytes in [SEGMENT_BYTES_MIN, 1 << 20, 64 << 20, SEGMENT_BYTES_MAX] {
            let options = Options { segment_bytes, ..Options::default() };
            options.check().unwrap();
            assert!(options.buffer_bytes() as u64 <= segment_bytes, "segment of {segment_bytes}");
        }
    }

    #[test]
    fn a_setting_beyond_its_limits_is_named() {
        let wrong = [
            (Options { segment_bytes: 4096, ..Options::default() }, "segment_bytes"),
            (Options { segment_bytes: (64 << 10) + 1, ..Options::default() }, "segment_bytes"),
            (Options { group_bytes_max: 10, ..Options::default() }, "group_bytes_max"),
            (Options { segments_ahead: 0, ..Options::default() }, "segments_ahead"),
            (Options { images_kept: 65, ..Options::default() }, "images_kept"),
        ];
        for (options, setting) in wrong {
            assert_eq!(options.check().unwrap_err().setting, setting);
        }
    }
}
