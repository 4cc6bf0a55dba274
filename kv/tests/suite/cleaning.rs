//! Cleaning a store: what goes, what stays, and what a crash on the way leaves, over every store.

use std::sync::atomic::Ordering;

use crate::support::{House, Op, once};
use seriatim_kv::core::{CleanBound, InvalidCause, Status, WritePointer};
use seriatim_kv::{Cleaned, Coordinator, Error, Store, StoreName, Table};

crate::on_every_store!(
    what_invalid_transactions_left_goes_and_then_they_are_forgotten,
    of_old_versions_the_newest_stays,
    a_deleted_key_leaves_nothing_behind,
    an_older_reader_keeps_what_it_needs,
    an_open_transaction_holds_back_what_it_may_need,
    nothing_is_acknowledged_before_the_removal_is_durable,
    a_crash_anywhere_on_the_way_repeats_harmlessly,
    a_tombstone_outlives_what_it_hides_whatever_is_lost,
    another_store_that_was_not_cleaned_keeps_the_invalid_ones,
    a_row_with_very_many_versions_is_cleaned_to_its_end,
);

fn table() -> Table {
    Table::new("t")
}

fn name() -> StoreName {
    StoreName::new("purses").unwrap()
}

/// Somebody dies with versions of `a` in the store; answers who.
fn half_written<S: Store>(house: &House<S>) -> WritePointer {
    house.store.leave_versions_from(2);
    let failed = house.db.run_with(once(), |tx| {
        tx.put(&table(), b"a", b"half")?;
        tx.put(&table(), b"b", b"half")
    });
    assert!(matches!(failed, Err(Error::RetriesExhausted { .. } | Error::Store(_))));
    house.store.unhook();
    assert_eq!(house.sequencer.last_status(), Status::Invalid(InvalidCause::Asked));
    house.sequencer.last()
}

fn delete<S: Store>(house: &House<S>, key: &[u8]) {
    house.db.run(|tx| tx.delete(&table(), key)).unwrap();
}

fn what_invalid_transactions_left_goes_and_then_they_are_forgotten(store: impl Store) {
    let house = House::new(store);
    house.set(&table(), b"a", b"1");
    let dead = half_written(&house);
    assert_eq!((house.versions(), house.sequencer.invalid()), (2, vec![dead]));
    let Cleaned { bounds, rows, invalid, outdated } = house.db.clean(&name()).unwrap();
    assert!(bounds.clean > dead, "nobody else was there to end after it");
    assert_eq!((rows, invalid, outdated), (1, 1, 0));
    assert_eq!((house.versions(), house.sequencer.invalid()), (1, Vec::new()));
    assert_eq!(house.sequencer.status(dead), Status::Forgotten);
    assert_eq!(house.now(&table(), b"a").as_deref(), Some(&b"1"[..]));
    let again = house.db.clean(&name()).unwrap();
    assert_eq!((again.invalid, again.outdated), (0, 0));
}

fn of_old_versions_the_newest_stays(store: impl Store) {
    let house = House::new(store);
    for value in 1..=5_u8 {
        house.set(&table(), b"a", &[value]);
        house.set(&Table::new("other"), b"", &[value]);
    }
    let dead = half_written(&house);
    // Newer than the dead one's, so that this is found below the newest.
    house.set(&table(), b"a", &[6]);
    let cleaned = house.db.clean(&name()).unwrap();
    assert_eq!((cleaned.rows, cleaned.invalid, cleaned.outdated), (2, 1, 9));
    assert!(cleaned.bounds.visible > dead);
    assert_eq!(house.versions(), 2);
    assert_eq!(house.now(&table(), b"a"), Some(vec![6]));
    assert_eq!(house.now(&Table::new("other"), b""), Some(vec![5]));
}

fn a_deleted_key_leaves_nothing_behind(store: impl Store) {
    let house = House::new(store);
    house.set(&table(), b"a", b"1");
    house.set(&table(), b"b", b"1");
    delete(&house, b"a");
    delete(&house, b"never there");
    assert_eq!(house.db.clean(&name()).unwrap().outdated, 3);
    assert_eq!((house.versions(), house.now(&table(), b"a")), (1, None));
}

fn an_older_reader_keeps_what_it_needs(store: impl Store) {
    let house = House::new(store);
    house.set(&table(), b"a", b"1");
    house.set(&table(), b"gone", b"1");
    house.set(&table(), b"a", b"2");
    let view = house.db.snapshot().unwrap();
    house.sequencer.add_reader(view.snapshot());
    house.set(&table(), b"a", b"3");
    delete(&house, b"gone");
    half_written(&house);
    let cleaned = house.db.clean(&name()).unwrap();
    assert_eq!((cleaned.invalid, cleaned.outdated), (1, 1), "the dead one's, and what the reader has no use for");
    assert_eq!(view.get(&table(), b"a").unwrap().as_deref(), Some(&b"2"[..]));
    assert_eq!(view.get(&table(), b"gone").unwrap().as_deref(), Some(&b"1"[..]));
    assert_eq!(house.now(&table(), b"a").as_deref(), Some(&b"3"[..]));
    assert_eq!(house.now(&table(), b"gone"), None);
    house.sequencer.remove_reader(view.snapshot());
    assert_eq!(house.db.clean(&name()).unwrap().outdated, 3);
    assert_eq!(house.versions(), 1);
}

