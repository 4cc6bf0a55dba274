//! Commits, conflicts, checkpoints, rollbacks and retries, over both sequencers.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use seriatim_client::{
    Access, Cell, CommitForm, ConflictLevel, Error, Participant, Retries, RetryPolicy, Standing, StartOptions, Step,
    TransactionContext, TransactionExecutor, TransactionService,
};
use seriatim_kv::EmbeddedService;
use seriatim_kv::core::{
    BeginOptions, ChangeSet, CommitError, InvalidCause, Isolation, Kind, Status, Visibility, WritePointer,
};
use seriatim_net::Embedded;

use super::rig::{Rig, commit_of, context, until, writes};
use super::shelf::Shelf;
use crate::support::serving::small;

crate::on_every_service!(
    two_participants_commit_together,
    a_conflict_names_key_winner_and_label_in_either_form,
    a_race_lost_after_the_check_is_lost_at_the_commit_and_undone,
    checkpoints_are_read_by_their_levels_and_commit_as_one,
    an_abort_takes_back_all_checkpoints,
    a_rollback_that_leaves_something_makes_all_pointers_invalid,
    the_count_of_checkpoints_is_held_against_the_sequencers,
    conflict_levels_decide_who_meets,
    executors_retry_until_all_have_won,
    skew_over_two_participants_is_refused_if_serializable,
    an_expired_transaction_is_rolled_back_and_ends_as_aborted,
    a_dropped_context_ends_its_transaction_by_what_may_have_been_written,
    a_long_transaction_commits_without_changes_and_its_abort_is_invalid,
);

fn options() -> StartOptions {
    StartOptions::default()
}

fn labelled(label: &str) -> StartOptions {
    StartOptions { label: Some(label.into()), ..options() }
}

fn two_participants_commit_together(rig: &Rig) {
    let mut context = rig.context();
    let tx = context.start(options()).unwrap().id();
    rig.left.put("k", 1);
    rig.right.put("k", 2);
    assert_eq!((rig.now("k"), rig.versions()), ([None, None], [0, 0]), "nothing is written before it is finished");
    let committed = context.finish().unwrap();
    assert_eq!((committed.tx, committed.settled), (tx, false));
    assert_eq!(rig.status(tx), Status::Committed(committed.csn));
    assert_eq!(rig.now("k"), [Some(1), Some(2)]);
    assert_eq!([rig.left.committed(), rig.right.committed()], [[committed.csn], [committed.csn]]);
    // The next one reads it.
    assert_eq!(context.start(options()).unwrap().snapshot().csn, committed.csn);
    assert_eq!((rig.left.get("k"), rig.right.get("k")), (Some(1), Some(2)));
    assert_eq!(context.abort().unwrap(), Standing::Aborted);
}

fn a_conflict_names_key_winner_and_label_in_either_form(rig: &Rig) {
    for form in [CommitForm::TwoSteps, CommitForm::OneStep] {
        let rival = Shelf::new("right");
        let (mut loses, mut wins) = (rig.context(), context(&rig.service, [&rival]));
        let tx = loses.start(StartOptions { form, ..options() }).unwrap().id();
        let winner = wins.start(labelled("night batch")).unwrap().id();
        rig.left.put("only mine", 1);
        rig.right.put("k", 1);
        rival.put("k", 2);
        let won = wins.finish().unwrap();
        let error = loses.finish().unwrap_err();
        let conflict = error.conflict().unwrap_or_else(|| panic!("{error:?}"));
        let key = conflict.key.as_ref().unwrap();
        assert_eq!((key.participant.as_str(), key.key.as_slice()), ("right", &b"right/k"[..]));
        assert_eq!((key.access, conflict.tx), (Access::Written, tx));
        assert_eq!(
            (conflict.csn, conflict.winner, conflict.label.as_deref()),
            (won.csn, Some(winner), Some("night batch"))
        );
        assert_eq!(conflict.step, if form == CommitForm::TwoSteps { Step::CanCommit } else { Step::Commit });
        // By the time it is told of the winner, its next snapshot has it.
        assert!(rig.snapshot().csn >= won.csn);
        assert_eq!((error.standing(), rig.status(tx)), (Standing::Aborted, Status::Aborted));
        assert_eq!((rig.versions(), error.suppressed().len()), ([0, 0], 0));
    }
    assert_eq!([rig.left.rollbacks(), rig.right.rollbacks()], [2, 2]);
}

