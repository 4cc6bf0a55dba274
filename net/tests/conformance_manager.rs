//! What a transaction manager promises beyond the plain life of a transaction: commits in two steps, checkpoints, labels,
//! fences, restarts. Each case runs in process and over TCP.
//!
//! As in `conformance.rs` the cases follow Apache Tephra's TransactionManager where that is sound; a case that differs on
//! purpose says how and why.

mod common;

use std::path::Path;
use std::time::Duration;

use common::{Begun, OverTcp, System, cases_that_start, small};
use seriatim_core::{
    BeginOptions, ChangeId, CommitError, CommitNumber, InvalidCause, Kind, LabelRetention, Limits, PointerSet,
    Snapshot, Status, WritePointer,
};
use seriatim_net::{Embedded, Options, StorageKind};
use seriatim_wire::Fenced;

cases_that_start! {
    the_second_of_two_checked_commits_conflicts
    a_check_sees_commits_without_a_begin_in_between
    a_checked_commit_happens_once
    what_has_ended_or_never_began_cannot_be_checked
    an_end_takes_the_checked_set_along
    a_second_check_replaces_the_first
    a_failed_check_keeps_the_set_before
    a_check_reserves_nothing_and_its_conflict_is_advice
    a_refused_commit_in_two_steps_is_refused_for_good
    a_set_that_was_never_checked_is_asked_for
    repeated_keys_count_against_the_limit
    checkpoints_of_open_transactions_are_seen_by_nobody
    a_checkpoint_pointer_is_no_transaction
    the_number_of_a_checkpoint_makes_it_happen_once
    a_commit_names_as_many_checkpoints_as_there_are
    the_newest_checkpoint_of_a_committed_transaction_is_visible
    a_long_with_a_checkpoint_pins_nothing
    an_abort_ends_checkpoints_that_its_client_never_heard_of
    a_conflict_names_a_label_as_retention_says
    winners_at_the_same_time_are_not_mixed_up
    a_fence_waits_for_those_who_were_open
    a_fence_passes_when_the_readers_have_ended
    a_clean_stop_changes_nothing
    a_crash_changes_nothing_that_was_durable
    a_long_and_its_checkpoint_go_on_after_a_restart
    a_short_with_a_huge_timeout_stays_short
}

fn in_memory<S: System>() -> S {
    S::start(StorageKind::Memory, &small())
}

fn on_disk<S: System>(directory: &Path) -> S {
    S::start(StorageKind::Disk(directory.to_owned()), &small())
}

/// What would be on disk if the machine lost its power now, after everything acknowledged. A segment that is only being
/// made may get its name meanwhile.
fn copy_of(directory: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for file in std::fs::read_dir(directory).unwrap() {
        let file = file.unwrap();
        match std::fs::copy(file.path(), copy.path().join(file.file_name())) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            copied => assert!(copied.unwrap() > 0),
        }
    }
    copy
}

/// Conflicts, whatever they name.
fn conflicts<T: std::fmt::Debug>(said: Result<T, CommitError>) -> bool {
    match said {
        Ok(_) => false,
        Err(CommitError::Conflict { .. }) => true,
        Err(other) => panic!("{other:?}"),
    }
}

fn need_changes(tx: WritePointer) -> Result<CommitNumber, CommitError> {
    Err(CommitError::NeedChanges { tx })
}

fn the_second_of_two_checked_commits_conflicts<S: System>() {
    let system: S = in_memory();
    let (t1, t2) = (system.begin().tx, system.begin().tx);
    system.can_commit(t1, &["c1", "c2"]).unwrap();
    system.can_commit(t2, &["c2", "c3"]).unwrap();
    system.commit_checked(t1, &["c1", "c2"]).unwrap();
    assert!(conflicts(system.commit_checked(t2, &["c2", "c3"])));
}

fn a_check_sees_commits_without_a_begin_in_between<S: System>() {
    let system: S = in_memory();
    let t: Vec<WritePointer> = (0..5).map(|_| system.begin().tx).collect();
    for (tx, key) in [(t[0], "c1"), (t[1], "c2")] {
        system.can_commit(tx, &[key]).unwrap();
        system.commit_checked(tx, &[key]).unwrap();
    }
    assert!(conflicts(system.can_commit(t[2], &["c1"])));
    assert!(conflicts(system.can_commit(t[3], &["c2"])));
    system.can_commit(t[4], &["c3"]).unwrap();
}

