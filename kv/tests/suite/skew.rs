//! What snapshots alone do not prevent, over the sequencers that ship: possible under `Isolation::Snapshot`, refused under
//! `Isolation::Serializable`. Two transactions at a time: the second runs from begin to end within the first.

use std::thread;

use seriatim_kv::{Db, Error, Isolation, MemoryStore, RetryPolicy, RunOptions, Table, Tx};

use crate::support::once;
use crate::support::serving::{Serving, embedded};

/// Runs every case over both, as `in_process::case` and `over_tcp::case`.
macro_rules! on_every_sequencer {
    ($($case:ident),* $(,)?) => {
        mod in_process {
            use super::*;
            $(#[test] fn $case() { super::$case(&Db::new(MemoryStore::new(), embedded())); })*
        }
        mod over_tcp {
            use super::*;
            $(#[test] fn $case() {
                let serving = Serving::start();
                super::$case(&Db::new(MemoryStore::new(), serving.client()));
            })*
        }
    };
}

on_every_sequencer!(
    doctors_who_read_each_other_both_sign_off_under_snapshot,
    doctors_who_read_each_other_do_not_both_sign_off_if_serializable,
    doctors_who_count_a_range_both_sign_off_under_snapshot,
    doctors_who_count_a_range_do_not_both_sign_off_if_serializable,
    a_phantom_gets_in_under_snapshot,
    a_phantom_is_refused_if_serializable,
    a_key_that_was_not_there_is_checked_against_every_writer,
    every_kind_of_write_into_a_scanned_range_is_refused,
    writes_beside_the_range_are_told_apart_by_the_prefix,
    a_range_is_checked_against_serializable_writers_alone,
    a_scan_of_nothing_and_a_scan_without_writes_conflict_with_nobody,
    a_refused_scan_is_run_again_and_sees_what_it_missed,
    everybody_who_counts_and_then_adds_one_counts_otherwise,
);

const ON_CALL: [&[u8]; 2] = [b"ward/7/alice", b"ward/7/bob"];

fn options(isolation: Isolation) -> RunOptions {
    RunOptions { isolation, ..once() }
}

fn doctors() -> Table {
    Table::new("on_call")
}

