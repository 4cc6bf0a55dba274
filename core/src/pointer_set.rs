//! An ordered set of pointers as a persistent bitmap: cloning shares everything, changing copies one small page.
//!
//! Pointers are dense while the sequencer is busy and sparse while it is not, so the set is made of chunks of 256
//! neighbouring pointers (one bit each) in sorted pages of up to 32 chunks. A snapshot holds a clone; the next one
//! copies only the pages that changed in between. Two sets that share pages are compared page by page, which is what
//! makes the difference between two snapshots cheap to find and small to send.

use std::sync::Arc;

use crate::pointer::WritePointer;

/// Pointers in one chunk.
const CHUNK_POINTERS: u64 = 256;
/// Chunks in one page at most: the unit of copying, 1.3 kB.
const PAGE_CHUNKS_MAX: usize = 32;
/// Two neighbouring pages that together hold no more than this become one.
const PAGE_CHUNKS_MERGE: usize = PAGE_CHUNKS_MAX / 2;

/// The bits of one chunk: bit `i` of word `w` stands for the chunk's pointer `64 * w + i`.
pub type ChunkWords = [u64; 4];

/// The first pointer of the chunk with this number; chunks are numbered from the start of the pointer space.
pub fn chunk_start(chunk: u64) -> u64 {
    chunk * CHUNK_POINTERS
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chunk {
    number: u64,
    words: ChunkWords,
}

#[derive(Clone, Debug)]
struct Page {
    /// Number of the first chunk, kept here so that a search reads one array.
    first: u64,
    chunks: Arc<Vec<Chunk>>,
}

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
        let (number, word, bit) = place(pointer.0);
        self.find(number).is_ok_and(|(page, chunk)| self.pages[page].chunks[chunk].words[word] & bit != 0)
    }

    /// Adds a pointer; false if it was a member already.
    pub fn insert(&mut self, pointer: WritePointer) -> bool {
        let (number, word, bit) = place(pointer.0);
        let words = self.words_mut(number);
        if words[word] & bit != 0 {
            return false;
        }
        words[word] |= bit;
        self.len += 1;
        self.digest ^= mix(pointer.0);
        true
    }

    /// Removes a pointer; false if it was no member.
    pub fn remove(&mut self, pointer: WritePointer) -> bool {
        let (number, word, bit) = place(pointer.0);
        let Ok((page, chunk)) = self.find(number) else { return false };
        if self.pages[page].chunks[chunk].words[word] & bit == 0 {
            return false;
        }
        let chunks = Arc::make_mut(&mut self.pages[page].chunks);
        chunks[chunk].words[word] &= !bit;
        if chunks[chunk].words == [0; 4] {
            self.drop_chunk(page, chunk);
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
            let words = self.words_mut(number);
            let mut new: ChunkWords = [0; 4];
            for (index, (word, new)) in words.iter_mut().zip(&mut new).enumerate() {
                let (from, to) = (start + 64 * index as u64, start + 64 * (index as u64 + 1));
                *new = bits_between(at.max(from).min(to) - from, stop.max(from).min(to) - from) & !*word;
                *word |= *new;
            }
            for (index, new) in new.into_iter().enumerate() {
                self.len += u64::from(new.count_ones());
                for bit in bits(new) {
                    self.digest ^= mix(start + 64 * index as u64 + bit);
                }
            }
            at = stop;
        }
    }

    /// The bits of one chunk; all zero if it holds no member.
    pub fn words(&self, number: u64) -> ChunkWords {
        self.find(number).map_or([0; 4], |(page, chunk)| self.pages[page].chunks[chunk].words)
    }

    /// Sets the bits of one chunk, whatever it held before.
    pub fn put_chunk(&mut self, number: u64, words: ChunkWords) {
        let old = self.words(number);
        if old == words {
            return;
        }
        for (index, (old, new)) in old.iter().zip(&words).enumerate() {
            self.len = self.len - u64::from(old.count_ones()) + u64::from(new.count_ones());
            for bit in bits(old ^ new) {
                self.digest ^= mix(chunk_start(number) + 64 * index as u64 + bit);
            }
        }
        if words == [0; 4] {
            let (page, chunk) = self.find(number).expect("a chunk that changed to empty was there");
            let chunks = Arc::make_mut(&mut self.pages[page].chunks);
            chunks[chunk].words = words;
            self.drop_chunk(page, chunk);
        } else {
            *self.words_mut(number) = words;
        }
    }

    /// Removes every pointer below `end`.
    pub fn remove_below(&mut self, end: WritePointer) {
        let (last, ..) = place(end.0);
        let whole = self.pages.partition_point(|page| page.chunks.last().is_some_and(|chunk| chunk.number < last));
        for page in self.pages.drain(..whole) {
            for chunk in page.chunks.iter() {
                for (index, word) in chunk.words.into_iter().enumerate() {
                    self.len -= u64::from(word.count_ones());
                    for bit in bits(word) {
                        self.digest ^= mix(chunk_start(chunk.number) + 64 * index as u64 + bit);
                    }
                }
            }
        }
        let Some(first) = self.pages.first().filter(|page| page.first <= last) else { return };
        let cut: Vec<u64> =
            first.chunks.iter().map(|chunk| chunk.number).take_while(|number| *number <= last).collect();
        for number in cut {
            let mut words = self.words(number);
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
                && Arc::ptr_eq(&a.chunks, &b.chunks)
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
        self.pages.iter().flat_map(|page| page.chunks.iter()).flat_map(|chunk| {
            let start = chunk_start(chunk.number);
            (0..4).flat_map(move |word| {
                bits(chunk.words[word]).map(move |bit| WritePointer(start + 64 * word as u64 + bit))
            })
        })
    }

    /// The smallest member.
    pub fn first(&self) -> Option<WritePointer> {
        self.iter().next()
    }

    /// The greatest member.
    pub fn last(&self) -> Option<WritePointer> {
        let chunk = self.pages.last()?.chunks.last()?;
        let start = chunk_start(chunk.number);
        let top = |word: usize| Some(64 * word as u64 + u64::from(chunk.words[word].checked_ilog2()?));
        (0..4).rev().find_map(top).map(|bit| WritePointer(start + bit))
    }

    /// Page and index of a chunk; or, if there is none, where it would go.
    fn find(&self, number: u64) -> Result<(usize, usize), (usize, usize)> {
        // Nearly every question is about the newest pointers, so the last page is looked at first.
        let page = match self.pages.last() {
            None => return Err((0, 0)),
            Some(last) if last.first <= number => self.pages.len() - 1,
            Some(_) => match self.pages.partition_point(|page| page.first <= number) {
                0 => return Err((0, 0)),
                after => after - 1,
            },
        };
        match self.pages[page].chunks.binary_search_by_key(&number, |chunk| chunk.number) {
            Ok(chunk) => Ok((page, chunk)),
            Err(chunk) => Err((page, chunk)),
        }
    }

    /// The bits of a chunk, to be changed; made if it was not there. The caller leaves at least one bit set.
    fn words_mut(&mut self, number: u64) -> &mut ChunkWords {
        let (page, chunk) = match self.find(number) {
            Ok(found) => found,
            Err((page, chunk)) => self.make_chunk(page, chunk, number),
        };
        &mut Arc::make_mut(&mut self.pages[page].chunks)[chunk].words
    }

    fn make_chunk(&mut self, page: usize, chunk: usize, number: u64) -> (usize, usize) {
        let new = Chunk { number, words: [0; 4] };
        let Some(there) = self.pages.get_mut(page) else {
            self.pages.push(Page { first: number, chunks: Arc::new(vec![new]) });
            return (page, 0);
        };
        if there.chunks.len() < PAGE_CHUNKS_MAX {
            Arc::make_mut(&mut there.chunks).insert(chunk, new);
            there.first = there.chunks[0].number;
            return (page, chunk);
        }
        if chunk == PAGE_CHUNKS_MAX {
            // Growing at the end, as pointers do: leave the full page as it is and start the next.
            self.pages.insert(page + 1, Page { first: number, chunks: Arc::new(vec![new]) });
            return (page + 1, 0);
        }
        let upper = Arc::make_mut(&mut there.chunks).split_off(PAGE_CHUNKS_MAX / 2);
        self.pages.insert(page + 1, Page { first: upper[0].number, chunks: Arc::new(upper) });
        let (Ok((page, chunk)) | Err((page, chunk))) = self.find(number);
        self.make_chunk(page, chunk, number)
    }

    /// Drops an empty chunk, and the page with it if that was its last, and keeps pages from becoming crumbs.
    fn drop_chunk(&mut self, page: usize, chunk: usize) {
        let chunks = Arc::make_mut(&mut self.pages[page].chunks);
        chunks.remove(chunk);
        if chunks.is_empty() {
            self.pages.remove(page);
            return;
        }
        self.pages[page].first = chunks[0].number;
        if let Some(next) = self.pages.get(page + 1)
            && self.pages[page].chunks.len() + next.chunks.len() <= PAGE_CHUNKS_MERGE
        {
            let next = self.pages.remove(page + 1);
            Arc::make_mut(&mut self.pages[page].chunks).extend_from_slice(&next.chunks);
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

/// A walk over the chunks of a set.
struct Cursor<'a> {
    pages: &'a [Page],
    page: usize,
    chunk: usize,
}

impl<'a> Cursor<'a> {
    fn new(set: &'a PointerSet) -> Cursor<'a> {
        Cursor { pages: &set.pages, page: 0, chunk: 0 }
    }

    fn peek(&self) -> Option<Chunk> {
        self.pages.get(self.page).map(|page| page.chunks[self.chunk])
    }

    /// The current page, if the walk stands at its first chunk.
    fn page_start(&self) -> Option<&'a Page> {
        if self.chunk == 0 { self.pages.get(self.page) } else { None }
    }

    fn skip_page(&mut self) {
        self.page += 1;
        self.chunk = 0;
    }

    fn advance(&mut self) {
        self.chunk += 1;
        if self.chunk == self.pages[self.page].chunks.len() {
            self.skip_page();
        }
    }
}

/// Chunk number, word and bit of a pointer.
fn place(pointer: u64) -> (u64, usize, u64) {
    let within = pointer % CHUNK_POINTERS;
    (pointer / CHUNK_POINTERS, (within / 64) as usize, 1 << (within % 64))
}

/// The bits from `from` up to, but not including, `to`, both at most 64.
fn bits_between(from: u64, to: u64) -> u64 {
    let below = |end: u64| if end == 64 { u64::MAX } else { (1 << end) - 1 };
    below(to) & !below(from)
}

/// The numbers of the bits that are set, ascending.
fn bits(mut word: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        (word != 0).then(|| {
            let bit = u64::from(word.trailing_zeros());
            word &= word - 1;
            bit
        })
    })
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
        for page in &set.pages {
            assert_eq!(page.first, page.chunks[0].number, "{context}");
            assert!(page.chunks.len() <= PAGE_CHUNKS_MAX, "{context}");
            assert!(page.chunks.iter().all(|c| c.words != [0; 4]), "{context}");
        }
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

    #[test]
    fn a_clone_keeps_what_it_saw_and_shares_what_did_not_change() {
        let mut set: PointerSet = (0..100_000).map(WritePointer).collect();
        let before = set.clone();
        set.remove(WritePointer(50_000));
        assert!(before.contains(WritePointer(50_000)));
        let mut changed = 0;
        set.for_each_difference(&before, |_, _| changed += 1);
        assert_eq!(changed, 1);
        let shared = set.pages.iter().zip(&before.pages).filter(|(a, b)| Arc::ptr_eq(&a.chunks, &b.chunks)).count();
        assert_eq!(shared, set.pages.len() - 1);
    }
}
