//! Orders of events around checkpoints, checked change sets, deadlines, truncation and fences that break the naive form of
//! a promise, each with the rule that prevents it. As in `interleavings.rs` the test's own thread runs everything.

mod common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use common::change_set;
use common::house::{House, Machine};
use seriatim_core::{
    BeginOptions, Changes, CommitError, CommitNumber, InvalidCause, Kind, Status, Submission, WritePointer,
};
use seriatim_net::ConnectionId;
use seriatim_wire::{Fenced, Op, Reply, Truncated, request};

const MS: Duration = Duration::from_millis(1);

fn timeout(timeout_ms: u64) -> BeginOptions {
    BeginOptions { timeout_ms: Some(timeout_ms), ..BeginOptions::default() }
}

fn long(timeout_ms: u64) -> BeginOptions {
    BeginOptions { kind: Kind::Long, ..timeout(timeout_ms) }
}

fn send_checkpoint(house: &mut House, connection: ConnectionId, tx: WritePointer, number: u32) -> u64 {
    house.send(connection, |out, id| request::checkpoint(out, id, [(tx, number)]))
}

type Given = Result<WritePointer, CommitError>;

fn checkpointed(house: &mut House, connection: ConnectionId, id: u64) -> Option<Given> {
    house.reply(connection, id, |reply| match reply {
        Reply::Checkpoint(mut given) => given.next().expect("one answer"),
        other => panic!("{other:?}"),
    })
}

fn checkpoint(house: &mut House, connection: ConnectionId, tx: WritePointer, number: u32) -> Given {
    let id = send_checkpoint(house, connection, tx, number);
    house.settle_down();
    checkpointed(house, connection, id).expect("an answer")
}

fn can_commit(house: &mut House, connection: ConnectionId, tx: WritePointer, keys: &[&str]) -> Result<(), CommitError> {
    let changes = change_set(keys);
    let id = house.send(connection, |out, id| request::can_commit(out, id, [(tx, &changes)]));
    house.settle_down();
    let advice = house.reply(connection, id, |reply| match reply {
        Reply::CanCommit(mut advice) => advice.next().expect("one answer"),
        other => panic!("{other:?}"),
    });
    advice.expect("an answer")
}

fn submit(
    house: &mut House,
    connection: ConnectionId,
    tx: WritePointer,
    submission: Submission<'_>,
) -> Result<CommitNumber, CommitError> {
    let id = house.send(connection, |out, id| request::commit(out, id, [(tx, submission)]));
    house.settle_down();
    house.outcome(connection, id).expect("an outcome")
}

fn checked(keys: &[&str]) -> Submission<'static> {
    Submission { changes: Changes::Checked(change_set(keys).digest()), checkpoints: 0 }
}

fn fenced(house: &mut House, connection: ConnectionId, id: u64) -> Option<Fenced> {
    house.reply(connection, id, |reply| match reply {
        Reply::Fence(fenced) => fenced,
        other => panic!("{other:?}"),
    })
}

fn send_fence(house: &mut House, connection: ConnectionId, timeout: Duration) -> u64 {
    house.send(connection, |out, id| request::fence(out, id, timeout.as_millis() as u64))
}

fn invalid(house: &mut House, connection: ConnectionId) -> Vec<WritePointer> {
    house.snapshot(connection).invalid.pointers.iter().collect()
}

/// A checkpoint that a crash takes back would leave what was written under it excluded, with the rest of its transaction
/// committed: so it is answered when it is durable, and a commit that counts others than the sequencer is refused.
#[test]
fn a_checkpoint_is_answered_when_it_is_durable_and_one_that_was_lost_stops_the_commit() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    let (tx, _) = house.begin(client);
    let kept = checkpoint(&mut house, client, tx, 1).unwrap();
    house.stall_disk(true);
    let asked = send_checkpoint(&mut house, client, tx, 2);
    house.settle_down();
    assert!(!house.has_reply(client, asked), "it could still be lost");
    drop(house);
    machine.stalled.store(false, Ordering::Relaxed);
    let mut house = machine.start();
    let client = house.connect(7);
    // A client that was answered against the rule would name two.
    let survived = house.state(client).open == 1;
    assert!(survived);
    let changes = change_set(&["k"]);
    let both = Submission { checkpoints: 2, ..Submission::from(&changes) };
    let error = submit(&mut house, client, tx, both).unwrap_err();
    assert_eq!(error, CommitError::CheckpointMismatch { tx, known: 1, named: 2 });
    let again = checkpoint(&mut house, client, tx, 2).unwrap();
    submit(&mut house, client, tx, both).unwrap();
    let snapshot = house.snapshot(client);
    assert!([tx, kept, again].iter().all(|pointer| snapshot.is_visible(*pointer)));
}

