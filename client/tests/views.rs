//! What goes through a context: pointers and levels of visibility to the participants, keys to the sequencer and back in
//! conflicts, reads where they count; and how old a snapshot may be that is read through without a transaction.

mod double;

use std::sync::Arc;
use std::time::Duration;

use double::*;
use seriatim_client::*;
use seriatim_core::{
    BeginOptions, ChangeId, ChangeSet, CommitError, InvalidCause, Isolation, Kind, Snapshot, Status, Visibility,
    WritePointer,
};

const STARTED: &str = "begin, d1 start, d2 start";
const CHANGES: &str = "d1 changes, d2 changes";
const FLUSHED: &str = "d1 flush, d2 flush";
const UPDATED: &str = "d1 update, d2 update";
const AFTER: &str = "d1 after, d2 after";
const ROLLED_BACK: &str = "d1 rollback, d2 rollback";

fn options() -> StartOptions {
    StartOptions::default()
}

fn ids(keys: &[&str]) -> Vec<ChangeId> {
    let mut ids: Vec<ChangeId> = keys.iter().map(|key| ChangeId::of(key.as_bytes())).collect();
    ids.sort();
    ids
}

#[test]
fn a_checkpoint_flushes_then_hands_everybody_the_further_pointer() {
    let stage = Stage::new();
    let mut context = stage.context();
    let exclude = StartOptions { visibility: Visibility::SnapshotExcludeCurrent, ..options() };
    let tx = context.start(exclude).unwrap().id();
    assert!(!stage.d1.view().is_visible(tx), "its current writes are hidden from it");
    let pointer = context.checkpoint().unwrap().write_pointer();
    assert_eq!(stage.journal.told(), format!("{STARTED}, {FLUSHED}, checkpoint, {UPDATED}"));
    for view in [stage.d1.view(), stage.d2.view(), context.current().unwrap().clone()] {
        assert_eq!((view.id(), view.write_pointer(), view.checkpoints()), (tx, pointer, &[pointer][..]));
        assert_eq!(view.visibility(), Visibility::SnapshotExcludeCurrent);
        assert!(view.is_visible(tx) && !view.is_visible(pointer));
    }
    context.checkpoint().unwrap();
    // The commit brings their number, which is held against the sequencer's.
    let committed = context.finish().unwrap();
    assert_eq!(committed.tx, tx);
    assert!(stage.journal.told().ends_with(&format!("{CHANGES}, can commit, {FLUSHED}, commit checked, {AFTER}")));
}

#[test]
fn a_checkpoint_that_fails_anywhere_aborts() {
    type Break = fn(&Stage);
    let cases: [(Step, Break, String); 4] = [
        (Step::Flush, |stage| stage.d2.plan(Plan { flush: Act::Fail("flush"), ..Plan::default() }), FLUSHED.into()),
        (Step::Update, |stage| stage.d1.plan(Plan { update: Act::Fail("update"), ..Plan::default() }), {
            format!("{FLUSHED}, checkpoint, d1 update")
        }),
        (Step::Checkpoint, |stage| stage.service.script("checkpoint", Script::Instead(lost())), {
            format!("{FLUSHED}, checkpoint")
        }),
        // A lost answer leaves nothing in doubt but the pointer, under which nobody has written.
        (Step::Checkpoint, |stage| stage.service.script("checkpoint", Script::Lost(lost())), {
            format!("{FLUSHED}, checkpoint")
        }),
    ];
    for (step, break_it, told) in cases {
        let stage = Stage::new();
        break_it(&stage);
        let mut context = stage.context();
        context.start(options()).unwrap();
        let error = context.checkpoint().unwrap_err();
        assert!(
            matches!(error.failure(), Failure::Participant { step: at, .. } | Failure::Sequencer { step: at, .. } if *at == step)
        );
        assert_eq!(stage.journal.told(), format!("{STARTED}, {told}, {ROLLED_BACK}, abort"));
        assert_eq!((error.standing(), stage.service.last_status()), (Standing::Aborted, Status::Aborted));
        assert!(context.current().is_none());
    }
}

