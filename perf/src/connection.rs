//! One connection of a closed loop: so many transactions in flight, a new one for each that has ended.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use seriatim_client::{Answer, Session};
use seriatim_core::{BeginOptions, CommitError, WritePointer};
use seriatim_wire::{ErrorReply, FLAG_MORE, FrameBuffer, Op};

use crate::error::Error;
use crate::error_kind;
use crate::keys::Keys;
use crate::load::{Kind, Load};
use crate::schedule::Schedule;
use crate::socket::Socket;
use crate::tally::Tally;

/// How long a connection keeps quiet that was told to repeat after a pause.
const PAUSE: Duration = Duration::from_millis(1);

/// What transactions of the load ask for. No store hears of their writes, so losing this process is no reason to keep
/// anything of them excluded.
pub(crate) const BEGIN: BeginOptions =
    BeginOptions { kind: seriatim_core::Kind::Short, timeout_ms: None, deferred: true, detached: false };

/// Begins that were asked for in one frame.
#[derive(Debug)]
struct BeginFrame {
    request: u64,
    count: u32,
    sent_at: Instant,
}

/// Commits that were asked for in one frame.
#[derive(Debug)]
struct CommitFrame {
    request: u64,
    transactions: Vec<WritePointer>,
    sent_at: Instant,
}

/// What the connections of one thread share.
pub(crate) struct Shared<'s> {
    pub schedule: &'s mut Schedule,
    pub tally: &'s mut Tally,
}

/// One connection; see the head of this file.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: Socket,
    session: Session,
    keys: Keys,
    /// What was taken from the session and how much of it was sent.
    output: Vec<u8>,
    sent: usize,
    begins: VecDeque<BeginFrame>,
    commits: VecDeque<CommitFrame>,
    /// Transactions that may begin to fill the depth.
    vacant: u32,
    kind: Kind,
    /// Transactions that have begun and are to be committed.
    begun: Vec<WritePointer>,
    /// Transactions to be aborted.
    refused: Vec<WritePointer>,
    /// Memory of answered commit frames.
    spare: Vec<Vec<WritePointer>>,
    paused_until: Option<Instant>,
}

impl Connection {
    /// A connection that has said hello.
    pub fn new(socket: Socket, session: Session, keys: Keys, load: &Load) -> Connection {
        Connection {
            socket,
            session,
            keys,
            output: Vec::new(),
            sent: 0,
            begins: VecDeque::new(),
            commits: VecDeque::new(),
            vacant: load.depth,
            kind: load.kind,
            begun: Vec::new(),
            refused: Vec::new(),
            spare: Vec::new(),
            paused_until: None,
        }
    }

    pub fn socket(&mut self) -> &mut Socket {
        &mut self.socket
    }

    /// When the connection has something to say without having heard anything.
    pub fn paused_until(&self) -> Option<Instant> {
        self.paused_until
    }

    /// True if everything that was asked has been answered.
    pub fn is_quiet(&self) -> bool {
        self.session.in_flight() == 0 && self.begun.is_empty() && self.sent == self.output.len()
    }

    /// Everything that has arrived is answered with everything that there is to ask, in one write.
    pub fn turn(&mut self, shared: &mut Shared<'_>) -> Result<(), Error> {
        self.read(shared.tally)?;
        let now = Instant::now();
        while let Some(()) = self.take_answer(now, shared)? {}
        self.ask(now, shared);
        self.write(shared.tally)
    }

