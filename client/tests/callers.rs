//! Many callers of one client, against a server that answers as it should.

mod fake;

use std::collections::BTreeSet;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use fake::{Fake, Seen, Verdict, until};
use seriatim_client::{Answer, BulkConnection, Client, ClientOptions, Error, Outcome};
use seriatim_core::*;
use seriatim_wire::*;

fn changes(key: &[u8]) -> ChangeSet {
    ChangeSet::of_writes([key])
}

fn connect(fake: &Fake) -> Client {
    Client::connect(fake.address(), ClientOptions::default()).unwrap()
}

#[test]
fn a_client_can_be_shared_among_threads() {
    fn shared<T: Send + Sync + 'static>() {}
    shared::<Client>();
    shared::<seriatim_client::Tx>();
    shared::<Error>();
}

#[test]
fn every_call_gets_its_own_answer() {
    for fake in [Fake::tcp(), Fake::unix()] {
        let client = connect(&fake);
        let one = client.begin(BeginOptions::default()).unwrap();
        let two = client.begin(BeginOptions::default()).unwrap();
        assert!(one.id() < two.id() && two.snapshot().in_progress.contains(one.id()));
        assert!(one.is_visible(one.id()) && !one.is_visible(two.id()) && !two.is_visible(one.id()));
        assert_eq!(client.status(one.id()).unwrap(), Status::Open);
        assert_eq!(one.commit(&changes(b"a")).unwrap(), CommitNumber(1));
        assert_eq!(client.status(one.id()).unwrap(), Status::Committed(CommitNumber(1)));
        assert!(client.snapshot().unwrap().is_visible(one.id()).unwrap());
        assert_eq!(client.snapshot().unwrap().csn(), CommitNumber(1));
        assert_eq!(two.abort().unwrap(), Status::Aborted);
        let three = client.begin(BeginOptions::default()).unwrap();
        assert!(three.invalidate().unwrap() && !client.invalidate(three.id()).unwrap());
        let four = client.begin(BeginOptions::default()).unwrap().leave_open();
        assert_eq!(client.settle(four).unwrap(), Status::Invalid(InvalidCause::Settled));
        let block = client.timestamps(10).unwrap();
        assert!(block.count == 10 && block.first > four);
        assert_eq!(client.state().unwrap().csn, CommitNumber(1));
        let page = client.list(ListRequest { kind: ListKind::Open, after: WritePointer(0), max: 10 }).unwrap();
        assert!(!page.more && page.entries.is_empty());
        assert!(client.reset(StoreId(7)).unwrap() > block.first);
        client.ping().unwrap();
        let again = one.commit(&changes(b"a")).unwrap_err();
        assert_eq!(again.outcome(), Outcome::Committed(CommitNumber(1)));
    }
}

#[test]
fn a_commit_acknowledged_to_one_is_visible_to_a_later_begin_of_another() {
    let fake = Fake::tcp();
    let client = connect(&fake);
    for _ in 0..50 {
        let tx = client.begin(BeginOptions::default()).unwrap();
        let pointer = tx.write_pointer();
        std::thread::scope(|scope| {
            // Others keep frames open and on their way all the time.
            scope.spawn(|| (0..5).for_each(|_| drop(client.begin(BeginOptions::default()).unwrap())));
            tx.commit(&changes(b"k")).unwrap();
            assert!(client.begin(BeginOptions::default()).unwrap().is_visible(pointer));
        });
    }
}

#[test]
fn callers_that_come_while_one_writes_share_the_next_frame() {
    const CALLERS: usize = 12;
    let fake = Fake::unix();
    let client = connect(&fake);
    let slow = client.begin(BeginOptions::default()).unwrap();
    let ready: Vec<_> = (0..3).map(|_| client.begin(BeginOptions::default()).unwrap()).collect();
    // The server does not read, and the change set is more than the socket holds: its writer is stuck on the way.
    fake.close_gate();
    let many = ChangeSet { writes: (0..CHANGE_IDS_MAX as u64).map(ChangeId).collect(), ..ChangeSet::default() };
    std::thread::scope(|scope| {
        scope.spawn(|| slow.commit(&many).unwrap());
        until("the long commit is under way", || client.in_flight() == 1);
        // One of these may still find the writer's role free or get into the long one's write; the rest cannot.
        let begins: Vec<_> =
            (0..CALLERS).map(|_| scope.spawn(|| client.begin(BeginOptions::default()).unwrap())).collect();
        let commits: Vec<_> = ready.iter().map(|tx| scope.spawn(|| tx.commit(&changes(b"x")).unwrap())).collect();
        until("all are waiting", || client.in_flight() == 1 + CALLERS + ready.len());
        fake.open_gate();
        let pointers: BTreeSet<WritePointer> =
            begins.into_iter().map(|begin| begin.join().unwrap().leave_open()).collect();
        let numbers: BTreeSet<CommitNumber> = commits.into_iter().map(|commit| commit.join().unwrap()).collect();
        assert_eq!((pointers.len(), numbers.len()), (CALLERS, ready.len()), "no two callers got the same answer");
    });
    let seen = fake.seen();
    let begins: Vec<u32> =
        seen.iter().filter_map(|s| if let Seen::Begin { count, .. } = s { Some(*count) } else { None }).collect();
    let commits: Vec<usize> =
        seen.iter().filter_map(|s| if let Seen::Commit(items) = s { Some(items.len()) } else { None }).collect();
    assert_eq!(begins[4..].iter().sum::<u32>(), CALLERS as u32);
    assert!(begins[4..].len() <= 2, "begins came in frames of {:?}", &begins[4..]);
    assert!(commits.len() <= 3, "commits came in frames of {commits:?}");
}