/// Runs two transactions of the same isolation, so that neither sees the other.
fn overlapping(
    db: &Db,
    isolation: Isolation,
    first: impl Fn(&mut Tx<'_>) -> Result<(), Error>,
    second: impl Fn(&mut Tx<'_>) -> Result<(), Error>,
) -> Result<(), Error> {
    let done = db.run_with(options(isolation), |tx| {
        first(tx)?;
        db.run_with(options(isolation), &second).map(drop).expect("the first to commit commits");
        Ok(())
    });
    done.map(drop).map_err(|error| match error {
        Error::RetriesExhausted { attempts: 1, last } => *last,
        other => panic!("{other}"),
    })
}

fn all_on_call(db: &Db) {
    db.run(|tx| ON_CALL.iter().try_for_each(|doctor| tx.put(&doctors(), doctor, b"yes"))).unwrap();
}

fn still_on_call(db: &Db) -> usize {
    let view = db.snapshot().unwrap();
    view.scan(&doctors(), ..).unwrap().filter(|entry| entry.as_ref().unwrap().value == b"yes").count()
}

/// Signs off if the other is on call.
fn sign_off(me: usize) -> impl Fn(&mut Tx<'_>) -> Result<(), Error> {
    move |tx| match tx.get(&doctors(), ON_CALL[1 - me])?.as_deref() {
        Some(b"yes") => tx.put(&doctors(), ON_CALL[me], b"no"),
        _ => Ok(()),
    }
}

/// Signs off if at least two are on call in the ward.
fn sign_off_by_count(me: usize) -> impl Fn(&mut Tx<'_>) -> Result<(), Error> {
    move |tx| {
        let mut on_call = 0;
        for entry in tx.scan(&doctors(), "ward/7/".."ward/70")? {
            on_call += usize::from(entry?.value == b"yes");
        }
        if on_call >= 2 { tx.put(&doctors(), ON_CALL[me], b"no") } else { Ok(()) }
    }
}

fn doctors_who_read_each_other_both_sign_off_under_snapshot(db: &Db) {
    all_on_call(db);
    overlapping(db, Isolation::Snapshot, sign_off(0), sign_off(1)).unwrap();
    assert_eq!(still_on_call(db), 0, "which no order of the two would have come to");
}

fn doctors_who_read_each_other_do_not_both_sign_off_if_serializable(db: &Db) {
    all_on_call(db);
    let refused = overlapping(db, Isolation::Serializable, sign_off(0), sign_off(1)).unwrap_err();
    assert!(
        matches!(&refused, Error::Conflict { table, key, winner: Some(_), .. }
        if table == "on_call" && key == ON_CALL[1]),
        "the conflict is on what was read: {refused}"
    );
    assert_eq!(still_on_call(db), 1);
}

fn doctors_who_count_a_range_both_sign_off_under_snapshot(db: &Db) {
    all_on_call(db);
    overlapping(db, Isolation::Snapshot, sign_off_by_count(0), sign_off_by_count(1)).unwrap();
    assert_eq!(still_on_call(db), 0);
}

fn doctors_who_count_a_range_do_not_both_sign_off_if_serializable(db: &Db) {
    all_on_call(db);
    let refused = overlapping(db, Isolation::Serializable, sign_off_by_count(0), sign_off_by_count(1)).unwrap_err();
    assert!(
        matches!(&refused, Error::RangeConflict { table, prefix, winner: Some(_), .. }
        if table == "on_call" && prefix == b"ward"),
        "{refused}"
    );
    assert!(refused.is_conflict() && refused.is_retryable());
    assert_eq!(still_on_call(db), 1);
}

/// Books a room if nobody has it that day.
fn book(who: &'static str) -> impl Fn(&mut Tx<'_>) -> Result<(), Error> {
    move |tx| {
        let bookings = Table::new("bookings");
        match tx.scan(&bookings, "room/101/2026-12-01/".."room/101/2026-12-010")?.next() {
            None => tx.put(&bookings, format!("room/101/2026-12-01/{who}").as_bytes(), b""),
            Some(entry) => entry.map(drop),
        }
    }
}

fn bookings(db: &Db) -> usize {
    db.snapshot().unwrap().scan(&Table::new("bookings"), ..).unwrap().count()
}

fn a_phantom_gets_in_under_snapshot(db: &Db) {
    overlapping(db, Isolation::Snapshot, book("ann"), book("ben")).unwrap();
    assert_eq!(bookings(db), 2);
}

fn a_phantom_is_refused_if_serializable(db: &Db) {
    let refused = overlapping(db, Isolation::Serializable, book("ann"), book("ben")).unwrap_err();
    assert!(matches!(&refused, Error::RangeConflict { prefix, .. } if prefix == b"room/101/2026-12"), "{refused}");
    assert_eq!(bookings(db), 1);
}

fn a_key_that_was_not_there_is_checked_against_every_writer(db: &Db) {
    let table = Table::new("t");
    let refused = db.run_with(options(Isolation::Serializable), |tx| {
        assert_eq!(tx.get(&table, b"new")?, None);
        db.run(|other| other.put(&table, b"new", b"theirs"))?;
        tx.put(&table, b"mine", b"there was none")
    });
    let Err(Error::RetriesExhausted { last, .. }) = &refused else { panic!("{refused:?}") };
    assert!(matches!(&**last, Error::Conflict { key, .. } if key == b"new"), "{last}");
}

fn every_kind_of_write_into_a_scanned_range_is_refused(db: &Db) {
    let table = Table::new("t");
    type Write = fn(&mut Tx<'_>, &Table) -> Result<(), Error>;
    let writes: [(&str, Write); 4] = [
        ("insert", |tx, table| tx.put(table, b"key/0002", b"x")),
        ("update", |tx, table| tx.put(table, b"key/0001", b"x")),
        ("delete", |tx, table| tx.delete(table, b"key/0003")),
        ("delete of nothing", |tx, table| tx.delete(table, b"key/0009")),
    ];
    db.run(|tx| ["key/0001", "key/0003"].iter().try_for_each(|key| tx.put(&table, key.as_bytes(), b""))).unwrap();
    for (what, write) in writes {
        let scan = |tx: &mut Tx<'_>| {
            // One entry is taken; the whole range counts.
            tx.scan(&table, "key/".."key0")?.next().transpose()?;
            tx.put(&table, b"elsewhere", b"")
        };
        let refused = overlapping(db, Isolation::Serializable, scan, |tx| write(tx, &table));
        assert!(matches!(refused, Err(Error::RangeConflict { .. })), "{what}: {refused:?}");
    }
}

fn writes_beside_the_range_are_told_apart_by_the_prefix(db: &Db) {
    let table = Table::new("t");
    let against = |write: &'static [u8], other: &Table| {
        let scan = |tx: &mut Tx<'_>| {
            tx.scan(&table, "accounts/7/".."accounts/70")?.count();
            tx.put(&table, b"sum", b"")
        };
        overlapping(db, Isolation::Serializable, scan, |tx| tx.put(other, write, b"")).is_ok()
    };
    assert!(against(b"invoices/7/1", &table), "another prefix");
    assert!(against(b"accounts/7/1", &Table::new("u")), "another table");
    assert!(!against(b"accounts/7/1", &table), "within");
    assert!(!against(b"accounts/8/1", &table), "beside it, but the same first eight bytes: refused for nothing");
}

