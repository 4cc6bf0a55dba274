//! What the tests of the log share: a small writer with a memory of what it was told, and random numbers by seed.
#![allow(dead_code)] // each test file uses its part

use seriatim_wal::{AppendError, Group, Log, Lsn, Options, Recovered, Stamp, Storage};

/// A log and what must be in it.
pub struct Writer {
    pub log: Log<Box<dyn Storage>>,
    /// Every record taken, from record 1 on.
    pub taken: Vec<(u8, Vec<u8>)>,
    pub token: u64,
    /// Groups that became durable in this writer's life.
    pub groups: u64,
}

pub fn small() -> Options {
    Options { segment_bytes: 64 << 10, group_bytes_max: 16 << 10, ..Options::default() }
}

pub fn stamp(token: u64, commits: u64) -> Stamp {
    Stamp {
        token,
        first_csn: commits + 1,
        commits,
        commit_time_ms: 1_700_000_000_000 + commits,
        sequencer_time_ms: commits,
    }
}

impl Writer {
    pub fn open(storage: Box<dyn Storage>, options: Options) -> (Writer, Recovered) {
        let (log, recovered) = Log::open(storage, options).unwrap_or_else(|error| panic!("{error}: {error:?}"));
        let writer = Writer { log, taken: Vec::new(), token: 1, groups: 0 };
        (writer, recovered)
    }

    /// Opens, and checks that exactly `taken` came back behind the image.
    pub fn reopen(storage: Box<dyn Storage>, options: Options, taken: &[(u8, Vec<u8>)]) -> Writer {
        let (mut writer, recovered) = Writer::open(storage, options);
        let covered = recovered.image.as_ref().map_or(0, |image| image.covers.0 as usize);
        assert_eq!(records(&recovered), taken[covered..], "what was recovered behind record {covered}");
        assert_eq!(recovered.durable, Lsn(taken.len() as u64));
        writer.taken = taken.to_vec();
        writer
    }

    pub fn append(&mut self, kind: u8, payload: &[u8]) -> Result<Lsn, AppendError> {
        let lsn = self.log.append(kind, payload)?;
        self.taken.push((kind, payload.to_vec()));
        assert_eq!(lsn, Lsn(self.taken.len() as u64));
        assert_eq!(self.log.appended(), lsn);
        Ok(lsn)
    }

    pub fn stamp(&self) -> Stamp {
        stamp(self.token, self.taken.len() as u64)
    }

    /// Writes the open group and checks that the group handed back is what was taken.
    pub fn flush(&mut self) {
        let stamp = self.stamp();
        while self.log.open_len() > 0 || self.log.is_in_flight() {
            self.log.submit(&stamp).unwrap();
            self.settle();
        }
        assert_eq!(self.log.durable(), self.log.appended());
    }

    /// Waits for what is in flight.
    pub fn settle(&mut self) {
        let before = self.log.durable();
        if let Some(group) = self.log.wait().unwrap() {
            assert_eq!(group.header().first, before.plus(1));
            let seen: Vec<_> = group.records().map(|record| (record.kind, record.payload.to_vec())).collect();
            assert_eq!(seen, self.taken[before.0 as usize..][..seen.len()]);
            assert_eq!(group.header().last(), before.plus(seen.len() as u64));
            self.groups += 1;
        }
    }

    pub fn close(&mut self) {
        self.flush();
        let stamp = self.stamp();
        self.log.close_group(&stamp).unwrap();
        self.settle();
        assert!(!self.log.wants_closing());
    }

    /// Saves an image up to the last durable record and waits until it is there.
    pub fn save_image(&mut self, bytes: Vec<u8>) {
        self.log.save_image(self.log.durable(), Box::new(move |out| out.write_all(&bytes))).unwrap();
        loop {
            if let Some(saved) = self.log.image_saved() {
                saved.unwrap();
                return;
            }
            std::thread::yield_now();
        }
    }
}

pub fn records(recovered: &Recovered) -> Vec<(u8, Vec<u8>)> {
    let groups: Vec<Group<'_>> = recovered.groups().collect();
    groups.iter().flat_map(|group| group.records()).map(|record| (record.kind, record.payload.to_vec())).collect()
}

/// A payload whose every byte depends on its number.
pub fn payload(number: u64, bytes: usize) -> Vec<u8> {
    let mut random = Random(number);
    (0..bytes).map(|_| random.next() as u8).collect()
}

/// Random numbers by seed (splitmix64).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}

/// A seed: the one asked for, or another one each time. Printed, so that a failure can be repeated.
pub fn seed() -> u64 {
    let asked = std::env::var("SERIATIM_SEED").ok().map(|seed| seed.parse().expect("SERIATIM_SEED is a number"));
    let seed = asked.unwrap_or_else(|| {
        use std::hash::{BuildHasher, Hasher};
        std::collections::hash_map::RandomState::new().build_hasher().finish()
    });
    println!("SERIATIM_SEED={seed}");
    seed
}
