//! Which segment is written, which are ready, and which are needed no more.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use crate::field::BLOCK_BYTES;
use crate::file_name::FileName;
use crate::lsn::Lsn;
use crate::recovery::Tail;
use crate::storage::{Job, Source, Storage};

/// Where a group goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub segment: u64,
    pub salt: u64,
    /// Of the group, not of the write.
    pub offset: u64,
    /// Set if this is the segment's first group, whose write brings the segment's first block: the segment before and
    /// its end.
    pub continues: Option<(u64, u32)>,
}

/// All segments of a directory.
///
/// A segment is existing → ready → active → used → spare → ready …, each under a new number; or it is removed.
pub(crate) struct Segments {
    bytes: u64,
    ahead: usize,
    active: Option<Active>,
    /// In use with their first records, in order; the active one is the last.
    used: VecDeque<(u64, Lsn)>,
    ready: VecDeque<u64>,
    /// Made ready by an earlier process.
    existing: VecDeque<u64>,
    /// Needed no more.
    spare: VecDeque<u64>,
    preparing: Option<Preparing>,
    /// The number of an attempt that failed, for the next one.
    failed: Option<u64>,
    shortage: Option<Arc<io::Error>>,
    next_id: u64,
    /// The last segment of the process before and its end, until a group follows it durably.
    before: Option<(u64, u32)>,
    /// How many of the last segments in use hold no durable group. They may be gone after a crash, first block and all, and
    /// the one before them is where the log ends.
    hollow: usize,
    /// Up to here images make the log needless.
    covered: Lsn,
    /// Somebody else looks at files of the log while this is shared.
    pin: Arc<()>,
}

#[derive(Clone, Copy)]
struct Active {
    id: u64,
    salt: u64,
    /// Where the next group goes.
    end: u64,
}

#[derive(Clone, Copy)]
struct Preparing {
    id: u64,
    source: Source,
}

impl Segments {
    pub(crate) fn new(bytes: u64, ahead: usize, tail: &Tail, pin: Arc<()>) -> Segments {
        Segments {
            bytes,
            ahead,
            active: None,
            used: VecDeque::new(),
            ready: VecDeque::new(),
            existing: VecDeque::new(),
            spare: VecDeque::new(),
            preparing: None,
            failed: None,
            shortage: None,
            next_id: 1,
            before: (tail.segment > 0).then_some((tail.segment, tail.end)),
            hollow: 0,
            covered: Lsn::ZERO,
            pin,
        }
    }

    /// What recovery found: segments in use, of which the last so many hold no whole group, unused ones, each in order, and a
    /// number never seen.
    pub(crate) fn with_found(
        mut self,
        used: Vec<(u64, Lsn)>,
        hollow: usize,
        existing: Vec<u64>,
        next_id: u64,
    ) -> Segments {
        self.used = used.into();
        self.hollow = hollow;
        self.existing = existing.into();
        self.next_id = next_id;
        self
    }

    /// Room for a group of `padded` bytes that begins with record `first`; `None` if no segment is ready for it.
    pub(crate) fn place(&mut self, padded: u64, first: Lsn, storage: &mut dyn Storage) -> Option<Place> {
        assert!(BLOCK_BYTES as u64 + padded <= self.bytes, "a group of {padded} bytes fits no segment");
        if !self.fits_active(padded) {
            return self.roll(padded, first, storage);
        }
        let active = self.active.as_mut()?;
        let place = Place { segment: active.id, salt: active.salt, offset: active.end, continues: None };
        active.end += padded;
        Some(place)
    }

    fn roll(&mut self, padded: u64, first: Lsn, storage: &mut dyn Storage) -> Option<Place> {
        let id = self.ready.pop_front()?;
        let sealed = self.active.take();
        if let Some(sealed) = sealed {
            storage.start(Job::Seal { segment: sealed.id, bytes: None });
        }
        let sealed = sealed.map(|active| (active.id, u32::try_from(active.end).expect("a segment within its limit")));
        let continues = sealed.or(self.before).unwrap_or((0, 0));
        let offset = BLOCK_BYTES as u64;
        let salt = storage.random();
        self.active = Some(Active { id, salt, end: offset + padded });
        self.used.push_back((id, first));
        self.hollow += 1;
        self.top_up(storage);
        Some(Place { segment: id, salt, offset, continues: Some(continues) })
    }

