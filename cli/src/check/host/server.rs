//! The host: one thread per connection, one answer to each question.

use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use seriatim_kv::{Page, PageLimits, Store, StoreError, Versions};

use super::protocol::{
    Answer, Field, PAGE_BYTES_MAX, ProtocolError, Question, WRITE_BYTES_MAX, read_frame, write_frame,
};
use super::recent::Recent;

/// Connections that are served at a time; more wait in the listener's queue until one ends.
pub const CONNECTIONS_MAX: usize = 256;

/// A store that listens.
pub struct StoreHost<S> {
    listener: UnixListener,
    shared: Arc<Shared<S>>,
}

struct Shared<S> {
    store: S,
    recent: Recent,
    connections: Mutex<usize>,
    one_ended: Condvar,
}

impl<S: Store> StoreHost<S> {
    /// Listens on a socket that is made at `path`.
    ///
    /// # Errors
    /// If the path is in use, too long for a socket, or cannot be written.
    pub fn bind(path: &Path, store: S) -> io::Result<StoreHost<S>> {
        let listener = UnixListener::bind(path)?;
        let shared =
            Shared { store, recent: Recent::default(), connections: Mutex::default(), one_ended: Condvar::new() };
        Ok(StoreHost { listener, shared: Arc::new(shared) })
    }

    /// Serves until the listener fails.
    ///
    /// # Errors
    /// If no further connection can be taken.
    pub fn serve(self) -> io::Result<()> {
        loop {
            let place = Place::take(self.shared.clone());
            let (stream, _) = self.listener.accept()?;
            let builder = thread::Builder::new().name("store-connection".into());
            // A connection that breaks concerns its client alone, who notices by itself.
            builder.spawn(move || drop(answer_all(stream, &place.0)))?;
        }
    }
}

/// One of the connections that may be served at a time.
struct Place<S>(Arc<Shared<S>>);

impl<S> Place<S> {
    /// Waits until there is one.
    fn take(shared: Arc<Shared<S>>) -> Place<S> {
        let mut taken = shared.connections.lock().unwrap_or_else(PoisonError::into_inner);
        while *taken >= CONNECTIONS_MAX {
            taken = shared.one_ended.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        *taken += 1;
        drop(taken);
        Place(shared)
    }
}

impl<S> Drop for Place<S> {
    fn drop(&mut self) {
        *self.0.connections.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        self.0.one_ended.notify_one();
    }
}

fn answer_all<S: Store>(mut stream: UnixStream, shared: &Shared<S>) -> io::Result<()> {
    let (mut body, mut out) = (Vec::new(), Vec::new());
    while read_frame(&mut stream, &mut body)? {
        let sent = write_frame(&mut stream, &mut out, |out| match Question::decode(&body) {
            Ok(question) => shared.answer(question, out),
            Err(error) => refuse(error, out),
        })?;
        if !sent {
            return Err(io::Error::other("an answer is over the limit of a frame"));
        }
    }
    Ok(())
}

fn refuse(error: ProtocolError, out: &mut Vec<u8>) {
    Answer::<()>::Refused(error.to_string()).encode(out);
}

impl<S: Store> Shared<S> {
    fn answer(&self, question: Question<'_>, out: &mut Vec<u8>) {
        match question {
            Question::Put { row, value, .. } if row.len() + value.map_or(0, <[u8]>::len) > WRITE_BYTES_MAX => {
                Answer::<()>::Refused(format!("the host takes rows with values up to {WRITE_BYTES_MAX} bytes"))
                    .encode(out);
            }
            Question::Put { row, version, value } => {
                let result = self.store.put(row, version, value);
                if result.is_ok() {
                    self.recent.put(row, version);
                }
                finish(result, out);
            }
            Question::Remove { row, version } => {
                self.recent.remove(row, version);
                finish(self.store.remove(row, version), out);
            }
            Question::Versions { row, at_most, limit } => {
                finish(self.store.versions(row, at_most, limit as usize).map(cut_versions), out);
            }
            Question::Scan { start, end, at_most, rows, versions } => {
                let limits = PageLimits { rows: rows as usize, versions: versions as usize };
                finish(self.store.scan(start, end, at_most, limits).map(cut_page), out);
            }
            Question::Flush => finish(self.store.flush(), out),
            Question::Recent { limit } => finish(Ok(self.recent.newest(limit as usize)), out),
        }
    }
}

fn finish<T: Field>(result: Result<T, StoreError>, out: &mut Vec<u8>) {
    let answer = match result {
        Ok(result) => Answer::Done(result),
        Err(error) if error.is_definite() => Answer::Refused(with_sources(&error)),
        Err(error) => Answer::Doubtful(with_sources(&error)),
    };
    answer.encode(out);
}

fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    text
}

/// As many of the versions as fit a frame, at least one.
fn cut_versions(mut versions: Versions) -> Versions {
    let mut bytes = 0;
    let fits = versions.newest.iter().take_while(|version| {
        bytes += 16 + version.value.as_ref().map_or(0, Vec::len);
        bytes <= PAGE_BYTES_MAX
    });
    let keep = fits.count().max(1);
    if versions.newest.len() > keep {
        versions.newest.truncate(keep);
        versions.more = true;
    }
    versions
}

/// As many of the rows as fit a frame, at least one.
fn cut_page(mut page: Page) -> Page {
    let mut bytes = 0;
    for (index, row) in page.rows.iter_mut().enumerate() {
        row.versions = cut_versions(std::mem::take(&mut row.versions));
        let values = row.versions.newest.iter().map(|version| 16 + version.value.as_ref().map_or(0, Vec::len));
        bytes += 16 + row.row.len() + values.sum::<usize>();
        if bytes > PAGE_BYTES_MAX && index > 0 {
            page.next = Some(std::mem::take(&mut row.row));
            page.rows.truncate(index);
            break;
        }
    }
    page
}
