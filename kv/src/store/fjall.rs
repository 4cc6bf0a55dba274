//! The embedded default: rows and versions in a fjall keyspace.
//!
//! ```text
//! key   = row, !pointer as 8 bytes big-endian     newest first within a row
//! value = 00                                      a tombstone
//!       = 01, bytes                               a value
//! ```

use std::path::Path;
use std::sync::{Condvar, Mutex, PoisonError};

use fjall::{Database, Keyspace, KeyspaceCreateOptions, PersistMode};
use seriatim_core::WritePointer;

use super::{Page, PageLimits, Row, Store, StoreError, Version, Versions};

const KEYSPACE: &str = "seriatim_rows";
const POINTER_BYTES: usize = 8;
const TOMBSTONE: u8 = 0;
const VALUE: u8 = 1;

/// Versions of a row that are stepped over one by one before the scan seeks to the next row instead.
const STEPS_BEFORE_SEEK: usize = 16;

/// What [`Store::flush`] promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Durability {
    /// fdatasync: survives a power cut. The default.
    #[default]
    Sync,
    /// Written to the operating system: survives the death of the process only.
    Process,
}

/// A store in a fjall database.
pub struct FjallStore {
    database: Database,
    rows: Keyspace,
    durability: Durability,
    syncs: SharedSync,
}

impl FjallStore {
    /// Opens the store in a directory, which is made if it is not there.
    ///
    /// # Errors
    /// If fjall cannot open it, for example because another process has.
    pub fn open(directory: impl AsRef<Path>, durability: Durability) -> Result<FjallStore, StoreError> {
        let open = || {
            let database = Database::builder(directory).open()?;
            let rows = database.keyspace(KEYSPACE, KeyspaceCreateOptions::default)?;
            Ok((database, rows))
        };
        let (database, rows) =
            open().map_err(|source: fjall::Error| StoreError::Refused { action: "open", source: source.into() })?;
        Ok(FjallStore { database, rows, durability, syncs: SharedSync::default() })
    }
}

impl Store for FjallStore {
    const VERSIONED: bool = true;

    fn put(&self, row: &[u8], version: WritePointer, value: Option<&[u8]>) -> Result<(), StoreError> {
        let bytes = match value {
            Some(value) => [&[VALUE], value].concat(),
            None => vec![TOMBSTONE],
        };
        self.rows.insert(key(row, version), bytes).map_err(doubtful("put a version"))
    }

    fn remove(&self, row: &[u8], version: WritePointer) -> Result<(), StoreError> {
        self.rows.remove(key(row, version)).map_err(doubtful("remove a version"))
    }

    fn versions(&self, row: &[u8], at_most: WritePointer, limit: usize) -> Result<Versions, StoreError> {
        let mut versions = Versions::default();
        for entry in self.rows.range(key(row, at_most)..=key(row, WritePointer(0))) {
            let (key, value) = entry.into_inner().map_err(doubtful("read the versions of a row"))?;
            if versions.newest.len() == limit {
                versions.more = true;
                break;
            }
            let (_, pointer) = split(&key)?;
            versions.newest.push(Version { pointer, value: decode(&value)? });
        }
        Ok(versions)
    }

    fn scan(&self, start: &[u8], end: &[u8], at_most: WritePointer, limits: PageLimits) -> Result<Page, StoreError> {
        let mut page = Page::default();
        let mut from = start.to_vec();
        // One walk per seek: it ends at the page's end, or where many versions of a row would have to be stepped over.
        'seek: while from.as_slice() < end {
            let mut current: Vec<u8> = Vec::new();
            let mut taken = 0;
            let mut steps = 0;
            for entry in self.rows.range(from.as_slice()..end) {
                let (key, value) = entry.into_inner().map_err(doubtful("scan rows"))?;
                let (row, pointer) = split(&key)?;
                if row != current {
                    current = row.to_vec();
                    (taken, steps) = (0, 0);
                }
                if pointer > at_most || taken == limits.versions.max(1) {
                    steps += 1;
                    if pointer <= at_most
                        && let Some(last) = page.rows.last_mut()
                    {
                        last.versions.more = true;
                    }
                    if steps == STEPS_BEFORE_SEEK {
                        from = if pointer > at_most {
                            self::key(&current, at_most)
                        } else {
                            // Behind the last version a row can have.
                            [current.as_slice(), &[0xff; POINTER_BYTES], &[0]].concat()
                        };
                        // A seek into the same row starts it afresh, and it has nothing in the page yet.
                        continue 'seek;
                    }
                    continue;
                }
                if taken == 0 {
                    if page.rows.len() >= limits.rows.max(1) {
                        page.next = Some(current);
                        return Ok(page);
                    }
                    page.rows.push(Row { row: current.clone(), versions: Versions::default() });
                }
                let last = page.rows.last_mut().expect("pushed with its first version");
                last.versions.newest.push(Version { pointer, value: decode(&value)? });
                taken += 1;
            }
            break;
        }
        Ok(page)
    }

    fn flush(&self) -> Result<(), StoreError> {
        match self.durability {
            // Every insert and remove has written its journal record to the operating system before it returns.
            Durability::Process => Ok(()),
            Durability::Sync => {
                let sync = || self.database.persist(PersistMode::SyncData);
                self.syncs.run(sync).map_err(doubtful("sync the journal"))
            }
        }
    }
}

fn doubtful<E: Into<crate::error::BoxError>>(action: &'static str) -> impl FnOnce(E) -> StoreError {
    move |source| StoreError::Doubtful { action, source: source.into() }
}