fn a_race_lost_after_the_check_is_lost_at_the_commit_and_undone(rig: &Rig) {
    let mut context = rig.context();
    let tx = context.start(options()).unwrap().id();
    rig.left.put("k", 1);
    rig.right.put("k", 1);
    let service = Arc::clone(&rig.service);
    rig.right.before_flush(move || {
        commit_of(&service, &["left/k"], "quick");
    });
    let error = context.finish().unwrap_err();
    let conflict = error.conflict().unwrap_or_else(|| panic!("{error:?}"));
    assert_eq!((conflict.step, conflict.label.as_deref()), (Step::Commit, Some("quick")));
    assert_eq!(conflict.key.as_ref().unwrap().key, b"left/k");
    assert_eq!((error.standing(), rig.status(tx)), (Standing::Aborted, Status::Aborted));
    assert_eq!(rig.versions(), [0, 0], "both had flushed, and took it back");
}

fn checkpoints_are_read_by_their_levels_and_commit_as_one(rig: &Rig) {
    let mut context = rig.context();
    context.start(options()).unwrap();
    rig.left.put("same", 9);
    context.finish().unwrap();
    context.start(options()).unwrap();
    for n in 1..=3 {
        rig.left.put(&format!("k{n}"), n);
        rig.left.put("same", n);
        if n < 3 {
            context.checkpoint().unwrap();
        }
    }
    let read = || ["k1", "k2", "k3", "same"].map(|key| rig.left.get(key));
    assert_eq!(read(), [Some(1), Some(2), Some(3), Some(3)]);
    let view = context.set_visibility(Visibility::SnapshotExcludeCurrent).unwrap();
    let pointers: Vec<WritePointer> = view.pointers().collect();
    assert_eq!(read(), [Some(1), Some(2), None, Some(2)]);
    context.set_visibility(Visibility::SnapshotAll).unwrap();
    assert_eq!(rig.left.all("same"), [3, 2, 1, 9], "every own one, then the newest committed one");
    // What the checkpoints have flushed is there, and nobody sees it.
    assert_eq!(rig.versions(), [1 + 4, 0]);
    let before = rig.snapshot();
    assert!(pointers.iter().all(|pointer| !before.is_visible(*pointer)));
    assert_eq!(rig.now("k1"), [None, None]);
    let committed = context.finish().unwrap();
    // All of it at once, the newest pointer included.
    let after = rig.snapshot();
    assert!(pointers.iter().all(|pointer| after.is_visible(*pointer)), "{pointers:?}");
    assert_eq!(["k1", "k2", "k3", "same"].map(|key| rig.left.at(&after, key)), [Some(1), Some(2), Some(3), Some(3)]);
    assert_eq!(rig.left.at(&before, "same"), Some(9), "an older snapshot stands still");
    assert_eq!(rig.status(committed.tx), Status::Committed(committed.csn));
}

fn an_abort_takes_back_all_checkpoints(rig: &Rig) {
    let mut context = rig.context();
    context.start(options()).unwrap();
    for n in 1..=3 {
        rig.left.put("k", n);
        rig.right.put("k", n);
        context.checkpoint().unwrap();
    }
    let pointers: Vec<WritePointer> = context.current().unwrap().pointers().collect();
    assert_eq!((pointers.len(), rig.versions()), (4, [3, 3]));
    assert_eq!(context.abort().unwrap(), Standing::Aborted);
    assert_eq!((rig.versions(), rig.status(pointers[0])), ([0, 0], Status::Aborted));
    let snapshot = rig.snapshot();
    for pointer in pointers {
        assert!(!snapshot.in_progress.contains(pointer) && !snapshot.invalid.contains(pointer), "{pointer}");
    }
}

fn a_rollback_that_leaves_something_makes_all_pointers_invalid(rig: &Rig) {
    rig.right.keeps(true);
    let mut context = rig.context();
    context.start(options()).unwrap();
    rig.right.put("k", 1);
    context.checkpoint().unwrap();
    rig.left.put("k", 2);
    rig.right.put("k", 2);
    let pointers: Vec<WritePointer> = context.checkpoint().unwrap().pointers().collect();
    let error = context.abort().unwrap_err();
    assert_eq!(
        (error.standing(), error.to_string().as_str()),
        (Standing::Invalidated, "right could not undo all of its writes")
    );
    assert_eq!(rig.status(pointers[0]), Status::Invalid(InvalidCause::Asked));
    let snapshot = rig.snapshot();
    assert!(pointers.iter().all(|pointer| snapshot.invalid.contains(*pointer) && !snapshot.is_visible(*pointer)));
    assert_eq!((rig.versions(), rig.now("k")), ([0, 2], [None, None]), "what was left is read by nobody");
    // The context works on, and what commits later is read above it.
    rig.right.keeps(false);
    context.start(options()).unwrap();
    rig.right.put("k", 3);
    context.finish().unwrap();
    assert_eq!(rig.now("k"), [None, Some(3)]);
}

