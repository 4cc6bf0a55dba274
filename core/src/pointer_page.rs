//! One page of a set of pointers: neighbouring chunks, each of 256 pointers, in the form that is shorter.
//!
//! **Dense** pages hold a bit for each pointer, 40 bytes a chunk: the pointers of a busy sequencer. **Sparse** ones hold the
//! pointers themselves, 8 bytes each: what expires now and then, a chunk of its own each time. A page starts dense. It
//! becomes sparse when it is full of chunks that are nearly empty, and dense again when it is full and they are not.

use std::sync::Arc;

/// Pointers in one chunk.
pub(crate) const CHUNK_POINTERS: u64 = 256;
/// Chunks in one dense page at most: the unit of copying, 1.3 kB.
const CHUNKS_MAX: usize = 32;
/// Pointers in one sparse page at most: 1 kB.
const POINTERS_MAX: usize = 128;

/// The bits of one chunk: bit `i` of word `w` stands for the chunk's pointer `64 * w + i`.
pub type ChunkWords = [u64; 4];

/// The first pointer of the chunk with this number; chunks are numbered from the start of the pointer space.
pub fn chunk_start(chunk: u64) -> u64 {
    chunk * CHUNK_POINTERS
}

/// The numbers of the bits that are set in a word, ascending.
pub(crate) fn bits(mut word: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        (word != 0).then(|| {
            let bit = u64::from(word.trailing_zeros());
            word &= word - 1;
            bit
        })
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub number: u64,
    pub words: ChunkWords,
}

impl Chunk {
    /// Its pointers, ascending.
    pub fn pointers(self) -> impl Iterator<Item = u64> {
        let start = chunk_start(self.number);
        let words = self.words.into_iter().enumerate();
        words.flat_map(move |(index, word)| bits(word).map(move |bit| start + 64 * index as u64 + bit))
    }
}

/// Word and bit of a pointer in its chunk.
pub(crate) fn place(pointer: u64) -> (usize, u64) {
    let within = pointer % CHUNK_POINTERS;
    ((within / 64) as usize, 1 << (within % 64))
}

/// What a page holds, ascending, never nothing; see the head of this file.
#[derive(Clone, Debug)]
enum Content {
    /// Chunks, none of them empty.
    Dense(Vec<Chunk>),
    /// Pointers.
    Sparse(Vec<u64>),
}

/// A page; see the head of this file. Clones share what they hold.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    /// Number of the first chunk, kept here so that a search reads one array.
    pub first: u64,
    content: Arc<Content>,
}

impl Page {
    pub fn of_chunk(chunk: Chunk) -> Page {
        Page { first: chunk.number, content: Arc::new(Content::Dense(vec![chunk])) }
    }

    fn of_content(content: Content) -> Page {
        let first = match &content {
            Content::Dense(chunks) => chunks[0].number,
            Content::Sparse(pointers) => pointers[0] / CHUNK_POINTERS,
        };
        Page { first, content: Arc::new(content) }
    }

    /// True if the two are the same memory, and so have the same content.
    pub fn is_shared_with(&self, other: &Page) -> bool {
        Arc::ptr_eq(&self.content, &other.content)
    }

    /// Number of the last chunk.
    pub fn last(&self) -> u64 {
        match &*self.content {
            Content::Dense(chunks) => chunks.last().map(|chunk| chunk.number),
            Content::Sparse(pointers) => pointers.last().map(|pointer| pointer / CHUNK_POINTERS),
        }
        .expect("a page is never empty")
    }

    pub fn contains(&self, pointer: u64) -> bool {
        match &*self.content {
            Content::Dense(chunks) => {
                let (word, bit) = place(pointer);
                find(chunks, pointer / CHUNK_POINTERS).is_ok_and(|at| chunks[at].words[word] & bit != 0)
            }
            Content::Sparse(pointers) => pointers.binary_search(&pointer).is_ok(),
        }
    }

    /// The bits of a chunk; all zero if it holds no member.
    pub fn words(&self, number: u64) -> ChunkWords {
        match &*self.content {
            Content::Dense(chunks) => find(chunks, number).map_or([0; 4], |at| chunks[at].words),
            Content::Sparse(pointers) => {
                let (from, to) = range(pointers, number);
                words_of(&pointers[from..to])
            }
        }
    }

