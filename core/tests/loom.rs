//! Models of the decided state: loom runs the shipped code through every interleaving up to a number of preemptions,
//! and through every value that the memory model lets a load see. Each model names what nobody may ever see, and which
//! outcomes have to turn up, so that a model that explores nothing fails too. Two faults planted on purpose show that
//! the models look where it matters.
//!
//! Run by `cargo loom`; nothing of this is compiled otherwise.
#![cfg(loom)]

mod house;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use house::{House, NOW, begin, commit, writes};
use loom::thread;
use seriatim_core::event::Event;
use seriatim_core::*;

const FIRST: u64 = 999_997;

/// One run of a model: how it came out, or what was seen that nobody may see. A run does not panic: loom's objects do
/// not survive an unwinding.
type Seen = Result<&'static str, String>;

/// Runs a model through its interleavings; how often each outcome was seen.
fn explore(preemptions: usize, run: impl Fn() -> Seen + Sync + Send + 'static) -> BTreeMap<Seen, usize> {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    let seen = Arc::new(Mutex::new(BTreeMap::new()));
    builder.check({
        let seen = seen.clone();
        move || {
            let outcome = run();
            *seen.lock().unwrap().entry(outcome).or_default() += 1;
        }
    });
    let seen = seen.lock().unwrap().clone();
    println!("{} interleavings: {seen:?}", seen.values().sum::<usize>());
    seen
}

