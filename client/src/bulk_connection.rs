//! Many requests under way from one thread, over a connection of its own.

use std::time::Instant;

use seriatim_wire::HelloReply;

use crate::address::{Address, READ_BYTES, Stream, is_timeout};
use crate::error::{Cause, Error};
use crate::link::open;
use crate::options::ClientOptions;
use crate::session::{Answer, Session};

/// A connection for bulk use: ask through [`session`](BulkConnection::session) as often as you like,
/// [`send`](BulkConnection::send) when it is time, and take answers as they come.
///
/// Nothing is done for you here: a lost connection is an error and ends this one, and every transaction that was
/// being committed is in doubt then ([`Client::settle`](crate::Client::settle) ends it). Keep the requests under way
/// within some thousands: a server that cannot send its answers stops reading.
///
/// ```no_run
/// # use seriatim_client::{Answer, ClientOptions, BulkConnection};
/// # use seriatim_core::{BeginOptions, ChangeSet};
/// # fn main() -> Result<(), seriatim_client::Error> {
/// let mut bulk = BulkConnection::connect("127.0.0.1:7600", &ClientOptions::default())?;
/// let place = bulk.session().begin(BeginOptions::default(), 64);
/// while let (request, answer) = bulk.next_answer()? {
///     let Answer::Begun(Ok(begun)) = answer else { break };
///     assert_eq!(request, place.request);
///     println!("64 transactions from {} on", begun.block.first);
///     break;
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct BulkConnection {
    session: Session,
    stream: Stream,
    hello: HelloReply,
    options: ClientOptions,
    output: Vec<u8>,
    input: Vec<u8>,
}

impl BulkConnection {
    /// Connects and says hello.
    ///
    /// # Errors
    /// [`Error::Connect`].
    pub fn connect(address: impl Into<Address>, options: &ClientOptions) -> Result<BulkConnection, Error> {
        let address = address.into();
        let (session, stream, hello) =
            open(&address, options, None).map_err(|cause| Error::Connect { address, cause })?;
        let input = vec![0; READ_BYTES];
        Ok(BulkConnection { session, stream, hello, options: options.clone(), output: Vec::new(), input })
    }

    /// What the server said first.
    pub fn hello(&self) -> HelloReply {
        self.hello
    }

    /// Where to ask.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// Sends what was asked.
    ///
    /// # Errors
    /// [`Error::Lost`].
    pub fn send(&mut self) -> Result<(), Error> {
        if self.session.has_output() {
            self.session.take_output(&mut self.output);
            self.stream.write_all(&self.output).map_err(|error| Error::Lost(error.into()))?;
        }
        Ok(())
    }

    /// Sends what was asked and waits for the next answer, whichever it is.
    ///
    /// # Errors
    /// [`Error::Lost`], and [`Error::TimedOut`] if nothing came within the options' time of a request.
    pub fn next_answer(&mut self) -> Result<(u64, Answer<'_>), Error> {
        self.send()?;
        self.wait()?;
        match self.session.next_answer() {
            Ok(Some(answer)) => Ok(answer),
            Ok(None) => Err(Error::Lost(Cause::Closed)),
            Err(error) => Err(Error::Lost(error.into())),
        }
    }

    /// The next answer if it has come already, without sending or waiting.
    ///
    /// # Errors
    /// [`Error::Lost`].
    pub fn take_answer(&mut self) -> Result<Option<(u64, Answer<'_>)>, Error> {
        self.session.next_answer().map_err(|error| Error::Lost(error.into()))
    }

    fn wait(&mut self) -> Result<(), Error> {
        let deadline = Instant::now() + self.options.request_timeout;
        while !self.session.has_answer() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::TimedOut { after: self.options.request_timeout, sent: true });
            }
            match self.stream.read(&mut self.input) {
                Ok(0) => return Err(Error::Lost(Cause::Closed)),
                Ok(count) => self.session.receive(&self.input[..count]),
                Err(error) if is_timeout(&error) || error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::Lost(error.into())),
            }
        }
        Ok(())
    }
}
