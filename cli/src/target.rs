//! Which server a command talks to.

use std::error::Error;
use std::io::ErrorKind;
use std::time::Duration;

use clap::Args;
use seriatim_client::{Cause, Client, ClientOptions};

/// The server to talk to.
#[derive(Args, Debug)]
pub struct TargetArgs {
    /// The server: HOST:PORT, or unix:PATH
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7600")]
    pub addr: String,
    /// Seconds to wait for an answer
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = seconds)]
    timeout_secs: f64,
}

impl TargetArgs {
    /// Connects.
    pub fn connect(&self) -> Result<Client, Box<dyn Error>> {
        let timeout = Duration::from_secs_f64(self.timeout_secs);
        let options = ClientOptions {
            connect_timeout: timeout,
            request_timeout: timeout,
            // Somebody waits at a terminal: say at once that nobody answers.
            attempts_max: 1,
            ..ClientOptions::default()
        };
        Client::connect(self.addr.as_str(), options).map_err(|error| match &error {
            seriatim_client::Error::Connect { cause: Cause::Io(io), .. }
                if io.kind() == ErrorKind::ConnectionRefused =>
            {
                format!("nobody listens at {}: start a server with `seriatim serve`", self.addr).into()
            }
            _ => error.into(),
        })
    }
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 86_400.0 => Ok(seconds),
        _ => Err("a number of seconds above 0 and up to 86400".to_owned()),
    }
}
