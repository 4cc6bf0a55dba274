//! The embedded sequencer: what differs from the server is how it waits, and who carries the log.

mod common;

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{change_set, small};
use seriatim_core::{BeginError, BeginOptions, CommitError, Full, Status, StoreName, WritePointer};
use seriatim_net::{Embedded, EmbeddedError, SavedState, StoreError};
use seriatim_wal::{DiskOptions, DiskStorage, MemoryStorage};

#[test]
fn a_full_disk_refuses_what_is_new_keeps_what_was_decided_and_passes() {
    let disk = MemoryStorage::new();
    let (embedded, _) = Embedded::over(disk.clone(), &small()).unwrap();
    disk.set_capacity_bytes(disk.used_bytes());
    let mut committed = Vec::new();
    let refused = loop {
        let tx = match embedded.begin(&BeginOptions::default()) {
            Ok(begun) => begun.first,
            Err(error) => break matches!(error, EmbeddedError::Refused(BeginError::Overloaded(Full::Disk))),
        };
        let keys: Vec<String> = (0..2_000).map(|key| format!("{tx} {key}")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        match embedded.commit(tx, &change_set(&keys)) {
            Ok(csn) => committed.push((tx, csn)),
            Err(error) => break matches!(error, EmbeddedError::Refused(CommitError::Overloaded(Full::Disk))),
        }
        assert!(committed.len() < 10_000, "the disk never filled up");
    };
    assert!(refused);
    // So are stores and forgetting, while a fence asks nothing of the disk.
    let name = StoreName::new("orders").unwrap();
    let no_room = EmbeddedError::Refused(StoreError::Overloaded(Full::Disk)).to_string();
    assert_eq!(embedded.register_store(&name).unwrap_err().to_string(), no_room);
    assert_eq!(embedded.remove_store(&name).unwrap_err().to_string(), no_room);
    assert_eq!(embedded.store_cleaned(&name, WritePointer(0)).unwrap_err().to_string(), no_room);
    assert!(matches!(embedded.truncate(WritePointer(1)), Err(EmbeddedError::Refused(Full::Disk))));
    assert!(matches!(embedded.truncate_before(WritePointer(1)), Err(EmbeddedError::Refused(Full::Disk))));
    assert!(embedded.fence(Duration::ZERO).is_ok());
    assert!(matches!(embedded.timestamps(1), Err(EmbeddedError::Refused(BeginError::Overloaded(Full::Disk)))));
    disk.set_capacity_bytes(u64::MAX);
    let tx = loop {
        match embedded.begin(&BeginOptions::default()) {
            Ok(begun) => break begun.first,
            Err(_) => std::thread::yield_now(),
        }
    };
    embedded.commit(tx, &change_set(&["k"])).expect("there is room again");
    drop(embedded);
    let (embedded, report) = Embedded::over(disk, &small()).unwrap();
    assert!(report.clean);
    assert!(committed.iter().all(|(tx, csn)| embedded.status(*tx) == Status::Committed(*csn)));
}

/// What an idle one writes, it writes for ever.
#[test]
fn an_idle_one_takes_its_pointers_from_the_clock_and_writes_next_to_nothing() {
    let embedded = Embedded::in_memory(&small()).unwrap();
    let first = embedded.begin(&BeginOptions::default()).unwrap().first;
    embedded.commit(first, &change_set(&["k"])).unwrap();
    let records = |embedded: &Embedded| {
        let mut image = Vec::new();
        embedded.dump_image(&mut image).unwrap();
        SavedState::read(&image).unwrap().lsn
    };
    // The keeper looks ten times a tenth of a second.
    let wait = |ms| std::thread::sleep(Duration::from_millis(ms));
    wait(100);
    let before = records(&embedded);
    wait(300);
    let after = records(&embedded);
    assert!(after - before <= 3, "{} records for nobody", after - before);
    let begun = embedded.begin(&BeginOptions::default()).unwrap().first;
    assert!(begun.ms_since_epoch() >= first.ms_since_epoch() + 400, "a pointer says when it was taken");
}

#[test]
fn threads_share_groups_and_every_commit_is_there_after_reopening() {
    const THREADS: u64 = 4;
    const EACH: u64 = 50;
    let directory = tempfile::tempdir().unwrap();
    let storage = || DiskStorage::new(directory.path(), DiskOptions::default());
    let (embedded, _) = Embedded::over(storage(), &small()).unwrap();
    let (barrier, conflicts) = (Barrier::new(THREADS as usize), AtomicU64::new(0));
    let committed = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (embedded, barrier, conflicts) = (embedded.clone(), &barrier, &conflicts);
                scope.spawn(move || {
                    barrier.wait();
                    let mut committed = Vec::new();
                    for n in 0..EACH {
                        let tx = embedded.begin(&BeginOptions::default()).unwrap().first;
                        // Every tenth key is everybody's.
                        let key = if n % 10 == 0 { "shared".to_owned() } else { format!("{thread} {n}") };
                        match embedded.commit(tx, &change_set(&[&key])) {
                            Ok(csn) => {
                                assert!(embedded.snapshot().is_visible(tx), "acknowledged and not visible");
                                committed.push((tx, csn));
                            }
                            Err(EmbeddedError::Refused(CommitError::Conflict { .. })) => {
                                conflicts.fetch_add(1, Ordering::Relaxed);
                                assert_eq!(embedded.abort(tx).unwrap(), Status::Aborted);
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                    committed
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(committed.len() as u64 + conflicts.load(Ordering::Relaxed), THREADS * EACH);
    drop(embedded);
    let (embedded, report) = Embedded::over(storage(), &small()).unwrap();
    assert_eq!((report.commits, report.open, report.clean), (committed.len() as u64, 0, true));
    assert!(committed.iter().all(|(tx, csn)| embedded.status(*tx) == Status::Committed(*csn)));
}

#[test]
fn dropping_it_with_transactions_open_leaves_them_open() {
    let disk = MemoryStorage::new();
    let (embedded, _) = Embedded::over(disk.clone(), &small()).unwrap();
    let open = embedded.begin(&BeginOptions::default()).unwrap().first;
    drop(embedded);
    let (embedded, report) = Embedded::over(disk, &small()).unwrap();
    assert_eq!(report.open, 1);
    embedded.commit(open, &change_set(&["k"])).expect("still open");
}
