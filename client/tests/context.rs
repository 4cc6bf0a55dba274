//! The transaction context: what happens in which order, and what a failure of anybody leaves.
//!
//! The scenarios are those of Apache Tephra's own suite for its context, two participants `d1` and `d2`; rows count its
//! scenarios. Where a participant of Tephra answers false, ours fails with nothing to say. Its value tests, rows 62 to 68,
//! are with `TransactionView` in the core; row 61, which takes a log and a restart, is with the contexts of `kv`.
//!
//! | Tephra row | test |
//! |---|---|
//! | 69 | `success_calls_everybody_in_order_and_commits` |
//! | 70 | `a_failure_after_the_commit_reaches_the_caller_and_undoes_nothing` |
//! | 71 | `a_failed_flush_stops_there_rolls_everybody_back_and_aborts` |
//! | 72 | `a_flush_that_fails_without_a_word_aborts_as_well` |
//! | 73 | `a_failed_flush_and_a_failed_rollback_invalidate_and_the_flush_is_the_reason` |
//! | 74 | `a_flush_and_a_rollback_that_fail_without_a_word_invalidate` |
//! | 75 | `a_conflict_at_the_commit_rolls_everybody_back_and_aborts` |
//! | 76 | `a_conflict_at_the_check_comes_before_any_flush` |
//! | 77 | `failed_changes_and_a_failed_rollback_invalidate_and_the_changes_are_the_reason` |
//! | 78 | `a_failed_start_aborts_and_rolls_nobody_back` |
//! | 79 | `one_added_while_active_is_started_at_once_and_takes_part` |
//! | 80 | `one_added_while_active_can_fail_the_transaction` |
//! | 81 | `nobody_is_removed_while_active_and_strangers_never` |
//! | 82 | `after_a_failed_finish_one_can_be_removed` |
//! | 83 | `a_name_that_panics_hides_no_reason` |

mod double;

use std::error::Error as _;
use std::sync::Arc;

use double::*;
use seriatim_client::*;
use seriatim_core::*;

const STARTED: &str = "begin, d1 start, d2 start";
const CHECKED: &str = "d1 changes, d2 changes, can commit";
const FLUSHED: &str = "d1 flush, d2 flush";
const ROLLED_BACK: &str = "d1 rollback, d2 rollback";

fn plan() -> Plan {
    Plan::default()
}

/// Starts and finishes, with nothing done in between.
fn finish(stage: &Stage) -> Result<Committed, ContextError> {
    let mut context = stage.context();
    context.start(StartOptions::default())?;
    let finished = context.finish();
    assert!(context.current().is_none());
    finished
}

fn is_committed(status: Status) -> bool {
    matches!(status, Status::Committed(_))
}

#[test]
fn success_calls_everybody_in_order_and_commits() {
    let stage = Stage::new();
    let committed = finish(&stage).unwrap();
    assert_eq!(stage.journal.told(), format!("{STARTED}, {CHECKED}, {FLUSHED}, commit checked, d1 after, d2 after"));
    assert_eq!(stage.service.status(committed.tx), Status::Committed(committed.csn));
    assert!(!committed.settled);
    // What both wrote went out as hashes.
    let ids = stage.service.submitted();
    let mut expected = ChangeSet::of_writes([b"d1".as_slice(), b"d2"]);
    expected.writes.sort();
    assert_eq!(ids, [expected]);
}

#[test]
fn a_failure_after_the_commit_reaches_the_caller_and_undoes_nothing() {
    let stage = Stage::planned(Plan { after_commit: Act::Fail("after"), ..plan() });
    stage.d2.plan(Plan { after_commit: Act::Fail("after, too"), ..plan() });
    let error = finish(&stage).unwrap_err();
    assert_eq!(told(error.failure()), (Step::AfterCommit, "after".into()));
    assert_eq!(error.suppressed().iter().map(told).collect::<Vec<_>>(), [(Step::AfterCommit, "after, too".into())]);
    assert!(stage.journal.told().ends_with("commit checked, d1 after, d2 after"));
    assert!(matches!(error.standing(), Standing::Committed(_)) && is_committed(stage.service.last_status()));
    assert!(!error.is_retryable() && !error.has_come_to_nothing());
}

