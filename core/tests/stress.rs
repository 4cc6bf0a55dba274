//! Two threads and a publisher beside them: of two overlapping transactions with a common id at most one commits, no
//! snapshot shows half of anything, and every transaction has one end.
#![cfg(not(loom))]

mod house;

use std::collections::HashMap;
use std::sync::Arc;
use std::thread;

use house::{NOW, Random, house, writes};
use seriatim_core::*;

const ROUNDS: u64 = 120_000;

struct Committed {
    csn: u64,
    tx: WritePointer,
    snapshot: u64,
    ids: Vec<u64>,
}

fn work(sequencer: &Sequencer, seed: u64, ids: u64) -> Vec<Committed> {
    let mut random = Random::new(seed);
    let mut scratch = Scratch::new();
    let mut committed = Vec::new();
    let mut rounds = 0;
    while rounds < ROUNDS {
        let Ok(begun) = sequencer.begin(NOW, &BeginOptions::default(), 2, seed) else {
            thread::yield_now();
            continue;
        };
        assert!(begun.first > begun.snapshot.read_pointer, "seed {seed}");
        for tx in [begun.first, WritePointer(begun.first.0 + 1)] {
            rounds += 1;
            let ids: Vec<u64> = (0..1 + random.below(6)).map(|_| random.below(ids)).collect();
            let end_anyhow = || {
                while let End::Denied(_) = sequencer.abort(tx) {
                    thread::yield_now();
                }
            };
            if random.one_in(20) {
                end_anyhow();
                continue;
            }
            match sequencer.commit(NOW, tx, &writes(&ids), &mut scratch) {
                Decision::Committed { csn, .. } => {
                    committed.push(Committed { csn: csn.0, tx, snapshot: begun.snapshot.csn.0, ids });
                }
                Decision::Refused { error: CommitError::Conflict { csn, .. }, .. } => {
                    assert!(csn > begun.snapshot.csn, "seed {seed}");
                    end_anyhow();
                }
                Decision::Refused { error: CommitError::TooOld { mark, .. }, .. } => {
                    assert!(mark > begun.snapshot.csn, "seed {seed}");
                    end_anyhow();
                }
                Decision::Denied(CommitError::Overloaded(Full::EventRing)) => end_anyhow(),
                other => panic!("seed {seed}: {other:?}"),
            }
        }
    }
    committed
}

fn first_committer_wins(conflict_index_bytes: usize, ids: u64) {
    let limits = Limits { open_max: 64, conflict_index_bytes, event_ring_slots: 128, winners: 16, ..Limits::default() };
    let (sequencer, mut house) = house(limits, 1_000, 1 << 40);
    let workers = [1, 2].map(|seed| {
        let sequencer = sequencer.clone();
        thread::spawn(move || work(&sequencer, seed, ids))
    });
    let mut shown: Vec<Arc<Snapshot>> = Vec::new();
    let mut now_ms = 0;
    while workers.iter().any(|worker| !worker.is_finished()) {
        now_ms += 1;
        house.tick(now_ms / 8);
        if !house.publish().is_empty() {
            shown.push(sequencer.snapshot());
        }
        thread::yield_now();
    }
    house.publish();
    let mut committed: Vec<Committed> = workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect();
    committed.sort_by_key(|commit| commit.csn);
    assert!(committed.iter().map(|commit| commit.csn).eq(1..=committed.len() as u64), "commit numbers have no hole");
    assert!(committed.len() as u64 > ROUNDS / 200, "hardly anything committed: {}", committed.len());
    let mut last: HashMap<u64, (u64, WritePointer)> = HashMap::new();
    for commit in &committed {
        for id in &commit.ids {
            if let Some((csn, tx)) = last.insert(*id, (commit.csn, commit.tx))
                && csn != commit.csn
            {
                assert!(csn <= commit.snapshot, "commits {csn} and {} overlap on id {id}", commit.csn);
                assert!(tx < commit.tx, "pointer order is not commit order: {tx}, then {}", commit.tx);
            }
        }
    }
    // Snapshots are prefixes of the commits.
    for snapshot in shown.iter().step_by(1 + shown.len() / 50) {
        for commit in &committed {
            assert_eq!(snapshot.is_visible(commit.tx), commit.csn <= snapshot.csn.0, "commit {}", commit.csn);
        }
    }
    assert_eq!((sequencer.open_len(), sequencer.snapshot().in_progress.len()), (0, 0));
}

/// Two threads end the same transactions in their own ways at the same time.
#[test]
fn every_transaction_has_one_end() {
    // Long enough that both threads are awake for most of it.
    const BLOCK: u32 = 8_192;
    const BLOCKS: u64 = 40;
    let limits =
        Limits { open_max: 2 * BLOCK, conflict_index_bytes: 1 << 16, event_ring_slots: 4 * BLOCK, ..Limits::default() };
    let (sequencer, mut house) = house(limits, 1_000, 1 << 40);
    let both = Arc::new(std::sync::Barrier::new(2));
    let (sender, receiver) = std::sync::mpsc::channel::<WritePointer>();
    let pointers = |first: WritePointer| (first.0..first.0 + u64::from(BLOCK)).map(WritePointer);
    let committer = thread::spawn({
        let (sequencer, both) = (sequencer.clone(), both.clone());
        move || {
            let (mut random, mut scratch, mut won) = (Random::new(9), Scratch::new(), 0);
            for _ in 0..BLOCKS {
                let first = loop {
                    match sequencer.begin(NOW, &BeginOptions::default(), BLOCK, 0) {
                        Ok(begun) => break begun.first,
                        Err(_) => thread::yield_now(),
                    }
                };
                sender.send(first).unwrap();
                both.wait();
                for tx in pointers(first) {
                    match sequencer.commit(NOW, tx, &writes(&[random.below(1 << 40)]), &mut scratch) {
                        Decision::Committed { .. } => won += 1,
                        Decision::Refused { .. }
                        | Decision::Denied(_)
                        | Decision::Ending { .. }
                        | Decision::Unknown => {}
                    }
                }
                both.wait();
            }
            won
        }
    });
    let aborter = thread::spawn({
        let sequencer = sequencer.clone();
        move || {
            let mut won = 0;
            for first in receiver {
                both.wait();
                for tx in pointers(first) {
                    let end = loop {
                        match sequencer.abort(tx) {
                            End::Denied(_) => thread::yield_now(),
                            end => break end,
                        }
                    };
                    won += u64::from(matches!(end, End::Ended { .. }));
                }
                both.wait();
            }
            won
        }
    });
    while !committer.is_finished() || !aborter.is_finished() {
        house.publish();
        thread::yield_now();
    }
    house.publish();
    // A second end of any of them would have been refused by the published state, and a missing one left it open.
    let commits = house.published.csn().0;
    let (committed, aborted) = (committer.join().unwrap(), aborter.join().unwrap());
    assert_eq!((committed, committed + aborted), (commits, BLOCKS * u64::from(BLOCK)));
    assert_eq!((sequencer.open_len(), house.published.open_len()), (0, 0));
}

#[test]
fn first_committer_wins_on_a_few_hot_ids() {
    first_committer_wins(1 << 12, 40);
}

#[test]
fn first_committer_wins_in_an_index_that_forgets() {
    first_committer_wins(256, 200);
}

#[test]
fn first_committer_wins_in_one_bucket() {
    first_committer_wins(64, 12);
}
