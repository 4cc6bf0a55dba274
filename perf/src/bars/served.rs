//! The bars over a loopback, with a log on a disk: P4, P5, P6.
//!
//! The server has a thread of its own, as it has a process of its own elsewhere, and the load generator is the one behind
//! `seriatim bench`. The echo carries as many bytes each way, in as many round trips, at the same depth.

use std::thread::JoinHandle;
use std::time::Duration;

use seriatim_client::Address;
use seriatim_net::{Failure, Server, ServerOptions, Stop, StorageKind};
use tempfile::TempDir;

use super::{Pair, Sizes};
use crate::error::Error;
use crate::load::{Kind, Load};
use crate::report::Report;
use crate::server_driver::drive_server;
use crate::yardstick::echo::{EchoLoad, EchoServer, echo};
use crate::yardstick::sync_write::{BLOCK_BYTES, SyncFile, SyncPath};

/// Time before a run of the product is measured.
const WARM_UP: Duration = Duration::from_millis(200);
/// Bytes of the file that is written and synced again and again.
const SYNC_FILE_BYTES: u64 = 16 << 20;

/// A durable server on a free port, in a temporary directory.
struct Served {
    address: Address,
    stop: Stop,
    thread: Option<JoinHandle<Result<(), Failure>>>,
    directory: TempDir,
}

impl Served {
    fn start() -> Result<Served, Error> {
        let directory = scratch()?;
        let mut options = ServerOptions::new(StorageKind::Disk(directory.path().join("data")));
        options.listen = ([127, 0, 0, 1], 0).into();
        let server = Server::start(options)?;
        let (address, stop) = (Address::from(server.address()), server.stop_handle());
        let thread = std::thread::spawn(move || server.run());
        Ok(Served { address, stop, thread: Some(thread), directory })
    }

    fn drive(&self, load: &Load) -> Result<Report, Error> {
        drive_server(load, &self.address, &mut |_| {}).map_err(|failed| failed.error)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A directory on the disk of the working directory: one for temporary files may be in memory.
pub(super) fn scratch() -> Result<TempDir, Error> {
    let made = tempfile::Builder::new().prefix("seriatim-bars-").tempdir_in(".");
    made.map_err(|source| Error::Io { what: "make a directory for the log", source })
}

fn io(source: std::io::Error) -> Error {
    Error::Io { what: "run a yardstick", source }
}

/// P4 and P5: as many operations a second as an echo of their bytes.
struct AgainstEcho {
    served: Served,
    echo: EchoServer,
    load: Load,
    same: EchoLoad,
}

impl AgainstEcho {
    fn prepare(load: Load, round_trips: usize) -> Result<Box<dyn Pair>, Error> {
        let (served, echo) = (Served::start()?, EchoServer::start().map_err(io)?);
        // The bytes are those of a run at full speed: how many share a frame decides how many they are.
        let report = served.drive(&load)?;
        let each = |bytes: Option<f64>| bytes.unwrap_or_default() / round_trips as f64;
        let step = (each(report.sent_bytes_per_tx), each(report.received_bytes_per_tx));
        let (connections, time) = (load.connections as usize, load.measured);
        let same = EchoLoad { connections, depth: load.depth, steps: vec![step; round_trips], time };
        Ok(Box::new(AgainstEcho { served, echo, load, same }))
    }
}

impl Pair for AgainstEcho {
    fn yardstick(&mut self) -> Result<f64, Error> {
        let echoed = echo(self.echo.address(), &self.same).map_err(io)?;
        Ok(echoed.operations as f64 / echoed.elapsed.as_secs_f64())
    }

    fn product(&mut self) -> Result<f64, Error> {
        self.load.seed += 1;
        Ok(self.served.drive(&self.load)?.tx_per_s)
    }

    fn note(&self) -> Option<String> {
        let (sent, received) = self.same.steps[0];
        Some(format!("{sent:.1} bytes to the server and {received:.1} back, {} round trips", self.same.steps.len()))
    }
}

fn begins(sizes: &Sizes, depth: u32) -> Result<Box<dyn Pair>, Error> {
    let load = Load { kind: Kind::Begin, connections: 1, depth, warmup: WARM_UP, measured: sizes.side, ..load(sizes) };
    AgainstEcho::prepare(load, 1)
}

fn load(sizes: &Sizes) -> Load {
    Load { warmup: WARM_UP, measured: sizes.side, seed: sizes.seed, ..Load::default() }
}

/// P4 at depth 1.
pub(super) fn begins_1(sizes: &Sizes) -> Result<Box<dyn Pair>, Error> {
    begins(sizes, 1)
}

/// P4 at depth 16.
pub(super) fn begins_16(sizes: &Sizes) -> Result<Box<dyn Pair>, Error> {
    begins(sizes, 16)
}

/// P4 at depth 128.
pub(super) fn begins_128(sizes: &Sizes) -> Result<Box<dyn Pair>, Error> {
    begins(sizes, 128)
}

/// P5.
pub(super) fn transactions(sizes: &Sizes) -> Result<Box<dyn Pair>, Error> {
    AgainstEcho::prepare(load(sizes), 2)
}

/// P6: one commit at a time against one synced write and one round trip.
struct OneCommit {
    served: Served,
    echo: EchoServer,
    file: SyncFile,
    load: Load,
    same: EchoLoad,
    note: Option<String>,
}

/// P6.
pub(super) fn one_commit(sizes: &Sizes) -> Result<Box<dyn Pair>, Error> {
    let (served, echo) = (Served::start()?, EchoServer::start().map_err(io)?);
    let path = served.directory.path().join("yardstick");
    let file = SyncFile::create(&path, SYNC_FILE_BYTES, SyncPath::Direct).map_err(io)?;
    let load = Load { connections: 1, depth: 1, ..load(sizes) };
    let report = served.drive(&load)?;
    let each = |bytes: Option<f64>| bytes.unwrap_or_default() / 2.0;
    let step = (each(report.sent_bytes_per_tx), each(report.received_bytes_per_tx));
    let same = EchoLoad { connections: 1, depth: 1, steps: vec![step], time: sizes.side / 2 };
    Ok(Box::new(OneCommit { served, echo, file, load, same, note: None }))
}

impl Pair for OneCommit {
    fn rounds(&self, asked: u32) -> u32 {
        asked.max(9)
    }

    fn yardstick(&mut self) -> Result<f64, Error> {
        let us = |ns: u64| ns as f64 / 1e3;
        let writes = (self.same.time.as_micros() / 150).max(100) as u64;
        let synced = us(self.file.write(BLOCK_BYTES, writes).map_err(io)?.latency_ns.value_at_quantile(0.5));
        let echoed = us(echo(self.echo.address(), &self.same).map_err(io)?.latency_ns.value_at_quantile(0.5));
        self.note =
            Some(format!("in the last round {synced:.0} us of the yardstick were the write, {echoed:.0} the echo"));
        Ok(synced + echoed)
    }

    fn product(&mut self) -> Result<f64, Error> {
        self.load.seed += 1;
        let report = self.served.drive(&self.load)?;
        report.commit_us.map(|latency| latency.p50).ok_or_else(|| Error::Refused("no commit".to_owned()))
    }

    fn note(&self) -> Option<String> {
        self.note.clone()
    }
}
