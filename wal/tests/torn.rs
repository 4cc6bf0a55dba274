//! A write that did not finish: whatever part of it is there, the log before it comes back, and it never does.

mod common;

use common::{Random, Writer, payload, records, seed, small};
use seriatim_wal::{Fault, FileName, Lsn, MemoryStorage, Options, Storage};

const BLOCK: usize = 4096;
const SECTOR: usize = 512;

/// A directory before and after one write to one segment.
struct LastWrite {
    before: MemoryStorage,
    after: MemoryStorage,
    segment: u64,
    /// Where the write lies in the file.
    range: std::ops::Range<usize>,
    /// What is durable with and without it.
    taken: Vec<(u8, Vec<u8>)>,
    durable: usize,
}

fn boxed(storage: &MemoryStorage) -> Box<dyn Storage> {
    Box::new(storage.clone())
}

/// A log whose last group has `payload_bytes`; it lies behind others in its segment, or begins one if `rolls`.
fn last_write(payload_bytes: usize, rolls: bool, recycled: bool) -> LastWrite {
    let storage = MemoryStorage::with_seed(payload_bytes as u64);
    let options = Options { segments_ahead: 1, images_kept: 1, ..small() };
    let (mut writer, _) = Writer::open(boxed(&storage), options);
    let fill = |writer: &mut Writer, groups: u64| {
        for number in 0..groups {
            writer.append(1, &payload(number, 7000)).unwrap();
            writer.flush();
        }
    };
    // Seven groups of two blocks fill a segment's sixteen blocks but for one.
    if recycled {
        fill(&mut writer, 35);
        writer.save_image(vec![1; 10]);
        fill(&mut writer, 14);
        writer.save_image(vec![2; 10]);
    }
    fill(&mut writer, if rolls { 7 } else { 3 });
    let before = storage.fork();
    let durable = writer.taken.len();
    writer.append(2, &payload(99, payload_bytes)).unwrap();
    writer.flush();
    let after = storage.fork();
    // Others come and go: what the write has made needless is let go of, and the next is made ready.
    let changed = |segment: &u64| {
        let (old, new) = (before.file(FileName::Segment(*segment)), after.file(FileName::Segment(*segment)));
        old.is_some() && new.is_some() && old != new
    };
    let segment = (1..100).filter(changed).min().expect("a segment that was written");
    let (old, new) =
        (before.file(FileName::Segment(segment)).unwrap(), after.file(FileName::Segment(segment)).unwrap());
    let first = (0..old.len()).find(|at| old[*at] != new[*at]).unwrap() / BLOCK * BLOCK;
    assert_eq!(first == 0, rolls);
    let bytes = (152 + payload_bytes + 4).next_multiple_of(BLOCK) + if rolls { BLOCK } else { 0 };
    LastWrite { before, after, segment, range: first..first + bytes, taken: writer.taken.clone(), durable }
}

impl LastWrite {
    /// The directory with those sectors of the write that `written` says.
    fn with(&self, written: impl Fn(usize) -> bool) -> MemoryStorage {
        let storage = self.after.fork();
        let name = FileName::Segment(self.segment);
        let (old, mut file) = (self.before.file(name).unwrap(), self.after.file(name).unwrap());
        for (number, at) in self.range.clone().step_by(SECTOR).enumerate() {
            if !written(number) {
                file[at..at + SECTOR].copy_from_slice(&old[at..at + SECTOR]);
            }
        }
        storage.set_file(name, Some(file));
        storage
    }

    fn sectors(&self) -> usize {
        self.range.len() / SECTOR
    }

    /// Opens, and requires the log with the write or without it; then goes on writing and requires that to last.
    fn check(&self, storage: &MemoryStorage, what: &str) -> bool {
        let (mut writer, recovered) = Writer::open(boxed(storage), small());
        let kept = recovered.durable.0 as usize;
        assert!(kept == self.durable || kept == self.taken.len(), "{what}: {kept} records");
        let covered = recovered.image.as_ref().map_or(0, |image| image.covers.0 as usize);
        assert_eq!(records(&recovered), self.taken[covered..kept], "{what}");
        drop(recovered);
        writer.taken = self.taken[..kept].to_vec();
        writer.append(3, b"after the crash").unwrap();
        writer.flush();
        let taken = writer.taken.clone();
        drop(writer);
        drop(Writer::reopen(boxed(storage), small(), &taken));
        kept == self.taken.len()
    }
}

