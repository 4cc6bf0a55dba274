//! The invalid transactions of the published state: what snapshots show of them, and what is kept beside.
//!
//! Snapshots need the excluded pointers alone ([`InvalidSet`]). Kept beside, 16 bytes each: whether it is LONG, why it is
//! invalid, and until when its client may still write. They stand in sorted pages that clones share, so that the state
//! can be cloned for an image whatever their number. Further pointers of a transaction come and go with it.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::pointer::{SequencerTime, WritePointer};
use crate::snapshot::InvalidSet;
use crate::transaction::{InvalidCause, Kind};

/// Transactions in one page at most: the unit of copying, 2 kB.
const PAGE_MAX: usize = 128;
/// The greatest time that is kept.
const UNTIL_MAX: u64 = (1 << 58) - 1;

/// How long a client may go on writing under a pointer for which no deadline is known: 24 h from when that was found
/// out. It is the longest deadline of a SHORT, and the default one of a LONG.
pub const WRITES_WITHOUT_DEADLINE_MS: u64 = 24 * 3_600_000;

/// What is kept of an invalid transaction beside its pointers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvalidTransaction {
    /// A SHORT may still report a clean rollback; a LONG may not.
    pub kind: Kind,
    /// Why it is invalid.
    pub cause: InvalidCause,
    /// Until when its client may write: its deadline, or 24 h from its end where it had none.
    pub writes_until: SequencerTime,
}

impl InvalidTransaction {
    /// As one word.
    pub(crate) fn word(&self) -> u64 {
        self.writes_until.0.min(UNTIL_MAX) << 4 | (self.cause as u64) << 1 | u64::from(self.kind == Kind::Long)
    }

    pub(crate) fn of_word(word: u64) -> Option<InvalidTransaction> {
        let kind = if word & 1 != 0 { Kind::Long } else { Kind::Short };
        let cause = InvalidCause::from_u8((word >> 1 & 7) as u8)?;
        Some(InvalidTransaction { kind, cause, writes_until: SequencerTime(word >> 4) })
    }
}

/// Something invalid under which its client may still write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StillWriting {
    /// The transaction, or the first pointer of an interval.
    pub tx: WritePointer,
    /// What is kept of it; an interval counts as LONG and unaccounted.
    pub kept: InvalidTransaction,
}

#[derive(Clone, Debug)]
struct Page {
    /// The first transaction, kept here so that a search reads one array.
    first: u64,
    /// Transactions and words, ascending; at least one.
    entries: Arc<Vec<(u64, u64)>>,
}

/// The invalid transactions; see the head of this file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Invalids {
    set: Arc<InvalidSet>,
    pages: Vec<Page>,
    further: FxHashMap<u64, Vec<WritePointer>>,
    /// For each interval, until when somebody may write under it.
    intervals_until: Vec<SequencerTime>,
    /// Transactions below are known to be past their time. Remembered, so that a question does not walk over them again.
    past_below: u64,
}

impl Invalids {
    /// What snapshots show.
    pub(crate) fn set(&self) -> &Arc<InvalidSet> {
        &self.set
    }

    pub(crate) fn get(&self, tx: WritePointer) -> Option<InvalidTransaction> {
        let page = &self.pages[self.page_of(tx.0)?];
        let at = page.entries.binary_search_by_key(&tx.0, |(tx, _)| *tx).ok()?;
        InvalidTransaction::of_word(page.entries[at].1)
    }

