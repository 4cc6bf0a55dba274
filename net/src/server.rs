//! A server: a pipeline over sockets, with the storage it was told to use.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use seriatim_wal::{DiskOptions, DiskStorage, MemoryStorage, OpenError, Storage};

use crate::clock::SystemClock;
use crate::failure::{Failure, StartError};
use crate::pipeline::{Pipeline, ServerLimits};
use crate::plant::{AbortOnDisconnect, EarlyVisible, Honest, LostUpdate, Plant};
use crate::recovery::{Options, RecoveryReport};
use crate::sockets::{Sockets, Stop};

/// How long the sync of lossy storage takes: 2 ms, like a disk's.
const LOSSY_SYNC: Duration = Duration::from_millis(2);

/// How long a start waits for the address and the directory of a server that was just killed: the system gives them back
/// only when the last write of the dead process is over. 1 s.
const PREDECESSOR_GONE_AFTER: Duration = Duration::from_secs(1);
const PREDECESSOR_LOOK_EVERY: Duration = Duration::from_millis(20);

/// Where a server keeps its log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StorageKind {
    /// Files in this directory, synced before anything is acknowledged.
    Disk(PathBuf),
    /// Memory: nothing outlives the process. For development.
    Memory,
    /// Files in this directory, but unsynced bytes live in the process and die with it: a killed process loses what a
    /// power cut would take. For crash tests.
    Lossy(PathBuf),
}

/// Which bug is planted on purpose; see [`Plant`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Planted {
    /// None: the server that ships.
    #[default]
    Nothing,
    /// [`Plant::lost_update`].
    LostUpdate,
    /// [`Plant::early_visible`].
    EarlyVisible,
    /// [`Plant::abort_on_disconnect`].
    AbortOnDisconnect,
}

/// How to start a server.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where clients connect over TCP; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Listen beyond the loopback interface though nothing is encrypted and everybody is trusted.
    pub trust_network: bool,
    /// A Unix socket to listen on as well.
    pub unix: Option<PathBuf>,
    /// Where the log is kept.
    pub storage: StorageKind,
    /// The pipeline's settings.
    pub pipeline: Options,
    /// Bounds of the network's side.
    pub limits: ServerLimits,
    /// A bug planted on purpose.
    pub plant: Planted,
}

impl ServerOptions {
    /// A server on a free loopback port.
    pub fn new(storage: StorageKind) -> ServerOptions {
        ServerOptions {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            trust_network: false,
            unix: None,
            storage,
            pipeline: Options::default(),
            limits: ServerLimits::default(),
            plant: Planted::Nothing,
        }
    }
}

/// A server that has recovered and listens, and serves once it is run.
pub struct Server {
    address: SocketAddr,
    stop: Stop,
    report: RecoveryReport,
    write_path: String,
    durable: bool,
    serve: Box<dyn FnOnce() -> Result<(), Failure> + Send>,
}

impl Server {
    /// Listens, recovers, and makes this run's first group durable.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn start(options: ServerOptions) -> Result<Server, StartError> {
        if !options.listen.ip().is_loopback() && !options.trust_network {
            return Err(StartError::NotLoopback { address: options.listen });
        }
        let started = Instant::now();
        loop {
            match Server::try_start(options.clone()) {
                Err(error) if may_be_a_dying_server(&error) && started.elapsed() < PREDECESSOR_GONE_AFTER => {
                    std::thread::sleep(PREDECESSOR_LOOK_EVERY);
                }
                outcome => return outcome,
            }
        }
    }

    fn try_start(options: ServerOptions) -> Result<Server, StartError> {
        match options.storage.clone() {
            StorageKind::Disk(directory) => Server::over(DiskStorage::new(directory, DiskOptions::default()), options),
            StorageKind::Memory => Server::over(MemoryStorage::new(), options),
            StorageKind::Lossy(directory) => Server::over(DiskStorage::lossy(directory, LOSSY_SYNC), options),
        }
    }

    fn over<S: Storage + 'static>(storage: S, options: ServerOptions) -> Result<Server, StartError> {
        match options.plant {
            Planted::Nothing => Server::planted::<S, Honest>(storage, options),
            Planted::LostUpdate => Server::planted::<S, LostUpdate>(storage, options),
            Planted::EarlyVisible => Server::planted::<S, EarlyVisible>(storage, options),
            Planted::AbortOnDisconnect => Server::planted::<S, AbortOnDisconnect>(storage, options),
        }
    }

    fn planted<S: Storage + 'static, P: Plant>(storage: S, options: ServerOptions) -> Result<Server, StartError> {
        let listen = |source: io::Error| StartError::Listen { address: options.listen.to_string(), source };
        let (sockets, stop) = Sockets::listen(options.listen, options.unix.as_deref())?;
        let address = sockets.local_addr().map_err(listen)?;
        let (mut pipeline, report) = Pipeline::<_, _, S, P>::start(
            sockets,
            SystemClock::default(),
            storage,
            &options.pipeline,
            options.limits.clone(),
        )?;
        pipeline.watch_log().map_err(listen)?;
        let (write_path, durable) = (pipeline.write_path(), pipeline.is_durable());
        let asked = stop.clone();
        let serve = Box::new(move || {
            while !asked.is_asked() {
                pipeline.turn()?;
            }
            pipeline.stop()
        });
        Ok(Server { address, stop, report, write_path, durable, serve })
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What was found in the data directory.
    pub fn report(&self) -> &RecoveryReport {
        &self.report
    }

    /// Whether what is acknowledged outlives the process and a power cut.
    pub fn is_durable(&self) -> bool {
        self.durable
    }

    /// Which way the log is written.
    pub fn write_path(&self) -> &str {
        &self.write_path
    }

    /// What asks this server to stop, from any thread.
    pub fn stop_handle(&self) -> Stop {
        self.stop.clone()
    }

    /// Serves on this thread until it is asked to stop; what is decided by then is made durable and answered.
    ///
    /// # Errors
    /// If the log or the event loop failed. What was acknowledged stands; end the process.
    pub fn run(self) -> Result<(), Failure> {
        (self.serve)()
    }
}

/// A server that was killed a moment ago looks like one that runs.
fn may_be_a_dying_server(error: &StartError) -> bool {
    match error {
        StartError::Open(OpenError::Locked { .. }) => true,
        StartError::Listen { source, .. } => source.kind() == io::ErrorKind::AddrInUse,
        _ => false,
    }
}
