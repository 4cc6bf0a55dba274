//! Known weaknesses of Apache Tephra that its clients meet, each with the test that shows ours to be without it. Issues by
//! their numbers in its tracker; what has none was found by running it.
//!
//! | what went wrong there | here |
//! |---|---|
//! | a commit whose answer was lost is retried, found ended, and its data rolled back | `contexts/doubts.rs`, all |
//! | a retried checkpoint adds pointers | `contexts/doubts.rs`: `a_checkpoint_whose_reply_was_lost_takes_no_second_pointer` |
//! | a conflict names the wrong client where commits share a number | `each_winner_is_named_though_commits_follow_at_once` |
//! | an abort by who knows of no checkpoints leaves them open | `an_abort_ends_checkpoints_that_its_caller_knows_nothing_of` |
//! | a composite rollback stops at the first failure | `client/tests/context.rs`: `a_failed_flush_and_a_failed_rollback_invalidate_and_the_flush_is_the_reason` |
//! | an expired transaction commits if nobody has swept it | `an_expired_transaction_does_not_commit`; `client/tests/outcomes.rs`: `nothing_is_flushed_past_the_deadline` |
//! | a checkpoint of an ended transaction is retried for half a minute, then fails with the wrong type | `a_checkpoint_of_an_ended_transaction_is_refused_at_once_and_by_its_type` |
//! | a start while another is active leaks that one | `client/tests/outcomes.rs`: `starting_twice_is_an_error_and_leaks_nothing` |
//! | a second commit after a conflict succeeds unchecked | `a_refused_commit_stays_refused` |
//! | an abort of an unknown pointer moves the read pointer past everything | `ends_of_the_unknown_move_nothing` |
//! | a commit is believed the write pointer that it names (TEPHRA-140: or moves the read pointer to its first) | `a_commit_moves_the_read_pointer_to_its_last_checkpoint_and_no_further` |
//! | an abort is believed the type that it names | `a_transaction_is_of_the_kind_it_was_begun_as_whoever_aborts_it` |
//! | a checkpoint pointer is taken for a transaction (TEPHRA-141) | `a_checkpoint_pointer_names_no_transaction` |
//! | a stopped server answers some questions by another error than others | `every_question_to_a_stopped_server_fails_alike` |
//! | TEPHRA-3, -76: overflow at the greatest pointer | `core/tests/view.rs`: `the_greatest_version_of_an_all_visible_view_does_not_overflow` |
//! | TEPHRA-47: the cause of an abort is lost | `the_cause_of_an_abort_reaches_the_caller` |
//! | TEPHRA-142: the pool of clients blocks | `client/tests/callers.rs`: `few_callers_never_wait_for_work_that_nobody_does` |
//! | TEPHRA-159, -189: no read-only transactions | `client/tests/views.rs`: `a_read_snapshot_is_read_through_up_to_its_age_and_refused_past_it` |
//! | TEPHRA-185, -188, -194: a timeout that cannot be is retried | `a_timeout_that_cannot_be_is_refused_at_once` |
//! | TEPHRA-199: a forgotten client writes for ever | `client/tests/outcomes.rs`: `nothing_is_flushed_past_the_deadline` |
//! | TEPHRA-201: checkpoints in the wrong order let uncommitted data be seen | `checkpoints_taken_in_any_order_hide_what_is_not_committed` |
//! | TEPHRA-228, -240: a conflict names neither key nor client | `contexts/commits.rs`: `a_conflict_names_key_winner_and_label_in_either_form` |
//! | TEPHRA-241: change sets without a bound | `client/tests/views.rs`: `too_many_changes_are_refused_before_anything_is_flushed`, `keys_over_their_bytes_are_refused_before_anything_is_flushed` |
//! | TEPHRA-279: a participant that cannot tell its name hides the reason | `client/tests/context.rs`: `a_name_that_panics_hides_no_reason` |
//! | TEPHRA-287: change keys collide | `client/src/change_key.rs`: `parts_that_run_together_make_different_keys` |
//! | a lost connection while finishing is an untyped error | `client/tests/outcomes.rs`: `an_outcome_that_nobody_tells_in_time_leaves_everything_as_it_is` |
//!
//! Kept as it is there: a begin whose answer was lost is asked for again, and the one that nobody knows of ends at its
//! deadline (`contexts/doubts.rs`: `a_begin_whose_reply_was_lost_is_asked_for_again`); the last check before a commit is the one that counts, a failed check changes nothing, and a commit
//! without changes conflicts with nobody; `the_last_check_counts_and_a_failed_one_changes_nothing` and
//! `a_commit_without_changes_conflicts_with_nobody`.

