//! What happened: a hash over all of it, and the last of it in words.

use std::collections::VecDeque;
use std::fmt;

use xxhash_rust::xxh3::xxh3_64;

/// Lines kept for the report of a violation.
const KEPT: usize = 60;

/// See the head of this file.
pub(crate) struct Trace {
    hash: u64,
    print: bool,
    last: VecDeque<Line>,
}

/// One thing that happened.
#[derive(Clone, Copy)]
struct Line {
    at_us: u64,
    what: &'static str,
    facts: [(&'static str, u64); 4],
}

impl Trace {
    pub fn new(print: bool) -> Trace {
        Trace { hash: 0, print, last: VecDeque::with_capacity(KEPT) }
    }

    /// Notes that something happened, with up to four facts.
    pub fn note(&mut self, at_us: u64, what: &'static str, facts: &[(&'static str, u64)]) {
        self.mix(at_us);
        self.mix(xxh3_64(what.as_bytes()));
        let mut line = Line { at_us, what, facts: [("", 0); 4] };
        for (kept, fact) in line.facts.iter_mut().zip(facts) {
            *kept = *fact;
            self.mix(fact.1);
        }
        if self.print {
            println!("{line}");
        }
        if self.last.len() == KEPT {
            self.last.pop_front();
        }
        self.last.push_back(line);
    }

    /// Takes bytes into the hash.
    pub fn mix_bytes(&mut self, bytes: &[u8]) {
        self.mix(xxh3_64(bytes));
    }

    fn mix(&mut self, word: u64) {
        self.hash = (self.hash.rotate_left(29) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    /// Equal for equal runs.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The last lines.
    pub fn last_lines(&self) -> Vec<String> {
        self.last.iter().map(Line::to_string).collect()
    }
}

impl fmt::Display for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Line { at_us, what, facts } = self;
        write!(f, "{:>7}.{:06} {what}", at_us / 1_000_000, at_us % 1_000_000)?;
        facts.iter().filter(|(name, _)| !name.is_empty()).try_for_each(|(name, value)| write!(f, " {name}={value}"))
    }
}
