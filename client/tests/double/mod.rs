//! Doubles for the tests of contexts: a sequencer with scripted outcomes, participants with planned failures, and a clock
//! that passes only when somebody sleeps. All of them write into one journal, so that orders can be read off.
#![allow(dead_code, reason = "each test takes what it needs")]

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use seriatim_client::*;
use seriatim_core::*;

/// What was called, in order.
#[derive(Clone, Default)]
pub struct Journal(Arc<Mutex<Vec<String>>>);

impl Journal {
    pub fn write(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    /// What was written since the last time.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    /// The same, joined.
    pub fn told(&self) -> String {
        self.take().join(", ")
    }
}

/// What becomes of a call to the sequencer.
pub enum Script {
    /// Nothing is done, and this is the answer.
    Instead(Error),
    /// It is done, and the answer is lost on the way: this is seen instead.
    Lost(Error),
}

/// A sequencer in a few lines: first committer wins, every answer at once.
pub struct Double {
    journal: Journal,
    state: Mutex<State>,
}

struct State {
    next: u64,
    snapshot: Snapshot,
    open: BTreeMap<WritePointer, Begun>,
    ended: BTreeMap<WritePointer, Status>,
    /// The last commit of an id.
    commits: HashMap<ChangeId, (CommitNumber, WritePointer, Option<Arc<str>>)>,
    checked: Option<ChangeSet>,
    submitted: Vec<ChangeSet>,
    begun_with: Vec<BeginOptions>,
    scripts: HashMap<&'static str, VecDeque<Script>>,
}

struct Begun {
    kind: Kind,
    snapshot: CommitNumber,
    label: Option<Arc<str>>,
    checkpoints: Vec<WritePointer>,
}

impl Double {
    pub fn new(journal: &Journal) -> Arc<Double> {
        let state = State {
            next: 100,
            snapshot: Snapshot { read_pointer: WritePointer(99), ..Snapshot::default() },
            open: BTreeMap::new(),
            ended: BTreeMap::new(),
            commits: HashMap::new(),
            checked: None,
            submitted: Vec::new(),
            begun_with: Vec::new(),
            scripts: HashMap::new(),
        };
        Arc::new(Double { journal: journal.clone(), state: Mutex::new(state) })
    }

    /// The next call of this name goes by this script, after those that were set before.
    pub fn script(&self, call: &'static str, script: Script) {
        self.state.lock().unwrap().scripts.entry(call).or_default().push_back(script);
    }

    /// How the transaction stands.
    pub fn status(&self, tx: WritePointer) -> Status {
        self.state.lock().unwrap().status(tx)
    }

    /// How the transaction that began last stands.
    pub fn last_status(&self) -> Status {
        let state = self.state.lock().unwrap();
        let last = state.open.keys().chain(state.ended.keys()).max().copied();
        state.status(last.expect("one has begun"))
    }

    /// The change sets of all commits that came, in order.
    pub fn submitted(&self) -> Vec<ChangeSet> {
        self.state.lock().unwrap().submitted.clone()
    }

    pub fn begun_with(&self) -> Vec<BeginOptions> {
        self.state.lock().unwrap().begun_with.clone()
    }

    /// Somebody else writes these keys and commits.
    pub fn another_commits(&self, keys: &[&[u8]], label: &str) -> WritePointer {
        let mut state = self.state.lock().unwrap();
        let tx = state.begin(BeginOptions::default(), Some(label)).id();
        state.commit(tx, &ChangeSet::of_writes(keys.iter().copied()), 0).unwrap();
        tx
    }

    /// Somebody else ends the transaction.
    pub fn another_ends(&self, tx: WritePointer, status: Status) {
        self.state.lock().unwrap().end(tx, status);
    }

    /// The next pointer is this one, whether it was handed out or not.
    pub fn hands_out_next(&self, pointer: WritePointer) {
        self.state.lock().unwrap().next = pointer.0;
    }

