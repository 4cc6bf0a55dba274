//! The load in this process: no sockets, no frames, the sequencer alone.
//!
//! A connection becomes a task, and a thread drives its tasks together: it begins `depth` transactions for each, one
//! block for each, then commits those of all tasks and waits once until they are durable. So as many transactions are in
//! flight as a server would have with the same load; with one connection, a turn is `depth` transactions.

use std::iter::zip;
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use seriatim_core::{ChangeSet, CommitError, Scratch, WritePointer};
use seriatim_net::{Embedded, EmbeddedError, Options};

use crate::connection::BEGIN;
use crate::cpu;
use crate::error::{Error, Failed};
use crate::error_kind;
use crate::keys::{Keys, seed_of};
use crate::load::{Kind, Load, LoadError};
use crate::report::{Measured, Report, ServerInfo, Setting, Transport};
use crate::schedule::Schedule;
use crate::tally::Tally;
use crate::watch::{MOMENT_EVERY, Moment, Phase};

/// Commits ahead of the one being decided whose memory is asked for.
const PREFETCH_AHEAD: usize = 8;
/// How long a thread keeps quiet that was told to repeat after a pause.
const PAUSE: Duration = Duration::from_millis(1);

/// The sequencer that a run makes for itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum EmbeddedTarget {
    /// Durable, in this directory, which is made if it is not there.
    Disk(PathBuf),
    /// Remembers nothing.
    Memory,
}

/// Makes a load on a sequencer in this process and measures it, with connections shared among `threads` threads. `watch`
/// is called about once a second, on the calling thread.
///
/// # Errors
/// If the load cannot be made, or the sequencer cannot start or fails; with what was measured until then.
pub fn drive_embedded(
    load: &Load,
    target: &EmbeddedTarget,
    options: &Options,
    threads: NonZero<u32>,
    watch: &mut dyn FnMut(&Moment),
) -> Result<Report, Failed> {
    load.check()?;
    if load.kind == Kind::Begin {
        return Err(LoadError::BeginsEmbedded.into());
    }
    let (sequencer, storage) = match target {
        EmbeddedTarget::Disk(directory) => (Embedded::open(directory, options)?, "disk"),
        EmbeddedTarget::Memory => (Embedded::in_memory(options)?, "memory"),
    };
    // A thread without a connection would have nothing to do.
    let threads = threads.get().min(load.connections);
    let started = Instant::now();
    let progress = Progress::default();
    let shares = std::thread::scope(|scope| {
        let (done, ended) = mpsc::channel();
        let workers: Vec<_> = (0..threads)
            .map(|index| {
                let (done, progress, sequencer) = (done.clone(), &progress, &sequencer);
                let mut worker = Worker::new(load, sequencer, options.limits.block_max, started, (index, threads));
                scope.spawn(move || {
                    let failure = worker.until_end(progress).err();
                    worker.stop_measuring();
                    // Nobody listens any more if the run is over for another reason.
                    let _ = done.send(());
                    (worker.tally, worker.measured, failure)
                })
            })
            .collect();
        drop(done);
        watch_over(load, started, &progress, &ended, watch);
        let joined = workers.into_iter().map(|worker| worker.join());
        joined.map(|share| share.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect::<Vec<_>>()
    });

    let (mut tally, mut failure) = (Tally::new(), None);
    let mut measured = Measured { client_cpu: Some(Duration::ZERO), ..Measured::default() };
    for (share, of_share, failed) in shares {
        tally.merge(&share);
        measured.time = measured.time.max(of_share.time);
        measured.client_cpu = measured.client_cpu.zip(of_share.client_cpu).map(|(sum, share)| sum + share);
        failure = failure.or(failed);
    }
    tally.errors(error_kind::UNANSWERED, tally.in_flight());
    let server = ServerInfo {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        storage: storage.to_owned(),
        durable: matches!(target, EmbeddedTarget::Disk(_)),
    };
    let setting = Setting { transport: Transport::Embedded, threads, complete: failure.is_none() };
    let report = Report::new(load, &tally, measured, server, setting);
    match failure {
        None => Ok(report),
        Some(error) => Err(Failed { error, partial: Some(Box::new(report)) }),
    }
}

/// Shows moments until every worker is done, or dead.
fn watch_over(
    load: &Load,
    started: Instant,
    progress: &Progress,
    ended: &mpsc::Receiver<()>,
    watch: &mut dyn FnMut(&Moment),
) {
    let mut show_at = started + MOMENT_EVERY;
    loop {
        match ended.recv_timeout(show_at.saturating_duration_since(Instant::now())) {
            Ok(()) => {}
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) => {
                let elapsed = started.elapsed();
                let phase = match elapsed {
                    _ if elapsed < load.warmup => Phase::WarmUp,
                    _ if elapsed < load.warmup + load.measured => Phase::Measured,
                    _ => Phase::Draining,
                };
                watch(&progress.moment(elapsed, phase));
                show_at += MOMENT_EVERY;
            }
        }
    }
}

/// What the workers have done, for those who watch. Written after every turn; Relaxed, for nothing hangs on it.
#[derive(Default)]
struct Progress {
    commits: AtomicU64,
    conflicts: AtomicU64,
    errors: AtomicU64,
}

impl Progress {
    fn add(&self, commits: u64, conflicts: u64, errors: u64) {
        self.commits.fetch_add(commits, Ordering::Relaxed);
        self.conflicts.fetch_add(conflicts, Ordering::Relaxed);
        self.errors.fetch_add(errors, Ordering::Relaxed);
    }