#[test]
fn begins_with_different_options_do_not_share() {
    let fake = Fake::tcp();
    let client = connect(&fake);
    let options = [
        BeginOptions::default(),
        BeginOptions { deferred: true, ..BeginOptions::default() },
        BeginOptions { kind: Kind::Long, timeout_ms: Some(0), detached: true, ..BeginOptions::default() },
    ];
    let transactions: Vec<_> = options.iter().map(|options| client.begin(*options).unwrap()).collect();
    assert!(transactions.iter().map(|tx| tx.options()).eq(options));
    let seen = fake.seen();
    for options in options {
        assert!(seen.iter().any(|s| matches!(s, Seen::Begin { options: sent, .. } if *sent == options)));
    }
    let error = transactions[2].commit(&changes(b"k")).unwrap_err();
    assert!(matches!(error, Error::Commit(CommitError::LongWithChanges { .. })));
    assert_eq!(error.outcome(), Outcome::Undecided);
    transactions[2].commit(&ChangeSet::default()).unwrap();
}

#[test]
fn a_crowd_of_callers_loses_nothing_and_mixes_nothing_up() {
    const CALLERS: usize = 16;
    const EACH: usize = 150;
    for fake in [Fake::tcp(), Fake::unix()] {
        let client = connect(&fake);
        let start = Barrier::new(CALLERS);
        let results: Vec<(WritePointer, CommitNumber)> = std::thread::scope(|scope| {
            let callers: Vec<_> = (0..CALLERS)
                .map(|caller| {
                    let (client, start) = (client.clone(), &start);
                    scope.spawn(move || {
                        start.wait();
                        (0..EACH)
                            .filter_map(|round| {
                                let tx = client.begin(BeginOptions::default()).unwrap();
                                if (caller + round) % 5 == 0 {
                                    assert_eq!(tx.abort().unwrap(), Status::Aborted);
                                    return None;
                                }
                                Some((tx.write_pointer(), tx.commit(&changes(b"k")).unwrap()))
                            })
                            .collect::<Vec<_>>()
                    })
                })
                .collect();
            callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
        });
        assert_eq!(results.len(), CALLERS * EACH * 4 / 5);
        for (pointer, csn) in results {
            assert_eq!(fake.status_of(pointer), Status::Committed(csn));
        }
        assert_eq!(client.in_flight(), 0);
        assert!(fake.sequencer.lock().unwrap().snapshot.in_progress.is_empty());
    }
}

/// With few callers there is often nobody to hand a role to, and whoever leaves too early leaves another waiting for
/// ever: the short time makes that an error.
#[test]
fn few_callers_never_wait_for_work_that_nobody_does() {
    for callers in 2..=4 {
        let fake = Fake::unix();
        let options = ClientOptions { request_timeout: Duration::from_secs(10), ..ClientOptions::default() };
        let client = Client::connect(fake.address(), options).unwrap();
        std::thread::scope(|scope| {
            for caller in 0..callers {
                let client = &client;
                scope.spawn(move || {
                    for round in 0..1_500 {
                        match (round + caller) % 4 {
                            0 => drop(client.begin(BeginOptions::default()).unwrap()),
                            1 => client.ping().unwrap(),
                            2 => assert_eq!(client.status(WritePointer(1)).unwrap(), Status::Forgotten),
                            _ => {
                                client.begin(BeginOptions::default()).unwrap().commit(&changes(b"k")).unwrap();
                            }
                        }
                    }
                });
            }
        });
        assert!(client.flush(Duration::from_secs(10)));
        assert_eq!(fake.sequencer.lock().unwrap().connections, 1);
    }
}

#[test]
fn one_callers_time_is_over_and_the_others_go_on() {
    let fake = Fake::with(|_, request, _, _| match request {
        // The first status never gets an answer, everything else does.
        Request::Status(_) => Verdict::Done,
        _ => Verdict::Serve,
    });
    let options = ClientOptions { request_timeout: Duration::from_millis(200), ..ClientOptions::default() };
    let client = Client::connect(fake.address(), options).unwrap();
    std::thread::scope(|scope| {
        let lost = scope.spawn(|| client.status(WritePointer(1)));
        // Answers keep coming meanwhile, so the connection is not taken for dead.
        while !lost.is_finished() {
            client.ping().unwrap();
        }
        let error = lost.join().unwrap().unwrap_err();
        assert!(matches!(error, Error::TimedOut { sent: true, .. }), "{error:?}");
    });
    client.ping().unwrap();
    assert_eq!(fake.sequencer.lock().unwrap().connections, 1);
}

