//! A sequencer without any cleverness: one lock, plain maps, everything remembered for ever.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use seriatim_kv::core::{
    BeginOptions, ChangeId, ChangeSet, CleanBound, CommitError, CommitNumber, InvalidCause, InvalidSet, PointerSet,
    Snapshot, Status, StoreName, StoreRefusal, WritePointer,
};
use seriatim_kv::{BeginFailure, Begun, CommitFailure, Coordinator, StoreFailure, Table, TransportError};

/// What happens to the next commit's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommitFault {
    /// The client notices that it cannot send.
    NotSent,
    /// The request is lost on the way.
    RequestLost,
    /// The reply is lost on the way.
    ReplyLost,
}

#[derive(Default)]
pub struct Sequencer {
    state: Mutex<State>,
    pub faults: Mutex<VecDeque<CommitFault>>,
    /// While it is set nobody gets an answer.
    pub deaf: AtomicBool,
    /// While it is set no store's acknowledgement arrives.
    pub deaf_to_stores: AtomicBool,
}

#[derive(Default)]
struct State {
    last_pointer: u64,
    csn: u64,
    /// Greatest pointer that has ended.
    read_pointer: u64,
    /// How each transaction stands, and the commit number of its snapshot.
    transactions: BTreeMap<WritePointer, (Status, CommitNumber)>,
    /// The last commit that wrote or marked an id.
    writers: HashMap<ChangeId, (CommitNumber, WritePointer)>,
    /// What each transaction that has begun had settled.
    settled: BTreeMap<WritePointer, WritePointer>,
    /// What those who read without a transaction have settled.
    readers: Vec<WritePointer>,
    /// What each store has cleaned.
    stores: BTreeMap<StoreName, WritePointer>,
}

impl Sequencer {
    pub fn status(&self, tx: WritePointer) -> Status {
        self.state().status(tx)
    }

    /// The last transaction that has begun.
    pub fn last(&self) -> WritePointer {
        WritePointer(self.state().last_pointer)
    }

    /// The last transaction that has begun, and how it stands.
    pub fn last_status(&self) -> Status {
        self.status(self.last())
    }

    /// Transactions that are open or refused.
    pub fn unended(&self) -> usize {
        self.state().transactions.values().filter(|(status, _)| is_unended(*status)).count()
    }

    /// Transactions begun so far.
    pub fn begun(&self) -> usize {
        self.state().transactions.len()
    }

    /// Somebody reads through this snapshot without a transaction.
    pub fn add_reader(&self, snapshot: &Snapshot) {
        self.state().readers.push(snapshot.settled());
    }

    /// That reader has gone.
    pub fn remove_reader(&self, snapshot: &Snapshot) {
        let mut state = self.state();
        let at = state.readers.iter().position(|settled| *settled == snapshot.settled()).expect("it was added");
        state.readers.remove(at);
    }

    /// The invalid transactions.
    pub fn invalid(&self) -> Vec<WritePointer> {
        self.state().snapshot().invalid.pointers.iter().collect()
    }

    /// A commit by somebody who is not in the table of transactions and writes to no store.
    pub fn commit_of_another(&self, table: &Table, key: &[u8]) {
        let mut state = self.state();
        state.csn += 1;
        let csn = CommitNumber(state.csn);
        state.writers.insert(table.change_id(key).unwrap(), (csn, WritePointer(0)));
    }

    /// What an operator's abort does, or that of a client that is wrong about its writes.
    pub fn abort_behind_its_back(&self, tx: WritePointer) {
        self.state().end(tx, Status::Aborted);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    fn hear(&self) -> Result<(), TransportError> {
        if self.deaf.load(Ordering::SeqCst) { Err(no_answer()) } else { Ok(()) }
    }

    fn decide(&self, tx: WritePointer, changes: &ChangeSet) -> Result<CommitNumber, CommitError> {
        let mut state = self.state();
        let (status, snapshot) = state.transactions[&tx];
        if status != Status::Open {
            return Err(CommitError::NotInProgress { tx, ended: status });
        }
        for id in changes.writes.iter().chain(&changes.reads) {
            if let Some(&(csn, winner)) = state.writers.get(id)
                && csn > snapshot
            {
                state.transactions.insert(tx, (Status::Refused, snapshot));
                return Err(CommitError::Conflict { tx, change_id: id.0, csn, winner: Some(winner), label: None });
            }
        }
        state.csn += 1;
        let csn = CommitNumber(state.csn);
        state.writers.extend(changes.writes.iter().chain(&changes.marks).map(|id| (*id, (csn, tx))));
        state.end(tx, Status::Committed(csn));
        Ok(csn)
    }
}

impl State {
    fn status(&self, tx: WritePointer) -> Status {
        self.transactions.get(&tx).map_or(Status::Forgotten, |(status, _)| *status)
    }

    fn end(&mut self, tx: WritePointer, status: Status) {
        self.transactions.get_mut(&tx).expect("only what has begun can end").0 = status;
        self.read_pointer = self.read_pointer.max(tx.0);
    }

    fn snapshot(&self) -> Snapshot {
        let pointers = |wanted: fn(Status) -> bool| -> PointerSet {
            let chosen = self.transactions.iter().filter(|(_, (status, _))| wanted(*status));
            chosen.map(|(tx, _)| *tx).collect()
        };
        let invalid = pointers(|status| matches!(status, Status::Invalid(_)));
        Snapshot {
            read_pointer: WritePointer(self.read_pointer),
            csn: CommitNumber(self.csn),
            in_progress: pointers(is_unended),
            invalid: Arc::new(InvalidSet { pointers: invalid, ..InvalidSet::default() }),
            ..Snapshot::default()
        }
    }
}

impl State {
    /// Nobody here writes once it has ended, so the clean bound waits for nobody's deadline.
    fn clean_bound(&self) -> CleanBound {
        let snapshot = self.snapshot();
        let open = self.transactions.iter().filter(|(_, (status, _))| is_unended(*status));
        let open = open.map(|(tx, _)| self.settled[tx]);
        let visible = open.chain(self.readers.iter().copied()).chain([snapshot.settled()]).min();
        CleanBound { clean: snapshot.settled(), visible: visible.expect("there is one") }
    }

