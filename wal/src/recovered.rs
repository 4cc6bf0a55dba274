//! What recovery hands to the caller: the newest image and the groups after it.

use std::sync::Arc;

use crate::field::BLOCK_BYTES;
use crate::group::{Fault, GROUP_HEADER_BYTES, Group, GroupHeader, Stamp};
use crate::identity::StoreId;
use crate::image::image_content;
use crate::lsn::Lsn;
use crate::segment::Origin;
use crate::storage::FileBytes;

/// What the log remembered. Replay it: first the image, then the groups in order.
///
/// It holds files open; while it lives, no segment is recycled. Let it go when the replay is done.
#[derive(Debug)]
pub struct Recovered {
    /// The store.
    pub store: StoreId,
    /// The newest image that is whole.
    pub image: Option<Image>,
    /// Images that are not whole: say so to the operator.
    pub bad_images: Vec<BadImage>,
    /// The write that the end of the process before cut off, if one left traces.
    pub cut: Option<Cut>,
    /// The last durable record; [`Lsn::ZERO`] in a new store.
    pub durable: Lsn,
    /// What was said about the last durable group; `None` in a new store.
    pub last_stamp: Option<Stamp>,
    pub(crate) extents: Vec<Extent>,
    /// Shared while somebody may look at files of the log.
    pub(crate) _pin: Arc<()>,
}

/// A saved state.
#[derive(Debug)]
pub struct Image {
    /// The last record whose effect it holds.
    pub covers: Lsn,
    pub(crate) file: FileBytes,
}

impl Image {
    /// What was saved.
    pub fn bytes(&self) -> &[u8] {
        &self.file[image_content(&self.file)]
    }
}

/// An image that is not whole.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{file} is damaged and was passed over")]
pub struct BadImage {
    /// The file.
    pub file: String,
    /// Up to where it went.
    pub covers: Lsn,
}

/// A group whose write did not finish, and which therefore nobody was told of.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("left out an unfinished group in {file} at byte {offset} ({records} records): {fault}")]
pub struct Cut {
    /// The file.
    pub file: String,
    /// Where in it, in bytes.
    pub offset: u64,
    /// How many records it would have had, if its header got that far; else 0.
    pub records: u32,
    /// What is wrong there.
    pub fault: Fault,
}

/// Whole groups of one segment.
#[derive(Debug)]
pub(crate) struct Extent {
    pub bytes: FileBytes,
    /// Where they end.
    pub end: usize,
    pub origin: Origin,
}

impl Recovered {
    /// The durable groups after the image, in order; all of them were checked. Closing groups are among them: they
    /// carry a stamp.
    pub fn groups(&self) -> impl Iterator<Item = Group<'_>> {
        let covers = self.image.as_ref().map_or(Lsn::ZERO, |image| image.covers);
        self.extents.iter().flat_map(Extent::groups).filter_map(move |(header, payload)| {
            let is_new = header.first > covers || header.next() > covers.plus(1);
            is_new.then(|| Group::new(header, payload, covers))
        })
    }
}

impl Extent {
    fn groups(&self) -> impl Iterator<Item = (GroupHeader, &[u8])> {
        let mut offset = BLOCK_BYTES;
        std::iter::from_fn(move || {
            if offset >= self.end {
                return None;
            }
            let header = GroupHeader::read(&self.bytes, offset, self.origin).expect("a group that was checked");
            let payload = &self.bytes[offset + GROUP_HEADER_BYTES..][..header.payload_bytes as usize];
            offset += header.padded_bytes();
            Some((header, payload))
        })
    }
}
