//! Random histories against a map per snapshot: every view ever taken must go on reading what its map holds.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Bound;

use seriatim_kv::core::WritePointer;
use seriatim_kv::{Error, PageLimits, Scan, Store, Table, Versions, View};

use crate::support::{CommitFault, House, Op, once};

crate::on_every_store!(every_view_agrees_with_the_model, stores_answer_bounded_questions_alike);

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
            if fate == 3 { Err(Error::abort("changed its mind")) } else { Ok(()) }
        });
        match done {
            Ok(_) => model = after,
            Err(_) => assert!(fate < 4, "step {step}"),
        }
        house.sequencer.faults.lock().unwrap().clear();
        house.store.unhook();
        views.push((house.db.snapshot().unwrap(), model.clone()));
        if views.len() > VIEWS_KEPT {
            views.swap_remove(random.usize(0..VIEWS_KEPT));
        }
        let (view, then) = &views[random.usize(0..views.len())];
        let (low, high) = (bound(&mut random), bound(&mut random));
        let expected = in_range(then, &low, &high);
        assert_eq!(collect(view.scan(&table, (low, high)).unwrap()), expected, "a view's scan at step {step}");
        let key = key(&mut random);
        assert_eq!(view.get(&table, &key).unwrap(), then.get(&key).cloned(), "{key:02x?} at step {step}");
    }
    assert_eq!(house.sequencer.unended(), 0);
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
