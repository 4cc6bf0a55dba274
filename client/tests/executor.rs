//! The executor: attempts, pauses, and when to give up. Pauses pass on a clock of their own.
//!
//! The scenarios are those of Apache Tephra's own suite for its executor, which squares a number; rows count its scenarios.
//!
//! | Tephra row | test |
//! |---|---|
//! | 84 | `success_returns_the_value_and_its_commit` |
//! | 85 | `a_failure_after_the_commit_is_told_and_never_run_again` |
//! | 86 | `a_failed_flush_aborts_and_is_not_run_again` |
//! | 87 | `a_flush_that_fails_without_a_word_is_not_run_again` |
//! | 88 | `a_failed_flush_and_a_failed_rollback_invalidate` |
//! | 89 | `a_flush_and_a_rollback_that_fail_without_a_word_invalidate` |
//! | 90 | `conflicts_without_end_are_given_up_after_twenty_retries` |
//! | 91 | `two_conflicts_are_retried_by_default` |
//! | 92 | `one_conflict_is_given_up_without_retries` |
//! | 93 | `a_conflict_at_the_check_is_given_up_without_retries` |
//! | 94 | `failed_changes_and_a_failed_rollback_invalidate` |
//! | 95 | `a_failed_closure_and_a_dirty_rollback_invalidate` |
//! | 96 | `a_failed_start_aborts_and_runs_no_closure` |

mod double;

use std::error::Error as _;
use std::time::Duration;

use double::*;
use seriatim_client::*;
use seriatim_core::{BeginError, BeginOptions, CommitError, Full, Kind, Status, WritePointer};

const ONCE: &str = "begin, d1 start, d2 start, d1 changes, d2 changes, can commit, d1 flush, d2 flush, commit checked";
const CHECKED: &str = "begin, d1 start, d2 start, d1 changes, d2 changes, can commit";
const AFTER: &str = "d1 after, d2 after";
const ROLLED_BACK: &str = "d1 rollback, d2 rollback";

fn plan() -> Plan {
    Plan::default()
}

fn square(stage: &Stage) -> Result<Executed<u32>, GaveUp> {
    square_with(stage.executor())
}

fn square_with(mut executor: TransactionExecutor) -> Result<Executed<u32>, GaveUp> {
    let number: u32 = 10;
    executor.execute(|_| Ok(number * number))
}

fn conflicts(stage: &Stage, times: u64) {
    (0..times).for_each(|n| stage.service.script("commit checked", Script::Instead(conflict(100 + n))));
}

#[test]
fn success_returns_the_value_and_its_commit() {
    let stage = Stage::new();
    let executed = square(&stage).unwrap();
    assert_eq!((executed.value, executed.attempts), (100, 1));
    assert_eq!(stage.journal.told(), format!("{ONCE}, {AFTER}"));
    assert_eq!(stage.service.status(executed.committed.tx), Status::Committed(executed.committed.csn));
    assert!(stage.clock.slept().is_empty());
}

#[test]
fn a_failure_after_the_commit_is_told_and_never_run_again() {
    let stage = Stage::planned(Plan { after_commit: Act::Fail("after"), ..plan() });
    // Not even by a policy that would run everything again.
    let eager = |_: &ContextError, _| Some(Duration::ZERO);
    let gave_up = square_with(stage.executor().with_retries(eager)).unwrap_err();
    assert_eq!((gave_up.attempts, told(gave_up.last.failure())), (1, (Step::AfterCommit, "after".into())));
    assert!(matches!(gave_up.last.standing(), Standing::Committed(_)));
    assert_eq!(stage.journal.told(), format!("{ONCE}, {AFTER}"));
}

#[test]
fn a_failed_flush_aborts_and_is_not_run_again() {
    let stage = Stage::planned(Plan { flush: Act::Fail("flush"), ..plan() });
    let gave_up = square(&stage).unwrap_err();
    assert_eq!((gave_up.attempts, told(gave_up.last.failure())), (1, (Step::Flush, "flush".into())));
    assert_eq!(gave_up.last.standing(), Standing::Aborted);
    assert_eq!(stage.journal.told(), format!("{CHECKED}, d1 flush, {ROLLED_BACK}, abort"));
}