fn the_count_of_checkpoints_is_held_against_the_sequencers(rig: &Rig) {
    let service = &rig.service;
    let tx = service.begin(BeginOptions::default(), None).unwrap().id();
    let first = service.checkpoint(tx, 1).unwrap();
    assert_eq!(service.checkpoint(tx, 1).unwrap(), first, "the same number, the same pointer");
    assert!(service.checkpoint(tx, 3).is_err(), "there is no second one yet");
    for named in [0, 2] {
        let error = service.commit(tx, &writes(&["k"]), named).unwrap_err();
        assert!(
            matches!(error, Error::Commit(CommitError::CheckpointMismatch { known: 1, named: n, .. }) if n == named),
            "{error:?}"
        );
        assert_eq!(rig.status(tx), Status::Open);
    }
    service.can_commit(tx, &writes(&["k"])).unwrap();
    service.commit_checked(tx, &writes(&["k"]), 1).unwrap();
    // A context counts for itself, in either form.
    for form in [CommitForm::TwoSteps, CommitForm::OneStep] {
        let mut context = rig.context();
        context.start(StartOptions { form, ..options() }).unwrap();
        rig.left.put("k", 1);
        context.checkpoint().unwrap();
        context.checkpoint().unwrap();
        context.finish().unwrap();
    }
}

fn conflict_levels_decide_who_meets(rig: &Rig) {
    let meet = |level: ConflictLevel, one: [&str; 3], two: [&str; 3]| {
        let [first, second] = [(); 2].map(|()| rig.service.begin(BeginOptions::default(), None).unwrap().id());
        let changes = |[row, family, qualifier]: [&str; 3]| {
            let [row, family, qualifier] = [row, family, qualifier].map(str::as_bytes);
            let key = level.key(Cell { table: b"t", row, family, qualifier });
            ChangeSet::of_writes(key.as_deref())
        };
        rig.service.commit(first, &changes(one), 0).unwrap();
        rig.service.commit(second, &changes(two), 0).is_err()
    };
    use ConflictLevel::{Column, Row};
    assert!(meet(Row, ["r", "f", "a"], ["r", "f", "b"]), "two columns of one row");
    assert!(!meet(Row, ["r1", "f", "a"], ["r2", "f", "a"]));
    assert!(!meet(Column, ["r", "f", "a"], ["r", "f", "b"]));
    assert!(meet(Column, ["r", "f", "a"], ["r", "f", "a"]));
    assert!(!meet(Column, ["e", "bc", "d"], ["e", "b", "cd"]), "end to end, they would be the same");
    assert!(!meet(ConflictLevel::None, ["r", "f", "a"], ["r", "f", "a"]));
}

fn executors_retry_until_all_have_won(rig: &Rig) {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 10;
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let [left, right] = [&rig.left, &rig.right].map(|shelf| shelf.over_the_same_store());
                let participants: [Arc<dyn Participant>; 2] = [left.clone(), right.clone()];
                let patient = Retries::exponential(10_000, Duration::from_micros(100), Duration::from_millis(5));
                let executor = TransactionExecutor::new(Arc::clone(&rig.service), participants);
                let mut executor = executor.with_retries(patient);
                for _ in 0..ROUNDS {
                    let add = |_: &mut TransactionContext| {
                        let [l, r] = [&left, &right].map(|shelf| shelf.get("n").unwrap_or_default());
                        assert_eq!(l, r, "both have seen the same commits");
                        left.put("n", l + 1);
                        right.put("n", r + 1);
                        Ok(l + 1)
                    };
                    let executed = executor.execute(add).unwrap();
                    assert!(rig.snapshot().csn >= executed.committed.csn);
                }
            });
        }
    });
    assert_eq!(rig.now("n"), [Some(THREADS * ROUNDS); 2]);
    assert_eq!(rig.versions().map(|n| n as u64), [THREADS * ROUNDS; 2], "the refused ones left nothing");
    // One who loses for good gives up, and says to whom.
    let service = Arc::clone(&rig.service);
    let gave_up = rig.executor().with_retries(Retries::fixed(2, Duration::ZERO)).execute(|_| {
        rig.left.put("k", 1);
        commit_of(&service, &["left/k"], "always first");
        Ok(())
    });
    let gave_up = gave_up.unwrap_err();
    assert_eq!((gave_up.attempts, gave_up.last.conflict().unwrap().label.as_deref()), (3, Some("always first")));
    assert_eq!(Retries::none().pause(&gave_up.last, 1), None);
}

