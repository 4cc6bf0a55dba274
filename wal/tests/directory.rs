//! A data directory among other things: strangers, leftovers, and the golden files of the format.

mod common;

use std::fs;
use std::path::{Path, PathBuf};

use common::{Writer, payload, records, small};
use seriatim_wal::{
    DiskOptions, DiskStorage, FileName, ForeignReason, Log, Lsn, MemoryStorage, OpenError, Options, Storage, StoreId,
};

fn disk(directory: &Path) -> Box<dyn Storage> {
    Box::new(DiskStorage::new(directory, DiskOptions::default()))
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_directory_that_is_not_there_is_made() {
    let parent = tempfile::tempdir().unwrap();
    let directory = parent.path().join("a").join("b");
    let (mut writer, _) = Writer::open(disk(&directory), small());
    writer.append(1, b"x").unwrap();
    writer.flush();
    let taken = writer.taken.clone();
    drop(writer);
    drop(Writer::reopen(disk(&directory), small(), &taken));
}

#[test]
fn a_directory_of_somebody_else_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("thesis.txt"), "years of work").unwrap();
    let refused = Log::open(disk(directory.path()), small()).err().unwrap();
    let OpenError::Foreign { file, reason: ForeignReason::NoIdentity } = &refused else { panic!("{refused}") };
    assert!(file.ends_with("thesis.txt"), "{file}");
    assert_eq!(names(directory.path()), ["thesis.txt"]);
}

#[test]
fn a_file_in_place_of_the_directory_is_an_error_that_names_it() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let refused = Log::open(disk(file.path()), small()).err().unwrap();
    assert!(matches!(refused, OpenError::Io { .. }), "{refused}");
    assert!(refused.to_string().contains(&file.path().display().to_string()), "{refused}");
}

#[test]
fn the_directory_of_a_mount_point_and_files_beside_a_store_are_allowed() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("lost+found")).unwrap();
    drop(Writer::open(disk(directory.path()), small()));
    fs::write(directory.path().join("notes"), "of an operator").unwrap();
    fs::write(directory.path().join("segment-1"), "almost one of ours").unwrap();
    drop(Writer::open(disk(directory.path()), small()));
    assert!(names(directory.path()).contains(&"segment-1".to_string()));
}

#[test]
fn what_was_being_made_when_a_process_ended_is_removed() {
    let directory = tempfile::tempdir().unwrap();
    // The very first start may have ended while it wrote the identity.
    fs::write(directory.path().join("identity.tmp"), "half").unwrap();
    drop(Writer::open(disk(directory.path()), small()));
    let leftovers = ["segment-00000000000000000099.tmp", "image-00000000000000000007.tmp", "probe.tmp"];
    for name in leftovers {
        fs::write(directory.path().join(name), "half").unwrap();
    }
    fs::write(directory.path().join("mine.tmp"), "whole").unwrap();
    drop(Writer::open(disk(directory.path()), small()));
    let names = names(directory.path());
    assert!(leftovers.iter().all(|name| !names.contains(&(*name).to_string())), "{names:?}");
    assert!(names.contains(&"mine.tmp".to_string()));
}

#[test]
fn segments_of_another_length_are_read_and_not_written() {
    let directory = tempfile::tempdir().unwrap();
    let (mut writer, _) = Writer::open(disk(directory.path()), small());
    for number in 0..20 {
        writer.append(1, &payload(number, 6000)).unwrap();
        writer.flush();
    }
    let taken = writer.taken.clone();
    drop(writer);
    let larger = Options { segment_bytes: 256 << 10, group_bytes_max: 200 << 10, ..Options::default() };
    let mut writer = Writer::reopen(disk(directory.path()), larger.clone(), &taken);
    writer.append(1, &payload(7, 200_000)).unwrap();
    writer.flush();
    let taken = writer.taken.clone();
    drop(writer);
    let mut writer = Writer::reopen(disk(directory.path()), small(), &taken);
    writer.append(1, &payload(8, 10_000)).unwrap();
    writer.flush();
    let taken = writer.taken.clone();
    drop(writer);
    drop(Writer::reopen(disk(directory.path()), larger, &taken));
}