/// What was checked is not durable. A commit that relies on it after a crash would pass without any check.
#[test]
fn a_checked_set_that_a_crash_has_dropped_is_asked_for_and_checked_again() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    let ((t1, _), (t2, _)) = (house.begin(client), house.begin(client));
    for tx in [t1, t2] {
        can_commit(&mut house, client, tx, &["k"]).unwrap();
    }
    house.settle_down();
    drop(house);
    let mut house = machine.start();
    let client = house.connect(7);
    for tx in [t1, t2] {
        assert_eq!(submit(&mut house, client, tx, checked(&["k"])), Err(CommitError::NeedChanges { tx }));
    }
    house.commit(client, t1, &["k"]).unwrap();
    assert!(matches!(house.commit(client, t2, &["k"]), Err(CommitError::Conflict { .. })));
}

/// A LONG that nobody remembers would hold the visibility bound for ever.
#[test]
fn a_long_expires_after_its_time_and_its_abort_leaves_it_invalid() {
    let mut machine = Machine::new();
    machine.options.limits.long_timeout_ms = 2_000;
    let mut house = machine.start();
    let client = house.connect(7);
    let (forgotten, _) = house.begin_as(client, BeginOptions { kind: Kind::Long, ..BeginOptions::default() });
    let (kept, _) = house.begin_as(client, long(0));
    house.pass(5_000 * MS);
    let ended = Status::Invalid(InvalidCause::Expired);
    assert_eq!(house.status_by(client, Op::Status, forgotten), ended);
    assert_eq!(house.commit(client, forgotten, &[]), Err(CommitError::NotInProgress { tx: forgotten, ended }));
    assert_eq!(
        can_commit(&mut house, client, forgotten, &[]).unwrap_err(),
        CommitError::NotInProgress { tx: forgotten, ended }
    );
    assert_eq!(house.status_by(client, Op::Abort, forgotten), ended);
    assert_eq!(invalid(&mut house, client), [forgotten]);
    // One without a deadline stays, for those who say so.
    house.pass(100_000 * MS);
    assert_eq!(house.status_by(client, Op::Status, kept), Status::Open);
}

/// The cleanup of what has timed out, checkpoints included, and how its clients clean it further.
#[test]
fn what_has_expired_is_invalid_with_its_checkpoints_until_its_client_has_rolled_back() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    let (s1, _) = house.begin_as(client, timeout(2_000));
    let (s2, _) = house.begin_as(client, timeout(2_000));
    let ((l1, _), (l2, _)) = (house.begin_as(client, long(100_000)), house.begin_as(client, long(100_000)));
    let s2c = checkpoint(&mut house, client, s2, 1).unwrap();
    let ten_commits = |house: &mut House| {
        for key in 0..10 {
            let (tx, _) = house.begin(client);
            house.commit(client, tx, &[&format!("k{key}")]).unwrap();
        }
    };
    ten_commits(&mut house);
    assert_eq!(house.state(client).invalid, 0);
    house.pass(5_000 * MS);
    let (x, snapshot) = house.begin(client);
    assert!([s1, s2, s2c, l1, l2].iter().all(|pointer| !snapshot.is_visible(*pointer)));
    assert_eq!(snapshot.invalid.pointers.iter().collect::<Vec<_>>(), [s1, s2, s2c]);
    assert_eq!(house.state(client).invalid, 3);
    can_commit(&mut house, client, x, &["\n"]).unwrap();
    submit(&mut house, client, x, checked(&["\n"])).unwrap();
    let ended = Status::Invalid(InvalidCause::Expired);
    assert_eq!(can_commit(&mut house, client, s1, &["k"]), Err(CommitError::NotInProgress { tx: s1, ended }));
    assert_eq!(house.status_by(client, Op::Abort, s1), Status::Aborted);
    assert_eq!(house.state(client).invalid, 2);
    assert_eq!(house.status_by(client, Op::Abort, s2), Status::Aborted);
    assert_eq!(house.state(client).invalid, 0);
    ten_commits(&mut house);
    house.commit(client, l1, &[]).unwrap();
    assert_eq!(house.status_by(client, Op::Abort, l2), Status::Invalid(InvalidCause::LongAborted));
    assert_eq!((house.state(client).invalid, house.state(client).excluded), (1, 1));
    assert_eq!(invalid(&mut house, client), [l2]);
}

