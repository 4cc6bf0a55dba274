//! What registered stores, and operators who forget by hand, are promised. Each case runs in process and over TCP.
//!
//! Apache Tephra prunes from inside the manager: a service there asks plug-ins for bounds every few hours and takes the
//! least. Here stores come by themselves, and the least of what they have cleaned is what is forgotten; the cases about
//! bounds follow Tephra's in everything else.

mod common;

use common::{OverTcp, System, cases_that_start, small};
use seriatim_core::{BeginOptions, InvalidCause, Kind, RegisteredStore, STORES_MAX, Status, StoreName, WritePointer};
use seriatim_net::{Embedded, EmbeddedError, Options, StorageKind, StoreError};
use seriatim_wire::{
    CleanBound, CleanHolder, Op, PruneReport, Reply, StoreRefusal, StoreReply, StoreRequest, Truncated, request,
};

cases_that_start! {
    a_store_registers_once_and_is_taken_out_once
    no_more_stores_register_than_may
    the_clean_bound_stops_before_who_is_open_and_the_report_names_it
    the_clean_bound_stops_before_an_invalid_one_whose_client_may_still_write
    an_acknowledgement_of_what_nobody_was_told_is_refused
    an_acknowledged_bound_does_not_go_back
    what_every_store_has_cleaned_is_forgotten
    a_transaction_is_forgotten_with_all_of_its_pointers_or_not_at_all
    without_a_store_nothing_is_forgotten
    a_new_store_holds_everything_back_and_lets_go_when_it_is_taken_out
    the_invalid_are_counted_when_they_are_and_not_before
    truncation_by_name_forgets_those_and_no_others
    truncation_before_a_time_waits_for_who_is_open
}

/// What a store and an operator ask.
trait Upkeep: System {
    fn register(&self, name: &str) -> Result<bool, StoreRefusal>;
    fn remove(&self, name: &str) -> bool;
    fn clean_bound(&self) -> CleanBound;
    fn cleaned(&self, name: &str, bound: WritePointer) -> Result<(), StoreRefusal>;
    fn pruning(&self) -> PruneReport;
    fn truncate(&self, tx: WritePointer) -> bool;
    fn truncate_before(&self, bound: WritePointer) -> Truncated;

    /// The store with this name, as the report has it.
    fn registered(&self, name: &str) -> Option<RegisteredStore> {
        self.pruning().stores.into_iter().find(|(there, _)| there.as_str() == name).map(|(_, store)| store)
    }

    /// One that is invalid, and whose client no longer writes.
    fn one_invalid(&self) -> WritePointer {
        let tx = self.begin_with(&BeginOptions { timeout_ms: Some(1), ..BeginOptions::default() }).unwrap().tx;
        while self.status(tx) != Status::Invalid(InvalidCause::Expired) {
            std::thread::yield_now();
        }
        tx
    }

    /// Waits until stores may clean up to a transaction. Somebody ends above it, so that it can be below what is finished.
    fn may_clean(&self, tx: WritePointer) -> CleanBound {
        let newer = self.begin().tx;
        self.abort(newer);
        loop {
            let bounds = self.clean_bound();
            if bounds.clean >= tx {
                return bounds;
            }
            std::thread::yield_now();
        }
    }

    fn invalid(&self) -> Vec<WritePointer> {
        self.snapshot().invalid.pointers.iter().collect()
    }
}

fn name(name: &str) -> StoreName {
    StoreName::new(name).unwrap()
}

fn or_refusal<T>(said: Result<T, EmbeddedError<StoreError>>) -> Result<T, StoreRefusal> {
    said.map_err(|error| match error {
        EmbeddedError::Refused(StoreError::Refused(refusal)) => refusal,
        other => panic!("{other}"),
    })
}

impl Upkeep for Embedded {
    fn register(&self, store: &str) -> Result<bool, StoreRefusal> {
        or_refusal(self.register_store(&name(store)))
    }

    fn remove(&self, store: &str) -> bool {
        self.remove_store(&name(store)).unwrap()
    }

    fn clean_bound(&self) -> CleanBound {
        Embedded::clean_bound(self).unwrap()
    }

    fn cleaned(&self, store: &str, bound: WritePointer) -> Result<(), StoreRefusal> {
        or_refusal(self.store_cleaned(&name(store), bound))
    }

