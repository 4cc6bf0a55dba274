//! Random histories against a map per snapshot: every view ever taken must go on reading what its map holds.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::Ordering;

use seriatim_kv::core::WritePointer;
use seriatim_kv::{Error, PageLimits, Scan, Store, StoreName, Table, Versions, View};

use crate::support::{CommitFault, House, Op, once};

crate::on_every_store!(
    every_view_agrees_with_the_model,
    every_view_agrees_with_the_model_while_the_store_is_cleaned,
    stores_answer_bounded_questions_alike,
);

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

const STEPS: usize = 400;
const VIEWS_KEPT: usize = 12;

/// Keys of up to three letters, zero bytes among them, so that prefixes and escapes are common.
fn key(random: &mut fastrand::Rng) -> Vec<u8> {
    (0..random.usize(0..4)).map(|_| random.choice([0x00, 0x01, 0x61, 0xff]).unwrap()).collect()
}

fn bound(random: &mut fastrand::Rng) -> Bound<Vec<u8>> {
    match random.u8(0..5) {
        0 => Bound::Unbounded,
        1 | 2 => Bound::Included(key(random)),
        _ => Bound::Excluded(key(random)),
    }
}

fn in_range(model: &Model, low: &Bound<Vec<u8>>, high: &Bound<Vec<u8>>) -> Vec<(Vec<u8>, Vec<u8>)> {
    let range = (low.clone(), high.clone());
    let inside = |key: &Vec<u8>| std::ops::RangeBounds::<Vec<u8>>::contains(&range, key);
    model.iter().filter(|(key, _)| inside(key)).map(|(key, value)| (key.clone(), value.clone())).collect()
}

fn collect(scan: Scan<'_>) -> Vec<(Vec<u8>, Vec<u8>)> {
    scan.map(|entry| entry.unwrap()).map(|entry| (entry.key, entry.value)).collect()
}

fn every_view_agrees_with_the_model(store: impl Store) {
    views_agree(store, false);
}

fn every_view_agrees_with_the_model_while_the_store_is_cleaned(store: impl Store) {
    views_agree(store, true);
}

/// Cleans, and is stopped somewhere as often as not.
fn clean(house: &House<impl Store>, random: &mut fastrand::Rng) {
    let name = StoreName::new("model").unwrap();
    match random.u8(0..6) {
        0 => house.store.fail_from(Op::Remove, random.usize(1..20), random.bool()),
        1 => house.store.fail_from(Op::Flush, random.usize(1..3), random.bool()),
        2 => house.sequencer.deaf_to_stores.store(true, Ordering::SeqCst),
        _ => {}
    }
    let cleaned = house.db.clean(&name);
    house.store.unhook();
    house.sequencer.deaf_to_stores.store(false, Ordering::SeqCst);
    if let Ok(cleaned) = cleaned {
        assert!(house.sequencer.invalid().iter().all(|tx| *tx > cleaned.bounds.clean));
    }
}

