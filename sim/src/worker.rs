//! A worker of a client: one transaction after the other, step by step, by the rules of the product.
//!
//! Reads come before writes, writes stand in the store before the commit is asked for (but for deferred ones, whose
//! come after), and they are rolled back only when it is known for good that the commit did not happen.

use std::sync::Arc;

use seriatim_core::{
    BeginError, BeginOptions, ChangeSet, Changes, CommitError, Full, InvalidCause, Kind, Snapshot, Status, Submission,
    WritePointer,
};
use seriatim_wire::ErrorCode;

use crate::client::{Call, Heard};
use crate::job::{Ending, Job, Stage};
use crate::knobs::JobKind;
use crate::probes::Probe;
use crate::queue::Event;
use crate::reference::{Standing, Submitted, Write, law};
use crate::store::{ACCOUNTS, DEPOSIT, PAIRS, Version, first_value, range_id};
use crate::verdict::{Judged, broken, hold};
use crate::world::{Phase, World};

/// See the head of this file.
#[derive(Default)]
pub(crate) struct Worker {
    /// What it waits for, so that what it no longer waits for passes it by.
    step: u64,
    pub job: Option<Job>,
    call: Option<Call>,
    asked_us: u64,
    /// The call has left, over the connection that there is now.
    is_sent: bool,
    /// It lost a conflict and tries the same keys again, on a snapshot that has to hold this commit.
    pub saw_winner: u64,
}

impl Worker {
    pub fn asks(&mut self, call: Call, now_us: u64) {
        self.call = Some(call);
        self.asked_us = now_us;
        self.is_sent = false;
    }

    pub fn step(&self) -> u64 {
        self.step
    }

    pub fn call(&self) -> Option<Call> {
        self.call
    }

    pub fn set_sent(&mut self) {
        self.is_sent = true;
    }

    /// The connection is lost: a commit that has left is in doubt.
    pub fn lose(&mut self) {
        let was_sent = std::mem::take(&mut self.is_sent);
        if let (Some(Call::Commit(..)), Some(job), true) = (self.call, self.job.as_mut(), was_sent) {
            job.doubt = true;
        }
    }

    pub fn is_idle(&self) -> bool {
        self.job.is_none() && self.call.is_none()
    }

    pub fn options(&self) -> BeginOptions {
        self.job.as_ref().map(|job| job.options).unwrap_or_default()
    }

    pub fn changes(&self) -> &ChangeSet {
        &self.job.as_ref().expect("who commits has a job").changes
    }

    pub fn submission(&self, is_checked: bool) -> Submission<'_> {
        let job = self.job.as_ref().expect("who commits has a job");
        let changes = if is_checked { Changes::Checked(job.changes.digest()) } else { Changes::Given(&job.changes) };
        Submission { changes, checkpoints: job.further.len() as u32 }
    }

    /// Its snapshot, while it reads, with its transaction if there is one.
    pub fn reader(&self) -> Option<(Option<WritePointer>, &Arc<Snapshot>, u64)> {
        let job = self.job.as_ref()?;
        Some((job.tx, job.snapshot.as_ref()?, job.reads_to_us))
    }

    pub fn describe(&self) -> String {
        let job = self.job.as_ref().map(|job| (job.kind, job.stage, job.tx, job.doubt));
        format!("{job:?} {:?}, sent: {}", self.call, self.is_sent)
    }
}

impl World {
    fn worker(&mut self, client: usize, worker: usize) -> &mut Worker {
        &mut self.clients[client].workers[worker]
    }

    fn job(&mut self, client: usize, worker: usize) -> &mut Job {
        self.worker(client, worker).job.as_mut().expect("whoever goes on has a job")
    }

    /// What it waited for has come, or does not count any more.
    fn next_step(&mut self, client: usize, worker: usize) -> u64 {
        self.last_step += 1;
        let step = self.last_step;
        let state = self.worker(client, worker);
        state.step = step;
        state.call = None;
        step
    }

    /// It goes on after a while.
    fn go_on(&mut self, client: usize, worker: usize, stage: Stage, time_us: (u64, u64)) {
        let step = self.next_step(client, worker);
        self.job(client, worker).stage = stage;
        let at = self.within(time_us);
        self.queue.push(at, Event::Wake { client, worker, step });
    }

