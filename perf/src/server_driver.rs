//! The load over connections to a server: one thread, one poll.

use std::io::Write;
use std::time::{Duration, Instant};

use mio::{Events, Poll, Token};
use seriatim_client::{Address, Answer, Session};
use seriatim_wire::{Hello, State};

use crate::connection::{Connection, Shared, server_error};
use crate::cpu;
use crate::error::{Error, Failed};
use crate::error_kind::UNANSWERED;
use crate::keys::{Keys, seed_of};
use crate::load::Load;
use crate::report::{Measured, Report, ServerInfo, Setting, Transport};
use crate::schedule::Schedule;
use crate::server_process;
use crate::socket::{Blocking, Socket};
use crate::tally::Tally;
use crate::watch::{MOMENT_EVERY, Moment, Phase};

/// How long a connection may take to be made, and a server to say hello.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the last transactions may take to end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Events taken from the poll at once.
const EVENTS: usize = 1024;

/// Makes a load on a server and measures it. `watch` is called about once a second.
///
/// Runs on the calling thread alone.
///
/// # Errors
/// If the load cannot be made, nobody listens, a connection breaks, or the server does not go on; with what was measured
/// until then.
pub fn drive_server(load: &Load, address: &Address, watch: &mut dyn FnMut(&Moment)) -> Result<Report, Failed> {
    load.check()?;
    let mut greeted = Vec::with_capacity(load.connections as usize);
    let mut server = None;
    for index in 0..load.connections {
        let socket = Blocking::connect(address, CONNECT_TIMEOUT)
            .map_err(|source| Error::Connect { address: address.clone(), source })?;
        let (socket, session, state) = greet(socket, server.is_none())?;
        if let Some(state) = state {
            server = Some((state, server_process::of(&socket)));
        }
        let keys = Keys::new(seed_of(load.seed, u64::from(index)), load.keys, load.writes);
        let socket = socket.into_polled().map_err(|source| Error::Io { what: "set a socket to be polled", source })?;
        greeted.push(Connection::new(socket, session, keys, load));
    }
    let (state, pid) = server.expect("the first connection asked");
    let server = ServerInfo { version: state.version, storage: state.storage, durable: state.durable };
    let transport = match address {
        Address::Tcp(_) => Transport::Tcp,
        Address::Unix(_) => Transport::Unix,
    };

    let mut run = Run::new(load, greeted, pid)?;
    let ended = run.until_quiet(watch);
    run.stop_measuring(Instant::now());
    run.tally.errors(UNANSWERED, run.tally.in_flight());
    let setting = Setting { transport, threads: 1, complete: ended.is_ok() };
    let report = Report::new(load, &run.tally, run.measured, server, setting);
    match ended {
        Ok(()) => Ok(report),
        Err(error) => Err(Failed { error, partial: Some(Box::new(report)) }),
    }
}

/// Says hello and waits for the answer, which brings the server's limits; if asked, also for its state.
fn greet(mut socket: Blocking, asks_state: bool) -> Result<(Blocking, Session, Option<State>), Error> {
    let io = |source| Error::Io { what: "say hello to the server", source };
    let mut session = Session::new(&Hello { label: "bench", ..Hello::new(0) });
    if asks_state {
        session.state();
    }
    let mut output = Vec::new();
    session.take_output(&mut output);
    socket.set_read_timeout(Some(CONNECT_TIMEOUT)).map_err(io)?;
    socket.write_all(&output).map_err(io)?;
    let mut state = None;
    while session.in_flight() > 0 {
        match session.next_answer()? {
            Some((_, Answer::State(answer))) => state = Some(answer),
            Some((_, Answer::Error(reply))) => return Err(server_error(&reply)),
            Some(_) => {}
            None => {
                if session.incoming().read_from(&mut socket).map_err(io)? == 0 {
                    return Err(Error::Closed);
                }
            }
        }
    }
    Ok((socket, session, state))
}

/// A run under way.
struct Run {
    poll: Poll,
    events: Events,
    connections: Vec<Connection>,
    schedule: Schedule,
    tally: Tally,
    started: Instant,
    server_pid: Option<u32>,
    /// When measuring began, and what the processors had done by then.
    mark: Option<(Instant, Measured)>,
    measured: Measured,
}