    fn call<T>(&self, call: &'static str, serve: impl FnOnce(&mut State) -> Result<T, Error>) -> Result<T, Error> {
        self.journal.write(call);
        let mut state = self.state.lock().unwrap();
        match state.scripts.get_mut(call).and_then(VecDeque::pop_front) {
            None => serve(&mut state),
            Some(Script::Instead(error)) => Err(error),
            Some(Script::Lost(error)) => {
                serve(&mut state).ok();
                Err(error)
            }
        }
    }
}

impl State {
    fn begin(&mut self, options: BeginOptions, label: Option<&str>) -> TransactionView {
        let tx = WritePointer(self.next);
        self.next += 1;
        let begun = Begun {
            kind: options.kind,
            snapshot: self.snapshot.csn,
            label: label.map(Arc::from),
            checkpoints: Vec::new(),
        };
        self.open.insert(tx, begun);
        let view = TransactionView::new(tx, Arc::new(self.snapshot.clone()));
        self.snapshot.in_progress.insert(tx);
        view
    }

    fn status(&self, tx: WritePointer) -> Status {
        let open = self.open.contains_key(&tx).then_some(Status::Open);
        open.or(self.ended.get(&tx).copied()).unwrap_or(Status::Forgotten)
    }

    fn check(&self, tx: WritePointer, changes: &ChangeSet) -> Result<(), CommitError> {
        let Some(begun) = self.open.get(&tx) else {
            return Err(CommitError::NotInProgress { tx, ended: self.status(tx) });
        };
        if begun.kind == Kind::Long && !changes.is_empty() {
            return Err(CommitError::LongWithChanges { tx });
        }
        for id in changes.writes.iter().chain(&changes.reads) {
            if let Some((csn, winner, label)) = self.commits.get(id)
                && *csn > begun.snapshot
            {
                let (change_id, winner, label) = (id.0, Some(*winner), label.clone());
                return Err(CommitError::Conflict { tx, change_id, csn: *csn, winner, label });
            }
        }
        Ok(())
    }

    fn commit(&mut self, tx: WritePointer, changes: &ChangeSet, checkpoints: u32) -> Result<CommitNumber, Error> {
        self.submitted.push(changes.clone());
        self.check(tx, changes)?;
        let known = self.open[&tx].checkpoints.len() as u32;
        if known != checkpoints {
            return Err(CommitError::CheckpointMismatch { tx, known, named: checkpoints }.into());
        }
        self.snapshot.csn.0 += 1;
        let csn = self.snapshot.csn;
        let label = self.open[&tx].label.clone();
        for id in changes.writes.iter().chain(&changes.marks) {
            self.commits.insert(*id, (csn, tx, label.clone()));
        }
        self.end(tx, Status::Committed(csn));
        Ok(csn)
    }

    fn end(&mut self, tx: WritePointer, status: Status) -> bool {
        let Some(begun) = self.open.remove(&tx) else {
            let cleaned = status == Status::Aborted && matches!(self.status(tx), Status::Invalid(_));
            if cleaned {
                self.ended.insert(tx, status);
            }
            return false;
        };
        let long_aborted = begun.kind == Kind::Long && status == Status::Aborted;
        let status = if long_aborted { Status::Invalid(InvalidCause::LongAborted) } else { status };
        self.ended.insert(tx, status);
        for pointer in begun.checkpoints.into_iter().chain([tx]) {
            self.snapshot.in_progress.remove(pointer);
            self.snapshot.read_pointer = self.snapshot.read_pointer.max(pointer);
            if matches!(status, Status::Invalid(_)) {
                Arc::make_mut(&mut self.snapshot.invalid).pointers.insert(pointer);
            }
        }
        true
    }
}

impl TransactionService for Double {
    fn begin(&self, options: BeginOptions, label: Option<&str>) -> Result<TransactionView, Error> {
        self.call("begin", |state| {
            state.begun_with.push(options);
            Ok(state.begin(options, label))
        })
    }

    fn can_commit(&self, tx: WritePointer, changes: &ChangeSet) -> Result<(), Error> {
        self.call("can commit", |state| {
            state.checked = Some(changes.clone());
            Ok(state.check(tx, changes)?)
        })
    }

    fn commit(&self, tx: WritePointer, changes: &ChangeSet, checkpoints: u32) -> Result<CommitNumber, Error> {
        self.call("commit", |state| state.commit(tx, changes, checkpoints))
    }

    fn commit_checked(&self, tx: WritePointer, changes: &ChangeSet, checkpoints: u32) -> Result<CommitNumber, Error> {
        self.call("commit checked", |state| {
            assert_eq!(state.checked.take().as_ref(), Some(changes), "the second step is about what the first checked");
            state.commit(tx, changes, checkpoints)
        })
    }

