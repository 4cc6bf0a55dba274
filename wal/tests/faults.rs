//! A medium that is full, and one that is broken.

mod common;

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use common::{Writer, payload, records, small};
use seriatim_wal::{
    Access, AppendError, Buffer, FileBytes, FileName, Finished, Job, Listing, LockError, Lsn, MemoryStorage, OpenError,
    Options, SaveError, SegmentWrite, Stamp, Storage, SubmitError, Wait,
};

/// What goes wrong, and when.
#[derive(Default)]
struct Faults {
    /// Writes until one fails; 0 for never.
    write_fails_at: AtomicU64,
    prepare_fails: AtomicBool,
    save_fails: AtomicBool,
    sync_fails: AtomicBool,
    writes: AtomicU64,
}

/// A storage with faults in front of it.
struct Faulty {
    under: MemoryStorage,
    faults: Arc<Faults>,
    finished: Vec<Finished>,
}

impl Faulty {
    fn boxed(under: &MemoryStorage, faults: &Arc<Faults>) -> Box<dyn Storage> {
        Box::new(Faulty { under: under.clone(), faults: Arc::clone(faults), finished: Vec::new() })
    }
}

impl Storage for Faulty {
    fn lock(&mut self) -> Result<(), LockError> {
        self.under.lock()
    }
    fn display(&self, file: FileName) -> String {
        self.under.display(file)
    }
    fn directory(&self) -> String {
        self.under.directory()
    }
    fn list(&mut self) -> io::Result<Listing> {
        self.under.list()
    }
    fn load(&mut self, file: FileName, bytes_max: u64, access: Access) -> io::Result<FileBytes> {
        self.under.load(file, bytes_max, access)
    }
    fn head(&mut self, file: FileName, bytes: usize) -> io::Result<Vec<u8>> {
        self.under.head(file, bytes)
    }
    fn sync(&mut self, file: FileName) -> io::Result<()> {
        if self.faults.sync_fails.load(Ordering::Relaxed) { Err(broken()) } else { self.under.sync(file) }
    }
    fn create(&mut self, file: FileName, content: &[u8]) -> io::Result<()> {
        self.under.create(file, content)
    }
    fn random(&mut self) -> u64 {
        self.under.random()
    }
    fn open_writer(&mut self, count: usize, bytes: usize) -> io::Result<Vec<Buffer>> {
        self.under.open_writer(count, bytes)
    }
    fn is_durable(&self) -> bool {
        self.under.is_durable()
    }

    fn write_path(&self) -> String {
        self.under.write_path()
    }
    fn write(&mut self, write: SegmentWrite) {
        self.under.write(write);
    }
    fn written(&mut self, wait: Wait) -> Option<io::Result<Buffer>> {
        let written = self.under.written(wait)?;
        let number = self.faults.writes.fetch_add(1, Ordering::Relaxed) + 1;
        Some(if number == self.faults.write_fails_at.load(Ordering::Relaxed) { Err(broken()) } else { written })
    }
    fn start(&mut self, job: Job) {
        match job {
            Job::Prepare { segment, .. } if self.faults.prepare_fails.load(Ordering::Relaxed) => {
                self.finished.push(Finished::Prepared { segment, result: Err(broken()) });
            }
            Job::Save { file, .. } if self.faults.save_fails.load(Ordering::Relaxed) => {
                self.finished.push(Finished::Saved { file, result: Err(io::ErrorKind::StorageFull.into()) });
            }
            job => self.under.start(job),
        }
    }
    fn finished(&mut self, wait: Wait) -> Option<Finished> {
        self.finished.pop().or_else(|| self.under.finished(wait))
    }
    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        self.under.wake_fd()
    }
    fn clear_wake(&mut self) {
        self.under.clear_wake();
    }
}

fn broken() -> io::Error {
    io::Error::from_raw_os_error(5)
}