    /// It has nothing to do for a while.
    pub fn rest(&mut self, client: usize, worker: usize) {
        let step = self.next_step(client, worker);
        self.worker(client, worker).job = None;
        if self.phase == Phase::Safety {
            let at = self.within(self.knobs.think_us).max(self.quiet_to_us);
            self.queue.push(at, Event::Wake { client, worker, step });
        }
    }

    /// Everybody else is through, and one looks at what is left.
    pub fn last_call(&mut self, client: usize, worker: usize) {
        self.call_now(client, worker, Call::Snapshot);
    }

    fn call_now(&mut self, client: usize, worker: usize, call: Call) {
        self.next_step(client, worker);
        self.ask(client, worker, call);
    }

    fn pause(&mut self, client: usize, worker: usize, call: Call) {
        self.go_on(client, worker, Stage::Again(call), (1_000, 20_000));
    }

    pub fn wake(&mut self, client: usize, worker: usize, step: u64) -> Judged {
        if self.worker(client, worker).step != step {
            return Ok(());
        }
        let think_us = self.knobs.think_us;
        let Some(job) = self.worker(client, worker).job.as_ref() else { return self.begin_job(client, worker) };
        match job.stage {
            Stage::Read(place) if place < job.reads.len() => {
                self.read(client, worker, place)?;
                if self.worker(client, worker).job.is_some() {
                    self.go_on(client, worker, Stage::Read(place + 1), think_us);
                }
                Ok(())
            }
            Stage::Read(_) if job.tx.is_none() => self.finish_reading(client, worker),
            Stage::Read(_) => {
                self.plan_writes(client, worker)?;
                self.go_on(client, worker, Stage::Write(0), think_us);
                Ok(())
            }
            Stage::Write(place) if place < job.writes.len() => {
                self.write(client, worker, place);
                Ok(())
            }
            Stage::Write(_) => self.end_job(client, worker),
            Stage::Again(call) => {
                self.call_now(client, worker, call);
                Ok(())
            }
        }
    }

    fn begin_job(&mut self, client: usize, worker: usize) -> Judged {
        if self.phase == Phase::Liveness {
            self.next_step(client, worker);
            return Ok(());
        }
        if self.now() < self.quiet_to_us {
            self.rest(client, worker);
            return Ok(());
        }
        let job = Job::draw(&mut self.rng, &self.knobs, &self.reference);
        let call = job.first_call();
        self.worker(client, worker).job = Some(job);
        self.call_now(client, worker, call);
        Ok(())
    }

    fn read(&mut self, client: usize, worker: usize, place: usize) -> Judged {
        let job = self.clients[client].workers[worker].job.as_ref().expect("whoever reads has a job");
        let (key, tx) = (job.reads[place], job.tx);
        let snapshot = job.snapshot.clone().expect("whoever reads has a snapshot");
        // Who has ended is told so when it asks for something; until then it may meet versions that are gone.
        let is_held = match tx {
            Some(tx) => {
                matches!(self.reference.standing(tx), Some(Standing::Handed | Standing::Open | Standing::Refused))
            }
            None => self.now() < job.reads_to_us,
        };
        let found = self.store.read(key, &snapshot);
        if !is_held {
            if tx.is_none() {
                self.rest(client, worker);
                return Ok(());
            }
        } else {
            self.judge_read(key, &snapshot, found)?;
        }
        self.job(client, worker).values.push(found.map_or(first_value(key), |version| version.value));
        Ok(())
    }

    /// All accounts were read, through one snapshot.
    fn finish_reading(&mut self, client: usize, worker: usize) -> Judged {
        let job = self.job(client, worker);
        let sum: i64 = job.values.iter().sum();
        let (count, is_final) = (job.values.len(), job.is_final);
        let expected = DEPOSIT * count as i64;
        hold(sum == expected && count == ACCOUNTS.len(), law::READ, || format!("{count} accounts sum up to {sum}"))?;
        if is_final {
            let snapshot = self.job(client, worker).snapshot.clone().expect("whoever reads has a snapshot");
            // What a dead client had sent may have arrived, and committed, meanwhile: then one looks again.
            if snapshot.csn.0 == self.reference.csn() {
                self.judge_final(&snapshot)?;
                self.is_done = true;
            }
        }
        self.rest(client, worker);
        Ok(())
    }