#[test]
fn a_flush_that_fails_without_a_word_is_not_run_again() {
    let stage = Stage::planned(Plan { flush: Act::Decline, ..plan() });
    let gave_up = square(&stage).unwrap_err();
    assert_eq!((gave_up.attempts, gave_up.last.standing()), (1, Standing::Aborted));
    assert!(gave_up.last.failure().source().unwrap().is::<Declined>());
    assert_eq!(stage.journal.told(), format!("{CHECKED}, d1 flush, {ROLLED_BACK}, abort"));
}

#[test]
fn a_failed_flush_and_a_failed_rollback_invalidate() {
    let stage = Stage::planned(Plan { flush: Act::Fail("flush"), rollback: Act::Fail("rollback"), ..plan() });
    let gave_up = square(&stage).unwrap_err();
    assert_eq!(told(gave_up.last.failure()), (Step::Flush, "flush".into()));
    assert_eq!(gave_up.last.standing(), Standing::Invalidated);
    assert_eq!(stage.journal.told(), format!("{CHECKED}, d1 flush, {ROLLED_BACK}, invalidate"));
}

#[test]
fn a_flush_and_a_rollback_that_fail_without_a_word_invalidate() {
    let stage = Stage::planned(Plan { flush: Act::Decline, rollback: Act::Decline, ..plan() });
    let gave_up = square(&stage).unwrap_err();
    assert_eq!((gave_up.attempts, gave_up.last.standing()), (1, Standing::Invalidated));
    assert!(gave_up.last.failure().source().unwrap().is::<Declined>());
    assert_eq!(stage.journal.told(), format!("{CHECKED}, d1 flush, {ROLLED_BACK}, invalidate"));
}

#[test]
fn conflicts_without_end_are_given_up_after_twenty_retries() {
    let stage = Stage::new();
    conflicts(&stage, 1000);
    let gave_up = square(&stage).unwrap_err();
    assert_eq!(gave_up.attempts, 21);
    // The last failure is there, typed, with its own transaction.
    assert_eq!(gave_up.last.conflict().unwrap().tx, WritePointer(120));
    assert_eq!((gave_up.last.standing(), stage.service.last_status()), (Standing::Aborted, Status::Aborted));
    assert_eq!(
        gave_up.to_string(),
        "gave up after 21 attempts: transaction 120 conflicts on change id 0x0000000000000001 with 50, number 7"
    );
    // A tenth of a second each, but for the dice, which keep to the upper half.
    let slept = stage.clock.slept();
    assert_eq!(slept.len(), 20);
    let bounds = Duration::from_millis(50)..=Duration::from_millis(100);
    assert!(slept.iter().all(|pause| bounds.contains(pause)), "{slept:?}");
    assert!(slept.iter().any(|pause| *pause != slept[0]), "{slept:?}");
}

#[test]
fn two_conflicts_are_retried_by_default() {
    let stage = Stage::new();
    conflicts(&stage, 2);
    let executed = square(&stage).unwrap();
    assert_eq!((executed.value, executed.attempts), (100, 3));
    let refused = format!("{ONCE}, {ROLLED_BACK}, abort");
    assert_eq!(stage.journal.told(), format!("{refused}, {refused}, {ONCE}, {AFTER}"));
    assert!(matches!(stage.service.last_status(), Status::Committed(_)));
    assert_eq!(stage.clock.slept().len(), 2);
}

#[test]
fn one_conflict_is_given_up_without_retries() {
    let stage = Stage::new();
    conflicts(&stage, 1);
    let gave_up = square_with(stage.executor().with_retries(Retries::none())).unwrap_err();
    assert!(gave_up.last.is_conflict() && gave_up.attempts == 1);
    assert_eq!(stage.journal.told(), format!("{ONCE}, {ROLLED_BACK}, abort"));
    assert_eq!(stage.service.last_status(), Status::Aborted);
}

#[test]
fn a_conflict_at_the_check_is_given_up_without_retries() {
    let stage = Stage::new();
    stage.service.script("can commit", Script::Instead(conflict(100)));
    let gave_up = square_with(stage.executor().with_retries(Retries::none())).unwrap_err();
    assert_eq!(gave_up.last.conflict().unwrap().step, Step::CanCommit);
    assert_eq!(stage.journal.told(), format!("{CHECKED}, {ROLLED_BACK}, abort"));
}