    fn pruning(&self) -> PruneReport {
        Embedded::pruning(self).unwrap()
    }

    fn truncate(&self, tx: WritePointer) -> bool {
        Embedded::truncate(self, tx).unwrap()
    }

    fn truncate_before(&self, bound: WritePointer) -> Truncated {
        Embedded::truncate_before(self, bound).unwrap()
    }
}

impl OverTcp {
    fn ask_store(&self, asked: StoreRequest<'_>) -> StoreReply {
        let said = self.connect().ask(
            |out, id| request::store(out, id, asked),
            |reply| match reply {
                Reply::Store(said) => said,
                other => panic!("{other:?}"),
            },
        );
        said.expect("no error frame")
    }
}

impl Upkeep for OverTcp {
    fn register(&self, name: &str) -> Result<bool, StoreRefusal> {
        let StoreReply::Registered(said) = self.ask_store(StoreRequest::Register { name }) else { panic!() };
        said
    }

    fn remove(&self, name: &str) -> bool {
        let StoreReply::Removed(was_there) = self.ask_store(StoreRequest::Remove { name }) else { panic!() };
        was_there
    }

    fn clean_bound(&self) -> CleanBound {
        let StoreReply::CleanBound(bounds) = self.ask_store(StoreRequest::CleanBound) else { panic!() };
        bounds
    }

    fn cleaned(&self, name: &str, bound: WritePointer) -> Result<(), StoreRefusal> {
        let StoreReply::Cleaned(said) = self.ask_store(StoreRequest::Cleaned { name, bound }) else { panic!() };
        said
    }

    fn pruning(&self) -> PruneReport {
        let StoreReply::Pruning(report) = self.ask_store(StoreRequest::Pruning) else { panic!() };
        *report
    }

    fn truncate(&self, tx: WritePointer) -> bool {
        let forgotten = self.connect().ask(
            |out, id| request::pointers(out, Op::Truncate, id, [tx]),
            |reply| match reply {
                Reply::Truncate(forgotten) => forgotten.iter().next().expect("one answer"),
                other => panic!("{other:?}"),
            },
        );
        forgotten.expect("no error frame")
    }

    fn truncate_before(&self, bound: WritePointer) -> Truncated {
        let truncated = self.connect().ask(
            |out, id| request::truncate_before(out, id, bound),
            |reply| match reply {
                Reply::TruncateBefore(truncated) => truncated,
                other => panic!("{other:?}"),
            },
        );
        truncated.expect("no error frame")
    }
}

/// A system in which no write is on its way any more when its transaction's deadline has passed.
fn start<S: System>() -> S {
    S::start(StorageKind::Memory, &Options { write_delay_ms: 0, ..small() })
}

