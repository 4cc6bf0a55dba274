//! Bytes that changed after they were durable: the directory is refused, by file and offset, and left as it is.

mod common;

use common::{Random, Writer, payload, records, seed, small};
use seriatim_wal::{Fault, FileName, ForeignReason, Log, Lsn, MemoryStorage, OpenError, Options, Storage};

const BLOCK: usize = 4096;

fn boxed(storage: &MemoryStorage) -> Box<dyn Storage> {
    Box::new(storage.clone())
}

/// A log of `groups` groups of two blocks, seven to a segment, closed at the end.
fn closed_log(groups: u64) -> (MemoryStorage, Vec<(u8, Vec<u8>)>) {
    let storage = MemoryStorage::with_seed(groups);
    let (mut writer, _) = Writer::open(boxed(&storage), small());
    for number in 0..groups {
        writer.append(1, &payload(number, 7000)).unwrap();
        writer.flush();
    }
    writer.close();
    let taken = writer.taken.clone();
    drop(writer);
    (storage, taken)
}

fn change(storage: &MemoryStorage, file: FileName, change: impl FnOnce(&mut Vec<u8>)) -> MemoryStorage {
    let changed = storage.fork();
    let mut bytes = changed.file(file).unwrap();
    change(&mut bytes);
    changed.set_file(file, Some(bytes));
    changed
}

fn refusal(storage: &MemoryStorage) -> OpenError {
    let files = |storage: &MemoryStorage| -> Vec<_> {
        let names = boxed(storage).list().unwrap().files;
        names.iter().map(|(name, _)| (*name, storage.file(*name))).collect()
    };
    let before = files(storage);
    let refused = Log::open(boxed(storage), small()).err().expect("a directory that is refused");
    assert!(files(storage) == before, "a refused directory was changed");
    refused
}

/// Of the file, the offset and what was found there.
fn corruption(storage: &MemoryStorage) -> (String, u64, Fault) {
    match refusal(storage) {
        OpenError::Corrupt { file, offset, fault, .. } => (file, offset, fault),
        other => panic!("{other}"),
    }
}

fn name(segment: u64) -> String {
    format!("memory/{}", FileName::Segment(segment))
}

#[test]
fn a_changed_byte_anywhere_before_the_last_group_is_refused_by_file_and_offset() {
    let seed = seed();
    let mut random = Random(seed);
    let (storage, taken) = closed_log(17);
    // Segments 1 and 2 hold seven groups each, segment 3 three and the closing one.
    for (segment, groups) in [(1, 7), (2, 7), (3, 3)] {
        for at in 0..BLOCK + groups * 2 * BLOCK {
            // Every byte of the headers, and some of the records and the padding.
            let in_group = (at + BLOCK) % (2 * BLOCK);
            let is_in_header = if at < BLOCK { at < 128 } else { in_group < 160 };
            if !is_in_header && random.below(16) > 0 {
                continue;
            }
            let bit = 1u8 << random.below(8);
            let changed = change(&storage, FileName::Segment(segment), |file| file[at] ^= bit);
            let what = format!("seed {seed}, segment {segment}, byte {at}, bit {bit}");
            let is_padding = if at < BLOCK { at >= 128 } else { in_group >= 152 + 3 + 7000 };
            if is_padding {
                drop(Writer::reopen(boxed(&changed), small(), &taken));
                continue;
            }
            let offset = if at < BLOCK { 0 } else { at - in_group };
            let (file, found_offset, _) = corruption(&changed);
            assert_eq!((file, found_offset), (name(segment), offset as u64), "{what}");
        }
    }
}

#[test]
fn the_refusal_names_file_offset_reason_proof_and_the_next_step() {
    let (storage, _) = closed_log(3);
    let changed = change(&storage, FileName::Segment(1), |file| file[3 * BLOCK + 1000] ^= 1);
    assert_eq!(
        refusal(&changed).to_string(),
        "memory/segment-00000000000000000001 is damaged at byte 12288: the group's records do not match their digest, yet \
         memory/segment-00000000000000000001 byte 20480 was written after it: restore the directory from a copy or, in a \
         cluster, empty it and let this member fetch the log anew"
    );
}

