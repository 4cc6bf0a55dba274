//! Why a check could not be carried out, as opposed to: why it failed.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

use crate::check::bank::messages::NoMessage;

/// See the head of this file.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The operating system refused something.
    #[error("cannot {doing}")]
    Io { doing: &'static str, source: io::Error },
    /// The directory of the run holds something.
    #[error("the directory {0} is not empty: a check starts with an empty one")]
    DirectoryInUse(PathBuf),
    /// The server ended by itself.
    #[error("the server ended by itself ({status}); its last words are in {log}")]
    ServerEnded { status: ExitStatus, log: PathBuf },
    /// The server does not come up.
    #[error("the server did not say where it listens; its last words are in {log}")]
    ServerSilent { log: PathBuf },
    /// The server's ports file, which is written whole, makes no sense.
    #[error("the ports file names no address for clients: {0:?}")]
    PortsFile(String),
    /// The host of the store does not come up.
    #[error("the store's host did not start")]
    HostSilent,
    /// A client failed.
    #[error("client {number} failed: {why}")]
    Client { number: u32, why: String },
    /// A client said something else than it should.
    #[error("client {number} does not keep to the protocol")]
    ClientTalk { number: u32, source: NoMessage },
    /// A transaction or an audit of the run itself failed.
    #[error("cannot {doing}")]
    Database { doing: &'static str, source: seriatim_kv::Error },
    /// There is no way to the server.
    #[error("cannot reach the server")]
    Connect(#[source] seriatim_kv::BoxError),
    /// Nothing was proved.
    #[error("nothing happened: {0}")]
    Nothing(&'static str),
    /// Ctrl-C, or its like.
    #[error("interrupted")]
    Interrupted,
}

/// Adds what was being done to an error of the operating system.
pub fn doing(doing: &'static str) -> impl FnOnce(io::Error) -> CheckError {
    move |source| CheckError::Io { doing, source }
}

/// Adds what was being done to an error of the database.
pub fn running(doing: &'static str) -> impl FnOnce(seriatim_kv::Error) -> CheckError {
    move |source| CheckError::Database { doing, source }
}
