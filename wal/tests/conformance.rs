//! What every storage must do, by every way it has of writing.

mod common;

use std::path::Path;
use std::time::Duration;

use common::{Random, Writer, payload, records, seed, small, stamp};
use seriatim_wal::{
    AppendError, DiskOptions, DiskStorage, Engine, FileName, ForeignReason, Log, Lsn, MemoryStorage, OpenError,
    Options, Storage, StoreId, SubmitError, SyncMode,
};

/// A place that can be opened again and again.
trait Medium {
    fn storage(&self) -> Box<dyn Storage>;
}

struct InMemory(MemoryStorage);

impl Medium for InMemory {
    fn storage(&self) -> Box<dyn Storage> {
        Box::new(self.0.clone())
    }
}

fn in_memory() -> InMemory {
    InMemory(MemoryStorage::new())
}

struct OnDisk {
    directory: tempfile::TempDir,
    open: fn(&Path) -> DiskStorage,
}

impl Medium for OnDisk {
    fn storage(&self) -> Box<dyn Storage> {
        Box::new((self.open)(self.directory.path()))
    }
}

fn on_disk(open: fn(&Path) -> DiskStorage) -> OnDisk {
    OnDisk { directory: tempfile::tempdir().unwrap(), open }
}

fn disk(path: &Path, engine: Engine, sync: SyncMode) -> DiskStorage {
    DiskStorage::new(path, DiskOptions { engine, sync })
}

macro_rules! suite {
    ($($name:ident: $medium:expr;)*) => { $(
        mod $name {
            use super::*;
            cases!($medium;
                a_new_directory_becomes_a_store_and_stays_it
                what_was_durable_comes_back
                the_open_group_is_lost_and_nothing_else
                records_fill_one_group_while_the_other_is_in_flight
                many_segments_follow_each_other
                an_image_replaces_the_log_before_it
                a_damaged_image_falls_back_to_the_one_before
                a_fallback_has_every_record_it_needs
                what_was_recovered_stays_readable_while_the_log_goes_on
                an_old_token_writes_nothing
                a_full_group_and_a_too_large_record_are_refused
                a_group_of_megabytes_comes_back
                a_second_opener_is_refused
                another_store_is_refused
                a_closing_group_follows_once
                starting_again_and_again_costs_no_room
                the_wake_descriptor_tells_of_news
                random_steps_match_a_plain_list
            );
        }
    )* };
}

macro_rules! cases {
    ($medium:expr; $($case:ident)*) => { $(
        #[test]
        fn $case() {
            super::$case(&$medium);
        }
    )* };
}

suite! {
    memory: in_memory();
    disk: on_disk(|path| DiskStorage::new(path, DiskOptions::default()));
    uring_direct: on_disk(|path| disk(path, Engine::Uring, SyncMode::Direct));
    uring_buffered: on_disk(|path| disk(path, Engine::Uring, SyncMode::Buffered));
    thread_direct: on_disk(|path| disk(path, Engine::Thread, SyncMode::Direct));
    thread_buffered: on_disk(|path| disk(path, Engine::Thread, SyncMode::Buffered));
    lossy: on_disk(|path| DiskStorage::lossy(path, Duration::from_micros(200)));
}

fn a_new_directory_becomes_a_store_and_stays_it(medium: &impl Medium) {
    let (writer, recovered) = Writer::open(medium.storage(), small());
    let store = writer.log.store();
    assert_eq!((recovered.durable, recovered.last_stamp, recovered.groups().count()), (Lsn::ZERO, None, 0));
    drop((writer, recovered));
    let (writer, recovered) = Writer::open(medium.storage(), Options { store: Some(store), ..small() });
    assert_eq!((writer.log.store(), recovered.store), (store, store));
}