#[test]
fn a_pointer_that_goes_back_is_never_written_under() {
    let stage = Stage::new();
    let mut context = stage.context();
    let tx = context.start(options()).unwrap().id();
    stage.service.hands_out_next(tx);
    let error = context.checkpoint().unwrap_err();
    assert!(matches!(error.failure(), Failure::StaleCheckpoint { pointer, newest } if (*pointer, *newest) == (tx, tx)));
    assert!(!stage.journal.told().contains("update"));
    assert_eq!(error.standing(), Standing::Aborted);
}

#[test]
fn an_abort_after_checkpoints_ends_all_pointers() {
    let stage = Stage::new();
    let mut context = stage.context();
    context.start(options()).unwrap();
    context.checkpoint().unwrap();
    let pointers: Vec<WritePointer> = context.checkpoint().unwrap().pointers().collect();
    assert_eq!(pointers.len(), 3);
    assert_eq!(context.abort().unwrap(), Standing::Aborted);
    let next = context.start(options()).unwrap();
    assert!(pointers.iter().all(|pointer| !next.snapshot().in_progress.contains(*pointer)));
}

#[test]
fn a_level_can_be_changed_under_way_and_everybody_hears_of_it() {
    let stage = Stage::new();
    let mut context = stage.context();
    let tx = context.start(options()).unwrap().id();
    assert!(stage.d2.view().is_visible(tx));
    let level = context.set_visibility(Visibility::SnapshotExcludeCurrent).unwrap().visibility();
    assert_eq!((level, stage.d2.view().visibility()), (level, level));
    assert!(!stage.d2.view().is_visible(tx));
    assert_eq!(stage.journal.told(), format!("{STARTED}, {UPDATED}"), "the sequencer does not hear of it");
    context.set_visibility(Visibility::SnapshotAll).unwrap();
    assert!(stage.d1.view().is_visible(tx) && stage.d1.view().visibility().shows_all_own());
}

#[test]
fn a_conflict_names_the_key_whose_it_is_the_winner_and_its_label() {
    let stage = Stage::new();
    for form in [CommitForm::TwoSteps, CommitForm::OneStep] {
        let mut context = stage.context();
        let tx = context.start(StartOptions { form, ..options() }).unwrap().id();
        stage.d2.tells(&["one", "accounts/\u{7}"], &[], &[]);
        let winner = stage.service.another_commits(&[b"accounts/\x07"], "night batch");
        let error = context.finish().unwrap_err();
        let conflict = error.conflict().unwrap();
        let key = conflict.key.as_ref().unwrap();
        assert_eq!((conflict.tx, conflict.winner, conflict.label.as_deref()), (tx, Some(winner), Some("night batch")));
        assert_eq!(
            (key.participant.as_str(), key.key.as_slice(), key.access),
            ("d2", &b"accounts/\x07"[..], Access::Written)
        );
        assert_eq!(conflict.step, if form == CommitForm::TwoSteps { Step::CanCommit } else { Step::Commit });
        let told = error.to_string();
        assert!(told.contains("(night batch)") && told.ends_with(r"on key accounts/\x07 of d2"), "{told}");
    }
}

#[test]
fn a_conflict_of_a_nameless_participant_is_told_by_its_place() {
    let stage = Stage::new();
    stage.d2.plan(Plan { name: Act::Panic("nameless"), ..Plan::default() });
    let mut context = stage.context();
    context.start(options()).unwrap();
    stage.service.another_commits(&[b"d2"], "x");
    let error = context.finish().unwrap_err();
    assert_eq!(error.conflict().unwrap().key.as_ref().unwrap().participant, "participant 2");
    assert!(matches!(error.suppressed(), [Failure::Participant { step: Step::Name, .. }]));
    assert!(error.is_conflict(), "the reason is still the conflict");
}

