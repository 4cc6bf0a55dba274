//! The bars that need no socket and no disk: P1, P2, P3, P7, P11, P12.
//!
//! The sequencer is the embedded one over memory storage: its records are encoded, grouped, digested, written and
//! published as on a disk, without the wait.

use std::collections::VecDeque;
use std::iter::zip;
use std::time::{Duration, Instant};

use seriatim_core::{BeginOptions, ChangeSet, CommitError, Scratch, WritePointer};
use seriatim_net::{Embedded, EmbeddedError, Options};
use seriatim_wal::{GROUP_HEADER_BYTES, Log, MemoryStorage};

use super::{Pair, Sizes};
use crate::connection::BEGIN;
use crate::error::Error;
use crate::keys::{Keys, seed_of};
use crate::yardstick::table::Table;

/// Keys to draw from: so many that hardly any two transactions meet.
const KEYS: u64 = 1 << 48;
/// Ids of a transaction.
pub(super) const WRITES: u32 = 4;
/// Transactions of a turn.
const TURN: usize = 64;
/// Commits ahead of the one being decided whose memory is asked for.
const PREFETCH_AHEAD: usize = 8;
/// Ids of a transaction that only fills the index.
const FILL_WRITES: u32 = 64;

/// A sequencer over memory, and what drives it.
struct House {
    sequencer: Embedded,
    options: Options,
}

impl House {
    /// With so many ids in the conflict index, of 16 million places by default.
    fn filled(storage: MemoryStorage, seed: u64, ids: u64) -> Result<House, Error> {
        let options = Options::default();
        let (sequencer, _) = Embedded::over(storage, &options)?;
        let house = House { sequencer, options };
        let mut driver = Driver::new(&house.sequencer, seed_of(seed, 1), FILL_WRITES);
        for _ in 0..ids / (TURN as u64 * u64::from(FILL_WRITES)) {
            driver.turn(TURN, true)?;
        }
        Ok(house)
    }

    /// With an index that is half full and more.
    fn usual(sizes: &Sizes) -> Result<House, Error> {
        House::filled(MemoryStorage::new(), sizes.seed, 12_000_000)
    }
}

/// One thread's turns: begin some transactions, draw their ids, commit them, wait once.
pub(super) struct Driver<'s> {
    sequencer: &'s Embedded,
    keys: Keys,
    transactions: Vec<WritePointer>,
    changes: Vec<ChangeSet>,
    scratch: Scratch,
}

impl<'s> Driver<'s> {
    pub(super) fn new(sequencer: &'s Embedded, seed: u64, writes: u32) -> Driver<'s> {
        let keys = Keys::new(seed, KEYS, writes);
        Driver { sequencer, keys, transactions: Vec::new(), changes: Vec::new(), scratch: Scratch::default() }
    }

    /// Begins `count` transactions in one block.
    fn begin(&mut self, count: usize) -> Result<(), Error> {
        let begun = self.sequencer.begin_many(&BEGIN, count as u32).map_err(refused)?;
        self.transactions.extend((0..count as u64).map(|index| WritePointer(begun.first.0 + index)));
        Ok(())
    }

    /// Commits everything that was begun; the refusals.
    fn commit(&mut self, with_prefetch: bool) -> Result<Vec<CommitError>, Error> {
        while self.changes.len() < self.transactions.len() {
            self.changes.push(ChangeSet::default());
        }
        let changes = &mut self.changes[..self.transactions.len()];
        changes.iter_mut().for_each(|changes| self.keys.fill(changes));
        let (sequencer, changes) = (self.sequencer, &*changes);
        if with_prefetch {
            changes.iter().take(PREFETCH_AHEAD).for_each(|ahead| sequencer.prefetch(ahead));
        }
        let commits = zip(&self.transactions, changes).enumerate().map(|(index, (tx, own))| {
            if with_prefetch && let Some(ahead) = changes.get(index + PREFETCH_AHEAD) {
                sequencer.prefetch(ahead);
            }
            (*tx, own)
        });
        let outcomes = sequencer.commit_many(commits, &mut self.scratch)?;
        let mut errors = Vec::new();
        for (tx, outcome) in zip(self.transactions.drain(..), outcomes) {
            if let Err(error) = outcome {
                errors.push(error);
                sequencer.abort(tx).map_err(refused)?;
            }
        }
        Ok(errors)
    }

    /// A turn of `count` transactions, all of which are to commit.
    pub(super) fn turn(&mut self, count: usize, with_prefetch: bool) -> Result<(), Error> {
        self.begin(count)?;
        self.commit(with_prefetch).map(drop)
    }

    /// A turn whose transactions are begun and decided one by one.
    fn turn_one_by_one(&mut self) -> Result<(), Error> {
        for _ in 0..TURN {
            self.begin(1)?;
        }
        self.commit(false).map(drop)
    }
}

fn refused<E: std::error::Error + 'static>(error: EmbeddedError<E>) -> Error {
    Error::Refused(error.to_string())
}