fn what_was_durable_comes_back(medium: &impl Medium) {
    let (mut writer, _) = Writer::open(medium.storage(), small());
    for (number, bytes) in [0, 1, 127, 128, 4096 - 152 - 2, 4096 - 152 - 1, 5000, 11_000].into_iter().enumerate() {
        writer.append(number as u8, &payload(number as u64, bytes)).unwrap();
        if number % 3 == 2 {
            writer.flush();
        }
    }
    writer.flush();
    let Writer { log, taken, .. } = writer;
    let (digest, stamp) = (log.digest(), stamp(1, taken.len() as u64));
    drop(log);
    let (writer, recovered) = Writer::open(medium.storage(), small());
    assert_eq!(records(&recovered), taken);
    assert_eq!(writer.log.digest(), digest);
    assert_eq!(recovered.last_stamp, Some(stamp));
    assert_eq!(recovered.cut, None);
}

fn the_open_group_is_lost_and_nothing_else(medium: &impl Medium) {
    let (mut writer, _) = Writer::open(medium.storage(), small());
    writer.append(1, b"durable").unwrap();
    writer.flush();
    let durable = writer.taken.clone();
    writer.append(1, b"in memory").unwrap();
    assert_eq!((writer.log.durable(), writer.log.appended()), (Lsn(1), Lsn(2)));
    drop(writer);
    let mut writer = Writer::reopen(medium.storage(), small(), &durable);
    writer.append(2, b"after").unwrap();
    writer.flush();
    let taken = writer.taken.clone();
    drop(writer);
    Writer::reopen(medium.storage(), small(), &taken);
}

fn records_fill_one_group_while_the_other_is_in_flight(medium: &impl Medium) {
    let (mut writer, _) = Writer::open(medium.storage(), small());
    for turn in 0..50u64 {
        writer.append(1, &payload(turn, 100)).unwrap();
        let stamp = writer.stamp();
        if writer.log.submit(&stamp).unwrap().is_some() {
            assert!(writer.log.is_in_flight());
            assert_eq!(writer.log.submit(&stamp).unwrap(), None);
            assert_eq!(writer.log.open_len(), 0);
        }
        writer.append(2, &payload(turn, 200)).unwrap();
        assert_eq!(writer.log.submit(&stamp).unwrap(), None, "two groups in flight");
        writer.settle();
    }
    writer.flush();
    assert!(writer.groups <= 51);
    let taken = writer.taken.clone();
    drop(writer);
    Writer::reopen(medium.storage(), small(), &taken);
}

fn many_segments_follow_each_other(medium: &impl Medium) {
    let (mut writer, _) = Writer::open(medium.storage(), small());
    for number in 0..60 {
        writer.append(3, &payload(number, 6000)).unwrap();
        writer.append(4, &payload(number, 9)).unwrap();
        writer.flush();
    }
    assert!(writer.log.stats().segments_used >= 8, "{:?}", writer.log.stats());
    let taken = writer.taken.clone();
    drop(writer);
    let mut writer = Writer::reopen(medium.storage(), small(), &taken);
    writer.append(5, b"more").unwrap();
    writer.close();
    let taken = writer.taken.clone();
    drop(writer);
    Writer::reopen(medium.storage(), small(), &taken);
}

fn an_image_replaces_the_log_before_it(medium: &impl Medium) {
    let (mut writer, _) = Writer::open(medium.storage(), small());
    let mut used_max = 0;
    for number in 0..200 {
        writer.append(3, &payload(number, 6000)).unwrap();
        writer.flush();
        if number % 20 == 19 {
            writer.save_image(format!("state {number}").into_bytes());
        }
        used_max = used_max.max(writer.log.stats().segments_used);
    }
    assert!(used_max <= 10, "{used_max} segments in use at once");
    let taken = writer.taken.clone();
    drop(writer);
    let (writer, recovered) = Writer::open(medium.storage(), small());
    let image = recovered.image.as_ref().unwrap();
    assert_eq!((image.covers, image.bytes()), (Lsn(200), &b"state 199"[..]));
    assert_eq!(recovered.groups().count(), 0);
    drop((writer, recovered));
    let mut writer = Writer::reopen(medium.storage(), small(), &taken);
    for number in 200..230 {
        writer.append(3, &payload(number, 6000)).unwrap();
        writer.flush();
    }
    let taken = writer.taken.clone();
    drop(writer);
    Writer::reopen(medium.storage(), small(), &taken);
}