#[test]
fn a_log_that_lost_its_middle_is_refused() {
    let (storage, _) = closed_log(17);
    let without = storage.fork();
    without.set_file(FileName::Segment(2), None);
    assert_eq!(
        corruption(&without),
        (name(3), 0, Fault::SegmentChain { previous: 2, previous_end: 15 * BLOCK as u32 })
    );
    let without = storage.fork();
    without.set_file(FileName::Segment(1), None);
    let missing = refusal(&without);
    assert!(matches!(missing, OpenError::Missing { first: Lsn(1), last: Lsn(7), .. }), "{missing}");
    // Zeros from the middle of a group to the end of its segment.
    let cut = change(&storage, FileName::Segment(2), |file| file[6 * BLOCK..].fill(0));
    assert_eq!(corruption(&cut), (name(2), 5 * BLOCK as u64, Fault::Digest));
    let cut = change(&storage, FileName::Segment(2), |file| file.truncate(6 * BLOCK));
    assert_eq!(corruption(&cut), (name(2), 5 * BLOCK as u64, Fault::Length { payload_bytes: 7003 }));
    let cut = change(&storage, FileName::Segment(3), |file| file[BLOCK..5 * BLOCK].fill(0));
    assert_eq!(corruption(&cut), (name(3), BLOCK as u64, Fault::NoHeader));
}

#[test]
fn a_first_block_that_went_to_zero_is_noticed_by_what_follows_it() {
    let (storage, _) = closed_log(17);
    for (segment, found_in) in [(1, None), (2, Some(2)), (3, Some(3))] {
        let changed = change(&storage, FileName::Segment(segment), |file| file[..BLOCK].fill(0));
        match (refusal(&changed), found_in) {
            (OpenError::Missing { first: Lsn(1), last: Lsn(7), .. }, None) => {}
            (OpenError::Corrupt { file, offset: 0, .. }, Some(found_in)) => assert_eq!(file, name(found_in)),
            (other, _) => panic!("segment {segment}: {other}"),
        }
    }
}

/// The first write of a segment began when everything before was durable, so even a part of it proves that.
#[test]
fn a_lost_end_of_a_segment_is_noticed_by_the_first_write_of_the_next() {
    let (storage, _) = closed_log(8);
    let lost = change(&storage, FileName::Segment(1), |file| file[13 * BLOCK + 5] ^= 1);
    assert_eq!(corruption(&lost).0, name(1));
    let lost = change(&lost, FileName::Segment(2), |file| {
        file[..BLOCK].fill(0);
        file[3 * BLOCK..].fill(0);
    });
    match refusal(&lost) {
        OpenError::Corrupt { file, offset, fault: Fault::NoHeader | Fault::HeaderChecksum, successor } => {
            assert_eq!((file, offset), (name(1), 13 * BLOCK as u64));
            assert_eq!(successor.unwrap().file, name(2));
        }
        other => panic!("{other}"),
    }
}

#[test]
fn a_last_group_without_successor_cannot_be_told_from_an_unfinished_one() {
    let (storage, taken) = closed_log(3);
    // The closing group, and then the group before it with it.
    let changed = change(&storage, FileName::Segment(1), |file| file[7 * BLOCK + 50] ^= 1);
    drop(Writer::reopen(boxed(&changed), small(), &taken));
    let changed = change(&storage, FileName::Segment(1), |file| file[5 * BLOCK..].fill(0));
    drop(Writer::reopen(boxed(&changed), small(), &taken[..2]));
}

#[test]
fn random_damage_refuses_or_recovers_all() {
    let seed = seed();
    let mut random = Random(seed);
    let (storage, taken) = closed_log(17);
    let end = [15, 15, 7];
    for trial in 0..2000 {
        let segment = 1 + random.below(3);
        let bytes = end[segment as usize - 1] * BLOCK;
        let changed = change(&storage, FileName::Segment(segment), |file| {
            let from = random.below(bytes as u64) as usize;
            let to = from + 1 + random.below((bytes - from).min(3 * BLOCK) as u64) as usize;
            match random.below(3) {
                0 => file[from..to].fill(0),
                1 => file[from..to].fill_with(|| random.next() as u8),
                // Misplaced: a copy of other blocks of the same file.
                _ => {
                    let blocks = file.len() as u64 / BLOCK as u64;
                    let (source, target) = (random.below(blocks), random.below(bytes as u64 / BLOCK as u64));
                    let copy = file[source as usize * BLOCK..][..BLOCK].to_vec();
                    file[target as usize * BLOCK..][..BLOCK].copy_from_slice(&copy);
                }
            }
        });
        match Log::open(boxed(&changed), small()) {
            Ok((_, recovered)) => assert!(records(&recovered) == taken, "seed {seed}, trial {trial}"),
            Err(OpenError::Corrupt { .. } | OpenError::Missing { .. }) => {}
            Err(other) => panic!("seed {seed}, trial {trial}: {other}"),
        }
    }
}

