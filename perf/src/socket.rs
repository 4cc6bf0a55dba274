//! A connected socket, over TCP or in the file system: blocking while it is made, polled afterwards.

use std::io::{self, Read, Write};
use std::net::{self, ToSocketAddrs};
use std::os::unix;
use std::time::{Duration, Instant};

use mio::event::Source;
use mio::{Interest, Registry, Token};
use seriatim_client::Address;

/// A socket that blocks.
#[derive(Debug)]
pub(crate) enum Blocking {
    Tcp(net::TcpStream),
    Unix(unix::net::UnixStream),
}

impl Blocking {
    /// Connects; over TCP every address of the host is tried, within one timeout.
    pub fn connect(address: &Address, timeout: Duration) -> io::Result<Blocking> {
        match address {
            Address::Tcp(address) => connect_tcp(address, timeout).map(Blocking::Tcp),
            // A Unix socket connects or is refused at once.
            Address::Unix(path) => unix::net::UnixStream::connect(path).map(Blocking::Unix),
        }
    }

    /// A read that takes longer fails.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        match self {
            Blocking::Tcp(stream) => stream.set_read_timeout(timeout),
            Blocking::Unix(stream) => stream.set_read_timeout(timeout),
        }
    }

    pub fn into_polled(self) -> io::Result<Socket> {
        match self {
            Blocking::Tcp(stream) => {
                stream.set_nonblocking(true)?;
                Ok(Socket::Tcp(mio::net::TcpStream::from_std(stream)))
            }
            Blocking::Unix(stream) => {
                stream.set_nonblocking(true)?;
                Ok(Socket::Unix(mio::net::UnixStream::from_std(stream)))
            }
        }
    }
}

fn connect_tcp(address: &str, timeout: Duration) -> io::Result<net::TcpStream> {
    let deadline = Instant::now() + timeout;
    let mut last = None;
    for address in address.to_socket_addrs()? {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
        match net::TcpStream::connect_timeout(&address, left) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the host has no address")))
}

impl Read for Blocking {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Blocking::Tcp(stream) => stream.read(into),
            Blocking::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for Blocking {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Blocking::Tcp(stream) => stream.write(bytes),
            Blocking::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A socket that is polled.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(mio::net::TcpStream),
    Unix(mio::net::UnixStream),
}

impl Read for Socket {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.read(into),
            Socket::Unix(stream) => stream.read(into),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.write(bytes),
            Socket::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Socket {
    /// Has the poll tell, once for each change, when this can be read or written.
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let source: &mut dyn Source = match self {
            Socket::Tcp(stream) => stream,
            Socket::Unix(stream) => stream,
        };
        source.register(registry, token, Interest::READABLE | Interest::WRITABLE)
    }
}
