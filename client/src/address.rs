//! Where a server listens, and the socket to it.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Bytes read at once.
pub(crate) const READ_BYTES: usize = 64 << 10;

/// Where a server listens.
///
/// As text: `host:port`, or `unix:` and a path. A host is looked up at every connect.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub enum Address {
    /// `host:port`.
    Tcp(String),
    /// Path of a Unix socket.
    Unix(PathBuf),
}

impl From<&str> for Address {
    fn from(text: &str) -> Address {
        match text.strip_prefix("unix:") {
            Some(path) => Address::Unix(path.into()),
            None => Address::Tcp(text.to_owned()),
        }
    }
}

impl From<String> for Address {
    fn from(text: String) -> Address {
        Address::from(text.as_str())
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        Address::Tcp(address.to_string())
    }
}

impl From<PathBuf> for Address {
    fn from(path: PathBuf) -> Address {
        Address::Unix(path)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// A connected socket. One thread may read while another writes.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    pub fn connect(address: &Address, timeout: Duration) -> io::Result<Stream> {
        match address {
            Address::Tcp(address) => connect_tcp(address, timeout).map(Stream::Tcp),
            // A Unix socket connects or is refused at once.
            Address::Unix(path) => UnixStream::connect(path).map(Stream::Unix),
        }
    }

    pub fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => (&*stream).read(into),
            Stream::Unix(stream) => (&*stream).read(into),
        }
    }

    pub fn write_all(&self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => (&*stream).write_all(bytes),
            Stream::Unix(stream) => (&*stream).write_all(bytes),
        }
    }

    /// A read that takes longer fails with `WouldBlock` or `TimedOut`.
    pub fn set_read_timeout(&self, timeout: Duration) -> io::Result<()> {
        let timeout = Some(timeout.max(Duration::from_millis(1)));
        match self {
            Stream::Tcp(stream) => stream.set_read_timeout(timeout),
            Stream::Unix(stream) => stream.set_read_timeout(timeout),
        }
    }

    /// As [`Stream::set_read_timeout`], for writes.
    pub fn set_write_timeout(&self, timeout: Duration) -> io::Result<()> {
        let timeout = Some(timeout.max(Duration::from_millis(1)));
        match self {
            Stream::Tcp(stream) => stream.set_write_timeout(timeout),
            Stream::Unix(stream) => stream.set_write_timeout(timeout),
        }
    }

    /// Ends the connection for whoever reads or writes at this moment.
    pub fn shutdown(&self) {
        // It may have ended already, which is as good.
        let _ = match self {
            Stream::Tcp(stream) => stream.shutdown(Shutdown::Both),
            Stream::Unix(stream) => stream.shutdown(Shutdown::Both),
        };
    }
}

/// True if a read or write gave up because its time was over.
pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Tries every address that the host has, within one timeout.
fn connect_tcp(address: &str, timeout: Duration) -> io::Result<TcpStream> {
    let deadline = Instant::now() + timeout;
    let mut last = None;
    for address in address.to_socket_addrs()? {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        match TcpStream::connect_timeout(&address, left) {
            Ok(stream) if is_connected_to_itself(&stream) => last = Some(undo_self_connection(stream)),
            Ok(stream) => {
                // Frames are gathered before they are written; holding one back would only cost time.
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the host has no address")))
}

fn is_connected_to_itself(stream: &TcpStream) -> bool {
    matches!((stream.local_addr(), stream.peer_addr()), (Ok(here), Ok(there)) if here == there)
}

/// Where nobody listens on a port that the system also hands out to clients, a connect may by chance be given the very
/// port that it connects to, and then TCP connects the socket to itself. Kept, or closed in the ordinary way, it would
/// keep the server from listening there again. Closed with a byte unread it is reset and leaves nothing behind.
fn undo_self_connection(stream: TcpStream) -> io::Error {
    let _ = (&stream).write_all(&[0]);
    let _ = stream.peek(&mut [0]);
    io::Error::from(io::ErrorKind::ConnectionRefused)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_is_connected_to_itself_is_no_server_and_leaves_its_port_free() {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        let address = socket.local_addr().unwrap();
        socket.connect(&address).unwrap();
        let stream = TcpStream::from(socket);
        assert!(is_connected_to_itself(&stream));
        assert_eq!(undo_self_connection(stream).kind(), io::ErrorKind::ConnectionRefused);
        let listener = std::net::TcpListener::bind(address.as_socket().unwrap()).unwrap();
        assert!(!is_connected_to_itself(&TcpStream::connect(listener.local_addr().unwrap()).unwrap()));
    }

    #[test]
    fn an_address_is_what_its_text_says() {
        assert_eq!(Address::from("db:7600"), Address::Tcp("db:7600".into()));
        assert_eq!(Address::from("unix:/run/s.sock"), Address::Unix("/run/s.sock".into()));
        for text in ["[::1]:7600", "unix:/run/s.sock"] {
            assert_eq!(Address::from(text).to_string(), text);
        }
    }
}
