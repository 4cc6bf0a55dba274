//! Orders of events that break the naive form of a promise, each with the rule that prevents it.
//!
//! A pipeline runs turn by turn over a network, a clock and a disk that do what the test says. Orders that concern the
//! decided state alone are tested, and modelled, in `core/tests`; damaged logs in `wal/tests`.

mod common;

use std::sync::atomic::Ordering;
use std::time::Duration;

use common::house::{House, Machine};
use seriatim_core::{BeginError, BeginOptions, CommitError, Full, InvalidCause, POINTERS_PER_MS, Status, WritePointer};
use seriatim_net::{AbortOnDisconnect, ConnectionId, StartError, WINDOW_MS};
use seriatim_wire::{BeginRequest, ErrorCode, ListKind, ListRequest, Op, Reply, request};

const MS: Duration = Duration::from_millis(1);

fn refused_begin(house: &mut House, connection: ConnectionId, id: u64) -> BeginError {
    house
        .reply(connection, id, |reply| match reply {
            Reply::Begin(Err(error)) => error,
            other => panic!("{other:?}"),
        })
        .expect("a begin waits for nothing")
}

/// A client writes into the store and dies. Were its transaction counted as rolled back, everybody would read the write.
#[test]
fn a_disconnect_invalidates_after_the_grace_and_aborts_only_what_was_deferred() {
    let machine = Machine::new();
    let mut house = machine.start();
    let (client, other) = (house.connect(7), house.connect(8));
    let (dirty, _) = house.begin(client);
    let deferred = house.begin_as(client, BeginOptions { deferred: true, ..BeginOptions::default() }).0;
    let detached = house.begin_as(client, BeginOptions { detached: true, ..BeginOptions::default() }).0;
    // What was sent whole before the end is executed first.
    let (committed, _) = house.begin(client);
    let late = house.send_commit(client, committed, &["k"]);
    house.disconnect(client);
    house.settle_down();
    assert!(!house.has_reply(client, late), "nobody is there to hear it");
    assert!(matches!(house.status_by(other, Op::Status, committed), Status::Committed(_)));
    house.pass(Duration::from_millis(4_800));
    assert_eq!(house.status_by(other, Op::Status, dirty), Status::Open, "the grace is not over");
    house.pass(Duration::from_millis(400));
    assert_eq!(house.status_by(other, Op::Status, dirty), Status::Invalid(InvalidCause::Disconnected));
    assert_eq!(house.status_by(other, Op::Status, deferred), Status::Aborted);
    assert_eq!(house.status_by(other, Op::Status, detached), Status::Open);
    assert!(!house.snapshot(other).is_visible(dirty));
}

#[test]
fn a_session_that_comes_back_within_the_grace_keeps_its_transactions() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    let (tx, _) = house.begin(client);
    house.disconnect(client);
    house.pass(Duration::from_secs(3));
    let again = house.connect(7);
    house.pass(Duration::from_secs(10));
    house.commit(again, tx, &["k"]).expect("still open");
}

/// The planted bug shows that the test above could fail.
#[test]
fn the_plant_that_aborts_on_disconnect_shows_half_written_transactions() {
    let machine = Machine::new();
    let mut house = machine.try_start::<AbortOnDisconnect>().expect("starts");
    let (client, other) = (house.connect(7), house.connect(8));
    let (dirty, _) = house.begin(client);
    house.disconnect(client);
    house.pass(100 * MS);
    assert!(house.snapshot(other).is_visible(dirty));
}

/// Pointers kept for later begins would lie below the read pointer of their snapshots, and a store that orders versions
/// by pointer would lose the update.
#[test]
fn pointers_of_one_turn_are_greater_than_the_snapshot_they_share() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    let mut open = Vec::new();
    for round in 0..200u32 {
        let id = house.send_begin(client, BeginOptions::default(), 1 + round % 5);
        let commit = open.pop().map(|tx| house.send_commit(client, tx, &["k"]));
        house.turn();
        let (first, count, snapshot) = house
            .reply(client, id, |reply| match reply {
                Reply::Begin(Ok((block, snapshot))) => (block.first, block.count, snapshot.decode(None).unwrap()),
                other => panic!("{other:?}"),
            })
            .unwrap();
        assert!(first > snapshot.read_pointer);
        open.extend((0..count).map(|index| WritePointer(first.0 + index)));
        if let Some(commit) = commit {
            house.settle_down();
            let _ = house.outcome(client, commit);
        }
    }
}

