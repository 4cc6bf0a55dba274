//! The versions of every key in their order, and which of them each read returned.
//!
//! A transaction *counts* if its writes are versions that others may see: it committed, or nobody heard how it ended and
//! somebody read from it. Where commits have numbers, versions stand in the order of these, else in that of their write
//! pointers.
//!
//! A counted transaction without a number has one all the same that nobody told. It is at most the commit number of each
//! snapshot through which it was read, or from which the next writer of one of its keys overwrote it, and is taken to be
//! the smallest of these: whoever read through a later snapshot must have seen it, wherever it really was, and of earlier
//! snapshots nothing is claimed.

use std::ops::Range;

use rustc_hash::FxHashMap;

use crate::history::{History, Transaction};
use crate::row::Outcome;

/// What a read returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// No version.
    Nothing,
    /// A write of the reader itself.
    Own,
    /// A version of this transaction.
    Writer(u32),
    /// A version that no row has.
    Unwritten,
}

/// Where the versions of a transaction stand among commit numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// Snapshots from this commit number on hold them.
    pub from: u64,
    /// How that is known.
    pub known: Known,
}

/// How a [`Place`] is known, in the order in which versions of the same number stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Known {
    /// It was in a snapshot of that number: somebody read it there, or overwrote it from there.
    Seen,
    /// It is the transaction's commit number.
    Told,
    /// Not at all: it stands behind what has a smaller write pointer. Snapshots from there on may lack it.
    Guessed,
}

/// See the head of this file.
pub struct Versions {
    sources: Vec<Source>,
    counted: Vec<bool>,
    /// By transaction; empty if neither commits nor snapshots have numbers.
    places: Vec<Option<Place>>,
    /// The place of each writer in the order of versions, by transaction.
    ranks: Vec<u32>,
    /// Where each key's writers begin in `writers`; one more than there are keys.
    starts: Vec<usize>,
    writers: Vec<u32>,
    /// Who deleted a key, and nobody told when or whether: reads of nothing do not name it.
    doubts: FxHashMap<u32, Vec<u32>>,
}

impl Versions {
    pub fn new(history: &History) -> Versions {
        let sources = sources(history);
        let mut counted: Vec<bool> = history.transactions().map(|(_, tx)| tx.outcome == Outcome::Committed).collect();
        for source in &sources {
            if let Source::Writer(writer) = *source {
                counted[writer as usize] |= history.transaction(writer).outcome == Outcome::Unknown;
            }
        }
        let mut order: Vec<u32> = history.transactions().map(|(number, _)| number).collect();
        order.retain(|tx| counted[*tx as usize] && !history.writes_of(*tx).is_empty());
        let pointer = |tx: &u32| history.transaction(*tx).pointer;
        order.sort_by_key(pointer);
        let is_numbered = history.transactions().any(|(_, tx)| tx.csn.is_some() || tx.snapshot.csn.is_some());
        let places = if is_numbered { places(history, &sources, &order) } else { Vec::new() };
        if is_numbered {
            order.sort_by_key(|tx| places[*tx as usize]);
        }
        // Whoever wrote nothing that counts has a place behind all.
        let mut ranks = vec![u32::MAX; history.len()];
        (0..).zip(&order).for_each(|(rank, tx)| ranks[*tx as usize] = rank);
        let (starts, writers) = by_key(history, &order);
        let doubts = doubts(history);
        Versions { sources, counted, places, ranks, starts, writers, doubts }
    }

    /// True if versions stand in the order of commit numbers.
    pub fn is_numbered(&self) -> bool {
        !self.places.is_empty()
    }

    /// What a transaction's reads returned, in the order of [`History::reads`].
    pub fn sources(&self, reads: Range<usize>) -> &[Source] {
        &self.sources[reads]
    }

    /// True if others may see what the transaction wrote.
    pub fn counts(&self, tx: u32) -> bool {
        self.counted[tx as usize]
    }

    /// Where the versions of a transaction stand, if they count and there are numbers.
    pub fn place(&self, tx: u32) -> Option<Place> {
        *self.places.get(tx as usize)?
    }

    /// The writers of a key that count, in the order of their versions.
    pub fn of(&self, key: u32) -> &[u32] {
        &self.writers[self.starts[key as usize]..self.starts[key as usize + 1]]
    }

    /// Where a writer that counts stands in [`Versions::of`] a key.
    pub fn position(&self, key: u32, writer: u32) -> Option<usize> {
        let rank = self.ranks[writer as usize];
        self.of(key).binary_search_by_key(&rank, |tx| self.ranks[*tx as usize]).ok()
    }

    /// How many versions of a key lie before a read that returned nothing. Of several states without a value, the snapshot
    /// says which one it was; `None` if that cannot be told.
    pub fn before_nothing(&self, history: &History, key: u32, snapshot: Option<u64>) -> Option<usize> {
        if self.doubts.contains_key(&key) {
            return None;
        }
        let deleted = |tx: &u32| deletes(history, *tx, key);
        match snapshot.filter(|_| self.is_numbered()) {
            Some(csn) => {
                let held = &self.of(key)[..self.up_to(key, csn)];
                Some(held.last().filter(|last| deleted(last)).map_or(0, |_| held.len()))
            }
            None => (!self.of(key).iter().any(deleted)).then_some(0),
        }
    }

