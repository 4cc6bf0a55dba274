//! The names of the files of a data directory.

use std::fmt;

/// A file of the log. Names come from counters that the log itself keeps, never from a clock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FileName {
    /// `identity`: whose directory this is.
    Identity,
    /// `segment-<id>`: groups, or room made ahead for them.
    Segment(u64),
    /// `image-<lsn>`: the saved state that covers the log up to a position.
    Image(u64),
}

/// Ends the name of a file that is being made; whatever bears it after a crash is waste.
pub(crate) const TEMPORARY_SUFFIX: &str = ".tmp";

impl FileName {
    /// The name as a type, if it is one of ours, exactly as we write it.
    pub fn parse(name: &str) -> Option<FileName> {
        let parsed = if name == "identity" {
            FileName::Identity
        } else if let Some(id) = name.strip_prefix("segment-") {
            FileName::Segment(id.parse().ok()?)
        } else {
            FileName::Image(name.strip_prefix("image-")?.parse().ok()?)
        };
        (parsed.to_string() == name).then_some(parsed)
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FileName::Identity => f.write_str("identity"),
            FileName::Segment(id) => write!(f, "segment-{id:020}"),
            FileName::Image(lsn) => write!(f, "image-{lsn:020}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_reads_back_and_sorts_by_its_number() {
        for file in [FileName::Identity, FileName::Segment(0), FileName::Segment(u64::MAX), FileName::Image(12)] {
            assert_eq!(FileName::parse(&file.to_string()), Some(file));
        }
        assert!(FileName::Segment(9).to_string() < FileName::Segment(10).to_string());
    }

    #[test]
    fn a_name_that_is_almost_ours_is_not() {
        for name in ["segment-1", "segment-+0000000000000000001", "segment-", "image-x", "identity.tmp", "lock", ""] {
            assert_eq!(FileName::parse(name), None, "{name}");
        }
    }
}