#[test]
fn reads_and_marks_are_sent_and_checked_under_serializable_alone() {
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        let stage = Stage::new();
        stage.d1.tells(&["w"], &["r"], &["m"]);
        stage.d2.tells(&[], &["w", "r"], &[]);
        let mut context = stage.context();
        context.start(StartOptions { isolation, ..options() }).unwrap();
        context.finish().unwrap();
        let [sent] = &stage.service.submitted()[..] else { panic!("one commit") };
        let of = |keys: &[&str]| if isolation == Isolation::Serializable { ids(keys) } else { Vec::new() };
        assert_eq!(sent.writes.to_vec(), ids(&["w"]));
        assert_eq!((sent.reads.to_vec(), sent.marks.to_vec()), (of(&["r", "w"]), of(&["m"])));

        // Somebody writes what is read.
        context.start(StartOptions { isolation, ..options() }).unwrap();
        stage.service.another_commits(&[b"r"], "x");
        let finished = context.finish();
        assert_eq!(finished.is_ok(), isolation == Isolation::Snapshot);
        if let Err(error) = finished {
            let key = error.conflict().unwrap().key.clone().unwrap();
            assert_eq!((key.key.as_slice(), key.access), (&b"r"[..], Access::Read));
        }
    }
}

#[test]
fn two_serializable_transactions_that_read_what_the_other_writes_do_not_both_commit() {
    let stage = Stage::new();
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        let mut one = TransactionContext::new(stage.service.clone(), [stage.d1.clone() as Arc<dyn Participant>]);
        let mut two = TransactionContext::new(stage.service.clone(), [stage.d2.clone() as Arc<dyn Participant>]);
        stage.d1.tells(&["a"], &["b"], &[]);
        stage.d2.tells(&["b"], &["a"], &[]);
        one.start(StartOptions { isolation, ..options() }).unwrap();
        two.start(StartOptions { isolation, ..options() }).unwrap();
        one.finish().unwrap();
        assert_eq!(two.finish().is_err_and(|error| error.is_conflict()), isolation == Isolation::Serializable);
    }
}

#[test]
fn one_step_asks_one_question_less_and_no_changes_need_no_check() {
    let stage = Stage::new();
    let mut context = stage.context();
    context.start(StartOptions { form: CommitForm::OneStep, ..options() }).unwrap();
    context.finish().unwrap();
    assert_eq!(stage.journal.told(), format!("{STARTED}, {CHANGES}, {FLUSHED}, commit, {AFTER}"));
    stage.d1.tells(&[], &["read"], &["mark"]);
    stage.d2.tells(&[], &[], &[]);
    context.start(options()).unwrap();
    context.finish().unwrap();
    assert_eq!(stage.journal.told(), format!("{STARTED}, {CHANGES}, {FLUSHED}, commit, {AFTER}"));
    assert_eq!(stage.service.submitted()[1], ChangeSet::default());
}

#[test]
fn a_long_transaction_tells_no_changes_and_its_abort_makes_it_invalid() {
    let stage = Stage::new();
    let mut context = stage.context();
    let long = || StartOptions { kind: Kind::Long, ..options() };
    context.start(long()).unwrap();
    context.finish().unwrap();
    assert_eq!(stage.journal.told(), format!("{STARTED}, {FLUSHED}, commit, {AFTER}"));
    let tx = context.start(long()).unwrap().id();
    assert_eq!(context.abort().unwrap(), Standing::Invalidated);
    assert_eq!(stage.service.status(tx), Status::Invalid(InvalidCause::LongAborted));
    assert_eq!(stage.journal.told(), format!("{STARTED}, {ROLLED_BACK}, abort"));
}

#[test]
fn start_options_and_labels_reach_the_sequencer_and_never_as_deferred() {
    let stage = Stage::new();
    let mut context = stage.context();
    let labelled = StartOptions { label: Some("ledger".into()), timeout_ms: Some(5), detached: true, ..options() };
    context.start(labelled).unwrap();
    assert_eq!(
        stage.service.begun_with(),
        [BeginOptions { kind: Kind::Short, timeout_ms: Some(5), detached: true, deferred: false }]
    );
    let mut loser =
        TransactionContext::new(stage.service.clone(), [Dummy::new("d1", &stage.journal, Plan::default()) as _]);
    loser.start(options()).unwrap();
    context.finish().unwrap();
    assert_eq!(loser.finish().unwrap_err().conflict().unwrap().label.as_deref(), Some("ledger"));
}

