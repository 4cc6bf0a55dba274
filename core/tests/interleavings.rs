//! The interleavings that break a naive sequencer, each told as a test.
#![cfg(not(loom))]

mod house;

use std::sync::Arc;
use std::thread;

use house::{House, NOW, Random, begin, commit, house, writes};
use seriatim_core::event::Event;
use seriatim_core::*;

const FIRST: u64 = 1_000;
const END: u64 = 2_000_000_000;

fn small() -> Limits {
    Limits { open_max: 8, conflict_index_bytes: 1 << 12, event_ring_slots: 64, winners: 16, ..Limits::default() }
}

fn started(limits: Limits) -> (Arc<Sequencer>, House) {
    house(limits, FIRST, END)
}

fn refusal(decision: Decision) -> CommitError {
    match decision {
        Decision::Refused { error, .. } => error,
        other => panic!("{other:?}"),
    }
}

fn csn(decision: Decision) -> u64 {
    match decision {
        Decision::Committed { csn, .. } => csn.0,
        other => panic!("{other:?}"),
    }
}

/// T begins while A's commit waits for the disk. Whatever T gets, it is above what T may read, so a store that orders
/// versions by pointer keeps T's write above A's.
#[test]
fn a_write_pointer_is_above_its_read_pointer_and_pointer_order_is_commit_order() {
    let (sequencer, mut house) = started(small());
    let a = begin(&sequencer);
    let early = begin(&sequencer);
    assert_eq!(csn(commit(&sequencer, a.first, &[7])), 1);
    let t = begin(&sequencer);
    assert_eq!(t.snapshot.csn, CommitNumber(0), "not published, so not visible");
    house.publish();
    let late = begin(&sequencer);
    assert_eq!(late.snapshot.csn, CommitNumber(1));
    for begun in [&a, &early, &t, &late] {
        assert!(begun.first > begun.snapshot.read_pointer);
        assert!(!begun.snapshot.in_progress.contains(begun.first), "nobody is excluded from its own snapshot");
    }
    // Who did not see A loses to A, whatever its pointer; who saw A has the greater pointer.
    for begun in [early, t] {
        let lost = CommitError::Conflict {
            tx: begun.first,
            change_id: 7,
            csn: CommitNumber(1),
            winner: Some(a.first),
            label: None,
        };
        assert_eq!(refusal(commit(&sequencer, begun.first, &[7])), lost);
    }
    assert_eq!(csn(commit(&sequencer, late.first, &[7])), 2);
    assert!(late.first > a.first);
}

/// The conflict check compares commit numbers with the snapshot's, never pointers: a commit that is decided and not
/// published may have the smaller pointer.
#[test]
fn a_commit_with_a_smaller_pointer_is_seen_by_the_check() {
    let (sequencer, mut house) = started(small());
    let older = begin(&sequencer);
    let younger = begin(&sequencer);
    assert!(older.first < younger.first);
    assert_eq!(csn(commit(&sequencer, older.first, &[1])), 1);
    assert!(matches!(refusal(commit(&sequencer, younger.first, &[1])), CommitError::Conflict { .. }));
    house.publish();
}

/// Pointers that never become transactions are finished, whatever refused them.
#[test]
fn a_million_refused_begins_leave_nothing_open() {
    let limits = Limits { open_max: 2, ..small() };
    let (sequencer, mut house) = house(limits, FIRST, FIRST + 10_000);
    let (a, b) = (begin(&sequencer), begin(&sequencer));
    let mut refused = 0u64;
    let mut ask = |options: &BeginOptions, count| {
        let error = sequencer.begin(NOW, options, count, 0).expect_err("there is no room");
        refused += 1;
        error
    };
    let options = BeginOptions::default();
    let zero = BeginOptions { timeout_ms: Some(0), ..options };
    for _ in 0..200_000 {
        assert_eq!(ask(&options, 1), BeginError::Overloaded(Full::OpenTransactions));
        assert_eq!(ask(&options, 0), BeginError::BlockSize { asked: 0, max: 1 << 20 });
        assert_eq!(ask(&zero, 1), BeginError::TimeoutNotPositive);
    }
    for tx in [a.first, b.first] {
        assert!(matches!(sequencer.abort(tx), End::Ended { status: Status::Aborted, .. }));
    }
    house.publish();
    // Now there are seats, and the window ends.
    assert!(sequencer.timestamps(9_998).is_ok());
    for turn in 0..400_000 {
        assert_eq!(ask(&options, 1 + turn % 2), BeginError::Overloaded(Full::Window));
        house.publish();
    }
    // And now there is a window, and the ring is full.
    house.publisher.set_window_end(WritePointer(END));
    while sequencer.timestamps(3).is_ok() {}
    for _ in 0..100_000 {
        assert_eq!(ask(&options, 1), BeginError::Overloaded(Full::EventRing));
    }
    assert_eq!(refused, 1_100_000);
    house.publish();
    assert_eq!(sequencer.open_len(), 0);
    let snapshot = sequencer.snapshot();
    assert_eq!((snapshot.excluded_len(), snapshot.in_progress.len()), (0, 0));
    assert_eq!(snapshot.read_pointer.0 + 1, house.publisher.next_pointer().0, "all that was handed out has ended");
}

