//! The socket work of a request: a server that answers so many bytes with so many, and a client that keeps it busy.
//!
//! Both are shaped like the real ones: one thread, one poll; whatever has arrived on a socket is read, all of it is
//! answered, and one write takes the answers away. A frame says how long its answer is to be, and that is all that anybody
//! finds in it.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use mio::event::Source;
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token, Waker};

/// The least that a frame takes: its own length and that of its answer, 4 bytes each.
pub const FRAME_BYTES_MIN: u32 = 8;
/// Bytes that are read at once.
const READ_BYTES: usize = 256 << 10;
const LISTENER: Token = Token(usize::MAX);
const STOP: Token = Token(usize::MAX - 1);

/// What is sent back and forth.
#[derive(Clone, PartialEq, Debug)]
pub struct EchoLoad {
    /// Connections, at least 1.
    pub connections: usize,
    /// Operations that each connection keeps in flight, at least 1.
    pub depth: u32,
    /// The round trips of one operation: bytes that it sends and bytes that come back, for each. Operations that are due
    /// together share a frame, as they do with the sequencer, and a frame takes [`FRAME_BYTES_MIN`] at least.
    pub steps: Vec<(f64, f64)>,
    /// How long it runs.
    pub time: Duration,
}

/// What was done.
#[derive(Clone, Debug)]
pub struct Echoed {
    /// Operations that went through all of their steps.
    pub operations: u64,
    /// Frames that were answered.
    pub frames: u64,
    /// Bytes that the client sent, and the ones that it received.
    pub sent: u64,
    /// See `sent`.
    pub received: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// Nanoseconds from a frame to its answer, one for each operation in it.
    pub latency_ns: Histogram<u64>,
}

