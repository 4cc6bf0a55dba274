//! What a run is like: every seed draws its own limits, delays, faults and workload.

use seriatim_core::Limits;
use seriatim_net::{Options, ServerLimits};

use crate::disk::Manners;

/// See the head of this file. Times are in µs unless the name says otherwise.
#[derive(Clone, Debug)]
pub(crate) struct Knobs {
    pub options: Options,
    pub limits: ServerLimits,
    pub manners: Manners,
    pub clients: usize,
    pub workers: usize,
    /// Between the arrival of something and the turn that sees it.
    pub turn_us: (u64, u64),
    pub net_us: (u64, u64),
    /// Of 256: how often a piece takes a hundred times as long.
    pub net_slow: u8,
    /// Bytes under way to a client before the server has to wait.
    pub window_bytes: usize,
    /// Between two steps of a worker.
    pub think_us: (u64, u64),
    /// Between two mishaps.
    pub mishap_us: (u64, u64),
    /// How often each comes, against the others.
    pub mishaps: Vec<(Mishap, u32)>,
    pub jobs: Vec<(JobKind, u32)>,
    /// One change set of so many names very much.
    pub wide_one_in: u8,
    /// Deadlines that SHORT transactions ask for, in ms.
    pub timeout_ms: (u64, u64),
    /// After this time a caller gives a call up.
    pub call_us: u64,
    /// How long a server is down after a crash.
    pub down_us: (u64, u64),
    /// Of 256: how often a write is on its way to the store for long.
    pub late_writes: u8,
    /// Between two collections of garbage.
    pub collect_us: (u64, u64),
}

/// What may go wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mishap {
    /// A connection breaks, anywhere in its bytes.
    Cut,
    /// A client is gone for good, and a new one takes its place.
    Die,
    /// The machine of the server stops.
    Crash,
    /// The process of the server is killed, and its machine goes on.
    Kill,
    /// The server is stopped as it should be.
    Stop,
    /// The disk takes its time.
    Stall,
    /// The next write fails.
    Fail,
    /// The disk is full for a while.
    Fill,
    /// The wall clock steps.
    StepClock,
    /// Somebody asks for an image.
    Image,
    /// A bit flips in what was durable, while the server is down.
    Damage,
    /// The server gets no processor for a while.
    Freeze,
    /// Nobody asks for anything for a while.
    Quiet,
    /// Somebody connects and speaks nonsense.
    Noise,
    /// More than a day passes for all clocks, and nobody does anything meanwhile.
    Night,
}

/// What a worker may do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum JobKind {
    /// Moves money.
    Transfer,
    /// Increments a counter.
    Count,
    /// Writes some registers.
    Register,
    /// Decrements one of a pair, if the other allows it.
    Pair,
    /// Writes after it has committed.
    Late,
    /// Writes without being checked for conflicts.
    Bulk,
    /// Reads all accounts through a snapshot, without a transaction.
    Read,
    /// Takes timestamps.
    Stamps,
    /// Looks where some transaction stands, or ends the doubt about one.
    Look,
    /// Waits until everything that is open has ended.
    Fence,
    /// Looks at the server's counters, or lists what is open or invalid.
    Inspect,
    /// Decrements one of a pair, if the other allows it, and does not have checked what it read.
    Skew,
    /// Cleans one of the stores and says so.
    Clean,
    /// Cleans both stores and has everything invalid forgotten that they held.
    Forget,
    /// Registers a store that holds nothing, acknowledges for it, or removes it.
    Spare,
    /// Takes an image.
    Dump,
    /// Drops everything that is open or invalid: the store is emptied of it, and everybody starts anew.
    Reset,
}

impl JobKind {
    /// What a transaction for it may be labelled with.
    pub fn label(self) -> &'static str {
        match self {
            JobKind::Transfer => "transfer",
            JobKind::Count => "count",
            JobKind::Register => "register",
            JobKind::Pair => "pair",
            JobKind::Skew => "skew",
            JobKind::Late => "late",
            JobKind::Bulk => "bulk",
            _ => "upkeep",
        }
    }
}

