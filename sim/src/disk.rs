//! A disk in virtual time: writes take time, stall, tear and fail; room runs out; a crash keeps what was synced.
//!
//! Files hold what is on the medium. A write under way is beside them until its time has come, and a crash lets any
//! subset of its sectors through; a killed process's write is done all the same, at its time or when somebody syncs the file. Background jobs are whole or not at all, in their order, but for one: a recycled
//! segment is zeroed at its front before it gets its new name.

mod storage;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use seriatim_wal::{BLOCK_BYTES, FileName, Finished, Job, SegmentWrite, Source};

pub(crate) use storage::SimStorage;

use crate::clock::SimClock;

/// What is written whole or not at all.
const SECTOR_BYTES: usize = 512;

/// How the disk behaves; the world changes it as it goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manners {
    /// A write takes from the first to the second, in µs.
    pub write_us: (u64, u64),
    /// A background job likewise.
    pub job_us: (u64, u64),
    /// No write that begins before this time ends before it.
    pub stalled_to_us: u64,
    /// The next write fails.
    pub fails_next: bool,
    /// Bytes of all files.
    pub capacity_bytes: u64,
    /// Every run draws the same boot token: a planted bug.
    pub same_boot: bool,
}

/// The disk of a machine; what is left of it after a crash is where the next process begins.
pub(crate) struct Disk {
    clock: SimClock,
    rng: fastrand::Rng,
    pub manners: Manners,
    files: BTreeMap<FileName, Vec<u8>>,
    is_locked: bool,
    writing: Option<Writing>,
    jobs: VecDeque<(u64, Job)>,
    finished: VecDeque<Finished>,
    /// Writes that reached the medium and that nobody has looked at yet, in order.
    landed: Vec<Landed>,
    /// The last write, if nobody was told that it is there: it may be, in part or whole.
    unsure: Option<Landed>,
    /// A write of a process that was killed, and when the system will have done it: nobody waits for it any more.
    orphan: Option<(u64, Landed)>,
    /// A write failed and its process was told.
    pub has_failed: bool,
    /// Numbers drawn by the process that has it: the first is its boot token.
    drawn: u64,
    pub refused_for_room: u64,
    pub recycled: u64,
}

struct Writing {
    write: SegmentWrite,
    done_us: u64,
    fails: bool,
    /// The time has come.
    is_done: bool,
}

impl Writing {
    fn landed(&self) -> Landed {
        let SegmentWrite { segment, offset, buffer, range } = &self.write;
        Landed { segment: *segment, offset: *offset, bytes: buffer[range.clone()].to_vec() }
    }
}

/// A write as it is, or was to be, on the medium.
#[derive(Clone, Debug)]
pub(crate) struct Landed {
    pub segment: u64,
    pub offset: u64,
    pub bytes: Vec<u8>,
}

/// What a crash did to the write under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Torn {
    /// None was under way.
    Idle,
    /// Nothing of it is there.
    Nothing,
    /// Some of it is.
    Part,
    /// All of it is, though nobody was told.
    Whole,
}

impl Disk {
    pub fn new(clock: SimClock, rng: fastrand::Rng, manners: Manners) -> Disk {
        Disk {
            clock,
            rng,
            manners,
            files: BTreeMap::new(),
            is_locked: false,
            writing: None,
            jobs: VecDeque::new(),
            finished: VecDeque::new(),
            landed: Vec::new(),
            unsure: None,
            orphan: None,
            has_failed: false,
            drawn: 0,
            refused_for_room: 0,
            recycled: 0,
        }
    }

    /// Bytes of all files.
    pub fn used_bytes(&self) -> u64 {
        self.files.values().map(|file| file.len() as u64).sum()
    }

    /// A write is under way.
    pub fn is_writing(&self) -> bool {
        self.writing.as_ref().is_some_and(|writing| !writing.is_done)
    }

    /// A write is over and its process does not know.
    pub fn is_written(&self) -> bool {
        self.writing.as_ref().is_some_and(|writing| writing.is_done)
    }

    /// When the next thing happens here, if anything is under way.
    pub fn next_us(&self) -> Option<u64> {
        let write = self.writing.as_ref().filter(|writing| !writing.is_done).map(|writing| writing.done_us);
        let job = self.jobs.front().map(|(done_us, _)| *done_us);
        write.into_iter().chain(job).min()
    }