fn a_checked_commit_happens_once<S: System>() {
    let system: S = in_memory();
    let tx = system.begin().tx;
    system.can_commit(tx, &["a"]).unwrap();
    let csn = system.commit_checked(tx, &["a"]).unwrap();
    let ended = Status::Committed(csn);
    assert_eq!(system.commit_checked(tx, &["a"]), Err(CommitError::NotInProgress { tx, ended }));
    let tx = system.begin().tx;
    system.can_commit(tx, &["a"]).unwrap();
    assert_eq!([system.abort(tx), system.abort(tx)], [Status::Aborted; 2]);
    let ended = Status::Aborted;
    assert_eq!(system.commit_checked(tx, &["a"]), Err(CommitError::NotInProgress { tx, ended }));
}

fn what_has_ended_or_never_began_cannot_be_checked<S: System>() {
    let system: S = in_memory();
    let t1 = system.begin().tx;
    let csn = system.commit(t1, &[]).unwrap();
    let ended = Status::Committed(csn);
    assert_eq!(system.can_commit(t1, &["c3"]), Err(CommitError::NotInProgress { tx: t1, ended }));
    assert_eq!(system.commit_checked(t1, &["c3"]), Err(CommitError::NotInProgress { tx: t1, ended }));
    for tx in [WritePointer(t1.0 - 1), WritePointer(t1.0 + 1), WritePointer(0), WritePointer::MAX] {
        let ended = Status::Forgotten;
        assert_eq!(system.can_commit(tx, &["a"]), Err(CommitError::NotInProgress { tx, ended }));
        assert_eq!(system.checkpoint(tx, 1), Err(CommitError::NotInProgress { tx, ended }));
        assert_eq!(system.abort(tx), ended);
    }
    let invalid = system.begin().tx;
    system.invalidate(invalid);
    let ended = system.status(invalid);
    assert!(matches!(ended, Status::Invalid(_)));
    assert_eq!(system.can_commit(invalid, &["a"]), Err(CommitError::NotInProgress { tx: invalid, ended }));
}

fn an_end_takes_the_checked_set_along<S: System>() {
    let system: S = in_memory();
    let (t1, t2) = (system.begin().tx, system.begin().tx);
    system.can_commit(t1, &["k"]).unwrap();
    assert!(system.invalidate(t1));
    system.commit(t2, &[]).unwrap();
    assert!(!system.invalidate(t2));
    let ended = system.status(t1);
    assert_eq!(system.commit_checked(t1, &["k"]), Err(CommitError::NotInProgress { tx: t1, ended }));
}

fn a_second_check_replaces_the_first<S: System>() {
    let system: S = in_memory();
    let (tx, other, third) = (system.begin().tx, system.begin().tx, system.begin().tx);
    system.can_commit(tx, &["k1"]).unwrap();
    system.can_commit(tx, &["k2"]).unwrap();
    assert_eq!(system.commit_checked(tx, &["k1"]), need_changes(tx));
    system.commit_checked(tx, &["k2"]).unwrap();
    system.commit(other, &["k1"]).unwrap();
    assert!(conflicts(system.commit(third, &["k2"])));
}

fn a_failed_check_keeps_the_set_before<S: System>() {
    let system: S = in_memory();
    let (winner, tx) = (system.begin().tx, system.begin().tx);
    system.can_commit(tx, &["a"]).unwrap();
    system.commit(winner, &["b"]).unwrap();
    assert!(conflicts(system.can_commit(tx, &["b"])));
    system.commit_checked(tx, &["a"]).unwrap();
}

fn a_check_reserves_nothing_and_its_conflict_is_advice<S: System>() {
    let system: S = in_memory();
    let (winner, tx) = (system.begin().tx, system.begin().tx);
    system.can_commit(tx, &["k"]).unwrap();
    system.commit(winner, &["k"]).unwrap();
    assert!(conflicts(system.can_commit(tx, &["k"])));
    assert_eq!(system.status(tx), Status::Open);
    // Whoever has heard of a conflict begins again on a snapshot that has the winner.
    assert!(system.snapshot().is_visible(winner));
    system.commit(tx, &["other"]).unwrap();
}