/// Pointers that never become transactions would stay in progress for ever.
#[test]
fn a_million_refused_begins_leave_nothing_in_progress() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    let fill = house.send_begin(client, BeginOptions::default(), machine.options.limits.open_max);
    house.turn();
    let first = house
        .reply(client, fill, |reply| match reply {
            Reply::Begin(Ok((block, _))) => block.first,
            other => panic!("{other:?}"),
        })
        .unwrap();
    for _ in 0..1_000 {
        let refused: Vec<u64> = (0..1_000).map(|_| house.send_begin(client, BeginOptions::default(), 1)).collect();
        house.turn();
        for id in refused {
            assert_eq!(refused_begin(&mut house, client, id), BeginError::Overloaded(Full::OpenTransactions));
        }
    }
    for offset in 0..u64::from(machine.options.limits.open_max) {
        house.send_pointers(client, Op::Abort, WritePointer(first.0 + offset));
    }
    house.settle_down();
    let (last, _) = house.begin(client);
    house.commit(client, last, &[]).unwrap();
    assert_eq!(house.snapshot(client).excluded_len(), 0);
}

/// A begin never waits for the disk, and never takes a pointer beyond what is durable: when a stalled disk has used up
/// the window, it is told so at once.
#[test]
fn a_begin_is_refused_and_not_delayed_when_the_window_is_used_up() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    house.begin(client);
    house.settle_down();
    house.stall_disk(true);
    house.pass(Duration::from_millis(WINDOW_MS * 9 / 20));
    house.begin(client);
    house.pass(Duration::from_millis(2 * WINDOW_MS));
    let id = house.send_begin(client, BeginOptions::default(), 1);
    house.turn();
    assert_eq!(refused_begin(&mut house, client, id), BeginError::Overloaded(Full::Window));
    house.stall_disk(false);
    house.settle_down();
    let (tx, _) = house.begin(client);
    house.commit(client, tx, &[]).expect("the disk is back, and so is everything");
    assert!(house.snapshot(client).excluded_len() <= 2, "the two that were begun");
}

/// A begin that is refused late has taken a place in the order of events and leaves it empty. Nobody may wait for it.
#[test]
fn nobody_waits_for_a_refused_begin() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    let ((winner, _), (loser, _)) = (house.begin(client), house.begin(client));
    house.commit(client, winner, &["k"]).unwrap();
    assert!(house.commit(client, loser, &["k"]).is_err());
    house.settle_down();
    house.stall_disk(true);
    house.pass(Duration::from_millis(2 * WINDOW_MS));
    house.stall_disk(false);
    let id = house.send_begin(client, BeginOptions::default(), 1);
    let settle = house.send_pointers(client, Op::Settle, loser);
    house.turn();
    assert_eq!(refused_begin(&mut house, client, id), BeginError::Overloaded(Full::Window));
    house.settle_down();
    assert!(house.has_reply(client, settle));
    house.stall_disk(true);
    house.pass(Duration::from_millis(2 * WINDOW_MS));
    house.stall_disk(false);
    let id = house.send_begin(client, BeginOptions::default(), 1);
    house.turn();
    assert_eq!(refused_begin(&mut house, client, id), BeginError::Overloaded(Full::Window));
    house.pipeline.stop().expect("stops at once");
}

