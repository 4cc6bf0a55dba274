//! The log: records into groups, groups onto the medium, one after the other.
//!
//! ```text
//!  append ──▶ open group ──submit──▶ in flight ──poll──▶ durable group ──▶ the caller publishes and replies
//!             (a buffer)             (the other one, owned by the storage)
//! ```
//! One group is in flight while the next fills, so load makes groups grow by itself and no timer is needed: submit at
//! the end of every turn, and again after every durable group.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::error::{AppendError, ImageFailed, OpenError, Poisoned, SaveError, SubmitError};
use crate::field::BLOCK_BYTES;
use crate::file_name::FileName;
use crate::group::{Digest, Group, GroupHeader, Stamp, padded_group_bytes};
use crate::identity::StoreId;
use crate::image::ImageHeader;
use crate::lsn::Lsn;
use crate::open_group::{OpenGroup, payload_in};
use crate::options::Options;
use crate::ownership::identify;
use crate::recovered::Recovered;
use crate::recovery::{Findings, recover};
use crate::segment::Origin;
use crate::segments::{Place, Segments};
use crate::storage::{Buffer, Content, Finished, Job, SegmentWrite, Storage, Wait, is_out_of_space};

/// A log in one data directory.
///
/// Nothing in it blocks but [`Log::open`] and [`Log::wait`]. Dropping it waits for the write in flight and no more;
/// what is in the open group is lost, as in a crash.
pub struct Log<S: Storage> {
    storage: S,
    options: Options,
    store: StoreId,
    segments: Segments,
    open: OpenGroup,
    other: Other,
    durable: Lsn,
    /// Digest of the last group written.
    digest: Digest,
    /// Stamp of the last group written.
    stamp: Option<Stamp>,
    /// The last durable group holds records, so nothing proves yet that it was whole.
    wants_closing: bool,
    images: VecDeque<Lsn>,
    /// Those that were found damaged. They go when there are enough that are whole.
    bad_images: Vec<Lsn>,
    saving: Option<Lsn>,
    saved: Option<Result<Lsn, ImageFailed>>,
    poisoned: Option<Poisoned>,
    stats: Stats,
}

/// What the second buffer is for.
enum Other {
    /// It holds the last durable group, if there was one.
    Durable(Buffer, Option<GroupHeader>),
    /// The storage has it.
    InFlight(GroupHeader),
    /// The write failed.
    Lost,
}

/// A group whose write has begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Submitted {
    /// Its first record.
    pub first: Lsn,
    /// Its last record; the one before `first` if it has none.
    pub last: Lsn,
    /// Bytes that go to the medium.
    pub bytes: u64,
}

/// Counters since the log was opened, and what stands now.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Stats {
    /// Durable groups with records.
    pub groups: u64,
    /// Durable groups without.
    pub closing_groups: u64,
    /// Durable records.
    pub records: u64,
    /// Their bytes, kinds and lengths included.
    pub payload_bytes: u64,
    /// Bytes written to segments: payload, headers and padding.
    pub written_bytes: u64,
    /// Segments in use.
    pub segments_used: usize,
    /// Segments ready for use.
    pub segments_ready: usize,
    /// A further segment cannot be made at the moment.
    pub segment_shortage: bool,
    /// Images saved.
    pub images_saved: u64,
    /// Files that could not be removed or cut.
    pub untidy_files: u64,
}

impl<S: Storage> Log<S> {
    /// Opens the log in a directory, or makes it in an empty one, and reads what it remembers.
    ///
    /// # Errors
    /// If the directory is taken, foreign, newer, damaged or unreadable. See [`OpenError`].
    pub fn open(mut storage: S, options: Options) -> Result<(Log<S>, Recovered), OpenError> {
        options.check()?;
        let (store, listing) = identify(&mut storage, options.store, options.created_ms)?;
        let pin = Arc::new(());
        let findings = recover(&mut storage, store, &listing, &options, Arc::clone(&pin))?;
        let Findings { recovered, tail, used, hollow, ready, waste, overlong, images, next_segment } = findings;
        for file in waste {
            storage.start(Job::Remove(file));
        }
        for (segment, end) in overlong {
            storage.start(Job::Seal { segment, bytes: Some(end) });
        }
        let buffers = storage.open_writer(2, options.buffer_bytes());
        let [open, other]: [Buffer; 2] = buffers
            .and_then(|buffers| buffers.try_into().map_err(|_| std::io::ErrorKind::OutOfMemory.into()))
            .map_err(|source| OpenError::Io { action: "open the writer of", file: storage.directory(), source })?;
        let segments = Segments::new(options.segment_bytes, options.segments_ahead, &tail, pin);
        let durable = recovered.durable;
        let mut log = Log {
            segments: segments.with_found(used, hollow, ready, next_segment),
            storage,
            options,
            store,
            open: OpenGroup::new(open, durable.plus(1)),
            other: Other::Durable(other, None),
            durable,
            digest: tail.digest,
            stamp: tail.stamp,
            wants_closing: false,
            images: images.into(),
            bad_images: recovered.bad_images.iter().map(|bad| bad.covers).collect(),
            saving: None,
            saved: None,
            poisoned: None,
            stats: Stats::default(),
        };
        log.cover();
        log.segments.top_up(&mut log.storage);
        let lacks_segment = |log: &Log<S>| !log.segments.has_place(0) && log.segments.shortage().is_none();
        while lacks_segment(&log) && log.take_finished(Wait::Yes) {
            log.segments.top_up(&mut log.storage);
        }
        Ok((log, recovered))
    }

