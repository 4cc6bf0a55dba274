//! The server's lives: how it starts, has its turns, stops, fails and crashes.

use std::sync::Arc;

use seriatim_core::{Snapshot, WritePointer};
use seriatim_net::{Pipeline, RecoveryReport, StartError};
use seriatim_wal::OpenError;

use crate::clock::SimClock;
use crate::disk::{SimStorage, Torn, lock};
use crate::law;
use crate::network::{Sent, SimNetwork};
use crate::overheard::Owed;
use crate::plants::Planted;
use crate::probes::Probe;
use crate::queue::Event;
use crate::verdict::{Judged, broken, hold};
use crate::world::World;

/// A run of the server.
pub(crate) struct Server {
    pub pipeline: Pipeline<SimNetwork, SimClock, SimStorage, Planted>,
    /// When its next turn is; later ones that are in the queue do not count.
    next_turn_us: u64,
    /// What of the disk is in the queue.
    disk_us: u64,
    /// It gets no processor before this time.
    frozen_to_us: u64,
}

impl Server {
    /// It gets no processor before this time.
    pub fn freeze_to(&mut self, at_us: u64) {
        self.frozen_to_us = at_us;
        // The turn that is in the queue would come too early.
        self.next_turn_us = u64::MAX;
    }
}

impl World {
    pub fn start(&mut self) -> Judged {
        if self.server.is_some() {
            return Ok(());
        }
        let network = SimNetwork::new(self.clock.clone(), self.rng.fork(), self.disk.clone());
        let storage = SimStorage::new(self.disk.clone());
        let (options, limits) = (&self.knobs.options, self.knobs.limits.clone());
        let started = Pipeline::start(network, self.clock.clone(), storage, options, limits);
        self.take_landed()?;
        match started {
            Ok((pipeline, report)) => self.started(pipeline, &report),
            Err(error) => self.not_started(&error),
        }
    }

    fn started(
        &mut self,
        pipeline: Pipeline<SimNetwork, SimClock, SimStorage, Planted>,
        report: &RecoveryReport,
    ) -> Judged {
        self.life += 1;
        self.stepped_us = self.now();
        self.knobs.options.accept_clock = false;
        self.probes.hit_if(report.notes.iter().any(|note| note.contains("passed over")), Probe::ImagePassedOver);
        self.damaged = None;
        let facts =
            [("life", self.life), ("open", report.open), ("commits", report.commits), ("clean", report.clean.into())];
        self.note("started", &facts);
        self.probes.hit_if(report.image.is_some(), Probe::RecoveredFromImage);
        self.probes.hit_if(report.clean, Probe::CleanStart);
        self.probes.hit_if(report.notes.iter().any(|note| note.contains("behind the last")), Probe::ClockBehind);
        let recycled = lock(&self.disk).recycled;
        self.probes.hit_if(recycled > self.probes.count(Probe::SegmentRecycled), Probe::SegmentRecycled);
        self.server = Some(Server { pipeline, next_turn_us: u64::MAX, disk_us: u64::MAX, frozen_to_us: 0 });
        self.watch_disk();
        self.wake_server((0, 10));
        Ok(())
    }

    fn not_started(&mut self, error: &StartError) -> Judged {
        let unsure = lock(&self.disk).forget_failure();
        self.doubt_landed(unsure)?;
        let is_full = |kind| matches!(kind, std::io::ErrorKind::StorageFull);
        match error {
            StartError::Open(OpenError::Missing { .. }) if self.damaged.is_some_and(|damage| !damage.leaves_image) => {
                self.note("no image is left", &[]);
                self.probes.hit(Probe::OnlyImageDamaged);
                self.repair();
            }
            StartError::Open(OpenError::Corrupt { .. }) if self.damaged.is_some() => {
                self.note("damage refused", &[]);
                self.probes.hit(Probe::DamageRefused);
                self.repair();
            }
            StartError::ClockAhead { .. } => {
                self.note("clock refused", &[]);
                self.probes.hit(Probe::ClockAheadRefused);
                self.knobs.options.accept_clock = true;
            }
            StartError::FirstGroup { .. } => {
                self.note("no room to start", &[]);
                self.probes.hit(Probe::FirstGroupRefused);
            }
            StartError::Open(OpenError::Io { source, .. }) if is_full(source.kind()) => {
                self.probes.hit(Probe::FirstGroupRefused);
            }
            StartError::Log(_) => self.note("failed at its first group", &[]),
            error => {
                let cause = std::error::Error::source(error).map(|source| format!(": {source}")).unwrap_or_default();
                return broken(law::DURABLE, format!("a start was refused: {error}{cause}"));
            }
        }
        let at = self.within(self.knobs.down_us);
        self.queue.push(at, Event::Start);
        Ok(())
    }

    /// The server has a turn within this time, from now.
    pub fn wake_server(&mut self, (from, to): (u64, u64)) {
        let at = self.now() + self.rng.u64(from..=to.max(from));
        let life = self.life;
        let Some(server) = self.server.as_mut() else { return };
        let at = at.max(server.frozen_to_us);
        if at < server.next_turn_us {
            server.next_turn_us = at;
            self.queue.push(at, Event::Turn { life });
        }
    }

    /// Puts what the disk has under way into the queue.
    pub fn watch_disk(&mut self) {
        let next = lock(&self.disk).next_us().unwrap_or(u64::MAX);
        let life = self.life;
        let Some(server) = self.server.as_mut() else { return };
        if next != u64::MAX && next != server.disk_us {
            server.disk_us = next;
            self.queue.push(next, Event::Disk { life });
        }
    }