/// Runs turns of `count` transactions for about so long: transactions a second.
fn rate(side: Duration, count: usize, mut turn: impl FnMut() -> Result<(), Error>) -> Result<f64, Error> {
    let (started, mut turns) = (Instant::now(), 0u64);
    loop {
        turn()?;
        turns += 1;
        let elapsed = started.elapsed();
        if elapsed >= side {
            return Ok((turns * count as u64) as f64 / elapsed.as_secs_f64());
        }
    }
}

/// P1: against the same table without a sequencer.
struct AgainstTable {
    house: House,
    table: Table,
    side: Duration,
    seed: u64,
    one_by_one: bool,
}

fn against_table(sizes: &Sizes, one_by_one: bool) -> Result<Box<dyn Pair>, Error> {
    let house = House::usual(sizes)?;
    let table = Table::half_full(house.options.limits.conflict_index_bytes, sizes.seed);
    Ok(Box::new(AgainstTable { house, table, side: sizes.side, seed: sizes.seed, one_by_one }))
}

/// P1.
pub(super) fn turns(sizes: &Sizes) -> Result<Box<dyn Pair>, Error> {
    against_table(sizes, false)
}

/// P1, one by one.
pub(super) fn one_by_one(sizes: &Sizes) -> Result<Box<dyn Pair>, Error> {
    against_table(sizes, true)
}

impl Pair for AgainstTable {
    fn yardstick(&mut self) -> Result<f64, Error> {
        self.seed += 1;
        let mut keys = Keys::new(seed_of(self.seed, 2), KEYS, WRITES);
        rate(self.side, TURN, || {
            for _ in 0..TURN {
                self.table.transaction(&keys.next().writes);
            }
            Ok(())
        })
    }

    fn product(&mut self) -> Result<f64, Error> {
        let mut driver = Driver::new(&self.house.sequencer, seed_of(self.seed, 3), WRITES);
        let one_by_one = self.one_by_one;
        rate(self.side, TURN, || if one_by_one { driver.turn_one_by_one() } else { driver.turn(TURN, true) })
    }
}

/// P2 and P3: a sequencer against one that has less on its mind.
struct AgainstUsual {
    usual: House,
    burdened: House,
    /// What stays open.
    open: Vec<WritePointer>,
    /// Those that are open end in random order, and as many new ones take their place.
    rolling: bool,
    side: Duration,
    dice: fastrand::Rng,
}

/// P2.
pub(super) fn many_open(sizes: &Sizes) -> Result<Box<dyn Pair>, Error> {
    const OPEN: usize = 10_000;
    const INVALID: usize = 1_000_000;
    let (usual, burdened) = (House::usual(sizes)?, House::usual(sizes)?);
    let mut driver = Driver::new(&burdened.sequencer, seed_of(sizes.seed, 4), WRITES);
    for _ in 0..INVALID / 1_000 {
        driver.begin(1_000)?;
        for tx in std::mem::take(&mut driver.transactions) {
            burdened.sequencer.invalidate(tx).map_err(refused)?;
        }
    }
    driver.begin(OPEN)?;
    let open = driver.transactions;
    let dice = fastrand::Rng::with_seed(sizes.seed);
    Ok(Box::new(AgainstUsual { usual, burdened, open, rolling: true, side: sizes.side, dice }))
}

/// P3.
pub(super) fn one_open(sizes: &Sizes) -> Result<Box<dyn Pair>, Error> {
    const COMMITS: usize = 1_000_000;
    let (usual, burdened) = (House::usual(sizes)?, House::usual(sizes)?);
    let options = BeginOptions { timeout_ms: Some(3_600_000), ..BEGIN };
    let open = vec![burdened.sequencer.begin(&options).map_err(refused)?.first];
    for house in [&usual, &burdened] {
        let mut driver = Driver::new(&house.sequencer, seed_of(sizes.seed, 5), WRITES);
        for _ in 0..COMMITS / TURN {
            driver.turn(TURN, true)?;
        }
    }
    let dice = fastrand::Rng::with_seed(sizes.seed);
    Ok(Box::new(AgainstUsual { usual, burdened, open, rolling: false, side: sizes.side, dice }))
}

impl Pair for AgainstUsual {
    fn yardstick(&mut self) -> Result<f64, Error> {
        let mut driver = Driver::new(&self.usual.sequencer, self.dice.u64(..), WRITES);
        rate(self.side, TURN, || driver.turn(TURN, true))
    }

    fn product(&mut self) -> Result<f64, Error> {
        let mut driver = Driver::new(&self.burdened.sequencer, self.dice.u64(..), WRITES);
        let (open, dice, rolling) = (&mut self.open, &mut self.dice, self.rolling);
        rate(self.side, TURN, || {
            driver.begin(TURN)?;
            if rolling {
                for tx in &mut driver.transactions {
                    let place = dice.usize(..open.len());
                    std::mem::swap(tx, &mut open[place]);
                }
            }
            driver.commit(true).map(drop)
        })
    }
}

/// P12.
struct TwoThreads {
    house: House,
    side: Duration,
    seed: u64,
}

/// Transactions of a turn of P12.
const SHORT_TURN: usize = 16;