    /// Takes a record into the open group and says its number. It is in memory and no more.
    ///
    /// # Errors
    /// If there is no room for it in the group or on the medium, or it is too large; nothing was taken then.
    pub fn append(&mut self, kind: u8, payload: &[u8]) -> Result<Lsn, AppendError> {
        self.check_poison()?;
        let bytes_max = self.options.record_bytes_max();
        if payload.len() > bytes_max {
            return Err(AppendError::TooLarge { bytes: payload.len(), bytes_max });
        }
        let after = self.open.bytes_with(payload);
        let bytes_max = self.options.group_payload_bytes_max();
        if self.open.records() > 0 && after > bytes_max {
            return Err(AppendError::Full { bytes: self.open.payload_bytes(), bytes_max });
        }
        self.segments.check_room(padded_group_bytes(after) as u64).map_err(|error| {
            if is_out_of_space(&error) { AppendError::DiskFull(error) } else { AppendError::NoSegment(error) }
        })?;
        self.open.push(kind, payload);
        Ok(self.appended())
    }

    /// Starts to write the open group. `None` if it is empty, another one is in flight, or no segment is ready for it;
    /// in the last two cases [`Log::wake_fd`] says when to try again.
    ///
    /// # Errors
    /// If the token is older than the log's, or the log is poisoned.
    pub fn submit(&mut self, stamp: &Stamp) -> Result<Option<Submitted>, SubmitError> {
        self.check_poison()?;
        if self.open.records() == 0 { Ok(None) } else { self.start_group(stamp) }
    }

    /// Starts to write an empty group behind the last durable one, so that this one has a successor and a damage to it
    /// would be noticed. For when the log is idle, and before it is closed. `None` if there is no need or something is
    /// in flight or open.
    ///
    /// # Errors
    /// As [`Log::submit`].
    pub fn close_group(&mut self, stamp: &Stamp) -> Result<Option<Submitted>, SubmitError> {
        self.check_poison()?;
        if self.open.records() == 0 && self.wants_closing { self.start_group(stamp) } else { Ok(None) }
    }

