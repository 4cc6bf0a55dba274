//! The context in doubt: lost answers, ends by somebody else, panics. Nothing is rolled back before it is known that the
//! transaction will never commit, and everything is after that.

mod double;

use std::sync::Arc;
use std::time::Duration;

use double::*;
use seriatim_client::*;
use seriatim_core::{BeginError, CommitError, CommitNumber, Full, InvalidCause, Kind, Status, WritePointer};

const TX: WritePointer = WritePointer(100);
const ROLLED_BACK: &str = "d1 rollback, d2 rollback";

fn plan() -> Plan {
    Plan::default()
}

/// A started context, and its journal empty.
fn started(stage: &Stage) -> TransactionContext {
    let mut context = stage.context();
    assert_eq!(context.start(StartOptions::default()).unwrap().id(), TX);
    stage.journal.take();
    context
}

/// What was called from the commit on.
fn from_commit(stage: &Stage) -> String {
    let told = stage.journal.told();
    let (_, after) = told.split_once("commit checked").expect("it came to a commit");
    after.trim_start_matches(", ").to_owned()
}

#[test]
fn a_commit_whose_answer_was_lost_is_settled_and_nobody_is_rolled_back() {
    let stage = Stage::new();
    let mut context = started(&stage);
    stage.service.script("commit checked", Script::Lost(lost()));
    let committed = context.finish().unwrap();
    assert_eq!((committed.tx, committed.settled), (TX, true));
    assert_eq!(stage.service.status(TX), Status::Committed(committed.csn));
    assert_eq!(from_commit(&stage), "settle, d1 after, d2 after");
}

#[test]
fn a_commit_that_was_lost_on_its_way_is_settled_first_and_rolled_back_then() {
    let stage = Stage::new();
    let mut context = started(&stage);
    stage.service.script("commit checked", Script::Instead(lost()));
    let error = context.finish().unwrap_err();
    // Settling made it invalid, so that the commit would be refused if it came now; a clean rollback makes it aborted.
    assert_eq!(from_commit(&stage), format!("settle, {ROLLED_BACK}, abort"));
    assert_eq!((error.standing(), stage.service.status(TX)), (Standing::Aborted, Status::Aborted));
    assert!(matches!(
        error.failure(),
        Failure::Sequencer { source: Error::NotCommitted { ended: Status::Invalid(InvalidCause::Settled), .. }, .. }
    ));
    assert!(matches!(error.suppressed(), [Failure::Sequencer { source: Error::Lost(_), .. }]));
    assert!(error.is_retryable() && !error.is_conflict());
}

#[test]
fn a_settle_without_an_answer_is_asked_again() {
    let stage = Stage::new();
    let mut context = started(&stage);
    stage.service.script("commit checked", Script::Lost(lost()));
    (0..3).for_each(|_| stage.service.script("settle", Script::Instead(lost())));
    assert!(context.finish().unwrap().settled);
    assert_eq!(from_commit(&stage), "settle, settle, settle, settle, d1 after, d2 after");
}

#[test]
fn an_outcome_that_nobody_tells_in_time_leaves_everything_as_it_is() {
    let stage = Stage::new();
    let mut context = stage.context().with_settle_for(Duration::from_secs(10));
    context.start(StartOptions::default()).unwrap();
    stage.service.script("commit checked", Script::Lost(lost()));
    (0..1000).for_each(|_| stage.service.script("settle", Script::Instead(lost())));
    let error = context.finish().unwrap_err();
    assert!(matches!(error.failure(), Failure::Unknown { tx: TX, source: Error::Lost(_) }));
    assert!(matches!(error.suppressed(), [Failure::Sequencer { step: Step::Settle, .. }]));
    assert_eq!(error.standing(), Standing::Unknown);
    assert!(!error.is_retryable() && !error.has_come_to_nothing());
    // It took its time and no more than that and one pause; then it was let go of, which at most makes it invalid.
    let waited: Duration = stage.clock.slept().iter().sum();
    assert!((10..=11).contains(&waited.as_secs()), "{waited:?}");
    let told = from_commit(&stage);
    assert!(
        told.ends_with("settle, abandon written") && !told.contains("rollback") && !told.contains("after"),
        "{told}"
    );
    // It had committed, and has not been taken back.
    assert!(matches!(stage.service.status(TX), Status::Committed(_)));
    // The context is ready for the next one.
    context.start(StartOptions::default()).unwrap();
    context.finish().unwrap();
}