/// A copy of a directory goes its own way and comes back: same store, same segment numbers, other salts.
#[test]
fn groups_of_another_history_are_neither_taken_nor_feared() {
    let (storage, taken) = closed_log(3);
    let histories = [storage.fork(), storage.fork()];
    boxed(&histories[1]).random();
    let mut both = Vec::new();
    for (number, history) in histories.iter().enumerate() {
        let mut writer = Writer::reopen(boxed(history), small(), &taken);
        let groups = if number == 0 { 2 } else { 6 };
        for group in 0..groups {
            writer.append(2, &payload(group + 100 * number as u64, 7000)).unwrap();
            writer.flush();
        }
        both.push(writer.taken.clone());
    }
    let (short, long) = (&histories[0], &histories[1]);
    let grafted = change(short, FileName::Segment(2), |file| {
        let other = long.file(FileName::Segment(2)).unwrap();
        assert!(file[..BLOCK] != other[..BLOCK], "the same salt twice");
        file[5 * BLOCK..].copy_from_slice(&other[5 * BLOCK..]);
    });
    drop(Writer::reopen(boxed(&grafted), small(), &both[0]));
}

/// The segment before ends at the same place in both, with other records.
#[test]
fn a_segment_of_another_history_does_not_continue_this_one() {
    let (storage, taken) = closed_log(3);
    let histories = [storage.fork(), storage.fork()];
    for (number, history) in histories.iter().enumerate() {
        let mut taken = taken.clone();
        for start in 0..2u64 {
            let mut writer = Writer::reopen(boxed(history), small(), &taken);
            writer.append(2, &payload(start + 10 * number as u64, 500)).unwrap();
            writer.close();
            taken.clone_from(&writer.taken);
        }
    }
    let grafted = change(&histories[0], FileName::Segment(3), |file| {
        *file = histories[1].file(FileName::Segment(3)).unwrap();
    });
    let chain = Fault::SegmentChain { previous: 2, previous_end: 3 * BLOCK as u32 };
    assert_eq!(corruption(&grafted), (name(3), 0, chain));
}

#[test]
fn what_is_newer_is_refused_as_newer() {
    let (storage, _) = closed_log(3);
    let reversion = |file: &mut Vec<u8>, header_bytes: usize| {
        file[8] = 9;
        let sum = crc32c::crc32c(&file[..header_bytes - 4]);
        file[header_bytes - 4..header_bytes].copy_from_slice(&sum.to_le_bytes());
    };
    let (mut writer, _) = Writer::open(boxed(&storage), small());
    writer.log.save_image(Lsn(3), Box::new(|out| out.write_all(b"state"))).unwrap();
    writer.log.image_saved().unwrap().unwrap();
    drop(writer);
    for (file, header_bytes) in [(FileName::Identity, 64), (FileName::Segment(1), 128), (FileName::Image(3), 64)] {
        let newer = refusal(&change(&storage, file, |bytes| reversion(bytes, header_bytes)));
        assert!(matches!(newer, OpenError::Newer { found: 9, known: 1, .. }), "{newer}");
        assert!(newer.to_string().contains(&file.to_string()), "{newer}");
        // A flipped bit is no version.
        if file != FileName::Image(3) {
            let flipped = refusal(&change(&storage, file, |bytes| bytes[8] ^= 8));
            assert!(!matches!(flipped, OpenError::Newer { .. }), "{flipped}");
        }
    }
}

#[test]
fn files_of_another_store_are_refused() {
    let (storage, _) = closed_log(3);
    let (other, _) = closed_log(4);
    for file in [FileName::Identity, FileName::Segment(1)] {
        let mixed = storage.fork();
        mixed.set_file(file, other.file(file));
        let refused = refusal(&mixed);
        let OpenError::Foreign { reason: ForeignReason::OtherStore { .. }, .. } = refused else { panic!("{refused}") };
    }
    let headless = storage.fork();
    headless.set_file(FileName::Identity, None);
    let refused = refusal(&headless);
    assert!(matches!(refused, OpenError::Foreign { reason: ForeignReason::NoIdentity, .. }), "{refused}");
    for bit in 64..64 * 8 {
        let changed = change(&storage, FileName::Identity, |file| file[bit / 8] ^= 1 << (bit % 8));
        assert!(matches!(refusal(&changed), OpenError::BadIdentity { .. }), "bit {bit}");
    }
}