use std::sync::Arc;

use seriatim_client::{Client, ClientOptions, Error, Failure, Standing, StartOptions, TransactionService};
use seriatim_kv::core::{
    BeginError, BeginOptions, ChangeSet, CommitError, CommitNumber, InvalidCause, Kind, Status, WritePointer,
};

use super::far::Far;
use super::rig::{Rig, commit_of, until, writes};
use crate::support::serving::Serving;

crate::on_every_service!(
    each_winner_is_named_though_commits_follow_at_once,
    an_abort_ends_checkpoints_that_its_caller_knows_nothing_of,
    an_expired_transaction_does_not_commit,
    a_refused_commit_stays_refused,
    ends_of_the_unknown_move_nothing,
    a_commit_moves_the_read_pointer_to_its_last_checkpoint_and_no_further,
    a_transaction_is_of_the_kind_it_was_begun_as_whoever_aborts_it,
    a_checkpoint_pointer_names_no_transaction,
    the_cause_of_an_abort_reaches_the_caller,
    checkpoints_taken_in_any_order_hide_what_is_not_committed,
    the_last_check_counts_and_a_failed_one_changes_nothing,
    a_commit_without_changes_conflicts_with_nobody,
);

fn begin(service: &Arc<dyn TransactionService>) -> WritePointer {
    service.begin(BeginOptions::default(), None).unwrap().id()
}

fn begin_long(service: &Arc<dyn TransactionService>) -> WritePointer {
    service.begin(BeginOptions { kind: Kind::Long, ..BeginOptions::default() }, None).unwrap().id()
}

fn each_winner_is_named_though_commits_follow_at_once(rig: &Rig) {
    let [one, two, third, fourth, fifth] = [(); 5].map(|()| begin(&rig.service));
    // Nothing begins between their commits.
    for (tx, key) in [(one, "1"), (two, "2")] {
        rig.service.commit(tx, &writes(&[key]), 0).unwrap();
    }
    for (tx, key, expected) in [(third, "1", one), (fourth, "2", two)] {
        for answer in
            [rig.service.can_commit(tx, &writes(&[key])), rig.service.commit(tx, &writes(&[key]), 0).map(drop)]
        {
            let Err(Error::Commit(CommitError::Conflict { winner, .. })) = answer else { panic!("{answer:?}") };
            assert_eq!(winner, Some(expected));
        }
    }
    rig.service.commit(fifth, &writes(&["3"]), 0).unwrap();
}

fn an_abort_ends_checkpoints_that_its_caller_knows_nothing_of(rig: &Rig) {
    let tx = begin(&rig.service);
    let pointers = [tx, rig.service.checkpoint(tx, 1).unwrap(), rig.service.checkpoint(tx, 2).unwrap()];
    commit_of(&rig.service, &["k"], "");
    let open = rig.snapshot();
    assert!(pointers.iter().all(|pointer| open.in_progress.contains(*pointer)));
    assert_eq!(rig.service.abort(tx).unwrap(), Status::Aborted);
    assert!(rig.snapshot().in_progress.is_empty());
}