#[test]
fn failed_changes_and_a_failed_rollback_invalidate() {
    let stage = Stage::planned(Plan { changes: Act::Fail("changes"), rollback: Act::Fail("rollback"), ..plan() });
    let gave_up = square(&stage).unwrap_err();
    assert_eq!(told(gave_up.last.failure()), (Step::Changes, "changes".into()));
    assert_eq!(gave_up.last.standing(), Standing::Invalidated);
    assert_eq!(stage.journal.told(), format!("begin, d1 start, d2 start, d1 changes, {ROLLED_BACK}, invalidate"));
}

#[test]
fn a_failed_closure_and_a_dirty_rollback_invalidate() {
    let stage = Stage::planned(Plan { rollback: Act::Decline, ..plan() });
    let gave_up = stage.executor().execute(|_| Err::<(), _>("function failed".into())).unwrap_err();
    let Failure::Caller(reason) = gave_up.last.failure() else { panic!("{gave_up:?}") };
    assert_eq!((reason.to_string().as_str(), gave_up.attempts), ("function failed", 1));
    assert_eq!(stage.journal.told(), format!("begin, d1 start, d2 start, {ROLLED_BACK}, invalidate"));
    assert_eq!(gave_up.last.standing(), Standing::Invalidated);
}

#[test]
fn a_failed_start_aborts_and_runs_no_closure() {
    let stage = Stage::planned(Plan { start: Act::Fail("start"), ..plan() });
    let gave_up = stage.executor().execute(|_| -> Result<(), BoxError> { panic!("it was run") }).unwrap_err();
    assert_eq!(told(gave_up.last.failure()), (Step::Start, "start".into()));
    assert_eq!(
        (stage.journal.told().as_str(), stage.service.last_status()),
        ("begin, d1 start, abort", Status::Aborted)
    );
}

#[test]
fn too_old_to_be_told_is_a_conflict() {
    let stage = Stage::new();
    let too_old = CommitError::TooOld { tx: WritePointer(100), snapshot: Default::default(), mark: Default::default() };
    stage.service.script("commit checked", Script::Instead(too_old.into()));
    assert_eq!(square(&stage).unwrap().attempts, 2);
}

#[test]
fn other_passing_failures_are_retried_where_that_is_asked_for() {
    let overloaded = || Script::Instead(BeginError::Overloaded(Full::Window).into());
    let stage = Stage::new();
    stage.service.script("begin", overloaded());
    let gave_up = square(&stage).unwrap_err();
    assert!(gave_up.last.is_retryable() && !gave_up.last.is_conflict());
    assert_eq!((gave_up.attempts, gave_up.last.standing()), (1, Standing::None));
    stage.service.script("begin", overloaded());
    let patient = stage.executor().with_retries(Retries::default().on_retryable());
    assert_eq!(square_with(patient).unwrap().attempts, 2);
    // What would go wrong in the same way is not.
    stage.service.script("begin", Script::Instead(BeginError::TimeoutNotPositive.into()));
    assert_eq!(square_with(stage.executor().with_retries(Retries::default().on_retryable())).unwrap_err().attempts, 1);
}

#[test]
fn exponential_pauses_double_up_to_the_longest() {
    let stage = Stage::new();
    conflicts(&stage, 6);
    let ms = Duration::from_millis;
    let retries = Retries::exponential(6, ms(10), ms(100));
    assert_eq!(square_with(stage.executor().with_retries(retries)).unwrap().attempts, 7);
    let slept = stage.clock.slept();
    for (pause, longest) in slept.iter().zip([10, 20, 40, 80, 100, 100]) {
        assert!((ms(longest) / 2..=ms(longest)).contains(pause), "{slept:?}");
    }
    assert_eq!(slept.len(), 6);
}

#[test]
fn a_closure_is_a_policy_and_hears_of_every_failure() {
    let stage = Stage::new();
    conflicts(&stage, 1000);
    let policy = |error: &ContextError, failures: u32| {
        assert_eq!(error.conflict().unwrap().tx, WritePointer(99 + u64::from(failures)));
        (failures < 3).then_some(Duration::from_secs(u64::from(failures)))
    };
    assert_eq!(square_with(stage.executor().with_retries(policy)).unwrap_err().attempts, 3);
    assert_eq!(stage.clock.slept(), [1, 2].map(Duration::from_secs));
}