    /// The transactions after this one, ascending.
    pub(crate) fn after(&self, tx: WritePointer) -> impl Iterator<Item = (WritePointer, InvalidTransaction)> + '_ {
        let page = self.page_of(tx.0).unwrap_or(0);
        let entries = self.pages[page..].iter().flat_map(|page| page.entries.iter());
        entries.skip_while(move |(at, _)| *at <= tx.0).map(|(tx, word)| (WritePointer(*tx), kept(*word)))
    }

    /// The transactions as pointers and words, ascending.
    pub(crate) fn words(&self) -> impl Iterator<Item = (u64, u64)> + Clone + '_ {
        self.pages.iter().flat_map(|page| page.entries.iter().copied())
    }

    /// How many transactions there are, intervals not counted.
    pub(crate) fn transactions(&self) -> u64 {
        self.pages.iter().map(|page| page.entries.len() as u64).sum()
    }

    /// How many transactions and intervals begin below a pointer.
    pub(crate) fn count_before(&self, bound: WritePointer) -> u64 {
        let pages = self.pages.partition_point(|page| page.first < bound.0);
        let full: usize = self.pages[..pages.saturating_sub(1)].iter().map(|page| page.entries.len()).sum();
        let last = self.pages[..pages].last();
        let last = last.map_or(0, |page| page.entries.partition_point(|(tx, _)| *tx < bound.0));
        let whole = self.set.intervals.iter().filter(|(first, _)| *first < bound.0).count();
        (full + last + whole) as u64
    }

    /// The further pointers of a transaction, ascending.
    pub(crate) fn further(&self, tx: WritePointer) -> Option<&Vec<WritePointer>> {
        self.further.get(&tx.0)
    }

    /// Every transaction that has further pointers.
    pub(crate) fn all_further(&self) -> impl Iterator<Item = (&u64, &Vec<WritePointer>)> {
        self.further.iter()
    }

    /// Each interval with the time until which somebody may write under it.
    pub(crate) fn intervals(&self) -> impl ExactSizeIterator<Item = (u64, u64, SequencerTime)> + '_ {
        self.set.intervals.iter().zip(&self.intervals_until).map(|((first, end), until)| (*first, *end, *until))
    }

    /// Adds a transaction with its further pointers.
    pub(crate) fn insert(&mut self, tx: WritePointer, kept: InvalidTransaction, further: Vec<WritePointer>) {
        self.insert_word(tx.0, kept.word());
        let set = Arc::make_mut(&mut self.set);
        for pointer in further.iter().chain([&tx]) {
            set.pointers.insert(*pointer);
        }
        set.version += 1;
        if !further.is_empty() {
            self.further.insert(tx.0, further);
        }
    }

    /// Adds an interval above all others; one that goes on where the last one ends becomes part of it.
    pub(crate) fn add_interval(&mut self, first: u64, end: u64, until: SequencerTime) {
        let set = Arc::make_mut(&mut self.set);
        match set.intervals.last_mut() {
            Some(last) if last.1 == first => {
                last.1 = end;
                let last = self.intervals_until.last_mut().expect("one for each interval");
                *last = until.max(*last);
            }
            _ => {
                set.intervals.push((first, end));
                self.intervals_until.push(until);
            }
        }
        set.version += 1;
    }

    /// Takes a transaction out, with all of its pointers. False if it is not here.
    pub(crate) fn remove(&mut self, tx: WritePointer) -> bool {
        if !self.remove_word(tx.0) {
            return false;
        }
        let set = Arc::make_mut(&mut self.set);
        for pointer in self.further.remove(&tx.0).iter().flatten().chain([&tx]) {
            set.pointers.remove(*pointer);
        }
        set.version += 1;
        true
    }

    /// Takes out every transaction that begins below `end`, with all of its pointers, and cuts intervals there.
    pub(crate) fn remove_before(&mut self, end: WritePointer) {
        self.take_below(end, |_| true);
    }

    /// Takes out every transaction whose pointers all lie at or below `bound`, and cuts intervals behind it.
    pub(crate) fn prune_to(&mut self, bound: WritePointer) {
        self.take_below(WritePointer(bound.0.saturating_add(1)), |last| last <= bound);
    }

    /// Takes out everything below `end`, but for transactions with further pointers whose last one does not go.
    fn take_below(&mut self, end: WritePointer, goes: impl Fn(WritePointer) -> bool) {
        let before = (self.set.pointers.len(), self.set.intervals.first().copied());
        if self.set.pointers.first().is_none_or(|first| first >= end)
            && before.1.is_none_or(|(first, _)| first >= end.0)
        {
            return;
        }
        let mut staying = Vec::new();
        let mut going_above = Vec::new();
        self.further.retain(|tx, further| {
            let last = *further.last().expect("kept only where there are some");
            if *tx >= end.0 {
                return true;
            }
            if !goes(last) {
                staying.push(*tx);
                return true;
            }
            going_above.extend(further.iter().copied().filter(|pointer| *pointer >= end));
            false
        });
        let staying: Vec<(u64, u64)> =
            staying.into_iter().map(|tx| (tx, self.get(WritePointer(tx)).expect("it is invalid").word())).collect();
        let pages = self.pages.partition_point(|page| page.entries.last().is_some_and(|(tx, _)| *tx < end.0));
        self.pages.drain(..pages);
        if let Some(page) = self.pages.first_mut().filter(|page| page.first < end.0) {
            let entries = Arc::make_mut(&mut page.entries);
            entries.drain(..entries.partition_point(|(tx, _)| *tx < end.0));
            page.first = entries[0].0;
        }
        let set = Arc::make_mut(&mut self.set);
        set.pointers.remove_below(end);
        for pointer in going_above {
            set.pointers.remove(pointer);
        }
        for (tx, word) in staying {
            let set = Arc::make_mut(&mut self.set);
            for pointer in self.further[&tx].iter().chain([&WritePointer(tx)]) {
                set.pointers.insert(*pointer);
            }
            self.insert_word(tx, word);
        }
        let set = Arc::make_mut(&mut self.set);
        set.intervals.iter_mut().for_each(|(first, _)| *first = (*first).max(end.0));
        let emptied = set.intervals.iter().take_while(|(first, end)| first >= end).count();
        set.intervals.drain(..emptied);
        self.intervals_until.drain(..emptied);
        if before != (set.pointers.len(), set.intervals.first().copied()) {
            set.version += 1;
        }
    }

    /// Takes everything out.
    pub(crate) fn clear(&mut self) {
        let version = self.set.version + 1;
        *self = Invalids { set: Arc::new(InvalidSet { version, ..InvalidSet::default() }), ..Invalids::default() };
    }

    /// The first transaction or interval under which somebody may have written later than `time`. Times that are asked
    /// about do not go back.
    pub(crate) fn first_writing_after(&mut self, time: SequencerTime) -> Option<StillWriting> {
        let writes = |word: &u64| kept(*word).writes_until > time;
        let page = self.page_of(self.past_below).unwrap_or(0);
        let entries = self.pages[page..].iter().flat_map(|page| page.entries.iter());
        let mut rest = entries.skip_while(|(tx, _)| *tx < self.past_below);
        let single = rest.find(|(_, word)| writes(word)).copied();
        let last = self.pages.last().and_then(|page| page.entries.last());
        self.past_below = single.map(|(tx, _)| tx).or(last.map(|(tx, _)| tx + 1)).unwrap_or(0);
        let whole = self.intervals().find(|(_, _, until)| *until > time).map(|(first, _, writes_until)| {
            let kept = InvalidTransaction { kind: Kind::Long, cause: InvalidCause::Unaccounted, writes_until };
            StillWriting { tx: WritePointer(first), kept }
        });
        let single = single.map(|(tx, word)| StillWriting { tx: WritePointer(tx), kept: kept(word) });
        single.into_iter().chain(whole).min_by_key(|writing| writing.tx)
    }

    /// Puts back what an image holds: the transactions ascending, then the further pointers of some.
    pub(crate) fn load(version: u64) -> Invalids {
        Invalids { set: Arc::new(InvalidSet { version, ..InvalidSet::default() }), ..Invalids::default() }
    }

    /// Puts back one transaction without changing the version.
    pub(crate) fn load_transaction(&mut self, tx: WritePointer, kept: InvalidTransaction) {
        self.insert_word(tx.0, kept.word());
        Arc::make_mut(&mut self.set).pointers.insert(tx);
    }

    /// Puts back the further pointers of a transaction.
    pub(crate) fn load_further(&mut self, tx: WritePointer, further: Vec<WritePointer>) {
        let set = Arc::make_mut(&mut self.set);
        for pointer in &further {
            set.pointers.insert(*pointer);
        }
        self.further.insert(tx.0, further);
    }

    /// Puts back one interval.
    pub(crate) fn load_interval(&mut self, first: u64, end: u64, until: SequencerTime) {
        Arc::make_mut(&mut self.set).intervals.push((first, end));
        self.intervals_until.push(until);
    }

    /// The page that holds this transaction, if any does; or else the one before where it would stand.
    fn page_of(&self, tx: u64) -> Option<usize> {
        self.pages.partition_point(|page| page.first <= tx).checked_sub(1)
    }

    fn insert_word(&mut self, tx: u64, word: u64) {
        self.past_below = self.past_below.min(tx);
        let Some(at) = self.page_of(tx).or((!self.pages.is_empty()).then_some(0)) else {
            return self.pages.push(Page { first: tx, entries: Arc::new(vec![(tx, word)]) });
        };
        let page = &mut self.pages[at];
        let place = page.entries.partition_point(|(at, _)| *at < tx);
        if page.entries.get(place).is_some_and(|(at, _)| *at == tx) {
            Arc::make_mut(&mut page.entries)[place].1 = word;
            return;
        }
        if page.entries.len() < PAGE_MAX {
            Arc::make_mut(&mut page.entries).insert(place, (tx, word));
            page.first = page.entries[0].0;
        } else if place == PAGE_MAX {
            // Growing at the end, as pointers mostly do: leave the full page as it is and start the next.
            self.pages.insert(at + 1, Page { first: tx, entries: Arc::new(vec![(tx, word)]) });
        } else {
            let upper = Arc::make_mut(&mut page.entries).split_off(PAGE_MAX / 2);
            self.pages.insert(at + 1, Page { first: upper[0].0, entries: Arc::new(upper) });
            self.insert_word(tx, word);
        }
    }

    fn remove_word(&mut self, tx: u64) -> bool {
        let Some(at) = self.page_of(tx) else { return false };
        let page = &mut self.pages[at];
        let Ok(place) = page.entries.binary_search_by_key(&tx, |(tx, _)| *tx) else { return false };
        if page.entries.len() == 1 {
            self.pages.remove(at);
            return true;
        }
        let entries = Arc::make_mut(&mut page.entries);
        entries.remove(place);
        page.first = entries[0].0;
        // Crumbs become one page again.
        if self.pages.get(at + 1).is_some_and(|next| self.pages[at].entries.len() + next.entries.len() <= PAGE_MAX / 2)
        {
            let next = self.pages.remove(at + 1);
            Arc::make_mut(&mut self.pages[at].entries).extend_from_slice(&next.entries);
        }
        true
    }
}

