//! Which process of this machine is at the other end of a socket.
//!
//! Asked once, so that a report can say what a transaction costs the server. The answer is a guess of good will: another
//! machine, another user's process and another namespace are all `None`.

use std::fs;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;

use crate::socket::Blocking;

/// The process that serves this connection, if it is another one than this and can be told.
pub(crate) fn of(socket: &Blocking) -> Option<u32> {
    let pid = match socket {
        Blocking::Tcp(stream) => of_tcp(stream),
        Blocking::Unix(stream) => of_unix(stream),
    };
    pid.filter(|pid| *pid != std::process::id())
}

fn of_tcp(stream: &TcpStream) -> Option<u32> {
    let (ours, theirs) = (stream.local_addr().ok()?, stream.peer_addr().ok()?);
    let table = fs::read_to_string(if theirs.is_ipv4() { "/proc/net/tcp" } else { "/proc/net/tcp6" }).ok()?;
    let inode = inode_in(&table, theirs, ours)?;
    process_with(inode)
}

fn of_unix(stream: &UnixStream) -> Option<u32> {
    let address = stream.peer_addr().ok()?;
    let table = fs::read_to_string("/proc/net/unix").ok()?;
    process_with(bound_in(&table, address.as_pathname()?.to_str()?)?)
}

/// The inode of a socket that is bound to this path: the one that listens, or one that it accepted.
fn bound_in(table: &str, path: &str) -> Option<u64> {
    table.lines().find_map(|line| {
        // An address, references, protocol, flags, type, state, inode; then the path, which may hold anything.
        let rest = line.strip_suffix(path)?.strip_suffix(' ')?;
        // A connection that was not accepted yet has none.
        rest.split_ascii_whitespace().nth(6)?.parse().ok().filter(|inode| *inode != 0)
    })
}

/// The inode of the socket with these ends in a table of `/proc/net`.
fn inode_in(table: &str, local: SocketAddr, remote: SocketAddr) -> Option<u64> {
    let (local, remote) = (in_hex(local), in_hex(remote));
    table.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let ends = (fields.next()?, fields.next()?);
        // Behind the ends: state, queues, timer, retransmits, user, timeout, and then the inode.
        (ends == (local.as_str(), remote.as_str())).then(|| fields.nth(6)?.parse().ok())?
    })
}

/// An address as the tables write it: words in the machine's byte order.
fn in_hex(address: SocketAddr) -> String {
    let word = |bytes: &[u8; 4]| format!("{:08X}", u32::from_ne_bytes(*bytes));
    let ip: String = match address.ip() {
        IpAddr::V4(ip) => word(&ip.octets()),
        IpAddr::V6(ip) => ip.octets().as_chunks::<4>().0.iter().map(word).collect(),
    };
    format!("{ip}:{:04X}", address.port())
}

/// The first process that has this socket open.
fn process_with(inode: u64) -> Option<u32> {
    let wanted = format!("socket:[{inode}]");
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.find(|pid| {
        let Ok(files) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
        files.flatten().any(|file| fs::read_link(file.path()).is_ok_and(|target| target.as_os_str() == wanted.as_str()))
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn the_other_end_of_a_connection_is_found() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let _theirs = listener.accept().unwrap();
        assert_eq!(of_tcp(&ours), Some(std::process::id()));
        // This process itself is no server to report about.
        assert_eq!(of(&Blocking::Tcp(ours)), None);
    }
    #[test]
    fn the_other_end_of_a_unix_socket_is_found_by_its_path() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a socket");
        let _listener = UnixListener::bind(&path).unwrap();
        let ours = UnixStream::connect(&path).unwrap();
        assert_eq!(of_unix(&ours), Some(std::process::id()));
    }
}