/// A commit, its expiry and an abort from another connection, in every order: one end, and the losers are told to wait
/// for it.
#[test]
fn a_transaction_has_one_end_whoever_asks_first() {
    type Ask = fn(&Sequencer, WritePointer) -> Option<Ticket>;
    let commit: Ask = |sequencer, tx| match commit(sequencer, tx, &[1]) {
        Decision::Committed { .. } => None,
        Decision::Ending { ticket } => Some(ticket),
        other => panic!("{other:?}"),
    };
    let ended = |end| match end {
        End::Ended { .. } => None,
        End::Ending { ticket } => Some(ticket),
        other => panic!("{other:?}"),
    };
    let asks: [Ask; 3] = [
        commit,
        |sequencer, tx| match sequencer.invalidate(tx, InvalidCause::Expired) {
            End::Ending { ticket } => Some(ticket),
            _ => None,
        },
        |sequencer, tx| match sequencer.abort(tx) {
            End::Ending { ticket } => Some(ticket),
            _ => None,
        },
    ];
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let (sequencer, mut house) = started(small());
        let tx = begin(&sequencer).first;
        let told = order.map(|ask| asks[ask](&sequencer, tx));
        assert_eq!(told, [None, Some(Ticket(1)), Some(Ticket(1))], "{order:?}");
        assert_eq!(sequencer.look(tx), Some(Status::Deciding));
        house.publish();
        assert_eq!(house.ends.len(), 1);
        assert_eq!(sequencer.decided_csn().0, u64::from(order[0] == 0));
        assert_eq!(ended(sequencer.abort(begin(&sequencer).first)), None);
        assert_eq!(sequencer.abort(tx), End::Unknown);
        let expected = [Status::Committed(CommitNumber(1)), Status::Invalid(InvalidCause::Expired), Status::Aborted];
        assert_eq!(house.published.status(tx), expected[order[0]]);
    }
}

/// The deadline is checked when the commit takes hold of its transaction, and passing it is an end like others.
#[test]
fn a_commit_at_its_deadline_is_refused_and_the_transaction_invalid() {
    let (sequencer, mut house) = started(small());
    let (a, b) = (begin(&sequencer), begin(&sequencer));
    let mut scratch = Scratch::new();
    let just_before = SequencerTime(a.deadline.0 - 1);
    assert!(matches!(
        sequencer.commit(just_before, a.first, &writes(&[1]), &mut scratch),
        Decision::Committed { csn: CommitNumber(1), .. }
    ));
    let expired = sequencer.commit(b.deadline, b.first, &writes(&[2]), &mut scratch);
    assert_eq!(refusal(expired), CommitError::Expired { tx: b.first });
    house.publish();
    assert_eq!(house.published.status(b.first), Status::Invalid(InvalidCause::Expired));
    assert_eq!(sequencer.decided_csn(), CommitNumber(1), "an expiry takes no commit number");
}