#[test]
fn a_failed_flush_stops_there_rolls_everybody_back_and_aborts() {
    let stage = Stage::planned(Plan { flush: Act::Fail("flush"), ..plan() });
    let error = finish(&stage).unwrap_err();
    assert_eq!(told(error.failure()), (Step::Flush, "flush".into()));
    assert_eq!(stage.journal.told(), format!("{STARTED}, {CHECKED}, d1 flush, {ROLLED_BACK}, abort"));
    assert_eq!((error.standing(), stage.service.last_status()), (Standing::Aborted, Status::Aborted));
    assert!(error.suppressed().is_empty() && !error.is_retryable());
    assert_eq!(error.to_string(), "participant d1: flush failed: flush");
    assert_eq!(error.failure().source().unwrap().to_string(), "flush");
}

#[test]
fn a_flush_that_fails_without_a_word_aborts_as_well() {
    let stage = Stage::planned(Plan { flush: Act::Decline, ..plan() });
    let error = finish(&stage).unwrap_err();
    assert!(error.failure().source().unwrap().is::<Declined>());
    assert_eq!(stage.journal.told(), format!("{STARTED}, {CHECKED}, d1 flush, {ROLLED_BACK}, abort"));
    assert_eq!((error.standing(), stage.service.last_status()), (Standing::Aborted, Status::Aborted));
}

#[test]
fn a_failed_flush_and_a_failed_rollback_invalidate_and_the_flush_is_the_reason() {
    let stage = Stage::planned(Plan { flush: Act::Fail("flush"), rollback: Act::Fail("rollback"), ..plan() });
    let error = finish(&stage).unwrap_err();
    assert_eq!(told(error.failure()), (Step::Flush, "flush".into()));
    assert_eq!(error.suppressed().iter().map(told).collect::<Vec<_>>(), [(Step::Rollback, "rollback".into())]);
    assert_eq!(stage.journal.told(), format!("{STARTED}, {CHECKED}, d1 flush, {ROLLED_BACK}, invalidate"));
    assert_eq!(
        (error.standing(), stage.service.last_status()),
        (Standing::Invalidated, Status::Invalid(InvalidCause::Asked))
    );
}

#[test]
fn a_flush_and_a_rollback_that_fail_without_a_word_invalidate() {
    let stage = Stage::planned(Plan { flush: Act::Decline, rollback: Act::Decline, ..plan() });
    let error = finish(&stage).unwrap_err();
    assert!(error.failure().source().unwrap().is::<Declined>());
    assert!(matches!(error.suppressed(), [Failure::Dirty { name }] if name == "d1"));
    assert!(stage.journal.told().ends_with(&format!("{ROLLED_BACK}, invalidate")));
    assert_eq!(error.standing(), Standing::Invalidated);
}

#[test]
fn a_conflict_at_the_commit_rolls_everybody_back_and_aborts() {
    let stage = Stage::new();
    stage.service.script("commit checked", Script::Instead(conflict(100)));
    let error = finish(&stage).unwrap_err();
    assert!(error.is_conflict() && error.is_retryable() && error.source().is_none());
    assert_eq!(error.conflict().unwrap().step, Step::Commit);
    assert_eq!(stage.journal.told(), format!("{STARTED}, {CHECKED}, {FLUSHED}, commit checked, {ROLLED_BACK}, abort"));
    assert_eq!((error.standing(), stage.service.last_status()), (Standing::Aborted, Status::Aborted));
}

#[test]
fn a_conflict_at_the_check_comes_before_any_flush() {
    let stage = Stage::new();
    stage.service.script("can commit", Script::Instead(conflict(100)));
    let error = finish(&stage).unwrap_err();
    assert_eq!(error.conflict().unwrap().step, Step::CanCommit);
    assert!(error.is_conflict());
    assert_eq!(stage.journal.told(), format!("{STARTED}, {CHECKED}, {ROLLED_BACK}, abort"));
    assert_eq!((error.standing(), stage.service.last_status()), (Standing::Aborted, Status::Aborted));
}

#[test]
fn failed_changes_and_a_failed_rollback_invalidate_and_the_changes_are_the_reason() {
    let stage = Stage::planned(Plan { changes: Act::Fail("changes"), rollback: Act::Fail("rollback"), ..plan() });
    let error = finish(&stage).unwrap_err();
    assert_eq!(told(error.failure()), (Step::Changes, "changes".into()));
    assert_eq!(stage.journal.told(), format!("{STARTED}, d1 changes, {ROLLED_BACK}, invalidate"));
    assert_eq!(error.standing(), Standing::Invalidated);
}

