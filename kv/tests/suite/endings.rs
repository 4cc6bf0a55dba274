//! How transactions end when the store, the sequencer or the closure fails, over every store.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::support::{CommitFault, GoesDeaf, House, Op, once};
use seriatim_kv::core::{InvalidCause, Status};
use seriatim_kv::{Db, Error, KEY_BYTES_MAX, Outcome, RetryPolicy, RunOptions, Store, Table, Tx, VALUE_BYTES_MAX};

crate::on_every_store!(
    an_error_in_the_closure_aborts_and_writes_nothing,
    a_panic_in_the_closure_aborts_and_writes_nothing,
    a_refusal_is_rolled_back_durably_before_the_abort,
    a_put_that_certainly_failed_is_rolled_back,
    a_put_that_perhaps_failed_invalidates,
    a_flush_that_fails_invalidates,
    a_rollback_that_fails_invalidates,
    a_commit_that_was_not_sent_is_rolled_back_and_run_again,
    a_lost_reply_is_settled_as_committed,
    a_lost_request_is_settled_as_invalid_and_run_again,
    a_lost_refusal_is_rolled_back_and_run_again,
    an_outcome_that_cannot_be_learned_is_unknown,
    an_abort_by_somebody_else_is_cleaned_up,
    a_deadline_that_passed_stops_the_writes,
    retries_are_bounded,
    what_is_too_large_is_refused_and_the_rest_goes_on,
);

fn table() -> Table {
    Table::new("t")
}

fn put_two(tx: &mut Tx<'_>) -> Result<(), Error> {
    tx.put(&table(), b"a", b"new")?;
    tx.put(&table(), b"b", b"new")
}

fn an_error_in_the_closure_aborts_and_writes_nothing(store: impl Store) {
    let house = House::new(store);
    let failed: Result<(), Error> = house.db.run(|tx| {
        put_two(tx)?;
        Err(Error::abort("not enough coins"))
    });
    let error = failed.unwrap_err();
    assert!(matches!(&error, Error::Closure(reason) if reason.to_string() == "not enough coins"));
    assert_eq!((error.outcome(), error.is_retryable()), (Outcome::NotCommitted, false));
    assert_eq!((house.sequencer.begun(), house.sequencer.last_status()), (1, Status::Aborted));
    assert_eq!(house.store.take_ops(), []);
}

