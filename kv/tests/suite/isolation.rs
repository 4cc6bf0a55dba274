//! What transactions may and may not see of each other, over every store.

use std::cell::Cell;
use std::sync::{Arc, Mutex};

use crate::support::{House, Op, once};
use seriatim_kv::core::{Status, WritePointer};
use seriatim_kv::{Db, Error, Isolation, RunOptions, Store, Table};

crate::on_every_store!(
    a_lost_update_is_refused_and_the_retry_keeps_both,
    a_conflict_names_table_key_and_winner,
    write_skew_is_possible_under_snapshot_isolation,
    write_skew_is_refused_where_both_are_serializable,
    a_serializable_scan_refuses_phantoms,
    a_half_written_transaction_is_seen_by_nobody,
    a_dead_writers_versions_stay_excluded,
    a_transaction_reads_its_own_writes_and_one_snapshot,
    a_scan_merges_own_writes_and_the_snapshot,
    a_view_stands_still_while_others_commit,
    a_newest_version_is_found_below_many_excluded_ones,
    a_transaction_that_wrote_nothing_commits_nothing,
    two_tables_commit_together,
);

fn number(bytes: Option<Vec<u8>>) -> u64 {
    bytes.map_or(0, |bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
}

fn a_lost_update_is_refused_and_the_retry_keeps_both(store: impl Store) {
    let house = House::new(store);
    let table = Table::new("counters");
    let add = |db: &Db, amount: u64| {
        db.run(|tx| {
            let old = number(tx.get(&table, b"n")?);
            tx.put(&table, b"n", &(old + amount).to_le_bytes())
        })
    };
    let runs = Cell::new(0);
    let done = house.db.run_with(RunOptions::default(), |tx| {
        let old = number(tx.get(&table, b"n")?);
        if runs.replace(runs.get() + 1) == 0 {
            add(&house.db, 1)?;
        }
        tx.put(&table, b"n", &(old + 10).to_le_bytes())
    });
    assert_eq!(done.unwrap().attempts, 2);
    assert_eq!(number(house.now(&table, b"n")), 11);
    assert_eq!(house.versions(), 2, "the refused attempt left a version");
    assert_eq!(house.sequencer.unended(), 0);
}

fn a_conflict_names_table_key_and_winner(store: impl Store) {
    let house = House::new(store);
    let table = Table::new("t");
    let winner = Cell::new(WritePointer(0));
    let refused = house.db.run_with(once(), |tx| {
        tx.put(&table, b"other", b"")?;
        tx.put(&table, b"k\0", b"mine")?;
        winner.set(house.db.run_with(once(), |other| other.put(&table, b"k\0", b"theirs"))?.tx);
        Ok(())
    });
    let error = refused.unwrap_err();
    assert!(error.is_conflict(), "{error}");
    let Error::RetriesExhausted { attempts: 1, last } = error else { panic!("{error}") };
    assert!(last.is_retryable());
    let Error::Conflict { table, key, winner: named, .. } = *last else { panic!("{last}") };
    assert_eq!((table.as_str(), key.as_slice(), named), ("t", &b"k\0"[..], Some(winner.get())));
}

/// Two on call, each signs off as long as the other is on: returns what became of both.
fn write_skew(house: &House<impl Store>, isolation: Isolation) -> (Result<(), Error>, Result<(), Error>) {
    let table = Table::new("on_call");
    house.set(&table, b"alice", b"yes");
    house.set(&table, b"bob", b"yes");
    let options = RunOptions { isolation, ..once() };
    let sign_off = |mine: &'static [u8], other: &'static [u8], between: &mut dyn FnMut()| {
        let done = house.db.run_with(options, |tx| {
            if tx.get(&table, other)?.as_deref() == Some(b"yes") {
                tx.put(&table, mine, b"no")?;
            }
            between();
            Ok(())
        });
        done.map(|done| done.value)
    };
    let mut second = None;
    let first = sign_off(b"alice", b"bob", &mut || second = Some(sign_off(b"bob", b"alice", &mut || {})));
    (first, second.unwrap())
}

fn write_skew_is_possible_under_snapshot_isolation(store: impl Store) {
    let house = House::new(store);
    let (first, second) = write_skew(&house, Isolation::Snapshot);
    first.unwrap();
    second.unwrap();
    let table = Table::new("on_call");
    assert_eq!(house.now(&table, b"alice").as_deref(), Some(&b"no"[..]));
    assert_eq!(house.now(&table, b"bob").as_deref(), Some(&b"no"[..]));
}

fn write_skew_is_refused_where_both_are_serializable(store: impl Store) {
    let house = House::new(store);
    let (first, second) = write_skew(&house, Isolation::Serializable);
    second.unwrap();
    let error = first.unwrap_err();
    let Error::RetriesExhausted { last, .. } = &error else { panic!("{error}") };
    let Error::Conflict { key, .. } = &**last else { panic!("{last}") };
    assert_eq!(key, b"bob", "the conflict is on what was read");
    assert_eq!(house.now(&Table::new("on_call"), b"alice").as_deref(), Some(&b"yes"[..]));
}

fn a_serializable_scan_refuses_phantoms(store: impl Store) {
    let house = House::new(store);
    let table = Table::new("t");
    let options = RunOptions { isolation: Isolation::Serializable, ..once() };
    let refused = house.db.run_with(options, |tx| {
        tx.put(&table, b"own", b"")?;
        assert_eq!(tx.scan(&table, ..)?.count(), 1);
        house.db.run_with(options, |other| other.put(&table, b"phantom", b"")).map(drop)
    });
    let Err(Error::RetriesExhausted { last, .. }) = &refused else { panic!("{refused:?}") };
    assert!(matches!(&**last, Error::RangeConflict { prefix, .. } if prefix.is_empty()), "{last}");
    assert_eq!((house.versions(), house.sequencer.unended()), (1, 0), "what was refused was taken back");
    // Its own writes into the range are no conflict.
    let own = house.db.run_with(options, |tx| {
        let seen = tx.scan(&table, ..)?.count();
        tx.put(&table, b"own", &[seen as u8])
    });
    own.unwrap();
    assert_eq!(house.now(&table, b"own"), Some(vec![1]));
}

fn a_half_written_transaction_is_seen_by_nobody(store: impl Store) {
    let house = House::new(store);
    let table = Table::new("t");
    for key in [b"a", b"b", b"c"] {
        house.set(&table, key, b"old");
    }
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (db, read_table, note) = (house.db.clone(), table.clone(), seen.clone());
    house.store.before(move |_| {
        let view = db.snapshot().unwrap();
        let values = [b"a", b"b", b"c"].map(|key| view.get(&read_table, key).unwrap().unwrap());
        let scanned = view.scan(&read_table, ..).unwrap().map(|entry| entry.unwrap().value);
        note.lock().unwrap().push((values.to_vec(), scanned.collect::<Vec<_>>()));
        Ok(())
    });
    let put_all = |tx: &mut seriatim_kv::Tx<'_>| [b"a", b"b", b"c"].iter().try_for_each(|k| tx.put(&table, *k, b"new"));
    house.db.run(put_all).unwrap();
    let seen = std::mem::take(&mut *seen.lock().unwrap());
    assert_eq!(seen.len(), 4, "before each of three puts and the flush");
    let old = vec![b"old".to_vec(); 3];
    assert!(seen.iter().all(|(got, scanned)| *got == old && *scanned == old), "{seen:?}");
    assert_eq!(house.now(&table, b"c").as_deref(), Some(&b"new"[..]));
}

fn a_dead_writers_versions_stay_excluded(store: impl Store) {
    let house = House::new(store);
    let table = Table::new("t");
    house.set(&table, b"a", b"old");
    house.set(&table, b"b", b"old");
    let mut puts = 0;
    house.store.before(move |op| {
        puts += usize::from(op == Op::Put);
        assert!(puts < 2, "planted: the writer dies between its two writes");
        Ok(())
    });
    let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        house.db.run(|tx| tx.put(&table, b"a", b"half").and_then(|()| tx.put(&table, b"b", b"half")))
    }));
    assert!(died.is_err());
    house.store.unhook();
    assert!(matches!(house.sequencer.last_status(), Status::Invalid(_)), "{:?}", house.sequencer.last_status());
    assert_eq!(house.versions(), 3, "the half that was written is still there");
    assert_eq!(house.now(&table, b"a").as_deref(), Some(&b"old"[..]));
    house.db.run(|tx| tx.put(&table, b"a", b"next")).unwrap();
    assert_eq!(house.now(&table, b"a").as_deref(), Some(&b"next"[..]));
}

