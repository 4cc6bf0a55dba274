//! Lost connections, lost answers, lost servers: what a caller is told is true.

mod fake;

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use fake::{Fake, Seen, Sequencer, Verdict};
use seriatim_client::{Cause, Client, ClientOptions, Error, Outcome, ProtocolError};
use seriatim_core::*;
use seriatim_wire::*;

const SHORT: BeginOptions = BeginOptions { kind: Kind::Short, timeout_ms: None, deferred: false, detached: false };

fn changes() -> ChangeSet {
    ChangeSet::of_writes([b"k".as_slice()])
}

fn connect(fake: &Fake) -> Client {
    Client::connect(fake.address(), ClientOptions::default()).unwrap()
}

/// Does `what` with the first `times` requests that `of` picks.
fn first(
    times: u32,
    of: fn(&Request<'_>) -> bool,
    mut what: impl FnMut(&mut Sequencer, &Request<'_>) -> Verdict + Send + 'static,
) -> impl FnMut(&mut Sequencer, &Request<'_>, u64, &mut Vec<u8>) -> Verdict + Send + 'static {
    let left = AtomicU32::new(times);
    move |sequencer, request, _, _| {
        if of(request) && left.load(Ordering::SeqCst) > 0 {
            left.fetch_sub(1, Ordering::SeqCst);
            return what(sequencer, request);
        }
        Verdict::Serve
    }
}

fn is_commit(request: &Request<'_>) -> bool {
    matches!(request, Request::Commit(_))
}

fn hellos(fake: &Fake) -> Vec<u64> {
    fake.seen().iter().filter_map(|s| if let Seen::Hello { session } = s { Some(*session) } else { None }).collect()
}

#[test]
fn a_commit_whose_answer_was_lost_is_known_to_have_committed() {
    let fake = Fake::with(first(1, is_commit, |_, _| Verdict::ServeAndClose));
    let client = connect(&fake);
    let tx = client.begin(SHORT).unwrap();
    assert_eq!(tx.commit(&changes()).unwrap(), CommitNumber(1));
    assert_eq!(fake.status_of(tx.id()), Status::Committed(CommitNumber(1)));
    let hellos = hellos(&fake);
    assert!(hellos.len() == 2 && hellos[0] == hellos[1], "the same session comes back: {hellos:?}");
}

#[test]
fn a_commit_that_was_lost_on_its_way_commits_on_the_next_connection() {
    let fake = Fake::with(first(3, is_commit, |_, _| Verdict::Close));
    let client = connect(&fake);
    let tx = client.begin(SHORT).unwrap();
    assert_eq!(tx.commit(&changes()).unwrap(), CommitNumber(1));
    assert_eq!(hellos(&fake).len(), 4);
}

#[test]
fn a_commit_that_ended_otherwise_while_its_answer_was_lost_is_definitely_refused() {
    for ended in [Status::Refused, Status::Aborted, Status::Invalid(InvalidCause::Disconnected)] {
        let fake = Fake::with(first(1, is_commit, move |sequencer, request| {
            let Request::Commit(items) = request else { unreachable!() };
            sequencer.status.extend(items.clone().map(|item| (item.tx, ended)));
            Verdict::Close
        }));
        let client = connect(&fake);
        let tx = client.begin(SHORT).unwrap();
        let error = tx.commit(&changes()).unwrap_err();
        assert!(matches!(error, Error::NotCommitted { ended: how, .. } if how == ended), "{error:?}");
        assert!(error.outcome() == Outcome::NotCommitted && error.is_retryable());
    }
}

#[test]
fn a_doubt_that_the_repeated_commit_does_not_end_is_settled() {
    // Lost, then the server is full: the first frame may still be on its way, so only settling tells.
    let commits = AtomicU32::new(0);
    let fake = Fake::with(move |_, request, id, out| match request {
        Request::Commit(_) if commits.fetch_add(1, Ordering::SeqCst) == 0 => Verdict::Close,
        Request::Commit(_) => {
            reply::commit(out, id, [Err(CommitError::Overloaded(Full::EventRing))]);
            Verdict::Done
        }
        _ => Verdict::Serve,
    });
    let client = connect(&fake);
    let tx = client.begin(SHORT).unwrap();
    let error = tx.commit(&changes()).unwrap_err();
    let settled = Status::Invalid(InvalidCause::Settled);
    assert!(matches!(error, Error::NotCommitted { ended, .. } if ended == settled), "{error:?}");
    assert_eq!(fake.status_of(tx.id()), settled);
    assert!(fake.seen().contains(&Seen::Settle(vec![tx.id()])));
}

#[test]
fn a_first_commit_that_meets_a_full_server_decides_nothing() {
    let fake = Fake::with(|_, request, id, out| match request {
        Request::Commit(_) => {
            reply::commit(out, id, [Err(CommitError::Overloaded(Full::EventRing))]);
            Verdict::Done
        }
        _ => Verdict::Serve,
    });
    let client = connect(&fake);
    let tx = client.begin(SHORT).unwrap();
    let error = tx.commit(&changes()).unwrap_err();
    assert!(error.outcome() == Outcome::Undecided && error.is_retryable());
    assert!(!fake.seen().iter().any(|s| matches!(s, Seen::Settle(_))));
}

#[test]
fn an_ended_transaction_of_which_the_server_has_forgotten_the_end_stays_unknown() {
    let fake = Fake::with(first(1, is_commit, |sequencer, _| {
        sequencer.status.clear();
        Verdict::Close
    }));
    let client = connect(&fake);
    let tx = client.begin(SHORT).unwrap();
    let error = tx.commit(&changes()).unwrap_err();
    assert!(matches!(error, Error::Unknown { cause: Cause::Forgotten, .. }), "{error:?}");
    assert!(error.outcome() == Outcome::Unknown && !error.is_retryable());
}

#[test]
fn a_commit_to_a_server_that_never_comes_back_is_unknown_and_one_that_never_left_is_not() {
    let fake = Fake::with(first(1, is_commit, |_, _| Verdict::Close));
    let options = ClientOptions { attempts_max: 3, ..ClientOptions::default() };
    let client = Client::connect(fake.address(), options).unwrap();
    let (one, two) = (client.begin(SHORT).unwrap(), client.begin(SHORT).unwrap());
    // Gone for good, once the commit has been read.
    let down = std::thread::scope(|scope| {
        let stopped = scope.spawn(|| {
            fake::until("the commit has been read", || fake.seen().iter().any(|s| matches!(s, Seen::Commit(_))));
            fake.stop();
        });
        // Whoever is faster: the answer is one of the two that are true.
        let outcome = one.commit(&changes());
        stopped.join().unwrap();
        outcome
    });
    match down {
        Err(error) => assert!(matches!(error, Error::Unknown { .. }) && !error.is_retryable(), "{error:?}"),
        Ok(csn) => assert_eq!(fake.status_of(one.id()), Status::Committed(csn)),
    }
    let lost = client.ping().unwrap_err();
    assert!(matches!(lost, Error::Connect { .. } | Error::Lost(_)), "{lost:?}");
    let error = two.commit(&changes()).unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error:?}");
    assert!(error.outcome() == Outcome::Undecided && error.is_retryable());
}

#[test]
fn callers_that_wait_for_one_attempt_to_connect_share_its_failure() {
    let fake = Fake::tcp();
    let client =
        Client::connect(fake.address(), ClientOptions { attempts_max: 4, ..ClientOptions::default() }).unwrap();
    fake.stop();
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..12).map(|_| scope.spawn(|| client.begin(SHORT))).collect();
        for caller in callers {
            let error = caller.join().unwrap().unwrap_err();
            assert!(matches!(error, Error::Connect { .. } | Error::Lost(_)) && error.is_retryable(), "{error:?}");
        }
    });
}

