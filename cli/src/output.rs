//! How commands speak: tables for people, JSON for programs, errors with their causes.

use std::error::Error;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::ValueEnum;
use serde::Serialize;

/// What a command comes to: an exit code, or an error that is printed with its causes.
pub type Outcome = Result<ExitCode, Box<dyn Error>>;

/// How results are printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON value on one line.
    Json,
}

/// The option that every command with a result has.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct OutputArgs {
    /// How to print the result
    #[arg(short = 'o', long = "output", value_enum, default_value_t)]
    pub format: Format,
}

impl OutputArgs {
    /// Prints a result: as JSON, or as `text` writes it.
    pub fn print<T: Serialize>(
        self,
        value: &T,
        text: impl FnOnce(&T, &mut dyn Write) -> io::Result<()>,
    ) -> Result<(), Box<dyn Error>> {
        let mut out = io::stdout().lock();
        let written = match self.format {
            Format::Json => {
                serde_json::to_writer(&mut out, value).map_err(io::Error::from).and_then(|()| writeln!(out))
            }
            Format::Text => text(value, &mut out),
        };
        match written.and_then(|()| out.flush()) {
            // Whoever read has seen enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            written => Ok(written?),
        }
    }
}

/// Prints an error and its causes as one line on stderr.
pub fn print_error(error: &dyn Error) {
    let mut line = format!("seriatim: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        // Transparent errors repeat what stands already.
        if !line.ends_with(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
        cause = error.source();
    }
    eprintln!("{line}");
}
