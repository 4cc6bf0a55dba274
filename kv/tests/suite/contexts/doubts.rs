//! Lines that are cut while a transaction commits: nothing is rolled back before its end is known, and nothing is
//! committed twice. Over TCP, through a line that loses what it is told to.

use std::sync::Arc;
use std::time::Duration;

use seriatim_client::{Error, Failure, Retries, SETTLE_FOR_DEFAULT, Standing, StartOptions, Step, TransactionExecutor};
use seriatim_kv::core::{BeginOptions, CommitError, InvalidCause, Status};

use super::far::Far;
use super::line::Fault;
use super::rig::{context, writes};

#[test]
fn a_commit_whose_reply_was_lost_is_settled_and_kept() {
    let far = Far::new(1);
    let (mut context, tx) = far.about_to_commit(Fault::LoseReply);
    let committed = context.finish().unwrap();
    assert_eq!((committed.tx, committed.settled), (tx, true), "the client gave up, and the context asked");
    assert_eq!(far.status(tx), Status::Committed(committed.csn));
    assert_eq!((far.now(), far.rollbacks()), ([Some(1), Some(2)], [0, 0]));
    assert_eq!([far.left.committed(), far.right.committed()], [[committed.csn], [committed.csn]]);
}

#[test]
fn a_commit_whose_reply_was_lost_is_sent_again_by_a_patient_client() {
    let far = Far::new(16);
    let (mut context, tx) = far.about_to_commit(Fault::LoseReply);
    let committed = context.finish().unwrap();
    assert_eq!(far.status(tx), Status::Committed(committed.csn));
    assert_eq!((far.now(), far.rollbacks(), far.line.connections()), ([Some(1), Some(2)], [0, 0], 2));
}

#[test]
fn a_commit_that_never_arrived_is_settled_as_invalid_before_anything_is_rolled_back() {
    let far = Far::new(1);
    let (mut context, tx) = far.about_to_commit(Fault::LoseRequest);
    let error = context.finish().unwrap_err();
    let settled = Status::Invalid(InvalidCause::Settled);
    assert!(
        matches!(error.failure(), Failure::Sequencer { step: Step::Commit, source: Error::NotCommitted { ended, .. } }
            if *ended == settled),
        "{error:?}"
    );
    // A clean rollback makes an abort of it.
    assert_eq!((error.standing(), far.status(tx)), (Standing::Aborted, Status::Aborted));
    assert_eq!((far.now(), far.rollbacks()), ([None, None], [1, 1]));
    assert_eq!([&far.left, &far.right].map(|shelf| shelf.store.version_count()), [0, 0]);
    // A commit that comes late after all is refused.
    assert!(matches!(
        far.onlooker.commit(tx, &writes(&["left/k"])).unwrap_err(),
        Error::Commit(CommitError::NotInProgress { ended: Status::Aborted, .. })
    ));
}

#[test]
fn a_commit_that_never_arrived_is_sent_again_by_a_patient_client() {
    let far = Far::new(16);
    let (mut context, tx) = far.about_to_commit(Fault::LoseRequest);
    let committed = context.finish().unwrap();
    assert_eq!((far.status(tx), far.rollbacks()), (Status::Committed(committed.csn), [0, 0]));
}

#[test]
fn an_outcome_that_cannot_be_asked_for_is_unknown_and_nothing_is_undone() {
    let far = Far::new(1);
    let (context, tx) = far.about_to_commit(Fault::LoseReplyForGood);
    let mut context = context.with_settle_for(Duration::ZERO);
    let error = context.finish().unwrap_err();
    assert!(matches!(error.failure(), Failure::Unknown { .. }), "{error:?}");
    assert!(matches!(error.suppressed(), [Failure::Sequencer { step: Step::Settle, .. }]), "{error:?}");
    assert_eq!((error.standing(), error.is_retryable()), (Standing::Unknown, false));
    assert_eq!((far.rollbacks(), far.left.committed()), ([0, 0], vec![]));
    // It had committed, and stands.
    far.line.mend();
    let Status::Committed(csn) = far.service.settle(tx).unwrap() else { panic!("{:?}", far.status(tx)) };
    assert_eq!(far.now(), [Some(1), Some(2)]);
    // The same context goes on where the line does.
    let next = context.start(StartOptions::default()).unwrap();
    assert!(next.snapshot().csn >= csn && next.is_visible(tx));
    far.left.put("k", 3);
    context.finish().unwrap();
    assert_eq!(far.now(), [Some(3), Some(2)]);
}

