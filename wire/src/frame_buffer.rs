//! Bytes as they come off a socket, and the complete frames among them.

use std::io::{self, Read};

use crate::HEADER_BYTES;
use crate::error::DecodeError;
use crate::frame::{Frame, Frames};

/// Room that is made for one read: 16 KiB. A frame that is larger makes the buffer grow as its bytes arrive.
const READ_BYTES: usize = 16 << 10;

/// What an empty buffer keeps of its memory at most: 64 KiB.
const KEEP_BYTES: usize = 64 << 10;

/// Collects bytes and hands out complete frames, in order.
///
/// Memory follows the bytes that came, never the length that a header claims: at most twice what is buffered plus one
/// read. A new or [`released`](FrameBuffer::release) buffer holds no memory at all.
#[derive(Debug)]
pub struct FrameBuffer {
    /// Initialised throughout; `start..end` holds what came and was not taken.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    body_max: u32,
}

impl FrameBuffer {
    /// An empty buffer for frames whose bodies hold at most `body_max` bytes.
    pub fn new(body_max: u32) -> FrameBuffer {
        FrameBuffer { bytes: Vec::new(), start: 0, end: 0, body_max }
    }

    /// Bytes that came and were not taken.
    pub fn len(&self) -> usize {
        self.end - self.start
    }

    /// True if no byte waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory held.
    pub fn capacity(&self) -> usize {
        self.bytes.capacity()
    }

    /// Appends bytes.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.make_room(bytes.len());
        self.bytes[self.end..self.end + bytes.len()].copy_from_slice(bytes);
        self.end += bytes.len();
    }

    /// Room to read into, 16 KiB or more; [`filled`](FrameBuffer::filled) says afterwards how much of it was used.
    pub fn room(&mut self) -> &mut [u8] {
        self.make_room(READ_BYTES);
        &mut self.bytes[self.end..]
    }

    /// The first `count` bytes of the room were filled.
    pub fn filled(&mut self, count: usize) {
        self.end += count;
        assert!(self.end <= self.bytes.len(), "filled {count} bytes, more than there was room for");
    }

    /// Reads once, again if a signal came between; 0 means that the other side has closed.
    ///
    /// # Errors
    /// Those of the reader.
    pub fn read_from(&mut self, reader: &mut impl Read) -> io::Result<usize> {
        loop {
            match reader.read(self.room()) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => {
                    let count = read?;
                    self.filled(count);
                    return Ok(count);
                }
            }
        }
    }

    /// Takes the next frame; `None` until more bytes arrive.
    ///
    /// # Errors
    /// As [`Frames::next`]; the buffer is of no use afterwards.
    pub fn next_frame(&mut self) -> Result<Option<Frame<'_>>, DecodeError> {
        let mut frames = Frames::new(&self.bytes[self.start..self.end], self.body_max);
        let frame = frames.next()?;
        self.start += frames.taken();
        Ok(frame)
    }

    /// The complete frames, all at once, where they lie; [`consume`](FrameBuffer::consume) takes them off afterwards.
    pub fn frames(&self) -> Frames<'_> {
        Frames::new(&self.bytes[self.start..self.end], self.body_max)
    }

    /// Takes off as many bytes as [`Frames::taken`] says.
    pub fn consume(&mut self, count: usize) {
        assert!(count <= self.len(), "consumed {count} bytes of {}", self.len());
        self.start += count;
    }

    /// Gives back the memory if no byte waits. For connections that fell idle.
    pub fn release(&mut self) {
        if self.is_empty() {
            *self = FrameBuffer::new(self.body_max);
        }
    }

    /// Makes room for `count` bytes behind `end`.
    fn make_room(&mut self, count: usize) {
        if self.is_empty() {
            (self.start, self.end) = (0, 0);
            if self.bytes.len() > KEEP_BYTES && count <= KEEP_BYTES {
                self.bytes = Vec::new();
            }
        }
        if self.bytes.len() - self.end >= count {
            return;
        }
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.len());
        }
        // Doubling keeps the moving linear in what arrives, however small the reads are.
        let wanted = (self.end + count).max(2 * self.end);
        if self.bytes.len() < wanted {
            self.bytes.resize(wanted, 0);
        }
    }
}

const _: () = assert!(READ_BYTES > HEADER_BYTES && READ_BYTES <= KEEP_BYTES);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{FrameWriter, Op};

    fn frame(id: u64, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut frame = FrameWriter::request(&mut out, Op::Ping, id);
        frame.body().extend_from_slice(body);
        frame.finish();
        out
    }

    #[test]
    fn frames_come_out_whole_however_the_bytes_are_cut() {
        let bodies: Vec<Vec<u8>> = [0, 1, 15, 16, 17, 5000, 40_000, 3].map(|n| vec![n as u8; n]).to_vec();
        let stream: Vec<u8> = bodies.iter().enumerate().flat_map(|(id, body)| frame(id as u64, body)).collect();
        for step in [1, 7, 16, 17, 1000, 16_384, stream.len()] {
            let mut buffer = FrameBuffer::new(50_000);
            let mut got = Vec::new();
            for piece in stream.chunks(step) {
                buffer.extend(piece);
                while let Some(frame) = buffer.next_frame().unwrap() {
                    assert_eq!(frame.id, got.len() as u64);
                    got.push(frame.body.to_vec());
                }
            }
            assert_eq!(got, bodies, "step {step}");
            assert!(buffer.is_empty());
        }
    }

    #[test]
    fn all_frames_of_a_read_can_be_held_at_once() {
        let mut buffer = FrameBuffer::new(100);
        let stream = [frame(1, b"one"), frame(2, b"two"), frame(3, b"three")].concat();
        buffer.extend(&stream[..stream.len() - 1]);
        let mut frames = buffer.frames();
        let (one, two) = (frames.next().unwrap().unwrap(), frames.next().unwrap().unwrap());
        assert_eq!((one.body, two.body, frames.next()), (&b"one"[..], &b"two"[..], Ok(None)));
        let taken = frames.taken();
        buffer.consume(taken);
        buffer.extend(&stream[stream.len() - 1..]);
        assert_eq!(buffer.next_frame().unwrap().unwrap().body, b"three");
    }

    #[test]
    fn memory_follows_the_bytes_that_came_and_not_the_length_that_is_claimed() {
        let mut buffer = FrameBuffer::new(16 << 20);
        let huge = frame(1, &vec![7; 16 << 20]);
        buffer.extend(&huge[..1000]);
        assert_eq!(buffer.next_frame(), Ok(None));
        buffer.room();
        assert!(buffer.capacity() < 2 * (1000 + READ_BYTES), "{}", buffer.capacity());
        buffer.extend(&huge[1000..]);
        assert!(buffer.next_frame().unwrap().is_some());
        buffer.room();
        assert!(buffer.capacity() <= KEEP_BYTES, "{}", buffer.capacity());
        buffer.release();
        assert_eq!(buffer.capacity(), 0);
    }
}