fn a_damaged_image_falls_back_to_the_one_before(medium: &impl Medium) {
    let (mut writer, _) = Writer::open(medium.storage(), Options { images_kept: 2, ..small() });
    for number in 0..40 {
        writer.append(3, &payload(number, 6000)).unwrap();
        writer.flush();
        if number % 10 == 9 {
            writer.save_image(payload(number, 10_000));
        }
    }
    let taken = writer.taken.clone();
    drop(writer);
    let mut storage = medium.storage();
    let newest = FileName::Image(40);
    storage.create(newest, b"SERIAIMG, and then the pen broke").unwrap();
    drop(storage);
    let (writer, recovered) = Writer::open(medium.storage(), small());
    assert_eq!(recovered.bad_images.len(), 1);
    assert_eq!(recovered.bad_images[0].covers, Lsn(40));
    let image = recovered.image.as_ref().unwrap();
    assert_eq!((image.covers, image.bytes()), (Lsn(30), &payload(29, 10_000)[..]));
    assert_eq!(records(&recovered), taken[30..]);
    drop((writer, recovered));
    let mut writer = Writer::reopen(medium.storage(), small(), &taken);
    writer.save_image(b"again".to_vec());
    drop(writer);
    let (_, recovered) = Writer::open(medium.storage(), small());
    assert_eq!(recovered.image.unwrap().covers, Lsn(40));
}

fn a_fallback_has_every_record_it_needs(medium: &impl Medium) {
    let options = Options { images_kept: 2, segments_ahead: 1, ..small() };
    let mut taken = Vec::new();
    // After one image, and again after several.
    for images in [1, 3] {
        let (mut writer, recovered) = Writer::open(medium.storage(), options.clone());
        drop(recovered);
        writer.taken.clone_from(&taken);
        let mut covers = 0;
        for _ in 0..images {
            for number in 0..29 {
                writer.append(3, &payload(number, 6000)).unwrap();
                writer.flush();
            }
            covers = writer.log.durable().0;
            writer.save_image(b"state".to_vec());
        }
        // What was released has been written over by now.
        for number in 0..29 {
            writer.append(3, &payload(number, 6000)).unwrap();
            writer.flush();
        }
        taken.clone_from(&writer.taken);
        drop(writer);
        medium.storage().create(FileName::Image(covers), b"damaged").unwrap();
        drop(Writer::reopen(medium.storage(), options.clone(), &taken));
    }
}

fn what_was_recovered_stays_readable_while_the_log_goes_on(medium: &impl Medium) {
    let options = Options { images_kept: 1, segments_ahead: 1, ..small() };
    let (mut writer, _) = Writer::open(medium.storage(), options.clone());
    for number in 0..30 {
        writer.append(3, &payload(number, 6000)).unwrap();
        writer.flush();
    }
    let taken = writer.taken.clone();
    drop(writer);
    let (mut writer, recovered) = Writer::open(medium.storage(), options.clone());
    writer.taken = taken.clone();
    for number in 30..90 {
        writer.append(3, &payload(number, 6000)).unwrap();
        writer.flush();
        if number % 20 == 9 {
            writer.save_image(b"state".to_vec());
        }
    }
    assert_eq!(records(&recovered), taken, "what was recovered changed");
    let before = writer.log.stats().segments_used;
    drop(recovered);
    writer.settle();
    assert!(writer.log.stats().segments_used < before, "segments are let go of now");
    let taken = writer.taken.clone();
    drop(writer);
    drop(Writer::reopen(medium.storage(), options, &taken));
}