/// Appends and writes groups of two blocks until the medium has no room; says the answer.
fn fill(writer: &mut Writer) -> AppendError {
    loop {
        if let Err(error) = writer.append(1, &payload(writer.taken.len() as u64, 7000)) {
            return error;
        }
        writer.flush();
    }
}

#[test]
fn a_full_disk_answers_and_passes_when_there_is_room() {
    let storage = MemoryStorage::new();
    storage.set_capacity_bytes(5 * (64 << 10) + 64);
    let (mut writer, _) = Writer::open(Box::new(storage.clone()), small());
    let answer = fill(&mut writer);
    assert!(matches!(answer, AppendError::DiskFull(_)), "{answer}");
    assert!(writer.log.stats().segment_shortage);
    // Five segments of seven groups; the last block of each is too small for another.
    assert_eq!(writer.taken.len(), 35);
    // What fits into the present segment still passes.
    writer.append(2, b"small").unwrap();
    writer.flush();
    let full = writer.append(2, b"small").unwrap_err();
    assert!(matches!(full, AppendError::DiskFull(_)), "{full}");
    storage.set_capacity_bytes(u64::MAX);
    assert_eq!(writer.log.poll().unwrap().map(|group| *group.header()), None);
    writer.append(2, b"room again").unwrap();
    writer.flush();
    assert!(!writer.log.stats().segment_shortage);
    let taken = writer.taken.clone();
    drop(writer);
    drop(Writer::reopen(Box::new(storage), small(), &taken));
}

#[test]
fn an_image_makes_room_on_a_full_disk() {
    let storage = MemoryStorage::new();
    storage.set_capacity_bytes(5 * (64 << 10) + 1024);
    let (mut writer, recovered) = Writer::open(Box::new(storage.clone()), Options { images_kept: 1, ..small() });
    // Whoever still looks at what was recovered keeps segments from being recycled.
    drop(recovered);
    for image in 0..10u8 {
        let answer = fill(&mut writer);
        assert!(matches!(answer, AppendError::DiskFull(_)), "{answer}");
        writer.save_image(vec![image; 100]);
        writer.settle();
    }
    assert!(writer.taken.len() > 10 * 20);
    let taken = writer.taken.clone();
    drop(writer);
    drop(Writer::reopen(Box::new(storage), small(), &taken));
}

/// The segment that an image makes needless is all that says where the log ends, until the first group of the next one is
/// durable: it may not go before.
#[test]
fn a_first_group_that_is_lost_behind_an_image_of_everything_leaves_a_log_that_opens() {
    let options = Options { images_kept: 1, segments_ahead: 1, ..small() };
    let storage = MemoryStorage::new();
    let (mut writer, _) = Writer::open(Box::new(storage.clone()), options.clone());
    writer.append(1, b"a").unwrap();
    writer.flush();
    writer.save_image(b"all of it".to_vec());
    let closed = Stamp { token: 1, sequencer_time_ms: 77, ..Stamp::default() };
    writer.log.close_group(&closed).unwrap().expect("a group to close");
    writer.settle();
    drop(writer);
    for _ in 0..3 {
        let (mut writer, recovered) = Writer::open(Box::new(storage.clone()), options.clone());
        assert_eq!((recovered.image.as_ref().unwrap().covers, recovered.durable), (Lsn(1), Lsn(1)));
        assert_eq!(recovered.last_stamp, Some(closed), "the stamp of a closing group is not lost");
        drop(recovered);
        writer.log.append(1, b"b").unwrap();
        writer.log.submit(&closed).unwrap().expect("a group in flight");
        // Nobody looks for it any more: it is lost, but what the background was asked for is done.
    }
    let (_, recovered) = Writer::open(Box::new(storage), options);
    assert_eq!(recovered.durable, Lsn(1));
}