/// Tephra drops the set with the refusal and lets a second commit pass unchecked.
fn a_refused_commit_in_two_steps_is_refused_for_good<S: System>() {
    let system: S = in_memory();
    let (winner, loser) = (system.begin().tx, system.begin().tx);
    system.can_commit(loser, &["k"]).unwrap();
    system.commit(winner, &["k"]).unwrap();
    assert!(conflicts(system.commit_checked(loser, &["k"])));
    let ended = Status::Refused;
    for _ in 0..2 {
        assert_eq!(system.commit_checked(loser, &["k"]), Err(CommitError::NotInProgress { tx: loser, ended }));
        assert_eq!(system.can_commit(loser, &["x"]), Err(CommitError::NotInProgress { tx: loser, ended }));
        assert_eq!(system.checkpoint(loser, 1), Err(CommitError::NotInProgress { tx: loser, ended }));
    }
    assert!(system.invalidate(loser), "or aborted");
}

/// Tephra commits without any check.
fn a_set_that_was_never_checked_is_asked_for<S: System>() {
    let system: S = in_memory();
    let tx = system.begin().tx;
    assert_eq!(system.commit_checked(tx, &["k"]), need_changes(tx));
    assert_eq!(system.status(tx), Status::Open);
    system.commit(tx, &["k"]).unwrap();
}

fn repeated_keys_count_against_the_limit<S: System>() {
    let mut options = small();
    (options.limits.change_ids_warn, options.limits.change_ids_max) = (1, 2);
    let system = S::start(StorageKind::Memory, &options);
    let tx = system.begin().tx;
    let too_large = CommitError::ChangeSetTooLarge { len: 3, max: 2 };
    assert_eq!(system.can_commit(tx, &["a"; 3]), Err(too_large.clone()));
    assert_eq!(system.commit(tx, &["a"; 3]), Err(too_large));
    system.can_commit(tx, &["a"; 2]).unwrap();
    assert_eq!(system.abort(tx), Status::Aborted, "still open");
}

/// Everything that is excluded, and that each part is in ascending order.
fn excluded(snapshot: &Snapshot) -> [Vec<WritePointer>; 2] {
    let ascending = |set: &PointerSet| {
        let all: Vec<WritePointer> = set.iter().collect();
        assert!(all.is_sorted_by(|a, b| a < b), "{all:?}");
        all
    };
    [ascending(&snapshot.in_progress), ascending(&snapshot.invalid.pointers)]
}

/// Five transactions of one key each come and go.
fn five_commits(system: &impl System) {
    for key in ["a", "b", "c", "d", "e"] {
        let tx = system.begin().tx;
        system.commit(tx, &[key]).unwrap();
    }
}

fn checkpoints_of_open_transactions_are_seen_by_nobody<S: System>() {
    let system: S = in_memory();
    let t: Vec<WritePointer> = (0..3).map(|_| system.begin().tx).collect();
    five_commits(&system);
    let mut c = [WritePointer(0); 3];
    for index in [2, 1, 0] {
        c[index] = system.checkpoint(t[index], 1).unwrap();
    }
    five_commits(&system);
    let hidden = |hidden: &[WritePointer], seen: &[WritePointer]| {
        let Begun { tx, snapshot } = system.begin();
        excluded(&snapshot);
        for pointer in hidden {
            assert!(!snapshot.is_visible(*pointer), "{pointer} of {hidden:?}");
        }
        for pointer in seen {
            assert!(snapshot.is_visible(*pointer), "{pointer} of {seen:?}");
        }
        system.abort(tx);
        excluded(&snapshot)
    };
    hidden(&[t[0], t[1], t[2], c[0], c[1], c[2]], &[]);
    assert_eq!(system.abort(t[0]), Status::Aborted);
    hidden(&[t[1], t[2], c[1], c[2]], &[]);
    assert!(system.invalidate(t[1]));
    let [_, invalid] = hidden(&[t[1], t[2], c[1], c[2]], &[]);
    assert_eq!(invalid, [t[1], c[1]]);
    system.can_commit(t[2], &[]).unwrap();
    system.commit_checked_after(t[2], &[], 1).unwrap();
    let [in_progress, invalid] = hidden(&[t[1], c[1]], &[t[2], c[2]]);
    assert_eq!((in_progress, invalid), (vec![], vec![t[1], c[1]]));
}