/// A refusal is an end of sorts: it comes after its winner in the log, and the transaction may then only end.
#[test]
fn a_refusal_follows_its_winner_and_lasts() {
    let (sequencer, mut house) = started(small());
    let (a, b) = (begin(&sequencer).first, begin(&sequencer).first);
    let Decision::Committed { ticket: won, .. } = commit(&sequencer, a, &[1]) else { panic!() };
    let Decision::Refused { ticket: lost, .. } = commit(&sequencer, b, &[1]) else { panic!() };
    assert!(won < lost);
    assert_eq!(sequencer.look(b), Some(Status::Refused));
    let again = Decision::Refused { error: CommitError::NotInProgress { tx: b, ended: Status::Refused }, ticket: lost };
    assert_eq!(commit(&sequencer, b, &[2]), again, "even for other ids, and no sooner than the first refusal");
    house.publish();
    assert_eq!(house.published.status(b), Status::Refused);
    assert!(matches!(sequencer.abort(b), End::Ended { status: Status::Aborted, .. }));
    house.publish();
    assert_eq!(sequencer.open_len(), 0);
}

/// Threads begin and commit for each other, so a commit's thread is not its begin's. In the order of the ring every
/// begin precedes its commit and commit numbers ascend without a hole.
#[test]
fn the_log_holds_begins_before_commits_and_commits_in_their_order() {
    const THREADS: u64 = 3;
    const ROUNDS: u64 = 4_000;
    let limits = Limits { open_max: 1 << 10, event_ring_slots: 256, conflict_index_bytes: 64 << 20, ..small() };
    let (sequencer, mut house) = house(limits, FIRST, END);
    let (sender, receiver) = std::sync::mpsc::channel::<WritePointer>();
    let receiver = Arc::new(std::sync::Mutex::new(receiver));
    let workers: Vec<_> = (0..THREADS)
        .map(|seed| {
            let (sequencer, sender, receiver) = (sequencer.clone(), sender.clone(), receiver.clone());
            thread::spawn(move || {
                let mut random = Random::new(seed + 1);
                let mut told = Vec::new();
                let mut left = ROUNDS;
                while left > 0 {
                    if let Ok(begun) = sequencer.begin(NOW, &BeginOptions::default(), 1, seed) {
                        sender.send(begun.first).unwrap();
                        left -= 1;
                    }
                    let taken = receiver.lock().unwrap().try_recv();
                    if let Ok(tx) = taken {
                        match commit(&sequencer, tx, &[random.below(1 << 40)]) {
                            Decision::Committed { csn, ticket } => told.push((ticket, tx, csn)),
                            Decision::Denied(CommitError::Overloaded(Full::EventRing)) => sender.send(tx).unwrap(),
                            other => panic!("{other:?}"),
                        }
                    }
                }
                told
            })
        })
        .collect();
    let mut events = Vec::new();
    while workers.iter().any(|worker| !worker.is_finished()) {
        events.extend(house.publish());
        thread::yield_now();
    }
    events.extend(house.publish());
    assert!(events.iter().map(|(ticket, _)| ticket.0).eq(0..events.len() as u64), "no ticket is missing or twice");
    let commits = events.iter().filter_map(|(ticket, event)| match event {
        Event::Commit { tx, .. } => Some((*ticket, *tx)),
        _ => None,
    });
    let drained: Vec<_> = commits.zip(1..).map(|((ticket, tx), csn)| (ticket, tx, CommitNumber(csn))).collect();
    let mut told: Vec<_> = workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect();
    told.sort();
    assert_eq!(drained, told, "the n-th commit in the log has number n");
    // `House::apply` refuses a commit whose begin did not come before, so every begin did.
}

/// A full bucket and an id that it does not hold: two transactions bring it, and one of them gets it. A refused commit
/// has changed nothing.
#[test]
fn two_inserts_of_one_id_into_a_full_bucket_meet_and_a_refused_commit_restores_nothing() {
    let (sequencer, mut house) = started(Limits { conflict_index_bytes: 64, ..small() });
    for id in 1..=4 {
        let tx = begin(&sequencer).first;
        assert_eq!(csn(commit(&sequencer, tx, &[id])), id);
        house.publish();
    }
    let [a, b, c, d] = [(); 4].map(|()| begin(&sequencer).first);
    assert_eq!(csn(commit(&sequencer, a, &[50])), 5);
    // B would insert 60 and loses on 50: 60 must not be there after it, nor anything that was there be gone.
    assert!(matches!(refusal(commit(&sequencer, b, &[60, 50])), CommitError::Conflict { change_id: 50, .. }));
    assert_eq!(csn(commit(&sequencer, c, &[60])), 6, "what a refused commit wanted to write stands in nobody's way");
    assert!(matches!(refusal(commit(&sequencer, d, &[50])), CommitError::Conflict { change_id: 50, .. }));
    house.publish();
}

