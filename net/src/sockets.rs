//! The network of this machine: TCP and Unix sockets over mio, edge-triggered.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mio::event::Source;
use mio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};

use seriatim_wire::FrameBuffer;

use crate::failure::StartError;
use crate::network::{ConnectionId, Network, NetworkEvent, ReadOutcome};

const STOP: Token = Token(0);
const LOG: Token = Token(1);
const TCP: Token = Token(2);
const UNIX: Token = Token(3);
/// Tokens of connections start here.
const FIRST: usize = 16;
/// How soon a failed accept (out of descriptors) is tried again.
const ACCEPT_AGAIN: Duration = Duration::from_millis(50);

/// TCP and Unix sockets over mio.
pub struct Sockets {
    poll: Poll,
    events: Events,
    tcp: TcpListener,
    unix: Option<(UnixListener, PathBuf)>,
    connections: Vec<Option<Connection>>,
    free: Vec<usize>,
    opened: u64,
    accept_again: bool,
}

struct Connection {
    id: ConnectionId,
    stream: Stream,
    /// The peer has ended its side: after the last bytes comes the end, and no further event.
    peer_ended: bool,
}

/// Asks a pipeline that runs over [`Sockets`] to stop. Cheap to clone, usable from any thread.
#[derive(Clone)]
pub struct Stop {
    asked: Arc<AtomicBool>,
    waker: Arc<Waker>,
}

impl Stop {
    /// Asks for a clean stop: what is decided is made durable and answered first.
    pub fn stop(&self) {
        // Release, paired with the acquire in `is_asked`: nothing else travels with it.
        self.asked.store(true, Ordering::Release);
        if let Err(error) = self.waker.wake() {
            log::error!("wake the pipeline: {error}");
        }
    }

    /// True once somebody asked.
    pub fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }
}

impl Sockets {
    /// Listens on a TCP address (port 0 takes a free one) and, if asked, on a Unix socket.
    ///
    /// # Errors
    /// If an address cannot be bound; [`StartError::Listen`] names it.
    pub fn listen(address: SocketAddr, unix: Option<&Path>) -> Result<(Sockets, Stop), StartError> {
        let failed = |source| StartError::Listen { address: address.to_string(), source };
        let poll = Poll::new().map_err(failed)?;
        let mut tcp = TcpListener::bind(address).map_err(failed)?;
        poll.registry().register(&mut tcp, TCP, Interest::READABLE).map_err(failed)?;
        let unix = match unix {
            None => None,
            Some(path) => {
                let failed = |source| StartError::Listen { address: format!("unix:{}", path.display()), source };
                let mut listener = UnixListener::bind(path).map_err(failed)?;
                poll.registry().register(&mut listener, UNIX, Interest::READABLE).map_err(failed)?;
                Some((listener, path.to_owned()))
            }
        };
        let waker = Arc::new(Waker::new(poll.registry(), STOP).map_err(failed)?);
        let stop = Stop { asked: Arc::default(), waker };
        let sockets = Sockets {
            poll,
            events: Events::with_capacity(1024),
            tcp,
            unix,
            connections: Vec::new(),
            free: Vec::new(),
            opened: 0,
            accept_again: false,
        };
        Ok((sockets, stop))
    }

    /// The TCP address that is listened on.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Returns from a poll when this descriptor becomes readable: the log's completions.
    pub fn watch_log(&mut self, fd: RawFd) -> io::Result<()> {
        self.poll.registry().register(&mut SourceFd(&fd), LOG, Interest::READABLE)
    }

    fn accept_all(&mut self, token: Token, events: &mut Vec<NetworkEvent>) {
        loop {
            let accepted = match token {
                TCP => self.tcp.accept().map(|(stream, _)| Stream::Tcp(stream)),
                _ => match &self.unix {
                    Some((listener, _)) => listener.accept().map(|(stream, _)| Stream::Unix(stream)),
                    None => return,
                },
            };
            match accepted.and_then(|stream| self.add(stream)) {
                Ok(id) => events.push(NetworkEvent::Opened(id)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    log::warn!("accept a connection: {error}");
                    self.accept_again = true;
                    return;
                }
            }
        }
    }