fn key(row: &[u8], pointer: WritePointer) -> Vec<u8> {
    [row, &(!pointer.0).to_be_bytes()].concat()
}

fn split(key: &[u8]) -> Result<(&[u8], WritePointer), StoreError> {
    let (row, pointer) =
        key.split_last_chunk().ok_or_else(|| StoreError::Corrupt { what: "versioned key", bytes: key.to_vec() })?;
    Ok((row, WritePointer(!u64::from_be_bytes(*pointer))))
}

fn decode(value: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
    match value {
        [TOMBSTONE] => Ok(None),
        [VALUE, bytes @ ..] => Ok(Some(bytes.to_vec())),
        _ => Err(StoreError::Corrupt { what: "value", bytes: value.to_vec() }),
    }
}

/// One sync for all who wait: a caller is served by the first sync that starts after it asked.
#[derive(Default)]
struct SharedSync {
    rounds: Mutex<Rounds>,
    ended: Condvar,
}

#[derive(Default)]
struct Rounds {
    started: u64,
    ended: u64,
    running: bool,
    /// Callers that wait for a round to end.
    waiting: usize,
    /// After a failed sync nobody knows what is durable, so every later caller hears of it.
    failed: bool,
}

/// A sync failed, now or before.
#[derive(Debug, thiserror::Error)]
enum SyncError {
    #[error("the sync failed")]
    Failed(#[source] fjall::Error),
    #[error("an earlier sync failed, and what was written since the one before may be lost")]
    FailedBefore,
}

impl SharedSync {
    fn run(&self, sync: impl FnOnce() -> Result<(), fjall::Error>) -> Result<(), SyncError> {
        let mut rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        let mine = rounds.started + 1;
        while rounds.running && rounds.ended < mine {
            rounds.waiting += 1;
            rounds = self.ended.wait(rounds).unwrap_or_else(PoisonError::into_inner);
            rounds.waiting -= 1;
        }
        if rounds.failed {
            return Err(SyncError::FailedBefore);
        }
        if rounds.ended >= mine {
            return Ok(());
        }
        rounds.running = true;
        rounds.started += 1;
        let round = rounds.started;
        drop(rounds);
        let result = sync();
        let mut rounds = self.rounds.lock().unwrap_or_else(PoisonError::into_inner);
        rounds.running = false;
        rounds.ended = round;
        rounds.failed |= result.is_err();
        drop(rounds);
        self.ended.notify_all();
        result.map_err(SyncError::Failed)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    #[test]
    fn one_sync_serves_all_who_asked_before_it_started() {
        const CALLERS: usize = 8;
        let shared = SharedSync::default();
        let syncs = AtomicU64::new(0);
        let count = || {
            syncs.fetch_add(1, Ordering::SeqCst);
            Ok(())
        };
        let (entered, first_runs) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        thread::scope(|scope| {
            let shared = &shared;
            let first = scope.spawn(move || {
                let stand_still = || {
                    entered.send(()).unwrap();
                    released.recv().unwrap();
                    Ok(())
                };
                shared.run(stand_still)
            });
            first_runs.recv().unwrap();
            // The sync that runs may have started before their writes, so it serves none of them.
            let callers: Vec<_> = (0..CALLERS).map(|_| scope.spawn(|| shared.run(count))).collect();
            while shared.rounds.lock().unwrap().waiting < CALLERS {
                thread::yield_now();
            }
            assert_eq!(syncs.load(Ordering::SeqCst), 0);
            release.send(()).unwrap();
            first.join().unwrap().unwrap();
            callers.into_iter().for_each(|caller| caller.join().unwrap().unwrap());
        });
        assert_eq!(syncs.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn after_a_failed_sync_everyone_hears_of_it() {
        let shared = SharedSync::default();
        assert!(matches!(shared.run(|| Err(fjall::Error::Poisoned)), Err(SyncError::Failed(_))));
        assert!(matches!(shared.run(|| Ok(())), Err(SyncError::FailedBefore)));
    }

    #[test]
    fn a_store_keeps_its_versions_over_a_restart() {
        let directory = tempfile::tempdir().unwrap();
        for round in 1..=3_u64 {
            let store = FjallStore::open(&directory, Durability::Sync).unwrap();
            store.put(b"row", WritePointer(round), Some(&[round as u8])).unwrap();
            store.put(b"gone", WritePointer(round), None).unwrap();
            store.remove(b"gone", WritePointer(round)).unwrap();
            store.flush().unwrap();
            let found = store.versions(b"row", WritePointer::MAX, 10).unwrap();
            let pointers: Vec<u64> = found.newest.iter().map(|version| version.pointer.0).collect();
            assert_eq!(pointers, (1..=round).rev().collect::<Vec<_>>());
            assert_eq!(store.versions(b"gone", WritePointer::MAX, 10).unwrap(), Versions::default());
        }
    }

    #[test]
    fn foreign_bytes_are_an_error() {
        let directory = tempfile::tempdir().unwrap();
        let store = FjallStore::open(&directory, Durability::Process).unwrap();
        store.rows.insert(key(b"row", WritePointer(1)), [7]).unwrap();
        store.rows.insert(b"short", [VALUE]).unwrap();
        assert!(matches!(store.versions(b"row", WritePointer::MAX, 1), Err(StoreError::Corrupt { .. })));
        let all = store.scan(b"s", b"t", WritePointer::MAX, PageLimits::default());
        assert!(matches!(all, Err(StoreError::Corrupt { .. })));
    }
}
