//! The load against a real server and against an embedded sequencer: its sums add up, and it ends as it should.

use std::net::{SocketAddr, TcpListener};
use std::num::NonZero;
use std::thread::JoinHandle;
use std::time::Duration;

use seriatim_client::Address;
use seriatim_net::{Failure, Options, Server, ServerOptions, Stop, StorageKind};
use seriatim_perf::{EmbeddedTarget, Error, Kind, Load, Moment, Report, Transport, drive_embedded, drive_server};

/// Far longer than any of these runs: what ends them is their count, or a failure.
const LONG: Duration = Duration::from_secs(600);

fn counted(connections: u32, depth: u32, count: u64) -> Load {
    let seed = 7;
    println!("seed {seed}");
    Load { connections, depth, seed, warmup: Duration::ZERO, measured: LONG, count: Some(count), ..Load::default() }
}

/// Limits that tests can afford.
fn small() -> Options {
    let mut options = Options::default();
    options.limits.conflict_index_bytes = 1 << 20;
    options.limits.open_max = 1 << 12;
    options.limits.winners = 1 << 12;
    options.log.segment_bytes = 1 << 20;
    options.log.group_bytes_max = 256 << 10;
    options
}

/// A server on a thread of its own; stopped when it goes.
struct Running {
    address: SocketAddr,
    stop: Stop,
    thread: Option<JoinHandle<Result<(), Failure>>>,
}

impl Running {
    fn start(options: ServerOptions) -> Running {
        let server = Server::start(options).expect("starts");
        let (address, stop) = (server.address(), server.stop_handle());
        Running { address, stop, thread: Some(std::thread::spawn(move || server.run())) }
    }

    fn in_memory() -> Running {
        Running::start(ServerOptions { pipeline: small(), ..ServerOptions::new(StorageKind::Memory) })
    }

    fn address(&self) -> Address {
        Address::from(self.address)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.stop();
        let served = self.thread.take().expect("joined once").join();
        if !std::thread::panicking() {
            served.expect("no panic").expect("no failure");
        }
    }
}

fn silent(_: &Moment) {}

/// What holds for every run, broken off or not.
fn assert_adds_up(report: &Report) {
    let whole = report.whole;
    assert_eq!(whole.begun, whole.commits + whole.conflicts + whole.begins + whole.errors, "{report:?}");
    assert!(report.commits <= whole.commits && report.conflicts <= whole.conflicts, "{report:?}");
}

#[test]
fn a_counted_load_on_a_server_adds_up() {
    let server = Running::in_memory();
    let report = drive_server(&counted(3, 16, 5_000), &server.address(), &mut silent).expect("runs");
    assert_adds_up(&report);
    assert_eq!((report.whole.begun, report.whole.errors, report.complete), (5_000, 0, true));
    // Without a warm-up everything is measured.
    assert_eq!((report.commits, report.conflicts), (report.whole.commits, report.whole.conflicts));
    assert!(report.tx_per_s > 0.0 && report.measured_secs < LONG.as_secs_f64());
    let bytes = report.bytes_per_begin.expect("there were begins");
    assert!((0.5..=64.0).contains(&bytes), "{bytes} bytes a begin");
    for latency in [report.begin_us, report.commit_us].map(|latency| latency.expect("there were some")) {
        assert!(0.0 < latency.p50 && latency.p50 <= latency.p99 && latency.p99 <= latency.p999, "{latency:?}");
        assert!(latency.p999 <= latency.max, "{latency:?}");
    }
    assert_eq!((report.transport, report.threads, report.server.storage.is_empty()), (Transport::Tcp, 1, false));
}

#[test]
fn a_load_of_few_keys_conflicts_and_rolls_back() {
    let server = Running::in_memory();
    let load = Load { keys: 50, ..counted(4, 32, 4_000) };
    let report = drive_server(&load, &server.address(), &mut silent).expect("runs");
    assert_adds_up(&report);
    assert!(report.conflicts > 0 && report.commits > 0, "{report:?}");
    assert_eq!(report.whole.errors, 0, "{report:?}");
    // Nothing stays open behind it: another load finds room for more transactions than what would be left.
    let options = seriatim_client::ClientOptions::default();
    let state = seriatim_client::Client::connect(server.address, options).expect("connects").state().expect("answers");
    assert_eq!((state.open, state.invalid), (0, 0));
}

#[test]
fn begins_alone_leave_nothing_open() {
    let server = Running::in_memory();
    let load = Load { kind: Kind::Begin, ..counted(2, 32, 5_000) };
    let report = drive_server(&load, &server.address(), &mut silent).expect("runs");
    assert_adds_up(&report);
    assert_eq!((report.begins, report.commits, report.whole.errors), (5_000, 0, 0));
    let (sent, received) = (report.sent_bytes_per_tx.expect("sent"), report.received_bytes_per_tx.expect("received"));
    assert!((1.0..=100.0).contains(&sent) && (1.0..=100.0).contains(&received), "{sent} and {received} bytes");
    let options = seriatim_client::ClientOptions::default();
    let state = seriatim_client::Client::connect(server.address, options).expect("connects").state().expect("answers");
    assert_eq!((state.open, state.invalid), (0, 0));
    let failed = drive_embedded(&load, &EmbeddedTarget::Memory, &small(), NonZero::new(1).expect("one"), &mut silent);
    assert!(matches!(failed.expect_err("refused").error, Error::Load(_)));
}