fn a_range_is_checked_against_serializable_writers_alone(db: &Db) {
    let table = Table::new("t");
    let done = db.run_with(options(Isolation::Serializable), |tx| {
        tx.scan(&table, ..)?.count();
        db.run(|other| other.put(&table, b"k", b"of one that marks nothing"))?;
        tx.put(&table, b"sum", b"")
    });
    done.unwrap();
}

fn a_scan_of_nothing_and_a_scan_without_writes_conflict_with_nobody(db: &Db) {
    let table = Table::new("t");
    let write = |tx: &mut Tx<'_>| tx.put(&table, b"k", b"");
    let backwards = |tx: &mut Tx<'_>| {
        assert_eq!(tx.scan(&table, "k".."a")?.count(), 0);
        tx.put(&table, b"sum", b"")
    };
    overlapping(db, Isolation::Serializable, backwards, write).unwrap();
    let reads_only = |tx: &mut Tx<'_>| tx.scan(&table, ..).map(|scan| assert_eq!(scan.count(), 2));
    overlapping(db, Isolation::Serializable, reads_only, write).unwrap();
}

fn a_refused_scan_is_run_again_and_sees_what_it_missed(db: &Db) {
    let table = Table::new("t");
    let serializable = RunOptions { isolation: Isolation::Serializable, ..RunOptions::default() };
    let mut others = [b"a", b"b"].into_iter();
    let done = db.run_with(serializable, |tx| {
        let seen = tx.scan(&table, ..)?.count();
        if let Some(key) = others.next() {
            db.run_with(serializable, |other| other.put(&Table::new("t"), key, b""))?;
        }
        tx.put(&Table::new("counts"), b"of t", &[seen as u8])
    });
    assert_eq!(done.unwrap().attempts, 3);
    let counted = db.snapshot().unwrap().get(&Table::new("counts"), b"of t").unwrap();
    assert_eq!(counted, Some(vec![2]));
}

/// Many at once scan a range and add the count as a key of its own: in any serial order the counts are 0, 1, 2 …; the
/// inserts alone would never meet.
fn everybody_who_counts_and_then_adds_one_counts_otherwise(db: &Db) {
    const THREADS: usize = 4;
    const ROUNDS: usize = 15;
    let retry = RetryPolicy { attempts_max: 10_000, ..RetryPolicy::default() };
    let serializable = RunOptions { isolation: Isolation::Serializable, retry, ..RunOptions::default() };
    let tickets = Table::new("tickets");
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let tickets = &tickets;
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    // In two queues, of which each has its prefix.
                    let queue = ["queue/1/", "queue/2/"][round % 2];
                    let take = |tx: &mut Tx<'_>| {
                        let number = tx.scan(tickets, queue..&format!("{}0", &queue[..7]))?.count();
                        tx.put(tickets, format!("{queue}{thread}/{round}").as_bytes(), &[number as u8])
                    };
                    db.run_with(serializable, take).unwrap();
                }
            });
        }
    });
    for queue in ["queue/1/".."queue/10", "queue/2/".."queue/20"] {
        let view = db.snapshot().unwrap();
        let mut numbers: Vec<u8> = view.scan(&tickets, queue).unwrap().map(|ticket| ticket.unwrap().value[0]).collect();
        numbers.sort();
        assert!(numbers.iter().copied().eq(0..numbers.len() as u8), "{numbers:?}");
    }
}