#[test]
fn an_outcome_that_nobody_knows_is_never_run_again() {
    let stage = Stage::new();
    stage.service.script("commit checked", Script::Lost(lost()));
    let refuses = || CommitError::Overloaded(Full::EventRing).into();
    (0..100).for_each(|_| stage.service.script("settle", Script::Instead(refuses())));
    let eager = |_: &ContextError, _| Some(Duration::ZERO);
    let executor = stage.executor().with_retries(eager).with_settle_for(Duration::from_secs(1));
    let gave_up = square_with(executor).unwrap_err();
    assert_eq!((gave_up.attempts, gave_up.last.standing()), (1, Standing::Unknown));
    assert!(!stage.journal.told().contains("rollback"));
}

#[test]
fn a_closure_that_hands_on_the_failure_of_its_own_transaction_is_run_again() {
    let stage = Stage::new();
    stage.service.script("checkpoint", Script::Instead(conflict(100)));
    let executed = stage.executor().execute(|context| Ok(context.checkpoint()?.write_pointer())).unwrap();
    assert_eq!((executed.attempts, executed.value), (2, WritePointer(102)));
}

#[test]
fn a_closure_that_has_finished_its_transaction_itself_is_never_run_again() {
    let stage = Stage::new();
    let eager = |_: &ContextError, _| Some(Duration::ZERO);
    let mut executor = stage.executor().with_retries(eager);
    let mut committed = None;
    let gave_up = executor.execute(|context| {
        committed = Some(context.finish()?);
        Ok(())
    });
    let gave_up = gave_up.unwrap_err();
    assert!(matches!(gave_up.last.failure(), Failure::NotActive));
    assert_eq!((gave_up.attempts, gave_up.last.standing()), (1, Standing::Committed(committed.unwrap().csn)));
    // Not even if it then fails in a transaction of its own making.
    let gave_up = executor.execute(|context| {
        context.finish()?;
        context.start(StartOptions::default())?;
        Err::<(), _>("later".into())
    });
    let gave_up = gave_up.unwrap_err();
    assert_eq!((gave_up.attempts, gave_up.last.standing()), (1, Standing::Aborted));
    // Nor if it keeps to itself that nobody knows.
    stage.service.script("commit checked", Script::Lost(lost()));
    (0..100)
        .for_each(|_| stage.service.script("settle", Script::Instead(CommitError::Overloaded(Full::EventRing).into())));
    let gave_up = executor.execute(|context| {
        context.finish().unwrap_err();
        Ok(())
    });
    let gave_up = gave_up.unwrap_err();
    assert_eq!((gave_up.attempts, gave_up.last.standing()), (1, Standing::Unknown));
    // One that was aborted has done nothing, and is for the policy to decide about.
    let mut runs = 0;
    let executed = executor.execute(|context| {
        runs += 1;
        if runs < 3 {
            context.abort()?;
        }
        Ok(())
    });
    assert_eq!(executed.unwrap().attempts, 3);
}

#[test]
fn the_panic_of_a_closure_goes_on_after_its_transaction_was_aborted() {
    let stage = Stage::new();
    let mut executor = stage.executor();
    let run =
        std::panic::AssertUnwindSafe(|| executor.execute(|_| -> Result<(), BoxError> { panic!("of the closure") }));
    let panic = std::panic::catch_unwind(run).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"of the closure"));
    assert_eq!(stage.journal.told(), format!("begin, d1 start, d2 start, {ROLLED_BACK}, abort"));
    // And the executor works on.
    executor.execute(|_| Ok(())).unwrap();
}

#[test]
fn options_reach_every_attempt() {
    let stage = Stage::new();
    conflicts(&stage, 1);
    let options =
        StartOptions { timeout_ms: Some(7), detached: true, form: CommitForm::TwoSteps, ..Default::default() };
    square_with(stage.executor().with_options(options)).unwrap();
    let begun = BeginOptions { kind: Kind::Short, timeout_ms: Some(7), detached: true, deferred: false };
    assert_eq!(stage.service.begun_with(), [begun; 2]);
}