/// A checkpoint whose record follows the end of its transaction is a log that cannot be replayed.
#[test]
fn a_checkpoint_never_follows_the_end_of_its_transaction_in_the_log() {
    for end in [Op::Abort, Op::Invalidate, Op::Settle] {
        let machine = Machine::new();
        let mut house = machine.start();
        let (client, other) = (house.connect(7), house.connect(8));
        let (tx, _) = house.begin_as(client, timeout(300));
        let (first, _) = house.begin_as(client, timeout(300));
        // In one turn, in both orders; the second one also against its deadline.
        let before = send_checkpoint(&mut house, client, tx, 1);
        house.send_pointers(other, end, tx);
        let after = send_checkpoint(&mut house, other, tx, 2);
        machine.clock.pass(400 * MS);
        let late = send_checkpoint(&mut house, client, first, 1);
        house.settle_down();
        let answers = [(client, before), (other, after), (client, late)]
            .map(|(connection, id)| checkpointed(&mut house, connection, id).unwrap());
        assert!(answers[2].is_err(), "{answers:?}");
        let open = house.state(client).open;
        assert_eq!(open, 0);
        let hidden = invalid(&mut house, client);
        drop(house);
        let mut house = machine.start();
        let client = house.connect(7);
        assert_eq!((invalid(&mut house, client), house.state(client).open), (hidden, 0), "{answers:?}");
    }
}

