//! One connection as the pipeline keeps it: bytes that came, bytes that wait to leave, and what is known of the peer.

use std::time::Duration;

use seriatim_core::LabelId;
use seriatim_wire::FrameBuffer;

use crate::network::{ConnectionId, Network};

/// Unsent output beyond which nothing more is read from a connection: 4 MiB.
pub const OUTPUT_BYTES_MAX: usize = 4 << 20;
/// A connection whose output has been over its bound for this long is closed: 30 s.
pub(crate) const SLOW_READER_AFTER: Duration = Duration::from_secs(30);
/// Requests read from one connection in one turn before the others have theirs: 1 MiB.
pub(crate) const TURN_BYTES: usize = 1 << 20;
/// An output buffer larger than this is given back once it is empty.
const OUTPUT_BYTES_KEPT: usize = 256 << 10;

/// How far a connection has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Nothing was said yet.
    New,
    /// The hello was answered.
    Open,
    /// No more requests are read; it closes once the replies are out.
    Ending,
}

/// One connection; see the head of this file.
#[derive(Debug)]
pub(crate) struct Connection {
    pub id: ConnectionId,
    pub phase: Phase,
    /// Whose transactions these are; 0 before the hello.
    pub session: u64,
    /// The label of transactions that bring none of their own.
    pub label: LabelId,
    pub input: FrameBuffer,
    pub output: Vec<u8>,
    /// How much of `output` was sent.
    sent: usize,
    /// Replies that wait for their group.
    pub waiting: usize,
    /// More may be waiting in the socket than was read.
    pub has_more: bool,
    /// A frame of it waits for the next turn. Until that is decided nothing more is read, so that what waits is bounded.
    pub is_paused: bool,
    /// It was read from since housekeeping last looked.
    pub was_read: bool,
    /// It has begun transactions.
    pub has_begun: bool,
    /// The peer has ended its side.
    pub has_ended: bool,
    /// Nothing can be sent any more, or nothing will.
    pub is_broken: bool,
    /// Since when the output has been over its bound.
    pub full_since: Option<Duration>,
}

impl Connection {
    pub fn new(id: ConnectionId, body_bytes_max: u32) -> Connection {
        Connection {
            id,
            phase: Phase::New,
            session: 0,
            label: LabelId::NONE,
            input: FrameBuffer::new(body_bytes_max),
            output: Vec::new(),
            sent: 0,
            waiting: 0,
            has_more: false,
            is_paused: false,
            was_read: false,
            has_begun: false,
            has_ended: false,
            is_broken: false,
            full_since: None,
        }
    }

    /// Bytes that wait to be sent.
    pub fn unsent(&self) -> usize {
        self.output.len() - self.sent
    }

    /// True if requests may be read: there is somebody to answer and room for the answers.
    pub fn may_read(&self) -> bool {
        self.phase != Phase::Ending && self.unsent() <= OUTPUT_BYTES_MAX
    }

    /// True if nothing more will ever be sent.
    pub fn is_done(&self) -> bool {
        self.phase == Phase::Ending && self.waiting == 0 && self.unsent() == 0
    }

    /// Sends what the network takes. False if the connection broke.
    pub fn send(&mut self, network: &mut impl Network) -> bool {
        if self.unsent() == 0 {
            return true;
        }
        match network.write(self.id, &self.output[self.sent..]) {
            Ok(count) => self.sent += count,
            Err(_) => return false,
        }
        if self.unsent() == 0 {
            self.sent = 0;
            self.output.clear();
            if self.output.capacity() > OUTPUT_BYTES_KEPT {
                self.output = Vec::new();
            }
        } else if self.sent > OUTPUT_BYTES_KEPT {
            self.output.drain(..self.sent);
            self.sent = 0;
        }
        true
    }
}