/// Tephra takes one for a transaction: it commits, aborts or invalidates that part alone.
fn a_checkpoint_pointer_is_no_transaction<S: System>() {
    let system: S = in_memory();
    let tx = system.begin().tx;
    let part = system.checkpoint(tx, 1).unwrap();
    let not_there = CommitError::NotInProgress { tx: part, ended: Status::Forgotten };
    assert_eq!(system.can_commit(part, &["k"]), Err(not_there.clone()));
    assert_eq!(system.commit(part, &["k"]), Err(not_there.clone()));
    assert_eq!(system.checkpoint(part, 1), Err(not_there));
    assert!(!system.invalidate(part));
    assert_eq!(system.abort(part), Status::Forgotten);
    assert_eq!(system.settle(part), Status::Forgotten);
    system.commit_after(tx, &[], 1).unwrap();
    let snapshot = system.snapshot();
    assert!(snapshot.is_visible(tx) && snapshot.is_visible(part));
}

/// Tephra's client repeats a checkpoint whose answer was lost, and each repetition adds a pointer.
fn the_number_of_a_checkpoint_makes_it_happen_once<S: System>() {
    let system: S = in_memory();
    let tx = system.begin().tx;
    let first = system.checkpoint(tx, 1).unwrap();
    assert_eq!(system.checkpoint(tx, 1), Ok(first));
    let second = system.checkpoint(tx, 2).unwrap();
    assert!(tx < first && first < second);
    assert_eq!((system.checkpoint(tx, 1), system.checkpoint(tx, 2)), (Ok(first), Ok(second)));
    // The number names those that the client has already.
    for number in [0, 4, u32::MAX] {
        let named = number.saturating_sub(1);
        assert_eq!(system.checkpoint(tx, number), Err(CommitError::CheckpointMismatch { tx, known: 2, named }));
    }
    let csn = system.commit_after(tx, &[], 2).unwrap();
    let ended = Status::Committed(csn);
    assert_eq!(system.checkpoint(tx, 3), Err(CommitError::NotInProgress { tx, ended }));
}

fn a_commit_names_as_many_checkpoints_as_there_are<S: System>() {
    let system: S = in_memory();
    let tx = system.begin().tx;
    system.checkpoint(tx, 1).unwrap();
    for named in [0, 2] {
        let error = CommitError::CheckpointMismatch { tx, known: 1, named };
        assert_eq!(system.commit_after(tx, &[], named), Err(error));
        assert_eq!(system.status(tx), Status::Open);
    }
}

/// A read pointer that stays below the last pointer of what has committed hides the end of it.
fn the_newest_checkpoint_of_a_committed_transaction_is_visible<S: System>() {
    let system: S = in_memory();
    let tx = system.begin().tx;
    let last = (1..=3).map(|number| system.checkpoint(tx, number).unwrap()).last().unwrap();
    system.commit_after(tx, &[], 3).unwrap();
    let snapshot = system.begin().snapshot;
    assert!(snapshot.is_visible(last) && snapshot.read_pointer >= last);
}

/// In Tephra it becomes the first SHORT of others and keeps every committed change set from being dropped.
fn a_long_with_a_checkpoint_pins_nothing<S: System>() {
    let mut options = small();
    options.limits.conflict_index_bytes = 64;
    let system = S::start(StorageKind::Memory, &options);
    let long = system.begin_long().tx;
    system.checkpoint(long, 1).unwrap();
    for number in 0..200 {
        let tx = system.begin().tx;
        system.commit(tx, &[&format!("k{number}")]).unwrap();
    }
    system.commit_after(long, &[], 1).unwrap();
}

/// Tephra takes the pointers from the caller's object, and what that does not know of stays in progress.
fn an_abort_ends_checkpoints_that_its_client_never_heard_of<S: System>() {
    let system: S = in_memory();
    let (short, invalid) = (system.begin().tx, system.begin().tx);
    for tx in [short, invalid] {
        system.checkpoint(tx, 1).unwrap();
        system.checkpoint(tx, 2).unwrap();
    }
    assert_eq!(system.abort(short), Status::Aborted);
    assert!(system.invalidate(invalid));
    assert_eq!(system.begin().snapshot.invalid.pointers.len(), 3);
    assert_eq!(system.abort(invalid), Status::Aborted);
    let [_, invalid] = excluded(&system.begin().snapshot);
    assert_eq!(invalid, []);
}