#[test]
fn a_sequencer_that_has_failed_for_good_is_asked_once_and_the_outcome_is_unknown() {
    let stage = Stage::new();
    let failed = || Script::Instead(Error::Service(Arc::new(Declined)));
    let mut context = started(&stage);
    stage.service.script("commit checked", failed());
    stage.service.script("settle", failed());
    let error = context.finish().unwrap_err();
    assert!(matches!(error.failure(), Failure::Unknown { tx: TX, source: Error::Service(_) }), "{error:?}");
    assert_eq!((error.standing(), error.is_retryable()), (Standing::Unknown, false));
    assert_eq!(from_commit(&stage), "settle, abandon written");
    assert!(stage.clock.slept().is_empty());
    // Where nothing was under way, nothing is in doubt.
    stage.service.script("begin", failed());
    let error = context.start(StartOptions::default()).unwrap_err();
    assert!(error.has_come_to_nothing() && !error.is_retryable());
}

#[test]
fn a_forgotten_outcome_is_unknown_at_once() {
    let stage = Stage::new();
    let mut context = stage.context();
    context.start(StartOptions { form: CommitForm::OneStep, ..Default::default() }).unwrap();
    stage.service.script("commit", Script::Instead(lost()));
    stage.service.another_ends(TX, Status::Forgotten);
    let error = context.finish().unwrap_err();
    assert!(matches!(error.failure(), Failure::Unknown { .. }) && error.suppressed().is_empty());
    assert_eq!(error.standing(), Standing::Unknown);
    assert!(stage.clock.slept().is_empty());
}

#[test]
fn a_repeated_commit_that_finds_itself_committed_has_committed() {
    let stage = Stage::new();
    let mut context = started(&stage);
    let ended = Status::Committed(CommitNumber(9));
    let already = CommitError::NotInProgress { tx: TX, ended };
    stage.service.script("commit checked", Script::Instead(already.into()));
    let committed = context.finish().unwrap();
    assert_eq!((committed.csn, committed.settled), (CommitNumber(9), true));
    assert_eq!(from_commit(&stage), "d1 after, d2 after");
}

#[test]
fn an_expired_transaction_is_rolled_back_and_cleaned() {
    let stage = Stage::new();
    let mut context = started(&stage);
    stage.service.another_ends(TX, Status::Invalid(InvalidCause::Expired));
    let error = context.finish().unwrap_err();
    assert!(matches!(error.failure(), Failure::Sequencer { step: Step::CanCommit, .. }));
    assert_eq!((error.standing(), stage.service.status(TX)), (Standing::Aborted, Status::Aborted));
}

#[test]
fn nothing_is_flushed_past_the_deadline() {
    let stage = Stage::new();
    let mut context = stage.context();
    context.start(StartOptions { timeout_ms: Some(5_000), ..Default::default() }).unwrap();
    stage.journal.take();
    stage.clock.pass(Duration::from_millis(5_000));
    let error = context.finish().unwrap_err();
    assert!(matches!(
        error.failure(),
        Failure::Sequencer { step: Step::Flush, source: Error::Commit(CommitError::Expired { tx: TX }) }
    ));
    assert!(error.is_retryable() && error.standing() == Standing::Aborted);
    assert_eq!(stage.journal.told(), format!("d1 changes, d2 changes, can commit, {ROLLED_BACK}, abort"));
    // By default after 30 s, and never if the deadline is none.
    context.start(StartOptions::default()).unwrap();
    stage.clock.pass(Duration::from_millis(29_999));
    context.checkpoint().unwrap();
    stage.clock.pass(Duration::from_millis(1));
    context.checkpoint().unwrap_err();
    context.start(StartOptions { kind: Kind::Long, timeout_ms: Some(0), ..Default::default() }).unwrap();
    stage.clock.pass(Duration::from_secs(1_000_000));
    context.finish().unwrap();
}

#[test]
fn a_refusal_that_leaves_it_open_is_no_doubt() {
    let stage = Stage::new();
    let mut context = started(&stage);
    stage.service.script("commit checked", Script::Instead(CommitError::Overloaded(Full::EventRing).into()));
    let error = context.finish().unwrap_err();
    assert_eq!(from_commit(&stage), format!("{ROLLED_BACK}, abort"));
    assert!(error.is_retryable() && error.standing() == Standing::Aborted);
}