fn an_old_token_writes_nothing(medium: &impl Medium) {
    let (mut writer, _) = Writer::open(medium.storage(), small());
    writer.token = 7;
    writer.append(1, b"x").unwrap();
    writer.flush();
    writer.append(1, b"y").unwrap();
    let refused = writer.log.submit(&stamp(6, 2)).unwrap_err();
    assert!(matches!(refused, SubmitError::OldToken { token: 6, newest: 7 }));
    writer.flush();
    let taken = writer.taken.clone();
    drop(writer);
    let mut writer = Writer::reopen(medium.storage(), small(), &taken);
    writer.append(1, b"z").unwrap();
    assert!(matches!(writer.log.submit(&stamp(6, 3)), Err(SubmitError::OldToken { token: 6, newest: 7 })));
}

fn a_full_group_and_a_too_large_record_are_refused(medium: &impl Medium) {
    let (mut writer, _) = Writer::open(medium.storage(), small());
    let limit = match writer.append(1, &[0; 70_000]).unwrap_err() {
        AppendError::TooLarge { bytes: 70_000, bytes_max } => bytes_max,
        other => panic!("{other}"),
    };
    // The first record of a group may be larger than the group's bound.
    writer.append(1, &payload(1, limit)).unwrap();
    assert!(matches!(writer.append(1, b""), Err(AppendError::Full { .. })));
    writer.flush();
    let mut bytes = 0;
    let full = loop {
        match writer.append(2, &payload(bytes, 1000)) {
            Ok(_) => bytes += 1003,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, AppendError::Full { bytes: 16_048, bytes_max: 16_384 }), "{full}");
    writer.flush();
    let taken = writer.taken.clone();
    drop(writer);
    Writer::reopen(medium.storage(), small(), &taken);
}

fn a_group_of_megabytes_comes_back(medium: &impl Medium) {
    let options = Options { segment_bytes: 4 << 20, segments_ahead: 1, ..Options::default() };
    let (mut writer, _) = Writer::open(medium.storage(), options.clone());
    for number in 0..3 {
        writer.append(1, &payload(number, 100)).unwrap();
        writer.flush();
        writer.append(2, &payload(number, 3 << 20)).unwrap();
        writer.flush();
    }
    let taken = writer.taken.clone();
    drop(writer);
    Writer::reopen(medium.storage(), options, &taken);
}

fn a_second_opener_is_refused(medium: &impl Medium) {
    let (writer, _) = Writer::open(medium.storage(), small());
    let refused = Log::open(medium.storage(), small()).err().unwrap();
    assert!(matches!(refused, OpenError::Locked { .. }), "{refused}");
    drop(writer);
    Writer::open(medium.storage(), small());
}

fn another_store_is_refused(medium: &impl Medium) {
    let (writer, _) = Writer::open(medium.storage(), small());
    drop(writer);
    let other = Options { store: Some(StoreId(1)), ..small() };
    let refused = Log::open(medium.storage(), other).err().unwrap();
    assert!(matches!(refused, OpenError::Foreign { reason: ForeignReason::OtherStore { expected: 1, .. }, .. }));
}

fn a_closing_group_follows_once(medium: &impl Medium) {
    let (mut writer, _) = Writer::open(medium.storage(), small());
    let stamp = writer.stamp();
    assert_eq!(writer.log.close_group(&stamp).unwrap(), None, "nothing to close");
    writer.append(1, b"x").unwrap();
    assert_eq!(writer.log.close_group(&stamp).unwrap(), None, "a group is open");
    writer.flush();
    assert!(writer.log.wants_closing());
    assert!(writer.log.close_group(&stamp).unwrap().is_some());
    writer.settle();
    assert_eq!(writer.log.close_group(&stamp).unwrap(), None, "closed");
    let stats = writer.log.stats();
    assert_eq!((stats.groups, stats.closing_groups, stats.records), (1, 1, 1));
    let taken = writer.taken.clone();
    drop(writer);
    let (_, recovered) = Writer::open(medium.storage(), small());
    assert_eq!(recovered.groups().count(), 2);
    assert_eq!(records(&recovered), taken);
}

