//! What goes wrong, and when it is over.

use seriatim_core::WRITES_WITHOUT_DEADLINE_MS;
use seriatim_wal::FileName;
use seriatim_wire::{Hello, Op, request};

use crate::disk::lock;
use crate::job::Job;
use crate::knobs::{Mishap, pick};
use crate::log_reader::WrittenGroup;
use crate::probes::Probe;
use crate::queue::Event;
use crate::verdict::Judged;
use crate::world::{Phase, World};

/// What somebody who speaks nonsense may ask for without ending what others do, or beginning what nobody ends.
const NOISY_OPS: [Op; 7] = [Op::Commit, Op::Status, Op::Settle, Op::Snapshot, Op::Timestamps, Op::List, Op::Ping];

/// A bit that flipped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Damage {
    pub file: FileName,
    pub offset: u64,
    pub bit: u8,
    /// There is another image than the one that it is in, if it is in one.
    pub leaves_image: bool,
}

/// The longest night.
const NIGHT_MS_MAX: u64 = 30 * 3_600_000;

/// A day, in ms.
const DAY_MS: i64 = 24 * 3_600_000;

impl World {
    pub fn mishap(&mut self) -> Judged {
        if self.phase == Phase::Liveness {
            return Ok(());
        }
        let at = self.within(self.knobs.mishap_us);
        self.queue.push(at, Event::Mishap);
        let now = self.now();
        if self.full_to_us > 0 {
            self.trouble_to_us = self.trouble_to_us.max(now);
        }
        if now >= self.full_to_us && self.full_to_us > 0 {
            self.full_to_us = 0;
            lock(&self.disk).manners.capacity_bytes = u64::MAX;
            self.probes.hit_if(self.server.is_some(), Probe::DiskFullPassed);
        }
        let mishap = pick(&mut self.rng, &self.knobs.mishaps);
        self.note("mishap", &[("kind", mishap as u64)]);
        match mishap {
            Mishap::Cut => {
                let client = self.rng.usize(..self.clients.len());
                if let Some(connection) = self.clients[client].connection() {
                    self.cut(connection);
                }
            }
            Mishap::Die => {
                let client = self.rng.usize(..self.clients.len());
                self.die(client);
            }
            Mishap::Crash => self.crash()?,
            Mishap::Kill => self.kill()?,
            Mishap::Stop => self.stop()?,
            Mishap::Stall => {
                // Half a window, or several.
                let stall_us = if self.once_in(4) { 5_000_000 } else { 300_000 };
                let to_us = now + self.rng.u64(1_000..stall_us);
                lock(&self.disk).manners.stalled_to_us = to_us;
                self.trouble_to_us = self.trouble_to_us.max(to_us);
            }
            Mishap::Fail => lock(&self.disk).manners.fails_next = true,
            Mishap::Fill => {
                let mut disk = lock(&self.disk);
                disk.manners.capacity_bytes = disk.used_bytes();
                self.full_to_us = now + self.rng.u64(5_000..300_000);
                self.trouble_to_us = self.trouble_to_us.max(self.full_to_us);
            }
            Mishap::StepClock => self.step_clock(),
            Mishap::Image => {
                if let Some(server) = self.server.as_mut() {
                    server.pipeline.save_image_now();
                    self.probes.hit_if(lock(&self.disk).images().next().is_some(), Probe::ImageSaved);
                    self.wake_server((0, 100));
                }
            }
            Mishap::Damage if self.once_in(3) => self.damage_image()?,
            Mishap::Damage => self.damage()?,
            Mishap::Noise => self.noise(),
            Mishap::Freeze => {
                let to_us = now + self.rng.u64(1_000..2_000_000);
                self.trouble_to_us = self.trouble_to_us.max(to_us);
                if let Some(server) = self.server.as_mut() {
                    server.freeze_to(to_us);
                    self.probes.hit(Probe::ServerFrozen);
                    self.wake_server((0, 1));
                }
            }
            Mishap::Night => self.pass_night()?,
            Mishap::Quiet => self.quiet_to_us = now + self.rng.u64(100_000..8_000_000),
        }
        Ok(())
    }

    /// Everything stands still, and all clocks go on. What was on its way to the store is there long before morning.
    fn pass_night(&mut self) -> Judged {
        while let Some((write, _)) = self.under_way.first_key_value() {
            self.land(*write)?;
        }
        self.clock.pass_to(self.now() + self.rng.u64(WRITES_WITHOUT_DEADLINE_MS..NIGHT_MS_MAX) * 1_000);
        self.trouble_to_us = self.trouble_to_us.max(self.now());
        self.probes.hit(Probe::Night);
        self.note("night", &[]);
        Ok(())
    }

