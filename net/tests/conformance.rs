//! What a transaction manager promises, case by case, in process and over TCP.
//!
//! The cases follow the behaviour of Apache Tephra's TransactionManager where that is sound; where this sequencer differs
//! on purpose the case says how and why.

mod common;

use common::{OverTcp, System, cases, small};
use seriatim_core::{BeginError, BeginOptions, CommitError, InvalidCause, Kind, Status, WritePointer};
use seriatim_net::{Embedded, StorageKind};

cases! {
    a_timeout_of_zero_is_refused
    a_timeout_over_the_limit_is_refused
    a_change_set_within_the_limit_commits
    the_second_of_two_overlapping_commits_conflicts
    commits_without_a_begin_in_between_do_not_hide_each_other
    a_second_commit_is_told_how_the_first_ended
    a_second_abort_is_silent
    an_ended_transaction_cannot_be_used_again
    a_pointer_that_was_never_handed_out_is_not_in_progress
    an_abort_after_the_commit_changes_nothing
    an_open_transaction_is_invalidated_and_a_committed_one_is_not
    invalid_transactions_are_counted
    a_write_pointer_is_greater_than_its_read_pointer
    timestamps_leave_nothing_in_progress
    a_refused_commit_stays_excluded_until_it_is_aborted
    an_invalid_short_is_cleaned_by_its_clients_abort
    a_long_brings_no_change_set_and_its_abort_leaves_it_invalid
    an_expired_transaction_is_invalid_and_its_commit_refused
    a_settled_transaction_stays_settled
    a_conflict_names_the_winner
    a_commit_without_changes_conflicts_with_nobody
    a_snapshot_shows_what_was_acknowledged_before_it
    a_retry_after_a_conflict_sees_the_winner
}

fn short(timeout_ms: u64) -> BeginOptions {
    BeginOptions { timeout_ms: Some(timeout_ms), ..BeginOptions::default() }
}

fn a_timeout_of_zero_is_refused(system: &impl System) {
    assert_eq!(system.begin_with(&short(0)).unwrap_err(), BeginError::TimeoutNotPositive);
}

fn a_timeout_over_the_limit_is_refused(system: &impl System) {
    let (day_ms, max_ms) = (24 * 3_600_000, 24 * 3_600_000);
    let error = system.begin_with(&short(10 * day_ms)).unwrap_err();
    assert_eq!(error, BeginError::TimeoutTooLong { asked_ms: 10 * day_ms, max_ms });
}