    fn plan_writes(&mut self, client: usize, worker: usize) -> Judged {
        let mut rng = self.rng.fork();
        let job = self.job(client, worker);
        let is_pair = job.kind == JobKind::Pair && PAIRS.contains(&job.reads[0]);
        job.plan_writes(&mut rng);
        let (values, tx) = (job.values.clone(), job.tx);
        let is_open = tx.and_then(|tx| self.reference.standing(tx)) == Some(Standing::Open);
        hold(!is_pair || !is_open || values != [0, 0], law::FIRST, || "both of a pair are used up".to_owned())
    }

    fn write(&mut self, client: usize, worker: usize, place: usize) {
        let think_us = self.knobs.think_us;
        let job = self.job(client, worker);
        let tx = job.tx.expect("whoever writes has a transaction");
        if place > 0 && job.wanted_checkpoints > job.further.len() as u32 {
            let call = Call::Checkpoint(tx, job.further.len() as u32 + 1);
            return self.call_now(client, worker, call);
        }
        let (key, value) = job.writes[place];
        let pointer = job.further.last().copied().unwrap_or(tx);
        let version = Version { pointer, value };
        job.written.push(Write { key, version });
        if !job.options.deferred {
            self.store.write(key, version);
        }
        self.go_on(client, worker, Stage::Write(place + 1), think_us);
    }

    fn end_job(&mut self, client: usize, worker: usize) -> Judged {
        let job = self.job(client, worker);
        let tx = job.tx.expect("whoever ends has a transaction");
        match job.ending {
            Ending::Commit => {
                job.gather_changes();
                let (changes, writes) = (job.changes.clone(), job.written.clone());
                let call = if job.in_two_steps { Call::Check(tx) } else { Call::Commit(tx, false) };
                let told_csn = self.told_csn;
                if let Some(known) = self.reference.known_mut(tx) {
                    known.submitted = Some(Submitted { changes, writes, told_csn });
                }
                self.call_now(client, worker, call);
            }
            Ending::Abort => self.roll_back(client, worker, tx),
            Ending::Invalidate => self.call_now(client, worker, Call::Invalidate(tx)),
            Ending::Vanish => self.rest(client, worker),
        }
        Ok(())
    }

    /// Takes its writes away again, and says so.
    fn roll_back(&mut self, client: usize, worker: usize, tx: WritePointer) {
        for Write { key, version } in std::mem::take(&mut self.job(client, worker).written) {
            self.store.remove(key, version.pointer);
        }
        self.call_now(client, worker, Call::Abort(tx));
    }

    pub fn time_out(&mut self, client: usize, worker: usize, step: u64) -> Judged {
        let state = self.worker(client, worker);
        let Some(call) = state.call.filter(|_| state.step == step) else { return Ok(()) };
        let was_sent = state.is_sent;
        self.note("timed out", &[("client", client as u64), ("worker", worker as u64)]);
        match call {
            Call::Commit(tx, _) => {
                let job = self.job(client, worker);
                job.doubt |= was_sent;
                let call = if job.doubt { Call::Settle(tx) } else { call };
                self.call_now(client, worker, call);
            }
            Call::Begin(_)
            | Call::Snapshot
            | Call::Stamps(_)
            | Call::Status(_)
            | Call::Fence(_)
            | Call::State
            | Call::List(_) => self.rest(client, worker),
            call => self.call_now(client, worker, call),
        }
        Ok(())
    }