    fn checkpoint(&self, tx: WritePointer, number: u32) -> Result<WritePointer, Error> {
        self.call("checkpoint", |state| {
            let pointer = WritePointer(state.next);
            let Some(begun) = state.open.get_mut(&tx) else {
                return Err(CommitError::NotInProgress { tx, ended: state.status(tx) }.into());
            };
            assert_eq!(number as usize, begun.checkpoints.len() + 1);
            begun.checkpoints.push(pointer);
            state.next += 1;
            state.snapshot.in_progress.insert(pointer);
            Ok(pointer)
        })
    }

    fn abort(&self, tx: WritePointer) -> Result<Status, Error> {
        self.call("abort", |state| {
            state.end(tx, Status::Aborted);
            Ok(state.status(tx))
        })
    }

    fn invalidate(&self, tx: WritePointer) -> Result<bool, Error> {
        self.call("invalidate", |state| Ok(state.end(tx, Status::Invalid(InvalidCause::Asked))))
    }

    fn settle(&self, tx: WritePointer) -> Result<Status, Error> {
        self.call("settle", |state| {
            if state.open.contains_key(&tx) {
                state.end(tx, Status::Invalid(InvalidCause::Settled));
            }
            Ok(state.status(tx))
        })
    }

    fn abandon(&self, tx: WritePointer, may_have_written: bool) {
        let written = Status::Invalid(InvalidCause::Disconnected);
        let status = if may_have_written { written } else { Status::Aborted };
        self.journal.write(if may_have_written { "abandon written" } else { "abandon unwritten" });
        self.state.lock().unwrap().end(tx, status);
    }
}

/// A lost answer.
pub fn lost() -> Error {
    Error::Lost(Cause::Closed)
}

/// A conflict of the transaction with this pointer, on an id that nobody has told.
pub fn conflict(tx: u64) -> Error {
    let (tx, csn, winner) = (WritePointer(tx), CommitNumber(7), Some(WritePointer(50)));
    CommitError::Conflict { tx, change_id: 1, csn, winner, label: None }.into()
}

/// What a participant does when it is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Act {
    #[default]
    Well,
    /// Fails, and has something to say.
    Fail(&'static str),
    /// Fails, and has not.
    Decline,
    Panic(&'static str),
}

/// The error of who has nothing to say.
#[derive(Debug, thiserror::Error)]
#[error("no")]
pub struct Declined;

impl Act {
    fn play(self) -> Result<(), BoxError> {
        match self {
            Act::Well => Ok(()),
            Act::Fail(why) => Err(why.into()),
            Act::Decline => Err(Declined.into()),
            Act::Panic(why) => panic!("{why}"),
        }
    }
}

/// What a participant is to do, step by step.
#[derive(Clone, Copy, Default)]
pub struct Plan {
    pub start: Act,
    pub update: Act,
    pub changes: Act,
    pub flush: Act,
    pub after_commit: Act,
    /// A declined rollback is dirty, and no error.
    pub rollback: Act,
    pub name: Act,
}

/// Writes its own name as a key, and does otherwise as planned.
pub struct Dummy {
    name: &'static str,
    journal: Journal,
    state: Mutex<DummyState>,
}

struct DummyState {
    plan: Plan,
    view: Option<TransactionView>,
    keys: Vec<Vec<u8>>,
    reads: Vec<Vec<u8>>,
    marks: Vec<Vec<u8>>,
}

impl Dummy {
    pub fn new(name: &'static str, journal: &Journal, plan: Plan) -> Arc<Dummy> {
        let keys = vec![name.as_bytes().to_vec()];
        let state = DummyState { plan, view: None, keys, reads: Vec::new(), marks: Vec::new() };
        Arc::new(Dummy { name, journal: journal.clone(), state: Mutex::new(state) })
    }

    pub fn plan(&self, plan: Plan) {
        self.state.lock().unwrap().plan = plan;
    }

    pub fn tells(&self, writes: &[&str], reads: &[&str], marks: &[&str]) {
        let own = |keys: &[&str]| keys.iter().map(|key| key.as_bytes().to_vec()).collect();
        let mut state = self.state.lock().unwrap();
        (state.keys, state.reads, state.marks) = (own(writes), own(reads), own(marks));
    }

    /// The view it was given last.
    pub fn view(&self) -> TransactionView {
        self.state.lock().unwrap().view.clone().expect("it was started")
    }

    fn play(&self, step: &str, act: impl Fn(&Plan) -> Act) -> Result<(), BoxError> {
        self.journal.write(format!("{} {step}", self.name));
        let act = act(&self.state.lock().unwrap().plan);
        act.play()
    }
}

impl Participant for Dummy {
    fn name(&self) -> Cow<'_, str> {
        let act = self.state.lock().unwrap().plan.name;
        act.play().expect("a name has no error to return");
        self.name.into()
    }

    fn start(&self, view: &TransactionView) -> Result<(), BoxError> {
        self.state.lock().unwrap().view = Some(view.clone());
        self.play("start", |plan| plan.start)
    }

    fn update(&self, view: &TransactionView) -> Result<(), BoxError> {
        self.state.lock().unwrap().view = Some(view.clone());
        self.play("update", |plan| plan.update)
    }

    fn changes(&self, changes: &mut KeyedChanges) -> Result<(), BoxError> {
        self.play("changes", |plan| plan.changes)?;
        let state = self.state.lock().unwrap();
        state.keys.iter().for_each(|key| changes.write(key));
        state.reads.iter().for_each(|key| changes.read(key));
        state.marks.iter().for_each(|key| changes.mark(key));
        Ok(())
    }

    fn flush(&self) -> Result<(), BoxError> {
        self.play("flush", |plan| plan.flush)
    }

    fn rollback(&self) -> Result<Rollback, BoxError> {
        match self.play("rollback", |plan| plan.rollback) {
            Ok(()) => Ok(Rollback::Clean),
            Err(error) if error.is::<Declined>() => Ok(Rollback::Dirty),
            Err(error) => Err(error),
        }
    }

    fn after_commit(&self, _: CommitNumber) -> Result<(), BoxError> {
        self.play("after", |plan| plan.after_commit)
    }
}

/// A clock that passes only when somebody sleeps, or a test says so.
pub struct TestClock {
    start: Instant,
    passed: Mutex<Duration>,
    slept: Mutex<Vec<Duration>>,
}

impl TestClock {
    pub fn new() -> Arc<TestClock> {
        Arc::new(TestClock { start: Instant::now(), passed: Mutex::default(), slept: Mutex::default() })
    }