fn a_conflict_names_a_label_as_retention_says<S: System>() {
    let told = [(LabelRetention::Off, None), (LabelRetention::Active, None), (LabelRetention::Committed, Some("A"))];
    for (retention, expected) in told {
        let mut options = small();
        options.limits.labels = retention;
        let system = S::start(StorageKind::Memory, &options);
        let (winner, loser, checked) =
            (system.begin_labelled("A").tx, system.begin_labelled("B").tx, system.begin().tx);
        system.can_commit(checked, &["2", "3"]).unwrap();
        system.commit(winner, &["1", "2"]).unwrap();
        let refused = [
            (loser, system.can_commit(loser, &["2", "3"]).unwrap_err()),
            (loser, system.commit(loser, &["2", "3"]).unwrap_err()),
            (checked, system.commit_checked(checked, &["2", "3"]).unwrap_err()),
        ];
        for (whose, error) in refused {
            let CommitError::Conflict { tx, change_id, winner: named, label, .. } = error else { panic!("{error:?}") };
            assert_eq!((tx, change_id, named), (whose, ChangeId::of(b"2").0, Some(winner)));
            assert_eq!(label.as_deref(), expected, "{retention:?}");
        }
    }
}

/// Tephra keeps change sets of commits without a begin in between under one pointer, with the client of the last.
fn winners_at_the_same_time_are_not_mixed_up<S: System>() {
    let system: S = in_memory();
    let t: Vec<WritePointer> = ["A", "B", "C"].map(|label| system.begin_labelled(label).tx).into();
    let losers = [system.begin().tx, system.begin().tx, system.begin().tx];
    for (index, key) in ["a", "b", "c"].iter().enumerate() {
        system.commit(t[index], &[key]).unwrap();
    }
    for (index, (key, expected)) in [("a", "A"), ("b", "B"), ("c", "C")].into_iter().enumerate() {
        match system.commit(losers[index], &[key]) {
            Err(CommitError::Conflict { winner, label, .. }) => {
                assert_eq!((winner, label.as_deref()), (Some(t[index]), Some(expected)));
            }
            other => panic!("{other:?}"),
        }
    }
}

const NOT_AT_ALL: Duration = Duration::ZERO;
const A_MINUTE: Duration = Duration::from_secs(60);

fn a_fence_waits_for_those_who_were_open<S: System>() {
    let system: S = in_memory();
    let (r1, r2) = (system.begin().tx, system.begin_long().tx);
    // Open, and above the read pointer of everybody: such a one counts as well.
    assert!(system.snapshot().read_pointer < r1);
    assert_eq!(system.fence(NOT_AT_ALL), Fenced::TimedOut(2));
    system.commit(r1, &["k"]).unwrap();
    assert_eq!(system.fence(NOT_AT_ALL), Fenced::TimedOut(1));
    assert_eq!(system.abort(r2), Status::Invalid(InvalidCause::LongAborted));
    assert_eq!(system.fence(NOT_AT_ALL), Fenced::Passed);
}

fn a_fence_passes_when_the_readers_have_ended<S: System>() {
    let system: S = in_memory();
    let readers: Vec<WritePointer> = (0..3).map(|_| system.begin_with(&timeout(300)).unwrap().tx).collect();
    system.commit(readers[1], &["k"]).unwrap();
    // The others end while it waits: their deadline passes.
    assert_eq!(system.fence(A_MINUTE), Fenced::Passed);
    for reader in [readers[0], readers[2]] {
        assert!(matches!(system.status(reader), Status::Invalid(_)));
    }
    assert_eq!(system.fence(NOT_AT_ALL), Fenced::Passed, "a second one has nobody to wait for");
}

fn timeout(timeout_ms: u64) -> BeginOptions {
    BeginOptions { timeout_ms: Some(timeout_ms), ..BeginOptions::default() }
}

/// Commits in two steps as a client does that kept its changes: where the set is not kept any more, in one.
fn commit_in_two(system: &impl System, tx: WritePointer, keys: &[&str]) -> Result<CommitNumber, CommitError> {
    match system.commit_checked(tx, keys) {
        Err(CommitError::NeedChanges { .. }) => system.commit(tx, keys),
        decided => decided,
    }
}

/// One that was invalidated, one that committed `a`, one that was checked for `b`, one that is open.
fn four_kinds(system: &impl System) -> [WritePointer; 4] {
    let invalid = system.begin().tx;
    assert!(system.invalidate(invalid));
    let [t1, t2, t3] = [(); 3].map(|()| system.begin().tx);
    system.commit(t1, &["a"]).unwrap();
    system.can_commit(t2, &["b"]).unwrap();
    [invalid, t1, t2, t3]
}

