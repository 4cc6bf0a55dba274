//! Over the sequencers that ship: embedded in memory, embedded on disk, and a server behind a connection.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use seriatim_client::{Client, ClientOptions};
use seriatim_kv::core::{CommitError, InvalidCause, Status, WritePointer};
use seriatim_kv::{Coordinator, Db, Error, MemoryStore, RetryPolicy, RunOptions, StoreName, Table};
use seriatim_net::{Embedded, Options, Server, ServerOptions, StorageKind};

use crate::support::HookedStore;
use crate::support::serving::{Serving, embedded, small};

const THREADS: u64 = 4;
const ROUNDS: u64 = 50;

fn number(bytes: Option<Vec<u8>>) -> u64 {
    bytes.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
}

/// Nothing is kept for long: a snapshot is good for 20 ms, and nobody's writes are on their way.
fn forgetful() -> Options {
    Options { snapshot_age_ms: 20, write_delay_ms: 0, ..small() }
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

/// Cleans until nothing invalid is left and of each key one version: both bounds follow when readers' and writers' time is
/// over.
fn clean_all(db: &Db, store: &HookedStore<Arc<MemoryStore>>, memory: &MemoryStore, coordinator: &impl Coordinator) {
    let (table, name) = (Table::new("t"), StoreName::new("t").unwrap());
    for value in [b"1", b"2", b"3"] {
        db.run(|tx| tx.put(&table, b"a", value)).unwrap();
    }
    store.leave_versions_from(2);
    let quick = RunOptions { timeout_ms: Some(100), retry: RetryPolicy::once(), ..RunOptions::default() };
    let failed = db.run_with(quick, |tx| {
        tx.put(&table, b"a", b"half")?;
        tx.put(&table, b"b", b"half")
    });
    failed.unwrap_err();
    store.unhook();
    assert_eq!((memory.version_count(), coordinator.snapshot().unwrap().invalid.len()), (4, 1));
    let cleaned = db.clean(&name).unwrap();
    assert_eq!(cleaned.invalid, 0, "its client may write for 100 ms");
    let (mut invalid, mut outdated) = (0, cleaned.outdated);
    while (invalid, outdated) != (1, 2) {
        let cleaned = db.clean(&name).unwrap();
        invalid += cleaned.invalid;
        outdated += cleaned.outdated;
        assert_eq!(db.snapshot().unwrap().get(&table, b"a").unwrap().as_deref(), Some(&b"3"[..]));
    }
    assert_eq!((memory.version_count(), coordinator.snapshot().unwrap().invalid.len()), (1, 0));
}

#[test]
fn a_store_is_cleaned_over_an_embedded_sequencer() {
    let sequencer = Embedded::in_memory(&forgetful()).unwrap();
    let memory = Arc::new(MemoryStore::new());
    let store = Arc::new(HookedStore::new(memory.clone()));
    let db = Db::new(store.clone(), sequencer.clone());
    clean_all(&db, &store, &memory, &sequencer);
}

#[test]
fn a_store_is_cleaned_over_a_server() {
    let mut options = ServerOptions::new(StorageKind::Memory);
    options.pipeline = forgetful();
    let server = Server::start(options).unwrap();
    let (address, stop) = (server.address(), server.stop_handle());
    let running = thread::spawn(move || server.run());
    let client = Client::connect(address.to_string().as_str(), ClientOptions::default()).unwrap();
    let memory = Arc::new(MemoryStore::new());
    let store = Arc::new(HookedStore::new(memory.clone()));
    let db = Db::new(store.clone(), client.clone());
    clean_all(&db, &store, &memory, &client);
    stop.stop();
    running.join().unwrap().unwrap();
}

/// Whoever reads longer than a snapshot is kept for anybody must have been open all the while, or what it read may have
/// been collected under it.
#[test]
fn what_was_read_too_late_is_an_error_and_not_an_answer() {
    let sequencer = Embedded::in_memory(&forgetful()).unwrap();
    let db = Db::new(MemoryStore::new(), sequencer.clone());
    let table = Table::new("t");
    for key in 0..1_000_u64 {
        db.run(|tx| tx.put(&table, &key.to_be_bytes(), b"v")).unwrap();
    }
    let grown_old = |since: Instant| {
        while since.elapsed() <= Duration::from_millis(20) {
            thread::yield_now();
        }
    };
    let taken = Instant::now();
    let view = db.snapshot().unwrap();
    let mut scan = view.scan(&table, ..).unwrap();
    let first = scan.next().unwrap();
    grown_old(taken);
    assert!(matches!(view.get(&table, b"k"), Err(Error::SnapshotTooOld { max_ms: 20, .. })));
    let rest = scan.find(|entry| entry.is_err()).map(Result::unwrap_err);
    assert!(first.is_err() || matches!(rest, Some(Error::SnapshotTooOld { .. })), "{rest:?}");

    let read = |timeout_ms: u64, wait: &dyn Fn(WritePointer)| {
        let options = RunOptions { timeout_ms: Some(timeout_ms), retry: RetryPolicy::once(), ..RunOptions::default() };
        db.run_with(options, |tx| {
            let value = tx.get(&table, &[0; 8])?;
            wait(tx.write_pointer());
            Ok(value)
        })
    };
    // Open all the while.
    assert!(read(60_000, &|_| grown_old(Instant::now())).unwrap().value.is_some());
    // Somebody ended it meanwhile, or its time was over.
    let ended = read(60_000, &|tx| {
        assert!(matches!(sequencer.settle(tx).unwrap(), Status::Invalid(InvalidCause::Settled)));
        grown_old(Instant::now());
    });
    let Err(Error::RetriesExhausted { last, .. }) = &ended else { panic!("{ended:?}") };
    assert!(matches!(**last, Error::Invalidated { cause: InvalidCause::Settled, .. }), "{ended:?}");
    let expired = read(1, &|_| grown_old(Instant::now()));
    let Err(Error::RetriesExhausted { last, .. }) = &expired else { panic!("{expired:?}") };
    let is_expired = |error: &Error| match error {
        Error::Refused(CommitError::Expired { .. }) => true,
        Error::Invalidated { cause, .. } => *cause == InvalidCause::Expired,
        _ => false,
    };
    assert!(is_expired(last), "{expired:?}");
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