fn skew_over_two_participants_is_refused_if_serializable(rig: &Rig) {
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        let mut seed = rig.context();
        seed.start(options()).unwrap();
        rig.left.put("on call", 1);
        rig.right.put("on call", 1);
        seed.finish().unwrap();
        // Each of two doctors, whose rows lie in different stores, reads the other's and signs off.
        let [left, right] = [&rig.left, &rig.right].map(|shelf| shelf.over_the_same_store());
        let mut first = rig.context();
        let mut second = context(&rig.service, [&left, &right]);
        let start = || StartOptions { isolation, ..options() };
        first.start(start()).unwrap();
        second.start(start()).unwrap();
        assert_eq!((rig.right.get("on call"), left.get("on call")), (Some(1), Some(1)));
        rig.left.put("on call", 0);
        right.put("on call", 0);
        second.finish().unwrap();
        match (isolation, first.finish()) {
            (Isolation::Snapshot, finished) => {
                finished.unwrap();
                assert_eq!(rig.now("on call"), [Some(0), Some(0)]);
            }
            (Isolation::Serializable, finished) => {
                let error = finished.unwrap_err();
                let key = error.conflict().unwrap().key.clone().unwrap();
                assert_eq!((key.key.as_slice(), key.access), (&b"right/on call"[..], Access::Read));
                assert_eq!(rig.now("on call"), [Some(1), Some(0)]);
            }
        }
    }
}

fn an_expired_transaction_is_rolled_back_and_ends_as_aborted(rig: &Rig) {
    let mut context = rig.context();
    let tx = context.start(StartOptions { timeout_ms: Some(1), ..options() }).unwrap().id();
    rig.left.put("k", 1);
    until("it has expired", || rig.status(tx) == Status::Invalid(InvalidCause::Expired));
    let error = context.finish().unwrap_err();
    // A clean rollback lets it go from the invalid ones.
    assert_eq!((error.standing(), rig.status(tx)), (Standing::Aborted, Status::Aborted));
    assert!(!error.is_conflict());
    assert_eq!((rig.versions(), rig.left.rollbacks(), rig.right.rollbacks()), ([0, 0], 1, 1));
}

fn a_dropped_context_ends_its_transaction_by_what_may_have_been_written(rig: &Rig) {
    let mut with = rig.context();
    let written = with.start(options()).unwrap().id();
    let mut without = context(&rig.service, []);
    let unwritten = without.start(options()).unwrap().id();
    drop((with, without));
    let is_ending = |tx: &WritePointer| matches!(rig.status(*tx), Status::Open | Status::Deciding);
    until("both have ended", || ![written, unwritten].iter().any(is_ending));
    assert_eq!(rig.status(unwritten), Status::Aborted);
    assert_eq!(rig.status(written), Status::Invalid(InvalidCause::Asked));
}

fn a_long_transaction_commits_without_changes_and_its_abort_is_invalid(rig: &Rig) {
    let long = || StartOptions { kind: Kind::Long, ..options() };
    let mut context = rig.context();
    context.start(long()).unwrap();
    rig.left.put("k", 1);
    commit_of(&rig.service, &["left/k"], "in nobody's way");
    context.finish().unwrap();
    assert_eq!(rig.now("k"), [Some(1), None]);
    let tx = context.start(long()).unwrap().id();
    rig.left.put("k", 2);
    assert_eq!(context.abort().unwrap(), Standing::Invalidated);
    assert_eq!((rig.status(tx), rig.now("k")), (Status::Invalid(InvalidCause::LongAborted), [Some(1), None]));
}

/// Tephra's row 61, with what is on disk left to its own tests.
#[test]
fn a_checkpointed_long_transaction_outlives_a_restart_and_commits() {
    let directory = tempfile::tempdir().unwrap();
    let open = || EmbeddedService::new(Embedded::open(directory.path(), &small()).unwrap());
    let begin = |service: &EmbeddedService, kind| {
        service.begin(BeginOptions { kind, ..BeginOptions::default() }, None).unwrap().id()
    };
    let service = open();
    let long = begin(&service, Kind::Long);
    let checkpoint = service.checkpoint(long, 1).unwrap();
    let short = [(); 3].map(|()| begin(&service, Kind::Short));
    for tx in [short[2], short[0], short[1]] {
        assert!(service.invalidate(tx).unwrap());
    }
    drop(service);

    let service = open();
    let excluded = service.sequencer().snapshot();
    assert_eq!(excluded.in_progress.iter().collect::<Vec<_>>(), [long, checkpoint]);
    assert_eq!(excluded.invalid.pointers.iter().collect::<Vec<_>>(), short, "ascending, whatever came first");
    service.can_commit(long, &ChangeSet::default()).unwrap();
    let csn = service.commit(long, &ChangeSet::default(), 1).unwrap();
    drop(service);

    let service = open();
    let snapshot = service.sequencer().snapshot();
    assert!(snapshot.in_progress.is_empty() && snapshot.is_visible(long) && snapshot.is_visible(checkpoint));
    assert_eq!(snapshot.invalid.pointers.iter().collect::<Vec<_>>(), short);
    assert_eq!(service.sequencer().status(long), Status::Committed(csn));
}