#[test]
fn a_panic_in_an_image_is_an_error_of_that_image_alone() {
    let directory = tempfile::tempdir().unwrap();
    let (mut writer, _) = Writer::open(disk(directory.path()), small());
    writer.append(1, b"x").unwrap();
    writer.flush();
    writer.log.save_image(Lsn(1), Box::new(|_| panic!("an image that cannot be drawn"))).unwrap();
    let failed = loop {
        if let Some(saved) = writer.log.image_saved() {
            break saved.unwrap_err();
        }
        std::thread::yield_now();
    };
    assert!(failed.source.to_string().contains("panicked"), "{failed:?}");
    for number in 0..40 {
        writer.append(1, &payload(number, 6000)).unwrap();
        writer.flush();
    }
    writer.save_image(b"drawn".to_vec());
}

/// Writes the log whose bytes are kept in `golden/v1`.
fn golden_run() -> MemoryStorage {
    let storage = MemoryStorage::with_seed(1);
    let options = Options { store: Some(StoreId(0x5e71_a71e)), created_ms: 1_700_000_000_000, ..small() };
    let (mut writer, _) = Writer::open(Box::new(storage.clone()), options.clone());
    for number in 0..3u64 {
        writer.append(number as u8, &payload(number, 100 << (2 * number))).unwrap();
        writer.append(200, b"").unwrap();
        writer.flush();
    }
    writer.close();
    writer.save_image(payload(77, 500));
    let taken = writer.taken.clone();
    drop(writer);
    let mut writer = Writer::reopen(Box::new(storage.clone()), options, &taken);
    writer.token = 2;
    writer.append(32, b"after the image").unwrap();
    writer.close();
    storage
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1")
}

const GOLDEN_FILES: [FileName; 4] =
    [FileName::Identity, FileName::Segment(1), FileName::Segment(2), FileName::Image(6)];

/// Without the zeros at its end, in whole blocks.
fn without_zeros(mut file: Vec<u8>) -> Vec<u8> {
    let end = file.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let end = if file.len() >= 1 << 16 { end.next_multiple_of(4096) } else { file.len() };
    file.truncate(end);
    file
}

/// `SERIATIM_BLESS=1` writes them anew: only for a new format version, in a directory of its own.
#[test]
fn version_1_is_written_as_ever() {
    let storage = golden_run();
    for name in GOLDEN_FILES {
        let written = without_zeros(storage.file(name).unwrap());
        let path = golden().join(name.to_string());
        if std::env::var_os("SERIATIM_BLESS").is_some() {
            fs::create_dir_all(golden()).unwrap();
            fs::write(&path, &written).unwrap();
        }
        let kept = fs::read(&path).unwrap();
        let differs = (0..kept.len().max(written.len())).find(|at| kept.get(*at) != written.get(*at));
        assert_eq!(differs, None, "the byte at which {name} differs");
    }
}

#[test]
fn version_1_is_read_as_ever() {
    let directory = tempfile::tempdir().unwrap();
    for name in GOLDEN_FILES {
        fs::copy(golden().join(name.to_string()), directory.path().join(name.to_string())).unwrap();
    }
    let (writer, recovered) = Writer::open(disk(directory.path()), small());
    assert_eq!(recovered.store, StoreId(0x5e71_a71e));
    assert_eq!(recovered.image.as_ref().unwrap().bytes(), payload(77, 500));
    assert_eq!(records(&recovered), [(32, b"after the image".to_vec())]);
    assert_eq!((recovered.durable, recovered.last_stamp.unwrap().token), (Lsn(7), 2));
    assert_eq!(recovered.cut, None);
    assert_eq!(writer.log.digest().to_string().len(), 32);
    drop((writer, recovered));
    fs::remove_file(directory.path().join(FileName::Image(6).to_string())).unwrap();
    let (_, recovered) = Writer::open(disk(directory.path()), small());
    let sizes: Vec<_> = records(&recovered).iter().map(|(kind, payload)| (*kind, payload.len())).collect();
    assert_eq!(sizes, [(0, 100), (200, 0), (1, 400), (200, 0), (2, 1600), (200, 0), (32, 15)]);
}

#[test]
fn nothing_that_is_removed_from_a_directory_lets_a_second_process_in() {
    let directory = tempfile::tempdir().unwrap();
    let (writer, _) = Writer::open(disk(directory.path()), small());
    for entry in std::fs::read_dir(directory.path()).unwrap() {
        let path = entry.unwrap().path();
        if !path.to_string_lossy().contains("segment") {
            std::fs::remove_file(path).unwrap();
        }
    }
    let refused = Log::open(disk(directory.path()), small()).err();
    assert!(matches!(refused, Some(OpenError::Foreign { .. } | OpenError::Locked { .. })), "{refused:?}");
    drop(writer);
}
