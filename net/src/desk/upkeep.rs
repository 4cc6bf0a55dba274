//! The desk's answers to operators: truncation, fences, images.

use std::time::Duration;

use seriatim_core::{Full, StoreName, WritePointer};
use seriatim_wal::Storage;
use seriatim_wire::{
    IMAGE_PAGE_BYTES_MAX, ImagePage, ImageRequest, Op, Pointers, StoreReply, StoreRequest, Truncated, reply,
};

use super::{Desk, LateReply, Latest, overloaded};
use crate::clock::Now;
use crate::connection::Connection;
use crate::fences::FenceId;
use crate::network::ConnectionId;
use crate::plant::Plant;

/// Images that are kept for their readers at once: 4.
const IMAGES_MAX: usize = 4;
/// How long an image is kept without being read: 60 s.
const IMAGE_KEPT: Duration = Duration::from_secs(60);

/// A fence, and who waits for it.
pub(super) struct Waiter {
    fence: FenceId,
    connection: ConnectionId,
    request: u64,
}

/// An image that is being read page by page.
pub(super) struct HeldImage {
    number: u64,
    reader: ConnectionId,
    file: Vec<u8>,
    read_at: Duration,
}

/// The name of a store out of a request, where it was checked.
fn checked(name: &str) -> StoreName {
    StoreName::new(name).expect("a name that was read has a length that may be")
}

impl<S: Storage, P: Plant> Desk<S, P> {
    pub(super) fn truncate(&mut self, connection: &mut Connection, id: u64, pointers: Pointers<'_>) {
        let mut latest = Latest::default();
        let mut forgotten = Vec::with_capacity(pointers.len());
        for tx in pointers.iter() {
            match self.publication.truncate(tx) {
                Ok(ticket) => {
                    ticket.into_iter().for_each(|ticket| latest.note(ticket));
                    forgotten.push(ticket.is_some());
                }
                Err(full) => return overloaded(connection, id, full),
            }
        }
        let mut bytes = Vec::new();
        reply::bools(&mut bytes, Op::Truncate, id, forgotten);
        self.answer(connection, latest, LateReply::Ready(bytes));
    }

    pub(super) fn truncate_before(&mut self, connection: &mut Connection, id: u64, bound: WritePointer) {
        let (truncated, latest) = match self.publication.truncate_before(bound) {
            Ok(Ok((forgotten, ticket))) => (Truncated::Done(forgotten), Latest(Some(ticket))),
            Ok(Err(open)) => (Truncated::InProgress(open), Latest(None)),
            Err(full) => return overloaded(connection, id, full),
        };
        let mut bytes = Vec::new();
        reply::truncate_before(&mut bytes, id, truncated);
        self.answer(connection, latest, LateReply::Ready(bytes));
    }

    pub(super) fn store(&mut self, connection: &mut Connection, id: u64, request: StoreRequest<'_>, now: Now) {
        let mut latest = Latest::default();
        let said = match request {
            StoreRequest::Register { name } => self.publication.register_store(checked(name), now).map(|registered| {
                let is_new = registered.map(|ticket| {
                    ticket.into_iter().for_each(|ticket| latest.note(ticket));
                    ticket.is_some()
                });
                StoreReply::Registered(is_new)
            }),
            StoreRequest::Remove { name } => self.publication.remove_store(checked(name)).map(|ticket| {
                ticket.into_iter().for_each(|ticket| latest.note(ticket));
                StoreReply::Removed(ticket.is_some())
            }),
            StoreRequest::CleanBound => Ok(StoreReply::CleanBound(self.publication.clean_bounds(now))),
            StoreRequest::Cleaned { name, bound } => self
                .publication
                .store_cleaned(checked(name), bound, now)
                .map(|cleaned| StoreReply::Cleaned(cleaned.map(|ticket| latest.note(ticket)))),
            StoreRequest::Pruning => Ok(StoreReply::Pruning(Box::new(self.publication.prune_report(now)))),
        };
        match said {
            Ok(said) => {
                let mut bytes = Vec::new();
                reply::store(&mut bytes, id, &said);
                self.answer(connection, latest, LateReply::Ready(bytes));
            }
            Err(full) => overloaded(connection, id, full),
        }
    }

    pub(super) fn fence(&mut self, connection: &mut Connection, id: u64, timeout_ms: u64, now: Now) {
        match self.publication.raise_fence(now, timeout_ms) {
            Ok(fence) => {
                connection.waiting += 1;
                self.fences.push(Waiter { fence, connection: connection.id, request: id });
            }
            Err(full) => overloaded(connection, id, full),
        }
    }

    /// Hands out the answers of fences that passed, or whose time is up.
    pub(super) fn release_fences(
        &mut self,
        now: Now,
        deliver: &mut impl FnMut(ConnectionId, &mut dyn FnMut(&mut Vec<u8>)),
    ) {
        let publication = &mut self.publication;
        self.fences.retain(|waiter| {
            let Some(fenced) = publication.fence_outcome(waiter.fence, now) else { return true };
            deliver(waiter.connection, &mut |output| reply::fence(output, waiter.request, fenced));
            false
        });
    }

    pub(super) fn image(&mut self, connection: &mut Connection, id: u64, request: &ImageRequest, now: Now) {
        let held = self.images.iter().position(|held| held.number == request.number && held.reader == connection.id);
        let (at, offset) = match held {
            Some(at) => (at, request.offset),
            None => {
                self.images.retain(|held| held.reader != connection.id);
                if self.images.len() == IMAGES_MAX {
                    return overloaded(connection, id, Full::Images);
                }
                self.last_image += 1;
                let (number, reader, read_at) = (self.last_image, connection.id, now.monotonic);
                self.images.push(HeldImage { number, reader, file: self.publication.image_file(), read_at });
                (self.images.len() - 1, 0)
            }
        };
        let held = &mut self.images[at];
        held.read_at = now.monotonic;
        let total = held.file.len();
        let start = usize::try_from(offset).unwrap_or(total).min(total);
        let end = (start + IMAGE_PAGE_BYTES_MAX).min(total);
        let page = ImagePage { number: held.number, total: total as u64, bytes: &held.file[start..end] };
        reply::image(&mut connection.output, id, page);
        if end == total {
            self.images.swap_remove(at);
        }
    }

    /// Housekeeping: images that nobody reads any more.
    pub fn keep(&mut self, now: Now) {
        self.images.retain(|held| now.monotonic.saturating_sub(held.read_at) < IMAGE_KEPT);
    }

    /// No more requests come from this connection. Nobody waits for its fences, and nobody reads its image.
    pub fn forget(&mut self, connection: &mut Connection) {
        self.images.retain(|held| held.reader != connection.id);
        let publication = &mut self.publication;
        self.fences.retain(|waiter| {
            let goes = waiter.connection == connection.id;
            if goes {
                publication.fences.lower(waiter.fence);
                connection.waiting -= 1;
            }
            !goes
        });
    }
}
