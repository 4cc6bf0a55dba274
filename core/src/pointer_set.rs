//! An ordered set of pointers as a persistent bitmap: cloning shares everything, changing copies one small page.
//!
//! Pages of neighbouring chunks ([`crate::pointer_page`]) stand in order. A snapshot holds a clone; the next one copies only
//! the pages that changed in between. Two sets that share pages are compared page by page, which is what makes the
//! difference between two snapshots cheap to find and small to send.

use crate::pointer::WritePointer;
use crate::pointer_page::{CHUNK_POINTERS, Chunk, ChunkWords, Chunks, Page, bits, chunk_start, place};

/// An ordered set of pointers; see the head of this file.
#[derive(Clone, Debug, Default)]
pub struct PointerSet {
    pages: Vec<Page>,
    len: u64,
    digest: u64,
}

impl PointerSet {
    /// The empty set.
    pub fn new() -> PointerSet {
        PointerSet::default()
    }

    /// Number of pointers in the set.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True if the set holds nothing.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// A 64-bit digest of the members: two sets that differ have different digests, but for chance.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// True if the pointer is a member.
    pub fn contains(&self, pointer: WritePointer) -> bool {
        self.page_of(pointer.0 / CHUNK_POINTERS).is_some_and(|page| self.pages[page].contains(pointer.0))
    }

    /// Adds a pointer; false if it was a member already.
    pub fn insert(&mut self, pointer: WritePointer) -> bool {
        let (word, bit) = place(pointer.0);
        let is_new = self.change(pointer.0 / CHUNK_POINTERS, |words| {
            let is_new = words[word] & bit == 0;
            words[word] |= bit;
            is_new
        });
        if is_new {
            self.len += 1;
            self.digest ^= mix(pointer.0);
        }
        is_new
    }

    /// Removes a pointer; false if it was no member.
    pub fn remove(&mut self, pointer: WritePointer) -> bool {
        let Some(page) = self.page_of(pointer.0 / CHUNK_POINTERS) else { return false };
        let Some(is_shorter) = self.pages[page].remove(pointer.0) else { return false };
        if is_shorter {
            self.tidy(page);
        }
        self.len -= 1;
        self.digest ^= mix(pointer.0);
        true
    }

    /// Adds every pointer from `first` up to, but not including, `end`.
    pub fn insert_range(&mut self, first: u64, end: u64) {
        let mut at = first;
        while at < end {
            let number = at / CHUNK_POINTERS;
            let start = chunk_start(number);
            let stop = end.min(start + CHUNK_POINTERS);
            let new = self.change(number, |words| {
                let mut new: ChunkWords = [0; 4];
                for (index, (word, new)) in words.iter_mut().zip(&mut new).enumerate() {
                    let (from, to) = (start + 64 * index as u64, start + 64 * (index as u64 + 1));
                    *new = bits_between(at.max(from).min(to) - from, stop.max(from).min(to) - from) & !*word;
                    *word |= *new;
                }
                new
            });
            self.count(number, [0; 4], new);
            at = stop;
        }
    }

    /// The bits of one chunk; all zero if it holds no member.
    pub fn words(&self, number: u64) -> ChunkWords {
        self.page_of(number).map_or([0; 4], |page| self.pages[page].words(number))
    }

    /// Sets the bits of one chunk, whatever it held before.
    pub fn put_chunk(&mut self, number: u64, words: ChunkWords) {
        let old = self.words(number);
        if old != words {
            self.change(number, |there| *there = words);
            self.count(number, old, words);
        }
    }

    /// Removes every pointer below `end`.
    pub fn remove_below(&mut self, end: WritePointer) {
        let last = end.0 / CHUNK_POINTERS;
        let whole = self.pages.partition_point(|page| page.last() < last);
        for page in self.pages.drain(..whole).collect::<Vec<_>>() {
            page.chunks().for_each(|chunk| self.count(chunk.number, chunk.words, [0; 4]));
        }
        let Some(first) = self.pages.first().filter(|page| page.first <= last) else { return };
        let cut: Vec<Chunk> = first.chunks().take_while(|chunk| chunk.number <= last).collect();
        for Chunk { number, mut words } in cut {
            for (index, word) in words.iter_mut().enumerate() {
                let below = end.0.saturating_sub(chunk_start(number) + 64 * index as u64).min(64);
                *word &= !bits_between(0, below);
            }
            self.put_chunk(number, words);
        }
    }