    /// Reads until the socket is empty.
    fn read(&mut self, tally: &mut Tally) -> Result<(), Error> {
        let read = |source| Error::Io { what: "read from the server", source };
        loop {
            let room = self.session.incoming().room();
            let wanted = room.len();
            match io::Read::read(&mut self.socket, room) {
                Ok(0) => return self.last_words(),
                Ok(count) => {
                    self.session.incoming().filled(count);
                    tally.received(count as u64);
                    // A short read has emptied the socket: the next arrival makes an event.
                    if count < wanted {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(read(error)),
            }
        }
    }

    /// The server has closed. If it said why, that stands among its last answers.
    fn last_words(&mut self) -> Result<(), Error> {
        while let Some((_, answer)) = self.session.next_answer()? {
            if let Answer::Error(reply) = answer
                && reply.closes
            {
                return Err(server_error(&reply));
            }
        }
        Err(Error::Closed)
    }

    fn take_answer(&mut self, now: Instant, shared: &mut Shared<'_>) -> Result<Option<()>, Error> {
        let tally = &mut *shared.tally;
        tally.begin_bytes(begin_bytes(self.session.incoming()));
        let Some((request, answer)) = self.session.next_answer()? else { return Ok(None) };
        match answer {
            Answer::Begun(answer) => {
                let BeginFrame { count, sent_at, .. } = remove(&mut self.begins, |frame| frame.request == request)
                    .expect("only what was asked is answered");
                match answer {
                    Ok(begun) => {
                        tally.begins_answered(count, now - sent_at);
                        match self.kind {
                            Kind::Tx => self.begun.extend(begun.block.iter()),
                            Kind::Begin => {
                                self.refused.extend(begun.block.iter());
                                self.vacant += count;
                                tally.begins(count);
                            }
                        }
                    }
                    Err(error) => {
                        tally.errors(error_kind::of_begin(&error), u64::from(count));
                        self.vacant += count;
                        self.paused_until = Some(now + PAUSE);
                    }
                }
            }
            Answer::Committed(outcomes) => {
                let CommitFrame { mut transactions, sent_at, .. } =
                    remove(&mut self.commits, |frame| frame.request == request)
                        .expect("only what was asked is answered");
                let (mut commits, mut conflicts) = (0, 0);
                for (tx, outcome) in transactions.iter().zip(outcomes) {
                    let Err(error) = outcome else {
                        commits += 1;
                        continue;
                    };
                    match error_kind::of_commit(&error) {
                        None => conflicts += 1,
                        Some(kind) => tally.errors(kind, 1),
                    }
                    match error {
                        CommitError::NotInProgress { .. } => {}
                        CommitError::Overloaded(_) => {
                            self.refused.push(*tx);
                            self.paused_until = Some(now + PAUSE);
                        }
                        _ => self.refused.push(*tx),
                    }
                }
                tally.commits(commits, now - sent_at);
                tally.conflicts(conflicts);
                self.vacant += transactions.len() as u32;
                transactions.clear();
                self.spare.push(transactions);
            }
            Answer::Error(reply) if reply.closes => return Err(server_error(&reply)),
            Answer::Error(reply) => {
                let kind = error_kind::of_reply(reply.code);
                self.take_refusal(request, kind, now, tally);
            }
            // Aborts are not waited for, and nothing else was asked.
            _ => {}
        }
        Ok(Some(()))
    }

    /// A whole frame was not done.
    fn take_refusal(&mut self, request: u64, kind: &'static str, now: Instant, tally: &mut Tally) {
        self.paused_until = Some(now + PAUSE);
        if let Some(frame) = remove(&mut self.begins, |frame| frame.request == request) {
            tally.errors(kind, u64::from(frame.count));
            self.vacant += frame.count;
        } else if let Some(mut frame) = remove(&mut self.commits, |frame| frame.request == request) {
            tally.errors(kind, frame.transactions.len() as u64);
            self.vacant += frame.transactions.len() as u32;
            self.refused.append(&mut frame.transactions);
            self.spare.push(frame.transactions);
        }
    }

    /// Asks for everything that there is to ask, unless there is a pause to keep.
    fn ask(&mut self, now: Instant, shared: &mut Shared<'_>) {
        if self.paused_until.is_some_and(|until| now < until) {
            return;
        }
        self.paused_until = None;
        for tx in self.refused.drain(..) {
            self.session.abort(tx);
        }
        self.ask_commits(now, shared.tally);
        let mut left = shared.schedule.take(self.vacant);
        self.vacant -= left;
        shared.tally.begun += u64::from(left);
        while left > 0 {
            let count = left.min(self.session.limits().block.max(1));
            left -= count;
            let request = self.session.begin(BEGIN, count).request;
            self.begins.push_back(BeginFrame { request, count, sent_at: now });
        }
    }

    fn ask_commits(&mut self, now: Instant, tally: &mut Tally) {
        let mut open: Option<CommitFrame> = None;
        for tx in self.begun.drain(..) {
            match self.session.commit(tx, self.keys.next()) {
                Ok(ticket) => {
                    // What does not fit one frame goes on in the next.
                    if let Some(full) = open.take_if(|frame| frame.request != ticket.request) {
                        self.commits.push_back(full);
                    }
                    let frame = open.get_or_insert_with(|| CommitFrame {
                        request: ticket.request,
                        transactions: self.spare.pop().unwrap_or_default(),
                        sent_at: now,
                    });
                    frame.transactions.push(tx);
                }
                // The session knows the server's limits and need not ask.
                Err(error) => {
                    tally.errors(error_kind::of_commit(&error).unwrap_or("refused"), 1);
                    self.session.abort(tx);
                    self.vacant += 1;
                }
            }
        }
        self.commits.extend(open);
    }

    /// Writes once; what the socket does not take waits until it can be written again.
    fn write(&mut self, tally: &mut Tally) -> Result<(), Error> {
        if self.sent == self.output.len() {
            self.sent = 0;
            self.session.take_output(&mut self.output);
        }
        while self.sent < self.output.len() {
            match self.socket.write(&self.output[self.sent..]) {
                Ok(0) => return Err(Error::Closed),
                Ok(count) => {
                    self.sent += count;
                    tally.sent(count as u64);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(Error::Io { what: "write to the server", source }),
            }
        }
        Ok(())
    }
}

fn remove<T>(frames: &mut VecDeque<T>, is_it: impl Fn(&T) -> bool) -> Option<T> {
    // Nearly always the first: replies of a kind come in order.
    let place = frames.iter().position(is_it)?;
    frames.remove(place)
}

pub(crate) fn server_error(reply: &ErrorReply<'_>) -> Error {
    Error::Server { code: reply.code, message: reply.message.to_owned() }
}

/// Bytes of the bodies of the next answer's frames, if it answers a begin.
fn begin_bytes(incoming: &FrameBuffer) -> u64 {
    let (mut frames, mut bytes) = (incoming.frames(), 0);
    while let Ok(Some(frame)) = frames.next() {
        if frame.op == Op::Begin as u8 | Op::REPLY {
            bytes += frame.body.len() as u64;
        }
        if frame.flags & FLAG_MORE == 0 {
            break;
        }
    }
    bytes
}