    /// The chunks, ascending.
    pub fn chunks(&self) -> Chunks<'_> {
        Chunks { content: &self.content, at: 0 }
    }

    /// Takes a pointer out. `None` if it is not here; else whether a chunk, or a sparse page, became shorter by it.
    pub fn remove(&mut self, pointer: u64) -> Option<bool> {
        let number = pointer / CHUNK_POINTERS;
        let (word, bit) = place(pointer);
        let at = match &*self.content {
            Content::Dense(chunks) => find(chunks, number).ok().filter(|at| chunks[*at].words[word] & bit != 0),
            Content::Sparse(pointers) => pointers.binary_search(&pointer).ok(),
        }?;
        let is_shorter = match Arc::make_mut(&mut self.content) {
            Content::Dense(chunks) => {
                chunks[at].words[word] &= !bit;
                let is_empty = chunks[at].words == [0; 4];
                if is_empty {
                    chunks.remove(at);
                }
                is_empty
            }
            Content::Sparse(pointers) => {
                pointers.remove(at);
                true
            }
        };
        self.see_first();
        Some(is_shorter)
    }

    /// True if nothing is left. Such a page goes at once.
    pub fn is_empty(&self) -> bool {
        match &*self.content {
            Content::Dense(chunks) => chunks.is_empty(),
            Content::Sparse(pointers) => pointers.is_empty(),
        }
    }

    /// Changes the bits of a chunk. Answers what `change` does, and the page that has to follow this one now, if it has
    /// grown too long.
    pub fn change<R>(&mut self, number: u64, change: impl FnOnce(&mut ChunkWords) -> R) -> (R, Option<Page>) {
        if let Content::Dense(chunks) = &*self.content
            && chunks.len() >= CHUNKS_MAX
            && find(chunks, number).is_err()
        {
            // Full: short as it is, or split, or left as it is where pointers grow at the end.
            if !self.become_sparse() && number > self.last() {
                let mut words = [0; 4];
                let answer = change(&mut words);
                return (answer, (words != [0; 4]).then(|| Page::of_chunk(Chunk { number, words })));
            }
        }
        let answer = match Arc::make_mut(&mut self.content) {
            Content::Dense(chunks) => match find(chunks, number) {
                Ok(at) => {
                    let answer = change(&mut chunks[at].words);
                    if chunks[at].words == [0; 4] {
                        chunks.remove(at);
                    }
                    answer
                }
                Err(at) => {
                    let mut words = [0; 4];
                    let answer = change(&mut words);
                    if words != [0; 4] {
                        chunks.insert(at, Chunk { number, words });
                    }
                    answer
                }
            },
            Content::Sparse(pointers) => {
                let (from, to) = range(pointers, number);
                let mut words = words_of(&pointers[from..to]);
                let answer = change(&mut words);
                pointers.splice(from..to, Chunk { number, words }.pointers());
                answer
            }
        };
        self.see_first();
        (answer, self.split(number))
    }

    /// Splits a page that is too long, so that whoever goes on from `number` upwards leaves a full page behind.
    fn split(&mut self, number: u64) -> Option<Page> {
        let upper = match Arc::make_mut(&mut self.content) {
            Content::Dense(chunks) if chunks.len() > CHUNKS_MAX => {
                let at = chunks.partition_point(|chunk| chunk.number <= number).clamp(CHUNKS_MAX / 2, CHUNKS_MAX);
                Content::Dense(chunks.split_off(at))
            }
            Content::Sparse(pointers) if pointers.len() > POINTERS_MAX => {
                let chunks: Vec<Chunk> =
                    Chunks { content: &Content::Sparse(std::mem::take(pointers)), at: 0 }.collect();
                if chunks.len() <= CHUNKS_MAX {
                    self.content = Arc::new(Content::Dense(chunks));
                    return None;
                }
                let all: Vec<u64> = chunks.into_iter().flat_map(Chunk::pointers).collect();
                let wanted = all.partition_point(|at| at / CHUNK_POINTERS <= number);
                let wanted = wanted.clamp(POINTERS_MAX / 2, POINTERS_MAX);
                // A chunk stands in one page: go to where one begins. There are more than 32, none of over 256 pointers.
                let (from, to) = range(&all, all[wanted] / CHUNK_POINTERS);
                let at = if from > 0 { from } else { to };
                *pointers = all;
                Content::Sparse(pointers.split_off(at))
            }
            _ => return None,
        };
        match Arc::make_mut(&mut self.content) {
            Content::Dense(chunks) => chunks.shrink_to_fit(),
            Content::Sparse(pointers) => pointers.shrink_to_fit(),
        }
        Some(Page::of_content(upper))
    }

    /// Makes a dense page sparse where that is shorter by half.
    fn become_sparse(&mut self) -> bool {
        let Content::Dense(chunks) = &*self.content else { return true };
        let count: u32 = chunks.iter().flat_map(|chunk| chunk.words).map(u64::count_ones).sum();
        let is_thin = count as usize <= 2 * chunks.len();
        if is_thin {
            let pointers = chunks.iter().copied().flat_map(Chunk::pointers).collect();
            self.content = Arc::new(Content::Sparse(pointers));
        }
        is_thin
    }

    /// Takes in the next page if the two together make no more than half a page.
    pub fn merge(&mut self, next: &Page) -> bool {
        match (&*self.content, &*next.content) {
            (Content::Dense(mine), Content::Dense(theirs)) if mine.len() + theirs.len() <= CHUNKS_MAX / 2 => {}
            (Content::Sparse(mine), Content::Sparse(theirs)) if mine.len() + theirs.len() <= POINTERS_MAX / 2 => {}
            (Content::Dense(chunks), Content::Sparse(pointers))
            | (Content::Sparse(pointers), Content::Dense(chunks))
                if chunks.len() + pointers.len() <= CHUNKS_MAX / 2 =>
            {
                self.content = Arc::new(Content::Dense(self.chunks().collect()));
            }
            _ => return false,
        }
        match Arc::make_mut(&mut self.content) {
            Content::Dense(chunks) => chunks.extend(next.chunks()),
            Content::Sparse(pointers) => pointers.extend(next.chunks().flat_map(Chunk::pointers)),
        }
        true
    }

    /// For tests: true if everything is as the head of this file says.
    #[cfg(test)]
    pub fn is_sound(&self) -> bool {
        let is_short = match &*self.content {
            Content::Dense(chunks) => chunks.len() <= CHUNKS_MAX,
            Content::Sparse(pointers) => pointers.len() <= POINTERS_MAX + CHUNK_POINTERS as usize,
        };
        let numbers: Vec<u64> = self.chunks().map(|chunk| chunk.number).collect();
        let is_full = self.chunks().all(|chunk| chunk.words != [0; 4]);
        is_short && is_full && numbers.is_sorted_by(|a, b| a < b) && numbers.first() == Some(&self.first)
    }

    #[cfg(test)]
    pub fn is_sparse(&self) -> bool {
        matches!(*self.content, Content::Sparse(_))
    }

    /// Keeps [`Page::first`] true after a change, if anything is left.
    fn see_first(&mut self) {
        let first = match &*self.content {
            Content::Dense(chunks) => chunks.first().map(|chunk| chunk.number),
            Content::Sparse(pointers) => pointers.first().map(|pointer| pointer / CHUNK_POINTERS),
        };
        self.first = first.unwrap_or(self.first);
    }
}

