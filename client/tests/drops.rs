//! What becomes of transactions that are dropped.

mod fake;

use std::time::Duration;

use fake::{Fake, Seen, Verdict};
use seriatim_client::{Client, ClientOptions};
use seriatim_core::*;
use seriatim_wire::*;

const SHORT: BeginOptions = BeginOptions { kind: Kind::Short, timeout_ms: None, deferred: false, detached: false };
const DEFERRED: BeginOptions = BeginOptions { deferred: true, ..SHORT };
const ASKED: Status = Status::Invalid(InvalidCause::Asked);
const LONG: Duration = Duration::from_secs(30);

fn connect(fake: &Fake) -> Client {
    Client::connect(fake.address(), ClientOptions::default()).unwrap()
}

#[test]
fn a_dropped_transaction_is_aborted_only_if_nothing_of_it_can_stand_in_a_store() {
    let fake = Fake::tcp();
    let client = connect(&fake);
    let end = |options: BeginOptions, dirty: bool| {
        let tx = client.begin(options).unwrap();
        let id = tx.id();
        if dirty {
            tx.write_pointer();
        }
        drop(tx);
        assert!(client.flush(LONG));
        fake.status_of(id)
    };
    assert_eq!(end(SHORT, false), Status::Aborted);
    assert_eq!(end(SHORT, true), ASKED);
    assert_eq!(end(DEFERRED, false), Status::Aborted);
    assert_eq!(end(DEFERRED, true), Status::Aborted);
}

#[test]
fn a_transaction_that_has_ended_is_not_ended_again() {
    let fake = Fake::tcp();
    let client = connect(&fake);
    let committed = client.begin(SHORT).unwrap();
    committed.write_pointer();
    committed.commit(&ChangeSet::of_writes([b"k".as_slice()])).unwrap();
    let aborted = client.begin(SHORT).unwrap();
    aborted.abort().unwrap();
    let invalidated = client.begin(SHORT).unwrap();
    invalidated.invalidate().unwrap();
    let left = client.begin(SHORT).unwrap();
    let before = fake.seen().len();
    let open = left.leave_open();
    drop((committed, aborted, invalidated));
    assert!(client.flush(LONG));
    client.ping().unwrap();
    assert_eq!(fake.seen().len(), before + 1, "{:?}", fake.seen());
    assert_eq!(fake.status_of(open), Status::Open);
}

#[test]
fn a_refused_transaction_that_is_dropped_is_not_taken_for_rolled_back() {
    let fake = Fake::with(|sequencer, request, id, out| {
        let Request::Commit(items) = request else { return Verdict::Serve };
        let outcomes: Vec<_> = items
            .clone()
            .map(|item| {
                sequencer.status.insert(item.tx, Status::Refused);
                Err(CommitError::TooOld { tx: item.tx, snapshot: CommitNumber(1), mark: CommitNumber(2) })
            })
            .collect();
        reply::commit(out, id, outcomes);
        Verdict::Done
    });
    let client = connect(&fake);
    let tx = client.begin(SHORT).unwrap();
    let id = tx.write_pointer();
    tx.commit(&ChangeSet::default()).unwrap_err();
    drop(tx);
    assert!(client.flush(LONG));
    assert_eq!(fake.status_of(id), ASKED);
}

#[test]
fn a_transaction_dropped_in_a_panic_ends_and_the_panic_goes_on() {
    let fake = Fake::tcp();
    let client = connect(&fake);
    let id = std::sync::Mutex::new(WritePointer(0));
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let tx = client.begin(SHORT).unwrap();
        *id.lock().unwrap() = tx.write_pointer();
        std::panic::resume_unwind(Box::new("the caller's own"));
    }));
    assert!(unwound.is_err());
    assert!(client.flush(LONG));
    let id = *id.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    assert_eq!(fake.status_of(id), ASKED);
}

#[test]
fn dropping_does_not_wait_for_a_server_that_does_not_answer_and_many_ends_share_a_frame() {
    let fake = Fake::tcp();
    let client = connect(&fake);
    let mut transactions: Vec<_> = (0..100).map(|_| client.begin(SHORT).unwrap()).collect();
    let ids: Vec<_> = transactions.iter().map(|tx| tx.write_pointer()).collect();
    fake.close_gate();
    // The first end may leave alone; the others wait for its answer.
    drop(transactions.pop());
    drop(transactions);
    assert!(!client.flush(Duration::from_millis(1)));
    fake.open_gate();
    assert!(client.flush(LONG));
    assert!(ids.iter().all(|id| fake.status_of(*id) == ASKED));
    let frames = fake.seen().iter().filter(|s| matches!(s, Seen::Invalidate(_))).count();
    assert!(frames <= 3, "100 ends came in {frames} frames");
}

#[test]
fn the_last_transaction_may_outlive_its_client() {
    let fake = Fake::tcp();
    let client = connect(&fake);
    let tx = client.begin(DEFERRED).unwrap();
    let id = tx.id();
    drop(client);
    drop(tx);
    fake::until("the end has arrived", || fake.status_of(id) == Status::Aborted);
}
