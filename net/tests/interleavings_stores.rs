//! Orders of events around the bounds of garbage collection, pruning and restarts that break the naive form of a promise.

mod common;

use std::time::Duration;

use common::house::{House, Machine};
use seriatim_core::{BeginOptions, InvalidCause, Kind, POINTERS_PER_MS, Status, WritePointer};
use seriatim_net::ConnectionId;
use seriatim_wire::{
    CleanBound, CleanHolder, ListKind, ListRequest, Op, PruneReport, Reply, StoreRefusal, StoreReply, StoreRequest,
    Truncated, request,
};

const SECOND: Duration = Duration::from_secs(1);

fn ask(house: &mut House, client: ConnectionId, asked: StoreRequest<'_>) -> StoreReply {
    let id = house.send(client, |out, id| request::store(out, id, asked));
    house.settle_down();
    house
        .reply(client, id, |reply| match reply {
            Reply::Store(said) => said,
            other => panic!("{other:?}"),
        })
        .expect("an answer")
}

fn register(house: &mut House, client: ConnectionId, name: &str) {
    assert_eq!(ask(house, client, StoreRequest::Register { name }), StoreReply::Registered(Ok(true)));
}

fn clean_bound(house: &mut House, client: ConnectionId) -> CleanBound {
    let StoreReply::CleanBound(bounds) = ask(house, client, StoreRequest::CleanBound) else { panic!() };
    bounds
}

fn cleaned(house: &mut House, client: ConnectionId, name: &str, bound: WritePointer) -> Result<(), StoreRefusal> {
    let StoreReply::Cleaned(said) = ask(house, client, StoreRequest::Cleaned { name, bound }) else { panic!() };
    said
}

fn pruning(house: &mut House, client: ConnectionId) -> PruneReport {
    let StoreReply::Pruning(report) = ask(house, client, StoreRequest::Pruning) else { panic!() };
    *report
}

fn truncate(house: &mut House, client: ConnectionId, transactions: &[WritePointer]) -> Vec<bool> {
    let named = transactions.to_vec();
    let id = house.send(client, |out, id| request::pointers(out, Op::Truncate, id, named));
    house.settle_down();
    let forgotten = house.reply(client, id, |reply| match reply {
        Reply::Truncate(forgotten) => forgotten.iter().collect(),
        other => panic!("{other:?}"),
    });
    forgotten.expect("an answer")
}

fn truncate_before(house: &mut House, client: ConnectionId, bound: WritePointer) -> Truncated {
    let id = house.send(client, |out, id| request::truncate_before(out, id, bound));
    house.settle_down();
    let truncated = house.reply(client, id, |reply| match reply {
        Reply::TruncateBefore(truncated) => truncated,
        other => panic!("{other:?}"),
    });
    truncated.expect("an answer")
}

/// The invalid transactions and intervals as pointers and lengths.
fn invalid(house: &mut House, client: ConnectionId) -> Vec<(WritePointer, u64)> {
    let asked = ListRequest { kind: ListKind::Invalid, after: WritePointer(0), max: 100 };
    let id = house.send(client, |out, id| request::list(out, id, &asked));
    house.turn();
    let listed = house.reply(client, id, |reply| match reply {
        Reply::List(list) => list.map(|entry| (entry.tx, entry.count)).collect(),
        other => panic!("{other:?}"),
    });
    listed.expect("a list waits for nothing")
}

fn begin_for(house: &mut House, client: ConnectionId, timeout_ms: u64) -> WritePointer {
    house.begin_as(client, BeginOptions { timeout_ms: Some(timeout_ms), ..BeginOptions::default() }).0
}

fn begin_long(house: &mut House, client: ConnectionId) -> WritePointer {
    house.begin_as(client, BeginOptions { kind: Kind::Long, ..BeginOptions::default() }).0
}

fn invalidate(house: &mut House, client: ConnectionId, tx: WritePointer) {
    house.send_pointers(client, Op::Invalidate, tx);
    house.settle_down();
    assert!(matches!(house.status_by(client, Op::Status, tx), Status::Invalid(_)));
}

/// Somebody begins and commits: the greatest finished pointer.
fn finish(house: &mut House, client: ConnectionId) -> WritePointer {
    let (tx, _) = house.begin(client);
    house.commit(client, tx, &[]).expect("commits");
    tx
}

