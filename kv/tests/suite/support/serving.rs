//! The sequencers that ship, each started for one test: embedded in this process, and a server on a port of its own.

use std::net::SocketAddr;
use std::thread::{self, JoinHandle};

use seriatim_client::{Client, ClientOptions};
use seriatim_net::{Embedded, Options, Server, ServerOptions, Stop, StorageKind};

/// Settings that take less memory.
pub fn small() -> Options {
    let mut options = Options::default();
    options.limits.conflict_index_bytes = 1 << 20;
    options
}

pub fn embedded() -> Embedded {
    Embedded::in_memory(&small()).unwrap()
}

/// A server that remembers nothing, until it is dropped.
pub struct Serving {
    address: SocketAddr,
    stop: Stop,
    running: Option<JoinHandle<()>>,
}

impl Serving {
    pub fn start() -> Serving {
        Serving::with(small())
    }

    pub fn with(pipeline: Options) -> Serving {
        let mut options = ServerOptions::new(StorageKind::Memory);
        options.pipeline = pipeline;
        let server = Server::start(options).unwrap();
        let (address, stop) = (server.address(), server.stop_handle());
        let running = thread::spawn(move || server.run().unwrap());
        Serving { address, stop, running: Some(running) }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn client(&self) -> Client {
        Client::connect(self.address.to_string().as_str(), ClientOptions::default()).unwrap()
    }

    /// Stops it and waits until it has.
    pub fn stop(&mut self) {
        self.stop.stop();
        if let Some(running) = self.running.take() {
            running.join().unwrap();
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop();
    }
}
