//! Histories of a small store, by seed: good ones stay clean, and each way to make one wrong is found.

mod common;

use common::{FEW, Options, Ran, run};
use seriatim_history::{History, Isolation, Kind, Outcome, Report, Row};

fn judge(rows: &[Row]) -> Report {
    let mut history = History::new();
    rows.iter().cloned().for_each(|row| history.push(row).expect("the row makes sense"));
    history.judge(3)
}

/// Without numbers and times, as a store that does not tell them.
fn bare(rows: &[Row]) -> Vec<Row> {
    let bare = |row: &Row| Row { begin: None, end: None, csn: None, snapshot: None, ..row.clone() };
    rows.iter().map(bare).collect()
}

fn seeds(count: u64) -> std::ops::Range<u64> {
    let first = fastrand::u64(..u64::MAX - count);
    println!("seeds from {first}");
    first..first + count
}

#[track_caller]
fn assert_clean(rows: &[Row], seed: u64) -> Report {
    let report = judge(rows);
    assert!(!report.failed, "seed {seed}: {report}");
    report
}

#[test]
fn good_histories_are_clean() {
    let mut skews = 0;
    for seed in seeds(1000) {
        let isolation = if seed % 2 == 0 { Isolation::Snapshot } else { Isolation::Serializable };
        let Ran { rows, wrongly_committed } = run(Options { isolation, ..FEW }, seed);
        assert_eq!(wrongly_committed, 0);
        let reports = [assert_clean(&rows, seed), assert_clean(&bare(&rows), seed)];
        for report in reports {
            assert!(isolation == Isolation::Snapshot || report.write_skews_allowed == 0, "seed {seed}: {report}");
            skews += report.write_skews_allowed;
        }
    }
    assert!(skews > 100, "skews are common in stores as small as this, and there were {skews}");
}

#[test]
fn lost_answers_are_no_anomalies() {
    let mut read = 0;
    for seed in seeds(1000) {
        let isolation = if seed % 2 == 0 { Isolation::Snapshot } else { Isolation::Serializable };
        let rows = run(Options { lost_answers: 30, isolation, ..FEW }, seed).rows;
        read += assert_clean(&rows, seed).unknown_read;
    }
    assert!(read > 1000, "unknown outcomes are read, and only {read} were");
}

/// Makes a history wrong, if it holds what that takes.
type Mutation = fn(&mut [Row], &mut fastrand::Rng) -> Option<()>;

fn pick<T: Copy>(random: &mut fastrand::Rng, items: &[T]) -> Option<T> {
    (!items.is_empty()).then(|| items[random.usize(0..items.len())])
}

/// Rows that somebody else read from, and a key that was read.
fn read_from(rows: &[Row]) -> Vec<(usize, usize, usize)> {
    let writer_of = |pointer| rows.iter().position(|row| row.tx == Some(pointer));
    let reads = rows.iter().enumerate().flat_map(|(reader, row)| (0..row.reads.len()).map(move |read| (reader, read)));
    let foreign = reads.filter_map(|(reader, read)| {
        let writer = writer_of(rows[reader].reads[read].writer?)?;
        (writer != reader).then_some((reader, read, writer))
    });
    foreign.collect()
}

fn swap_a_read(rows: &mut [Row], random: &mut fastrand::Rng) -> Option<()> {
    let (reader, read, writer) = pick(random, &read_from(rows))?;
    let key = rows[reader].reads[read].key.clone();
    let others: Vec<Option<u64>> = (0..rows.len())
        .filter(|other| *other != writer && *other != reader && rows[*other].outcome == Outcome::Committed)
        .filter(|other| rows[*other].writes.contains(&key) || rows[*other].deletes.contains(&key))
        .map(|other| rows[other].tx)
        .collect();
    rows[reader].reads[read].writer = pick(random, &others)?;
    Some(())
}

fn forget_a_read(rows: &mut [Row], random: &mut fastrand::Rng) -> Option<()> {
    let (reader, read, _) = pick(random, &read_from(rows))?;
    rows[reader].reads[read].writer = None;
    Some(())
}

fn drop_a_write(rows: &mut [Row], random: &mut fastrand::Rng) -> Option<()> {
    let (reader, read, writer) = pick(random, &read_from(rows))?;
    let key = rows[reader].reads[read].key.clone();
    rows[writer].writes.retain(|written| *written != key);
    Some(())
}

fn take_a_commit_back(rows: &mut [Row], random: &mut fastrand::Rng) -> Option<()> {
    let (_, _, writer) = pick(random, &read_from(rows))?;
    (rows[writer].outcome, rows[writer].csn) = (Outcome::Aborted, None);
    Some(())
}