#[test]
fn a_checkpoint_whose_reply_was_lost_takes_no_second_pointer() {
    let far = Far::new(16);
    let mut context = context(&far.service, [&far.left]);
    let tx = context.start(StartOptions::default()).unwrap().id();
    let line = far.line.clone();
    far.left.before_flush(move || line.fault(Fault::LoseReply));
    let pointer = context.checkpoint().unwrap().write_pointer();
    assert_eq!(far.line.connections(), 2, "it was asked for twice");
    assert_eq!(far.in_progress(), [tx, pointer]);
    far.left.put("k", 1);
    // The counts are the same on both sides.
    context.finish().unwrap();
    assert_eq!(far.now(), [Some(1), None]);
}

#[test]
fn an_end_whose_reply_was_lost_is_told_again() {
    let far = Far::new(16);
    let (mut context, tx) = far.about_to_commit(Fault::None);
    far.line.fault(Fault::LoseReply);
    assert_eq!(context.abort().unwrap(), Standing::Aborted);
    assert_eq!((far.status(tx), far.line.connections()), (Status::Aborted, 2));
    far.right.keeps(true);
    let (mut context, tx) = far.about_to_commit(Fault::None);
    far.line.fault(Fault::LoseReply);
    assert_eq!(context.abort().unwrap_err().standing(), Standing::Invalidated);
    assert_eq!((far.status(tx), far.line.connections()), (Status::Invalid(InvalidCause::Asked), 3));
}

#[test]
fn an_executor_runs_nothing_again_that_has_committed_or_may_have() {
    let far = Far::new(1);
    let eager = Retries::fixed(5, Duration::ZERO).on_retryable();
    // Adds one, with these faults in the commits of its attempts.
    let add_one = |settle_for, mut faults: Vec<Fault>| {
        let executor = TransactionExecutor::new(Arc::clone(&far.service), [Arc::clone(&far.left) as _]);
        executor.with_retries(eager).with_settle_for(settle_for).execute(|_| {
            let n = far.left.get("k").unwrap_or_default();
            far.left.put("k", n + 1);
            let (line, fault) = (far.line.clone(), faults.pop().expect("no more runs than that"));
            far.left.before_flush(move || line.fault(fault));
            Ok(())
        })
    };
    // Known after a question to have committed.
    let executed = add_one(SETTLE_FOR_DEFAULT, vec![Fault::LoseReply]).unwrap();
    assert_eq!((executed.attempts, executed.committed.settled), (1, true));
    // Not known at all.
    let gave_up = add_one(Duration::ZERO, vec![Fault::LoseReplyForGood]).unwrap_err();
    assert_eq!((gave_up.attempts, gave_up.last.standing()), (1, Standing::Unknown));
    far.line.mend();
    // Known not to have committed: that alone is run again.
    let executed = add_one(SETTLE_FOR_DEFAULT, vec![Fault::None, Fault::LoseRequest]).unwrap();
    assert_eq!((executed.attempts, executed.committed.settled), (2, false));
    assert_eq!(far.now(), [Some(3), None], "each of the three counts once");
}

#[test]
fn a_begin_whose_reply_was_lost_is_asked_for_again() {
    let far = Far::new(16);
    far.line.fault(Fault::LoseReply);
    let tx = far.service.begin(BeginOptions::default(), None).unwrap().id();
    assert_eq!((far.status(tx), far.line.connections()), (Status::Open, 2));
    // The one that nobody knows of is open beside it, until its deadline ends it.
    let open = far.in_progress();
    assert!(open.len() == 2 && open.contains(&tx), "{open:?}");
}