#[test]
fn a_timed_load_measures_what_lies_behind_its_warm_up() {
    let server = Running::in_memory();
    let load = Load {
        connections: 2,
        depth: 8,
        warmup: Duration::from_millis(50),
        measured: Duration::from_millis(100),
        ..Load::default()
    };
    let report = drive_server(&load, &server.address(), &mut silent).expect("runs");
    assert_adds_up(&report);
    assert!(0 < report.commits && report.commits < report.whole.commits, "{report:?}");
    assert!(report.measured_secs >= 0.1, "{report:?}");
}

#[test]
fn a_unix_socket_takes_the_same_load() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("socket");
    let options =
        ServerOptions { pipeline: small(), unix: Some(path.clone()), ..ServerOptions::new(StorageKind::Memory) };
    let _server = Running::start(options);
    let report = drive_server(&counted(2, 4, 500), &Address::from(path), &mut silent).expect("runs");
    assert_adds_up(&report);
    assert_eq!((report.whole.begun, report.transport), (500, Transport::Unix));
}

#[test]
fn a_server_without_room_is_asked_again_after_a_pause() {
    let mut pipeline = small();
    pipeline.limits.open_max = 64;
    let server = Running::start(ServerOptions { pipeline, ..ServerOptions::new(StorageKind::Memory) });
    // Twice as many in flight as may be open: some begins are refused, and none is lost.
    let report = drive_server(&counted(8, 16, 2_000), &server.address(), &mut silent).expect("runs");
    assert_adds_up(&report);
    assert_eq!(report.whole.begun, 2_000);
    let kinds: Vec<&str> = report.errors.keys().map(String::as_str).collect();
    assert!(kinds.iter().all(|kind| *kind == "begin_overloaded_open"), "{report:?}");
    assert!(report.commits > 0, "{report:?}");
}

#[test]
fn a_closed_port_is_an_error_without_a_report() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    let failed = drive_server(&Load::default(), &Address::from(address), &mut silent).expect_err("nobody listens");
    assert!(matches!(failed.error, Error::Connect { .. }), "{failed:?}");
    assert!(failed.partial.is_none());
}

#[test]
fn a_server_that_stops_ends_the_run_with_what_was_measured() {
    let server = Running::in_memory();
    let load = Load { count: None, ..counted(4, 16, 1) };
    let mut stopped = false;
    // The first moment comes while transactions are in flight.
    let failed = drive_server(&load, &server.address(), &mut |moment| {
        if !std::mem::replace(&mut stopped, true) {
            assert!(moment.commits > 0);
            server.stop.stop();
        }
    });
    let failed = failed.expect_err("the server has stopped");
    assert!(matches!(failed.error, Error::Server { .. } | Error::Closed | Error::Io { .. }), "{failed:?}");
    let report = failed.partial.expect("it had started");
    assert_adds_up(&report);
    assert!(report.commits > 0 && !report.complete, "{report:?}");
}

#[test]
fn a_load_that_cannot_be_made_asks_nobody() {
    let load = Load { depth: 0, ..Load::default() };
    let failed = drive_server(&load, &Address::from("127.0.0.1:1"), &mut silent).expect_err("refused");
    assert!(matches!(failed.error, Error::Load(_)), "{failed:?}");
}

#[test]
fn an_embedded_load_adds_up_on_one_thread_and_on_two() {
    for threads in [1, 2] {
        let threads = NonZero::new(threads).expect("not zero");
        let load = Load { keys: 20_000, ..counted(3, 16, 5_001) };
        let report = drive_embedded(&load, &EmbeddedTarget::Memory, &small(), threads, &mut silent).expect("runs");
        assert_adds_up(&report);
        assert_eq!((report.whole.begun, report.whole.errors, report.complete), (5_001, 0, true));
        assert!(report.commits > 0 && report.tx_per_s > 0.0, "{report:?}");
        assert_eq!((report.transport, report.threads, report.durable), (Transport::Embedded, threads.get(), false));
        assert_eq!((report.bytes_per_begin, report.server_cpu_us_per_tx), (None, None));
    }
}

#[test]
fn an_embedded_load_on_disk_says_that_it_is_durable() {
    let directory = tempfile::tempdir().expect("a directory");
    let target = EmbeddedTarget::Disk(directory.path().join("data"));
    let one = NonZero::new(1).expect("not zero");
    let report = drive_embedded(&counted(2, 8, 200), &target, &small(), one, &mut silent).expect("runs");
    assert_adds_up(&report);
    assert_eq!((report.whole.begun, report.durable), (200, true));
}