    /// Whether a group of `padded` bytes has a place, or will have one soon as far as is known.
    pub(crate) fn check_room(&self, padded: u64) -> Result<(), Arc<io::Error>> {
        match &self.shortage {
            Some(error) if self.ready.is_empty() && !self.fits_active(padded) => Err(Arc::clone(error)),
            _ => Ok(()),
        }
    }

    /// Whether a group of `padded` bytes can be placed now.
    pub(crate) fn has_place(&self, padded: u64) -> bool {
        !self.ready.is_empty() || self.fits_active(padded)
    }

    fn fits_active(&self, padded: u64) -> bool {
        self.active.as_ref().is_some_and(|active| active.end + padded <= self.bytes)
    }

    /// A group is durable, so what an earlier process left behind its last group is dead and its room may go.
    pub(crate) fn on_durable(&mut self, storage: &mut dyn Storage) {
        self.hollow = 0;
        if let Some((segment, end)) = self.before.take() {
            storage.start(Job::Seal { segment, bytes: Some(u64::from(end)) });
        }
    }

    /// Lets go of what is not needed, and has one segment made ready if there are too few and none is being made.
    pub(crate) fn top_up(&mut self, storage: &mut dyn Storage) {
        self.release(storage);
        if self.preparing.is_some() || self.ready.len() >= self.ahead {
            return;
        }
        let next = |segments: &mut Segments| {
            segments.failed.take().unwrap_or_else(|| {
                segments.next_id += 1;
                segments.next_id - 1
            })
        };
        let (id, source) = if let Some(id) = self.existing.pop_front() {
            (id, Source::Existing)
        } else if !self.is_pinned()
            && let Some(spare) = self.spare.pop_front()
        {
            (next(self), Source::Recycle(spare))
        } else {
            (next(self), Source::New)
        };
        self.preparing = Some(Preparing { id, source });
        storage.start(Job::Prepare { segment: id, bytes: self.bytes, source, again: self.shortage.is_some() });
    }

    /// The attempt to make a segment ready is over. [`Segments::top_up`] starts the next.
    pub(crate) fn on_prepared(&mut self, segment: u64, result: io::Result<()>, storage: &mut dyn Storage) {
        let preparing = self.preparing.take().expect("a segment that was asked for");
        assert_eq!(preparing.id, segment, "the segment that was asked for");
        match result {
            Ok(()) => {
                self.ready.push_back(segment);
                self.shortage = None;
            }
            // A file that was there already is of no use then; the next one is made anew. Removing it gives its room back,
            // should that have been the matter.
            Err(error) => match preparing.source {
                Source::New => {
                    self.failed = Some(segment);
                    self.shortage = Some(Arc::new(error));
                }
                Source::Recycle(old) => {
                    self.failed = Some(segment);
                    storage.start(Job::Remove(FileName::Segment(old)));
                }
                Source::Existing => storage.start(Job::Remove(FileName::Segment(segment))),
            },
        }
    }

    /// Images make the log up to `covered` needless.
    pub(crate) fn cover(&mut self, covered: Lsn) {
        self.covered = self.covered.max(covered);
    }

    /// Lets go of segments that are needed no more, unless somebody still looks at them.
    fn release(&mut self, storage: &mut dyn Storage) {
        let is_needless = |(_, first): &(u64, Lsn)| *first <= self.covered.plus(1);
        while self.used.get(1 + self.hollow).is_some() && self.used.get(1).is_some_and(is_needless) && !self.is_pinned()
        {
            let (id, _) = self.used.pop_front().expect("two segments in use");
            // The one before the first group of this process is still to be cut to its end.
            if self.spare.len() < self.ahead && self.before.is_none_or(|(before, _)| before != id) {
                self.spare.push_back(id);
            } else {
                storage.start(Job::Remove(FileName::Segment(id)));
            }
        }
    }

    fn is_pinned(&self) -> bool {
        Arc::strong_count(&self.pin) > 1
    }

    /// Why no segment can be made ready, if that is so.
    pub(crate) fn shortage(&self) -> Option<&Arc<io::Error>> {
        self.shortage.as_ref()
    }

    /// Segments in use and ready.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.used.len(), self.ready.len())
    }
}
