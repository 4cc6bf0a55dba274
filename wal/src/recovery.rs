//! What a directory still knows: the newest image, the groups after it, and where the log ends.
//!
//! Three things may lie behind the last good group. Nothing of this use of the segment: the log ends there. A group
//! that is not whole, with nothing after it: it was being written when the process ended and nobody was told of it, so
//! it is left out. A group that is not whole, with something after it: since a group is written only when the one
//! before is durable, it *was* whole, and the directory is refused.
//!
//! Nothing is written over and nothing is erased: the next group goes to a fresh segment, whose first block says where
//! this one ended. From then on that end holds, whatever the bytes beyond it look like.

use std::sync::Arc;

use crate::error::{ForeignReason, OpenError, Successor};
use crate::field::{BLOCK_BYTES, u64_at};
use crate::file_name::FileName;
use crate::group::{Digest, Fault, GroupHeader, Stamp, find_group};
use crate::identity::{StoreId, Unreadable};
use crate::image::ImageHeader;
use crate::lsn::Lsn;
use crate::options::Options;
use crate::ownership::{io_error, newer, other_store};
use crate::recovered::{BadImage, Cut, Extent, Image, Recovered};
use crate::segment::{FirstBlock, Origin, SegmentHeader};
use crate::storage::{Access, FileBytes, Listing, Storage};

/// Where the log ends.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Tail {
    /// The last segment in use and where its groups end; 0 and 0 in a new store.
    pub segment: u64,
    pub end: u32,
    /// The record that comes next.
    pub next: Lsn,
    /// Digest of the last group.
    pub digest: Digest,
    /// Stamp of the last group.
    pub stamp: Option<Stamp>,
}

/// What recovery tells the log.
pub(crate) struct Findings {
    pub recovered: Recovered,
    pub tail: Tail,
    /// Segments in use with their first records, in order.
    pub used: Vec<(u64, Lsn)>,
    /// How many of the last of them hold no whole group.
    pub hollow: usize,
    /// Segments made ready and not used, in order.
    pub ready: Vec<u64>,
    /// Files that no one needs.
    pub waste: Vec<FileName>,
    /// Segments that go on far beyond their end, with that end.
    pub overlong: Vec<(u64, u64)>,
    /// Images that may be whole, in order.
    pub images: Vec<Lsn>,
    /// A segment number that was never seen.
    pub next_segment: u64,
}

/// Reads a directory. The options tell which of the unused segments are of use.
pub(crate) fn recover(
    storage: &mut dyn Storage,
    store: StoreId,
    listing: &Listing,
    options: &Options,
    pin: Arc<()>,
) -> Result<Findings, OpenError> {
    let mut images: Vec<Lsn> = listing
        .files
        .iter()
        .filter_map(|(file, _)| if let FileName::Image(lsn) = file { Some(Lsn(*lsn)) } else { None })
        .collect();
    let (image, bad_images) = newest_image(storage, store, &mut images)?;
    let covers = image.as_ref().map_or(Lsn::ZERO, |image| image.covers);
    let segments = Segments::classify(storage, store, listing)?;
    let mut walk = Walk {
        storage,
        segments: &segments,
        extents: Vec::new(),
        store,
        tail: Tail::default(),
        tail_fault: None,
        cut: None,
        begun: None,
        cuts_damage: options.cuts_damage,
    };
    walk.run(covers)?;
    let Walk { extents, tail, cut, begun, .. } = walk;
    let durable = Lsn(tail.next.0 - 1);
    if durable < covers {
        return Err(missing(storage, durable.plus(1), covers));
    }
    let segment_bytes = options.segment_bytes;
    let mut waste: Vec<FileName> = segments.damaged.iter().map(|id| FileName::Segment(*id)).collect();
    let is_ready = |&&(id, bytes): &&(u64, u64)| id > tail.segment && bytes == segment_bytes && Some(id) != begun;
    let (ready, useless): (Vec<_>, Vec<_>) = segments.unused.iter().partition(is_ready);
    waste.extend(useless.iter().map(|(id, _)| FileName::Segment(*id)));
    let hollow = extents.iter().rev().take_while(|extent| extent.end <= BLOCK_BYTES).count();
    Ok(Findings {
        recovered: Recovered { store, image, bad_images, cut, durable, last_stamp: tail.stamp, extents, _pin: pin },
        tail,
        used: segments.used.iter().map(|header| (header.origin.segment, header.first)).collect(),
        hollow,
        ready: ready.iter().map(|(id, _)| *id).collect(),
        waste,
        overlong: segments.overlong(listing, segment_bytes / 4),
        images,
        next_segment: segments.greatest + 1,
    })
}