#[test]
fn a_server_that_stops_is_asked_again_on_the_next_connection() {
    for code in [ErrorCode::ShuttingDown, ErrorCode::LogFailed] {
        let left = AtomicU32::new(2);
        let fake = Fake::with(move |_, request, id, out| {
            let picked = matches!(request, Request::Begin(_) | Request::Commit(_));
            if picked && left.load(Ordering::SeqCst) > 0 {
                left.fetch_sub(1, Ordering::SeqCst);
                reply::error(out, id, &ErrorReply::new(code, "restarting"));
                return Verdict::Done;
            }
            Verdict::Serve
        });
        let client = connect(&fake);
        let tx = client.begin(SHORT).unwrap();
        assert_eq!(tx.commit(&changes()).unwrap(), CommitNumber(1));
        assert_eq!(hellos(&fake).len(), 3, "{code:?}");
    }
}

#[test]
fn every_caller_survives_connections_that_are_lost_at_random() {
    for seed in 1..=6u64 {
        println!("seed {seed}");
        let mut random = seed;
        let fake = Fake::with(move |_, request, _, _| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            match (request, (random >> 33) % 23) {
                (Request::Hello(_), _) => Verdict::Serve,
                (_, 0) => Verdict::Close,
                (_, 1) => Verdict::ServeAndClose,
                _ => Verdict::Serve,
            }
        });
        let options = ClientOptions { attempts_max: 1_000, ..ClientOptions::default() };
        let client = Client::connect(fake.address(), options).unwrap();
        let committed: u64 = std::thread::scope(|scope| {
            let callers: Vec<_> = (0..8)
                .map(|_| {
                    scope.spawn(|| {
                        let mut committed = 0;
                        for _ in 0..40 {
                            let tx = client.begin(SHORT).unwrap();
                            let csn = tx.commit(&changes()).unwrap_or_else(|error| panic!("seed {seed}: {error:?}"));
                            assert_eq!(fake.status_of(tx.id()), Status::Committed(csn), "seed {seed}");
                            committed += 1;
                        }
                        committed
                    })
                })
                .collect();
            callers.into_iter().map(|caller| caller.join().unwrap()).sum()
        });
        assert_eq!(
            fake.sequencer.lock().unwrap().snapshot.csn,
            CommitNumber(committed),
            "seed {seed}: one commit each"
        );
    }
}

