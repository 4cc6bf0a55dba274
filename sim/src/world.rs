//! The whole house on one thread: a server, its disk, its clients, the network between them, and time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use rustc_hash::{FxHashMap, FxHashSet};
use seriatim_core::WritePointer;

use crate::client::Client;
use crate::clock::SimClock;
use crate::disk::{Disk, Landed, lock};
use crate::knobs::Knobs;
use crate::law;
use crate::mishaps::Damage;
use crate::plants::{PlantName, is_planted};
use crate::probes::{Probe, Probes};
use crate::queue::{Event, Queue};
use crate::recorder::Recorder;
use crate::reference::{Reference, Write};
use crate::server::Server;
use crate::store::Store;
use crate::trace::Trace;
use crate::verdict::{Judged, Violation, catch};
use crate::wires::Wire;

/// What a run is asked for.
#[derive(Clone, Copy, Debug)]
pub struct RunOptions {
    /// Events of the first phase, in which anything may fail.
    pub events: u64,
    /// Print every event.
    pub trace: bool,
    /// A bug to plant.
    pub plant: Option<PlantName>,
}

impl Default for RunOptions {
    fn default() -> RunOptions {
        RunOptions { events: 2_000, trace: false, plant: None }
    }
}

/// What came of a run.
#[derive(Clone)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// Equal for equal runs.
    pub hash: u64,
    /// Things that happened.
    pub events: u64,
    /// Commits.
    pub commits: u64,
    /// Runs of the server.
    pub starts: u64,
    /// Virtual time, in ms.
    pub virtual_ms: u64,
    /// Rare states.
    pub probes: Probes,
    /// The law that was broken.
    pub violation: Option<Violation>,
    /// What happened last.
    pub last_lines: Vec<String>,
}

/// What part of a run it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Anything may fail.
    Safety,
    /// Nothing fails any more, and everybody has to finish.
    Liveness,
}

/// See the head of this file.
pub(crate) struct World {
    pub knobs: Knobs,
    pub rng: fastrand::Rng,
    pub clock: SimClock,
    pub queue: Queue,
    pub disk: Arc<Mutex<Disk>>,
    pub server: Option<Server>,
    /// Counts runs of the server.
    pub life: u64,
    pub wires: FxHashMap<u64, Wire>,
    pub last_wire: u64,
    pub last_step: u64,
    /// What was left at the end was looked at.
    pub is_done: bool,
    pub clients: Vec<Client>,
    pub store: Store,
    pub reference: Reference,
    pub recorder: Recorder,
    /// A write whose fate only the next run's log will tell.
    pub unsure: Option<Landed>,
    pub was_unsure: bool,
    /// Every pointer that anybody was given.
    pub given: FxHashSet<u64>,
    /// Groups that became durable in this use of the disk, for damage to choose from.
    pub landed: Vec<Landed>,
    /// What is damaged now.
    pub damaged: Option<Damage>,
    /// Writes that have left their client and have not reached the store, by number.
    pub under_way: BTreeMap<u64, (WritePointer, Write)>,
    pub last_write: u64,
    /// What was open when a worker asked for a fence, by the step it waits for.
    pub fences: FxHashMap<u64, Vec<WritePointer>>,
    /// The greatest commit that anybody was told of, and the greatest pointer that anybody has.
    pub told_csn: u64,
    pub told_pointer: u64,
    pub probes: Probes,
    pub trace: Trace,
    pub phase: Phase,
    /// Connections of those who speak nonsense and stay.
    pub noisy: Vec<u64>,
    /// Until then nobody begins anything.
    pub quiet_to_us: u64,
    /// When the disk or the server was last in trouble, or will be.
    pub trouble_to_us: u64,
    /// When the server started or its clock stepped: its window has to follow.
    pub stepped_us: u64,
    /// Until then the disk is full.
    pub full_to_us: u64,
    pub events: u64,
    pub steps: u64,
}

/// Virtual time for everybody to finish once the faults are over: the longest deadline and then some.
const LIVENESS_US: u64 = 120_000_000;

/// Runs one seed.
pub fn run(seed: u64, options: &RunOptions) -> Outcome {
    crate::plants::plant(options.plant);
    let mut world = World::new(seed, options);
    let judged = catch(|| world.go(options.events));
    Outcome {
        seed,
        hash: world.trace.hash(),
        events: world.events,
        commits: world.reference.csn(),
        starts: world.life,
        virtual_ms: world.clock.now_us() / 1_000,
        last_lines: if judged.is_err() { world.trace.last_lines() } else { Vec::new() },
        violation: judged.err(),
        probes: world.probes.clone(),
    }
}

impl World {
    fn new(seed: u64, options: &RunOptions) -> World {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut knobs = Knobs::draw(&mut rng);
        knobs.manners.same_boot = is_planted(PlantName::SameBoot);
        knobs.options.log.cuts_damage = is_planted(PlantName::CutMiddle);
        let clock = SimClock::new();
        let disk = Disk::new(clock.clone(), rng.fork(), knobs.manners);
        World {
            clients: Vec::new(),
            rng,
            queue: Queue::default(),
            disk: Arc::new(Mutex::new(disk)),
            server: None,
            life: 0,
            wires: FxHashMap::default(),
            last_wire: 0,
            last_step: 0,
            is_done: false,
            store: Store::new(),
            reference: Reference::new(),
            recorder: Recorder::default(),
            unsure: None,
            was_unsure: false,
            given: FxHashSet::default(),
            landed: Vec::new(),
            damaged: None,
            under_way: BTreeMap::new(),
            last_write: 0,
            fences: FxHashMap::default(),
            told_csn: 0,
            told_pointer: 0,
            probes: Probes::default(),
            trace: Trace::new(options.trace),
            phase: Phase::Safety,
            noisy: Vec::new(),
            quiet_to_us: 0,
            trouble_to_us: 0,
            stepped_us: 0,
            full_to_us: 0,
            events: 0,
            steps: 0,
            clock,
            knobs,
        }
    }

