//! The store as its clients see it: [`seriatim_kv::Store`] over the socket.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use seriatim_core::WritePointer;
use seriatim_kv::{Page, PageLimits, Store, StoreError, Versions};

use super::protocol::{Answer, Field, Question, limits_to_wire, read_frame, write_frame};

/// A store that lives in another process. Any number of threads may use it; each call in progress has a connection of
/// its own, and idle ones are kept for the next.
pub struct HostedStore {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
}

struct Connection {
    stream: UnixStream,
    buffer: Vec<u8>,
}

impl HostedStore {
    /// The store behind the socket at `path`. Connects with the first call.
    pub fn new(path: &Path) -> HostedStore {
        HostedStore { path: path.to_path_buf(), idle: Mutex::default() }
    }

    /// Rows and versions that were put last and not removed since, newest first.
    ///
    /// # Errors
    /// If the host does not answer.
    pub fn recent(&self, limit: u32) -> Result<Vec<(Vec<u8>, WritePointer)>, StoreError> {
        self.ask("name the newest versions", Question::Recent { limit })
    }

    fn ask<T: Field>(&self, action: &'static str, question: Question<'_>) -> Result<T, StoreError> {
        let refused = |error: io::Error| StoreError::Refused { action, source: error.into() };
        let doubtful = |error: io::Error| StoreError::Doubtful { action, source: error.into() };
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut connection = match idle {
            Some(connection) => connection,
            None => Connection { stream: UnixStream::connect(&self.path).map_err(refused)?, buffer: Vec::new() },
        };
        let Connection { stream, buffer } = &mut connection;
        // A connection that broke is dropped, by every early return, and what was asked over it is in doubt.
        if !write_frame(stream, buffer, |out| question.encode(out)).map_err(doubtful)? {
            return Err(refused(io::Error::new(io::ErrorKind::InvalidInput, "over the limit of a frame")));
        }
        if !read_frame(stream, buffer).map_err(doubtful)? {
            return Err(doubtful(io::ErrorKind::UnexpectedEof.into()));
        }
        let answer = Answer::decode(buffer).map_err(|error| doubtful(io::Error::other(error)))?;
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        match answer {
            Answer::Done(result) => Ok(result),
            Answer::Refused(why) => Err(refused(io::Error::other(why))),
            Answer::Doubtful(why) => Err(doubtful(io::Error::other(why))),
        }
    }
}

impl Store for HostedStore {
    const VERSIONED: bool = true;

    fn put(&self, row: &[u8], version: WritePointer, value: Option<&[u8]>) -> Result<(), StoreError> {
        self.ask("put a version", Question::Put { row, version, value })
    }

    fn remove(&self, row: &[u8], version: WritePointer) -> Result<(), StoreError> {
        self.ask("remove a version", Question::Remove { row, version })
    }

    fn versions(&self, row: &[u8], at_most: WritePointer, limit: usize) -> Result<Versions, StoreError> {
        let limit = u32::try_from(limit).unwrap_or(u32::MAX);
        self.ask("read the versions of a row", Question::Versions { row, at_most, limit })
    }

    fn scan(&self, start: &[u8], end: &[u8], at_most: WritePointer, limits: PageLimits) -> Result<Page, StoreError> {
        let (rows, versions) = limits_to_wire(limits);
        self.ask("scan rows", Question::Scan { start, end, at_most, rows, versions })
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.ask("flush", Question::Flush)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use seriatim_kv::MemoryStore;

    use super::super::StoreHost;
    use super::super::protocol::{PAGE_BYTES_MAX, WRITE_BYTES_MAX};
    use super::*;

    /// A host that ends with the test's process.
    fn host(directory: &tempfile::TempDir) -> HostedStore {
        let path = directory.path().join("store");
        let host = StoreHost::bind(&path, MemoryStore::new()).unwrap();
        thread::spawn(move || host.serve());
        HostedStore::new(&path)
    }

    fn pointers(versions: &Versions) -> Vec<u64> {
        versions.newest.iter().map(|version| version.pointer.0).collect()
    }

    #[test]
    fn a_hosted_store_answers_as_the_store_itself() {
        let directory = tempfile::tempdir().unwrap();
        let hosted = host(&directory);
        let plain = MemoryStore::new();
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..500 {
            let (row, version) = (vec![random.u8(0..9)], WritePointer(random.u64(1..50)));
            let value = random.bool().then(|| vec![random.u8(..)]);
            if random.u8(0..4) == 0 {
                hosted.remove(&row, version).unwrap();
                plain.remove(&row, version).unwrap();
            } else {
                hosted.put(&row, version, value.as_deref()).unwrap();
                plain.put(&row, version, value.as_deref()).unwrap();
            }
            let at_most = WritePointer(random.u64(..60));
            let limits = PageLimits { rows: random.usize(1..4), versions: random.usize(1..4) };
            let (mine, theirs) =
                (hosted.versions(&row, at_most, 3).unwrap(), plain.versions(&row, at_most, 3).unwrap());
            assert_eq!(mine, theirs);
            let end = [random.u8(0..12)];
            let (mine, theirs) = (hosted.scan(&row, &end, at_most, limits), plain.scan(&row, &end, at_most, limits));
            assert_eq!(mine.unwrap(), theirs.unwrap());
        }
    }

    #[test]
    fn large_values_are_paged_and_larger_ones_refused() {
        let directory = tempfile::tempdir().unwrap();
        let store = host(&directory);
        let large = vec![1; WRITE_BYTES_MAX - 1];
        for (row, version) in [(b"a", 1), (b"a", 2), (b"b", 3)] {
            store.put(row, WritePointer(version), Some(&large)).unwrap();
        }
        let too_large = vec![1; PAGE_BYTES_MAX + 1];
        assert!(store.put(b"c", WritePointer(4), Some(&too_large)).unwrap_err().is_definite());
        let found = store.versions(b"a", WritePointer::MAX, 10).unwrap();
        assert_eq!((pointers(&found), found.more), (vec![2], true));
        let page = store.scan(b"a", b"z", WritePointer::MAX, PageLimits::default()).unwrap();
        assert_eq!((page.rows.len(), page.next.as_deref()), (1, Some(&b"b"[..])));
    }

    #[test]
    fn the_newest_versions_are_named() {
        let directory = tempfile::tempdir().unwrap();
        let store = host(&directory);
        for version in 1..=5 {
            store.put(b"row", WritePointer(version), None).unwrap();
        }
        store.remove(b"row", WritePointer(4)).unwrap();
        let newest: Vec<u64> = store.recent(3).unwrap().into_iter().map(|(_, version)| version.0).collect();
        assert_eq!(newest, [5, 3, 2]);
    }

    #[test]
    fn without_a_host_nothing_was_done() {
        let directory = tempfile::tempdir().unwrap();
        let store = HostedStore::new(&directory.path().join("nobody"));
        assert!(store.put(b"row", WritePointer(1), None).unwrap_err().is_definite());
    }
}