/// Nothing but these outcomes is seen, and each of them is.
fn model(preemptions: usize, outcomes: &[&'static str], run: impl Fn() -> Seen + Sync + Send + 'static) {
    let seen: Vec<Seen> = explore(preemptions, run).into_keys().collect();
    let expected: Vec<Seen> = outcomes.iter().map(|outcome| Ok(*outcome)).collect();
    assert_eq!(seen, expected);
}

/// The model fails, and for this reason.
fn model_fails(preemptions: usize, reason: &str, run: impl Fn() -> Seen + Sync + Send + 'static) {
    let seen = explore(preemptions, run);
    let faults: Vec<&String> = seen.keys().filter_map(|outcome| outcome.as_ref().err()).collect();
    assert!(!faults.is_empty(), "the model did not find the fault");
    assert!(faults.iter().all(|fault| fault.contains(reason)), "found for another reason: {faults:?}");
}

fn claim(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

fn limits() -> Limits {
    Limits { open_max: 4, conflict_index_bytes: 64, event_ring_slots: 8, winners: 4, ..Limits::default() }
}

/// Pointers start just below the first millisecond, so that a tick jumps over few of them.
fn house(limits: Limits) -> (Arc<Sequencer>, House) {
    house::house(limits, FIRST, 3_000_000)
}

/// Nothing is excluded but what was handed out, which is known to be at most these.
fn phantom_beside(house: &mut House, handed_out: &[u64]) -> Result<(), String> {
    let snapshot = house.published.next_snapshot();
    match snapshot.in_progress.iter().find(|pointer| !handed_out.contains(&pointer.0)) {
        Some(phantom) => Err(format!("phantom {phantom} in progress")),
        None => Ok(()),
    }
}

fn every_number_has_its_commit(house: &House) -> Result<(), String> {
    let (published, decided) = (house.published.csn(), house.publisher.sequencer().decided_csn());
    claim(published == decided, || format!("{decided} commits were decided and {published} published"))
}

fn begin_against_publish(begin: fn(&Sequencer) -> Begun) -> impl Fn() -> Seen {
    move || {
        let (sequencer, mut house) = house(limits());
        let beginner = thread::spawn({
            let sequencer = sequencer.clone();
            move || begin(&sequencer)
        });
        sequencer.timestamps(1).unwrap();
        house.publish();
        let begun = beginner.join().unwrap();
        let (write, read) = (begun.first, begun.snapshot.read_pointer);
        claim(write > read, || format!("write pointer {write} is not above its read pointer {read}"))?;
        Ok(if read.0 == 0 { "began on the older snapshot" } else { "began on the newer snapshot" })
    }
}

/// Never: a transaction whose write pointer is at or below the read pointer of its own snapshot.
#[test]
fn a_write_pointer_is_above_its_read_pointer() {
    let outcomes = ["began on the newer snapshot", "began on the older snapshot"];
    model(2, &outcomes, begin_against_publish(begin));
}

#[test]
fn fault_add_before_load_is_found() {
    let faulty = |sequencer: &Sequencer| sequencer.begin_add_before_load(NOW, &BeginOptions::default(), 1, 0).unwrap();
    model_fails(2, "is not above its read pointer", begin_against_publish(faulty));
}

/// Begins and commits; the pointer.
fn begin_and_commit(sequencer: &Sequencer) -> WritePointer {
    let begun = begin(sequencer);
    assert!(matches!(commit(sequencer, begun.first, &[]), Decision::Committed { csn: CommitNumber(1), .. }));
    begun.first
}

/// Never: a finished pointer beyond the ranges that were written down, which would make pointers that nobody has look
/// in progress.
#[test]
fn a_tick_leaves_no_phantom() {
    model(3, &["began after the tick", "began before the tick"], || {
        let (sequencer, mut house) = house(limits());
        let client = thread::spawn(move || begin_and_commit(&sequencer));
        house.tick(1);
        house.publish();
        phantom_beside(&mut house, &[FIRST, 1_000_000])?;
        let tx = client.join().unwrap();
        house.publish();
        phantom_beside(&mut house, &[])?;
        claim(house.published.read_pointer() == tx, || format!("{tx} committed and is not visible"))?;
        Ok(if tx.0 == FIRST { "began before the tick" } else { "began after the tick" })
    });
}

#[test]
fn fault_separate_ticker_is_found() {
    model_fails(2, "phantom", || {
        let (sequencer, mut house) = house(limits());
        let written = Arc::new(loom::sync::Mutex::new(None));
        let ticker = thread::spawn({
            let (sequencer, written) = (sequencer.clone(), written.clone());
            move || {
                let tick = sequencer.tick_apart(1);
                *written.lock().unwrap() = tick;
            }
        });
        let client = thread::spawn(move || begin_and_commit(&sequencer));
        if let Some(tick) = written.lock().unwrap().take() {
            house.apply(tick);
        }
        house.publish();
        let found = phantom_beside(&mut house, &[FIRST, 1_000_000]);
        ticker.join().unwrap();
        client.join().unwrap();
        found.map(|()| "no phantom")
    });
}

fn against_commit(end: fn(&Sequencer, WritePointer) -> End) -> impl Fn() -> Seen {
    move || {
        let (sequencer, mut house) = house(limits());
        let tx = begin(&sequencer).first;
        let committer = thread::spawn({
            let sequencer = sequencer.clone();
            move || commit(&sequencer, tx, &[7])
        });
        let ended = end(&sequencer, tx);
        let decision = committer.join().unwrap();
        let (seen, ticket, winner) = match (decision, ended) {
            (Decision::Committed { ticket, .. }, End::Ending { ticket: seen }) => (seen, ticket, "the commit"),
            (Decision::Ending { ticket: seen }, End::Ended { ticket, .. }) => (seen, ticket, "the other end"),
            both => return Err(format!("two ends or none: {both:?}")),
        };
        claim(seen == ticket, || format!("the loser was told {seen:?} of {ticket:?}"))?;
        house.publish();
        claim(house.ends.len() == 1, || format!("ends: {:?}", house.ends))?;
        every_number_has_its_commit(&house)?;
        claim(sequencer.open_len() == 0, || "an entry is left".into())?;
        Ok(winner)
    }
}

/// Never: two ends, no end, or a commit number without its commit.
#[test]
fn commit_and_expiry_have_one_winner() {
    let expire = |sequencer: &Sequencer, tx| sequencer.invalidate(tx, InvalidCause::Expired);
    model(3, &["the commit", "the other end"], against_commit(expire));
}

#[test]
fn commit_and_abort_have_one_winner() {
    model(3, &["the commit", "the other end"], against_commit(|sequencer, tx| sequencer.abort(tx)));
}

/// A checkpoint against the end of its transaction: `end` answers true if it was the end.
fn against_checkpoint(end: fn(&Sequencer, WritePointer) -> bool) -> impl Fn() -> Seen {
    move || {
        let (sequencer, mut house) = house(limits());
        let tx = begin(&sequencer).first;
        let taker = thread::spawn({
            let sequencer = sequencer.clone();
            move || sequencer.checkpoint(NOW, tx, 1)
        });
        let ended = end(&sequencer, tx);
        let taken = taker.join().unwrap();
        // Panics if the checkpoint follows the end.
        house.publish();
        if !ended {
            claim(matches!(taken, Checkpointing::Taken { .. }), || format!("neither: {taken:?}"))?;
            claim(matches!(sequencer.abort(tx), End::Ended { .. }), || "it has not ended".into())?;
            house.publish();
        }
        phantom_beside(&mut house, &[])?;
        claim(sequencer.open_len() == 0, || "an entry is left".into())?;
        match taken {
            Checkpointing::Taken { .. } if ended => Ok("the checkpoint, then the end"),
            Checkpointing::Taken { .. } => Ok("the checkpoint, and the end was refused"),
            Checkpointing::Ending { .. } => Ok("the end"),
            other => Err(format!("{other:?}")),
        }
    }
}

/// Never: a checkpoint in the log behind the end of its transaction, or one that stays in progress after it.
#[test]
fn checkpoint_and_abort_have_one_order() {
    let end = |sequencer: &Sequencer, tx| matches!(sequencer.abort(tx), End::Ended { .. });
    model(3, &["the checkpoint, then the end", "the end"], against_checkpoint(end));
}

/// Never: a commit that does not know of a checkpoint that was taken before it.
#[test]
fn a_commit_counts_the_checkpoints_before_it() {
    let end = |sequencer: &Sequencer, tx| matches!(commit(sequencer, tx, &[7]), Decision::Committed { .. });
    model(3, &["the checkpoint, and the end was refused", "the end"], against_checkpoint(end));
}

/// Never: a commit of a set that another check has replaced, or a checked set that outlives its transaction.
#[test]
fn a_commit_in_two_steps_takes_the_set_that_it_names() {
    model(3, &["committed what it named", "was asked for its changes"], || {
        let (sequencer, mut house) = house(limits());
        let (tx, rival) = (begin(&sequencer).first, begin(&sequencer).first);
        let check =
            |sequencer: &Sequencer, ids: &[u64]| sequencer.can_commit(NOW, tx, &writes(ids), &mut Scratch::new());
        assert!(matches!(check(&sequencer, &[1]), Advice::Passes { .. }));
        let other = thread::spawn({
            let sequencer = sequencer.clone();
            move || sequencer.can_commit(NOW, tx, &writes(&[2]), &mut Scratch::new())
        });
        let named = Submission { changes: Changes::Checked(writes(&[1]).digest()), checkpoints: 0 };
        let decision = sequencer.commit(NOW, tx, named, &mut Scratch::new());
        let advice = other.join().unwrap();
        house.publish();
        match (decision, advice) {
            (Decision::Committed { .. }, Advice::Passes { .. } | Advice::Ending { .. } | Advice::Unknown) => {
                claim(sequencer.pending_len() == 0, || "a set was left behind".into())?;
                let free = commit(&sequencer, rival, &[2]);
                claim(matches!(free, Decision::Committed { .. }), || format!("took what it did not name: {free:?}"))?;
                Ok("committed what it named")
            }
            (Decision::Denied(CommitError::NeedChanges { .. }), Advice::Passes { .. }) => {
                claim(sequencer.pending_len() == 1, || "the second set is gone".into())?;
                Ok("was asked for its changes")
            }
            both => Err(format!("{both:?}")),
        }
    });
}

/// Two transactions on one snapshot commit these ids at the same time; exactly one of them wins.
fn two_commits(before: &[u64], first: &'static [u64], second: &'static [u64]) -> Seen {
    let (sequencer, mut house) = house(limits());
    for id in before {
        let tx = begin(&sequencer).first;
        assert!(matches!(commit(&sequencer, tx, &[*id]), Decision::Committed { .. }));
        house.publish();
    }
    let (a, b) = (begin(&sequencer).first, begin(&sequencer).first);
    house.publish();
    let other = thread::spawn({
        let sequencer = sequencer.clone();
        move || commit(&sequencer, b, second)
    });
    let first = commit(&sequencer, a, first);
    let second = other.join().unwrap();
    house.publish();
    every_number_has_its_commit(&house)?;
    let named = |decision: &Decision| match decision {
        Decision::Refused { error: CommitError::Conflict { winner, .. }, .. } => *winner,
        _ => None,
    };
    match (first, second) {
        (Decision::Committed { .. }, lost) if named(&lost) == Some(a) => Ok("the first"),
        (lost, Decision::Committed { .. }) if named(&lost) == Some(b) => Ok("the second"),
        both => Err(format!("not one winner, or not named: {both:?}")),
    }
}

/// Never: two commits of one id on one snapshot, or none.
#[test]
fn of_two_commits_with_a_common_id_one_wins() {
    model(3, &["the first", "the second"], || two_commits(&[], &[1, 2], &[2, 3]));
}

/// Never: two cells for one id, because each of two commits put it in the place of another one.
#[test]
fn of_two_commits_of_one_new_id_into_a_full_bucket_one_wins() {
    model(3, &["the first", "the second"], || two_commits(&[1, 2, 3, 4], &[5], &[5]));
}

/// Never: an event that is lost, doubled, torn or out of order, in a ring that wraps.
#[test]
fn a_slot_has_one_owner() {
    model(2, &["three events", "two events"], || {
        let (sequencer, mut house) = house(Limits { event_ring_slots: 2, ..limits() });
        let take = |sequencer: &Sequencer, count| {
            let taken = sequencer.timestamps(count).ok()?;
            Some((taken.1, taken.0, u64::from(count)))
        };
        let takers = [1, 2].map(|count| {
            let sequencer = sequencer.clone();
            thread::spawn(move || take(&sequencer, count))
        });
        let mut drained = Vec::new();
        let drain = |house: &mut House, drained: &mut Vec<_>| {
            house.publisher.drain(usize::MAX, |ticket, event| {
                if let Event::Finished { first, count } = event {
                    drained.push((ticket, first, count));
                }
            });
        };
        let mut told = Vec::from_iter(take(&sequencer, 4));
        drain(&mut house, &mut drained);
        told.extend(takers.into_iter().filter_map(|taker| taker.join().unwrap()));
        drain(&mut house, &mut drained);
        told.sort();
        claim(drained == told, || format!("drained {drained:?} of {told:?}"))?;
        claim(told.iter().map(|(ticket, ..)| ticket.0).eq(0..told.len() as u64), || format!("a hole in {told:?}"))?;
        Ok(["no event", "one event", "two events", "three events"][told.len()])
    });
}

/// Never: an end that hits the transaction that got the entry of an ended one.
#[test]
fn a_late_end_does_not_meet_the_next_transaction() {
    model(3, &["ending", "unknown"], || {
        let (sequencer, mut house) = house(Limits { open_max: 1, ..limits() });
        let tx = begin(&sequencer).first;
        assert!(matches!(commit(&sequencer, tx, &[]), Decision::Committed { .. }));
        let late = thread::spawn({
            let sequencer = sequencer.clone();
            move || sequencer.abort(tx)
        });
        house.publish();
        let next = begin(&sequencer).first;
        let late = late.join().unwrap();
        let status = sequencer.look(next);
        claim(status == Some(Status::Open), || format!("the next one is {status:?}"))?;
        match late {
            End::Unknown => Ok("unknown"),
            End::Ending { ticket: Ticket(1) } => Ok("ending"),
            other => Err(format!("a late end was told {other:?}")),
        }
    });
}

/// Never: a bound beyond what a begin that is not published may still read.
#[test]
fn the_floor_stays_below_begins_on_their_way() {
    let outcomes = [
        "began on the newer snapshot, the floor moved",
        "began on the newer snapshot, the floor stayed",
        "began on the older snapshot and is published, the floor moved",
        "began on the older snapshot, the floor stayed",
    ];
    model(2, &outcomes, || {
        let (sequencer, mut house) = house(limits());
        let beginner = thread::spawn({
            let sequencer = sequencer.clone();
            move || begin(&sequencer)
        });
        sequencer.timestamps(1).unwrap();
        let published = house.publish().last().map(|(ticket, _)| *ticket);
        let floor = house.publisher.settled_floor(published);
        let begun = beginner.join().unwrap();
        let settled = begun.snapshot.settled();
        let is_published = published.is_some_and(|published| begun.ticket <= published);
        match (settled.0 == 0, floor.0 > 0) {
            (false, true) => Ok("began on the newer snapshot, the floor moved"),
            (false, false) => Ok("began on the newer snapshot, the floor stayed"),
            (true, true) if is_published => Ok("began on the older snapshot and is published, the floor moved"),
            (true, true) => Err(format!("the floor {floor} passed a begin on its way at {settled}")),
            (true, false) => Ok("began on the older snapshot, the floor stayed"),
        }
    });
}