/// And what is asked of them later.
fn go_on_with(system: &impl System, [invalid, t1, t2, t3]: [WritePointer; 4]) {
    let check = system.begin();
    assert_eq!(excluded(&check.snapshot)[1][0], invalid);
    assert!(check.tx > t3);
    assert_eq!(system.abort(check.tx), Status::Aborted);
    assert_eq!(system.abort(invalid), Status::Aborted);
    assert!(matches!(system.status(t1), Status::Committed(_)));
    commit_in_two(system, t2, &["b"]).unwrap();
    let t4 = system.begin();
    assert!(t4.tx > t3);
    let sees = |snapshot: &Snapshot| [t1, t2, t3, t4.tx].map(|tx| snapshot.is_visible(tx));
    assert_eq!(sees(&t4.snapshot), [true, true, false, false]);
    assert!(conflicts(system.can_commit(t3, &["b"])));
    let t5 = system.begin();
    assert_eq!(sees(&t5.snapshot), [true, true, false, false]);
    for tx in [t3, t4.tx, t5.tx] {
        assert_eq!(system.abort(tx), Status::Aborted);
    }
}

fn a_clean_stop_changes_nothing<S: System>() {
    let directory = tempfile::tempdir().unwrap();
    let system: S = on_disk(directory.path());
    let four = four_kinds(&system);
    let before = excluded(&system.snapshot());
    drop(system);
    let system: S = on_disk(directory.path());
    assert_eq!(excluded(&system.snapshot())[1], before[1]);
    go_on_with(&system, four);
}

fn a_crash_changes_nothing_that_was_durable<S: System>() {
    let directory = tempfile::tempdir().unwrap();
    let system: S = on_disk(directory.path());
    let four = four_kinds(&system);
    let open: Vec<WritePointer> = (0..50).map(|_| system.begin().tx).collect();
    // Begins are answered before they are durable; whoever waits for a later decision has them durable.
    let flush = system.begin().tx;
    system.commit(flush, &[]).unwrap();
    let before = system.snapshot();
    let copy = copy_of(directory.path());
    let system: S = on_disk(copy.path());
    let after = system.begin();
    assert!(after.tx > flush);
    for pointer in open.iter().chain(&four).chain([&flush]) {
        assert_eq!(after.snapshot.is_visible(*pointer), before.is_visible(*pointer), "{pointer}");
        assert_eq!(system.status(*pointer) == Status::Open, open.contains(pointer) || four[2..].contains(pointer));
    }
    go_on_with(&system, four);
}

fn a_long_and_its_checkpoint_go_on_after_a_restart<S: System>() {
    let directory = tempfile::tempdir().unwrap();
    let system: S = on_disk(directory.path());
    let long = system.begin_long().tx;
    let part = system.checkpoint(long, 1).unwrap();
    let shorts = [(); 3].map(|()| system.begin().tx);
    for index in [2, 0, 1] {
        assert!(system.invalidate(shorts[index]));
    }
    drop(system);
    let system: S = on_disk(directory.path());
    let snapshot = system.begin().snapshot;
    assert_eq!(excluded(&snapshot)[1][..3], shorts);
    assert!(!snapshot.is_visible(long) && !snapshot.is_visible(part));
    system.can_commit(long, &[]).unwrap();
    system.commit_checked_after(long, &[], 1).unwrap();
    drop(system);
    let system: S = on_disk(directory.path());
    let snapshot = system.snapshot();
    assert!(snapshot.is_visible(long) && snapshot.is_visible(part));
    assert!(matches!(system.status(long), Status::Committed(_)));
    assert_eq!(excluded(&snapshot)[1][..3], shorts);
}

/// Tephra tells LONG from SHORT by the distance of the deadline when it reads what an older version wrote.
fn a_short_with_a_huge_timeout_stays_short<S: System>() {
    let directory = tempfile::tempdir().unwrap();
    let options = Options { limits: Limits { short_timeout_ms_max: u64::MAX, ..small().limits }, ..small() };
    let start = || S::start(StorageKind::Disk(directory.path().to_owned()), &options);
    let system = start();
    let short = system.begin_with(&timeout(u64::MAX)).unwrap().tx;
    let long = system.begin_with(&BeginOptions { kind: Kind::Long, ..timeout(1_000_000) }).unwrap().tx;
    drop(system);
    let system = start();
    assert_eq!(system.abort(short), Status::Aborted);
    assert_eq!(system.abort(long), Status::Invalid(InvalidCause::LongAborted));
}