/// An echo server on a thread of its own, on a free port of the loopback; it ends when this is dropped.
pub struct EchoServer {
    address: SocketAddr,
    stop: Waker,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl EchoServer {
    /// Starts one.
    ///
    /// # Errors
    /// If the system gives no socket, no poll or no thread.
    pub fn start() -> io::Result<EchoServer> {
        let poll = Poll::new()?;
        let mut listener = TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0)))?;
        let address = listener.local_addr()?;
        listener.register(poll.registry(), LISTENER, Interest::READABLE)?;
        let stop = Waker::new(poll.registry(), STOP)?;
        let thread = std::thread::Builder::new().name("echo".to_owned()).spawn(move || serve(poll, &listener))?;
        Ok(EchoServer { address, stop, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for EchoServer {
    fn drop(&mut self) {
        // Without a wake-up it would be waited for in vain; it is left to the end of the process then.
        if self.stop.wake().is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

fn serve(mut poll: Poll, listener: &TcpListener) -> io::Result<()> {
    let mut events = Events::with_capacity(1024);
    let mut ends: Vec<Option<End>> = Vec::new();
    loop {
        match poll.poll(&mut events, None) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            polled => polled?,
        }
        for event in &events {
            match event.token() {
                STOP => return Ok(()),
                LISTENER => {
                    while let Some((stream, _)) = unless_blocked(listener.accept())? {
                        let end = End::new(stream, &poll, ends.len())?;
                        ends.push(Some(end));
                    }
                }
                Token(index) => {
                    let Some(end) = &mut ends[index] else { continue };
                    // Who goes away has been served.
                    if end.answer().is_err() {
                        ends[index] = None;
                    }
                }
            }
        }
    }
}

/// One end of a connection.
struct End {
    stream: TcpStream,
    /// What has arrived and was not taken.
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    buffer: Vec<u8>,
}

impl End {
    fn new(mut stream: TcpStream, poll: &Poll, index: usize) -> io::Result<End> {
        stream.set_nodelay(true)?;
        stream.register(poll.registry(), Token(index), Interest::READABLE | Interest::WRITABLE)?;
        Ok(End { stream, input: Vec::new(), output: Vec::new(), sent: 0, buffer: vec![0; READ_BYTES] })
    }

    /// Reads until the socket is empty.
    fn read(&mut self) -> io::Result<u64> {
        let mut received = 0;
        loop {
            match unless_blocked(self.stream.read(&mut self.buffer))? {
                Some(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Some(count) => {
                    self.input.extend_from_slice(&self.buffer[..count]);
                    received += count as u64;
                    // A short read has emptied it.
                    if count < self.buffer.len() {
                        return Ok(received);
                    }
                }
                None => return Ok(received),
            }
        }
    }

    /// Takes every whole frame: tells the length of the answer that it wants.
    fn frames(&mut self, mut each: impl FnMut(&mut Vec<u8>, u32)) {
        let mut taken = 0;
        while let Some((length, wanted)) = head(&self.input[taken..])
            && self.input.len() - taken >= length as usize
        {
            taken += length as usize;
            each(&mut self.output, wanted);
        }
        self.input.drain(..taken);
    }

    fn write(&mut self) -> io::Result<u64> {
        let before = self.sent;
        while self.sent < self.output.len() {
            match unless_blocked(self.stream.write(&self.output[self.sent..]))? {
                Some(count) => self.sent += count,
                None => break,
            }
        }
        let sent = (self.sent - before) as u64;
        if self.sent == self.output.len() {
            self.output.clear();
            self.sent = 0;
        }
        Ok(sent)
    }

    fn answer(&mut self) -> io::Result<()> {
        self.read()?;
        self.frames(|output, wanted| put_frame(output, wanted, 0));
        self.write()?;
        Ok(())
    }
}

/// The lengths at the start of a frame, if they are there: of itself, and of its answer.
fn head(bytes: &[u8]) -> Option<(u32, u32)> {
    let (head, _) = bytes.split_first_chunk::<8>()?;
    let [a, b, c, d, e, f, g, h] = *head;
    Some((u32::from_le_bytes([a, b, c, d]).max(FRAME_BYTES_MIN), u32::from_le_bytes([e, f, g, h])))
}

fn put_frame(output: &mut Vec<u8>, length: u32, wanted: u32) {
    let end = output.len() + length as usize;
    output.extend_from_slice(&length.to_le_bytes());
    output.extend_from_slice(&wanted.to_le_bytes());
    output.resize(end, 0);
}

fn unless_blocked<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if [io::ErrorKind::WouldBlock, io::ErrorKind::Interrupted].contains(&error.kind()) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A frame on its way.
struct Asked {
    operations: u32,
    step: usize,
    sent_at: Instant,
}

/// Makes this load on an echo server.
///
/// # Errors
/// If a connection cannot be made, or breaks.
pub fn echo(address: SocketAddr, load: &EchoLoad) -> io::Result<Echoed> {
    let mut poll = Poll::new()?;
    let mut events = Events::with_capacity(1024);
    let mut ends = Vec::new();
    for index in 0..load.connections.max(1) {
        let stream = std::net::TcpStream::connect(address)?;
        stream.set_nonblocking(true)?;
        ends.push((End::new(TcpStream::from_std(stream), &poll, index)?, VecDeque::new()));
    }
    let latency_ns = Histogram::new_with_max(60_000_000_000, 3).expect("bounds that histograms take");
    let mut echoed = Echoed { operations: 0, frames: 0, sent: 0, received: 0, elapsed: Duration::ZERO, latency_ns };
    let started = Instant::now();
    for (end, asked) in &mut ends {
        ask(end, asked, load, 0, load.depth.max(1), started);
        echoed.sent += end.write()?;
    }
    loop {
        match poll.poll(&mut events, Some(Duration::from_millis(100))) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            polled => polled?,
        }
        for event in &events {
            let (end, asked) = &mut ends[event.token().0];
            echoed.received += end.read()?;
            let now = Instant::now();
            // Operations that are due, by step.
            let mut due = vec![0u32; load.steps.len()];
            let mut answers = 0;
            end.frames(|_, _| answers += 1);
            for Asked { operations, step, sent_at } in asked.drain(..answers) {
                echoed.frames += 1;
                let ns = (now - sent_at).as_nanos() as u64;
                echoed.latency_ns.record_n(ns.clamp(1, 60_000_000_000), u64::from(operations)).expect("within bounds");
                let next = (step + 1) % load.steps.len();
                echoed.operations += if next == 0 { u64::from(operations) } else { 0 };
                due[next] += operations;
            }
            for (step, operations) in due.into_iter().enumerate() {
                ask(end, asked, load, step, operations, now);
            }
            echoed.sent += end.write()?;
        }
        echoed.elapsed = started.elapsed();
        if echoed.elapsed >= load.time {
            return Ok(echoed);
        }
    }
}

fn ask(end: &mut End, asked: &mut VecDeque<Asked>, load: &EchoLoad, step: usize, operations: u32, sent_at: Instant) {
    if operations == 0 {
        return;
    }
    let (sent, received) = load.steps[step];
    let bytes = |each: f64| ((each * f64::from(operations)).round() as u32).max(FRAME_BYTES_MIN);
    put_frame(&mut end.output, bytes(sent), bytes(received));
    asked.push_back(Asked { operations, step, sent_at });
}