/// A truncation that is logged before the end that made it legal is a log that cannot be replayed.
#[test]
fn a_truncation_follows_the_ends_that_it_relies_on() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    let ((dirty, _), (open, _)) = (house.begin(client), house.begin(client));
    assert_eq!(house.status_by(client, Op::Settle, dirty), Status::Invalid(InvalidCause::Settled));
    let (bound, _) = house.begin(client);
    let truncate = |house: &mut House| house.send(client, |out, id| request::truncate_before(out, id, bound));
    let early = truncate(&mut house);
    house.turn();
    let commit = house.send_commit(client, open, &["k"]);
    let late = truncate(&mut house);
    house.settle_down();
    house.outcome(client, commit).unwrap().unwrap();
    let said = |house: &mut House, id| {
        house.reply(client, id, |reply| match reply {
            Reply::TruncateBefore(truncated) => truncated,
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(said(&mut house, early), Some(Truncated::InProgress(open)));
    assert_eq!(said(&mut house, late), Some(Truncated::InProgress(open)), "decided, and not published yet");
    let last = truncate(&mut house);
    house.settle_down();
    assert_eq!(said(&mut house, last), Some(Truncated::Done(1)));
    drop(house);
    let mut house = machine.start();
    let client = house.connect(7);
    assert_eq!(invalid(&mut house, client), []);
    assert!(matches!(house.status_by(client, Op::Status, open), Status::Committed(_)));
}

/// After the end of a transaction nothing of it is kept: what it had checked goes with it, whoever ended it.
#[test]
fn an_expired_transaction_leaves_nothing_behind_that_would_be_replayed() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    let (tx, _) = house.begin_as(client, timeout(200));
    can_commit(&mut house, client, tx, &["k"]).unwrap();
    house.pass(1_500 * MS);
    let ended = Status::Invalid(InvalidCause::Expired);
    assert_eq!(submit(&mut house, client, tx, checked(&["k"])), Err(CommitError::NotInProgress { tx, ended }));
    let (other, _) = house.begin(client);
    house.commit(client, other, &["k"]).unwrap();
    let before = house.snapshot(client);
    drop(house);
    let mut house = machine.start();
    let client = house.connect(7);
    let after = house.snapshot(client);
    assert_eq!((after.is_visible(tx), after.is_visible(other)), (false, true));
    assert_eq!(after.invalid.pointers.iter().collect::<Vec<_>>(), before.invalid.pointers.iter().collect::<Vec<_>>());
    assert_eq!(house.status_by(client, Op::Abort, tx), Status::Aborted, "its client may still clean it");
    assert_eq!(invalid(&mut house, client), []);
}

/// The first decision of a log and those that others carry to the disk wait for their sync as all others do.
#[test]
fn nobody_is_answered_before_the_sync_whoever_was_first() {
    let machine = Machine::new();
    let mut house = machine.start();
    let clients: Vec<ConnectionId> = (1..=8).map(|session| house.connect(session)).collect();
    house.stall_disk(true);
    let mut asked = Vec::new();
    for (index, client) in clients.iter().enumerate() {
        let (tx, _) = house.begin(*client);
        asked.push((*client, house.send_commit(*client, tx, &[&format!("k{index}")])));
        house.turn();
    }
    house.settle_down();
    assert!(asked.iter().all(|(client, id)| !house.has_reply(*client, *id)));
    house.stall_disk(false);
    house.settle_down();
    for (client, id) in asked {
        house.outcome(client, id).expect("answered").expect("committed");
    }
}

/// A fence that looks at what a snapshot excludes misses who holds a pointer above everybody's read pointer, and a stale
/// reader commits after it has passed.
#[test]
fn a_fence_counts_everybody_who_was_open_and_nobody_who_came_later() {
    let machine = Machine::new();
    let mut house = machine.start();
    let (client, operator) = (house.connect(7), house.connect(8));
    let ((r17, _), (r18, snapshot)) = (house.begin(client), house.begin(client));
    assert!(r17 > snapshot.read_pointer, "no snapshot excludes it");
    let fence = send_fence(&mut house, operator, 60_000 * MS);
    house.settle_down();
    let (r20, _) = house.begin(client);
    house.commit(client, r17, &["a"]).unwrap();
    assert!(!house.has_reply(operator, fence), "one is left");
    let (r21, _) = house.begin(client);
    house.commit(client, r18, &["b"]).unwrap();
    assert_eq!(fenced(&mut house, operator, fence), Some(Fenced::Passed));
    for tx in [r20, r21] {
        house.commit(client, tx, &["c"]).ok();
        assert_ne!(house.status_by(client, Op::Status, tx), Status::Open);
    }
}

/// A reader that begins while a fence waits does not hold it up, however many attempts it takes; one that was there does.
#[test]
fn a_fence_that_runs_out_says_who_is_open_and_can_be_asked_again() {
    let machine = Machine::new();
    let mut house = machine.start();
    let (client, operator) = (house.connect(7), house.connect(8));
    let readers: Vec<WritePointer> = (0..3).map(|_| house.begin(client).0).collect();
    let first = send_fence(&mut house, operator, 100 * MS);
    house.commit(client, readers[0], &["r0"]).unwrap();
    house.pass(200 * MS);
    assert_eq!(fenced(&mut house, operator, first), Some(Fenced::TimedOut(2)));
    let second = send_fence(&mut house, operator, 60_000 * MS);
    house.commit(client, readers[2], &["r2"]).unwrap();
    house.pass(200 * MS);
    assert!(!house.has_reply(operator, second));
    assert_eq!(house.status_by(client, Op::Abort, readers[1]), Status::Aborted);
    assert_eq!(fenced(&mut house, operator, second), Some(Fenced::Passed));
}

/// A begin may be answered before a fence and on its way to the log while the fence is counted.
#[test]
fn a_fence_waits_for_begins_that_are_not_durable_yet() {
    let machine = Machine::new();
    let mut house = machine.start();
    let (client, operator) = (house.connect(7), house.connect(8));
    house.settle_down();
    house.stall_disk(true);
    let (tx, _) = house.begin(client);
    let (patient, hasty) = (send_fence(&mut house, operator, 60_000 * MS), send_fence(&mut house, operator, 100 * MS));
    house.pass(200 * MS);
    assert!(!house.has_reply(operator, patient), "nobody can say that it has ended");
    assert_eq!(fenced(&mut house, operator, hasty), Some(Fenced::TimedOut(1)), "and a slow disk delays no timeout");
    house.stall_disk(false);
    house.settle_down();
    assert!(!house.has_reply(operator, patient));
    house.commit(client, tx, &["k"]).unwrap();
    assert_eq!(fenced(&mut house, operator, patient), Some(Fenced::Passed));
}

/// With a read pointer of zero everything old would be hidden until the next commit; with one that is too low, what
/// commits next shows writes of transactions that the reset has dropped.
#[test]
fn a_reset_hides_nothing_that_was_committed_and_pointers_go_on() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    let ((t1, _), (t2, _), (t3, _)) = (house.begin(client), house.begin(client), house.begin(client));
    house.commit(client, t1, &["c1", "c2"]).unwrap();
    can_commit(&mut house, client, t2, &["c3", "c4"]).unwrap();
    let store = house.state(client).store;
    let reset = house.send(client, |out, id| request::reset(out, id, store));
    house.settle_down();
    let floor = house.reply(client, reset, |reply| match reply {
        Reply::Reset { floor } => floor,
        other => panic!("{other:?}"),
    });
    assert!(floor.unwrap() > t3);
    for restarted in [false, true] {
        if restarted {
            drop(house);
            house = machine.start();
            house.connect(7);
        }
        let client = house.connect(9);
        assert_eq!((house.state(client).open, invalid(&mut house, client)), (0, vec![]));
        let (next, snapshot) = house.begin(client);
        assert!(next > t3 && snapshot.is_visible(t1));
        let ended = Status::Forgotten;
        assert_eq!(house.commit(client, t3, &["x"]), Err(CommitError::NotInProgress { tx: t3, ended }));
        assert_eq!(
            submit(&mut house, client, t2, checked(&["c3", "c4"])),
            Err(CommitError::NotInProgress { tx: t2, ended })
        );
        house.status_by(client, Op::Abort, next);
    }
}