#[test]
fn a_silent_server_is_given_up_and_the_next_call_connects_again() {
    let fake = Fake::with(first(1, |request| matches!(request, Request::Status(_)), |_, _| Verdict::Done));
    let options = ClientOptions { request_timeout: Duration::from_millis(100), ..ClientOptions::default() };
    let client = Client::connect(fake.address(), options).unwrap();
    let error = client.status(WritePointer(1)).unwrap_err();
    assert!(matches!(error, Error::TimedOut { sent: true, .. }) && error.is_retryable(), "{error:?}");
    assert_eq!(client.status(WritePointer(1)).unwrap(), Status::Forgotten);
    assert_eq!(hellos(&fake).len(), 2);
}

#[test]
fn a_commit_that_has_no_answer_in_time_is_unknown() {
    let fake = Fake::with(first(1, is_commit, |_, _| Verdict::Done));
    let options = ClientOptions { request_timeout: Duration::from_millis(100), ..ClientOptions::default() };
    let client = Client::connect(fake.address(), options).unwrap();
    let tx = client.begin(SHORT).unwrap();
    let error = tx.commit(&changes()).unwrap_err();
    assert!(matches!(error, Error::Unknown { cause: Cause::Silent, .. }), "{error:?}");
    assert_eq!(client.settle(tx.id()).unwrap(), Status::Invalid(InvalidCause::Settled));
}

#[test]
fn another_store_is_never_taken_for_the_one_that_was_served() {
    let fake = Fake::tcp();
    let other = ClientOptions { store: Some(StoreId(8)), ..ClientOptions::default() };
    match Client::connect(fake.address(), other).unwrap_err() {
        Error::Connect { cause: Cause::Server(error), .. } => assert_eq!(error.code, ErrorCode::WrongStore),
        error => panic!("{error:?}"),
    }
    let client = connect(&fake);
    let tx = client.begin(SHORT).unwrap();
    {
        // The same address, another data directory.
        let mut sequencer = fake.sequencer.lock().unwrap();
        sequencer.hello.store = StoreId(9);
        sequencer.hook(Box::new(first(1, is_commit, |_, _| Verdict::Close)));
    }
    let error = tx.commit(&changes()).unwrap_err();
    assert!(matches!(error, Error::Unknown { .. }), "{error:?}");
    let error = client.begin(SHORT).unwrap_err();
    assert!(matches!(error, Error::Connect { cause: Cause::Server(_), .. }) && !error.is_retryable(), "{error:?}");
}

#[test]
fn a_server_that_breaks_the_protocol_is_a_typed_error_and_the_next_connection_starts_afresh() {
    let forged = AtomicU32::new(0);
    let fake = Fake::with(move |sequencer, request, id, out| match request {
        Request::Begin(begin) if begin.base.is_some() && forged.fetch_add(1, Ordering::SeqCst) == 0 => {
            // A difference from a snapshot that this client never had.
            let mut base = Snapshot::clone(&sequencer.snapshot);
            base.id.number += 1_000;
            let mut new = base.clone();
            new.id.number += 1;
            let block = sequencer.begin(1);
            reply::begin(out, id, block, &new, Some(&base));
            Verdict::Done
        }
        _ => Verdict::Serve,
    });
    let client = connect(&fake);
    client.begin(SHORT).unwrap().leave_open();
    match client.begin(SHORT).unwrap_err() {
        Error::Lost(Cause::Protocol(ProtocolError::Decode(DecodeError::WrongBase { .. }))) => {}
        error => panic!("{error:?}"),
    }
    client.begin(SHORT).unwrap().leave_open();
    let bases: Vec<_> = fake
        .seen()
        .iter()
        .filter_map(|s| if let Seen::Begin { base, .. } = s { Some(base.is_some()) } else { None })
        .collect();
    assert_eq!(bases, [false, true, false]);
}

#[test]
fn ends_of_dropped_transactions_find_their_way_over_a_new_connection() {
    let fake = Fake::with(first(2, |request| matches!(request, Request::Invalidate(_)), |_, _| Verdict::Close));
    let client = connect(&fake);
    let tx = client.begin(SHORT).unwrap();
    let id = tx.write_pointer();
    drop(tx);
    assert!(client.flush(Duration::from_secs(30)));
    assert_eq!(fake.status_of(id), Status::Invalid(InvalidCause::Asked));
}