#[test]
fn what_waits_is_bounded() {
    let fake = Fake::tcp();
    let client = Client::connect(fake.address(), ClientOptions { calls_max: 2, ..ClientOptions::default() }).unwrap();
    fake.close_gate();
    std::thread::scope(|scope| {
        let waiting = [scope.spawn(|| client.ping()), scope.spawn(|| client.ping())];
        until("two wait", || client.in_flight() == 2);
        assert!(matches!(client.begin(BeginOptions::default()), Err(Error::QueueFull { max: 2 })));
        fake.open_gate();
        waiting.into_iter().for_each(|caller| caller.join().unwrap().unwrap());
    });
    client.ping().unwrap();
}

#[test]
fn a_snapshot_is_not_read_through_past_its_time() {
    let fake = Fake::with(|_, _, _, _| Verdict::Serve);
    fake.sequencer.lock().unwrap().hello.limits.snapshot_age_ms = 0;
    let snapshot = connect(&fake).snapshot().unwrap();
    until("its time is over", || snapshot.get().is_err());
    let error = snapshot.is_visible(WritePointer(1)).unwrap_err();
    assert!(matches!(error, Error::SnapshotTooOld { max: Duration::ZERO, .. }) && error.is_retryable());
}

#[test]
fn a_refusal_reaches_only_the_one_who_is_refused() {
    let refused = Arc::new(std::sync::Mutex::new(WritePointer(0)));
    let loser = Arc::clone(&refused);
    let fake = Fake::with(move |sequencer, request, id, out| {
        let Request::Commit(items) = request else { return Verdict::Serve };
        let outcomes: Vec<_> = items
            .clone()
            .map(|item| match item.tx {
                tx if tx == *loser.lock().unwrap() => {
                    sequencer.status.insert(tx, Status::Refused);
                    Err(CommitError::Conflict { tx, change_id: 3, csn: CommitNumber(1), winner: None, label: None })
                }
                tx => sequencer.commit(tx),
            })
            .collect();
        reply::commit(out, id, outcomes);
        Verdict::Done
    });
    let client = connect(&fake);
    let (winner, loser) =
        (client.begin(BeginOptions::default()).unwrap(), client.begin(BeginOptions::default()).unwrap());
    *refused.lock().unwrap() = loser.id();
    winner.commit(&changes(b"k")).unwrap();
    let error = loser.commit(&changes(b"k")).unwrap_err();
    assert!(matches!(error, Error::Commit(CommitError::Conflict { change_id: 3, .. })), "{error:?}");
    assert!(error.is_retryable() && error.outcome() == Outcome::NotCommitted);
    assert_eq!(loser.abort().unwrap(), Status::Aborted);
}

#[test]
fn a_server_that_knows_less_says_so_and_the_connection_stays() {
    let fake = Fake::with(|_, request, id, out| match request {
        Request::List(_) => {
            reply::error(out, id, &ErrorReply { asked: 11, ..ErrorReply::new(ErrorCode::UnknownOp, "op 11") });
            Verdict::Done
        }
        Request::Begin(_) => {
            reply::begin_refused(out, id, &BeginError::Overloaded(Full::OpenTransactions));
            Verdict::Done
        }
        _ => Verdict::Serve,
    });
    let client = connect(&fake);
    let list = ListRequest { kind: ListKind::Open, after: WritePointer(0), max: 1 };
    match client.list(list).unwrap_err() {
        Error::Server(error) => assert_eq!((error.code, error.asked), (ErrorCode::UnknownOp, 11)),
        other => panic!("{other:?}"),
    }
    let error = client.begin(BeginOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Begin(BeginError::Overloaded(Full::OpenTransactions))) && error.is_retryable());
    client.ping().unwrap();
    assert_eq!(fake.sequencer.lock().unwrap().connections, 1);
}

#[test]
fn a_bulk_connection_keeps_many_requests_under_way() {
    let fake = Fake::unix();
    let mut bulk = BulkConnection::connect(fake.address(), &ClientOptions::default()).unwrap();
    let mut committed = 0;
    for _ in 0..4 {
        bulk.session().begin(BeginOptions::default(), 64);
        bulk.send().unwrap();
    }
    while committed < 4 * 64 {
        let mut begun_block = None;
        match bulk.next_answer().unwrap() {
            (_, Answer::Begun(Ok(begun))) => begun_block = Some(begun.block),
            (_, Answer::Committed(outcomes)) => {
                committed += outcomes.inspect(|outcome| assert!(outcome.is_ok())).count()
            }
            other => panic!("{other:?}"),
        }
        for tx in begun_block.into_iter().flat_map(Block::iter) {
            bulk.session().commit(tx, &changes(b"k")).unwrap();
        }
    }
    assert!(bulk.take_answer().unwrap().is_none());
    let frames = fake.seen().iter().filter(|s| matches!(s, Seen::Commit(_))).count();
    assert!(frames <= 4, "256 commits came in {frames} frames");
    let client = connect(&fake);
    let other = client.bulk_connection().unwrap();
    assert_eq!(other.hello().store, client.hello().store);
}
