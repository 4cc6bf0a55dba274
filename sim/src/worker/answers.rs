//! What a worker makes of its answers, by the rules of the product.

use seriatim_core::{BeginError, CommitError, CommitNumber, Full, InvalidCause, Kind, Status, WritePointer};
use seriatim_wire::ErrorCode;

use crate::client::{Call, Heard};
use crate::job::Stage;
use crate::knobs::JobKind;
use crate::law;
use crate::probes::Probe;
use crate::recorder::Told;
use crate::reference::Write;
use crate::store::range_id;
use crate::verdict::{Judged, broken, hold};
use crate::world::{Phase, World};

/// What a careful client leaves of its time, for clocks that count in whole ms.
const DEADLINE_MARGIN_MS: u64 = 2;

/// After so long without trouble the window of pointers reaches ahead of the clock again.
const WINDOW_RENEWED_US: u64 = 1_000_000;

impl World {
    /// An answer, which may be to a call that nobody waits for any more.
    pub fn answered(&mut self, client: usize, worker: usize, step: u64, call: Call, heard: Heard) -> Judged {
        let state = self.worker(client, worker);
        if state.step != step || state.call != Some(call) {
            return Ok(());
        }
        let (think_us, now) = (self.knobs.think_us, self.now());
        match (call, heard) {
            (_, Heard::Error(code, asked)) => self.refused_by_server(client, worker, call, code, asked),
            (Call::Begin(_), Heard::Begun(Ok((tx, snapshot)))) => {
                let winner = std::mem::take(&mut self.worker(client, worker).saw_winner);
                self.probes.hit_if(winner > 0 && snapshot.csn.0 >= winner, Probe::RetrySawWinner);
                let asked_us = self.worker(client, worker).asked_us;
                let limits = &self.knobs.options.limits;
                let (short_ms, long_ms) = (limits.short_timeout_ms, limits.long_timeout_ms);
                let job = self.job(client, worker);
                let usual_ms = if job.options.kind == Kind::Long { long_ms } else { short_ms };
                let timeout_ms = job.options.timeout_ms.unwrap_or(usual_ms);
                job.writes_to_us = asked_us + timeout_ms.saturating_sub(DEADLINE_MARGIN_MS) * 1_000;
                if !matches!(job.kind, JobKind::Bulk | JobKind::Late) {
                    let told = Told::new(&snapshot, job.is_serializable, (asked_us, now));
                    self.recorder.begun(tx, told);
                }
                let job = self.job(client, worker);
                (job.tx, job.snapshot) = (Some(tx), Some(snapshot));
                self.go_on(client, worker, Stage::Read(0), think_us);
            }
            (Call::Begin(_), Heard::Begun(Err(error))) | (Call::Stamps(_), Heard::Stamps(Err(error))) => {
                self.begin_refused(client, worker, call, error)?;
            }
            (Call::Store(asked), Heard::Store(said)) => self.store_answered(client, worker, &asked, said)?,
            (Call::Snapshot, Heard::Snapshot(snapshot)) if self.job(client, worker).is_upkeep() => {
                self.begin_cleaning(client, worker, snapshot);
            }
            (Call::List(_), Heard::Listed(entries)) if self.job(client, worker).kind == JobKind::Forget => {
                self.bound_forgetting(client, worker, &entries);
            }
            (Call::Snapshot, Heard::Snapshot(snapshot)) => {
                let asked_us = self.worker(client, worker).asked_us;
                let reads_to_us = asked_us + u64::from(self.knobs.options.snapshot_age_ms) * 1_000;
                let job = self.job(client, worker);
                job.told = Told::new(&snapshot, false, (asked_us, now));
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
            (Call::Checkpoint(tx, _), Heard::Checkpoint(Ok(pointer))) => {
                self.recorder.checkpoint(tx, pointer);
                let job = self.job(client, worker);
                job.further.push(pointer);
                let place = job.written.len();
                self.go_on(client, worker, Stage::Write(place), think_us);
            }
            (Call::Checkpoint(tx, _), Heard::Checkpoint(Err(error))) => match error {
                CommitError::Overloaded(_) => self.pause(client, worker, call),
                _ => self.roll_back(client, worker, tx),
            },
            (Call::Commit(tx, _), Heard::Committed(Ok(csn))) => {
                hold(!self.job(client, worker).miscounts, law::TABLE, || {
                    format!("{tx} committed, and its client did not know how many checkpoints it has")
                })?;
                self.committed(client, worker, tx, csn);
            }
            (Call::Commit(tx, _), Heard::Committed(Err(error))) => {
                self.commit_refused(client, worker, tx, call, error)?
            }
            (Call::Settle(tx), Heard::Status(status)) => self.settled(client, worker, tx, status),
            (Call::Abort(tx), Heard::Status(status)) => self.aborted(client, worker, tx, status)?,
            (Call::Invalidate(_) | Call::Truncate(_) | Call::TruncateBefore(_) | Call::Image | Call::Reset, _) => {
                self.rest(client, worker)
            }
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
            // A reset that came in between is one too.
            Call::Reset => self.rest(client, worker),
            Call::Commit(tx, _) if in_doubt => self.pause(client, worker, Call::Settle(tx)),
            call => self.pause(client, worker, call),
        }
    }

    fn begin_refused(&mut self, client: usize, worker: usize, call: Call, error: BeginError) -> Judged {
        match error {
            BeginError::Overloaded(full) => {
                if full == Full::Window {
                    self.probes.hit(Probe::WindowOverloaded);
                    let asked_us = self.worker(client, worker).asked_us;
                    let excused_to_us = self.trouble_to_us.max(self.stepped_us) + WINDOW_RENEWED_US;
                    hold(asked_us < excused_to_us, law::BEGIN, || {
                        format!("a begin asked at {asked_us} found the window used up, with nothing wrong since")
                    })?;
                }
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

    fn committed(&mut self, client: usize, worker: usize, tx: WritePointer, csn: CommitNumber) {
        self.recorder.ended(tx, Some(csn.0), self.clock.now_us());
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
            CommitError::CheckpointMismatch { .. } if self.job(client, worker).miscounts => {
                self.probes.hit(Probe::Miscounted);
                self.job(client, worker).miscounts = false;
                self.call_now(client, worker, call);
            }
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
            Status::Committed(csn) => {
                hold(doubt, law::OUTCOME, || format!("{tx} had committed before it was asked for"))?;
                self.probes.hit(Probe::RepeatedCommitted);
                self.committed(client, worker, tx, csn);
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
            Status::Committed(csn) => {
                self.probes.hit(Probe::SettledCommitted);
                self.committed(client, worker, tx, csn);
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
            Status::Invalid(cause) if self.once_in(2) => {
                self.probes.hit_if(cause == InvalidCause::Unaccounted, Probe::UnaccountedNamed);
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