/// Loads the newest image that is whole, and takes all that are not out of `images`: one that is damaged is nothing to fall
/// back to, and segments are let go of by what there is to fall back to.
fn newest_image(
    storage: &mut dyn Storage,
    store: StoreId,
    images: &mut Vec<Lsn>,
) -> Result<(Option<Image>, Vec<BadImage>), OpenError> {
    let (mut newest, mut bad) = (None, Vec::new());
    for place in (0..images.len()).rev() {
        let covers = images[place];
        let name = FileName::Image(covers.0);
        let file = storage.load(name, u64::MAX, Access::Stable).map_err(io_error(storage, "read", name))?;
        match ImageHeader::read(&file) {
            Ok(header) if header.store != store => return Err(other_store(storage, name, header.store, store)),
            Ok(header) if header.covers == covers => newest = newest.or(Some(Image { covers, file })),
            Err(Unreadable::Version(found)) => return Err(newer(storage, name, found)),
            Ok(_) | Err(Unreadable::NotOurs | Unreadable::Damaged) => {
                images.remove(place);
                bad.push(BadImage { file: storage.display(name), covers });
            }
        }
    }
    Ok((newest, bad))
}

/// The segments of a directory by what their first blocks show.
struct Segments {
    /// In use, in order.
    used: Vec<SegmentHeader>,
    /// Made ready, with their lengths, in order.
    unused: Vec<(u64, u64)>,
    /// Neither, in order.
    damaged: Vec<u64>,
    greatest: u64,
}

impl Segments {
    fn classify(storage: &mut dyn Storage, store: StoreId, listing: &Listing) -> Result<Segments, OpenError> {
        let mut segments = Segments { used: Vec::new(), unused: Vec::new(), damaged: Vec::new(), greatest: 0 };
        for (name, bytes) in &listing.files {
            let FileName::Segment(id) = *name else { continue };
            segments.greatest = segments.greatest.max(id);
            let head = storage.head(*name, BLOCK_BYTES).map_err(io_error(storage, "read", *name))?;
            match SegmentHeader::read(&head) {
                FirstBlock::Unused => segments.unused.push((id, *bytes)),
                FirstBlock::Used(header) if header.origin.store != store => {
                    return Err(other_store(storage, *name, header.origin.store, store));
                }
                FirstBlock::Used(header) if header.origin.segment != id => {
                    let reason = ForeignReason::Misnamed { segment: header.origin.segment };
                    return Err(OpenError::Foreign { file: storage.display(*name), reason });
                }
                FirstBlock::Used(header) => segments.used.push(header),
                FirstBlock::Unreadable(Unreadable::Version(found)) => return Err(newer(storage, *name, found)),
                FirstBlock::Unreadable(_) => segments.damaged.push(id),
            }
        }
        Ok(segments)
    }

    /// Segments that another one follows and that waste more than `waste_max`.
    fn overlong(&self, listing: &Listing, waste_max: u64) -> Vec<(u64, u64)> {
        let ends = self.used.windows(2).filter_map(|pair| {
            let (id, end) = (pair[0].origin.segment, u64::from(pair[1].previous_end));
            let of = |(name, _): &&(FileName, u64)| *name == FileName::Segment(id);
            let bytes = listing.files.iter().find(of)?.1;
            (pair[1].previous == id && bytes.saturating_sub(end) > waste_max).then_some((id, end))
        });
        ends.collect()
    }

    /// Whether the segment is there, but without a good first block.
    fn has_no_header(&self, id: u64) -> bool {
        self.damaged.contains(&id) || self.unused.iter().any(|(unused, _)| *unused == id)
    }

    /// The files beyond segment `id` that may have been begun: those whose first block is damaged, and the one that is
    /// the next to be used.
    fn maybe_begun_after(&self, id: u64) -> Vec<u64> {
        let next_unused = self.unused.iter().map(|(unused, _)| *unused).find(|unused| *unused > id);
        self.damaged.iter().copied().filter(|damaged| *damaged > id).chain(next_unused).collect()
    }
}