fn a_transaction_reads_its_own_writes_and_one_snapshot(store: impl Store) {
    let house = House::new(store);
    let table = Table::new("t");
    house.set(&table, b"theirs", b"1");
    house.set(&table, b"mine", b"1");
    let done = house.db.run(|tx| {
        house.set(&table, b"theirs", b"2");
        house.set(&table, b"new", b"2");
        assert_eq!(tx.get(&table, b"theirs")?.as_deref(), Some(&b"1"[..]), "a snapshot stands still");
        assert_eq!(tx.get(&table, b"new")?, None);
        tx.put(&table, b"mine", b"2")?;
        assert_eq!(tx.get(&table, b"mine")?.as_deref(), Some(&b"2"[..]));
        tx.delete(&table, b"mine")?;
        assert_eq!(tx.get(&table, b"mine")?, None);
        Ok(())
    });
    done.unwrap();
    assert_eq!(house.now(&table, b"mine"), None);
}

fn a_scan_merges_own_writes_and_the_snapshot(store: impl Store) {
    let house = House::new(store);
    let table = Table::new("t");
    for key in ["b", "d", "f", "h"] {
        house.set(&table, key.as_bytes(), b"old");
    }
    house.db.run(|tx| tx.delete(&table, b"h")).unwrap();
    house.set(&Table::new("s"), b"z", b"another table");
    house.set(&Table::new("u"), b"a", b"another table");
    let scan = |scan: seriatim_kv::Scan<'_>| -> Vec<String> {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        scan.map(|entry| entry.unwrap()).map(|e| format!("{}={}", text(e.key), text(e.value))).collect()
    };
    let done = house.db.run(|tx| {
        for key in ["a", "d", "e", "g"] {
            tx.put(&table, key.as_bytes(), b"own")?;
        }
        tx.delete(&table, b"f")?;
        tx.delete(&table, b"c")?;
        house.set(&table, b"cc", b"too late to be seen");
        assert_eq!(scan(tx.scan(&table, ..)?), ["a=own", "b=old", "d=own", "e=own", "g=own"]);
        assert_eq!(scan(tx.scan(&table, "b".."e")?), ["b=old", "d=own"]);
        assert_eq!(scan(tx.scan(&table, "d"..="e")?), ["d=own", "e=own"]);
        assert_eq!(scan(tx.scan(&table, "e"..)?), ["e=own", "g=own"]);
        assert_eq!(scan(tx.scan(&table, "e".."b")?), [""; 0]);
        Ok(())
    });
    done.unwrap();
    let now = house.db.snapshot().unwrap();
    assert_eq!(
        scan(now.scan(&table, ..).unwrap()),
        ["a=own", "b=old", "cc=too late to be seen", "d=own", "e=own", "g=own"]
    );
}