fn starting_again_and_again_costs_no_room(medium: &impl Medium) {
    let mut taken = Vec::new();
    for start in 0..20u64 {
        let mut writer = Writer::reopen(medium.storage(), small(), &taken);
        writer.append(1, &start.to_le_bytes()).unwrap();
        writer.close();
        taken.clone_from(&writer.taken);
    }
    // Jobs are done when the storage is gone.
    let mut storage = medium.storage();
    storage.lock().unwrap();
    let bytes: u64 = storage.list().unwrap().files.iter().map(|(_, bytes)| bytes).sum();
    assert!(bytes <= 20 * 3 * 4096 + 3 * (64 << 10), "{bytes} bytes");
}

fn the_wake_descriptor_tells_of_news(medium: &impl Medium) {
    use rustix::event::{PollFd, PollFlags, poll};
    let (mut writer, _) = Writer::open(medium.storage(), small());
    let tell = |log: &Log<Box<dyn Storage>>| {
        let Some(fd) = log.wake_fd() else { return };
        let limit = rustix::event::Timespec { tv_sec: 60, tv_nsec: 0 };
        // The kernel may interrupt the poll to finish a write.
        let told = loop {
            match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)) {
                Err(rustix::io::Errno::INTR) => {}
                answer => break answer.unwrap(),
            }
        };
        assert_eq!(told, 1, "no news within a minute");
    };
    for number in 0..50 {
        writer.append(1, &payload(number, 6000)).unwrap();
        let stamp = writer.stamp();
        let mut submitted = writer.log.submit(&stamp).unwrap().is_some();
        let durable = loop {
            tell(&writer.log);
            if let Some(group) = writer.log.poll().unwrap() {
                break group.header().last();
            }
            submitted = submitted || writer.log.submit(&stamp).unwrap().is_some();
        };
        assert!(submitted);
        assert_eq!(durable, writer.log.appended());
        if number == 25 {
            writer.log.save_image(durable, Box::new(|out| out.write_all(b"state"))).unwrap();
            while writer.log.image_saved().is_none() {
                tell(&writer.log);
            }
        }
    }
}

fn random_steps_match_a_plain_list(medium: &impl Medium) {
    let seed = seed();
    let mut random = Random(seed);
    let mut writer = Writer::open(medium.storage(), small()).0;
    for step in 0..600 {
        match random.below(20) {
            0 => {
                let durable = writer.log.durable().0 as usize;
                let in_flight = writer.log.is_in_flight();
                let mut taken = std::mem::take(&mut writer.taken);
                drop(writer);
                let (reopened, recovered) = Writer::open(medium.storage(), small());
                let kept = recovered.durable.0 as usize;
                assert!(kept == durable || (in_flight && kept > durable), "seed {seed}, step {step}");
                taken.truncate(kept);
                drop((reopened, recovered));
                writer = Writer::reopen(medium.storage(), small(), &taken);
            }
            1 if writer.log.durable() > Lsn::ZERO => {
                let covers = writer.log.durable();
                let _ = writer.log.save_image(covers, Box::new(move |out| out.write_all(&covers.0.to_le_bytes())));
            }
            2..5 => writer.settle(),
            5..8 => {
                let stamp = writer.stamp();
                writer.log.submit(&stamp).unwrap();
            }
            8 => {
                let stamp = writer.stamp();
                writer.log.close_group(&stamp).unwrap();
            }
            _ => {
                let limit = 1 << random.below(14);
                let bytes = random.below(limit) as usize;
                match writer.append(random.below(256) as u8, &payload(random.next(), bytes)) {
                    Ok(_) | Err(AppendError::Full { .. }) => {}
                    Err(other) => panic!("seed {seed}, step {step}: {other}"),
                }
            }
        }
    }
    writer.close();
}