fn an_expired_transaction_does_not_commit(rig: &Rig) {
    let options = BeginOptions { timeout_ms: Some(1), ..BeginOptions::default() };
    let tx = rig.service.begin(options, None).unwrap().id();
    // Whether somebody has swept it or the commit itself finds out: it is over.
    let bystander = rig.service.begin(options, None).unwrap().id();
    until("the bystander has expired", || rig.status(bystander) == Status::Invalid(InvalidCause::Expired));
    let error = rig.service.commit(tx, &writes(&["k"]), 0).unwrap_err();
    let expired = Status::Invalid(InvalidCause::Expired);
    assert!(
        matches!(&error, Error::Commit(CommitError::Expired { .. }) | Error::Commit(CommitError::NotInProgress { .. })),
        "{error:?}"
    );
    assert_eq!(rig.status(tx), expired);
}

fn a_refused_commit_stays_refused(rig: &Rig) {
    let tx = begin(&rig.service);
    rig.service.can_commit(tx, &writes(&["k"])).unwrap();
    commit_of(&rig.service, &["k"], "");
    let error = rig.service.commit_checked(tx, &writes(&["k"]), 0).unwrap_err();
    assert!(matches!(error, Error::Commit(CommitError::Conflict { .. })), "{error:?}");
    for changes in [writes(&["k"]), writes(&["other"]), ChangeSet::default()] {
        for answer in [
            rig.service.commit(tx, &changes, 0),
            rig.service.commit_checked(tx, &changes, 0),
            rig.service.can_commit(tx, &changes).map(|()| CommitNumber(0)),
        ] {
            assert!(
                matches!(answer, Err(Error::Commit(CommitError::NotInProgress { ended: Status::Refused, .. }))),
                "{answer:?}"
            );
        }
    }
    assert_eq!(rig.service.abort(tx).unwrap(), Status::Aborted);
}

fn ends_of_the_unknown_move_nothing(rig: &Rig) {
    let ended = commit_of(&rig.service, &["k"], "");
    let before = rig.snapshot();
    for unknown in [WritePointer(1), WritePointer(ended.0 + 1), WritePointer(ended.0 + (1 << 50)), WritePointer::MAX] {
        assert_eq!(rig.service.abort(unknown).unwrap(), Status::Forgotten, "{unknown}");
        assert!(!rig.service.invalidate(unknown).unwrap(), "{unknown}");
        assert_eq!(rig.service.settle(unknown).unwrap(), Status::Forgotten, "{unknown}");
        for answer in [
            rig.service.commit(unknown, &ChangeSet::default(), 0).map(drop),
            rig.service.can_commit(unknown, &writes(&["k"])),
            rig.service.checkpoint(unknown, 1).map(drop),
        ] {
            let forgotten = CommitError::NotInProgress { tx: unknown, ended: Status::Forgotten };
            assert!(matches!(&answer, Err(Error::Commit(error)) if *error == forgotten), "{answer:?}");
        }
    }
    let after = rig.snapshot();
    assert_eq!((after.read_pointer, after.csn), (before.read_pointer, before.csn));
    assert!(after.invalid.pointers.is_empty());
}

fn a_commit_moves_the_read_pointer_to_its_last_checkpoint_and_no_further(rig: &Rig) {
    let tx = begin(&rig.service);
    rig.service.checkpoint(tx, 1).unwrap();
    let last = rig.service.checkpoint(tx, 2).unwrap();
    let open = begin(&rig.service);
    rig.service.commit(tx, &writes(&["k"]), 2).unwrap();
    let snapshot = rig.snapshot();
    assert_eq!(snapshot.read_pointer, last);
    assert!(!snapshot.is_visible(open));
}