    /// Calls `visit` with every chunk in which this set differs from `base`, in ascending order, and this set's bits.
    pub fn for_each_difference(&self, base: &PointerSet, mut visit: impl FnMut(u64, ChunkWords)) {
        let (mut mine, mut theirs) = (Cursor::new(self), Cursor::new(base));
        loop {
            if let (Some(a), Some(b)) = (mine.page_start(), theirs.page_start())
                && a.is_shared_with(b)
            {
                mine.skip_page();
                theirs.skip_page();
                continue;
            }
            match (mine.peek(), theirs.peek()) {
                (None, None) => return,
                (Some(a), b) if b.is_none_or(|b| a.number < b.number) => {
                    visit(a.number, a.words);
                    mine.advance();
                }
                (a, Some(b)) if a.is_none_or(|a| b.number < a.number) => {
                    visit(b.number, [0; 4]);
                    theirs.advance();
                }
                (Some(a), Some(b)) => {
                    if a.words != b.words {
                        visit(a.number, a.words);
                    }
                    mine.advance();
                    theirs.advance();
                }
                (None, Some(_)) | (Some(_), None) => unreachable!("covered by the guards above"),
            }
        }
    }

    /// The members in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = WritePointer> + '_ {
        self.pages.iter().flat_map(Page::chunks).flat_map(Chunk::pointers).map(WritePointer)
    }

    /// The smallest member.
    pub fn first(&self) -> Option<WritePointer> {
        self.iter().next()
    }

    /// The greatest member.
    pub fn last(&self) -> Option<WritePointer> {
        let page = self.pages.last()?;
        let (number, words) = (page.last(), page.words(page.last()));
        let top = |word: usize| Some(64 * word as u64 + u64::from(words[word].checked_ilog2()?));
        (0..4).rev().find_map(top).map(|bit| WritePointer(chunk_start(number) + bit))
    }

    /// The page that holds a chunk, if any does; or else the one before where it would stand.
    fn page_of(&self, number: u64) -> Option<usize> {
        // Nearly every question is about the newest pointers, so the last page is looked at first.
        match self.pages.last()? {
            last if last.first <= number => Some(self.pages.len() - 1),
            _ => self.pages.partition_point(|page| page.first <= number).checked_sub(1),
        }
    }

    /// Changes the bits of a chunk.
    fn change<R>(&mut self, number: u64, change: impl FnOnce(&mut ChunkWords) -> R) -> R {
        if self.pages.is_empty() {
            let mut words = [0; 4];
            let answer = change(&mut words);
            if words != [0; 4] {
                self.pages.push(Page::of_chunk(Chunk { number, words }));
            }
            return answer;
        }
        let page = self.page_of(number).unwrap_or(0);
        let (answer, next) = self.pages[page].change(number, change);
        match next {
            Some(next) => self.pages.insert(page + 1, next),
            None => self.tidy(page),
        }
        answer
    }

    /// Drops a page of which nothing is left, and keeps pages from becoming crumbs.
    fn tidy(&mut self, page: usize) {
        if self.pages[page].is_empty() {
            self.pages.remove(page);
        } else if let [page_before, next, ..] = &mut self.pages[page..]
            && page_before.merge(next)
        {
            self.pages.remove(page + 1);
        }
    }

    /// Counts a chunk whose bits have changed.
    fn count(&mut self, number: u64, old: ChunkWords, new: ChunkWords) {
        for (index, (old, new)) in old.into_iter().zip(new).enumerate() {
            self.len = self.len - u64::from(old.count_ones()) + u64::from(new.count_ones());
            for bit in bits(old ^ new) {
                self.digest ^= mix(chunk_start(number) + 64 * index as u64 + bit);
            }
        }
    }
}