fn an_open_transaction_holds_back_what_it_may_need(store: impl Store) {
    let house = House::new(store);
    house.set(&table(), b"a", b"1");
    house
        .db
        .run(|tx| {
            house.set(&table(), b"a", b"2");
            let dead = half_written(&house);
            let cleaned = house.db.clean(&name()).unwrap();
            assert_eq!((cleaned.invalid, cleaned.outdated), (0, 0));
            assert!(cleaned.bounds.clean < tx.write_pointer(), "it may write yet");
            assert_eq!(house.sequencer.invalid(), [dead]);
            assert_eq!(tx.get(&table(), b"a")?.as_deref(), Some(&b"1"[..]));
            Ok(())
        })
        .unwrap();
    let cleaned = house.db.clean(&name()).unwrap();
    assert_eq!((cleaned.invalid, cleaned.outdated), (1, 1));
}

fn nothing_is_acknowledged_before_the_removal_is_durable(store: impl Store) {
    let house = House::new(store);
    house.set(&table(), b"a", b"1");
    let dead = half_written(&house);
    house.store.take_ops();
    let sequencer = house.sequencer.clone();
    house.store.before(move |op| {
        assert_eq!(sequencer.invalid(), [dead], "forgotten before {op:?}");
        Ok(())
    });
    house.db.clean(&name()).unwrap();
    assert_eq!(house.store.take_ops(), [Op::Remove, Op::Flush]);
    house.store.unhook();
    assert_eq!(house.sequencer.invalid(), []);
}

fn a_crash_anywhere_on_the_way_repeats_harmlessly(store: impl Store) {
    let house = House::new(store);
    let expected = |house: &House<_>| {
        assert_eq!(house.now(&table(), b"a").as_deref(), Some(&b"2"[..]));
        assert_eq!(house.now(&table(), b"b"), None);
    };
    for (op, nth) in
        [(Op::Remove, 1), (Op::Remove, 2), (Op::Remove, 3), (Op::Remove, 4), (Op::Flush, 1), (Op::Flush, 2)]
    {
        house.set(&table(), b"a", b"1");
        house.set(&table(), b"b", b"1");
        house.set(&table(), b"a", b"2");
        delete(&house, b"b");
        let dead = half_written(&house);
        house.store.fail_from(op, nth, false);
        assert!(matches!(house.db.clean(&name()), Err(Error::Store(_))), "{op:?} {nth}");
        house.store.unhook();
        assert_eq!(house.sequencer.invalid(), [dead], "{op:?} {nth}");
        expected(&house);
        // The acknowledgement alone is lost.
        house.sequencer.deaf_to_stores.store(true, Ordering::SeqCst);
        assert!(matches!(house.db.clean(&name()), Err(Error::Transport(_))));
        house.sequencer.deaf_to_stores.store(false, Ordering::SeqCst);
        assert_eq!((house.versions(), house.sequencer.invalid()), (1, vec![dead]));
        house.db.clean(&name()).unwrap();
        assert_eq!((house.versions(), house.sequencer.invalid()), (1, Vec::new()));
        expected(&house);
    }
}

/// A power cut takes back removals that were not flushed, in any order. Were the tombstone's among those that held and the
/// removal of what it hides among those that did not, a deleted key would be back.
fn a_tombstone_outlives_what_it_hides_whatever_is_lost(store: impl Store) {
    let house = House::new(store);
    house.set(&table(), b"a", b"1");
    house.set(&table(), b"a", b"2");
    delete(&house, b"a");
    house.store.take_ops();
    house.db.clean(&name()).unwrap();
    assert_eq!(house.store.take_ops(), [Op::Remove, Op::Remove, Op::Flush, Op::Remove, Op::Flush]);
    assert_eq!(house.versions(), 0);
}

fn another_store_that_was_not_cleaned_keeps_the_invalid_ones(store: impl Store) {
    let house = House::new(store);
    let other = StoreName::new("other").unwrap();
    assert!(house.sequencer.register_store(&other).unwrap());
    house.set(&table(), b"a", b"1");
    let dead = half_written(&house);
    let CleanBound { clean, .. } = house.db.clean(&name()).unwrap().bounds;
    assert_eq!((house.versions(), house.sequencer.invalid()), (1, vec![dead]));
    house.sequencer.store_cleaned(&other, clean).unwrap();
    assert_eq!(house.sequencer.invalid(), []);
}

fn a_row_with_very_many_versions_is_cleaned_to_its_end(store: impl Store) {
    let house = House::new(store);
    for value in 0..500_u64 {
        house.set(&table(), b"a", &value.to_le_bytes());
        if value % 100 == 99 {
            half_written(&house);
        }
    }
    for key in 0..600_u64 {
        house.set(&table(), &key.to_be_bytes(), b"v");
    }
    let cleaned = house.db.clean(&name()).unwrap();
    assert_eq!((cleaned.rows, cleaned.invalid, cleaned.outdated), (601, 5, 499));
    assert_eq!(house.versions(), 601);
    assert_eq!(house.now(&table(), b"a"), Some(499_u64.to_le_bytes().to_vec()));
}