fn a_transaction_is_of_the_kind_it_was_begun_as_whoever_aborts_it(rig: &Rig) {
    let [long, short] = [begin_long(&rig.service), begin(&rig.service)];
    assert_eq!(rig.service.abort(long).unwrap(), Status::Invalid(InvalidCause::LongAborted));
    assert_eq!(rig.service.abort(long).unwrap(), Status::Invalid(InvalidCause::LongAborted), "and it stays that");
    assert_eq!(rig.service.abort(short).unwrap(), Status::Aborted);
    // An invalid one that was SHORT is harmless after a clean rollback.
    let short = begin(&rig.service);
    assert!(rig.service.invalidate(short).unwrap());
    assert_eq!(rig.service.abort(short).unwrap(), Status::Aborted);
}

fn a_checkpoint_pointer_names_no_transaction(rig: &Rig) {
    let tx = begin(&rig.service);
    let checkpoint = rig.service.checkpoint(tx, 1).unwrap();
    for answer in [
        rig.service.can_commit(checkpoint, &writes(&["k"])),
        rig.service.commit(checkpoint, &writes(&["k"]), 0).map(drop),
        rig.service.checkpoint(checkpoint, 1).map(drop),
    ] {
        assert!(matches!(answer, Err(Error::Commit(CommitError::NotInProgress { .. }))), "{answer:?}");
    }
    assert!(!rig.service.invalidate(checkpoint).unwrap());
    assert_eq!(rig.service.abort(checkpoint).unwrap(), Status::Forgotten);
    // All of that has left the transaction whole.
    assert_eq!(rig.status(tx), Status::Open);
    rig.service.commit(tx, &writes(&["k"]), 1).unwrap();
    let snapshot = rig.snapshot();
    assert!(snapshot.is_visible(tx) && snapshot.is_visible(checkpoint));
}

fn the_cause_of_an_abort_reaches_the_caller(rig: &Rig) {
    let mut context = rig.context();
    context.start(StartOptions::default()).unwrap();
    rig.right.keeps(true);
    let error = context.abort_because("the card was refused");
    let Failure::Caller(reason) = error.failure() else { panic!("{error:?}") };
    assert_eq!(reason.to_string(), "the card was refused");
    // What failed on the way does not hide it.
    assert!(matches!(error.suppressed(), [Failure::Dirty { .. }]));
    assert_eq!((error.standing(), context.current().is_none()), (Standing::Invalidated, true));
}

fn checkpoints_taken_in_any_order_hide_what_is_not_committed(rig: &Rig) {
    let transactions = [(); 3].map(|()| begin(&rig.service));
    let commit_five = |round| {
        for n in 0..5 {
            commit_of(&rig.service, &[&format!("{round}/{n}")], "");
        }
    };
    commit_five(1);
    let mut pointers = transactions.to_vec();
    pointers.extend(transactions.iter().rev().map(|tx| rig.service.checkpoint(*tx, 1).unwrap()));
    commit_five(2);
    let hidden = |which: &[usize]| {
        let snapshot = rig.service.begin(BeginOptions::default(), None).unwrap().snapshot().clone();
        for set in [&snapshot.in_progress, &snapshot.invalid.pointers] {
            assert!(set.iter().collect::<Vec<_>>().is_sorted());
        }
        for (at, pointer) in pointers.iter().enumerate() {
            assert_eq!(!snapshot.is_visible(*pointer), which.contains(&at), "{at}");
        }
    };
    // Places: 0 to 2 are the transactions, 3 to 5 the checkpoints of the third, the second and the first.
    hidden(&[0, 1, 2, 3, 4, 5]);
    assert_eq!(rig.service.abort(transactions[0]).unwrap(), Status::Aborted);
    // Of an aborted one nothing is left that could be seen.
    hidden(&[1, 2, 3, 4]);
    assert!(rig.service.invalidate(transactions[1]).unwrap());
    hidden(&[1, 2, 3, 4]);
    rig.service.commit(transactions[2], &ChangeSet::default(), 1).unwrap();
    hidden(&[1, 4]);
}