impl Run {
    fn new(load: &Load, mut connections: Vec<Connection>, server_pid: Option<u32>) -> Result<Run, Error> {
        let io = |source| Error::Io { what: "poll the connections", source };
        let poll = Poll::new().map_err(io)?;
        for (index, connection) in connections.iter_mut().enumerate() {
            let socket: &mut Socket = connection.socket();
            socket.register(poll.registry(), Token(index)).map_err(io)?;
        }
        let started = Instant::now();
        Ok(Run {
            poll,
            events: Events::with_capacity(EVENTS),
            connections,
            schedule: Schedule::new(load, started, load.count.unwrap_or(u64::MAX)),
            tally: Tally::new(),
            started,
            server_pid,
            mark: None,
            measured: Measured::default(),
        })
    }

    /// Runs until the schedule has ended and everything that was asked is answered.
    fn until_quiet(&mut self, watch: &mut dyn FnMut(&Moment)) -> Result<(), Error> {
        let mut now = self.started;
        let mut show_at = self.started + MOMENT_EVERY;
        let mut drain_until = None;
        loop {
            while self.schedule.advance(now, self.tally.in_flight()) {
                match self.schedule.phase() {
                    Phase::Measured => self.start_measuring(now),
                    _ => self.stop_measuring(now),
                }
            }
            if self.schedule.phase() == Phase::Draining {
                if self.connections.iter().all(Connection::is_quiet) {
                    return Ok(());
                }
                if now >= *drain_until.get_or_insert(now + DRAIN_TIMEOUT) {
                    return Err(Error::Stalled { in_flight: self.tally.in_flight(), after: DRAIN_TIMEOUT });
                }
            }
            if now >= show_at {
                watch(&self.moment(now));
                show_at = now + MOMENT_EVERY;
            }
            let resume = self.connections.iter().filter_map(Connection::paused_until).min();
            let wake =
                [self.schedule.phase_ends(), drain_until, resume].into_iter().flatten().fold(show_at, Instant::min);
            self.turn(now, wake.saturating_duration_since(now))?;
            now = Instant::now();
        }
    }

    /// One turn of every connection that has something to read, or a pause behind it.
    fn turn(&mut self, now: Instant, timeout: Duration) -> Result<(), Error> {
        match self.poll.poll(&mut self.events, Some(timeout)) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => return Ok(()),
            Err(source) => return Err(Error::Io { what: "poll the connections", source }),
        }
        let mut shared = Shared { schedule: &mut self.schedule, tally: &mut self.tally };
        for event in &self.events {
            self.connections[event.token().0].turn(&mut shared)?;
        }
        for connection in &mut self.connections {
            if connection.paused_until().is_some_and(|until| until <= now) {
                connection.turn(&mut shared)?;
            }
        }
        Ok(())
    }

    fn start_measuring(&mut self, now: Instant) {
        self.tally.is_measuring = true;
        self.mark = Some((now, self.processors()));
    }

    fn stop_measuring(&mut self, now: Instant) {
        self.tally.is_measuring = false;
        let Some((since, before)) = self.mark.take() else { return };
        let after = self.processors();
        let used = |after: Option<Duration>, before| Some(after?.saturating_sub(before?));
        self.measured = Measured {
            time: now - since,
            client_cpu: used(after.client_cpu, before.client_cpu),
            server_cpu: used(after.server_cpu, before.server_cpu),
        };
    }

    fn processors(&self) -> Measured {
        Measured {
            time: Duration::ZERO,
            client_cpu: cpu::of_this_thread(),
            server_cpu: self.server_pid.and_then(cpu::of_process),
        }
    }

    fn moment(&self, now: Instant) -> Moment {
        Moment {
            elapsed: now - self.started,
            phase: self.schedule.phase(),
            commits: self.tally.whole.commits,
            conflicts: self.tally.whole.conflicts,
            errors: self.tally.whole.errors_len(),
        }
    }
}