    /// An answer, which may be to a call that nobody waits for any more.
    pub fn answered(&mut self, client: usize, worker: usize, step: u64, call: Call, heard: Heard) -> Judged {
        let state = self.worker(client, worker);
        if state.step != step || state.call != Some(call) {
            return Ok(());
        }
        let think_us = self.knobs.think_us;
        match (call, heard) {
            (_, Heard::Error(code, asked)) => self.refused_by_server(client, worker, call, code, asked),
            (Call::Begin(_), Heard::Begun(Ok((tx, snapshot)))) => {
                let winner = std::mem::take(&mut self.worker(client, worker).saw_winner);
                self.probes.hit_if(winner > 0 && snapshot.csn.0 >= winner, Probe::RetrySawWinner);
                let job = self.job(client, worker);
                (job.tx, job.snapshot) = (Some(tx), Some(snapshot));
                self.go_on(client, worker, Stage::Read(0), think_us);
            }
            (Call::Begin(_), Heard::Begun(Err(error))) | (Call::Stamps(_), Heard::Stamps(Err(error))) => {
                self.begin_refused(client, worker, call, error)?;
            }
            (Call::Snapshot, Heard::Snapshot(snapshot)) => {
                let asked_us = self.worker(client, worker).asked_us;
                let reads_to_us = asked_us + u64::from(self.knobs.limits.snapshot_age_ms) * 1_000;
                let job = self.job(client, worker);
                (job.snapshot, job.reads_to_us) = (Some(snapshot), reads_to_us);
                self.go_on(client, worker, Stage::Read(0), think_us);
            }
            (Call::Stamps(_) | Call::Status(_) | Call::Fence(_) | Call::State | Call::List(_), _) => {
                self.rest(client, worker);
            }
            (Call::Check(tx), Heard::Checked(Ok(()))) => self.call_now(client, worker, Call::Commit(tx, true)),
            // Advice, which may be taken.
            (Call::Check(tx), Heard::Checked(Err(error))) => match error {
                CommitError::Conflict { .. } | CommitError::TooOld { .. } => self.roll_back(client, worker, tx),
                CommitError::Overloaded(_) => self.pause(client, worker, call),
                _ => self.call_now(client, worker, Call::Commit(tx, false)),
            },
            (Call::Checkpoint(..), Heard::Checkpoint(Ok(pointer))) => {
                let job = self.job(client, worker);
                job.further.push(pointer);
                let place = job.written.len();
                self.go_on(client, worker, Stage::Write(place), think_us);
            }
            (Call::Checkpoint(tx, _), Heard::Checkpoint(Err(error))) => match error {
                CommitError::Overloaded(_) => self.pause(client, worker, call),
                _ => self.roll_back(client, worker, tx),
            },
            (Call::Commit(tx, _), Heard::Committed(Ok(_))) => self.committed(client, worker, tx),
            (Call::Commit(tx, _), Heard::Committed(Err(error))) => {
                self.commit_refused(client, worker, tx, call, error)?
            }
            (Call::Settle(tx), Heard::Status(status)) => self.settled(client, worker, tx, status),
            (Call::Abort(tx), Heard::Status(status)) => self.aborted(client, worker, tx, status)?,
            (Call::Invalidate(_) | Call::Truncate(_), _) => self.rest(client, worker),
            (call, heard) => return broken(law::PROTOCOL, format!("{call:?} was answered {heard:?}")),
        }
        Ok(())
    }

    /// The request was not done.
    fn refused_by_server(&mut self, client: usize, worker: usize, call: Call, code: ErrorCode, asked: u64) {
        self.probes.hit_if(code == ErrorCode::DiskFull, Probe::DiskFull);
        let is_ring = code == ErrorCode::Overloaded && asked == Full::EventRing as u64;
        self.probes.hit_if(is_ring, Probe::RingFull);
        let in_doubt = self.worker(client, worker).job.as_ref().is_some_and(|job| job.doubt);
        match call {
            Call::Commit(tx, _) if in_doubt => self.pause(client, worker, Call::Settle(tx)),
            call => self.pause(client, worker, call),
        }
    }

    fn begin_refused(&mut self, client: usize, worker: usize, call: Call, error: BeginError) -> Judged {
        match error {
            BeginError::Overloaded(full) => {
                self.probes.hit_if(full == Full::Window, Probe::WindowOverloaded);
                self.probes.hit_if(full == Full::OpenTransactions, Probe::TableFull);
                self.probes.hit_if(full == Full::EventRing, Probe::RingFull);
                self.probes.hit_if(full == Full::Invalid, Probe::LongRefused);
                // What is invalid stays so, and only LONG begins are refused for it.
                if full == Full::Invalid || (self.phase == Phase::Safety && self.once_in(2)) {
                    self.rest(client, worker);
                } else {
                    self.pause(client, worker, call);
                }
                Ok(())
            }
            error => broken(law::BOUNDS, format!("a begin within its limits was refused: {error}")),
        }
    }

    fn committed(&mut self, client: usize, worker: usize, tx: WritePointer) {
        let job = self.job(client, worker);
        let (is_deferred, written) = (job.options.deferred, std::mem::take(&mut job.written));
        let facts = (job.options.kind, job.further.len());
        self.probes.hit_if(facts.0 == Kind::Long, Probe::LongCommitted);
        self.probes.hit_if(facts.1 > 0, Probe::Checkpointed);
        if is_deferred {
            self.probes.hit(Probe::WroteLate);
            for Write { key, version } in written {
                self.store.write(key, version);
            }
        }
        self.note("committed", &[("client", client as u64), ("tx", tx.0)]);
        self.rest(client, worker);
    }