fn views_agree(store: impl Store, cleans: bool) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let house = House::new(store);
    let table = Table::new("model");
    let mut model = Model::new();
    let mut views: Vec<(View, Model)> = Vec::new();
    for step in 0..STEPS {
        let mut after = model.clone();
        // One transaction in four does not commit, for one reason or another.
        let fate = random.u8(0..16);
        match fate {
            0 => house.store.fail_from(Op::Put, random.usize(1..4), random.bool()),
            1 => house.store.fail_from(Op::Flush, 1, random.bool()),
            3 => house.store.leave_versions_from(random.usize(1..5)),
            2 => house.sequencer.faults.lock().unwrap().push_back(CommitFault::RequestLost),
            _ => house.store.unhook(),
        }
        let done = house.db.run_with(once(), |tx| {
            for _ in 0..random.usize(0..6) {
                let key = key(&mut random);
                if random.u8(0..3) == 0 {
                    tx.delete(&table, &key)?;
                    after.remove(&key);
                } else {
                    let value = step.to_le_bytes().to_vec();
                    tx.put(&table, &key, &value)?;
                    after.insert(key, value);
                }
                let (low, high) = (bound(&mut random), bound(&mut random));
                let expected = in_range(&after, &low, &high);
                assert_eq!(collect(tx.scan(&table, (low, high))?), expected, "own scan at step {step}");
            }
            if fate == 4 { Err(Error::abort("changed its mind")) } else { Ok(()) }
        });
        match done {
            Ok(_) => model = after,
            Err(_) => assert!(fate < 5, "step {step}"),
        }
        house.sequencer.faults.lock().unwrap().clear();
        house.store.unhook();
        let view = house.db.snapshot().unwrap();
        house.sequencer.add_reader(view.snapshot());
        views.push((view, model.clone()));
        if views.len() > VIEWS_KEPT {
            let (view, _) = views.swap_remove(random.usize(0..VIEWS_KEPT));
            house.sequencer.remove_reader(view.snapshot());
        }
        if cleans && random.u8(0..4) == 0 {
            clean(&house, &mut random);
        }
        let (view, then) = &views[random.usize(0..views.len())];
        let (low, high) = (bound(&mut random), bound(&mut random));
        let expected = in_range(then, &low, &high);
        assert_eq!(collect(view.scan(&table, (low, high)).unwrap()), expected, "a view's scan at step {step}");
        let key = key(&mut random);
        assert_eq!(view.get(&table, &key).unwrap(), then.get(&key).cloned(), "{key:02x?} at step {step}");
    }
    assert_eq!(house.sequencer.unended(), 0);
    if cleans {
        views.iter().for_each(|(view, _)| house.sequencer.remove_reader(view.snapshot()));
        house.db.clean(&StoreName::new("model").unwrap()).unwrap();
        assert_eq!(house.versions(), model.len(), "one version of each key that is there");
        assert_eq!(house.sequencer.invalid(), []);
        assert_eq!(collect(house.db.snapshot().unwrap().scan(&table, ..).unwrap()), Vec::from_iter(model));
    }
}

/// Versions newest first, as (pointer, value), and whether there are more.
type Found = (Vec<(u64, Option<Vec<u8>>)>, bool);

/// The paging contract of [`Store`], against the answer of a scan without limits.
fn stores_answer_bounded_questions_alike(store: impl Store) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut model = BTreeMap::new();
    let row = |n: u8| vec![b'r', n, 0, 1];
    for _ in 0..3000 {
        let (row, pointer) = (row(random.u8(0..24)), WritePointer(random.u64(1..200)));
        let id = (row.clone(), Reverse(pointer));
        if random.u8(0..4) == 0 {
            store.remove(&row, pointer).unwrap();
            model.remove(&id);
        } else {
            let value = random.bool().then(|| vec![random.u8(..)]);
            store.put(&row, pointer, value.as_deref()).unwrap();
            model.insert(id, value);
        }
    }
    for _ in 0..300 {
        let at_most = WritePointer(random.u64(0..220));
        let limits = PageLimits { rows: random.usize(1..8), versions: random.usize(1..40) };
        let (start, end) = (row(random.u8(0..24)), row(random.u8(0..26)));
        let mut expected: BTreeMap<Vec<u8>, Found> = BTreeMap::new();
        for ((row, pointer), value) in &model {
            if *row < start || *row >= end || pointer.0 > at_most {
                continue;
            }
            let (versions, more) = expected.entry(row.clone()).or_default();
            match versions.len() == limits.versions {
                true => *more = true,
                false => versions.push((pointer.0.0, value.clone())),
            }
        }
        let found = |versions: Versions| -> Found {
            (versions.newest.into_iter().map(|v| (v.pointer.0, v.value)).collect(), versions.more)
        };
        let mut pages = Vec::new();
        let mut next = Some(start.clone());
        while let Some(from) = next {
            let page = store.scan(&from, &end, at_most, limits).unwrap();
            assert!(page.rows.len() <= limits.rows);
            pages.extend(page.rows.into_iter().map(|row| (row.row, found(row.versions))));
            next = page.next;
            assert!(next.as_ref().is_none_or(|next| *next > from), "a page must go on behind its start");
        }
        assert!(pages.is_sorted_by_key(|(row, _)| row.clone()));
        for (row, expected) in &expected {
            assert_eq!(found(store.versions(row, at_most, limits.versions).unwrap()), *expected);
        }
        assert_eq!(BTreeMap::from_iter(pages), expected, "{limits:?} at most {at_most}");
    }
}