#[test]
fn a_full_disk_can_be_opened_and_read() {
    let storage = MemoryStorage::new();
    storage.set_capacity_bytes(5 * (64 << 10) + 64);
    let (mut writer, _) = Writer::open(Box::new(storage.clone()), small());
    fill(&mut writer);
    let taken = writer.taken.clone();
    drop(writer);
    storage.set_capacity_bytes(storage.used_bytes());
    let mut writer = Writer::reopen(Box::new(storage.clone()), small(), &taken);
    let answer = writer.append(1, b"x").unwrap_err();
    assert!(matches!(answer, AppendError::DiskFull(_)), "{answer}");
    storage.set_capacity_bytes(u64::MAX);
    writer.log.poll().unwrap();
    writer.append(1, b"x").unwrap();
    writer.flush();
}

#[test]
fn what_fits_the_present_segment_is_written_on_a_full_disk() {
    let storage = MemoryStorage::new();
    storage.set_capacity_bytes(64 + (64 << 10));
    let options = Options { segments_ahead: 1, ..small() };
    let (mut writer, _) = Writer::open(Box::new(storage.clone()), options.clone());
    for number in 0..7 {
        writer.append(1, &payload(number, 7000)).unwrap();
        writer.flush();
    }
    assert!(writer.append(1, &payload(7, 7000)).is_err());
    writer.append(1, b"fits").unwrap();
    let answer = writer.append(1, &payload(8, 7000)).unwrap_err();
    assert!(matches!(answer, AppendError::DiskFull(_)), "{answer}");
    writer.flush();
    let taken = writer.taken.clone();
    drop(writer);
    drop(Writer::reopen(Box::new(storage), options, &taken));
}

#[test]
fn a_segment_that_cannot_be_made_for_another_reason_is_told_apart() {
    let (storage, faults) = (MemoryStorage::new(), Arc::new(Faults::default()));
    let (mut writer, _) = Writer::open(Faulty::boxed(&storage, &faults), small());
    faults.prepare_fails.store(true, Ordering::Relaxed);
    let answer = fill(&mut writer);
    assert!(matches!(answer, AppendError::NoSegment(_)), "{answer}");
    faults.prepare_fails.store(false, Ordering::Relaxed);
    writer.settle();
    writer.settle();
    writer.append(1, b"again").unwrap();
    writer.flush();
}

#[test]
fn a_failed_write_poisons_the_log_for_good() {
    for fails_at in 1..6 {
        let (storage, faults) = (MemoryStorage::new(), Arc::new(Faults::default()));
        faults.write_fails_at.store(fails_at, Ordering::Relaxed);
        let (mut writer, _) = Writer::open(Faulty::boxed(&storage, &faults), small());
        let stamp = writer.stamp();
        let poisoned = loop {
            writer.append(1, b"record").unwrap();
            writer.log.submit(&stamp).unwrap().unwrap();
            match writer.log.poll() {
                Ok(group) => assert!(group.is_some()),
                Err(poisoned) => break poisoned,
            }
        };
        assert_eq!((poisoned.segment, poisoned.offset), (1, fails_at * 4096));
        assert_eq!(poisoned.error.raw_os_error(), Some(5));
        assert!(poisoned.to_string().contains("poisoned"), "{poisoned}");
        let durable = writer.log.durable();
        assert_eq!(durable.0, fails_at - 1);
        // Whatever is asked from now on says so, and nothing is written.
        let writes = faults.writes.load(Ordering::Relaxed);
        for _ in 0..3 {
            assert!(matches!(writer.log.append(1, b"x"), Err(AppendError::Poisoned(_))));
            assert!(matches!(writer.log.submit(&stamp), Err(SubmitError::Poisoned(_))));
            assert!(matches!(writer.log.close_group(&stamp), Err(SubmitError::Poisoned(_))));
            assert!(writer.log.poll().is_err());
            assert!(writer.log.wait().is_err());
            let saved = writer.log.save_image(durable, Box::new(|_| Ok(())));
            assert!(matches!(saved, Err(SaveError::Poisoned(_))));
            assert_eq!(writer.log.durable(), durable);
        }
        assert_eq!(faults.writes.load(Ordering::Relaxed), writes);
        let taken = writer.taken.clone();
        drop(writer);
        // The next process finds what was durable, and perhaps what was not.
        let (_, recovered) = Writer::open(Box::new(storage), small());
        let found = records(&recovered);
        assert!(found.len() >= durable.0 as usize && found[..] == taken[..found.len()]);
    }
}