/// A client is told too late that its transaction is invalid, and a last write of it arrives later still. Were the
/// transaction forgotten by then, that write would be read by everybody.
#[test]
fn nobody_is_forgotten_while_a_late_write_of_its_client_may_arrive() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    register(&mut house, client, "a");
    let zombie = begin_for(&mut house, client, 20_000);
    invalidate(&mut house, client, zombie);
    finish(&mut house, client);
    let before = WritePointer(zombie.0 - 1);
    // 20 s to its deadline, and 60 s for a write that was on its way.
    for passed in [0, 19, 40, 20] {
        house.pass(passed * SECOND);
        assert_eq!(clean_bound(&mut house, client).clean, before, "after {passed} s more");
        let refused = StoreRefusal::NotHandedOut { bound: zombie, greatest: before };
        assert_eq!(cleaned(&mut house, client, "a", zombie), Err(refused));
    }
    let CleanHolder::Writing { tx, remaining_ms, .. } = pruning(&mut house, client).holder else { panic!() };
    assert!(tx == zombie && remaining_ms <= 1_000, "{tx}: {remaining_ms} ms");
    house.pass(2 * SECOND);
    let bounds = clean_bound(&mut house, client);
    assert!(bounds.clean > zombie);
    assert_eq!(cleaned(&mut house, client, "a", bounds.clean), Ok(()));
    assert_eq!(invalid(&mut house, client), []);
}

/// The least of three: what is finished, who has not ended, who may still write. Tephra's bound for a compaction is one
/// less where nobody is in progress, and asks for no deadline: a client that is told late writes below it.
#[test]
fn the_clean_bound_is_below_whoever_may_write_and_at_most_what_is_finished() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    let below = |tx: WritePointer| WritePointer(tx.0 - 1);
    let first = finish(&mut house, client);
    assert_eq!(clean_bound(&mut house, client).clean, first, "nobody is in the way");
    let past = begin_for(&mut house, client, 1);
    house.pass(62 * SECOND);
    let newest = finish(&mut house, client);
    assert_eq!(house.status_by(client, Op::Status, past), Status::Invalid(InvalidCause::Expired));
    assert_eq!(clean_bound(&mut house, client).clean, newest, "invalid, and it no longer writes");
    let open = begin_for(&mut house, client, 3_600_000);
    assert_eq!(clean_bound(&mut house, client).clean, newest, "open above what is finished");
    let writing = begin_for(&mut house, client, 3_600_000);
    invalidate(&mut house, client, writing);
    assert_eq!(clean_bound(&mut house, client).clean, newest);
    let newest = finish(&mut house, client);
    assert_eq!(clean_bound(&mut house, client).clean, below(open), "in progress, and below the invalid one");
    house.commit(client, open, &[]).unwrap();
    assert_eq!(clean_bound(&mut house, client).clean, below(writing));
    assert_eq!(house.status_by(client, Op::Abort, writing), Status::Aborted);
    assert_eq!(clean_bound(&mut house, client).clean, newest);
}

/// What a crash left unaccounted is nobody's known transaction: whoever holds a pointer of it may write as long as one
/// without a deadline, and no client speaks for it.
#[test]
fn an_interval_goes_by_the_clock_and_by_bounds_and_by_nobodys_name() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    finish(&mut house, client);
    let (lost, _) = house.begin(client);
    // Its begin was answered, and the machine dies before it is on disk.
    house.stall_disk(true);
    let (unheard, _) = house.begin(client);
    drop(house);
    machine.stalled.store(false, std::sync::atomic::Ordering::Relaxed);
    let mut house = machine.start();
    let client = house.connect(7);
    let left = invalid(&mut house, client);
    let [(first, length)] = left[..] else { panic!("{left:?}") };
    assert!((first.0..first.0 + length).contains(&unheard.0));
    let is_lost = house.status_by(client, Op::Status, lost) == Status::Invalid(InvalidCause::Unaccounted);
    assert!(is_lost || house.status_by(client, Op::Status, lost) == Status::Open);
    for tx in [first, unheard] {
        assert_eq!(truncate(&mut house, client, &[tx]), [false]);
        assert_eq!(house.status_by(client, Op::Abort, tx), Status::Invalid(InvalidCause::Unaccounted));
    }
    assert_eq!(invalid(&mut house, client), left);
    if !is_lost {
        house.status_by(client, Op::Abort, lost);
    }
    register(&mut house, client, "a");
    house.clock_only(24 * 3_600 * SECOND);
    finish(&mut house, client);
    assert_eq!(clean_bound(&mut house, client).clean, WritePointer(first.0 - 1), "and a minute for late writes");
    house.pass(62 * SECOND);
    let finished = finish(&mut house, client);
    assert_eq!(clean_bound(&mut house, client).clean, finished);
    let middle = WritePointer(first.0 + length / 2);
    assert_eq!(cleaned(&mut house, client, "a", middle), Ok(()));
    assert_eq!(invalid(&mut house, client), [(WritePointer(middle.0 + 1), length - length / 2 - 1)], "cut");
    let mid_ms = WritePointer(middle.0 + POINTERS_PER_MS);
    assert_eq!(truncate_before(&mut house, client, mid_ms), Truncated::Done(1), "an operator's word");
    assert_eq!(invalid(&mut house, client)[0].0, mid_ms);
    assert_eq!(cleaned(&mut house, client, "a", finished), Ok(()));
    assert_eq!(invalid(&mut house, client), []);
}