#[test]
fn a_transaction_that_somebody_else_commits_is_not_rolled_back() {
    let stage = Stage::new();
    let mut context = started(&stage);
    let ended = Status::Committed(CommitNumber(9));
    stage.service.another_ends(TX, ended);
    let error = context.finish().unwrap_err();
    assert!(matches!(error.failure(), Failure::EndedByOther { tx: TX, ended: by } if *by == ended));
    assert_eq!(error.standing(), Standing::Committed(CommitNumber(9)));
    assert!(!stage.journal.told().contains("rollback"));
    // An abort learns of it too late, and says so.
    let tx = context.start(StartOptions::default()).unwrap().id();
    stage.service.another_ends(tx, ended);
    let error = context.abort().unwrap_err();
    assert!(matches!(error.failure(), Failure::EndedByOther { .. }));
    assert_eq!(error.standing(), Standing::Committed(CommitNumber(9)));
}

#[test]
fn an_abort_that_is_not_answered_is_attached_and_told_again_in_the_background() {
    let stage = Stage::planned(Plan { flush: Act::Fail("flush"), ..plan() });
    let mut context = started(&stage);
    stage.service.script("abort", Script::Instead(lost()));
    let error = context.finish().unwrap_err();
    assert_eq!(told(error.failure()), (Step::Flush, "flush".into()));
    assert!(matches!(error.suppressed(), [Failure::Sequencer { step: Step::Abort, .. }]));
    assert_eq!(error.standing(), Standing::Unfinished);
    // All were rolled back cleanly, so letting go of it is an abort.
    assert!(stage.journal.told().ends_with(&format!("{ROLLED_BACK}, abort, abandon unwritten")));
}

#[test]
fn an_invalidate_that_is_not_answered_is_told_again_as_one() {
    let stage = Stage::planned(Plan { rollback: Act::Panic("rollback"), ..plan() });
    let mut context = started(&stage);
    stage.service.script("invalidate", Script::Instead(lost()));
    let error = context.abort().unwrap_err();
    assert_eq!(told(error.failure()), (Step::Rollback, "it panicked: rollback".into()));
    assert_eq!(error.standing(), Standing::Unfinished);
    assert_eq!(stage.journal.told(), format!("{ROLLED_BACK}, invalidate, abandon written"));
}

#[test]
fn a_dirty_transaction_that_has_ended_before_says_how() {
    let stage = Stage::planned(Plan { rollback: Act::Decline, ..plan() });
    for (ended, standing, told) in [
        (Status::Invalid(InvalidCause::Expired), Standing::Invalidated, false),
        // Whoever said that nothing of it is left was wrong.
        (Status::Aborted, Standing::Aborted, true),
        (Status::Committed(CommitNumber(3)), Standing::Committed(CommitNumber(3)), true),
    ] {
        let mut context = stage.context();
        let tx = context.start(StartOptions::default()).unwrap().id();
        stage.service.another_ends(tx, ended);
        let error = context.abort().unwrap_err();
        assert!(matches!(error.failure(), Failure::Dirty { name } if name == "d1"));
        let by_other = error.suppressed().iter().any(|f| matches!(f, Failure::EndedByOther { .. }));
        assert_eq!((error.standing(), by_other), (standing, told), "{ended:?}");
    }
}

#[test]
fn a_panic_of_a_participant_is_a_failure_that_can_be_gone_on_with() {
    type Planned = fn(Act) -> Plan;
    let steps: [(Step, Planned); 4] = [
        (Step::Start, |act| Plan { start: act, ..plan() }),
        (Step::Changes, |act| Plan { changes: act, ..plan() }),
        (Step::Flush, |act| Plan { flush: act, ..plan() }),
        (Step::AfterCommit, |act| Plan { after_commit: act, ..plan() }),
    ];
    for (step, planned) in steps {
        let stage = Stage::planned(planned(Act::Panic("at the disco")));
        let mut context = stage.context();
        let run = context.start(StartOptions::default()).map(drop).and_then(|()| context.finish().map(drop));
        let error = run.unwrap_err();
        assert_eq!(told(error.failure()).0, step);
        assert_eq!(error.failure().panic().unwrap().message(), "at the disco");
        // The transaction was ended first.
        let committed = step == Step::AfterCommit;
        assert_eq!(matches!(stage.service.status(TX), Status::Committed(_)), committed);
        assert_eq!(stage.service.status(TX) == Status::Aborted, !committed);
        assert!(!error.is_retryable());
        let resume = std::panic::AssertUnwindSafe(|| error.resume_panic());
        let panic = std::panic::catch_unwind(resume).unwrap_err();
        assert_eq!(panic.downcast_ref::<String>().map(String::as_str), Some("at the disco"));
    }
    // An error that is none is handed back whole.
    let stage = Stage::planned(Plan { flush: Act::Fail("flush"), rollback: Act::Decline, ..plan() });
    let mut context = started(&stage);
    let error = context.finish().unwrap_err().resume_panic();
    assert_eq!((told(error.failure()).0, error.suppressed().len(), error.tx()), (Step::Flush, 1, Some(TX)));
}