/// The chunks of a page, ascending.
#[derive(Clone)]
pub(crate) struct Chunks<'a> {
    content: &'a Content,
    /// Of a dense page the next chunk, of a sparse one its first pointer.
    at: usize,
}

impl Iterator for Chunks<'_> {
    type Item = Chunk;

    fn next(&mut self) -> Option<Chunk> {
        match self.content {
            Content::Dense(chunks) => {
                let chunk = chunks.get(self.at).copied()?;
                self.at += 1;
                Some(chunk)
            }
            Content::Sparse(pointers) => {
                let number = pointers.get(self.at)? / CHUNK_POINTERS;
                let mut words = [0; 4];
                while let Some(pointer) = pointers.get(self.at).filter(|at| **at / CHUNK_POINTERS == number) {
                    let (word, bit) = place(*pointer);
                    words[word] |= bit;
                    self.at += 1;
                }
                Some(Chunk { number, words })
            }
        }
    }
}

fn find(chunks: &[Chunk], number: u64) -> Result<usize, usize> {
    chunks.binary_search_by_key(&number, |chunk| chunk.number)
}

/// Where the pointers of a chunk stand.
fn range(pointers: &[u64], number: u64) -> (usize, usize) {
    let from = pointers.partition_point(|pointer| pointer / CHUNK_POINTERS < number);
    let count = pointers[from..].iter().take_while(|pointer| **pointer / CHUNK_POINTERS == number).count();
    (from, from + count)
}

/// The bits of pointers of one chunk.
fn words_of(pointers: &[u64]) -> ChunkWords {
    let mut words = [0; 4];
    for pointer in pointers {
        let (word, bit) = place(*pointer);
        words[word] |= bit;
    }
    words
}