    fn prune(&mut self) {
        let bound = self.stores.values().min().copied().unwrap_or_default();
        for (_, (status, _)) in self.transactions.range_mut(..=bound) {
            if matches!(status, Status::Invalid(_)) {
                *status = Status::Forgotten;
            }
        }
    }
}

fn is_unended(status: Status) -> bool {
    matches!(status, Status::Open | Status::Refused)
}

fn no_answer() -> TransportError {
    TransportError { source: "no answer".into(), transient: true }
}

impl Coordinator for Sequencer {
    fn begin(&self, _: BeginOptions) -> Result<Begun, BeginFailure> {
        self.hear()?;
        let mut state = self.state();
        let snapshot = Arc::new(state.snapshot());
        state.last_pointer += 1;
        let tx = WritePointer(state.last_pointer);
        state.transactions.insert(tx, (Status::Open, snapshot.csn));
        state.settled.insert(tx, snapshot.settled());
        assert!(tx > snapshot.read_pointer, "{tx:?} is not above {:?}", snapshot.read_pointer);
        Ok(Begun { tx, snapshot })
    }

    fn commit(&self, tx: WritePointer, changes: ChangeSet) -> Result<CommitNumber, CommitFailure> {
        self.hear().map_err(CommitFailure::Transport)?;
        let fault = self.faults.lock().unwrap().pop_front();
        match fault {
            None => Ok(self.decide(tx, &changes)?),
            Some(CommitFault::NotSent) => Err(CommitFailure::Transport(no_answer())),
            Some(CommitFault::RequestLost) => Err(CommitFailure::Unknown(no_answer())),
            Some(CommitFault::ReplyLost) => {
                let _unheard = self.decide(tx, &changes);
                Err(CommitFailure::Unknown(no_answer()))
            }
        }
    }

    fn abort(&self, tx: WritePointer) -> Result<Status, TransportError> {
        self.hear()?;
        let mut state = self.state();
        match state.status(tx) {
            Status::Open | Status::Refused | Status::Invalid(_) => state.end(tx, Status::Aborted),
            _ => {}
        }
        Ok(state.status(tx))
    }

    fn invalidate(&self, tx: WritePointer) -> Result<bool, TransportError> {
        self.hear()?;
        let mut state = self.state();
        let unended = is_unended(state.status(tx));
        if unended {
            state.end(tx, Status::Invalid(InvalidCause::Asked));
        }
        Ok(unended)
    }

    fn settle(&self, tx: WritePointer) -> Result<Status, TransportError> {
        self.hear()?;
        let mut state = self.state();
        if state.status(tx) == Status::Open {
            state.end(tx, Status::Invalid(InvalidCause::Settled));
        }
        Ok(state.status(tx))
    }

    fn snapshot(&self) -> Result<Arc<Snapshot>, TransportError> {
        self.hear()?;
        Ok(Arc::new(self.state().snapshot()))
    }

    fn register_store(&self, name: &StoreName) -> Result<bool, StoreFailure> {
        self.hear()?;
        let mut state = self.state();
        let is_new = !state.stores.contains_key(name);
        state.stores.entry(name.clone()).or_default();
        Ok(is_new)
    }

    fn clean_bound(&self) -> Result<CleanBound, TransportError> {
        self.hear()?;
        Ok(self.state().clean_bound())
    }

    fn store_cleaned(&self, name: &StoreName, bound: WritePointer) -> Result<(), StoreFailure> {
        self.hear()?;
        if self.deaf_to_stores.load(Ordering::SeqCst) {
            return Err(no_answer().into());
        }
        let mut state = self.state();
        let cleaned = state.stores.get_mut(name).ok_or(StoreRefusal::Unknown)?;
        *cleaned = bound.max(*cleaned);
        state.prune();
        Ok(())
    }
}

/// The same sequencer over a line that dies with the first commit.
pub struct GoesDeaf(pub Arc<Sequencer>);

impl Coordinator for GoesDeaf {
    fn begin(&self, options: BeginOptions) -> Result<Begun, BeginFailure> {
        self.0.begin(options)
    }

    fn commit(&self, tx: WritePointer, changes: ChangeSet) -> Result<CommitNumber, CommitFailure> {
        let result = self.0.commit(tx, changes);
        self.0.deaf.store(true, Ordering::SeqCst);
        result
    }

    fn abort(&self, tx: WritePointer) -> Result<Status, TransportError> {
        self.0.abort(tx)
    }

    fn invalidate(&self, tx: WritePointer) -> Result<bool, TransportError> {
        self.0.invalidate(tx)
    }

    fn settle(&self, tx: WritePointer) -> Result<Status, TransportError> {
        self.0.settle(tx)
    }

    fn snapshot(&self) -> Result<Arc<Snapshot>, TransportError> {
        self.0.snapshot()
    }

    fn register_store(&self, name: &StoreName) -> Result<bool, StoreFailure> {
        self.0.register_store(name)
    }

    fn clean_bound(&self) -> Result<CleanBound, TransportError> {
        self.0.clean_bound()
    }

    fn store_cleaned(&self, name: &StoreName, bound: WritePointer) -> Result<(), StoreFailure> {
        self.0.store_cleaned(name, bound)
    }
}