/// What a crash may have lost track of is excluded as one interval, and pointers go on above everything handed out.
#[test]
fn after_a_crash_pointers_start_above_the_window_and_the_rest_is_one_interval() {
    let machine = Machine::new();
    let mut greatest = WritePointer(0);
    for crashes in 1..=5 {
        let mut house = machine.start();
        let client = house.connect(7);
        let (kept, _) = house.begin(client);
        assert!(kept > greatest, "{kept} after {greatest}");
        house.commit(client, kept, &["k"]).unwrap();
        // Handed out, and the crash comes before its begin is durable.
        house.stall_disk(true);
        let (lost, _) = house.begin(client);
        drop(house);
        machine.stalled.store(false, Ordering::Relaxed);

        let mut house = machine.start();
        let client = house.connect(8);
        assert_eq!(house.status_by(client, Op::Status, lost), Status::Invalid(InvalidCause::Unaccounted));
        assert!(matches!(house.status_by(client, Op::Status, kept), Status::Committed(_)));
        let (next, snapshot) = house.begin(client);
        assert!(next > lost && !snapshot.is_visible(lost) && snapshot.is_visible(kept));
        assert_eq!(snapshot.invalid.intervals.len(), crashes, "a clean stop leaves none");
        greatest = next;
        house.pipeline.stop().unwrap();
    }
}

/// A commit waits for one write: its begin was not written for itself. And a begin that nobody waits for is written
/// after a moment all the same.
#[test]
fn a_begin_is_written_with_its_commit_or_after_ten_milliseconds() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    house.settle_down();
    let before = house.lsn(client);
    let (tx, _) = house.begin(client);
    (0..5).for_each(|_| house.turn());
    assert_eq!(house.lsn(client), before, "nobody waits for it");
    house.commit(client, tx, &["k"]).unwrap();
    let after = house.lsn(client);
    assert!(after >= before + 2, "the begin went with the commit");
    let (alone, _) = house.begin(client);
    house.pass(20 * MS);
    assert!(house.lsn(client) > after);
    drop(house);
    let mut house = machine.start();
    let client = house.connect(7);
    assert_eq!(house.status_by(client, Op::Status, alone), Status::Open, "it survives a crash from then on");
}

/// An idle sequencer does not write for ever because time passes.
#[test]
fn an_idle_sequencer_writes_a_few_groups_a_minute() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    house.begin(client);
    house.pass(Duration::from_secs(10));
    let before = house.lsn(client);
    house.pass(Duration::from_secs(60));
    let records = house.lsn(client) - before;
    assert!((1..=6).contains(&records), "{records} records in an idle minute");
}

/// A refusal that a crash takes back is no refusal: the client has rolled back, and a delayed duplicate would commit.
#[test]
fn a_refusal_is_answered_when_it_is_durable_and_stands_after_a_crash() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    let ((winner, _), (loser, _)) = (house.begin(client), house.begin(client));
    house.settle_down();
    house.stall_disk(true);
    let won = house.send_commit(client, winner, &["k"]);
    let lost = house.send_commit(client, loser, &["k"]);
    house.settle_down();
    assert!(!house.has_reply(client, won) && !house.has_reply(client, lost), "nothing is durable yet");
    house.stall_disk(false);
    house.settle_down();
    house.outcome(client, won).unwrap().unwrap();
    assert!(matches!(house.outcome(client, lost).unwrap(), Err(CommitError::Conflict { .. })));
    drop(house);
    let mut house = machine.start();
    let client = house.connect(7);
    let again = house.commit(client, loser, &["k"]);
    assert_eq!(again, Err(CommitError::NotInProgress { tx: loser, ended: Status::Refused }));
    assert_eq!(house.status_by(client, Op::Abort, loser), Status::Aborted);
    drop(house);
    let mut house = machine.start();
    let client = house.connect(7);
    assert_eq!(house.status_by(client, Op::Status, loser), Status::Aborted);
}

/// A loser that heard of its conflict before the winner is visible would begin again on the same snapshot and lose again.
#[test]
fn the_loser_of_a_conflict_retries_on_a_snapshot_that_holds_the_winner() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    for _ in 0..20 {
        let ((winner, _), (loser, _)) = (house.begin(client), house.begin(client));
        let won = house.send_commit(client, winner, &["k"]);
        house.turn();
        let lost = house.send_commit(client, loser, &["k"]);
        while !house.has_reply(client, lost) {
            house.turn();
        }
        let csn = house.outcome(client, won).expect("the winner is answered no later").unwrap();
        let (retry, snapshot) = house.begin(client);
        assert!(snapshot.csn >= csn);
        house.commit(client, retry, &["k"]).expect("nobody else wrote");
        house.status_by(client, Op::Abort, loser);
    }
}