/// T1 loads its snapshot, U commits over what T1 reads, T2 begins, and only then T1 takes its pointer: pointers are in
/// another order than snapshots. A bound made of open pointers lets U's predecessor be collected under T1.
#[test]
fn the_visibility_bound_is_what_every_reader_has_settled() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    let visible = |house: &mut House| {
        // It is found once for each moment.
        house.pass(Duration::from_millis(1));
        clean_bound(house, client).visible
    };
    let k40 = finish(&mut house, client);
    assert_eq!(visible(&mut house), WritePointer(0), "what the run before had shown may be read for a minute");
    house.pass(62 * SECOND);
    assert_eq!(visible(&mut house), k40);
    let (reader, snapshot) = house.begin_as(client, BeginOptions { kind: Kind::Long, ..BeginOptions::default() });
    let k50 = finish(&mut house, client);
    let later = begin_for(&mut house, client, 3_600_000);
    house.pass(62 * SECOND);
    assert!(k50 > reader && !snapshot.is_visible(k50));
    assert_eq!(visible(&mut house), k40, "the reader needs what k50 replaced");
    assert_eq!(house.state(client).visibility_bound, k40, "the same for those who ask for the state");
    house.commit(client, reader, &[]).unwrap();
    assert_eq!(visible(&mut house), WritePointer(reader.0 - 1), "the second reader began while the first was open");
    house.commit(client, later, &[]).unwrap();
    let settled = WritePointer(reader.0 - 1);
    assert_eq!(visible(&mut house), settled, "whoever reads without a transaction may have a snapshot of before");
    house.pass(62 * SECOND);
    assert_eq!(visible(&mut house), later);
}

/// Nobody knows who reads through a snapshot without a transaction, so what counts is how long that is allowed.
#[test]
fn a_reader_without_a_transaction_keeps_what_it_needs_for_as_long_as_it_may_read() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    house.pass(62 * SECOND);
    let mut taken = Vec::new();
    let started = house.now();
    for _ in 0..400 {
        finish(&mut house, client);
        let snapshot = house.snapshot(client);
        taken.push((house.now() - started, snapshot.settled()));
        house.pass(Duration::from_millis(437));
        let visible = clean_bound(&mut house, client).visible;
        let now = house.now() - started;
        for (at, settled) in &taken {
            let (age, needs) = (now - *at, *settled);
            assert!(age > 60 * SECOND || visible <= needs, "the bound is {visible}, a reader of {age:?} needs {needs}");
        }
    }
    let (_, long_ago) = taken[taken.len() - 400 + 240];
    assert!(clean_bound(&mut house, client).visible >= long_ago, "it follows");
}

/// Pruning is applied with the event that made it right, so a log that is replayed, an image, and an image with the log
/// behind it come to the same.
#[test]
fn pruning_and_stores_survive_a_crash_whatever_recovery_starts_from() {
    for image_after in [None, Some(0), Some(1), Some(2)] {
        let machine = Machine::new();
        let mut house = machine.start();
        let client = house.connect(7);
        let mut step = 0;
        let mut may_save = |house: &mut House| {
            if image_after == Some(step) {
                house.pipeline.save_image_now();
                house.settle_down();
            }
            step += 1;
        };
        register(&mut house, client, "a");
        register(&mut house, client, "b");
        let gone = begin_for(&mut house, client, 1);
        let kept = begin_for(&mut house, client, 1_000);
        house.pass(62 * SECOND);
        let finished = finish(&mut house, client);
        may_save(&mut house);
        let bounds = clean_bound(&mut house, client);
        assert_eq!(bounds.clean, finished);
        cleaned(&mut house, client, "a", finished).unwrap();
        may_save(&mut house);
        cleaned(&mut house, client, "b", gone).unwrap();
        assert_eq!(invalid(&mut house, client), [(kept, 1)]);
        may_save(&mut house);
        let before = pruning(&mut house, client);
        drop(house);

        let mut house = machine.start();
        let client = house.connect(7);
        assert_eq!(house.report.image.is_some(), image_after.is_some());
        // The crash left its own.
        let left: Vec<_> = invalid(&mut house, client).into_iter().filter(|(_, count)| *count == 1).collect();
        assert_eq!(left, [(kept, 1)], "image {image_after:?}");
        assert_eq!(house.status_by(client, Op::Status, kept), Status::Invalid(InvalidCause::Expired));
        assert_eq!(house.status_by(client, Op::Status, gone), Status::Forgotten);
        let after = pruning(&mut house, client);
        assert_eq!(after.stores, before.stores);
        // What was acknowledged by anybody may be acknowledged again, and by the others; what was only told may not.
        let bound = WritePointer(finished.0 + 1);
        let refused = Err(StoreRefusal::NotHandedOut { bound, greatest: finished });
        assert_eq!(cleaned(&mut house, client, "b", bound), refused);
        assert_eq!(cleaned(&mut house, client, "b", finished), Ok(()));
        let left: Vec<_> = invalid(&mut house, client).into_iter().filter(|(_, count)| *count == 1).collect();
        assert_eq!(left, []);
    }
}