#[test]
fn too_many_changes_are_refused_before_anything_is_flushed() {
    struct Wide;
    impl Participant for Wide {
        fn name(&self) -> std::borrow::Cow<'_, str> {
            "wide".into()
        }
        fn start(&self, _: &seriatim_core::TransactionView) -> Result<(), BoxError> {
            Ok(())
        }
        fn update(&self, _: &seriatim_core::TransactionView) -> Result<(), BoxError> {
            Ok(())
        }
        fn changes(&self, changes: &mut KeyedChanges) -> Result<(), BoxError> {
            (0..=seriatim_core::CHANGE_IDS_MAX as u64).for_each(|id| changes.write_id(ChangeId(id)));
            Ok(())
        }
        fn flush(&self) -> Result<(), BoxError> {
            panic!("flushed")
        }
        fn rollback(&self) -> Result<Rollback, BoxError> {
            Ok(Rollback::Clean)
        }
    }
    let stage = Stage::new();
    let mut context = TransactionContext::new(stage.service.clone(), [Arc::new(Wide) as Arc<dyn Participant>]);
    context.start(options()).unwrap();
    let error = context.finish().unwrap_err();
    let max = seriatim_core::CHANGE_IDS_MAX as u64;
    assert!(matches!(
        error.failure(),
        Failure::Sequencer { step: Step::Changes, source: Error::Commit(CommitError::ChangeSetTooLarge { len, .. }) }
            if *len == max + 1
    ));
    assert_eq!((error.standing(), stage.journal.told().as_str()), (Standing::Aborted, "begin, abort"));
}

#[test]
fn keys_over_their_bytes_are_refused_before_anything_is_flushed() {
    let stage = Stage::new();
    stage.d1.tells(&["1234", "1234"], &["not counted"], &[]);
    stage.d2.tells(&["12"], &[], &[]);
    let mut context = stage.context();
    for (key_bytes_max, fits) in [(10, true), (9, false)] {
        context.start(StartOptions { key_bytes_max, ..options() }).unwrap();
        match context.finish() {
            Ok(_) => assert!(fits),
            Err(error) => {
                assert!(!fits && error.standing() == Standing::Aborted && !error.is_retryable());
                assert!(matches!(
                    error.failure(),
                    Failure::Sequencer { step: Step::Changes, source: Error::KeysTooLarge { bytes: 10, max: 9 } }
                ));
            }
        }
        let told = stage.journal.told();
        assert_eq!(told.contains("flush"), fits, "{told}");
    }
}

#[test]
fn a_read_snapshot_is_read_through_up_to_its_age_and_refused_past_it() {
    let clock = TestClock::new();
    let max = Duration::from_secs(60);
    let asked = clock.now();
    // The answer took two seconds, which count.
    clock.pass(Duration::from_secs(2));
    let newest = Snapshot { read_pointer: WritePointer(100), ..Snapshot::default() };
    let snapshot = ReadSnapshot::new(Arc::new(newest), asked, max, clock.clone());
    assert_eq!((snapshot.age(), snapshot.time_left()), (Duration::from_secs(2), Duration::from_secs(58)));
    clock.pass(Duration::from_secs(58));
    assert!(snapshot.is_visible(WritePointer(100)).unwrap() && !snapshot.is_visible(WritePointer(101)).unwrap());
    clock.pass(Duration::from_nanos(1));
    let late = Duration::from_nanos(1) + max;
    assert!(matches!(snapshot.get(), Err(Error::SnapshotTooOld { age, max: m }) if age == late && m == max));
    assert!(matches!(snapshot.is_visible(WritePointer(1)), Err(Error::SnapshotTooOld { .. })));
    // A copy is no younger, and what it is stays known.
    assert!(snapshot.clone().get().is_err());
    assert_eq!((snapshot.csn(), snapshot.time_left()), (Default::default(), Duration::ZERO));
    assert!(snapshot.get().unwrap_err().is_retryable());
}