/// Commit, abort and expiry of one transaction at one moment have one outcome, and everybody hears the same.
#[test]
fn a_commit_under_way_wins_over_abort_and_expiry() {
    let machine = Machine::new();
    let mut house = machine.start();
    let (client, other) = (house.connect(7), house.connect(8));
    let (tx, _) = house.begin_as(client, BeginOptions { timeout_ms: Some(200), ..BeginOptions::default() });
    house.settle_down();
    house.stall_disk(true);
    let commit = house.send_commit(client, tx, &["k"]);
    house.turn();
    let abort = house.send_pointers(other, Op::Abort, tx);
    house.pass(Duration::from_millis(1_000));
    assert_eq!(house.status_by(other, Op::Status, tx), Status::Deciding);
    assert!(!house.has_reply(other, abort), "an abort of a transaction that commits waits for the outcome");
    house.stall_disk(false);
    house.settle_down();
    let csn = house.outcome(client, commit).unwrap().unwrap();
    let aborted = house.reply(other, abort, |reply| match reply {
        Reply::Abort(mut statuses) => statuses.next().unwrap(),
        other => panic!("{other:?}"),
    });
    assert_eq!(aborted, Some(Status::Committed(csn)), "the client learns that it must not roll back");
}

/// A recovered state is a prefix of what was decided: never a commit without the one before it, nor one without its begin.
#[test]
fn what_survives_a_crash_is_a_prefix_of_the_decisions() {
    let machine = Machine::new();
    let mut house = machine.start();
    let (a, b) = (house.connect(7), house.connect(8));
    let mut sent = Vec::new();
    for round in 0..40 {
        let connection = if round % 2 == 0 { a } else { b };
        house.stall_disk(round % 8 >= 6);
        let (tx, _) = house.begin(connection);
        house.send_commit(connection, tx, &[&format!("key {round}")]);
        house.turn();
        sent.push(tx);
    }
    house.stall_disk(true);
    drop(house);
    machine.stalled.store(false, Ordering::Relaxed);
    let mut house = machine.start();
    let client = house.connect(9);
    let numbers: Vec<u64> = sent
        .iter()
        .map_while(|tx| match house.status_by(client, Op::Status, *tx) {
            Status::Committed(csn) => Some(csn.0),
            _ => None,
        })
        .collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>());
    assert!(!numbers.is_empty());
    for tx in &sent[numbers.len()..] {
        assert!(
            !matches!(house.status_by(client, Op::Status, *tx), Status::Committed(_)),
            "{tx} without its forerunners"
        );
    }
}

/// A begin sent after a commit was acknowledged, on whatever connection, sees it.
#[test]
fn a_begin_sent_after_an_acknowledgement_sees_the_commit() {
    let machine = Machine::new();
    let mut house = machine.start();
    let (a, b) = (house.connect(7), house.connect(8));
    for _ in 0..50 {
        let (tx, _) = house.begin(a);
        let commit = house.send_commit(a, tx, &["k"]);
        while !house.has_reply(a, commit) {
            house.turn();
        }
        // The same turn that reads this begin may have other work before it.
        house.send_pointers(a, Op::Status, tx);
        let (other, snapshot) = house.begin(b);
        assert!(snapshot.is_visible(tx));
        house.status_by(b, Op::Abort, other);
    }
}