fn kept(word: u64) -> InvalidTransaction {
    InvalidTransaction::of_word(word).expect("only words of ours are kept")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn kept(writes_until: u64) -> InvalidTransaction {
        InvalidTransaction {
            kind: Kind::Short,
            cause: InvalidCause::Expired,
            writes_until: SequencerTime(writes_until),
        }
    }

    fn assert_same(invalids: &Invalids, model: &BTreeMap<u64, (u64, Vec<u64>)>, context: &str) {
        assert!(
            invalids
                .after(WritePointer(0))
                .map(|(tx, kept)| (tx.0, kept.writes_until.0))
                .eq(model.iter().map(|(tx, (until, _))| (*tx, *until)))
        );
        let mut pointers: Vec<u64> =
            model.iter().flat_map(|(tx, (_, further))| further.iter().copied().chain([*tx])).collect();
        pointers.sort();
        assert!(invalids.set().pointers.iter().map(|pointer| pointer.0).eq(pointers), "{context}");
        for page in &invalids.pages {
            assert_eq!(page.first, page.entries[0].0, "{context}");
            assert!(page.entries.len() <= PAGE_MAX, "{context}");
        }
    }

    #[test]
    fn behaves_like_an_ordered_map_of_whole_transactions() {
        for seed in 1..=30u64 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut invalids, mut model) = (Invalids::default(), BTreeMap::<u64, (u64, Vec<u64>)>::new());
            let (mut low, mut now) = (1, 0);
            for step in 0..2_000 {
                let context = format!("seed {seed}, step {step}");
                let tx = 100 * (low + random.u64(..400));
                now += random.u64(..3);
                match random.u64(..100) {
                    0..80 if !model.contains_key(&tx) => {
                        let further: Vec<u64> =
                            (1..=random.u64(..3)).map(|n| tx + n + 100 * random.u64(..30) / n).collect();
                        let further = if further.is_sorted() { further } else { Vec::new() };
                        let used = model.values().flat_map(|(_, further)| further).any(|at| further.contains(at));
                        let further = if used || further.iter().any(|at| at % 100 == 0) { Vec::new() } else { further };
                        let until = now + random.u64(..500);
                        let pointers = further.iter().copied().map(WritePointer).collect();
                        invalids.insert(WritePointer(tx), kept(until), pointers);
                        model.insert(tx, (until, further));
                    }
                    80..95 => assert_eq!(invalids.remove(WritePointer(tx)), model.remove(&tx).is_some(), "{context}"),
                    95 => {
                        let bound = 100 * (low + random.u64(..20)) + random.u64(..3);
                        let expected = model.range(..bound).count() as u64;
                        assert_eq!(invalids.count_before(WritePointer(bound)), expected, "{context}");
                        invalids.remove_before(WritePointer(bound));
                        model = model.split_off(&bound);
                    }
                    96 => {
                        let bound = 100 * (low + random.u64(..20)) + random.u64(..3);
                        invalids.prune_to(WritePointer(bound));
                        model.retain(|tx, (_, further)| *further.last().unwrap_or(tx) > bound);
                    }
                    97 => low += random.u64(..50),
                    _ => {
                        let writing = invalids.first_writing_after(SequencerTime(now)).map(|writing| writing.tx.0);
                        let expected = model.iter().find(|(_, (until, _))| *until > now).map(|(tx, _)| *tx);
                        assert_eq!(writing, expected, "{context}");
                    }
                }
                assert_eq!(invalids.transactions(), model.len() as u64, "{context}");
                if step % 50 == 0 {
                    assert_same(&invalids, &model, &context);
                }
            }
            assert_same(&invalids, &model, &format!("seed {seed}"));
        }
    }

    #[test]
    fn an_interval_holds_back_until_the_last_who_may_have_got_a_pointer_of_it() {
        let mut invalids = Invalids::default();
        invalids.add_interval(100, 200, SequencerTime(50));
        invalids.add_interval(200, 300, SequencerTime(70));
        invalids.insert(WritePointer(400), kept(90), vec![WritePointer(401)]);
        let mut first = |time| invalids.first_writing_after(SequencerTime(time)).map(|writing| writing.tx.0);
        assert_eq!([first(60), first(70), first(90)], [Some(100), Some(400), None]);
        let version = invalids.set().version;
        invalids.prune_to(WritePointer(250));
        assert_eq!(invalids.set().intervals, [(251, 300)]);
        invalids.prune_to(WritePointer(250));
        assert_eq!(invalids.set().version, version + 1, "nothing to do is no change");
        invalids.prune_to(WritePointer(400));
        assert_eq!((invalids.set().intervals.len(), invalids.intervals().len()), (0, 0));
        assert_eq!(invalids.transactions(), 1, "its further pointer lies behind the bound");
        invalids.prune_to(WritePointer(401));
        assert!(invalids.set().is_empty());
    }
}
