//! A worker of a client: one transaction after the other, step by step, by the rules of the product.
//!
//! Reads come before writes, writes stand in the store before the commit is asked for (but for deferred ones, whose
//! come after), and they are rolled back only when it is known for good that the commit did not happen.

mod answers;
mod upkeep;

use std::sync::Arc;

use seriatim_core::{BeginOptions, ChangeSet, Changes, Snapshot, Submission, WritePointer};

use crate::client::Call;
use crate::job::{Ending, Job, Stage};
use crate::knobs::JobKind;
use crate::law;
use crate::probes::Probe;
use crate::queue::Event;
use crate::reference::{Standing, Submitted, Write};
use crate::store::{ACCOUNTS, DEPOSIT, Version, first_value};
use crate::verdict::{Judged, hold};
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

    pub fn label(&self) -> Option<&'static str> {
        self.job.as_ref().and_then(|job| job.label)
    }

    pub fn changes(&self) -> &ChangeSet {
        &self.job.as_ref().expect("who commits has a job").changes
    }

    pub fn submission(&self, is_checked: bool) -> Submission<'_> {
        let job = self.job.as_ref().expect("who commits has a job");
        let changes = if is_checked { Changes::Checked(job.changes.digest()) } else { Changes::Given(&job.changes) };
        Submission { changes, checkpoints: job.further.len() as u32 + u32::from(job.miscounts) }
    }

    /// Its snapshot, while it reads, with its transaction if there is one.
    pub fn reader(&self) -> Option<(Option<WritePointer>, &Arc<Snapshot>, u64)> {
        let job = self.job.as_ref()?;
        Some((job.tx, job.snapshot.as_ref()?, job.reads_to_us))
    }

    /// Its transaction, while it may still write.
    pub fn writer(&self) -> Option<(WritePointer, u64)> {
        // Who asks for its end is through with writing.
        let job = self.job.as_ref().filter(|_| matches!(self.call, None | Some(Call::Checkpoint(..))))?;
        let job = Some(job).filter(|job| matches!(job.stage, Stage::Read(_) | Stage::Write(_)))?;
        Some((job.tx?, job.writes_to_us))
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

    /// What a reset has dropped is nowhere any more: whoever ran anything has been stopped, and the store is emptied of it.
    pub fn start_anew(&mut self, dropped: &[WritePointer]) {
        self.note("reset", &[("dropped", dropped.len() as u64)]);
        self.probes.hit(Probe::Reset);
        self.store.remove_all(dropped);
        self.under_way.retain(|_, (tx, _)| !dropped.contains(tx));
        for client in 0..self.clients.len() {
            for worker in 0..self.knobs.workers {
                if self.worker(client, worker).call != Some(Call::Reset) {
                    self.rest(client, worker);
                }
            }
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
            Stage::Write(place) if place < job.writes.len() => self.write(client, worker, place),
            Stage::Write(_) => self.end_job(client, worker),
            Stage::Clean(key) => {
                self.clean(client, worker, key);
                Ok(())
            }
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
            let version = found.map(|version| version.pointer);
            match tx {
                Some(tx) => self.recorder.read(tx, key, version),
                None => self.job(client, worker).told.reads.push((key, version)),
            }
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
        let told = std::mem::take(&mut self.job(client, worker).told);
        self.recorder.reader(told);
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
        let (is_pair, is_skew) = (job.kind == JobKind::Pair, job.kind == JobKind::Skew);
        job.plan_writes(&mut rng);
        let (values, tx) = (job.values.clone(), job.tx);
        let is_open = tx.and_then(|tx| self.reference.standing(tx)) == Some(Standing::Open);
        self.probes.hit_if(is_skew && is_open && values == [0, 0], Probe::WriteSkew);
        hold(!is_pair || !is_open || values != [0, 0], law::FIRST, || "both of a pair are used up".to_owned())
    }

    fn write(&mut self, client: usize, worker: usize, place: usize) -> Judged {
        let (think_us, now) = (self.knobs.think_us, self.now());
        let job = self.job(client, worker);
        let tx = job.tx.expect("whoever writes has a transaction");
        if place > 0 && job.wanted_checkpoints > job.further.len() as u32 {
            let call = Call::Checkpoint(tx, job.further.len() as u32 + 1);
            self.call_now(client, worker, call);
            return Ok(());
        }
        let is_deferred = job.options.deferred;
        if !is_deferred && now >= job.writes_to_us {
            self.probes.hit(Probe::TimeOver);
            self.roll_back(client, worker, tx);
            return Ok(());
        }
        let job = self.job(client, worker);
        let (key, value) = job.writes[place];
        let pointer = job.further.last().copied().unwrap_or(tx);
        let version = Version { pointer, value };
        let write = Write { key, version };
        job.written.push(write);
        let mut on_its_way_us = 0;
        if !is_deferred && self.rng.u8(..) < self.knobs.late_writes {
            on_its_way_us = self.rng.u64(1_000..=self.knobs.options.write_delay_ms * 1_000);
            self.send_write(tx, write, now + on_its_way_us);
        } else if !is_deferred {
            self.judge_write(tx, pointer)?;
            self.store.write(key, version);
        }
        let (from, to) = think_us;
        self.go_on(client, worker, Stage::Write(place + 1), (on_its_way_us + from, on_its_way_us + to));
        Ok(())
    }

    fn end_job(&mut self, client: usize, worker: usize) -> Judged {
        let job = self.job(client, worker);
        let tx = job.tx.expect("whoever ends has a transaction");
        match job.ending {
            Ending::Commit => {
                job.gather_changes();
                let (changes, writes) = (job.changes.clone(), job.written.clone());
                let call = if job.in_two_steps { Call::Check(tx) } else { Call::Commit(tx, false) };
                let (told_csn, now) = (self.told_csn, self.now());
                self.recorder.asked(tx, now);
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
        self.recorder.ended(tx, None, self.clock.now_us());
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
            | Call::List(_)
            | Call::Image
            | Call::Reset => self.rest(client, worker),
            call => self.call_now(client, worker, call),
        }
        Ok(())
    }
}