    /// True if a read through a snapshot may have returned nothing though `newest` is the newest version that is known to
    /// be in it: that version is a deletion, or one of which nobody told came after it.
    pub fn may_be_deleted(&self, history: &History, key: u32, newest: u32, csn: u64) -> bool {
        let after = |tx: u32| history.transaction(tx).pointer > history.transaction(newest).pointer;
        let in_time = |tx: u32| history.transaction(tx).snapshot.csn.is_none_or(|begun| begun < csn);
        let doubts = self.doubts.get(&key).map_or(&[][..], Vec::as_slice);
        deletes(history, newest, key) || doubts.iter().any(|tx| after(*tx) && in_time(*tx))
    }

    /// How many versions of a key stand at or below a commit number. There must be numbers.
    pub fn up_to(&self, key: u32, csn: u64) -> usize {
        self.of(key).partition_point(|tx| self.place(*tx).is_some_and(|place| place.from <= csn))
    }
}

fn deletes(history: &History, tx: u32, key: u32) -> bool {
    history.write_of(tx, key).is_some_and(|write| write.deleted)
}

fn doubts(history: &History) -> FxHashMap<u32, Vec<u32>> {
    let mut doubts: FxHashMap<u32, Vec<u32>> = FxHashMap::default();
    for (number, tx) in history.transactions() {
        if tx.csn.is_none() && matches!(tx.outcome, Outcome::Unknown | Outcome::Committed) {
            for write in history.writes_of(number).iter().filter(|write| write.deleted) {
                doubts.entry(write.key).or_default().push(number);
            }
        }
    }
    doubts
}

fn sources(history: &History) -> Vec<Source> {
    let mut sources = Vec::with_capacity(history.reads().len());
    for (reader, tx) in history.transactions() {
        for read in &history.reads()[history.read_range(reader)] {
            sources.push(match read.writer {
                None => Source::Nothing,
                Some(_) if read.writer == tx.pointer => Source::Own,
                Some(pointer) => source(history, pointer, read.key, read.seq),
            });
        }
    }
    sources
}

fn source(history: &History, pointer: u64, key: u32, seq: u32) -> Source {
    let writer = history.with_pointer(pointer);
    match writer.and_then(|writer| history.write_of(writer, key).map(|write| (writer, write))) {
        Some((writer, write)) if seq <= write.versions => Source::Writer(writer),
        _ => Source::Unwritten,
    }
}

/// The places of `writers`, which come in the order of their pointers.
fn places(history: &History, sources: &[Source], writers: &[u32]) -> Vec<Option<Place>> {
    let told = |csn| Place { from: csn, known: Known::Told };
    let mut places: Vec<Option<Place>> = history.transactions().map(|(_, tx)| tx.csn.map(told)).collect();
    for (reader, Transaction { snapshot, .. }) in history.transactions() {
        let Some(csn) = snapshot.csn else { continue };
        for source in &sources[history.read_range(reader)] {
            let Source::Writer(writer) = *source else { continue };
            see(&mut places[writer as usize], csn);
        }
    }
    // Who overwrites began after the one before had committed; where neither did, that is an anomaly of its own.
    if writers.iter().any(|tx| history.transaction(*tx).csn.is_none()) {
        let (starts, list) = by_key(history, writers);
        for of_key in starts.windows(2).map(|key| &list[key[0]..key[1]]) {
            for pair in of_key.windows(2) {
                let [begun, next] = [pair[0], pair[1]].map(|tx| history.transaction(tx).snapshot.csn);
                if let Some(next) = next.filter(|next| begun.is_none_or(|begun| begun < *next)) {
                    see(&mut places[pair[0] as usize], next);
                }
            }
        }
    }
    let mut highest = 0;
    for writer in writers {
        let place = places[*writer as usize].get_or_insert(Place { from: highest, known: Known::Guessed });
        highest = highest.max(place.from);
    }
    places
}

/// Notes that a snapshot of this number holds what stands at `place`.
fn see(place: &mut Option<Place>, csn: u64) {
    let seen = Place { from: csn, known: Known::Seen };
    if place.is_none_or(|place| place.known == Known::Seen && seen < place) {
        *place = Some(seen);
    }
}

/// The writers of each key, in the order of `writers`, and where each key's begin.
fn by_key(history: &History, writers: &[u32]) -> (Vec<usize>, Vec<u32>) {
    let mut starts = vec![0; history.keys() + 1];
    let writes = || writers.iter().flat_map(|tx| history.writes_of(*tx).iter().map(|write| (*tx, write.key as usize)));
    writes().for_each(|(_, key)| starts[key + 1] += 1);
    for key in 1..starts.len() {
        starts[key] += starts[key - 1];
    }
    let mut next = starts.clone();
    let mut list = vec![0; *starts.last().expect("there is one more than keys")];
    for (tx, key) in writes() {
        list[next[key]] = tx;
        next[key] += 1;
    }
    (starts, list)
}