/// An index of two cells: nothing is committed that should not be, and whoever began after the mark goes on.
#[test]
fn a_full_index_refuses_who_is_too_old_and_nobody_else() {
    let (sequencer, mut house) = started(Limits { conflict_index_bytes: 128, ..small() });
    let old = begin(&sequencer).first;
    for n in 1..=20 {
        let tx = begin(&sequencer);
        assert_eq!(csn(commit(&sequencer, tx.first, &[2 * n])), n, "a transaction as young as the index goes on");
        house.publish();
    }
    let mark = CommitNumber(16);
    assert_eq!(
        refusal(commit(&sequencer, old, &[0])),
        CommitError::TooOld { tx: old, snapshot: CommitNumber(0), mark }
    );
    let young = begin(&sequencer).first;
    assert_eq!(csn(commit(&sequencer, young, &[0])), 21);
}

/// T1 reads what T2 writes and the other way round: serializable, so one of them is refused.
#[test]
fn reads_are_checked_as_writes_are() {
    let (sequencer, _house) = started(small());
    let (a, b) = (begin(&sequencer).first, begin(&sequencer).first);
    let changes = |writes: u64, reads: u64| ChangeSet {
        writes: [ChangeId(writes)].into_iter().collect(),
        reads: [ChangeId(reads)].into_iter().collect(),
        marks: ChangeIds::new(),
    };
    let mut scratch = Scratch::new();
    assert_eq!(csn(sequencer.commit(NOW, a, &changes(2, 1), &mut scratch)), 1);
    let lost = refusal(sequencer.commit(NOW, b, &changes(1, 2), &mut scratch));
    assert_eq!(lost, CommitError::Conflict { tx: b, change_id: 2, csn: CommitNumber(1), winner: Some(a), label: None });
}

/// Marks are stored and not checked: two writers of one range do not conflict, but with its reader they do.
#[test]
fn marks_are_for_those_who_read_them() {
    let (sequencer, _house) = started(small());
    let [a, b, reader] = [(); 3].map(|()| begin(&sequencer).first);
    let range = ChangeId(900);
    let write = |id: u64| ChangeSet { marks: [range].into_iter().collect(), ..writes(&[id]) };
    let mut scratch = Scratch::new();
    assert_eq!(csn(sequencer.commit(NOW, a, &write(1), &mut scratch)), 1);
    assert_eq!(csn(sequencer.commit(NOW, b, &write(2), &mut scratch)), 2);
    let read = ChangeSet { reads: [range].into_iter().collect(), ..ChangeSet::default() };
    let lost = refusal(sequencer.commit(NOW, reader, &read, &mut scratch));
    assert_eq!(
        lost,
        CommitError::Conflict { tx: reader, change_id: 900, csn: CommitNumber(2), winner: Some(b), label: None }
    );
}

/// Recovery replays commits into the index; what it could not see is below the floor.
#[test]
fn a_survivor_is_checked_against_what_recovery_replayed() {
    let limits = small();
    let mut history = History::new(&limits, CommitNumber(10));
    history.remember(CommitNumber(11), WritePointer(500), [ChangeId(7)]);
    let survivor = |tx, snapshot| OpenTransaction {
        tx: WritePointer(tx),
        kind: Kind::Short,
        deferred: false,
        detached: true,
        refused: false,
        checkpoints: 0,
        deadline: SequencerTime(10_000),
        snapshot: CommitNumber(snapshot),
        settled: WritePointer(1),
    };
    let from = Resume {
        next: WritePointer(FIRST),
        window_end: WritePointer(END),
        csn: CommitNumber(11),
        index_floor: CommitNumber(10),
        snapshot: Arc::default(),
        open: vec![
            survivor(601, 9),
            survivor(602, 10),
            survivor(603, 10),
            OpenTransaction { refused: true, ..survivor(604, 9) },
        ],
    };
    let (sequencer, _publisher) = resume_with(limits, from, history);
    let tx = WritePointer;
    let too_old = CommitError::TooOld { tx: tx(601), snapshot: CommitNumber(9), mark: CommitNumber(10) };
    assert_eq!(refusal(commit(&sequencer, tx(601), &[8])), too_old);
    let lost =
        CommitError::Conflict { tx: tx(602), change_id: 7, csn: CommitNumber(11), winner: Some(tx(500)), label: None };
    assert_eq!(refusal(commit(&sequencer, tx(602), &[7])), lost);
    assert_eq!(csn(commit(&sequencer, tx(603), &[8])), 12);
    let refused = CommitError::NotInProgress { tx: tx(604), ended: Status::Refused };
    assert_eq!(commit(&sequencer, tx(604), &[8]), Decision::Denied(refused));
    assert_eq!(sequencer.view(tx(604)).map(|view| (view.owner, view.detached)), Some((0, true)));
}

