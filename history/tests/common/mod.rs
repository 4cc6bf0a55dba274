//! A store in a few lines: one thing happens at a time, snapshots are numbers, and every answer is written down.

use seriatim_history::{Interval, Isolation, Outcome, Read, Row, SnapshotPoint};

/// What runs.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Transactions to be run.
    pub transactions: usize,
    /// Keys in the store.
    pub keys: usize,
    /// Sessions, each with one transaction at a time.
    pub sessions: usize,
    /// What each transaction asks for.
    pub isolation: Isolation,
    /// False plants a bug: whoever commits later wins as well.
    pub checks_conflicts: bool,
    /// Answers to a commit that get lost, in percent.
    pub lost_answers: u32,
    /// True if nothing is written that was not read before.
    pub reads_first: bool,
}

/// A few of everything.
pub const FEW: Options = Options {
    transactions: 60,
    keys: 6,
    sessions: 4,
    isolation: Isolation::Snapshot,
    checks_conflicts: true,
    lost_answers: 0,
    reads_first: false,
};

/// What ran, and how many commits first-committer-wins would have refused.
pub struct Ran {
    pub rows: Vec<Row>,
    pub wrongly_committed: usize,
}

struct Version {
    csn: u64,
    pointer: u64,
    deleted: bool,
}

struct House {
    options: Options,
    random: fastrand::Rng,
    clock: u64,
    csn: u64,
    pointer: u64,
    read_pointer: u64,
    keys: Vec<Vec<Version>>,
    wrongly_committed: usize,
}

/// Runs transactions. One seed has one history.
pub fn run(options: Options, seed: u64) -> Ran {
    let mut house = House {
        options,
        random: fastrand::Rng::with_seed(seed),
        clock: 0,
        csn: 0,
        pointer: 0,
        read_pointer: 0,
        keys: (0..options.keys).map(|_| Vec::new()).collect(),
        wrongly_committed: 0,
    };
    let mut open: Vec<Option<Row>> = vec![None; options.sessions];
    let mut rows = Vec::with_capacity(options.transactions);
    while rows.len() < options.transactions {
        let session = house.random.usize(0..options.sessions);
        match open[session].take() {
            None => open[session] = Some(house.begin(session as u64)),
            Some(row) if house.random.u32(0..5) == 0 => rows.push(house.end(row)),
            Some(mut row) => {
                house.work(&mut row);
                open[session] = Some(row);
            }
        }
    }
    Ran { rows, wrongly_committed: house.wrongly_committed }
}

impl House {
    /// A request and its answer.
    fn interval(&mut self) -> Interval {
        self.clock += 2;
        Interval { sent: self.clock - 1, answered: Some(self.clock) }
    }

    fn begin(&mut self, session: u64) -> Row {
        self.pointer += 1;
        Row {
            tx: Some(self.pointer),
            session: Some(session),
            isolation: self.options.isolation,
            begin: Some(self.interval()),
            snapshot: Some(SnapshotPoint { read_pointer: Some(self.read_pointer), csn: Some(self.csn) }),
            ..Row::default()
        }
    }

    fn work(&mut self, row: &mut Row) {
        let number = self.random.usize(0..self.keys.len());
        let key = format!("k{number}");
        let writes = self.random.bool();
        if (!writes || self.options.reads_first) && !row.reads.iter().any(|read| read.key == key) {
            row.reads.push(self.read(row, number, key.clone()));
        }
        if !writes {
        } else if self.random.u32(0..10) == 0 && !row.deletes.contains(&key) && !self.options.reads_first {
            row.deletes.push(key);
        } else if !row.deletes.contains(&key) {
            row.writes.push(key);
        }
    }

    fn read(&mut self, row: &Row, number: usize, key: String) -> Read {
        let own = row.writes.iter().chain(&row.deletes).filter(|written| **written == key).count() as u32;
        if own > 0 {
            return Read { key, writer: row.tx, seq: Some(own) };
        }
        let newest = self.keys[number].iter().rfind(|version| version.csn <= begun(row));
        let writer = newest.filter(|version| !version.deleted).map(|version| version.pointer);
        Read { key, writer, seq: None }
    }

    fn end(&mut self, mut row: Row) -> Row {
        let end = self.interval();
        row.end = Some(end);
        let written: Vec<&String> = row.writes.iter().chain(&row.deletes).collect();
        if written.is_empty() || self.random.u32(0..10) == 0 {
            row.outcome = if written.is_empty() { Outcome::Committed } else { Outcome::Aborted };
            return row;
        }
        let number = |key: &String| key[1..].parse::<usize>().expect("keys are k and a number");
        let newer = |key: &String| self.keys[number(key)].last().is_some_and(|version| version.csn > begun(&row));
        let conflicts = written.iter().any(|key| newer(key));
        let misses = row.isolation == Isolation::Serializable && row.reads.iter().any(|read| newer(&read.key));
        if (conflicts || misses) && self.options.checks_conflicts {
            row.outcome = Outcome::Refused;
        } else {
            self.wrongly_committed += usize::from(conflicts);
            self.csn += 1;
            let pointer = row.tx.expect("every transaction has one");
            self.read_pointer = self.read_pointer.max(pointer);
            for key in &written {
                let deleted = row.deletes.contains(key);
                self.keys[number(key)].push(Version { csn: self.csn, pointer, deleted });
            }
            (row.outcome, row.csn) = (Outcome::Committed, Some(self.csn));
        }
        if self.random.u32(0..100) < self.options.lost_answers {
            (row.outcome, row.csn) = (Outcome::Unknown, None);
            row.end = Some(Interval { answered: None, ..end });
        }
        row
    }
}

fn begun(row: &Row) -> u64 {
    row.snapshot.and_then(|snapshot| snapshot.csn).expect("every snapshot has a number")
}