    /// The group that became durable, once for each: publish from its records, then reply. It stays readable until the
    /// next submit. `None` if none did. Never blocks.
    ///
    /// # Errors
    /// If the write or its sync failed, from then on always.
    pub fn poll(&mut self) -> Result<Option<Group<'_>>, Poisoned> {
        self.step(Wait::No)
    }

    /// As [`Log::poll`], but waits for the group in flight. If none is in flight because no segment is ready, it waits
    /// for news of one and returns `None`: submit again.
    ///
    /// # Errors
    /// As [`Log::poll`].
    pub fn wait(&mut self) -> Result<Option<Group<'_>>, Poisoned> {
        self.step(Wait::Yes)
    }

    /// Readable when [`Log::poll`] or [`Log::image_saved`] have something new, for edge-triggered pollers. `None` if
    /// the storage always has its results at once: then poll after each submit.
    ///
    /// A poller on this thread may be interrupted (`EINTR`) when the kernel finishes a write: look here then too.
    pub fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.storage.wake_fd()
    }

    /// Has the state up to and with record `covers` saved, in the background. `content` writes it, from a view that
    /// nobody changes. When it is saved, images beyond those kept are removed and segments that none needs are recycled.
    ///
    /// # Errors
    /// If another image is being written, or `covers` is not durable, or there is such an image.
    pub fn save_image(&mut self, covers: Lsn, content: Content) -> Result<(), SaveError> {
        self.check_poison()?;
        if self.saving.is_some() {
            return Err(SaveError::Busy);
        }
        if covers > self.durable {
            return Err(SaveError::NotDurable { covers, durable: self.durable });
        }
        if let Some(newest) = self.images.back().copied().filter(|newest| *newest >= covers) {
            return Err(SaveError::NotNewer { newest });
        }
        let header = self.image_header(covers);
        let file = FileName::Image(covers.0);
        self.saving = Some(covers);
        self.storage.start(Job::Save { file, content: Box::new(move |out| header.write(out, content)) });
        Ok(())
    }

    /// Writes the state up to the last durable record to `out`, byte for byte as an image file; `content` writes the state.
    ///
    /// # Errors
    /// What `out` or `content` say.
    pub fn write_image(
        &self,
        out: &mut dyn io::Write,
        content: impl FnOnce(&mut dyn io::Write) -> io::Result<()>,
    ) -> io::Result<()> {
        self.image_header(self.durable).write(out, content)
    }

    fn image_header(&self, covers: Lsn) -> ImageHeader {
        let stamp = self.stamp.unwrap_or_default();
        ImageHeader { store: self.store, covers, token: stamp.token, created_ms: stamp.commit_time_ms }
    }

    /// The storage that the log lives in.
    pub fn storage(&self) -> &S {
        &self.storage
    }

    /// How the last image went, once for each. Never blocks.
    pub fn image_saved(&mut self) -> Option<Result<Lsn, ImageFailed>> {
        self.house_keep(Wait::No);
        self.saved.take()
    }

    /// The store.
    pub fn store(&self) -> StoreId {
        self.store
    }

    /// The last record appended.
    pub fn appended(&self) -> Lsn {
        self.open.last()
    }

    /// The last record that is durable.
    pub fn durable(&self) -> Lsn {
        self.durable
    }

    /// Records in the open group.
    pub fn open_len(&self) -> u32 {
        self.open.records()
    }

    /// Bytes of the records in the open group.
    pub fn open_bytes(&self) -> usize {
        self.open.payload_bytes()
    }

    /// Whether a group is in flight.
    pub fn is_in_flight(&self) -> bool {
        matches!(self.other, Other::InFlight(_))
    }

    /// Whether a closing group is due when nothing else comes.
    pub fn wants_closing(&self) -> bool {
        self.wants_closing
    }

    /// Digest of the last durable group, and by it of the whole log.
    pub fn digest(&self) -> Digest {
        match self.other {
            Other::InFlight(header) => header.previous,
            _ => self.digest,
        }
    }

    /// Whether durable records outlive the process and a power cut: not in memory, and not on lossy storage.
    pub fn is_durable(&self) -> bool {
        self.storage.is_durable()
    }

    /// Which way groups are written, and why that one: for the operator.
    pub fn write_path(&self) -> String {
        self.storage.write_path()
    }

    /// Why no further segment can be made at the moment, if that is so. There is room yet: the segments that are ready, 128
    /// MiB by default. Who takes on nothing new from here on never meets [`AppendError::DiskFull`] with what it has taken
    /// on, and finds room to start again.
    pub fn shortage(&self) -> Option<&std::io::Error> {
        self.segments.shortage().map(AsRef::as_ref)
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        let (segments_used, segments_ready) = self.segments.counts();
        let segment_shortage = self.segments.shortage().is_some();
        Stats { segments_used, segments_ready, segment_shortage, ..self.stats.clone() }
    }

    fn check_poison(&self) -> Result<(), Poisoned> {
        self.poisoned.clone().map_or(Ok(()), Err)
    }

    fn start_group(&mut self, stamp: &Stamp) -> Result<Option<Submitted>, SubmitError> {
        if let Some(newest) = self.stamp.map(|stamp| stamp.token).filter(|newest| *newest > stamp.token) {
            return Err(SubmitError::OldToken { token: stamp.token, newest });
        }
        if self.is_in_flight() {
            return Ok(None);
        }
        self.house_keep(Wait::No);
        let padded = padded_group_bytes(self.open.payload_bytes());
        let Some(place) = self.segments.place(padded as u64, self.open.first(), &mut self.storage) else {
            return Ok(None);
        };
        Ok(Some(self.write_open(&place, stamp)))
    }

    /// Closes the open group, hands it to the storage, and opens the other buffer.
    fn write_open(&mut self, place: &Place, stamp: &Stamp) -> Submitted {
        let Other::Durable(next_buffer, _) = std::mem::replace(&mut self.other, Other::Lost) else {
            unreachable!("nothing in flight was checked, and a lost buffer poisons");
        };
        let origin = Origin { store: self.store, segment: place.segment, salt: place.salt };
        let (header, range) = self.open.seal(origin, place, stamp, self.digest);
        let offset = if range.start == 0 { 0 } else { place.offset };
        let buffer = self.open.hand_over(next_buffer);
        let bytes = range.len() as u64;
        self.storage.write(SegmentWrite { segment: place.segment, offset, buffer, range });
        self.other = Other::InFlight(header);
        self.digest = header.digest;
        self.stamp = Some(*stamp);
        self.stats.written_bytes += bytes;
        Submitted { first: header.first, last: header.last(), bytes }
    }

    fn step(&mut self, wait: Wait) -> Result<Option<Group<'_>>, Poisoned> {
        self.check_poison()?;
        let Some(written) = self.look(wait) else { return Ok(None) };
        let Other::InFlight(header) = std::mem::replace(&mut self.other, Other::Lost) else {
            unreachable!("a write ended that was not in flight");
        };
        match written {
            Ok(buffer) => {
                self.other = Other::Durable(buffer, Some(header));
                self.on_durable(&header);
                Ok(self.durable_group())
            }
            Err(error) => {
                let offset = u64::from(header.block) * BLOCK_BYTES as u64;
                let poisoned = Poisoned { segment: header.segment, offset, error: Arc::new(error) };
                self.poisoned = Some(poisoned.clone());
                Err(poisoned)
            }
        }
    }

    /// Takes all news of the storage; hands on that of the write.
    fn look(&mut self, wait: Wait) -> Option<std::io::Result<Buffer>> {
        let in_flight = self.is_in_flight();
        let padded = padded_group_bytes(self.open.payload_bytes()) as u64;
        let lacks_segment = !in_flight && self.open.records() > 0 && !self.segments.has_place(padded);
        let mut written = if in_flight { self.storage.written(wait) } else { None };
        let is_news = self.house_keep(if lacks_segment { wait } else { Wait::No });
        // While a write is in flight and nothing is new, nothing is cleared: that spares a system call per turn.
        if is_news || written.is_some() || !in_flight {
            self.storage.clear_wake();
            // What came between the look and the clearing has lost its signal.
            if in_flight && written.is_none() {
                written = self.storage.written(Wait::No);
            }
            self.house_keep(Wait::No);
        }
        written
    }

    fn on_durable(&mut self, header: &GroupHeader) {
        assert!(header.last() >= self.durable, "durable went from {} back to {}", self.durable, header.last());
        self.durable = header.last();
        self.assert_order();
        self.wants_closing = header.records > 0;
        if header.records > 0 {
            self.stats.groups += 1;
            self.stats.records += u64::from(header.records);
            self.stats.payload_bytes += u64::from(header.payload_bytes);
        } else {
            self.stats.closing_groups += 1;
        }
        self.segments.on_durable(&mut self.storage);
    }

    fn assert_order(&self) {
        let (durable, appended) = (self.durable, self.appended());
        assert!(durable <= appended, "durable {durable} passed appended {appended}");
    }

    /// The last durable group of this process, until the next submit.
    pub fn durable_group(&self) -> Option<Group<'_>> {
        let Other::Durable(buffer, Some(header)) = &self.other else { return None };
        Some(Group::new(*header, payload_in(buffer, header), Lsn::ZERO))
    }

    /// Takes what the background has finished and starts what is due; says whether there was anything.
    fn house_keep(&mut self, wait: Wait) -> bool {
        let any = self.take_finished(wait);
        if any {
            while self.take_finished(Wait::No) {}
        }
        self.segments.top_up(&mut self.storage);
        any
    }

    fn take_finished(&mut self, wait: Wait) -> bool {
        let Some(finished) = self.storage.finished(wait) else { return false };
        match finished {
            Finished::Prepared { segment, result } => self.segments.on_prepared(segment, result, &mut self.storage),
            Finished::Saved { file: _, result } => self.on_saved(result),
            Finished::Untidy { .. } => self.stats.untidy_files += 1,
        }
        true
    }

    fn on_saved(&mut self, result: std::io::Result<u64>) {
        let covers = self.saving.take().expect("an image that was asked for");
        self.saved = Some(match result {
            Ok(_) => Ok(covers),
            Err(source) => Err(ImageFailed { covers, source }),
        });
        if matches!(self.saved, Some(Err(_))) {
            return;
        }
        self.stats.images_saved += 1;
        self.images.push_back(covers);
        while self.images.len() > self.options.images_kept {
            let oldest = self.images.pop_front().expect("more images than are kept");
            self.storage.start(Job::Remove(FileName::Image(oldest.0)));
        }
        // One of the same name was written over.
        self.bad_images.retain(|bad| *bad != covers);
        if self.images.len() == self.options.images_kept {
            for bad in self.bad_images.drain(..) {
                self.storage.start(Job::Remove(FileName::Image(bad.0)));
            }
        }
        self.cover();
    }

    /// While there are fewer images than are to be kept, all of the log is: a damaged image has it to fall back to.
    fn cover(&mut self) {
        if let Some(oldest) = self.images.len().checked_sub(self.options.images_kept) {
            self.segments.cover(self.images[oldest]);
        }
    }
}