    fn moment(&self, elapsed: Duration, phase: Phase) -> Moment {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Moment {
            elapsed,
            phase,
            commits: load(&self.commits),
            conflicts: load(&self.conflicts),
            errors: load(&self.errors),
        }
    }
}

/// One thread's share of the load.
struct Worker<'w> {
    sequencer: &'w Embedded,
    tasks: Vec<Keys>,
    depth: u32,
    block_max: u32,
    schedule: Schedule,
    tally: Tally,
    mark: Option<(Instant, Option<Duration>)>,
    measured: Measured,
    /// Memory of one turn.
    transactions: Vec<WritePointer>,
    changes: Vec<ChangeSet>,
    scratch: Scratch,
}

impl<'w> Worker<'w> {
    /// The share of one thread of many.
    fn new(
        load: &Load,
        sequencer: &'w Embedded,
        block_max: u32,
        started: Instant,
        (index, threads): (u32, u32),
    ) -> Worker<'w> {
        let mine = (0..load.connections).filter(|connection| connection % threads == index);
        let tasks = mine.map(|task| Keys::new(seed_of(load.seed, u64::from(task)), load.keys, load.writes)).collect();
        let (all, threads) = (load.count.unwrap_or(u64::MAX), u64::from(threads));
        let count = all / threads + u64::from(u64::from(index) < all % threads);
        Worker {
            sequencer,
            tasks,
            depth: load.depth,
            block_max,
            schedule: Schedule::new(load, started, count),
            tally: Tally::new(),
            mark: None,
            measured: Measured::default(),
            transactions: Vec::new(),
            changes: Vec::new(),
            scratch: Scratch::default(),
        }
    }

    fn until_end(&mut self, progress: &Progress) -> Result<(), Error> {
        loop {
            let now = Instant::now();
            while self.schedule.advance(now, self.tally.in_flight()) {
                match self.schedule.phase() {
                    Phase::Measured => {
                        self.tally.is_measuring = true;
                        self.mark = Some((now, cpu::of_this_thread()));
                    }
                    _ => return Ok(()),
                }
            }
            let before = (self.tally.whole.commits, self.tally.whole.conflicts, self.tally.whole.errors_len());
            self.turn()?;
            let whole = &self.tally.whole;
            progress.add(whole.commits - before.0, whole.conflicts - before.1, whole.errors_len() - before.2);
        }
    }

    fn stop_measuring(&mut self) {
        self.tally.is_measuring = false;
        if let Some((since, cpu)) = self.mark.take() {
            self.measured.time = since.elapsed();
            let used = |before| Some(cpu::of_this_thread()?.saturating_sub(before));
            self.measured.client_cpu = cpu.and_then(used);
        }
    }

    /// Begins, then commits, the transactions of all tasks.
    fn turn(&mut self) -> Result<(), Error> {
        self.transactions.clear();
        for task in 0..self.tasks.len() {
            self.begin(task)?;
        }
        if self.transactions.is_empty() {
            std::thread::sleep(PAUSE);
            return Ok(());
        }
        self.commit()
    }

    fn begin(&mut self, task: usize) -> Result<(), Error> {
        let mut left = self.schedule.take(self.depth);
        self.tally.begun += u64::from(left);
        while left > 0 {
            let count = left.min(self.block_max);
            left -= count;
            let asked_at = Instant::now();
            match self.sequencer.begin_many(&BEGIN, count) {
                Ok(begun) => {
                    self.tally.begins_answered(count, asked_at.elapsed());
                    for index in 0..count {
                        if self.changes.len() == self.transactions.len() {
                            self.changes.push(ChangeSet::default());
                        }
                        self.tasks[task].fill(&mut self.changes[self.transactions.len()]);
                        self.transactions.push(WritePointer(begun.first.0 + u64::from(index)));
                    }
                }
                Err(EmbeddedError::Refused(error)) => self.tally.errors(error_kind::of_begin(&error), u64::from(count)),
                Err(EmbeddedError::Failed(failure)) => return Err(failure.into()),
            }
        }
        Ok(())
    }

    fn commit(&mut self) -> Result<(), Error> {
        let (sequencer, transactions, changes) = (self.sequencer, &self.transactions, &self.changes);
        let asked_at = Instant::now();
        changes.iter().take(transactions.len().min(PREFETCH_AHEAD)).for_each(|ahead| sequencer.prefetch(ahead));
        let commits = zip(transactions, changes).enumerate().map(|(index, (tx, own))| {
            if let Some(ahead) = changes.get(index + PREFETCH_AHEAD) {
                sequencer.prefetch(ahead);
            }
            (*tx, own)
        });
        let outcomes = sequencer.commit_many(commits, &mut self.scratch)?;
        let latency = asked_at.elapsed();
        let (mut commits, mut conflicts) = (0, 0);
        for (tx, outcome) in zip(transactions, outcomes) {
            let Err(error) = outcome else {
                commits += 1;
                continue;
            };
            match error_kind::of_commit(&error) {
                None => conflicts += 1,
                Some(kind) => self.tally.errors(kind, 1),
            }
            if !matches!(error, CommitError::NotInProgress { .. }) {
                abort(sequencer, *tx)?;
            }
        }
        self.tally.commits(commits, latency);
        self.tally.conflicts(conflicts);
        Ok(())
    }
}

/// Rolls back; a log without room for it leaves the transaction to its deadline.
fn abort(sequencer: &Embedded, tx: WritePointer) -> Result<(), Error> {
    match sequencer.abort(tx) {
        Ok(_) | Err(EmbeddedError::Refused(_)) => Ok(()),
        Err(EmbeddedError::Failed(failure)) => Err(failure.into()),
    }
}