#[test]
fn a_failed_start_aborts_and_rolls_nobody_back() {
    let stage = Stage::planned(Plan { start: Act::Fail("start"), ..plan() });
    let mut context = stage.context();
    let error = context.start(StartOptions::default()).unwrap_err();
    assert_eq!(told(error.failure()), (Step::Start, "start".into()));
    assert!(context.current().is_none());
    assert_eq!(stage.journal.told(), "begin, d1 start, abort");
    assert_eq!((error.standing(), stage.service.last_status()), (Standing::Aborted, Status::Aborted));
}

#[test]
fn one_added_while_active_is_started_at_once_and_takes_part() {
    let stage = Stage::new();
    let mut context = TransactionContext::new(stage.service.clone(), [stage.d1.clone() as Arc<dyn Participant>]);
    let tx = context.start(StartOptions::default()).unwrap().id();
    assert!(context.add(stage.d2.clone()).unwrap());
    assert_eq!(stage.d2.view().id(), tx);
    assert!(!context.add(stage.d2.clone()).unwrap(), "it takes part once");
    context.finish().unwrap();
    assert_eq!(stage.journal.told(), format!("{STARTED}, {CHECKED}, {FLUSHED}, commit checked, d1 after, d2 after"));
    assert!(is_committed(stage.service.status(tx)));
}

#[test]
fn one_added_while_active_can_fail_the_transaction() {
    let stage = Stage::new();
    stage.d2.plan(Plan { flush: Act::Fail("flush"), ..plan() });
    let mut context = TransactionContext::new(stage.service.clone(), [stage.d1.clone() as Arc<dyn Participant>]);
    context.start(StartOptions::default()).unwrap();
    context.add(stage.d2.clone()).unwrap();
    let error = context.finish().unwrap_err();
    assert_eq!(told(error.failure()), (Step::Flush, "flush".into()));
    assert!(stage.journal.told().ends_with(&format!("{FLUSHED}, {ROLLED_BACK}, abort")));
    assert_eq!(error.standing(), Standing::Aborted);
}

#[test]
fn nobody_is_removed_while_active_and_strangers_never() {
    let stage = Stage::new();
    let [d1, d2] = stage.participants();
    let mut context = TransactionContext::new(stage.service.clone(), [d1.clone()]);
    let tx = context.start(StartOptions::default()).unwrap().id();
    let error = context.remove(&d1).unwrap_err();
    assert!(matches!(error.failure(), Failure::Active { tx: active } if *active == tx));
    assert_eq!((error.standing(), context.current().map(TransactionView::id)), (Standing::Active, Some(tx)));
    context.finish().unwrap();
    assert!(context.remove(&d1).unwrap() && !context.remove(&d1).unwrap());
    assert!(!context.remove(&d2).unwrap());
    assert!(is_committed(stage.service.status(tx)));
}

#[test]
fn after_a_failed_finish_one_can_be_removed() {
    let stage = Stage::planned(Plan { flush: Act::Fail("flush"), ..plan() });
    let [d1, _] = stage.participants();
    let mut context = stage.context();
    context.start(StartOptions::default()).unwrap();
    context.finish().unwrap_err();
    assert!(context.remove(&d1).unwrap());
    assert_eq!(stage.service.last_status(), Status::Aborted);
    context.start(StartOptions::default()).unwrap();
    context.finish().unwrap();
}

#[test]
fn a_name_that_panics_hides_no_reason() {
    let nameless = Plan { name: Act::Panic("nameless"), ..plan() };
    let fails = Act::Fail("the reason");
    let plans = [
        (Step::Start, Plan { start: fails, ..nameless }),
        (Step::Changes, Plan { changes: fails, ..nameless }),
        (Step::Flush, Plan { flush: fails, ..nameless }),
        (Step::Rollback, Plan { rollback: fails, ..nameless }),
        (Step::AfterCommit, Plan { after_commit: fails, ..nameless }),
    ];
    let stage = Stage::new();
    let mut context = stage.context();
    for (step, plan) in plans {
        stage.d1.plan(plan);
        let mut run = || {
            context.start(StartOptions::default())?;
            if step == Step::Rollback { context.abort().map(drop) } else { context.finish().map(drop) }
        };
        let error = run().unwrap_err();
        assert_eq!(told(error.failure()), (step, "the reason".into()));
        let [Failure::Participant { name, step: Step::Name, .. }] = error.suppressed() else { panic!("{error:?}") };
        assert_eq!((name.as_str(), error.suppressed()[0].panic().unwrap().message()), ("participant 1", "nameless"));
        assert!(context.current().is_none());
        // As if nothing had been.
        stage.d1.plan(nameless);
        context.start(StartOptions::default()).unwrap();
        context.finish().unwrap();
    }
}