    fn step_clock(&mut self) {
        let ms = match self.rng.u8(..4) {
            0 => self.rng.i64(-50..50),
            1 => self.rng.i64(-9_000..9_000),
            2 => self.rng.i64(-600_000..600_000),
            _ => self.rng.i64(-3 * DAY_MS..9 * DAY_MS),
        };
        self.probes.hit_if(self.server.is_some() && ms.unsigned_abs() > seriatim_net::STEP_MS_MAX, Probe::ClockSlewed);
        self.clock.step_wall_ms(ms);
        self.stepped_us = self.now();
    }

    /// The server crashes, and a bit flips in something that was durable and has a successor.
    fn damage(&mut self) -> Judged {
        self.crash()?;
        if self.damaged.is_some() {
            return Ok(());
        }
        let count = self.landed.len();
        let victim = self.rng.usize(..count.max(1));
        // The last one has no successor to prove that it was whole.
        let Some(landed) = self.landed.get(victim).filter(|_| victim + 1 < count) else { return Ok(()) };
        let mut disk = lock(&self.disk);
        let Some(group) = WrittenGroup::read(&landed.bytes).filter(|_| disk.holds(landed)) else { return Ok(()) };
        let at = self.rng.usize(group.header_at..group.end());
        let (segment, offset, bit) = (landed.segment, landed.offset + at as u64, self.rng.u8(..8));
        let file = FileName::Segment(segment);
        if disk.flip(file, offset, bit) {
            self.damaged = Some(Damage { file, offset, bit, leaves_image: true });
        }
        drop(disk);
        self.note("damaged", &[("segment", segment), ("offset", offset)]);
        Ok(())
    }

    /// The server crashes, and a bit flips in the newest image.
    fn damage_image(&mut self) -> Judged {
        self.crash()?;
        let mut disk = lock(&self.disk);
        // Of one that is to be kept, an older one may be left over; the log before the newest is gone all the same.
        let leaves_image = disk.images().count() > 1 && self.knobs.options.log.images_kept > 1;
        let Some((file, length)) = disk.images().next_back().filter(|_| self.damaged.is_none()) else { return Ok(()) };
        let (offset, bit) = (self.rng.u64(..length as u64), self.rng.u8(..8));
        if disk.flip(file, offset, bit) {
            self.damaged = Some(Damage { file, offset, bit, leaves_image });
        }
        drop(disk);
        self.note("damaged an image", &[("offset", offset), ("others", leaves_image.into())]);
        Ok(())
    }

    /// Somebody connects who speaks nonsense, or nearly.
    fn noise(&mut self) {
        let mut bytes = Vec::new();
        if self.rng.bool() {
            Hello::new(self.rng.u64(1..)).encode(&mut bytes, 1);
            let op = NOISY_OPS[self.rng.usize(..NOISY_OPS.len())];
            let body: Vec<u8> = (0..self.rng.usize(..40)).map(|_| self.rng.u8(..)).collect();
            request::with_body(&mut bytes, op, 2, &body);
            if self.once_in(3) {
                let place = self.rng.usize(..bytes.len());
                // A bit of another op might ask for something that only operators may.
                if bytes[place] != op as u8 {
                    bytes[place] ^= 1 << self.rng.u8(..3);
                }
            }
        }
        bytes.extend((0..self.rng.usize(..200)).map(|_| self.rng.u8(128..)));
        self.last_wire += 1;
        let (connection, ends) = (self.last_wire, self.rng.bool());
        self.note("noise", &[("connection", connection), ("bytes", bytes.len() as u64)]);
        let Some(server) = self.server.as_mut() else { return };
        let network = server.pipeline.network();
        network.open(connection, 1 << 16);
        network.deliver(connection, &bytes);
        if ends {
            network.end(connection);
        } else {
            self.noisy.push(connection);
        }
        self.probes.hit(Probe::Noise);
        self.wake_server(self.knobs.turn_us);
    }

    /// Who spoke nonsense goes away.
    pub fn silence(&mut self) {
        let Some(server) = self.server.as_mut() else { return };
        for connection in self.noisy.drain(..) {
            server.pipeline.network().end(connection);
        }
        self.wake_server(self.knobs.turn_us);
    }

    /// Somebody brings back what was there.
    pub fn repair(&mut self) {
        if let Some(Damage { file, offset, bit, .. }) = self.damaged.take() {
            lock(&self.disk).flip(file, offset, bit);
        }
    }

    /// True when everybody has finished, and what is left has been looked at.
    pub fn is_finished(&mut self) -> Result<bool, crate::verdict::Violation> {
        if self.is_done || !self.steps.is_multiple_of(32) {
            return Ok(self.is_done);
        }
        let all_idle = self.clients.iter().all(|client| client.workers.iter().all(|worker| worker.is_idle()));
        if all_idle && self.server.is_some() && self.open_ones().next().is_none() {
            self.clients[0].workers[0].job = Some(Job::last_look());
            self.last_call(0, 0);
        }
        Ok(false)
    }
}