    pub fn pass(&self, time: Duration) {
        *self.passed.lock().unwrap() += time;
    }

    /// Every sleep so far.
    pub fn slept(&self) -> Vec<Duration> {
        self.slept.lock().unwrap().clone()
    }
}

impl Clock for TestClock {
    fn now(&self) -> Instant {
        self.start + *self.passed.lock().unwrap()
    }

    fn sleep(&self, time: Duration) {
        self.slept.lock().unwrap().push(time);
        self.pass(time);
    }
}

/// Two participants over one sequencer, and what they all did.
pub struct Stage {
    pub journal: Journal,
    pub service: Arc<Double>,
    pub d1: Arc<Dummy>,
    pub d2: Arc<Dummy>,
    pub clock: Arc<TestClock>,
}

impl Stage {
    pub fn new() -> Stage {
        Stage::planned(Plan::default())
    }

    /// The first one does as planned; the second does well.
    pub fn planned(first: Plan) -> Stage {
        let journal = Journal::default();
        Stage {
            service: Double::new(&journal),
            d1: Dummy::new("d1", &journal, first),
            d2: Dummy::new("d2", &journal, Plan::default()),
            clock: TestClock::new(),
            journal,
        }
    }

    pub fn participants(&self) -> [Arc<dyn Participant>; 2] {
        [self.d1.clone(), self.d2.clone()]
    }

    pub fn context(&self) -> TransactionContext {
        TransactionContext::new(self.service.clone(), self.participants()).with_clock(self.clock.clone())
    }

    pub fn executor(&self) -> TransactionExecutor {
        TransactionExecutor::new(self.service.clone(), self.participants()).with_clock(self.clock.clone())
    }
}

/// Step and text of a participant's failure.
pub fn told(failure: &Failure) -> (Step, String) {
    match failure {
        Failure::Participant { step, source, .. } => (*step, source.to_string()),
        other => panic!("not a participant's failure: {other:?}"),
    }
}