    fn commit_refused(
        &mut self,
        client: usize,
        worker: usize,
        tx: WritePointer,
        call: Call,
        error: CommitError,
    ) -> Judged {
        let (doubt, serializable) = (self.job(client, worker).doubt, self.job(client, worker).is_serializable);
        self.note("refused", &[("client", client as u64), ("tx", tx.0), ("doubt", doubt.into())]);
        match error {
            CommitError::Conflict { csn, change_id, .. } => {
                let job = self.job(client, worker);
                let was_read = serializable && job.changes.writes.iter().all(|id| id.0 != change_id);
                self.probes.hit_if(was_read, Probe::SerializableRefused);
                self.probes.hit_if(change_id == range_id().0, Probe::RangeRefused);
                self.worker(client, worker).saw_winner = csn.0;
                self.roll_back(client, worker, tx);
            }
            CommitError::TooOld { .. } | CommitError::Expired { .. } => self.roll_back(client, worker, tx),
            CommitError::NotInProgress { ended, .. } => self.commit_after_end(client, worker, tx, ended)?,
            CommitError::NeedChanges { .. } => {
                self.probes.hit(Probe::NeedChanges);
                self.call_now(client, worker, Call::Commit(tx, false));
            }
            CommitError::Overloaded(full) => {
                self.probes.hit_if(full == Full::EventRing, Probe::RingFull);
                let call = if doubt { Call::Settle(tx) } else { call };
                self.pause(client, worker, call);
            }
            error => return broken(law::TABLE, format!("a commit within its limits was refused: {error}")),
        }
        Ok(())
    }

    /// It had ended before this commit was looked at: by an earlier attempt, or otherwise.
    fn commit_after_end(&mut self, client: usize, worker: usize, tx: WritePointer, ended: Status) -> Judged {
        let doubt = self.job(client, worker).doubt;
        match ended {
            Status::Committed(_) => {
                hold(doubt, law::OUTCOME, || format!("{tx} had committed before it was asked for"))?;
                self.probes.hit(Probe::RepeatedCommitted);
                self.committed(client, worker, tx);
            }
            Status::Refused | Status::Aborted | Status::Invalid(_) => {
                self.probes.hit(if doubt { Probe::RepeatedRefused } else { Probe::LateCommitRefused });
                self.roll_back(client, worker, tx);
            }
            // Nobody knows: its writes stay as they are, visible or not.
            Status::Forgotten => self.rest(client, worker),
            Status::Open | Status::Deciding => self.call_now(client, worker, Call::Settle(tx)),
        }
        Ok(())
    }

    fn settled(&mut self, client: usize, worker: usize, tx: WritePointer, status: Status) {
        match status {
            // Whose it is has not said that it is rolled back.
            _ if self.job(client, worker).kind == JobKind::Look => self.rest(client, worker),
            Status::Committed(_) => {
                self.probes.hit(Probe::SettledCommitted);
                self.committed(client, worker, tx);
            }
            Status::Refused | Status::Aborted | Status::Invalid(_) => {
                self.probes.hit(Probe::SettledOpen);
                self.roll_back(client, worker, tx);
            }
            _ => self.rest(client, worker),
        }
    }

    fn aborted(&mut self, client: usize, worker: usize, tx: WritePointer, status: Status) -> Judged {
        match status {
            Status::Committed(csn) => {
                return broken(law::OUTCOME, format!("{tx} was rolled back, and had committed as {csn}"));
            }
            // To name the first pointer of what a crash left unaccounted would forget all of it.
            Status::Invalid(cause) if cause != InvalidCause::Unaccounted && self.once_in(2) => {
                let is_long = self.job(client, worker).options.kind == Kind::Long;
                self.probes.hit_if(is_long, Probe::LongAborted);
                // Nothing of it stands any more, so it may be forgotten.
                self.call_now(client, worker, Call::Truncate(tx));
            }
            Status::Open | Status::Deciding => self.pause(client, worker, Call::Abort(tx)),
            _ => self.rest(client, worker),
        }
        Ok(())
    }
}