fn the_last_check_counts_and_a_failed_one_changes_nothing(rig: &Rig) {
    let service = &rig.service;
    let [last_is_taken, first_is_free] = [(); 2].map(|()| begin(service));
    commit_of(service, &["taken"], "");
    // A later check takes the place of an earlier one, and the commit is about what it names.
    service.can_commit(last_is_taken, &writes(&["free"])).unwrap();
    service.can_commit(last_is_taken, &writes(&["taken"])).unwrap_err();
    let error = service.commit(last_is_taken, &writes(&["taken"]), 0).unwrap_err();
    assert!(matches!(error, Error::Commit(CommitError::Conflict { .. })), "{error:?}");
    service.can_commit(first_is_free, &writes(&["free"])).unwrap();
    service.can_commit(first_is_free, &writes(&["taken"])).unwrap_err();
    assert_eq!(rig.status(first_is_free), Status::Open);
    service.commit_checked(first_is_free, &writes(&["free"]), 0).unwrap();
    // What was never checked is committed with its changes, and against them.
    let [unchecked, loser] = [(); 2].map(|()| begin(service));
    service.commit_checked(unchecked, &writes(&["k"]), 0).unwrap();
    let error = service.commit_checked(loser, &writes(&["k"]), 0).unwrap_err();
    assert!(matches!(error, Error::Commit(CommitError::Conflict { .. })), "{error:?}");
}

fn a_commit_without_changes_conflicts_with_nobody(rig: &Rig) {
    let [unchecked, other] = [(); 2].map(|()| begin(&rig.service));
    commit_of(&rig.service, &["k"], "");
    rig.service.commit(unchecked, &ChangeSet::default(), 0).unwrap();
    rig.service.commit(other, &writes(&["else"]), 0).unwrap();
}

#[test]
fn a_checkpoint_of_an_ended_transaction_is_refused_at_once_and_by_its_type() {
    let far = Far::new(16);
    let tx = begin(&far.service);
    far.service.abort(tx).unwrap();
    let before = far.line.requests();
    let error = far.service.checkpoint(tx, 1).unwrap_err();
    assert!(matches!(error, Error::Commit(CommitError::NotInProgress { ended: Status::Aborted, .. })), "{error:?}");
    assert_eq!(far.line.requests(), before + 1, "it was asked for once");
}

#[test]
fn a_timeout_that_cannot_be_is_refused_at_once() {
    let far = Far::new(16);
    for (timeout_ms, expected) in [
        (0, BeginError::TimeoutNotPositive),
        (86_400_001, BeginError::TimeoutTooLong { asked_ms: 86_400_001, max_ms: 86_400_000 }),
    ] {
        let before = far.line.requests();
        let options = BeginOptions { timeout_ms: Some(timeout_ms), ..BeginOptions::default() };
        let error = far.service.begin(options, None).unwrap_err();
        assert!(matches!(&error, Error::Begin(refusal) if *refusal == expected), "{error:?}");
        assert!(!error.is_retryable());
        assert_eq!(far.line.requests(), before + 1);
    }
}

#[test]
fn every_question_to_a_stopped_server_fails_alike() {
    let mut serving = Serving::start();
    let options = ClientOptions { attempts_max: 1, ..ClientOptions::default() };
    let client = Client::connect(serving.address().to_string().as_str(), options).unwrap();
    let service: Arc<dyn TransactionService> = Arc::new(client);
    let tx = begin(&service);
    serving.stop();
    let ask = || {
        [
            service.begin(BeginOptions::default(), None).map(drop),
            service.can_commit(tx, &writes(&["k"])),
            service.commit(tx, &writes(&["k"]), 0).map(drop),
            service.checkpoint(tx, 1).map(drop),
            service.abort(tx).map(drop),
            service.invalidate(tx).map(drop),
            service.settle(tx).map(drop),
        ]
    };
    // The first one still has a connection to lose.
    drop(ask());
    for (at, answer) in ask().into_iter().enumerate() {
        assert!(matches!(answer, Err(Error::Connect { .. })), "question {at}: {answer:?}");
    }
}