struct Walk<'a> {
    storage: &'a mut dyn Storage,
    segments: &'a Segments,
    extents: Vec<Extent>,
    store: StoreId,
    tail: Tail,
    /// What is wrong behind the last whole group.
    tail_fault: Option<Fault>,
    cut: Option<Cut>,
    /// A segment whose first write was cut off.
    begun: Option<u64>,
    cuts_damage: bool,
}

impl Walk<'_> {
    /// Goes over all groups that are needed after an image up to `covers`.
    fn run(&mut self, covers: Lsn) -> Result<(), OpenError> {
        self.tail.next = Lsn(1);
        let used = &self.segments.used;
        let Some(start) = used.iter().rposition(|segment| segment.first <= covers.plus(1)) else {
            return self.run_without_start(covers);
        };
        let start = self.before_closing_groups(start, covers);
        self.tail.next = used[start].first;
        self.tail.digest = used[start].digest;
        if used[start].first == Lsn(1) && used[start].digest != Digest::default() {
            return Err(self.corrupt(used[start].origin.segment, 0, Fault::Chain, None));
        }
        for (index, header) in used.iter().enumerate().skip(start) {
            match used.get(index + 1) {
                Some(next) => self.sealed(header, next)?,
                None => self.last(header)?,
            }
        }
        self.look_behind()
    }

    /// Closing groups hold no record for an image to cover, and their stamps are the last that was said before a segment
    /// whose first group may not be whole. So where such a segment goes on with what comes after the image, reading starts
    /// before it, if what was before is there.
    fn before_closing_groups(&self, mut start: usize, covers: Lsn) -> usize {
        let used = &self.segments.used;
        // Several, if one start after the other came no further.
        while start > 0 && used[start].first == covers.plus(1) && used[start].previous == used[start - 1].origin.segment
        {
            start -= 1;
        }
        start
    }

    fn run_without_start(&mut self, covers: Lsn) -> Result<(), OpenError> {
        let first_used = self.segments.used.first();
        if let Some(damaged) = self.segments.damaged.first()
            && (covers > Lsn::ZERO || first_used.is_some())
        {
            return Err(self.corrupt(*damaged, 0, Fault::SegmentHeader, None));
        }
        match first_used {
            Some(segment) => Err(missing(self.storage, covers.plus(1), Lsn(segment.first.0 - 1))),
            None if covers > Lsn::ZERO => Err(missing(self.storage, covers, covers)),
            None => self.look_behind(),
        }
    }

    /// A segment that another one follows: every byte up to its end was durable.
    fn sealed(&mut self, header: &SegmentHeader, next: &SegmentHeader) -> Result<(), OpenError> {
        let (id, next_id) = (header.origin.segment, next.origin.segment);
        let chain = Fault::SegmentChain { previous: next.previous, previous_end: next.previous_end };
        let end = next.previous_end as usize;
        let follows = Successor { file: self.storage.display(FileName::Segment(next_id)), offset: 0 };
        if next.previous != id && self.segments.has_no_header(next.previous) {
            return Err(self.corrupt(next.previous, 0, Fault::SegmentHeader, Some(follows)));
        }
        if next.previous != id || end < BLOCK_BYTES || !end.is_multiple_of(BLOCK_BYTES) {
            return Err(self.corrupt(next_id, 0, chain, None));
        }
        let bytes = self.load(id, end as u64, Access::Stable)?;
        let (reached, fault) = self.groups(header, &bytes, end);
        if let Some(fault) = fault {
            return Err(self.corrupt(id, reached, fault, Some(follows)));
        }
        if next.first != self.tail.next || next.digest != self.tail.digest {
            return Err(self.corrupt(next_id, 0, chain, None));
        }
        self.extents.push(Extent { bytes, end, origin: header.origin });
        Ok(())
    }

    /// The segment that was being written.
    fn last(&mut self, header: &SegmentHeader) -> Result<(), OpenError> {
        let id = header.origin.segment;
        let name = FileName::Segment(id);
        // What a killed process wrote may be in the page cache alone. It is made durable before it is believed, or a
        // power cut could take back what was replayed and acted upon.
        self.storage.sync(name).map_err(io_error(self.storage, "sync", name))?;
        let bytes = self.load(id, u64::MAX, Access::Live)?;
        let (reached, fault) = self.groups(header, &bytes, bytes.len());
        let end = reached as usize;
        self.tail_fault = fault;
        if let Some(fault) = fault {
            if !self.cuts_damage
                && let Some(offset) = find_group(&bytes, end + BLOCK_BYTES, header.origin)
            {
                let successor = Successor { file: self.storage.display(name), offset: offset as u64 };
                return Err(self.corrupt(id, reached, fault, Some(successor)));
            }
            if was_begun(&bytes[end..], header.origin) {
                let records = GroupHeader::read(&bytes, end, header.origin).map_or(0, |header| header.records);
                self.cut = Some(Cut { file: self.storage.display(name), offset: reached, records, fault });
            }
        }
        self.extents.push(Extent { bytes, end, origin: header.origin });
        Ok(())
    }

    /// Checks groups up to `end`; says how far they are whole, and what is wrong there if that is not the end.
    fn groups(&mut self, header: &SegmentHeader, bytes: &[u8], end: usize) -> (u64, Option<Fault>) {
        let mut offset = BLOCK_BYTES;
        let mut fault = None;
        while offset < end && fault.is_none() {
            match GroupHeader::check(bytes, offset, end, header.origin, self.tail.next, self.tail.digest) {
                Ok(group) => {
                    offset += group.padded_bytes();
                    self.tail.next = group.next();
                    self.tail.digest = group.digest;
                    self.tail.stamp = Some(group.stamp);
                }
                Err(found) => fault = Some(found),
            }
        }
        self.tail.segment = header.origin.segment;
        self.tail.end = u32::try_from(offset).expect("a segment within its limit");
        (offset as u64, fault)
    }

    /// Looks into the files that may have been written after what was found.
    fn look_behind(&mut self) -> Result<(), OpenError> {
        let files = self.segments.maybe_begun_after(self.tail.segment);
        files.into_iter().try_for_each(|id| self.look_into(id))
    }

    /// A segment without a good first block. Its first write brings that block and one group, and began only when everything
    /// before was durable: so that group must follow what was found, and a second one proves that the first block was good
    /// once.
    fn look_into(&mut self, id: u64) -> Result<(), OpenError> {
        let name = FileName::Segment(id);
        let bytes = self.load(id, u64::MAX, Access::Live)?;
        let group_at = |at: usize| GroupHeader::read_any_salt(&bytes, at, self.store, id);
        let second = (2 * BLOCK_BYTES..bytes.len()).step_by(BLOCK_BYTES).find(|at| group_at(*at).is_some());
        if let Some(offset) = second {
            let successor = Successor { file: self.storage.display(name), offset: offset as u64 };
            return Err(self.corrupt(id, 0, Fault::SegmentHeader, Some(successor)));
        }
        let first = group_at(BLOCK_BYTES);
        if first.is_some_and(|group| group.first != self.tail.next || group.previous != self.tail.digest) {
            let successor = Successor { file: self.storage.display(name), offset: BLOCK_BYTES as u64 };
            let fault = self.tail_fault.unwrap_or(Fault::EndOfFile);
            return Err(self.corrupt(self.tail.segment, u64::from(self.tail.end), fault, Some(successor)));
        }
        if first.is_some() || self.segments.damaged.contains(&id) {
            let file = self.storage.display(name);
            let records = first.map_or(0, |group| group.records);
            self.cut = Some(Cut { file, offset: 0, records, fault: Fault::SegmentHeader });
            self.begun = Some(id);
        }
        Ok(())
    }

    fn load(&mut self, id: u64, bytes_max: u64, access: Access) -> Result<FileBytes, OpenError> {
        let name = FileName::Segment(id);
        self.storage.load(name, bytes_max, access).map_err(io_error(self.storage, "read", name))
    }

    fn corrupt(&self, segment: u64, offset: u64, fault: Fault, successor: Option<Successor>) -> OpenError {
        OpenError::Corrupt { file: self.storage.display(FileName::Segment(segment)), offset, fault, successor }
    }
}

/// Whether a write of this use of the segment left traces at the front of `bytes`.
fn was_begun(bytes: &[u8], origin: Origin) -> bool {
    bytes.len() >= BLOCK_BYTES && GroupHeader::has_magic(bytes) && u64_at(bytes, 40) == origin.salt
}

fn missing(storage: &dyn Storage, first: Lsn, last: Lsn) -> OpenError {
    OpenError::Missing { directory: storage.directory(), first, last }
}