fn committed(rows: &[Row]) -> Vec<usize> {
    (0..rows.len()).filter(|row| rows[*row].csn.is_some()).collect()
}

fn shift_a_commit(rows: &mut [Row], random: &mut fastrand::Rng) -> Option<()> {
    let committed = committed(rows);
    let (shifted, last) = (pick(random, &committed[..committed.len().saturating_sub(1)])?, committed.len() as u64);
    let csn = rows[shifted].csn?;
    rows[shifted].csn = Some(if csn > 1 && random.bool() { csn - 1 } else { csn + 1 }.min(last));
    Some(())
}

fn swap_commits(rows: &mut [Row], random: &mut fastrand::Rng) -> Option<()> {
    let committed = committed(rows);
    let (one, other) = (pick(random, &committed)?, pick(random, &committed)?);
    let (csn, other_csn) = (rows[one].csn, rows[other].csn);
    (rows[one].csn, rows[other].csn) = (other_csn, csn);
    (one != other).then_some(())
}

fn shift_a_snapshot(rows: &mut [Row], random: &mut fastrand::Rng) -> Option<()> {
    let last = committed(rows).len() as u64;
    let row = random.usize(0..rows.len());
    let csn = rows[row].snapshot.as_mut()?.csn.as_mut()?;
    *csn = if *csn > 0 && (random.bool() || *csn == last) { *csn - 1 } else { *csn + 1 };
    (last > 0).then_some(())
}

fn swap_pointers(rows: &mut [Row], random: &mut fastrand::Rng) -> Option<()> {
    let (one, other) = (random.usize(0..rows.len()), random.usize(0..rows.len()));
    let (pointer, other_pointer) = (rows[one].tx, rows[other].tx);
    (rows[one].tx, rows[other].tx) = (other_pointer, pointer);
    (one != other).then_some(())
}

#[test]
fn what_is_made_wrong_is_found() {
    let mutations: [(&str, Mutation); 8] = [
        ("swap a read", swap_a_read),
        ("forget a read", forget_a_read),
        ("drop a write", drop_a_write),
        ("take a commit back", take_a_commit_back),
        ("shift a commit", shift_a_commit),
        ("swap commits", swap_commits),
        ("shift a snapshot", shift_a_snapshot),
        ("swap pointers", swap_pointers),
    ];
    for (name, mutation) in mutations {
        let mut mutated = 0;
        for seed in seeds(300) {
            let mut rows = run(FEW, seed).rows;
            if mutation(&mut rows, &mut fastrand::Rng::with_seed(seed)).is_some() {
                mutated += 1;
                assert!(judge(&rows).failed, "{name}, seed {seed}: not found\n{rows:#?}");
            }
        }
        assert!(mutated > 200, "{name}: only {mutated} histories");
    }
}

#[test]
fn a_store_that_loses_updates_is_found_with_numbers_and_without() {
    let mut wrong = 0;
    for seed in seeds(500) {
        let Ran { rows, wrongly_committed } =
            run(Options { checks_conflicts: false, transactions: 20, reads_first: true, ..FEW }, seed);
        let (told, bare) = (judge(&rows), judge(&bare(&rows)));
        let of = |report: &Report, kind| report.counts.get(&kind).copied().unwrap_or(0) > 0;
        assert_eq!(of(&told, Kind::BothCommitted), wrongly_committed > 0, "seed {seed}: {told}");
        assert_eq!(of(&told, Kind::LostUpdate), wrongly_committed > 0, "seed {seed}: {told}");
        // Whoever overwrote later may have the smaller pointer, but reads tell all the same.
        assert_eq!(bare.failed, wrongly_committed > 0, "seed {seed}: {bare}");
        wrong += usize::from(wrongly_committed > 0);
    }
    assert!(wrong > 100, "only {wrong} histories lost an update");
}

#[test]
fn a_store_that_only_claims_to_be_serializable_is_found() {
    let (mut skews, mut found) = (0, 0);
    for seed in seeds(500) {
        let rows = run(Options { transactions: 20, ..FEW }, seed).rows;
        let claimed: Vec<Row> =
            rows.iter().map(|row| Row { isolation: Isolation::Serializable, ..row.clone() }).collect();
        for (rows, claimed) in [(bare(&rows), bare(&claimed)), (rows, claimed)] {
            let (allowed, report) = (assert_clean(&rows, seed).write_skews_allowed, judge(&claimed));
            assert_eq!(report.failed, allowed > 0, "seed {seed}: {report}");
            assert!(report.counts.keys().all(|kind| *kind == Kind::WriteSkew), "seed {seed}: {report}");
            (skews, found) = (skews + allowed, found + u64::from(report.failed));
        }
    }
    assert!(found > 100, "only {found} of {skews}");
}