    pub fn now(&self) -> u64 {
        self.clock.now_us()
    }

    /// In so many µs, from the first to the second.
    pub fn within(&mut self, (from, to): (u64, u64)) -> u64 {
        self.now() + self.rng.u64(from..=to.max(from))
    }

    /// True once in so many times.
    pub fn once_in(&mut self, times: u32) -> bool {
        self.rng.u32(..times) == 0
    }

    pub fn note(&mut self, what: &'static str, facts: &[(&'static str, u64)]) {
        self.trace.note(self.clock.now_us(), what, facts);
    }

    fn go(&mut self, events: u64) -> Judged {
        self.queue.push(self.now(), Event::Start);
        for client in 0..self.knobs.clients {
            self.add_client(client);
        }
        let at = self.within(self.knobs.mishap_us);
        self.queue.push(at, Event::Mishap);
        let at = self.within(self.knobs.collect_us);
        self.queue.push(at, Event::Collect);
        while self.events < events {
            self.step()?;
        }
        self.heal();
        let until = self.now() + LIVENESS_US;
        while !self.is_finished()? {
            self.step()?;
            if self.now() > until {
                return self.judge_unfinished();
            }
        }
        let skews = self.recorder.judge(&self.reference)?;
        self.probes.add(Probe::SkewAllowed, skews);
        Ok(())
    }

    fn step(&mut self) -> Judged {
        let Some((at, event)) = self.queue.pop() else {
            return crate::verdict::broken(law::LIVE, "nothing is going to happen any more");
        };
        self.clock.pass_to(at);
        self.steps += 1;
        // Turns count if there is something to do in them.
        self.events += u64::from(!matches!(event, Event::Turn { .. }));
        self.take_landed()?;
        match event {
            Event::Turn { life } => self.turn(life, at),
            Event::Start => self.start(),
            Event::Disk { life } => {
                if life == self.life {
                    lock(&self.disk).pass();
                    self.take_landed()?;
                    self.watch_disk();
                    self.wake_server((0, 20));
                }
                Ok(())
            }
            Event::ToServer { connection, bytes } => self.arrive_at_server(connection, &bytes),
            Event::ServerSeesEnd { connection } => self.server_sees_end(connection),
            Event::ToClient { connection, bytes } => self.arrive_at_client(connection, bytes),
            Event::ClientSeesEnd { connection } => self.client_sees_end(connection),
            Event::Connect { client, attempt } => self.connect(client, attempt),
            Event::Flush { client } => self.flush(client),
            Event::Wake { client, worker, step } => self.wake(client, worker, step),
            Event::TimeOut { client, worker, step } => self.time_out(client, worker, step),
            Event::Land { write } => self.land(write),
            Event::Mishap => self.mishap(),
            Event::Collect => self.collect(),
        }
    }

    /// Shows the reference what has become durable.
    pub fn take_landed(&mut self) -> Judged {
        let landed = lock(&self.disk).take_landed();
        for landed in landed {
            self.judge_landed(landed)?;
        }
        Ok(())
    }

    /// The faults are over.
    fn heal(&mut self) {
        self.note("healed", &[]);
        self.phase = Phase::Liveness;
        self.quiet_to_us = 0;
        self.full_to_us = 0;
        self.knobs.net_slow = 0;
        self.knobs.net_us = (20, 500);
        self.knobs.call_us = 10_000_000;
        let mut disk = lock(&self.disk);
        disk.manners.capacity_bytes = u64::MAX;
        disk.manners.fails_next = false;
        disk.manners.stalled_to_us = 0;
        disk.manners.write_us = (50, 500);
        drop(disk);
        self.repair();
        self.silence();
        if self.server.is_none() {
            self.queue.push(self.now(), Event::Start);
        }
    }

    /// A write leaves its client, and reaches the store in its time.
    pub fn send_write(&mut self, tx: WritePointer, write: Write, at_us: u64) {
        self.last_write += 1;
        self.under_way.insert(self.last_write, (tx, write));
        self.queue.push(at_us, Event::Land { write: self.last_write });
    }

    /// A write reaches the store.
    pub fn land(&mut self, write: u64) -> Judged {
        let Some((tx, Write { key, version })) = self.under_way.remove(&write) else { return Ok(()) };
        self.note("late write", &[("tx", tx.0), ("key", key as u64)]);
        self.judge_write(tx, version.pointer)?;
        self.store.write(key, version);
        Ok(())
    }

    /// The store takes away what no reader needs, by the published bound.
    fn collect(&mut self) -> Judged {
        let at = self.within(self.knobs.collect_us);
        self.queue.push(at, Event::Collect);
        let Some(bounds) = self.bounds() else { return Ok(()) };
        self.judge_bound(&bounds)?;
        let before = self.store.collected;
        self.store.collect(bounds.visible, &bounds.snapshot);
        self.probes.hit_if(self.store.collected > before, Probe::GarbageCollected);
        Ok(())
    }
}