    pub fn turn(&mut self, life: u64, at: u64) -> Judged {
        let is_due = |server: &&mut Server| server.next_turn_us == at;
        let Some(server) = self.server.as_mut().filter(|_| life == self.life).filter(is_due) else { return Ok(()) };
        server.next_turn_us = u64::MAX;
        let was_written = lock(&self.disk).is_written();
        self.events += u64::from(was_written || server.pipeline.network().has_news());
        let result = server.pipeline.turn();
        let sent = server.pipeline.network().take_sent();
        let overdue = server.pipeline.network().overdue();
        let spoke = server.pipeline.network().spoke_after_failure;
        let seen = std::mem::take(&mut server.pipeline.network().seen);
        let (patience, has_news) = (server.pipeline.network().patience, server.pipeline.network().has_news());
        self.trace.mix_bytes(&[1]);
        self.take_landed()?;
        let is_writing = lock(&self.disk).is_writing();
        let has_failed = lock(&self.disk).has_failed;
        self.probes.hit_if(was_written && is_writing, Probe::GroupOverlapped);
        if let Err(failure) = result {
            hold(has_failed, law::DURABLE, || format!("the server ended by itself: {failure}"))?;
            hold(!spoke, law::FAILED, || "replies left after a failed write".to_owned())?;
            self.note("server failed", &[("life", self.life)]);
            self.probes.hit(Probe::WriteFailed);
            return self.server_gone();
        }
        hold(!has_failed, law::FAILED, || "the server goes on after a failed write".to_owned())?;
        if let Some((connection, Owed { id, op, .. })) = overdue {
            return broken(law::BEGIN, format!("request {id} with op {op} of connection {connection} is not answered"));
        }
        self.probes.add(Probe::WholeSnapshot, seen.whole_with_base);
        self.probes.add(Probe::SnapshotDelta, seen.differences);
        self.probes.add(Probe::DigestChecked, seen.digests);
        self.probes.add(Probe::PartialRead, seen.partial_reads);
        self.take_sent(sent);
        self.watch_disk();
        if was_written && self.once_in(4) {
            let bounds = self.bounds();
            bounds.iter().try_for_each(|bounds| self.judge_bound(bounds))?;
        }
        let rest_us = if has_news { 1 } else { u64::try_from(patience.as_micros()).unwrap_or(50_000).max(1) };
        self.wake_server((rest_us, rest_us));
        Ok(())
    }

    fn take_sent(&mut self, sent: Vec<Sent>) {
        for Sent { connection, bytes, is_closed } in sent {
            if !bytes.is_empty() {
                self.send_to_client(connection, bytes);
            }
            if is_closed {
                self.show_end_to_client(connection, 1);
            }
        }
    }

    /// It is stopped as it should be.
    pub fn stop(&mut self) -> Judged {
        let Some(server) = self.server.as_mut() else { return Ok(()) };
        server.pipeline.network().waits = true;
        let result = server.pipeline.stop();
        let sent = server.pipeline.network().take_sent();
        let spoke = server.pipeline.network().spoke_after_failure;
        // Whatever became durable on the way is seen only now, after the last replies were waited for.
        self.trouble_to_us = self.trouble_to_us.max(self.now());
        self.take_landed()?;
        self.note("stopped", &[("life", self.life)]);
        if let Err(failure) = result {
            hold(lock(&self.disk).has_failed, law::DURABLE, || format!("a stop failed: {failure}"))?;
            hold(!spoke, law::FAILED, || "replies left after a failed write".to_owned())?;
        }
        self.take_sent(sent);
        self.server_gone()
    }

    /// The machine stops: what was not synced is there or not.
    pub fn crash(&mut self) -> Judged {
        if self.server.is_none() {
            return Ok(());
        }
        let torn = lock(&self.disk).crash();
        self.note("crash", &[("life", self.life), ("torn", torn as u64)]);
        self.probes.hit(if torn == Torn::Idle { Probe::CrashIdle } else { Probe::CrashInWrite });
        self.server_gone()
    }

    /// Its process is killed, and the machine goes on.
    pub fn kill(&mut self) -> Judged {
        if self.server.is_none() {
            return Ok(());
        }
        let is_late = lock(&self.disk).kill();
        self.note("killed", &[("life", self.life), ("writing", is_late.into())]);
        self.probes.hit_if(is_late, Probe::LateWrite);
        self.server_gone()
    }

    /// The process is no more.
    fn server_gone(&mut self) -> Judged {
        self.server = None;
        self.take_landed()?;
        let unsure = lock(&self.disk).forget_failure();
        self.doubt_landed(unsure)?;
        for client in 0..self.clients.len() {
            if let Some(connection) = self.clients[client].connection() {
                let late_us = if self.once_in(8) { 300_000 } else { 3_000 };
                let delay_us = self.rng.u64(..late_us);
                self.show_end_to_client(connection, delay_us);
            }
        }
        let at = self.within(self.knobs.down_us);
        self.queue.push(at, Event::Start);
        Ok(())
    }

    /// How far the store may collect garbage, and a snapshot that tells what counts.
    pub fn bounds(&mut self) -> Option<Bounds> {
        let (visible, snapshot) = self.server.as_mut()?.pipeline.visibility_bound();
        Some(Bounds { visible, snapshot })
    }
}

/// What every reader there is has settled, and a snapshot that tells what of it counts.
pub(crate) struct Bounds {
    pub visible: WritePointer,
    pub snapshot: Arc<Snapshot>,
}