fn a_store_registers_once_and_is_taken_out_once<S: Upkeep>() {
    let system: S = start();
    assert_eq!([system.register("a"), system.register("a"), system.register("b")], [Ok(true), Ok(false), Ok(true)]);
    let report = system.pruning();
    assert_eq!(report.stores.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    let (_, store) = &report.stores[0];
    assert_eq!((store.bound, store.acknowledged_ms), (WritePointer(0), 0));
    assert!(store.registered_ms > 1_700_000_000_000, "a time of day");
    assert_eq!([system.remove("a"), system.remove("a"), system.remove("never")], [true, false, false]);
    assert_eq!(system.pruning().stores.len(), 1);
}

fn no_more_stores_register_than_may<S: Upkeep>() {
    let system: S = start();
    for store in 0..STORES_MAX {
        assert_eq!(system.register(&format!("store {store}")), Ok(true));
    }
    assert_eq!(system.register("one more"), Err(StoreRefusal::TooMany { max: STORES_MAX as u64 }));
    assert_eq!(system.register("store 7"), Ok(false), "it is there");
    assert!(system.remove("store 7"));
    assert_eq!(system.register("one more"), Ok(true));
}

fn the_clean_bound_stops_before_who_is_open_and_the_report_names_it<S: Upkeep>() {
    let system: S = start();
    let open = system.begin_labelled("nightly").tx;
    let newer = system.begin().tx;
    system.commit(newer, &[]).unwrap();
    assert_eq!(system.clean_bound().clean, WritePointer(open.0 - 1));
    let report = system.pruning();
    let CleanHolder::Open(listed) = &report.holder else { panic!("{report:?}") };
    assert_eq!((listed.tx, listed.kind, listed.label.as_deref()), (open, Kind::Short, Some("nightly")));
    assert_eq!(report.bounds.clean, WritePointer(open.0 - 1));
    system.commit(open, &[]).unwrap();
    assert_eq!(system.clean_bound().clean, newer);
    assert_eq!(system.pruning().holder, CleanHolder::Nothing);
}

fn the_clean_bound_stops_before_an_invalid_one_whose_client_may_still_write<S: Upkeep>() {
    let system: S = start();
    let zombie =
        system.begin_with(&BeginOptions { timeout_ms: Some(3_600_000), ..BeginOptions::default() }).unwrap().tx;
    assert!(system.invalidate(zombie));
    let newer = system.begin().tx;
    system.commit(newer, &[]).unwrap();
    assert_eq!(system.clean_bound().clean, WritePointer(zombie.0 - 1));
    match system.pruning().holder {
        CleanHolder::Writing { tx, kind: Kind::Short, cause: InvalidCause::Asked, remaining_ms } => {
            assert!(tx == zombie && (3_000_000..=3_600_000).contains(&remaining_ms), "{tx}: {remaining_ms} ms");
        }
        other => panic!("{other:?}"),
    }
    // Its client's word that it was rolled back, and writes no more, ends that.
    assert_eq!(system.abort(zombie), Status::Aborted);
    assert_eq!(system.clean_bound().clean, newer);
}

fn an_acknowledgement_of_what_nobody_was_told_is_refused<S: Upkeep>() {
    let system: S = start();
    let tx = system.begin().tx;
    system.commit(tx, &[]).unwrap();
    assert_eq!(system.cleaned("a", WritePointer(0)), Err(StoreRefusal::Unknown));
    system.register("a").unwrap();
    let refusal = StoreRefusal::NotHandedOut { bound: tx, greatest: WritePointer(0) };
    assert_eq!(system.cleaned("a", tx), Err(refusal), "nobody has asked");
    assert_eq!(system.clean_bound().clean, tx);
    let bound = WritePointer(tx.0 + 1);
    assert_eq!(system.cleaned("a", bound), Err(StoreRefusal::NotHandedOut { bound, greatest: tx }));
    assert_eq!(system.cleaned("a", tx), Ok(()));
    assert!(system.remove("a"));
    assert_eq!(system.cleaned("a", tx), Err(StoreRefusal::Unknown), "taken out while it cleaned");
    system.register("a").unwrap();
    assert_eq!(system.registered("a").unwrap().bound, WritePointer(0), "its data may be another now");
}

fn an_acknowledged_bound_does_not_go_back<S: Upkeep>() {
    let system: S = start();
    system.register("a").unwrap();
    let tx = system.begin().tx;
    system.commit(tx, &[]).unwrap();
    assert_eq!(system.clean_bound().clean, tx);
    for bound in [tx, WritePointer(tx.0 - 5), WritePointer(0)] {
        assert_eq!(system.cleaned("a", bound), Ok(()));
        let store = system.registered("a").unwrap();
        assert_eq!(store.bound, tx);
        assert!(store.acknowledged_ms >= store.registered_ms);
    }
}

/// Two stores, three runs: the least bound decides, what lies above stays, and a store that has not cleaned as far as the
/// first invalid transaction keeps all of them.
fn what_every_store_has_cleaned_is_forgotten<S: Upkeep>() {
    let system: S = start();
    for store in ["a", "b"] {
        system.register(store).unwrap();
    }
    let first: Vec<WritePointer> = (0..4).map(|_| system.one_invalid()).collect();
    system.may_clean(first[3]);
    system.cleaned("a", first[2]).unwrap();
    assert_eq!(system.invalid(), first, "the other one has not cleaned");
    system.cleaned("b", first[3]).unwrap();
    assert_eq!(system.invalid(), first[3..]);
    assert_eq!(system.status(first[0]), Status::Forgotten);
    assert_eq!(system.status(first[3]), Status::Invalid(InvalidCause::Expired));
    let second: Vec<WritePointer> = (0..3).map(|_| system.one_invalid()).collect();
    let bounds = system.may_clean(second[2]);
    system.cleaned("a", second[1]).unwrap();
    // A bound need not be a transaction's pointer.
    system.cleaned("b", WritePointer(second[1].0 - 1)).unwrap();
    assert_eq!(system.invalid(), second[1..]);
    // One that is behind everything invalid changes nothing, however far the others are.
    system.cleaned("a", bounds.clean).unwrap();
    assert_eq!(system.invalid(), second[1..]);
    assert_eq!(system.pruning().slowest().unwrap().0.as_str(), "b");
    system.cleaned("b", bounds.clean).unwrap();
    assert_eq!(system.invalid(), []);
    assert_eq!(system.pruning().invalid, 0);
}

fn a_transaction_is_forgotten_with_all_of_its_pointers_or_not_at_all<S: Upkeep>() {
    let system: S = start();
    system.register("a").unwrap();
    let tx = system.begin_with(&BeginOptions { timeout_ms: Some(300), ..BeginOptions::default() }).unwrap().tx;
    let between = system.begin().tx;
    let further = system.checkpoint(tx, 1).unwrap();
    system.commit(between, &[]).unwrap();
    while system.status(tx) != Status::Invalid(InvalidCause::Expired) {
        std::thread::yield_now();
    }
    system.may_clean(further);
    system.cleaned("a", between).unwrap();
    assert_eq!(system.invalid(), [tx, further], "a version under its further pointer may still stand");
    system.cleaned("a", further).unwrap();
    assert_eq!(system.invalid(), []);
}

fn without_a_store_nothing_is_forgotten<S: Upkeep>() {
    let system: S = start();
    let tx = system.one_invalid();
    let bounds = system.may_clean(tx);
    assert_eq!(system.cleaned("a", bounds.clean), Err(StoreRefusal::Unknown));
    assert!(system.register("a").unwrap() && system.remove("a"));
    assert_eq!(system.invalid(), [tx], "nobody has said that it is clean");
}

fn a_new_store_holds_everything_back_and_lets_go_when_it_is_taken_out<S: Upkeep>() {
    let system: S = start();
    system.register("old").unwrap();
    let tx = system.one_invalid();
    let bounds = system.may_clean(tx);
    system.register("new").unwrap();
    system.cleaned("old", bounds.clean).unwrap();
    assert_eq!(system.invalid(), [tx]);
    assert_eq!(system.pruning().slowest().unwrap().0.as_str(), "new");
    assert!(system.remove("new"));
    assert_eq!(system.invalid(), []);
}

fn the_invalid_are_counted_when_they_are_and_not_before<S: Upkeep>() {
    let system: S = start();
    let open = [system.begin_long().tx, system.begin().tx, system.begin_long().tx];
    assert_eq!(system.pruning().invalid, 0);
    for tx in open {
        assert!(system.invalidate(tx));
    }
    assert_eq!(system.pruning().invalid, 3);
}

fn truncation_by_name_forgets_those_and_no_others<S: Upkeep>() {
    let system: S = start();
    let [l1, s2, l3] = [system.begin_long().tx, system.begin().tx, system.begin_long().tx];
    assert!(!system.truncate(s2), "it is open");
    for tx in [l1, s2, l3] {
        assert!(system.invalidate(tx));
    }
    let read_pointer = system.snapshot().read_pointer;
    assert_eq!([s2, l3, l3, WritePointer(77)].map(|tx| system.truncate(tx)), [true, true, false, false]);
    assert_eq!(system.begin().snapshot.invalid.pointers.iter().collect::<Vec<_>>(), [l1]);
    assert_eq!(system.snapshot().read_pointer, read_pointer);
    assert_eq!(system.status(s2), Status::Forgotten);
}

fn truncation_before_a_time_waits_for_who_is_open<S: Upkeep>() {
    let system: S = start();
    let [l1, s2] = [system.begin_long().tx, system.begin().tx];
    let l3 = system.begin_long().tx;
    assert_eq!(system.truncate_before(l3), Truncated::InProgress(l1));
    for tx in [l1, s2, l3] {
        assert!(system.invalidate(tx));
    }
    // The bound itself is not below the bound.
    assert_eq!(system.truncate_before(l3), Truncated::Done(2));
    assert_eq!(system.begin().snapshot.invalid.pointers.iter().collect::<Vec<_>>(), [l3]);
    assert_eq!(system.truncate_before(l3), Truncated::Done(0));
}