/// Bytes of the write that mean something; the rest is padding.
fn meaningful(payload_bytes: usize, rolls: bool) -> usize {
    (if rolls { BLOCK } else { 0 }) + 152 + 3 + payload_bytes
}

#[test]
fn every_cut_of_the_last_write_at_a_sector_recovers() {
    for (rolls, recycled) in [(false, false), (true, false), (false, true), (true, true)] {
        let write = last_write(14_000, rolls, recycled);
        for cut in 0..=write.sectors() {
            let what = format!("the first {cut} sectors, rolls {rolls}, recycled {recycled}");
            let whole = write.check(&write.with(|sector| sector < cut), &what);
            assert_eq!(whole, cut * SECTOR >= meaningful(14_000, rolls), "{what}");
            write.check(&write.with(|sector| sector >= cut), &format!("all but {what}"));
        }
    }
}

#[test]
fn every_subset_of_the_sectors_of_the_last_write_recovers() {
    let bytes = 5_500;
    let sectors = meaningful(bytes, false).div_ceil(SECTOR);
    assert!(sectors <= 12);
    for recycled in [false, true] {
        let write = last_write(bytes, false, recycled);
        for subset in 0..1u32 << sectors {
            let storage = write.with(|sector| sector >= sectors || subset >> sector & 1 == 1);
            let whole = write.check(&storage, &format!("sectors {subset:b}, recycled {recycled}"));
            assert_eq!(whole, subset == (1 << sectors) - 1, "sectors {subset:b}, recycled {recycled}");
        }
    }
}

#[test]
fn random_subsets_of_a_large_last_write_recover() {
    let seed = seed();
    let mut random = Random(seed);
    for rolls in [false, true] {
        let write = last_write(15_900, rolls, true);
        for trial in 0..1000 {
            let subset = u128::from(random.next()) << 64 | u128::from(random.next());
            let storage = write.with(|sector| subset >> sector & 1 == 1);
            write.check(&storage, &format!("seed {seed}, trial {trial}, rolls {rolls}"));
        }
    }
}

#[test]
fn garbage_in_the_last_write_recovers() {
    let seed = seed();
    let mut random = Random(seed);
    for rolls in [false, true] {
        let write = last_write(14_000, rolls, true);
        let name = FileName::Segment(write.segment);
        for trial in 0..1000 {
            let storage = write.after.fork();
            let mut file = storage.file(name).unwrap();
            let from = write.range.start + random.below(write.range.len() as u64) as usize;
            let to = from + 1 + random.below((write.range.end - from) as u64) as usize;
            file[from..to].fill_with(|| random.next() as u8);
            storage.set_file(name, Some(file));
            write.check(&storage, &format!("seed {seed}, trial {trial}, bytes {from} to {to}"));
        }
    }
}

#[test]
fn what_was_cut_is_told() {
    let write = last_write(14_000, false, false);
    let (_, recovered) = Writer::open(boxed(&write.with(|sector| sector < 10)), small());
    let cut = recovered.cut.unwrap();
    assert_eq!((cut.offset, cut.records, cut.fault), (write.range.start as u64, 1, Fault::Digest));
    assert_eq!(cut.file, format!("memory/{}", FileName::Segment(write.segment)));
    let (_, recovered) = Writer::open(boxed(&write.before), small());
    assert_eq!(recovered.cut, None, "nothing was begun");

    let write = last_write(14_000, true, false);
    let storage = write.with(|sector| sector > 0);
    let (_, recovered) = Writer::open(boxed(&storage), small());
    let cut = recovered.cut.unwrap();
    assert_eq!((cut.offset, cut.records, cut.fault), (0, 1, Fault::SegmentHeader));
    assert_eq!(storage.file(FileName::Segment(write.segment)), None, "it is not used again");
}

/// The device completes a write after the next process has already recovered without it and gone on.
#[test]
fn a_write_that_lands_late_is_dead() {
    let write = last_write(14_000, false, false);
    let storage = write.with(|_| false);
    let (mut writer, recovered) = Writer::open(boxed(&storage), small());
    assert_eq!(recovered.durable, Lsn(write.durable as u64));
    drop(recovered);
    writer.taken = write.taken[..write.durable].to_vec();
    writer.append(3, b"another history").unwrap();
    writer.flush();
    let taken = writer.taken.clone();
    drop(writer);
    let name = FileName::Segment(write.segment);
    assert_eq!(storage.file(name).unwrap().len(), write.range.start, "cut to its end");
    storage.set_file(name, write.after.file(name));
    drop(Writer::reopen(boxed(&storage), small(), &taken));
}