fn a_view_stands_still_while_others_commit(store: impl Store) {
    let house = House::new(store);
    let table = Table::new("t");
    for n in 0..600_u32 {
        house.set(&table, &n.to_be_bytes(), b"0");
    }
    let view = house.db.snapshot().unwrap();
    let mut scan = view.scan(&table, ..).unwrap();
    let mut seen = 0;
    for round in 1..=2_u8 {
        // Overwritten, deleted and new keys, before and behind the place where the scan stands, over page borders.
        for n in (0..700_u32).step_by(7) {
            house.set(&table, &n.to_be_bytes(), &[round]);
            house.db.run(|tx| tx.delete(&table, &(n + 1).to_be_bytes())).unwrap();
        }
        for entry in scan.by_ref().take(200) {
            assert_eq!(entry.unwrap().value, b"0");
            seen += 1;
        }
    }
    assert_eq!(seen + scan.count(), 600);
}

fn a_newest_version_is_found_below_many_excluded_ones(store: impl Store) {
    let house = House::new(store);
    let table = Table::new("t");
    house.set(&table, b"a", b"good");
    house.set(&table, b"b", b"good");
    house.store.fail_from(Op::Flush, 1, false);
    for _ in 0..100 {
        let lost =
            house.db.run_with(once(), |tx| tx.put(&table, b"a", b"bad").and_then(|()| tx.put(&table, b"b", b"bad")));
        assert!(matches!(lost, Err(Error::Store(_))));
    }
    house.store.unhook();
    house.set(&table, b"c", b"good");
    let view = house.db.snapshot().unwrap();
    assert_eq!(view.get(&table, b"a").unwrap().as_deref(), Some(&b"good"[..]));
    let scanned: Vec<_> = view.scan(&table, ..).unwrap().map(|entry| entry.unwrap().value).collect();
    assert_eq!(scanned, [b"good", b"good", b"good"]);
}

fn a_transaction_that_wrote_nothing_commits_nothing(store: impl Store) {
    let house = House::new(store);
    let done = house.db.run_with(RunOptions::default(), |tx| tx.get(&Table::new("t"), b"k")).unwrap();
    assert_eq!((done.value, done.csn), (None, None));
    assert_eq!(house.sequencer.status(done.tx), Status::Aborted);
    assert_eq!(house.store.take_ops(), []);
}

fn two_tables_commit_together(store: impl Store) {
    let house = House::new(store);
    let (first, second) = (house.db.table("first"), house.db.table("second"));
    let done = house.db.run_with(once(), |tx| {
        tx.put(&first, b"k", b"1")?;
        tx.put(&second, b"k", b"2")
    });
    let csn = done.unwrap().csn.unwrap();
    let view = house.db.snapshot().unwrap();
    assert!(view.snapshot().csn >= csn);
    assert_eq!(view.get(&first, b"k").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(view.get(&second, b"k").unwrap().as_deref(), Some(&b"2"[..]));
    assert_eq!(view.entry(&first, b"k").unwrap().unwrap().version, view.entry(&second, b"k").unwrap().unwrap().version);
}