    /// Lets happen what is due.
    pub fn pass(&mut self) {
        let now = self.clock.now_us();
        if self.orphan.as_ref().is_some_and(|(done_us, _)| *done_us <= now) {
            self.land_orphan(None);
        }
        if let Some(writing) = self.writing.as_mut().filter(|writing| !writing.is_done && writing.done_us <= now) {
            writing.is_done = true;
            let landed = writing.landed();
            if writing.fails {
                self.land_part();
                self.unsure = Some(landed);
            } else {
                self.land(&mut || true);
                self.landed.push(landed);
            }
        }
        while self.jobs.front().is_some_and(|(done_us, _)| *done_us <= now) {
            let (_, job) = self.jobs.pop_front().expect("the front was just looked at");
            let finished = self.perform(job);
            self.finished.extend(finished);
        }
    }

    /// Writes that reached the medium since the last call.
    pub fn take_landed(&mut self) -> Vec<Landed> {
        std::mem::take(&mut self.landed)
    }

    /// The process is gone, and what failed works again. The last write, if nobody was told that it is there.
    pub fn forget_failure(&mut self) -> Option<Landed> {
        self.has_failed = false;
        self.manners.fails_next = false;
        self.unsure.take()
    }

    /// The process is killed and the machine goes on: the write under way will be done, whoever has the disk by then.
    pub fn kill(&mut self) -> bool {
        self.pass();
        self.land_orphan(None);
        if let Some(writing) = self.writing.take_if(|writing| !writing.is_done) {
            self.orphan = Some((writing.done_us, writing.landed()));
            self.unsure = Some(writing.landed());
        }
        self.drop_jobs();
        self.orphan.is_some()
    }

    /// The late write of a killed process is done, if it is to this segment or none is named.
    fn land_orphan(&mut self, segment: Option<u64>) {
        let is_meant = |(_, orphan): &mut (u64, Landed)| segment.is_none_or(|segment| segment == orphan.segment);
        let Some((done_us, Landed { segment, offset, bytes })) = self.orphan.take_if(is_meant) else { return };
        self.clock.pass_to(done_us);
        let file = self.files.get_mut(&FileName::Segment(segment));
        if let Some(place) = file.and_then(|file| file.get_mut(offset as usize..)?.get_mut(..bytes.len())) {
            place.copy_from_slice(&bytes);
        }
    }

    /// Jobs are done up to some place.
    fn drop_jobs(&mut self) {
        let done = self.rng.usize(..=self.jobs.len());
        for (_, job) in std::mem::take(&mut self.jobs).into_iter().take(done) {
            self.perform(job);
        }
        self.finished.clear();
        self.has_failed = false;
    }

    /// The machine stops. The write under way is there in any of its parts; jobs are done up to some place.
    pub fn crash(&mut self) -> Torn {
        self.pass();
        // Of a killed process's write the first sectors are there, or all.
        if let Some((_, orphan)) = &mut self.orphan {
            let sectors = orphan.bytes.len() / SECTOR_BYTES;
            orphan.bytes.truncate(self.rng.usize(..=sectors) * SECTOR_BYTES);
            self.land_orphan(None);
        }
        let torn = self.tear();
        self.drop_jobs();
        torn
    }

    fn tear(&mut self) -> Torn {
        if self.writing.as_ref().is_none_or(|writing| writing.is_done) {
            self.writing = None;
            return Torn::Idle;
        }
        self.unsure = self.writing.as_ref().map(Writing::landed);
        let torn = match self.rng.u8(..4) {
            0 => Torn::Nothing,
            1 => {
                self.land(&mut || true);
                Torn::Whole
            }
            _ => {
                self.land_part();
                Torn::Part
            }
        };
        self.writing = None;
        torn
    }

    /// Some sectors of the write under way reach the medium: a front part, or any.
    fn land_part(&mut self) {
        let mut dice = self.rng.fork();
        if dice.bool() {
            let sectors = self.writing.as_ref().map_or(1, |writing| writing.write.range.len() / SECTOR_BYTES);
            let mut front = 0..dice.usize(..=sectors);
            self.land(&mut || front.next().is_some());
        } else {
            let share = dice.u8(..);
            self.land(&mut || dice.u8(..) <= share);
        }
    }