/// Deadlines are measured on a clock that only runs while somebody serves.
#[test]
fn downtime_and_clock_steps_end_no_transaction_and_survivors_have_five_seconds() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    let thirty = house.begin_as(client, BeginOptions { detached: true, ..BeginOptions::default() }).0;
    let one =
        house.begin_as(client, BeginOptions { detached: true, timeout_ms: Some(1_000), ..BeginOptions::default() }).0;
    house.settle_down();
    machine.clock.step_wall_ms(3_600_000);
    house.pass(Duration::from_millis(500));
    assert_eq!(house.status_by(client, Op::Status, one), Status::Open, "a step of the wall clock is no time");
    drop(house);
    machine.clock.pass(Duration::from_secs(3_600));
    let mut house = machine.start();
    let client = house.connect(7);
    house.pass(Duration::from_millis(4_500));
    assert_eq!(house.status_by(client, Op::Status, one), Status::Open, "survivors keep five seconds");
    house.pass(Duration::from_millis(1_000));
    assert_eq!(house.status_by(client, Op::Status, one), Status::Invalid(InvalidCause::Expired));
    assert_eq!(house.status_by(client, Op::Status, thirty), Status::Open);
    house.pass(Duration::from_secs(30));
    assert_eq!(house.status_by(client, Op::Status, thirty), Status::Invalid(InvalidCause::Expired));
}

/// A server that idled before it was stopped has a window that reaches beyond the first one of the next run. That one must
/// go on renewing its own all the same.
#[test]
fn a_window_that_was_left_over_keeps_no_begin_of_the_next_run_waiting() {
    for back_ms in [0, 40_000, 12 * 3_600_000] {
        let machine = Machine::new();
        let mut house = machine.start();
        let client = house.connect(7);
        house.begin(client);
        house.pass(Duration::from_secs(20));
        house.pipeline.stop().unwrap();
        drop(house);
        machine.clock.step_wall_ms(-back_ms);
        let mut house = machine.start();
        let client = house.connect(7);
        for second in 0..60 {
            house.begin(client);
            house.pass(Duration::from_secs(1));
            println!("{back_ms} ms back, {second} s later");
        }
    }
}

#[test]
fn a_wall_clock_that_steps_back_never_brings_an_old_pointer() {
    let machine = Machine::new();
    let mut greatest = WritePointer(0);
    for step_ms in [0, -5_000, -3_600_000, 1_000, -86_400_000] {
        let mut house = machine.start();
        let client = house.connect(7);
        for _ in 0..20 {
            let (tx, _) = house.begin(client);
            assert!(tx > greatest, "after a step of {step_ms} ms");
            greatest = tx;
            house.pass(10 * MS);
            machine.clock.step_wall_ms(step_ms / 20);
        }
        drop(house);
        machine.clock.step_wall_ms(step_ms);
    }
}

#[test]
fn a_clock_far_ahead_at_the_start_is_refused_unless_it_is_accepted() {
    let mut machine = Machine::new();
    let mut house = machine.start();
    house.pipeline.stop().unwrap();
    drop(house);
    machine.clock.step_wall_ms(8 * 24 * 3_600_000);
    match machine.try_start::<seriatim_net::Honest>().map(|_| ()) {
        Err(StartError::ClockAhead { ahead_days: 8 }) => {}
        other => panic!("{other:?}"),
    }
    machine.options.accept_clock = true;
    machine.start();
}

/// The conflict index is no part of an image: recovery refuses what it cannot check, and loses no update.
#[test]
fn an_older_transaction_is_too_old_after_recovery_from_an_image_and_never_loses_an_update() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    let old = house.begin_as(client, BeginOptions { detached: true, ..BeginOptions::default() }).0;
    let (winner, _) = house.begin(client);
    house.commit(client, winner, &["k"]).unwrap();
    house.pipeline.save_image_now();
    house.settle_down();
    let (later, _) = house.begin(client);
    house.commit(client, later, &["j"]).unwrap();
    let young = house.begin_as(client, BeginOptions { detached: true, ..BeginOptions::default() }).0;
    house.settle_down();
    drop(house);
    let mut house = machine.start();
    assert_eq!(house.report.image, Some(1));
    assert_eq!(house.report.commits, 1);
    let client = house.connect(7);
    assert!(
        matches!(house.commit(client, old, &["k"]), Err(CommitError::TooOld { .. })),
        "the update of k is not lost"
    );
    // Whoever began after the image's last commit is checked against what was replayed.
    house.commit(client, young, &["k"]).expect("nobody wrote k since");
}

