//! The server under test: started, killed and started again on the same directory and the same port.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::error::{CheckError, doing};
use super::{Planted, StorageKind};
use crate::check::children::Owned;

/// How long a start may take, recovery included.
const START_TIMEOUT: Duration = Duration::from_secs(20);
/// How often a start is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// Pause before a start that failed is tried again.
const PAUSE_BETWEEN_STARTS: Duration = Duration::from_millis(50);

/// Where the server keeps its data, and how it is run.
#[derive(Clone, Debug)]
pub struct ServerSetup {
    pub data: PathBuf,
    pub ports_file: PathBuf,
    pub log: PathBuf,
    pub storage: StorageKind,
    pub plant: Option<Planted>,
}

/// The server. Auditors may strike it; only the thread that made it starts it again.
#[derive(Debug)]
pub struct Server {
    setup: ServerSetup,
    process: Mutex<Option<Owned>>,
    address: String,
    /// An auditor that has just seen a fresh commit is asked to strike.
    strike_wanted: AtomicBool,
}

impl Server {
    /// Starts a server on a port of its own choice.
    pub fn start(setup: ServerSetup) -> Result<Server, CheckError> {
        let mut server = Server {
            setup,
            process: Mutex::default(),
            address: "127.0.0.1:0".into(),
            strike_wanted: AtomicBool::new(false),
        };
        server.address = server.try_start()?;
        Ok(server)
    }

    /// Address on which it listens, over all restarts.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Asks the next auditor that sees a fresh commit to strike.
    pub fn want_strike(&self) {
        self.strike_wanted.store(true, Ordering::SeqCst);
    }

    /// True while a strike is wanted.
    pub fn is_strike_wanted(&self) -> bool {
        self.strike_wanted.load(Ordering::SeqCst)
    }

    /// Kills the server with SIGKILL, if that is still wanted.
    pub fn strike(&self) {
        if self.strike_wanted.swap(false, Ordering::SeqCst)
            && let Some(process) = &mut *self.process.lock().unwrap_or_else(PoisonError::into_inner)
        {
            process.strike();
        }
    }

    /// True if the process has ended.
    pub fn is_down(&self) -> Result<bool, CheckError> {
        match &mut *self.process.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(process) => Ok(process.ended().map_err(doing("wait for the server"))?.is_some()),
            None => Ok(true),
        }
    }

    /// Starts the server again after it was killed.
    ///
    /// The port may be taken for a moment: a client that connects while nobody listens can, once in some thousand
    /// times, be given that very port and meet itself. It notices and lets go, so a start that fails is tried again.
    pub fn restart(&self) -> Result<(), CheckError> {
        let give_up = Instant::now() + START_TIMEOUT;
        loop {
            match self.try_start() {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() >= give_up => return Err(error),
                Err(_) => thread::sleep(PAUSE_BETWEEN_STARTS),
            }
        }
    }

    /// Ends the server for good.
    pub fn end(&self) {
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn try_start(&self) -> Result<String, CheckError> {
        let setup = &self.setup;
        let path = |path: &Path| path.to_string_lossy().into_owned();
        match fs::remove_file(&setup.ports_file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(doing("remove the old ports file")(error));
            }
            _ => {}
        }
        let mut arguments: Vec<String> =
            ["serve", "--data", &path(&setup.data), "--listen", &self.address].map(Into::into).into();
        arguments.extend(["--ports-file".into(), path(&setup.ports_file)]);
        arguments.extend(["--storage".into(), setup.storage.to_string()]);
        if let Some(plant) = setup.plant {
            arguments.extend(["--plant".into(), plant.to_string()]);
        }
        let (words, log) = (open_log(&setup.log)?, open_log(&setup.log)?);
        let started = Owned::start(arguments, |command| command.stdout(words).stderr(log));
        let mut process = started.map_err(doing("start the server"))?;

        let give_up = Instant::now() + START_TIMEOUT;
        let address = loop {
            if let Some(address) = self.read_ports_file()? {
                break address;
            }
            let ended = process.ended().map_err(doing("wait for the server"))?;
            if let Some(status) = ended {
                return Err(CheckError::ServerEnded { status, log: setup.log.clone() });
            }
            if Instant::now() >= give_up {
                return Err(CheckError::ServerSilent { log: setup.log.clone() });
            }
            thread::sleep(LOOK_EVERY);
        };
        *self.process.lock().unwrap_or_else(PoisonError::into_inner) = Some(process);
        Ok(address)
    }

    fn read_ports_file(&self) -> Result<Option<String>, CheckError> {
        match fs::read_to_string(&self.setup.ports_file) {
            Ok(text) => client_address(&text).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(doing("read the ports file")(error)),
        }
    }
}

/// The address for clients in a ports file.
fn client_address(text: &str) -> Result<String, CheckError> {
    let ports: serde_json::Value = serde_json::from_str(text).unwrap_or_default();
    let address = ports["client"].as_str().map(str::to_string);
    address.ok_or_else(|| CheckError::PortsFile(text.to_string()))
}

/// A file for what a child says on its standard error.
pub fn open_log(path: &Path) -> Result<File, CheckError> {
    OpenOptions::new().create(true).append(true).open(path).map_err(doing("open a child's log"))
}