    /// The sectors of the write under way that `keep` keeps reach the medium.
    fn land(&mut self, keep: &mut dyn FnMut() -> bool) {
        let Some(Writing { write, .. }) = &self.writing else { return };
        let bytes = &write.buffer[write.range.clone()];
        let Some(file) = self.files.get_mut(&FileName::Segment(write.segment)) else { return };
        let place = &mut file[write.offset as usize..][..bytes.len()];
        for (target, sector) in place.chunks_mut(SECTOR_BYTES).zip(bytes.chunks(SECTOR_BYTES)) {
            if keep() {
                target.copy_from_slice(sector);
            }
        }
    }

    /// Flips one bit of a file.
    pub fn flip(&mut self, file: FileName, offset: u64, bit: u8) -> bool {
        let Some(file) = self.files.get_mut(&file) else { return false };
        let Some(byte) = file.get_mut(offset as usize) else { return false };
        *byte ^= 1 << (bit % 8);
        true
    }

    /// Whether what landed is still there, untouched.
    pub fn holds(&self, landed: &Landed) -> bool {
        let file = self.files.get(&FileName::Segment(landed.segment));
        let place = file.and_then(|file| file.get(landed.offset as usize..)?.get(..landed.bytes.len()));
        place.is_some_and(|place| place == landed.bytes)
    }

    /// The images, oldest first, with their lengths.
    pub fn images(&self) -> impl DoubleEndedIterator<Item = (FileName, usize)> {
        let images = self.files.iter().filter(|(file, _)| matches!(file, FileName::Image(_)));
        images.map(|(file, content)| (*file, content.len()))
    }

    fn put(&mut self, file: FileName, content: Vec<u8>) -> io::Result<()> {
        let before = self.files.get(&file).map_or(0, |file| file.len() as u64);
        if self.used_bytes() - before + content.len() as u64 > self.manners.capacity_bytes {
            self.refused_for_room += 1;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.files.insert(file, content);
        Ok(())
    }

    fn perform(&mut self, job: Job) -> Option<Finished> {
        match job {
            Job::Prepare { segment, bytes, source, again: _ } => {
                let result = self.prepare(segment, bytes as usize, source);
                Some(Finished::Prepared { segment, result })
            }
            Job::Seal { segment, bytes } => {
                // A file system waits for direct writes before it shortens a file.
                self.land_orphan(Some(segment));
                if let (Some(bytes), Some(file)) = (bytes, self.files.get_mut(&FileName::Segment(segment))) {
                    file.truncate(bytes as usize);
                }
                None
            }
            Job::Remove(file) => {
                self.files.remove(&file);
                None
            }
            Job::Save { file, content } => {
                let mut bytes = Vec::new();
                let result = content(&mut bytes).and_then(|()| {
                    let length = bytes.len() as u64;
                    self.put(file, bytes).map(|()| length)
                });
                Some(Finished::Saved { file, result })
            }
        }
    }

    fn prepare(&mut self, segment: u64, bytes: usize, source: Source) -> io::Result<()> {
        let target = FileName::Segment(segment);
        match source {
            Source::New => self.put(target, vec![0; bytes]),
            Source::Recycle(old) => {
                self.land_orphan(Some(old));
                self.recycled += 1;
                let mut content = self.files.remove(&FileName::Segment(old)).ok_or(io::ErrorKind::NotFound)?;
                content.resize(bytes, 0);
                content[..BLOCK_BYTES].fill(0);
                self.put(target, content)
            }
            Source::Existing => {
                self.land_orphan(Some(segment));
                let found = self.files.get(&target).ok_or(io::ErrorKind::NotFound)?;
                let is_unused = found.len() == bytes && found[..BLOCK_BYTES].iter().all(|byte| *byte == 0);
                if is_unused { Ok(()) } else { Err(io::ErrorKind::InvalidData.into()) }
            }
        }
    }
}

/// The disk. Nobody else ever holds it: there is one thread.
pub(crate) fn lock(disk: &Mutex<Disk>) -> MutexGuard<'_, Disk> {
    disk.lock().unwrap_or_else(PoisonError::into_inner)
}