/// To look does not settle: the delayed commit of a client that gave up must be refused, durably.
#[test]
fn a_settled_doubt_stays_settled_even_after_a_crash() {
    let machine = Machine::new();
    let mut house = machine.start();
    let (client, other) = (house.connect(7), house.connect(8));
    let (tx, _) = house.begin(client);
    assert_eq!(house.status_by(other, Op::Status, tx), Status::Open, "looking changes nothing");
    let settled = house.send_pointers(other, Op::Settle, tx);
    house.stall_disk(true);
    house.settle_down();
    assert!(!house.has_reply(other, settled), "it is not durable");
    house.stall_disk(false);
    house.settle_down();
    assert!(house.has_reply(other, settled));
    drop(house);
    let mut house = machine.start();
    let client = house.connect(7);
    let ended = Status::Invalid(InvalidCause::Settled);
    assert_eq!(house.commit(client, tx, &["k"]), Err(CommitError::NotInProgress { tx, ended }), "the late commit");
}

/// The decided state has forgotten the transaction already, the published state still holds it.
#[test]
fn a_doubt_settled_behind_a_reset_is_answered_when_the_reset_is_durable() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    let (tx, _) = house.begin(client);
    house.settle_down();
    let store = house.state(client).store;
    house.stall_disk(true);
    house.send(client, |out, id| request::reset(out, id, store));
    let settled = house.send_pointers(client, Op::Settle, tx);
    house.settle_down();
    assert!(!house.has_reply(client, settled), "whether it is forgotten is not durable");
    house.stall_disk(false);
    house.settle_down();
    let status = house.reply(client, settled, |reply| match reply {
        Reply::Settle(mut statuses) => statuses.next().expect("one status"),
        other => panic!("{other:?}"),
    });
    assert_eq!(status, Some(Status::Forgotten));
}

/// Not even its begin is durable, so the published state has never seen it; after a crash it might be open all the same.
#[test]
fn what_a_reset_drops_is_not_said_to_be_forgotten_before_the_reset_is_durable() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    let store = house.state(client).store;
    house.stall_disk(true);
    // Something is under way to the disk, so that what follows is in the ring.
    house.begin(client);
    house.settle_down();
    let (tx, _) = house.begin(client);
    house.send(client, |out, id| request::reset(out, id, store));
    let waiting = [Op::Settle, Op::Abort].map(|op| house.send_pointers(client, op, tx));
    assert_eq!(house.status_by(client, Op::Status, tx), Status::Deciding, "a look waits for nothing");
    for id in waiting {
        assert!(!house.has_reply(client, id), "whether it is forgotten is not durable");
    }
    house.stall_disk(false);
    house.settle_down();
    for id in waiting {
        let status = house.reply(client, id, |reply| match reply {
            Reply::Settle(mut statuses) | Reply::Abort(mut statuses) => statuses.next().expect("one status"),
            other => panic!("{other:?}"),
        });
        assert_eq!(status, Some(Status::Forgotten));
    }
    assert_eq!(house.status_by(client, Op::Status, tx), Status::Forgotten);
}

/// The reply to a commit is lost with the server; the same commit again, and a settle, say what became of it.
#[test]
fn a_commit_repeated_after_a_crash_answers_how_the_first_ended() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    let (tx, _) = house.begin(client);
    let csn = house.commit(client, tx, &["k"]).unwrap();
    drop(house);
    let mut house = machine.start();
    let client = house.connect(7);
    let ended = Status::Committed(csn);
    assert_eq!(house.commit(client, tx, &["k"]), Err(CommitError::NotInProgress { tx, ended }));
    assert_eq!(house.status_by(client, Op::Settle, tx), ended);
    assert_eq!(house.status_by(client, Op::Abort, tx), ended);
}