#[test]
fn a_tail_that_cannot_be_made_durable_is_not_believed() {
    let (storage, faults) = (MemoryStorage::new(), Arc::new(Faults::default()));
    let (mut writer, _) = Writer::open(Faulty::boxed(&storage, &faults), small());
    writer.append(1, b"x").unwrap();
    writer.flush();
    drop(writer);
    faults.sync_fails.store(true, Ordering::Relaxed);
    let refused = seriatim_wal::Log::open(Faulty::boxed(&storage, &faults), small()).err().unwrap();
    assert!(matches!(refused, OpenError::Io { action: "sync", .. }), "{refused}");
}

#[test]
fn an_image_that_cannot_be_saved_leaves_the_one_before_and_the_log() {
    let (storage, faults) = (MemoryStorage::new(), Arc::new(Faults::default()));
    let (mut writer, _) = Writer::open(Faulty::boxed(&storage, &faults), Options { images_kept: 1, ..small() });
    writer.append(1, b"a").unwrap();
    writer.flush();
    writer.save_image(b"first".to_vec());
    writer.append(1, b"b").unwrap();
    writer.flush();
    faults.save_fails.store(true, Ordering::Relaxed);
    let covers = writer.log.durable();
    writer.log.save_image(covers, Box::new(|_| Ok(()))).unwrap();
    let failed = writer.log.image_saved().unwrap().unwrap_err();
    assert_eq!((failed.covers, failed.source.kind()), (covers, io::ErrorKind::StorageFull));
    assert!(writer.log.image_saved().is_none());
    faults.save_fails.store(false, Ordering::Relaxed);
    // An error of the content is one of the image too.
    writer.log.save_image(covers, Box::new(|_| Err(broken()))).unwrap();
    assert!(writer.log.image_saved().unwrap().is_err());
    let taken = writer.taken.clone();
    drop(writer);
    let (_, recovered) = Writer::open(Box::new(storage), small());
    assert_eq!(recovered.image.as_ref().unwrap().bytes(), b"first");
    assert_eq!(records(&recovered), taken[1..]);
}

#[test]
fn an_image_of_what_is_not_durable_or_not_new_is_refused() {
    let (mut writer, _) = Writer::open(Box::new(MemoryStorage::new()), small());
    writer.append(1, b"a").unwrap();
    let appended = writer.log.appended();
    let refused = writer.log.save_image(appended, Box::new(|_| Ok(()))).unwrap_err();
    assert!(matches!(refused, SaveError::NotDurable { .. }), "{refused}");
    writer.flush();
    writer.log.save_image(appended, Box::new(|_| Ok(()))).unwrap();
    let refused = writer.log.save_image(appended, Box::new(|_| Ok(()))).unwrap_err();
    assert!(matches!(refused, SaveError::Busy), "{refused}");
    writer.log.image_saved().unwrap().unwrap();
    let refused = writer.log.save_image(appended, Box::new(|_| Ok(()))).unwrap_err();
    assert!(matches!(refused, SaveError::NotNewer { .. }), "{refused}");
}

/// Simulation rests on it.
#[test]
fn two_runs_in_memory_leave_the_same_bytes() {
    let run = || {
        let storage = MemoryStorage::with_seed(7);
        let (mut writer, _) = Writer::open(Box::new(storage.clone()), Options { images_kept: 1, ..small() });
        for number in 0..40 {
            writer.append(1, &payload(number, 7000)).unwrap();
            writer.flush();
            if number == 30 {
                writer.save_image(b"state".to_vec());
            }
        }
        drop(writer);
        let files = Box::new(storage.clone()).list().unwrap().files;
        let content: Vec<_> = files.iter().map(|(file, _)| storage.file(*file)).collect();
        (files, content)
    };
    assert!(run() == run());
}