fn a_panic_in_the_closure_aborts_and_writes_nothing(store: impl Store) {
    let house = House::new(store);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        house.db.run(|tx| -> Result<(), Error> {
            put_two(tx)?;
            panic!("planted")
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(house.sequencer.last_status(), Status::Aborted);
    assert_eq!(house.store.take_ops(), []);
}

fn a_refusal_is_rolled_back_durably_before_the_abort(store: impl Store) {
    let house = House::new(store);
    let sequencer = house.sequencer.clone();
    house.store.before(move |op| {
        if op != Op::Put {
            assert!(matches!(sequencer.last_status(), Status::Open | Status::Refused), "ended before {op:?}");
        }
        Ok(())
    });
    let conflict = house.db.run_with(once(), |tx| {
        put_two(tx)?;
        // Committed under the hood of the sequencer alone, so that the transaction stays the last one begun.
        house.sequencer.commit_of_another(&table(), b"b");
        Ok(())
    });
    assert!(conflict.unwrap_err().is_conflict());
    use Op::*;
    assert_eq!(house.store.take_ops(), [Put, Put, Flush, Remove, Remove, Flush]);
    assert_eq!(house.sequencer.last_status(), Status::Aborted);
    assert_eq!(house.versions(), 0);
}

fn a_put_that_certainly_failed_is_rolled_back(store: impl Store) {
    let house = House::new(store);
    house.store.fail_from(Op::Put, 2, true);
    let failed = house.db.run_with(once(), put_two);
    assert!(matches!(failed, Err(Error::Store(_))));
    assert_eq!((house.versions(), house.sequencer.last_status()), (0, Status::Aborted));
}

fn a_put_that_perhaps_failed_invalidates(store: impl Store) {
    let house = House::new(store);
    house.store.fail_from(Op::Put, 2, false);
    let failed = house.db.run_with(once(), put_two);
    assert!(matches!(failed, Err(Error::Store(_))));
    // It may still land after the rollback.
    assert_eq!(house.sequencer.last_status(), Status::Invalid(InvalidCause::Asked));
}

fn a_flush_that_fails_invalidates(store: impl Store) {
    let house = House::new(store);
    house.store.fail_from(Op::Flush, 1, false);
    let failed = house.db.run_with(once(), put_two);
    assert!(matches!(failed, Err(Error::Store(_))));
    assert_eq!(house.sequencer.last_status(), Status::Invalid(InvalidCause::Asked));
}

fn a_rollback_that_fails_invalidates(store: impl Store) {
    let house = House::new(store);
    for (op, nth) in [(Op::Remove, 1), (Op::Remove, 2), (Op::Flush, 2)] {
        house.store.fail_from(op, nth, true);
        let conflict = house.db.run_with(once(), |tx| {
            put_two(tx)?;
            house.sequencer.commit_of_another(&table(), b"b");
            Ok(())
        });
        assert!(conflict.unwrap_err().is_conflict(), "the refusal is told, not the trouble after it");
        assert_eq!(house.sequencer.last_status(), Status::Invalid(InvalidCause::Asked), "{op:?} {nth}");
        house.store.unhook();
        assert_eq!(house.now(&table(), b"a"), None);
    }
}

fn a_commit_that_was_not_sent_is_rolled_back_and_run_again(store: impl Store) {
    let house = House::new(store);
    house.sequencer.faults.lock().unwrap().push_back(CommitFault::NotSent);
    let done = house.db.run_with(RunOptions::default(), put_two).unwrap();
    assert_eq!((done.attempts, done.settled), (2, false));
    assert_eq!((house.versions(), house.sequencer.unended()), (2, 0));
}

fn a_lost_reply_is_settled_as_committed(store: impl Store) {
    let house = House::new(store);
    house.sequencer.faults.lock().unwrap().push_back(CommitFault::ReplyLost);
    let done = house.db.run_with(once(), put_two).unwrap();
    assert_eq!((done.attempts, done.settled), (1, true));
    assert_eq!(house.sequencer.status(done.tx), Status::Committed(done.csn.unwrap()));
    assert_eq!(house.now(&table(), b"b").as_deref(), Some(&b"new"[..]));
}

fn a_lost_request_is_settled_as_invalid_and_run_again(store: impl Store) {
    let house = House::new(store);
    house.sequencer.faults.lock().unwrap().push_back(CommitFault::RequestLost);
    let done = house.db.run_with(RunOptions::default(), put_two).unwrap();
    assert_eq!((done.attempts, done.settled), (2, false));
    assert_eq!((house.versions(), house.sequencer.unended()), (2, 0), "the invalid attempt was cleaned up");
}

fn a_lost_refusal_is_rolled_back_and_run_again(store: impl Store) {
    let house = House::new(store);
    house.sequencer.faults.lock().unwrap().push_back(CommitFault::ReplyLost);
    let mut first = true;
    let done = house.db.run_with(RunOptions::default(), |tx| {
        put_two(tx)?;
        if std::mem::take(&mut first) {
            house.sequencer.commit_of_another(&table(), b"b");
        }
        Ok(())
    });
    assert_eq!(done.unwrap().attempts, 2);
    assert_eq!((house.versions(), house.sequencer.unended()), (2, 0));
}

fn an_outcome_that_cannot_be_learned_is_unknown(store: impl Store) {
    let house = House::new(store);
    let db = Db::new(house.store.clone(), GoesDeaf(house.sequencer.clone()));
    let retry = RetryPolicy { settle_for: Duration::ZERO, ..RetryPolicy::default() };
    let options = RunOptions { retry, ..RunOptions::default() };
    for (fault, committed, key) in [(CommitFault::ReplyLost, true, b"a"), (CommitFault::RequestLost, false, b"b")] {
        house.sequencer.faults.lock().unwrap().push_back(fault);
        let error = db.run_with(options, |tx| tx.put(&table(), key, b"new")).unwrap_err();
        assert!(matches!(error, Error::Unknown { source: Some(_), .. }), "{error}");
        assert_eq!((error.outcome(), error.is_retryable()), (Outcome::Unknown, false));
        assert!(!house.store.take_ops().contains(&Op::Remove), "what may have committed is not taken back");
        house.sequencer.deaf.store(false, Ordering::SeqCst);
        assert_eq!(house.now(&table(), key).is_some(), committed);
    }
}

fn an_abort_by_somebody_else_is_cleaned_up(store: impl Store) {
    let house = House::new(store);
    let sequencer = house.sequencer.clone();
    house.store.before(move |op| {
        if op == Op::Flush && sequencer.last_status() == Status::Open {
            sequencer.abort_behind_its_back(sequencer.last());
        }
        Ok(())
    });
    let error = house.db.run_with(once(), put_two).unwrap_err();
    assert!(matches!(error, Error::RetriesExhausted { last, .. } if matches!(*last, Error::AbortedByOther { .. })));
    assert_eq!(house.versions(), 0);
}

fn a_deadline_that_passed_stops_the_writes(store: impl Store) {
    let house = House::new(store);
    let options = RunOptions { timeout_ms: Some(0), ..once() };
    let error = house.db.run_with(options, put_two).unwrap_err();
    assert!(matches!(error, Error::RetriesExhausted { last, .. } if matches!(*last, Error::Refused(_))));
    assert_eq!((house.store.take_ops(), house.sequencer.last_status()), (vec![], Status::Aborted));
}

fn retries_are_bounded(store: impl Store) {
    let house = House::new(store);
    let retry = RetryPolicy { attempts_max: 5, pause_first: Duration::ZERO, ..RetryPolicy::default() };
    let mut runs = 0;
    let error = house.db.run_with(RunOptions { retry, ..RunOptions::default() }, |tx| {
        runs += 1;
        house.sequencer.commit_of_another(&table(), b"a");
        put_two(tx)
    });
    let error = error.unwrap_err();
    assert!(matches!(error, Error::RetriesExhausted { attempts: 5, .. }) && error.is_conflict(), "{error}");
    assert_eq!((runs, house.versions(), house.sequencer.unended()), (5, 0, 0));
}

fn what_is_too_large_is_refused_and_the_rest_goes_on(store: impl Store) {
    let house = House::new(store);
    let table = table();
    let done = house.db.run(|tx| {
        let long = vec![0; KEY_BYTES_MAX + 1];
        assert!(matches!(tx.get(&table, &long), Err(Error::KeyTooLong { .. })));
        assert!(matches!(tx.put(&table, &long, b""), Err(Error::KeyTooLong { .. })));
        assert!(matches!(tx.put(&table, b"a", &vec![0; VALUE_BYTES_MAX + 1]), Err(Error::ValueTooLong { .. })));
        for n in 0..3_u8 {
            tx.put(&table, &[n], &vec![n; VALUE_BYTES_MAX])?;
        }
        // The same key again takes no more room; another one does.
        tx.put(&table, &[0], &vec![9; VALUE_BYTES_MAX])?;
        assert!(matches!(tx.put(&table, &[3], &vec![0; VALUE_BYTES_MAX]), Err(Error::TransactionTooLarge { .. })));
        for n in 0..3_u8 {
            tx.delete(&table, &[n])?;
        }
        tx.put(&table, &long[..KEY_BYTES_MAX], b"longest key")
    });
    done.unwrap();
    assert_eq!(house.now(&table, &vec![0; KEY_BYTES_MAX]).as_deref(), Some(&b"longest key"[..]));
}