#[test]
fn a_full_disk_is_answered_and_passes_when_there_is_room_again() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    machine.disk.set_capacity_bytes(machine.disk.used_bytes());
    let mut committed = Vec::new();
    let refused = loop {
        let begin = house.send_begin(client, BeginOptions::default(), 1);
        house.settle_down();
        let begun = house.reply(client, begin, |reply| match reply {
            Reply::Begin(Ok((block, _))) => Ok(block.first),
            Reply::Error(error) => Err(error.code),
            other => panic!("{other:?}"),
        });
        let tx = match begun.expect("answered") {
            Ok(tx) => tx,
            Err(code) => break code,
        };
        let keys: Vec<String> = (0..2_000).map(|key| format!("{tx} {key}")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let commit = house.send_commit(client, tx, &keys);
        house.settle_down();
        // What was begun before the disk was full is decided and answered: room is kept for it.
        match house.reply(client, commit, |reply| matches!(reply, Reply::Error(_))).expect("answered") {
            true => break ErrorCode::DiskFull,
            false => committed.push(tx),
        }
        assert!(committed.len() < 10_000, "the disk never filled up");
    };
    assert_eq!(refused, ErrorCode::DiskFull);
    drop(house);
    let mut house = machine.start();
    let client = house.connect(7);
    let snapshot = house.snapshot(client);
    assert!(committed.iter().all(|tx| snapshot.is_visible(*tx)), "a store on a full disk starts, and has lost nothing");
    machine.disk.set_capacity_bytes(u64::MAX);
    house.pass(Duration::from_secs(2));
    let (tx, snapshot) = house.begin(client);
    house.commit(client, tx, &["k"]).expect("there is room again");
    assert!(committed.iter().all(|tx| snapshot.is_visible(*tx)), "nothing acknowledged was lost");
    drop(house);
    let mut house = machine.start();
    let client = house.connect(8);
    let snapshot = house.snapshot(client);
    assert!(committed.iter().all(|tx| snapshot.is_visible(*tx)), "nor by a restart");
}

#[test]
fn pointers_tell_the_time_and_many_begins_share_a_frame() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    house.pass(1_000 * MS);
    let (tx, _) = house.begin(client);
    let now_ms = seriatim_net::Clock::wall_ms(&machine.clock);
    assert!(now_ms - tx.ms_since_epoch() <= 1, "{tx} at {now_ms}");
    assert_eq!(tx.0 / POINTERS_PER_MS, tx.ms_since_epoch());
    let asked = BeginRequest { options: BeginOptions::default(), count: 64, base: None, label: None };
    let id = house.send(client, |out, id| request::begin(out, id, &asked));
    house.turn();
    let count = house.reply(client, id, |reply| match reply {
        Reply::Begin(Ok((block, _))) => block.count,
        other => panic!("{other:?}"),
    });
    assert_eq!(count, Some(64));
}

/// A list walks over everything that is open. Many of them, sent at once, must not make the others wait for all.
#[test]
fn many_lists_delay_the_others_by_one_walk_and_lose_nothing() {
    let machine = Machine::new();
    let mut house = machine.start();
    let (curious, other) = (house.connect(7), house.connect(8));
    let begin = house.send_begin(curious, BeginOptions::default(), 300);
    house.turn();
    assert!(house.has_reply(curious, begin));
    let page = ListRequest { kind: ListKind::Open, after: WritePointer(0), max: 100 };
    let lists: Vec<u64> = (0..20).map(|_| house.send(curious, |out, id| request::list(out, id, &page))).collect();
    let ping = house.send(other, |out, id| request::ping(out, id, b"?"));
    house.turn();
    assert!(house.has_reply(other, ping));
    assert_eq!(lists.iter().filter(|id| house.has_reply(curious, **id)).count(), 1);
    for _ in 0..lists.len() {
        house.turn();
    }
    for id in lists {
        let listed = house.reply(curious, id, |reply| match reply {
            Reply::List(listing) => listing.map(|entry| entry.tx.0).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        });
        let listed = listed.expect("every list is answered");
        assert_eq!(listed.len(), 100);
        assert!(listed.is_sorted() && listed[99] - listed[0] == 99, "the first hundred");
    }
}