/// LONG transactions: no change set, an abort makes them invalid, and none begins when too many are invalid.
#[test]
fn a_long_transaction_commits_nothing_to_check_and_aborts_to_invalid() {
    let (sequencer, mut house) = started(small());
    let options = BeginOptions { kind: Kind::Long, timeout_ms: Some(0), ..BeginOptions::default() };
    let long = sequencer.begin(NOW, &options, 2, 0).unwrap();
    assert_eq!(long.deadline, SequencerTime::NEVER);
    let second = WritePointer(long.first.0 + 1);
    let denied = Decision::Denied(CommitError::LongWithChanges { tx: long.first });
    assert_eq!(commit(&sequencer, long.first, &[1]), denied);
    assert_eq!(sequencer.look(long.first), Some(Status::Open));
    assert_eq!(csn(commit(&sequencer, long.first, &[])), 1);
    let status = Status::Invalid(InvalidCause::LongAborted);
    assert!(matches!(sequencer.abort(second), End::Ended { status: ended, .. } if ended == status));
    house.publish();
    assert_eq!(house.published.status(second), status);
    house.publisher.refuse_long(true);
    assert_eq!(sequencer.begin(NOW, &options, 1, 0).unwrap_err(), BeginError::Overloaded(Full::Invalid));
    assert!(sequencer.begin(NOW, &BeginOptions::default(), 1, 0).is_ok());
}

/// A transaction takes as many checkpoints as may be, none more, and commits with all of them.
#[test]
fn checkpoints_are_bounded_and_the_last_of_them_commits() {
    let (sequencer, mut house) = started(small());
    let tx = begin(&sequencer).first;
    let mut last = tx;
    for number in 1..=CHECKPOINTS_MAX {
        match sequencer.checkpoint(NOW, tx, number) {
            Checkpointing::Taken { pointer, .. } => last = pointer,
            other => panic!("{number}: {other:?}"),
        }
        if number % 32 == 0 {
            house.publish();
        }
    }
    let full = CommitError::TooManyCheckpoints { tx, max: CHECKPOINTS_MAX };
    assert_eq!(sequencer.checkpoint(NOW, tx, CHECKPOINTS_MAX + 1), Checkpointing::Denied(full));
    let changes = writes(&[7]);
    let submission = Submission { checkpoints: CHECKPOINTS_MAX, changes: Changes::Given(&changes) };
    let decision = sequencer.commit(NOW, tx, submission, &mut Scratch::default());
    assert!(matches!(decision, Decision::Committed { .. }), "{decision:?}");
    house.publish();
    let snapshot = sequencer.snapshot();
    assert!(snapshot.is_visible(last) && snapshot.excluded_len() == 0);
}

/// A replaced snapshot counts for the bound until whoever began on it is published.
#[test]
fn the_floor_waits_for_begins_that_are_not_published() {
    let (sequencer, mut house) = started(small());
    let (_, ticket) = sequencer.timestamps(1).unwrap();
    let straggler = begin(&sequencer);
    assert_eq!(straggler.snapshot.settled(), WritePointer(0));
    house.publish_some(1);
    assert_eq!(sequencer.snapshot().settled(), WritePointer(FIRST));
    for _ in 0..10 {
        assert_eq!(house.publisher.settled_floor(Some(ticket)), WritePointer(0), "its begin is on its way");
    }
    house.publish();
    // Reclaiming takes some pins, and other tests of this process may hold one.
    while house.publisher.settled_floor(Some(straggler.ticket)) < WritePointer(FIRST) {
        thread::yield_now();
    }
}