    fn add(&mut self, mut stream: Stream) -> io::Result<ConnectionId> {
        if let Stream::Tcp(tcp) = &stream {
            tcp.set_nodelay(true)?;
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        let both = Interest::READABLE | Interest::WRITABLE;
        if let Err(error) = self.poll.registry().register(stream.source(), Token(FIRST + place), both) {
            self.free.push(place);
            return Err(error);
        }
        self.opened += 1;
        let id = ConnectionId(self.opened << 32 | place as u64);
        self.connections[place] = Some(Connection { id, stream, peer_ended: false });
        Ok(id)
    }

    fn connection(&mut self, id: ConnectionId) -> Option<&mut Connection> {
        match self.connections.get_mut(place(id)) {
            Some(Some(connection)) if connection.id == id => Some(connection),
            _ => None,
        }
    }
}

impl Network for Sockets {
    fn poll(&mut self, timeout: Option<Duration>, out: &mut Vec<NetworkEvent>) -> io::Result<()> {
        let again = std::mem::take(&mut self.accept_again);
        let timeout = if again { Some(timeout.map_or(ACCEPT_AGAIN, |t| t.min(ACCEPT_AGAIN))) } else { timeout };
        match self.poll.poll(&mut self.events, timeout) {
            Ok(()) => {}
            // The kernel's work for the log's ring ends a wait this way: it means "look at the completions".
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error),
        }
        if again {
            self.accept_all(TCP, out);
            self.accept_all(UNIX, out);
        }
        let events = std::mem::replace(&mut self.events, Events::with_capacity(0));
        for event in &events {
            match event.token() {
                STOP | LOG => {}
                token @ (TCP | UNIX) => self.accept_all(token, out),
                Token(token) => {
                    let Some(Some(connection)) = self.connections.get_mut(token - FIRST) else { continue };
                    connection.peer_ended |= event.is_read_closed() || event.is_error();
                    if event.is_readable() || event.is_read_closed() || event.is_error() {
                        out.push(NetworkEvent::Readable(connection.id));
                    }
                    if event.is_writable() {
                        out.push(NetworkEvent::Writable(connection.id));
                    }
                }
            }
        }
        self.events = events;
        Ok(())
    }

    fn read(&mut self, id: ConnectionId, into: &mut FrameBuffer, max: usize) -> ReadOutcome {
        let Some(Connection { stream, peer_ended, .. }) = self.connection(id) else { return ReadOutcome::Closed };
        let mut total = 0;
        loop {
            let room = into.room();
            let wanted = room.len();
            match stream.read(room) {
                Ok(0) => return ReadOutcome::Closed,
                Ok(count) => {
                    into.filled(count);
                    total += count;
                    // A short read has emptied the socket, and the next arrival makes an event; but an end that has
                    // arrived already makes none.
                    if count < wanted && !*peer_ended {
                        return ReadOutcome::Drained;
                    }
                    if total >= max {
                        return ReadOutcome::More;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return ReadOutcome::Drained,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return ReadOutcome::Closed,
            }
        }
    }

    fn write(&mut self, id: ConnectionId, bytes: &[u8]) -> io::Result<usize> {
        let Some(Connection { stream, .. }) = self.connection(id) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let mut written = 0;
        while written < bytes.len() {
            match stream.write(&bytes[written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(written)
    }

    fn close(&mut self, id: ConnectionId) {
        if self.connection(id).is_none() {
            return;
        }
        if let Some(mut connection) = self.connections[place(id)].take() {
            let _ = self.poll.registry().deregister(connection.stream.source());
            self.free.push(place(id));
        }
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        if let Some((_, path)) = &self.unix {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn place(id: ConnectionId) -> usize {
    (id.0 & u64::from(u32::MAX)) as usize
}

/// An error of the connection that was about to be accepted, not of the listener.
fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind::*;
    matches!(error.kind(), ConnectionAborted | ConnectionReset | ConnectionRefused | Interrupted)
}

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn source(&mut self) -> &mut dyn Source {
        match self {
            Stream::Tcp(stream) => stream,
            Stream::Unix(stream) => stream,
        }
    }

    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(into),
            Stream::Unix(stream) => stream.read(into),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }
}