#[test]
fn a_rollback_that_panics_is_dirty_and_the_others_are_rolled_back_all_the_same() {
    let stage = Stage::planned(Plan { rollback: Act::Panic("rollback"), ..plan() });
    let mut context = started(&stage);
    let error = context.abort_because("a reason");
    assert!(matches!(error.failure(), Failure::Caller(_)));
    assert_eq!(error.suppressed()[0].panic().unwrap().message(), "rollback");
    assert_eq!(stage.journal.told(), format!("{ROLLED_BACK}, invalidate"));
    assert_eq!(error.standing(), Standing::Invalidated);
}

#[test]
fn starting_twice_is_an_error_and_leaks_nothing() {
    let stage = Stage::new();
    let mut context = started(&stage);
    let error = context.start(StartOptions::default()).unwrap_err();
    assert!(matches!(error.failure(), Failure::Active { tx: TX }));
    assert_eq!(error.standing(), Standing::Active);
    assert!(!error.is_retryable() && !error.has_come_to_nothing());
    assert!(stage.journal.take().is_empty(), "the sequencer was not asked");
    assert_eq!(context.finish().unwrap().tx, TX);
}

#[test]
fn without_a_transaction_there_is_nothing_to_finish_and_an_abort_does_nothing() {
    let stage = Stage::new();
    let mut context = stage.context();
    assert!(matches!(context.finish().unwrap_err().failure(), Failure::NotActive));
    assert!(matches!(context.checkpoint().unwrap_err().failure(), Failure::NotActive));
    assert_eq!(context.abort().unwrap(), Standing::None);
    let error = context.abort_because("a reason");
    assert!(matches!(error.failure(), Failure::Caller(_)));
    assert_eq!((error.standing(), error.tx()), (Standing::None, None));
    stage.service.script("begin", Script::Instead(BeginError::Overloaded(Full::Window).into()));
    let error = context.start(StartOptions::default()).unwrap_err();
    assert!(matches!(error.failure(), Failure::Sequencer { step: Step::Begin, .. }) && error.is_retryable());
    assert_eq!(stage.journal.told(), "begin");
}

#[test]
fn a_dropped_context_lets_go_of_its_transaction_without_waiting() {
    let stage = Stage::new();
    drop(started(&stage));
    assert_eq!(stage.journal.told(), "abandon written");
    assert!(matches!(stage.service.status(TX), Status::Invalid(_)));
    // Where nobody took part nothing was written.
    let mut context = TransactionContext::new(stage.service.clone(), []);
    let tx = context.start(StartOptions::default()).unwrap().id();
    drop(context);
    assert_eq!(
        (stage.journal.told().as_str(), stage.service.status(tx)),
        ("begin, abandon unwritten", Status::Aborted)
    );
    // Who was added later may have written.
    let mut context = TransactionContext::new(stage.service.clone(), []);
    context.start(StartOptions::default()).unwrap();
    context.add(stage.d1.clone()).unwrap();
    drop(context);
    assert_eq!(stage.journal.told(), "begin, d1 start, abandon written");
}

#[test]
fn one_that_cannot_be_started_is_not_added_and_the_transaction_goes_on() {
    let stage = Stage::new();
    let failing = Dummy::new("d3", &stage.journal, Plan { start: Act::Fail("start"), ..plan() });
    let mut context = started(&stage);
    let error = context.add(failing.clone()).unwrap_err();
    assert_eq!((told(error.failure()), error.standing()), ((Step::Start, "start".into()), Standing::Active));
    context.finish().unwrap();
    assert!(!stage.journal.told().contains("d3 changes"));
    assert!(!context.remove(&(failing as Arc<dyn Participant>)).unwrap());
}

#[test]
fn contexts_and_executors_may_cross_threads() {
    fn is_send<T: Send>() {}
    is_send::<TransactionContext>();
    is_send::<TransactionExecutor>();
    fn is_an_error_for_any_thread<T: std::error::Error + Send + Sync + 'static>() {}
    is_an_error_for_any_thread::<ContextError>();
    is_an_error_for_any_thread::<GaveUp>();
}