/// P12: two threads against one, on one sequencer.
pub(super) fn two_threads(sizes: &Sizes) -> Result<Box<dyn Pair>, Error> {
    Ok(Box::new(TwoThreads { house: House::usual(sizes)?, side: sizes.side, seed: sizes.seed }))
}

impl TwoThreads {
    fn on(&mut self, threads: u64) -> Result<f64, Error> {
        self.seed += threads;
        let (sequencer, side, seed) = (&self.house.sequencer, self.side, self.seed);
        std::thread::scope(|scope| {
            let share = |thread| {
                let mut driver = Driver::new(sequencer, seed_of(seed, 10 + thread), WRITES);
                rate(side, SHORT_TURN, || driver.turn(SHORT_TURN, true))
            };
            let shares: Vec<_> = (0..threads).map(|thread| scope.spawn(move || share(thread))).collect();
            let joined = shares.into_iter().map(|share| share.join());
            joined.map(|share| share.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).sum()
        })
    }
}

impl Pair for TwoThreads {
    fn yardstick(&mut self) -> Result<f64, Error> {
        self.on(1)
    }

    fn product(&mut self) -> Result<f64, Error> {
        self.on(2)
    }
}

/// P7.
struct LogBytes {
    seed: u64,
    note: Option<String>,
}

/// P7: bytes of the log for each transaction, without the padding of its groups.
pub(super) fn log_bytes(sizes: &Sizes) -> Result<Box<dyn Pair>, Error> {
    Ok(Box::new(LogBytes { seed: sizes.seed, note: None }))
}

impl Pair for LogBytes {
    fn yardstick(&mut self) -> Result<f64, Error> {
        Ok(f64::from(8 * WRITES + 16))
    }

    fn product(&mut self) -> Result<f64, Error> {
        const TURNS: u64 = 1_000;
        let storage = MemoryStorage::new();
        let options = Options::default();
        let (sequencer, _) = Embedded::over(storage.clone(), &options)?;
        let mut driver = Driver::new(&sequencer, self.seed, WRITES);
        for _ in 0..TURNS {
            driver.turn(TURN, true)?;
        }
        drop(sequencer);
        let open = |error: seriatim_wal::OpenError| Error::Refused(error.to_string());
        let (_log, recovered) = Log::open(storage, options.log).map_err(open)?;
        let (mut bytes, mut padded) = (0, 0);
        for group in recovered.groups().filter(|group| group.header().records > 0) {
            bytes += GROUP_HEADER_BYTES + group.header().payload_bytes as usize;
            padded += group.header().padded_bytes();
        }
        let each = |bytes: usize| bytes as f64 / (TURNS * TURN as u64) as f64;
        self.note = Some(format!("with padding {:.1} bytes", each(padded)));
        Ok(each(bytes))
    }

    fn note(&self) -> Option<String> {
        self.note.clone()
    }
}

/// P11.
struct TooOld {
    house: House,
    seed: u64,
    note: Option<String>,
}

/// Ids that fill the buckets of the default index: six for each, which holds four.
const FULL_INDEX_IDS: u64 = 24_000_000;
/// Commits of five seconds at 100 000 a second.
const AGE: u64 = 500_000;
/// The share that the design allows.
const TOO_OLD_MAX: f64 = 0.001;

/// P11: how many transactions that are so old are refused for it. Time has no part in it, so it runs as fast as it can.
pub(super) fn too_old(sizes: &Sizes) -> Result<Box<dyn Pair>, Error> {
    let house = House::filled(MemoryStorage::new(), sizes.seed, FULL_INDEX_IDS)?;
    Ok(Box::new(TooOld { house, seed: sizes.seed, note: None }))
}

impl Pair for TooOld {
    fn yardstick(&mut self) -> Result<f64, Error> {
        Ok(TOO_OLD_MAX)
    }

    fn product(&mut self) -> Result<f64, Error> {
        /// Of a turn, these wait until they are old.
        const WAITING: usize = 4;
        self.seed += 1;
        let mut driver = Driver::new(&self.house.sequencer, seed_of(self.seed, 6), WRITES);
        let (mut old, mut commits, mut tried, mut too_old) = (VecDeque::new(), 0, 0u64, 0u64);
        while tried < 100_000 {
            driver.begin(TURN)?;
            old.extend(driver.transactions.drain(TURN - WAITING..).map(|tx| (tx, commits)));
            commits += driver.transactions.len() as u64 - driver.commit(true)?.len() as u64;
            while let Some((tx, _)) = old.pop_front_if(|(_, begun)| commits - *begun >= AGE) {
                driver.transactions.push(tx);
            }
            tried += driver.transactions.len() as u64;
            let refusals = driver.commit(true)?;
            too_old += refusals.iter().filter(|error| matches!(error, CommitError::TooOld { .. })).count() as u64;
        }
        for (tx, _) in old {
            self.house.sequencer.abort(tx).map_err(refused)?;
        }
        self.note = Some(format!("{too_old} of {tried} in the last round"));
        Ok(too_old as f64 / tried as f64)
    }

    fn note(&self) -> Option<String> {
        self.note.clone()
    }
}
