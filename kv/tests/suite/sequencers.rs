//! Over the sequencers that ship: embedded in memory, embedded on disk, and a server behind a connection.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use seriatim_kv::core::Status;
use seriatim_kv::{Coordinator, Db, Error, MemoryStore, RetryPolicy, RunOptions, Table};

use seriatim_net::Embedded;

use crate::support::serving::{Serving, embedded, small};

const THREADS: u64 = 4;
const ROUNDS: u64 = 50;

fn number(bytes: Option<Vec<u8>>) -> u64 {
    bytes.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
}

/// Many threads add to one counter; none of it may be lost, and a refused attempt leaves nothing in the store.
fn count_together(db: &Db, store: &MemoryStore) {
    let table = Table::new("counters");
    let retry = RetryPolicy { attempts_max: 10_000, ..RetryPolicy::default() };
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let add_one = |tx: &mut seriatim_kv::Tx<'_>| {
                        let n = number(tx.get(&table, b"n")?);
                        tx.put(&table, b"n", &(n + 1).to_le_bytes())
                    };
                    let done = db.run_with(RunOptions { retry, ..RunOptions::default() }, add_one).unwrap();
                    // What was acknowledged is in every snapshot taken from here on.
                    assert!(db.snapshot().unwrap().snapshot().csn >= done.csn.unwrap());
                }
            });
        }
    });
    let total = number(db.snapshot().unwrap().get(&table, b"n").unwrap());
    assert_eq!((total, store.version_count() as u64), (THREADS * ROUNDS, THREADS * ROUNDS));
}

fn a_conflict_is_told_by_key_and_an_abort_is_final(db: &Db, coordinator: &impl Coordinator) {
    let table = Table::new("t");
    let once = RunOptions { retry: RetryPolicy::once(), ..RunOptions::default() };
    let mut loser = None;
    let refused = db.run_with(once, |tx| {
        loser = Some(tx.write_pointer());
        db.run(|other| other.put(&table, b"k", b"theirs"))?;
        tx.put(&table, b"k", b"mine")
    });
    let error = refused.unwrap_err();
    let Error::RetriesExhausted { last, .. } = &error else { panic!("{error}") };
    assert!(matches!(&**last, Error::Conflict { key, winner: Some(_), .. } if key == b"k"), "{last}");
    assert_eq!(coordinator.settle(loser.unwrap()).unwrap(), Status::Aborted);
    assert_eq!(db.snapshot().unwrap().get(&table, b"k").unwrap().as_deref(), Some(&b"theirs"[..]));
}

#[test]
fn an_embedded_sequencer_counts_right() {
    let sequencer = embedded();
    let store = Arc::new(MemoryStore::new());
    let db = Db::new(store.clone(), sequencer.clone());
    count_together(&db, &store);
    a_conflict_is_told_by_key_and_an_abort_is_final(&db, &sequencer);
}

#[test]
fn a_server_counts_right_for_many_threads_over_one_client() {
    let mut serving = Serving::start();
    let client = serving.client();
    let store = Arc::new(MemoryStore::new());
    let db = Db::new(store.clone(), client.clone());
    count_together(&db, &store);
    a_conflict_is_told_by_key_and_an_abort_is_final(&db, &client);
    serving.stop();
    let error = db.run_with(RunOptions { retry: RetryPolicy::once(), ..RunOptions::default() }, |_| Ok(()));
    let error = error.unwrap_err();
    assert!(error.is_retryable() && matches!(error, Error::RetriesExhausted { .. }), "{error}");
}

#[cfg(feature = "fjall")]
#[test]
fn a_database_in_a_directory_keeps_what_it_acknowledged() {
    let directory = tempfile::tempdir().unwrap();
    let table = Table::new("t");
    let mut last = None;
    for round in 0..3_u64 {
        let db = Db::open(&directory).unwrap();
        let done = db.run_with(RunOptions::default(), |tx| {
            assert_eq!(number(tx.get(&table, b"n")?), round);
            tx.put(&table, b"n", &(round + 1).to_le_bytes())
        });
        let done = done.unwrap();
        assert!(last < Some(done.tx), "write pointers only grow");
        last = Some(done.tx);
        assert_eq!(done.csn.unwrap().0, round + 1);
    }
}

#[test]
fn a_database_in_memory_needs_nothing() {
    let db = Db::in_memory().unwrap();
    let table = db.table("t");
    db.run(|tx| tx.put(&table, b"k", b"v")).unwrap();
    assert_eq!(db.snapshot().unwrap().get(&table, b"k").unwrap().as_deref(), Some(&b"v"[..]));
}

/// However long that is: what a view might need may be collected after it.
#[test]
fn a_view_is_read_through_for_as_long_as_its_sequencer_says() {
    let mut options = small();
    options.snapshot_age_ms = 100;
    let serving = Serving::with(options.clone());
    let embedded = Embedded::in_memory(&options).unwrap();
    for db in [Db::new(MemoryStore::new(), serving.client()), Db::new(MemoryStore::new(), embedded)] {
        let view = db.snapshot().unwrap();
        // Without its word it would be a minute.
        let taken = Instant::now();
        let late = std::iter::repeat_with(|| view.get(&Table::new("t"), b"k")).find_map(Result::err).unwrap();
        assert!(matches!(late, Error::SnapshotTooOld { max_ms: 100, .. }), "{late}");
        assert!(late.is_retryable() && taken.elapsed() < Duration::from_secs(60));
    }
}
