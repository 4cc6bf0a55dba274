//! How stores are kept small: a store asks how far it may clean, takes out what is invalid up to there, and says so; an
//! operator does the same in all stores, and has forgotten what they held.

use std::sync::Arc;

use seriatim_core::Snapshot;
use seriatim_wire::{ListKind, Listed, StoreRefusal, StoreReply, StoreRequest};

use crate::client::{Call, LISTED_MAX};
use crate::job::Stage;
use crate::knobs::JobKind;
use crate::law;
use crate::probes::Probe;
use crate::store::{SPARE, STORES};
use crate::verdict::{Judged, broken};
use crate::world::World;

/// Keys that are cleaned at once.
const KEYS_AT_ONCE: usize = 6;

impl World {
    /// A server answered a store. Every store that holds anything is registered before any of them acknowledges.
    pub(super) fn store_answered(
        &mut self,
        client: usize,
        worker: usize,
        asked: &StoreRequest<'static>,
        said: StoreReply,
    ) -> Judged {
        let [(left, _), (right, _)] = STORES;
        match (*asked, said) {
            (StoreRequest::Register { name }, StoreReply::Registered(Ok(_))) => {
                if name == left {
                    self.call_now(client, worker, Call::Store(StoreRequest::Register { name: right }));
                } else if name == right {
                    self.call_now(client, worker, Call::Store(StoreRequest::CleanBound));
                } else {
                    self.rest(client, worker);
                }
            }
            (StoreRequest::CleanBound, StoreReply::CleanBound(bounds)) => {
                let job = self.job(client, worker);
                job.clean = bounds.clean;
                let call = match job.kind {
                    JobKind::Spare => Call::Store(StoreRequest::Cleaned { name: SPARE, bound: bounds.clean }),
                    // What it goes by has to be younger than the bound.
                    _ => Call::Snapshot,
                };
                self.call_now(client, worker, call);
            }
            (StoreRequest::Cleaned { .. }, StoreReply::Cleaned(Ok(()))) => {
                self.probes.hit(Probe::StoreAcknowledged);
                if self.once_in(4) {
                    self.call_now(client, worker, Call::Store(StoreRequest::Pruning));
                } else {
                    self.rest(client, worker);
                }
            }
            (StoreRequest::Cleaned { .. }, StoreReply::Cleaned(Err(StoreRefusal::NotHandedOut { .. }))) => {
                self.probes.hit(Probe::BoundUnknown);
                self.call_now(client, worker, Call::Store(StoreRequest::CleanBound));
            }
            (StoreRequest::Cleaned { name: SPARE, .. }, StoreReply::Cleaned(Err(StoreRefusal::Unknown))) => {
                self.probes.hit(Probe::StoreUnknown);
                self.rest(client, worker);
            }
            (StoreRequest::Remove { .. }, StoreReply::Removed(_)) | (StoreRequest::Pruning, StoreReply::Pruning(_)) => {
                self.rest(client, worker);
            }
            (asked, said) => return broken(law::TABLE, format!("{asked:?} was answered {said:?}")),
        }
        Ok(())
    }

    /// The snapshot by which it cleans has come.
    pub(super) fn begin_cleaning(&mut self, client: usize, worker: usize, snapshot: Arc<Snapshot>) {
        let think_us = self.knobs.think_us;
        let job = self.job(client, worker);
        job.snapshot = Some(snapshot);
        let first = job.cleans.start;
        match job.kind {
            JobKind::Forget => self.call_now(client, worker, Call::List(ListKind::Invalid)),
            _ => self.go_on(client, worker, Stage::Clean(first), think_us),
        }
    }

    /// Below which pointer everything invalid can be forgotten: what has further pointers may have one above the bound,
    /// where nobody has cleaned, and a list that was cut tells nothing of the rest.
    pub(super) fn bound_forgetting(&mut self, client: usize, worker: usize, entries: &[Listed]) {
        let think_us = self.knobs.think_us;
        let job = self.job(client, worker);
        let cut = entries.last().filter(|_| entries.len() >= LISTED_MAX as usize);
        let stays =
            entries.iter().find(|entry| entry.checkpoints > 0).into_iter().chain(cut).map(|entry| entry.tx).min();
        if let Some(stays) = stays {
            job.clean.0 = job.clean.0.min(stays.0 - 1);
        }
        let first = job.cleans.start;
        self.go_on(client, worker, Stage::Clean(first), think_us);
    }

    /// Takes out of some keys what is invalid. At the end it says so, or its client is gone by then.
    pub(super) fn clean(&mut self, client: usize, worker: usize, from: usize) {
        let think_us = self.knobs.think_us;
        let job = self.clients[client].workers[worker].job.as_ref().expect("whoever cleans has a job");
        let (end, bound, speaks_for) = (job.cleans.end, job.clean, job.speaks_for);
        let snapshot = job.snapshot.clone().expect("whoever cleans has a snapshot");
        let to = end.min(from + KEYS_AT_ONCE);
        let cleaned: u64 = (from..to).map(|key| self.store.clean(key, bound, &snapshot)).sum();
        self.probes.add(Probe::CleanedInvalid, cleaned);
        self.note("cleaned", &[("from", from as u64), ("bound", bound.0), ("versions", cleaned)]);
        if to < end {
            return self.go_on(client, worker, Stage::Clean(to), think_us);
        }
        if self.once_in(10) {
            self.probes.hit(Probe::LeftUncleaned);
            return self.rest(client, worker);
        }
        let call = match speaks_for {
            Some(name) => Call::Store(StoreRequest::Cleaned { name, bound }),
            None => {
                let mut below = bound;
                below.0 += 1;
                Call::TruncateBefore(below)
            }
        };
        self.call_now(client, worker, call);
    }
}
