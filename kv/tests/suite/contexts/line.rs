//! A line between client and server that a test can cut: a proxy for TCP.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

/// What becomes of what comes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Fault {
    #[default]
    None,
    /// The next request is lost, and its connection with it.
    LoseRequest,
    /// The next reply is lost, and its connection with it: the server has done what it was asked.
    LoseReply,
    /// As `LoseReply`, and nobody gets through until it is mended.
    LoseReplyForGood,
    /// Nobody gets through.
    Cut,
}

/// Handles on one line. It goes with its last connection.
#[derive(Clone)]
pub struct Line {
    address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    fault: Mutex<Fault>,
    connections: AtomicUsize,
    requests: AtomicUsize,
}

impl Line {
    pub fn to(server: SocketAddr) -> Line {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let line = Line { address: listener.local_addr().unwrap(), shared: Arc::default() };
        let shared = Arc::clone(&line.shared);
        thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                if *shared.fault.lock().unwrap() == Fault::Cut {
                    continue;
                }
                shared.connections.fetch_add(1, Ordering::SeqCst);
                let Ok(server) = TcpStream::connect(server) else { continue };
                let ends = [client, server];
                let other_way = [ends[1].try_clone().unwrap(), ends[0].try_clone().unwrap()];
                for (way, [from, to]) in [(Way::Requests, ends), (Way::Replies, other_way)] {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || shared.carry(way, from, to));
                }
            }
        });
        line
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn fault(&self, fault: Fault) {
        *self.shared.fault.lock().unwrap() = fault;
    }

    pub fn mend(&self) {
        self.fault(Fault::None);
    }

    /// Connections that were made so far.
    pub fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }

    /// Times that something came from a client so far. A lone caller's request comes at once.
    pub fn requests(&self) -> usize {
        self.shared.requests.load(Ordering::SeqCst)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Requests,
    Replies,
}

impl Shared {
    fn carry(&self, way: Way, mut from: TcpStream, mut to: TcpStream) {
        let mut bytes = [0; 1 << 16];
        loop {
            let len = from.read(&mut bytes).unwrap_or(0);
            if len > 0 && way == Way::Requests {
                self.requests.fetch_add(1, Ordering::SeqCst);
            }
            if len == 0 || self.is_lost(way) || to.write_all(&bytes[..len]).is_err() {
                // Both ends hear of it; one that is gone already does not mind.
                let _ = from.shutdown(Shutdown::Both);
                let _ = to.shutdown(Shutdown::Both);
                return;
            }
        }
    }

    /// True if what has just come is to be lost. Each fault happens once, but for a cut.
    fn is_lost(&self, way: Way) -> bool {
        let mut fault = self.fault.lock().unwrap();
        let next = match (*fault, way) {
            (Fault::LoseRequest, Way::Requests) | (Fault::LoseReply, Way::Replies) => Fault::None,
            (Fault::LoseReplyForGood, Way::Replies) | (Fault::Cut, _) => Fault::Cut,
            _ => return false,
        };
        *fault = next;
        true
    }
}