fn a_change_set_within_the_limit_commits(system: &impl System) {
    let keys: Vec<String> = (0..50).map(|key| format!("key {key}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let tx = system.begin().tx;
    system.commit(tx, &keys).unwrap();
    assert!(system.snapshot().is_visible(tx));
}

fn the_second_of_two_overlapping_commits_conflicts(system: &impl System) {
    let (t1, t2) = (system.begin().tx, system.begin().tx);
    system.commit(t1, &["c1", "c2"]).unwrap();
    assert!(matches!(system.commit(t2, &["c2", "c3"]), Err(CommitError::Conflict { .. })));
}

fn commits_without_a_begin_in_between_do_not_hide_each_other(system: &impl System) {
    let t: Vec<WritePointer> = (0..5).map(|_| system.begin().tx).collect();
    system.commit(t[0], &["c1"]).unwrap();
    system.commit(t[1], &["c2"]).unwrap();
    assert!(matches!(system.commit(t[2], &["c1"]), Err(CommitError::Conflict { .. })));
    assert!(matches!(system.commit(t[3], &["c2"]), Err(CommitError::Conflict { .. })));
    system.commit(t[4], &["c3"]).unwrap();
}

/// Tephra answers "not in progress" alone; here the error also says how the transaction ended, so that whoever lost the
/// first reply has it now.
fn a_second_commit_is_told_how_the_first_ended(system: &impl System) {
    let tx = system.begin().tx;
    let csn = system.commit(tx, &["a"]).unwrap();
    let ended = Status::Committed(csn);
    assert_eq!(system.commit(tx, &["a"]), Err(CommitError::NotInProgress { tx, ended }));
    assert_eq!(system.status(tx), ended);
}

fn a_second_abort_is_silent(system: &impl System) {
    let tx = system.begin().tx;
    assert_eq!(system.abort(tx), Status::Aborted);
    assert_eq!(system.abort(tx), Status::Aborted);
}

fn an_ended_transaction_cannot_be_used_again(system: &impl System) {
    let tx = system.begin().tx;
    let csn = system.commit(tx, &["c1"]).unwrap();
    let ended = Status::Committed(csn);
    assert_eq!(system.commit(tx, &["c3", "c4"]), Err(CommitError::NotInProgress { tx, ended }));
    assert_eq!(system.abort(tx), ended);
    // What the refused call named was not stored.
    let other = system.begin().tx;
    system.commit(other, &["c3"]).unwrap();
}

fn a_pointer_that_was_never_handed_out_is_not_in_progress(system: &impl System) {
    let t1 = system.begin().tx;
    system.commit(t1, &[]).unwrap();
    let read_pointer = system.snapshot().read_pointer;
    for tx in [WritePointer(t1.0 - 1), WritePointer(t1.0 + 1), WritePointer(0), WritePointer::MAX] {
        let ended = Status::Forgotten;
        assert_eq!(system.commit(tx, &["a"]), Err(CommitError::NotInProgress { tx, ended }));
        assert_eq!(system.abort(tx), Status::Forgotten);
        assert!(!system.invalidate(tx));
        assert_eq!(system.settle(tx), Status::Forgotten);
    }
    // Tephra lets an abort of an unknown id above all others raise the read pointer, which shows uncommitted writes.
    assert_eq!(system.snapshot().read_pointer, read_pointer);
}

fn an_abort_after_the_commit_changes_nothing(system: &impl System) {
    let tx = system.begin().tx;
    let csn = system.commit(tx, &["a"]).unwrap();
    assert_eq!(system.abort(tx), Status::Committed(csn));
    assert!(system.snapshot().is_visible(tx));
}

fn an_open_transaction_is_invalidated_and_a_committed_one_is_not(system: &impl System) {
    let (t1, t2) = (system.begin().tx, system.begin().tx);
    assert!(system.invalidate(t1));
    system.commit(t2, &[]).unwrap();
    assert!(!system.invalidate(t2));
    assert!(!system.invalidate(t1), "it has ended");
    let snapshot = system.snapshot();
    assert!(!snapshot.is_visible(t1) && snapshot.is_visible(t2));
}

fn invalid_transactions_are_counted(system: &impl System) {
    let open = [system.begin_long().tx, system.begin().tx, system.begin_long().tx];
    assert_eq!(system.snapshot().invalid.len(), 0);
    for tx in open {
        assert!(system.invalidate(tx));
    }
    assert_eq!(system.snapshot().invalid.len(), 3);
    // The whole set, whatever the read pointer.
    assert_eq!(system.begin().snapshot.invalid.pointers.iter().collect::<Vec<_>>(), open);
}

fn a_write_pointer_is_greater_than_its_read_pointer(system: &impl System) {
    for round in 0..50 {
        let open: Vec<_> = (0..3).map(|_| system.begin()).collect();
        for begun in &open {
            assert!(begun.tx > begun.snapshot.read_pointer, "round {round}");
            assert!(!begun.snapshot.in_progress.contains(begun.tx), "round {round}");
        }
        system.commit(open[round % 3].tx, &[]).unwrap();
        for begun in &open {
            system.abort(begun.tx);
        }
    }
}

fn timestamps_leave_nothing_in_progress(system: &impl System) {
    let first = system.timestamps(1000).unwrap();
    let next = system.timestamps(1).unwrap();
    assert!(next.0 >= first.0 + 1000);
    let error = system.timestamps(0).unwrap_err();
    assert!(matches!(error, BeginError::BlockSize { asked: 0, .. }));
    let tx = system.begin().tx;
    assert!(tx > next);
    system.commit(tx, &[]).unwrap();
    assert_eq!(system.snapshot().excluded_len(), 0);
}

fn a_refused_commit_stays_excluded_until_it_is_aborted(system: &impl System) {
    let (winner, loser) = (system.begin().tx, system.begin().tx);
    system.commit(winner, &["k"]).unwrap();
    assert!(matches!(system.commit(loser, &["k"]), Err(CommitError::Conflict { .. })));
    assert_eq!(system.status(loser), Status::Refused);
    // Refused for good: Tephra lets a second try pass unchecked.
    let again = system.commit(loser, &["other"]);
    assert_eq!(again, Err(CommitError::NotInProgress { tx: loser, ended: Status::Refused }));
    assert_eq!(system.settle(loser), Status::Refused);
    let later = system.begin().tx;
    system.commit(later, &[]).unwrap();
    assert!(!system.snapshot().is_visible(loser), "its writes may still be in the store");
    assert_eq!(system.abort(loser), Status::Aborted);
    assert_eq!(system.snapshot().excluded_len(), 0);
}

fn an_invalid_short_is_cleaned_by_its_clients_abort(system: &impl System) {
    let tx = system.begin().tx;
    assert!(system.invalidate(tx));
    assert_eq!(system.status(tx), Status::Invalid(InvalidCause::Asked));
    assert_eq!(system.abort(tx), Status::Aborted);
    assert_eq!(system.snapshot().invalid.len(), 0);
    assert_eq!(system.status(tx), Status::Aborted);
}

fn a_long_brings_no_change_set_and_its_abort_leaves_it_invalid(system: &impl System) {
    let long = system.begin_long().tx;
    assert_eq!(system.commit(long, &["k"]), Err(CommitError::LongWithChanges { tx: long }));
    assert_eq!(system.status(long), Status::Open);
    assert_eq!(system.abort(long), Status::Invalid(InvalidCause::LongAborted));
    assert_eq!(system.abort(long), Status::Invalid(InvalidCause::LongAborted));
    assert_eq!(system.snapshot().invalid.len(), 1);
    let other = system.begin_long().tx;
    system.commit(other, &[]).unwrap();
    assert!(system.snapshot().is_visible(other));
}

fn an_expired_transaction_is_invalid_and_its_commit_refused(system: &impl System) {
    let tx = system.begin_with(&short(1)).unwrap().tx;
    while system.status(tx) != Status::Invalid(InvalidCause::Expired) {
        std::thread::yield_now();
    }
    let ended = Status::Invalid(InvalidCause::Expired);
    assert_eq!(system.commit(tx, &["k"]), Err(CommitError::NotInProgress { tx, ended }));
    assert!(!system.snapshot().is_visible(tx));
}

fn a_settled_transaction_stays_settled(system: &impl System) {
    let (open, done) = (system.begin().tx, system.begin().tx);
    let csn = system.commit(done, &["k"]).unwrap();
    assert_eq!(system.settle(done), Status::Committed(csn));
    assert_eq!(system.settle(open), Status::Invalid(InvalidCause::Settled));
    let ended = Status::Invalid(InvalidCause::Settled);
    assert_eq!(system.commit(open, &["x"]), Err(CommitError::NotInProgress { tx: open, ended }), "a late commit");
}

fn a_conflict_names_the_winner(system: &impl System) {
    let (winner, loser) = (system.begin().tx, system.begin().tx);
    let csn = system.commit(winner, &["k"]).unwrap();
    match system.commit(loser, &["j", "k"]) {
        Err(CommitError::Conflict { tx, change_id, csn: theirs, winner: named, .. }) => {
            assert_eq!((tx, theirs, named), (loser, csn, Some(winner)));
            assert_eq!(change_id, seriatim_core::ChangeId::of(b"k").0);
        }
        other => panic!("{other:?}"),
    }
}

fn a_commit_without_changes_conflicts_with_nobody(system: &impl System) {
    let (t1, t2) = (system.begin().tx, system.begin().tx);
    system.commit(t1, &["k"]).unwrap();
    system.commit(t2, &[]).unwrap();
}

fn a_snapshot_shows_what_was_acknowledged_before_it(system: &impl System) {
    for _ in 0..100 {
        let tx = system.begin().tx;
        let csn = system.commit(tx, &["k"]).unwrap();
        let begun = system.begin();
        assert!(begun.snapshot.is_visible(tx) && begun.snapshot.csn >= csn);
        system.abort(begun.tx);
    }
}

fn a_retry_after_a_conflict_sees_the_winner(system: &impl System) {
    for _ in 0..50 {
        let (winner, loser) = (system.begin().tx, system.begin().tx);
        let csn = system.commit(winner, &["k"]).unwrap();
        assert!(matches!(system.commit(loser, &["k"]), Err(CommitError::Conflict { .. })));
        system.abort(loser);
        let retry = system.begin();
        assert!(retry.snapshot.csn >= csn);
        system.commit(retry.tx, &["k"]).unwrap();
    }
}

#[test]
fn a_default_kind_is_short() {
    assert_eq!(BeginOptions::default().kind, Kind::Short);
}