impl Knobs {
    pub fn draw(rng: &mut fastrand::Rng) -> Knobs {
        let crowded = rng.u8(..3) == 0;
        let clients = rng.usize(1..=5);
        let limits = Limits {
            open_max: if rng.u8(..6) == 0 { rng.u32(4..12) } else { 256 },
            conflict_index_bytes: 64 << rng.u32(..8),
            event_ring_slots: if rng.u8(..6) == 0 { 4 << rng.u32(..2) } else { 256 },
            winners: 4 << rng.u32(..6),
            short_timeout_ms: rng.u64(50..5_000),
            short_timeout_ms_max: 60_000,
            long_timeout_ms: rng.u64(500..10_000),
            change_ids_max: 1 << 10,
            change_ids_warn: 1 << 9,
            block_max: 1 << 10,
            ..Limits::default()
        };
        let snapshot_age_ms = rng.u32(100..4_000);
        let write_delay_ms = rng.u64(20..1_500);
        let outcomes_max = 16 << rng.u32(..6);
        let mut options = Options { limits, outcomes_max, snapshot_age_ms, write_delay_ms, ..Options::default() };
        if rng.u8(..8) == 0 {
            options.invalid_max = rng.u64(1..20);
        }
        options.log.segment_bytes = (64 << 10) << rng.u32(..2);
        options.log.group_bytes_max = 4096 << rng.u32(..3);
        options.log.segments_ahead = rng.usize(1..=2);
        options.log.images_kept = rng.usize(1..=2);
        let slow_disk = rng.u8(..4) == 0;
        let write_us = if slow_disk { (2_000, 40_000) } else { (50, 3_000) };
        Knobs {
            options,
            limits: ServerLimits {
                grace_ms: if rng.bool() { rng.u64(5..200) } else { rng.u64(50..3_000) },
                connections_max: if rng.u8(..8) == 0 { clients + rng.usize(..3) } else { 1_000 },
                ..ServerLimits::default()
            },
            manners: Manners {
                write_us,
                job_us: (100, 5_000),
                stalled_to_us: 0,
                fails_next: false,
                capacity_bytes: u64::MAX,
                same_boot: false,
            },
            clients,
            workers: if crowded { rng.usize(4..=8) } else { rng.usize(1..=3) },
            turn_us: if rng.bool() { (1, 50) } else { (20, 2_000) },
            net_us: (20, 20 << rng.u32(1..8)),
            net_slow: [0, 2, 10][rng.usize(..3)],
            window_bytes: if rng.u8(..5) == 0 { rng.usize(16..400) } else { 1 << 20 },
            think_us: (10, 20 << rng.u32(..9)),
            mishap_us: (1_000, 16_000 << rng.u32(..6)),
            mishaps: draw_mishaps(rng),
            jobs: draw_jobs(rng),
            wide_one_in: [3, 24, 200][rng.usize(..3)],
            timeout_ms: (20, 100 << rng.u32(..6)),
            call_us: rng.u64(50_000..5_000_000),
            down_us: (1_000, 100_000),
            late_writes: [0, 6, 40][rng.usize(..3)],
            collect_us: (5_000, 200_000),
        }
    }
}

/// A weight: often none, so that runs differ in kind and not in degree alone.
fn weight(rng: &mut fastrand::Rng, usual: u32) -> u32 {
    match rng.u8(..4) {
        0 => 0,
        1 => usual * 4,
        _ => usual,
    }
}

fn draw_mishaps(rng: &mut fastrand::Rng) -> Vec<(Mishap, u32)> {
    let usual = [
        (Mishap::Cut, 20),
        (Mishap::Die, 5),
        (Mishap::Crash, 6),
        (Mishap::Kill, 4),
        (Mishap::Stop, 2),
        (Mishap::Stall, 4),
        (Mishap::Fail, 2),
        (Mishap::Fill, 3),
        (Mishap::StepClock, 3),
        (Mishap::Image, 5),
        (Mishap::Damage, 2),
        (Mishap::Freeze, 2),
        (Mishap::Quiet, 1),
        (Mishap::Noise, 3),
        (Mishap::Night, 1),
    ];
    usual.into_iter().map(|(mishap, usual)| (mishap, weight(rng, usual))).collect()
}

fn draw_jobs(rng: &mut fastrand::Rng) -> Vec<(JobKind, u32)> {
    let usual = [
        (JobKind::Transfer, 10),
        (JobKind::Count, 10),
        (JobKind::Register, 8),
        (JobKind::Pair, 8),
        (JobKind::Late, 6),
        (JobKind::Bulk, 2),
        (JobKind::Read, 6),
        (JobKind::Stamps, 3),
        (JobKind::Look, 4),
        (JobKind::Fence, 1),
        (JobKind::Inspect, 2),
        (JobKind::Skew, 4),
        (JobKind::Clean, 4),
        (JobKind::Forget, 1),
        (JobKind::Spare, 1),
        (JobKind::Dump, 1),
    ];
    let mut jobs: Vec<(JobKind, u32)> = usual.into_iter().map(|(job, usual)| (job, weight(rng, usual))).collect();
    if rng.u8(..8) == 0 {
        jobs.push((JobKind::Reset, 1));
    }
    jobs
}

/// Picks one by weight; the first if all weights are zero.
pub(crate) fn pick<T: Copy>(rng: &mut fastrand::Rng, weights: &[(T, u32)]) -> T {
    let mut left = rng.u32(..weights.iter().map(|(_, weight)| weight).sum::<u32>().max(1));
    for (item, weight) in weights {
        match left.checked_sub(*weight) {
            Some(rest) => left = rest,
            None => return *item,
        }
    }
    weights[0].0
}