/// One client's walks, sent without end, must not keep those of others away for ever, nor pile up in memory unread.
#[test]
fn a_flood_of_lists_starves_nobody_and_is_not_read_ahead() {
    let machine = Machine::new();
    let mut house = machine.start();
    let (flooder, other) = (house.connect(7), house.connect(8));
    let asked = ListRequest { kind: ListKind::Open, after: WritePointer(0), max: 1 };
    let flood = |house: &mut House| {
        for _ in 0..50 {
            house.send(flooder, |out, id| request::list(out, id, &asked));
        }
    };
    flood(&mut house);
    house.turn();
    let list = house.send(other, |out, id| request::list(out, id, &asked));
    let begin = house.send_begin(other, BeginOptions::default(), 1);
    for _ in 0..3 {
        flood(&mut house);
        house.turn();
    }
    assert!(house.has_reply(other, list), "every second walk is its own");
    assert!(house.has_reply(other, begin), "and what it sent behind that");
    let unread = house.unread(flooder);
    flood(&mut house);
    house.turn();
    assert!(house.unread(flooder) > unread, "what waits for its walk is enough to have in memory");
}

/// A client that asks and does not read is not read either, and costs no turns; nothing that it asked is lost, not even if
/// it has ended its half meanwhile.
#[test]
fn a_client_that_does_not_read_costs_nothing_and_loses_nothing() {
    const ASKED: usize = 100_000;
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    house.block(client, true);
    let asked: Vec<u64> = (0..ASKED).map(|_| house.send(client, request::state)).collect();
    (0..20).for_each(|_| house.turn());
    assert!(house.unread(client) > 0, "there is no room for so many answers");
    assert!(house.waits() > Some(Duration::ZERO), "nothing can be done before the client reads");
    house.shut(client);
    house.block(client, false);
    (0..40).for_each(|_| house.turn());
    assert_eq!(asked.iter().filter(|id| house.has_reply(client, **id)).count(), ASKED);
    assert!(house.is_closed(client));
}

fn status_now(house: &mut House, connection: ConnectionId, id: u64) -> Option<Status> {
    house.reply(connection, id, |reply| match reply {
        Reply::Status(mut statuses) | Reply::Settle(mut statuses) => statuses.next().expect("one status"),
        other => panic!("{other:?}"),
    })
}

/// Whoever is told of a refusal rolls its writes back. Were it told before that is durable, a crash would open the
/// transaction again, and a late commit of it would succeed.
#[test]
fn a_look_tells_of_a_refusal_only_when_it_is_durable() {
    let machine = Machine::new();
    let mut house = machine.start();
    let (client, other) = (house.connect(7), house.connect(8));
    let ((winner, _), (loser, _)) = (house.begin(client), house.begin(client));
    house.commit(client, winner, &["k"]).unwrap();
    house.stall_disk(true);
    house.send_commit(client, loser, &["k"]);
    house.turn();
    let look = house.send_pointers(other, Op::Status, loser);
    house.turn();
    assert_eq!(status_now(&mut house, other, look), Some(Status::Deciding));
    house.stall_disk(false);
    assert_eq!(house.status_by(other, Op::Status, loser), Status::Refused);
}

/// A doubt about a refused transaction is settled by its refusal, though its client is just aborting it.
#[test]
fn a_doubt_is_never_settled_by_what_is_not_durable() {
    let machine = Machine::new();
    let mut house = machine.start();
    let (client, other) = (house.connect(7), house.connect(8));
    let ((winner, _), (loser, _)) = (house.begin(client), house.begin(client));
    house.commit(client, winner, &["k"]).unwrap();
    house.stall_disk(true);
    house.send_commit(client, loser, &["k"]);
    house.turn();
    let settle = house.send_pointers(other, Op::Settle, loser);
    house.turn();
    house.send_pointers(client, Op::Abort, loser);
    house.turn();
    house.stall_disk(false);
    // The group of the refusal is published while that of the abort is under way.
    while !house.has_reply(other, settle) {
        house.turn();
    }
    assert!(matches!(status_now(&mut house, other, settle), Some(Status::Refused | Status::Aborted)));
}