/// The last segment under another name would look like one that was never written.
#[test]
fn a_segment_under_another_name_is_refused() {
    let (storage, _) = closed_log(17);
    for (from, to) in [(3, 5), (2, 9), (1, 9)] {
        let renamed = storage.fork();
        renamed.set_file(FileName::Segment(to), storage.file(FileName::Segment(from)));
        renamed.set_file(FileName::Segment(from), None);
        let refused = refusal(&renamed);
        let OpenError::Foreign { file, reason: ForeignReason::Misnamed { segment } } = &refused else {
            panic!("{refused}")
        };
        assert_eq!((file, *segment), (&name(to), from));
    }
}

#[test]
fn a_log_that_ends_before_its_image_is_refused() {
    let storage = MemoryStorage::new();
    let (mut writer, _) = Writer::open(boxed(&storage), small());
    for number in 0..3 {
        writer.append(1, &payload(number, 7000)).unwrap();
        writer.flush();
    }
    writer.save_image(b"state".to_vec());
    drop(writer);
    let cut = change(&storage, FileName::Segment(1), |file| file[5 * BLOCK..].fill(0));
    let missing = refusal(&cut);
    assert!(matches!(missing, OpenError::Missing { first: Lsn(3), last: Lsn(3), .. }), "{missing}");
}

#[test]
fn an_image_that_is_not_whole_falls_back_and_without_one_the_log_is_missing() {
    let storage = MemoryStorage::new();
    let (mut writer, _) = Writer::open(boxed(&storage), Options { images_kept: 2, ..small() });
    for number in 0..60 {
        writer.append(1, &payload(number, 7000)).unwrap();
        writer.flush();
        if number % 20 == 19 {
            writer.save_image(payload(number, 3000));
        }
    }
    let taken = writer.taken.clone();
    drop(writer);
    assert_eq!(storage.file(FileName::Image(20)), None, "two are kept");
    let newest = FileName::Image(60);
    for cut in (0..3000 + 64 + 40).step_by(256) {
        let torn = change(&storage, newest, |file| file.truncate(cut));
        let (_, recovered) = Writer::open(boxed(&torn), small());
        assert_eq!((recovered.image.as_ref().unwrap().covers, recovered.bad_images.len()), (Lsn(40), 1));
        assert_eq!(recovered.bad_images[0].to_string(), format!("memory/{newest} is damaged and was passed over"));
        assert_eq!(records(&recovered), taken[40..]);
    }
    let none = change(&storage, newest, |file| file[100] ^= 1);
    let none = change(&none, FileName::Image(40), |file| file[100] ^= 1);
    let missing = refusal(&none);
    assert!(matches!(missing, OpenError::Missing { first: Lsn(1), .. }), "{missing}");
    // An image of what the log does not reach.
    let beyond = storage.fork();
    for segment in 1..30 {
        beyond.set_file(FileName::Segment(segment), None);
    }
    let missing = refusal(&beyond);
    assert!(matches!(missing, OpenError::Missing { last: Lsn(60), .. }), "{missing}");
}

/// A damaged image is nothing to fall back to, however old: the log stays until there are enough that are whole.
#[test]
fn a_damaged_image_is_not_counted_among_those_kept() {
    let options = Options { images_kept: 2, segments_ahead: 1, ..small() };
    let storage = MemoryStorage::new();
    let (mut writer, _) = Writer::open(boxed(&storage), options.clone());
    let fill = |writer: &mut Writer, records: u64| {
        for number in 0..records {
            writer.append(1, &payload(number, 7000)).unwrap();
            writer.flush();
        }
    };
    fill(&mut writer, 20);
    writer.save_image(b"first".to_vec());
    let mut taken = writer.taken.clone();
    drop(writer);
    let damage = |image: u64| {
        let name = FileName::Image(image);
        storage.set_file(name, Some(change(&storage, name, |file| file[70] ^= 1).file(name).unwrap()));
    };
    damage(20);
    for round in 0..2 {
        // The second round finds a whole one behind which the damaged one stands.
        let mut writer = Writer::reopen(boxed(&storage), options.clone(), &taken);
        fill(&mut writer, 20);
        if round == 0 {
            writer.save_image(b"second".to_vec());
        }
        taken = writer.taken.clone();
    }
    damage(40);
    let (mut writer, recovered) = Writer::open(boxed(&storage), options.clone());
    assert!(recovered.image.is_none());
    assert_eq!((recovered.bad_images.len(), records(&recovered)), (2, taken.clone()));
    drop(recovered);
    writer.taken = taken;
    for _ in 0..2 {
        fill(&mut writer, 20);
        writer.save_image(b"whole".to_vec());
    }
    assert_eq!(storage.file(FileName::Image(20)), None, "there are enough that are whole");
    let taken = writer.taken.clone();
    drop(writer);
    drop(Writer::reopen(boxed(&storage), options, &taken));
}