/// A store is removed, or acknowledges, while the other's word is not durable: nothing is forgotten on a word that a crash
/// takes back.
#[test]
fn nothing_is_forgotten_on_a_word_that_is_not_durable() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    register(&mut house, client, "a");
    let gone = begin_for(&mut house, client, 1);
    house.pass(62 * SECOND);
    let finished = finish(&mut house, client);
    assert_eq!(clean_bound(&mut house, client).clean, finished);
    house.stall_disk(true);
    let id = house.send(client, |out, id| {
        request::store(out, id, StoreRequest::Cleaned { name: "a", bound: finished });
    });
    house.settle_down();
    assert!(!house.has_reply(client, id));
    assert_eq!(invalid(&mut house, client), [(gone, 1)]);
    house.stall_disk(false);
    house.settle_down();
    assert!(house.has_reply(client, id));
    assert_eq!(invalid(&mut house, client), []);
}

/// A LONG that was aborted, one that was invalidated, one that was both: all invalid, over a restart too.
#[test]
fn a_long_that_ended_without_a_commit_stays_invalid_over_a_restart() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    let all = [(); 3].map(|()| begin_long(&mut house, client));
    let [aborted, invalidated, both] = all;
    let is = Status::Invalid;
    assert_eq!(house.status_by(client, Op::Abort, aborted), is(InvalidCause::LongAborted));
    invalidate(&mut house, client, invalidated);
    invalidate(&mut house, client, both);
    assert_eq!(house.status_by(client, Op::Abort, both), is(InvalidCause::Asked));
    drop(house);
    let mut house = machine.start();
    let client = house.connect(7);
    let causes = [InvalidCause::LongAborted, InvalidCause::Asked, InvalidCause::Asked];
    for (tx, cause) in all.into_iter().zip(causes) {
        assert_eq!(house.status_by(client, Op::Status, tx), is(cause));
    }
    let snapshot = house.snapshot(client);
    assert!(all.iter().all(|tx| snapshot.invalid.pointers.contains(*tx) && !snapshot.in_progress.contains(*tx)));
    assert_eq!(house.state(client).open, 0);
}

/// Truncations by name and before a time are replayed as they were done.
#[test]
fn what_was_truncated_stays_forgotten_over_a_restart() {
    let machine = Machine::new();
    let mut house = machine.start();
    let client = house.connect(7);
    let mut all = Vec::new();
    for pause_ms in [0, 100, 1_900, 100] {
        house.pass(Duration::from_millis(pause_ms));
        let tx = begin_long(&mut house, client);
        invalidate(&mut house, client, tx);
        all.push(tx);
    }
    assert_eq!(truncate(&mut house, client, &[all[0], all[2]]), [true, true]);
    let bound = WritePointer::at_ms(all[0].ms_since_epoch() + 2_000);
    assert_eq!(truncate_before(&mut house, client, bound), Truncated::Done(1));
    let names = |house: &mut House, client| -> Vec<WritePointer> {
        invalid(house, client).into_iter().filter(|(_, count)| *count == 1).map(|(tx, _)| tx).collect()
    };
    assert_eq!(names(&mut house, client), all[3..]);
    drop(house);
    let mut house = machine.start();
    let client = house.connect(7);
    assert_eq!(names(&mut house, client), all[3..]);
    assert_eq!(house.state(client).open, 0);
}