/// Labels are not written down. After a restart a conflict still names its winner where that is known, without a label.
#[test]
fn a_winner_from_before_a_crash_is_refused_against_and_has_no_label() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    let ((winner, _), (loser, _)) = (house.begin(client), house.begin(client));
    let csn = house.commit(client, winner, &["k"]).unwrap();
    drop(house);
    let mut house = machine.start();
    let client = house.connect(7);
    match house.commit(client, loser, &["k"]) {
        Err(CommitError::Conflict { csn: theirs, winner: named, label: None, .. }) => {
            assert_eq!((theirs, named), (csn, Some(winner)));
        }
        other => panic!("{other:?}"),
    }
}

/// A write that has failed says nothing about what is on the disk. Nobody hears of a decision in it, nothing is taken on
/// any more, and the process is to end; the next one finds what the disk has.
#[test]
fn a_failed_write_answers_nobody_and_ends_the_server() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    let ((tx, _), (other, _)) = (house.begin(client), house.begin(client));
    house.settle_down();
    machine.broken.store(true, Ordering::Relaxed);
    let commit = house.send_commit(client, tx, &["k"]);
    let failure = (0..5).find_map(|_| house.try_turn().err()).expect("the log has failed");
    assert!(failure.to_string().contains("a write to segment 1 at byte"), "{failure}");
    assert!(!house.has_reply(client, commit));
    house.try_turn().expect_err("for good");
    machine.broken.store(false, Ordering::Relaxed);
    house.try_turn().expect_err("whatever the disk says later");
    drop(house);
    let mut house = machine.start();
    let client = house.connect(7);
    let status = house.status_by(client, Op::Settle, tx);
    assert!(matches!(status, Status::Committed(_) | Status::Invalid(InvalidCause::Settled)), "{status:?}");
    house.commit(client, other, &["j"]).unwrap();
}

/// Whoever hears that it was refused, or is too late, rolls back. A crash that takes the refusal back would let a delayed
/// commit pass: so checks and checkpoints, which end nothing themselves, say so no earlier than the refusal is durable.
#[test]
fn a_check_or_checkpoint_tells_of_a_refusal_only_when_it_is_durable() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    let ((winner, _), (refused, _)) = (house.begin(client), house.begin(client));
    let (late, _) = house.begin_as(client, timeout(100));
    house.commit(client, winner, &["k"]).unwrap();
    house.stall_disk(true);
    let commit = house.send_commit(client, refused, &["k"]);
    house.turn();
    machine.clock.pass(200 * MS);
    let changes = change_set(&["j"]);
    let mut asked = Vec::new();
    for tx in [refused, late] {
        asked.push(house.send(client, |out, id| request::can_commit(out, id, [(tx, &changes)])));
        asked.push(send_checkpoint(&mut house, client, tx, 1));
    }
    house.settle_down();
    assert!(asked.iter().chain([&commit]).all(|id| !house.has_reply(client, *id)), "a crash could take it back");
    house.stall_disk(false);
    house.settle_down();
    let told: Vec<CommitError> = asked
        .into_iter()
        .map(|id| {
            let said = house.reply(client, id, |reply| match reply {
                Reply::CanCommit(mut advice) => advice.next().expect("one answer").map(|()| WritePointer(0)),
                Reply::Checkpoint(mut given) => given.next().expect("one answer"),
                other => panic!("{other:?}"),
            });
            said.expect("an answer").unwrap_err()
        })
        .collect();
    let is_refused = CommitError::NotInProgress { tx: refused, ended: Status::Refused };
    assert_eq!(told[..2], [is_refused.clone(), is_refused]);
    let expired = Status::Invalid(InvalidCause::Expired);
    let is_over = |error: &CommitError| {
        *error == CommitError::Expired { tx: late } || *error == CommitError::NotInProgress { tx: late, ended: expired }
    };
    assert!(told[2..].iter().all(is_over), "{told:?}");
    drop(house);
    let mut house = machine.start();
    let client = house.connect(7);
    assert_eq!(house.status_by(client, Op::Status, late), expired);
    assert_eq!(house.status_by(client, Op::Status, refused), Status::Refused);
}