impl PartialEq for PointerSet {
    fn eq(&self, other: &PointerSet) -> bool {
        self.len == other.len && self.digest == other.digest && self.iter().eq(other.iter())
    }
}

impl Eq for PointerSet {}

impl FromIterator<WritePointer> for PointerSet {
    fn from_iter<I: IntoIterator<Item = WritePointer>>(pointers: I) -> PointerSet {
        let mut set = PointerSet::new();
        for pointer in pointers {
            set.insert(pointer);
        }
        set
    }
}

/// A walk over the chunks of a set. A page that is skipped is not looked into.
struct Cursor<'a> {
    pages: &'a [Page],
    page: usize,
    /// What is left of the current page behind `head`; `None` before the page was looked into.
    rest: Option<Chunks<'a>>,
    head: Option<Chunk>,
}

impl<'a> Cursor<'a> {
    fn new(set: &'a PointerSet) -> Cursor<'a> {
        Cursor { pages: &set.pages, page: 0, rest: None, head: None }
    }

    fn peek(&mut self) -> Option<Chunk> {
        if self.rest.is_none() {
            let mut rest = self.pages.get(self.page)?.chunks();
            self.head = rest.next();
            self.rest = Some(rest);
        }
        self.head
    }

    /// The current page, if it was not looked into.
    fn page_start(&self) -> Option<&'a Page> {
        if self.rest.is_none() { self.pages.get(self.page) } else { None }
    }

    fn skip_page(&mut self) {
        self.page += 1;
        (self.rest, self.head) = (None, None);
    }

    fn advance(&mut self) {
        self.head = self.rest.as_mut().and_then(Iterator::next);
        if self.head.is_none() {
            self.skip_page();
        }
    }
}

/// The bits from `from` up to, but not including, `to`, both at most 64.
fn bits_between(from: u64, to: u64) -> u64 {
    let below = |end: u64| if end == 64 { u64::MAX } else { (1 << end) - 1 };
    below(to) & !below(from)
}

/// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): spreads a pointer over 64 bits for the digest.
fn mix(pointer: u64) -> u64 {
    let mut z = pointer.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn assert_same(set: &PointerSet, model: &BTreeSet<u64>, context: &str) {
        assert_eq!(set.len(), model.len() as u64, "{context}");
        assert!(set.iter().map(|p| p.0).eq(model.iter().copied()), "{context}");
        let [first, last] = [set.first(), set.last()].map(|pointer| pointer.map(|p| p.0));
        assert_eq!((first, last), (model.first().copied(), model.last().copied()), "{context}");
        assert!(set.pages.iter().all(Page::is_sound), "{context}");
        assert!(set.pages.windows(2).all(|pair| pair[0].last() < pair[1].first), "{context}");
    }

    #[test]
    fn behaves_like_an_ordered_set_and_its_differences_rebuild_it() {
        for seed in 1..=40u64 {
            let mut random = fastrand::Rng::with_seed(seed);
            let spread = [300, 5_000, 200_000, 50_000_000][(seed % 4) as usize];
            let (mut set, mut model) = (PointerSet::new(), BTreeSet::new());
            let mut follower = PointerSet::new();
            let mut before = set.clone();
            for step in 0..600 {
                let pointer = 1_000_000 + random.u64(..spread);
                let context = format!("seed {seed} step {step}");
                match random.u64(..11) {
                    10 => {
                        let end = pointer.saturating_sub(spread - spread / 8);
                        set.remove_below(WritePointer(end));
                        model = model.split_off(&end);
                    }
                    0..=4 => assert_eq!(set.insert(WritePointer(pointer)), model.insert(pointer), "{context}"),
                    5..=7 => assert_eq!(set.remove(WritePointer(pointer)), model.remove(&pointer), "{context}"),
                    8 => {
                        let end = pointer + random.u64(..700);
                        set.insert_range(pointer, end);
                        model.extend(pointer..end);
                    }
                    _ => {
                        let doomed: Vec<u64> = model.iter().copied().take(random.u64(..400) as usize).collect();
                        for pointer in doomed {
                            assert!(set.remove(WritePointer(pointer)), "{context}");
                            model.remove(&pointer);
                        }
                    }
                }
                assert_eq!(set.contains(WritePointer(pointer)), model.contains(&pointer), "{context}");
                if step % 7 == 0 {
                    assert_same(&set, &model, &context);
                    set.for_each_difference(&before, |number, words| follower.put_chunk(number, words));
                    assert_eq!(follower, set, "{context}");
                    assert_eq!(follower.digest(), set.digest(), "{context}");
                    before = set.clone();
                }
            }
            let rebuilt: PointerSet = model.iter().map(|p| WritePointer(*p)).collect();
            assert_eq!(rebuilt.digest(), set.digest(), "seed {seed}");
        }
    }

    /// As pointers come: mostly upwards, now in a throng and now one by one, and some late.
    #[test]
    fn pages_are_dense_where_pointers_are_and_sparse_where_they_are_not() {
        let (mut sparse, mut dense) = (0, 0);
        for seed in 1..=30u64 {
            let mut random = fastrand::Rng::with_seed(seed);
            let (mut set, mut model) = (PointerSet::new(), BTreeSet::new());
            let (mut follower, mut before) = (PointerSet::new(), PointerSet::new());
            let (mut at, mut gap) = (1_000_000, 1);
            for step in 0..3_000 {
                let context = format!("seed {seed} step {step}");
                if random.u64(..100) == 0 {
                    gap = [1, 3, 200, 1_000_000][random.usize(..4)];
                }
                at += 1 + random.u64(..gap);
                let late = at - random.u64(..60 * gap).min(at - 1);
                match random.u64(..20) {
                    0..13 => assert_eq!(set.insert(WritePointer(at)), model.insert(at), "{context}"),
                    13..16 => assert_eq!(set.insert(WritePointer(late)), model.insert(late), "{context}"),
                    16 => {
                        set.insert_range(late, late + 300);
                        model.extend(late..late + 300);
                    }
                    17 => {
                        let end = at.saturating_sub(3_000 * gap);
                        set.remove_below(WritePointer(end));
                        model = model.split_off(&end);
                    }
                    _ => {
                        let doomed: Vec<u64> = model.range(late..).copied().take(random.usize(..30)).collect();
                        for pointer in doomed {
                            assert!(set.remove(WritePointer(pointer)) && model.remove(&pointer), "{context}");
                        }
                    }
                }
                for pointer in [at, late, late + 1] {
                    assert_eq!(set.contains(WritePointer(pointer)), model.contains(&pointer), "{context}");
                }
                if step % 40 == 0 {
                    assert_same(&set, &model, &context);
                    set.for_each_difference(&before, |number, words| follower.put_chunk(number, words));
                    assert_same(&follower, &model, &context);
                    assert_eq!(follower, set, "{context}");
                    before = set.clone();
                    sparse += set.pages.iter().filter(|page| page.is_sparse()).count();
                    dense += set.pages.iter().filter(|page| !page.is_sparse()).count();
                }
            }
        }
        assert!(sparse > 100 && dense > 1_000, "{sparse} sparse pages, {dense} dense ones");
    }

    #[test]
    fn a_clone_keeps_what_it_saw_and_shares_what_did_not_change() {
        let mut set: PointerSet = (0..100_000).map(WritePointer).collect();
        let before = set.clone();
        set.remove(WritePointer(50_000));
        assert!(before.contains(WritePointer(50_000)));
        let mut changed = 0;
        set.for_each_difference(&before, |_, _| changed += 1);
        assert_eq!(changed, 1);
        let shared = set.pages.iter().zip(&before.pages).filter(|(a, b)| a.is_shared_with(b)).count();
        assert_eq!(shared, set.pages.len() - 1);
    }
}
