//! Bad input gets a clear, typed answer and hurts nobody else.
//!
//! Every case talks to a real server over TCP, beside a bystander with a transaction under way, and sees that the
//! bystander goes on as if nothing had happened.

mod common;

use std::io::Write;

use common::{Raw, Refused, Running, change_set, small};
use seriatim_core::{BeginError, BeginOptions, ChangeSet, CommitError, Status, WritePointer};
use seriatim_net::{Server, ServerOptions, StartError, StorageKind};
use seriatim_wal::OpenError;
use seriatim_wire::{BeginRequest, ErrorCode, FrameWriter, Hello, ImageRequest, MAGIC, Op, Reply, StoreId, request};

/// Runs a case on a connection of its own beside a bystander.
fn beside_a_bystander(connect: impl FnOnce(&Running) -> Raw, case: impl FnOnce(&mut Raw)) {
    let server = Running::in_memory();
    let mut bystander = server.connect();
    let (tx, _) = bystander.begin_as(&BeginOptions::default(), 1).unwrap();
    let mut raw = connect(&server);
    case(&mut raw);
    bystander.commit_changes(tx, &change_set(&["bystander"])).expect("the bystander is not hurt");
    drop(raw);
    server.stop().expect("nor is the server");
}

fn silent(server: &Running) -> Raw {
    Raw::silent(server.address)
}

fn header(len: u32, op: u8, id: u64) -> Vec<u8> {
    let mut header = len.to_le_bytes().to_vec();
    header.extend_from_slice(&[op, 0, 0, 0]);
    header.extend_from_slice(&id.to_le_bytes());
    header
}

fn refusal(raw: &mut Raw, bytes: &[u8]) -> Refused {
    raw.stream.write_all(bytes).unwrap();
    raw.receive(0, |reply| panic!("{reply:?}")).unwrap_err()
}

fn hello_refusal(raw: &mut Raw, hello: &Hello<'_>) -> Refused {
    raw.ask(|out, id| hello.encode(out, id), |reply| panic!("{reply:?}")).unwrap_err()
}

#[test]
fn a_frame_of_four_gib_is_refused_by_its_header() {
    beside_a_bystander(Running::connect, |raw| {
        let refused = refusal(raw, &header(u32::MAX, Op::Commit as u8, 9));
        assert_eq!((refused.code, refused.closes), (ErrorCode::FrameTooLarge, true));
        assert!(refused.message.contains("4294967295") && refused.message.contains("16777216"), "{}", refused.message);
        assert!(raw.is_closed());
    });
}

#[test]
fn a_version_that_is_not_spoken_is_refused_with_the_one_that_is() {
    beside_a_bystander(silent, |raw| {
        let refused = hello_refusal(raw, &Hello { version_min: 7, version_max: 9, ..Hello::new(1) });
        assert_eq!((refused.code, refused.closes), (ErrorCode::BadVersion, true));
        assert_eq!((refused.asked, refused.limit), (9, 1));
        assert!(refused.message.contains("version 1") && refused.message.contains("7 to 9"), "{}", refused.message);
        assert!(raw.is_closed());
    });
}

#[test]
fn garbage_before_the_hello_is_refused_and_closed() {
    for garbage in [
        &b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"[..],
        &[0xff; 64],
        &[0; 64],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03abcdef",
    ] {
        beside_a_bystander(silent, |raw| {
            let refused = refusal(raw, garbage);
            assert!(refused.closes, "{refused:?}");
            let codes = [ErrorCode::NotHello, ErrorCode::FrameTooLarge, ErrorCode::Malformed];
            assert!(codes.contains(&refused.code), "{refused:?}");
            assert!(raw.is_closed());
        });
    }
}

#[test]
fn a_request_before_the_hello_is_refused_and_closed() {
    beside_a_bystander(silent, |raw| {
        let refused = raw.ask(request::state, |reply| panic!("{reply:?}")).unwrap_err();
        assert_eq!((refused.code, refused.closes), (ErrorCode::NotHello, true));
        assert_eq!(refused.asked, Op::State as u64);
        assert!(raw.is_closed());
    });
}

#[test]
fn a_hello_with_another_magic_number_or_a_second_hello_is_refused() {
    beside_a_bystander(silent, |raw| {
        let mut bytes = Vec::new();
        Hello::new(1).encode(&mut bytes, 1);
        bytes[16..20].copy_from_slice(&(MAGIC ^ 1).to_le_bytes());
        let refused = refusal(raw, &bytes);
        assert_eq!((refused.code, refused.closes), (ErrorCode::NotHello, true));
    });
    beside_a_bystander(Running::connect, |raw| {
        let refused = hello_refusal(raw, &Hello::new(1));
        assert_eq!((refused.code, refused.closes), (ErrorCode::NotHello, true));
    });
}

#[test]
fn a_client_of_another_store_is_refused() {
    beside_a_bystander(silent, |raw| {
        let refused = hello_refusal(raw, &Hello { store: Some(StoreId(42)), ..Hello::new(1) });
        assert_eq!((refused.code, refused.closes), (ErrorCode::WrongStore, true));
    });
}

#[test]
fn a_truncated_frame_does_nothing_however_long_one_waits_for_the_rest() {
    beside_a_bystander(Running::connect, |raw| {
        let (tx, _) = raw.begin_as(&BeginOptions::default(), 1).unwrap();
        let mut frame = Vec::new();
        request::commit(&mut frame, 99, [(tx, &change_set(&["a", "b"]))]);
        raw.stream.write_all(&frame[..frame.len() - 1]).unwrap();
        raw.stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(raw.is_closed(), "the end of a half frame is the end");
    });
}

#[test]
fn a_body_cut_short_or_too_long_is_refused_and_nothing_of_it_done() {
    beside_a_bystander(Running::connect, |raw| {
        let (tx, _) = raw.begin_as(&BeginOptions::default(), 1).unwrap();
        let mut frame = Vec::new();
        request::commit(&mut frame, 99, [(tx, &change_set(&["a"])), (tx, &change_set(&["b"]))]);
        let body = frame.len() - 16;
        frame.truncate(frame.len() - 3);
        frame[..4].copy_from_slice(&(body as u32 - 3).to_le_bytes());
        let refused = refusal(raw, &frame);
        assert_eq!((refused.code, refused.closes), (ErrorCode::Malformed, true));
        assert!(raw.is_closed());
    });
}

#[test]
fn an_unknown_op_is_refused_and_the_connection_goes_on() {
    beside_a_bystander(Running::connect, |raw| {
        let refused = refusal(raw, &header(0, 0x55, 77));
        assert_eq!((refused.code, refused.closes), (ErrorCode::UnknownOp, false));
        assert!(refused.message.contains("0x55"), "{}", refused.message);
        raw.begin_as(&BeginOptions::default(), 1).expect("goes on");
    });
}

#[test]
fn an_unknown_transaction_is_not_in_progress() {
    beside_a_bystander(Running::connect, |raw| {
        for tx in [WritePointer(0), WritePointer(1), WritePointer::MAX, WritePointer(u64::MAX)] {
            let ended = Status::Forgotten;
            let outcome = raw.commit_changes(tx, &change_set(&["k"]));
            assert_eq!(outcome, Err(CommitError::NotInProgress { tx, ended }));
            assert_eq!(raw.statuses(Op::Abort, tx), Status::Forgotten);
        }
    });
}

#[test]
fn a_change_set_over_the_limit_is_refused_and_the_transaction_stays_open() {
    let mut pipeline = small();
    pipeline.limits.change_ids_max = 50;
    pipeline.limits.change_ids_warn = 40;
    let server = Running::start(ServerOptions { pipeline, ..ServerOptions::new(StorageKind::Memory) });
    let mut raw = server.connect();
    let (tx, _) = raw.begin_as(&BeginOptions::default(), 1).unwrap();
    let keys: Vec<String> = (0..51).map(|key| key.to_string()).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let too_many: ChangeSet = change_set(&keys);
    assert_eq!(raw.commit_changes(tx, &too_many), Err(CommitError::ChangeSetTooLarge { len: 51, max: 50 }));
    assert_eq!(raw.statuses(Op::Status, tx), Status::Open);
    raw.commit_changes(tx, &change_set(&keys[..50])).expect("fifty are allowed");
}

#[test]
fn timeouts_out_of_range_are_refused() {
    beside_a_bystander(Running::connect, |raw| {
        let ask = |timeout_ms| BeginOptions { timeout_ms: Some(timeout_ms), ..BeginOptions::default() };
        assert_eq!(raw.begin_as(&ask(0), 1).unwrap_err(), BeginError::TimeoutNotPositive);
        let max_ms = 24 * 3_600_000;
        // A negative number of a careless client arrives as an enormous one.
        for asked_ms in [max_ms + 1, -1i64 as u64] {
            assert_eq!(raw.begin_as(&ask(asked_ms), 1).unwrap_err(), BeginError::TimeoutTooLong { asked_ms, max_ms });
        }
    });
}

#[test]
fn blocks_out_of_range_are_refused() {
    beside_a_bystander(Running::connect, |raw| {
        for count in [0, (1 << 20) + 1, u32::MAX] {
            let refused = raw.begin_as(&BeginOptions::default(), count).unwrap_err();
            assert_eq!(refused, BeginError::BlockSize { asked: u64::from(count), max: 1 << 20 });
        }
        let id = raw.send(|out, id| request::timestamps(out, id, u64::MAX));
        let refused = raw.receive(id, |reply| match reply {
            Reply::Timestamps(Err(error)) => error,
            other => panic!("{other:?}"),
        });
        assert_eq!(refused.unwrap(), BeginError::BlockSize { asked: u64::MAX, max: 1 << 20 });
    });
}

#[test]
fn one_connection_too_many_is_told_so() {
    let mut options = ServerOptions { pipeline: small(), ..ServerOptions::new(StorageKind::Memory) };
    options.limits.connections_max = 2;
    let server = Running::start(options);
    let (mut first, _second) = (server.connect(), server.connect());
    let mut third = Raw::silent(server.address);
    let refused = third.receive(0, |reply| panic!("{reply:?}")).unwrap_err();
    assert_eq!((refused.code, refused.closes), (ErrorCode::TooManyConnections, true));
    assert_eq!((refused.asked, refused.limit), (2, 2));
    first.begin_as(&BeginOptions::default(), 1).expect("who is in stays in");
}

#[test]
fn a_client_that_does_not_read_delays_nobody_and_loses_nothing() {
    let server = Running::in_memory();
    let (mut deaf, mut bystander) = (server.connect(), server.connect());
    // 64 MiB of replies to a reader that does not read: its requests are left unread once 4 MiB wait for it.
    let ping = vec![7u8; 1 << 20];
    deaf.stream.set_nonblocking(true).unwrap();
    let mut frame = Vec::new();
    request::ping(&mut frame, 1, &ping);
    let (mut sent, mut blocked) = (0, 0);
    while sent < 64 * frame.len() && blocked < 1_000 {
        match deaf.stream.write(&frame[sent % frame.len()..]) {
            Ok(count) => sent += count,
            Err(_) => {
                blocked += 1;
                let (tx, _) = bystander.begin_as(&BeginOptions::default(), 1).unwrap();
                bystander.commit_changes(tx, &change_set(&["k"])).unwrap();
            }
        }
    }
    assert!(blocked > 0, "the server took in {sent} bytes from a client that reads nothing");
    deaf.stream.set_nonblocking(false).unwrap();
    let whole = sent / frame.len();
    for _ in 0..whole {
        let echoed = deaf.receive(1, |reply| match reply {
            Reply::Ping(bytes) => bytes.len(),
            other => panic!("{other:?}"),
        });
        assert_eq!(echoed, Ok(1 << 20));
    }
}

#[test]
fn many_begins_and_commits_share_frames_and_are_answered_in_order() {
    let server = Running::in_memory();
    let mut raw = server.connect();
    let (first, _) = raw.begin_as(&BeginOptions::default(), 64).unwrap();
    let sets: Vec<(WritePointer, ChangeSet)> =
        (0..64).map(|n| (WritePointer(first.0 + n), change_set(&[&(n / 2).to_string()]))).collect();
    let id = raw.send(|out, id| request::commit(out, id, sets.iter().map(|(tx, set)| (*tx, set))));
    let outcomes = raw.receive(id, |reply| match reply {
        Reply::Commit(outcomes) => outcomes.collect::<Vec<_>>(),
        other => panic!("{other:?}"),
    });
    for (n, outcome) in outcomes.unwrap().into_iter().enumerate() {
        match n % 2 {
            0 => assert_eq!(outcome.unwrap().0, n as u64 / 2 + 1),
            _ => assert!(matches!(outcome, Err(CommitError::Conflict { .. })), "{n}: {outcome:?}"),
        }
    }
}

#[test]
fn a_reset_that_names_another_store_is_refused_and_one_that_names_this_one_forgets_all() {
    let server = Running::in_memory();
    let mut raw = server.connect();
    let (open, _) = raw.begin_as(&BeginOptions::default(), 1).unwrap();
    let refused = raw.ask(|out, id| request::reset(out, id, StoreId(1)), |reply| panic!("{reply:?}")).unwrap_err();
    assert_eq!((refused.code, refused.closes), (ErrorCode::WrongStore, false));
    assert_eq!(raw.statuses(Op::Status, open), Status::Open);
    let floor = raw.reset();
    assert!(floor > open);
    let outcome = raw.commit_changes(open, &change_set(&["k"]));
    assert_eq!(outcome, Err(CommitError::NotInProgress { tx: open, ended: Status::Forgotten }));
    let state = raw.state();
    assert_eq!((state.open, state.invalid, state.excluded), (0, 0, 0));
    let (next, _) = raw.begin_as(&BeginOptions::default(), 1).unwrap();
    assert!(next >= floor, "ids never go back");
    raw.commit_changes(next, &change_set(&["k"])).unwrap();
}

fn start_on(directory: &std::path::Path) -> Result<Server, StartError> {
    Server::start(ServerOptions { pipeline: small(), ..ServerOptions::new(StorageKind::Disk(directory.to_owned())) })
}

fn refused_start(directory: &std::path::Path) -> OpenError {
    match start_on(directory).map(|server| server.address()) {
        Err(StartError::Open(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_directory_that_is_not_ours_is_refused_and_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("holiday.jpg"), b"beach").unwrap();
    let error = refused_start(directory.path());
    assert!(matches!(error, OpenError::Foreign { .. }), "{error}");
    assert!(error.to_string().contains("holiday.jpg"), "{error}");
    let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.contains(&"holiday.jpg".into()), "{left:?}");
}

#[test]
fn a_directory_of_a_newer_version_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let server = start_on(directory.path()).unwrap();
    server.stop_handle().stop();
    server.run().unwrap();
    let identity = directory.path().join("identity");
    let mut bytes = std::fs::read(&identity).unwrap();
    // The version follows the eight bytes of magic; a checksum over all before it ends the file.
    bytes[8..10].copy_from_slice(&999u16.to_le_bytes());
    let end = bytes.len() - 4;
    let checksum = crc32c::crc32c(&bytes[..end]);
    bytes[end..].copy_from_slice(&checksum.to_le_bytes());
    std::fs::write(&identity, bytes).unwrap();
    let error = refused_start(directory.path());
    assert!(matches!(error, OpenError::Newer { found: 999, .. }), "{error}");
}

#[test]
fn a_second_server_on_the_same_directory_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let first = start_on(directory.path()).unwrap();
    let error = refused_start(directory.path());
    assert!(matches!(error, OpenError::Locked { .. }), "{error}");
    drop(first);
}

#[test]
fn an_address_beyond_loopback_is_refused_unless_the_network_is_trusted() {
    let mut options = ServerOptions { pipeline: small(), ..ServerOptions::new(StorageKind::Memory) };
    options.listen = "0.0.0.0:0".parse().unwrap();
    match Server::start(options).map(|server| server.address()) {
        Err(StartError::NotLoopback { .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_unsupported_frame_flag_is_malformed() {
    beside_a_bystander(Running::connect, |raw| {
        let mut frame = Vec::new();
        FrameWriter::request(&mut frame, Op::Ping, 1).finish();
        frame[5] = 0x80;
        let refused = refusal(raw, &frame);
        assert_eq!(refused.code, ErrorCode::Malformed);
    });
}

#[test]
fn a_begin_that_names_a_snapshot_nobody_has_gets_a_whole_one() {
    beside_a_bystander(Running::connect, |raw| {
        let base = Some(seriatim_core::SnapshotId { boot: 1, number: 99 });
        let asked = BeginRequest { options: BeginOptions::default(), count: 1, base, label: None };
        let whole = raw.ask(
            |out, id| request::begin(out, id, &asked),
            |reply| match reply {
                Reply::Begin(Ok((_, snapshot))) => snapshot.is_whole(),
                other => panic!("{other:?}"),
            },
        );
        assert_eq!(whole, Ok(true));
    });
}

#[test]
fn one_fence_too_many_is_refused_and_a_disconnect_gives_up_its_fences() {
    beside_a_bystander(Running::connect, |raw| {
        // The bystander's transaction is open, so all of them wait.
        let waiting: Vec<u64> = (0..64).map(|_| raw.send(|out, id| request::fence(out, id, 60_000))).collect();
        let refused = raw.ask(|out, id| request::fence(out, id, 60_000), |reply| panic!("{reply:?}")).unwrap_err();
        assert_eq!((refused.code, refused.closes), (ErrorCode::Overloaded, false), "{refused:?}");
        assert_eq!(waiting.len(), 64);
        let mut again = Raw::connect(raw.stream.peer_addr().unwrap());
        raw.stream.shutdown(std::net::Shutdown::Both).unwrap();
        let asks_again =
            |again: &mut Raw| again.ask(|out, id| request::fence(out, id, 0), |reply| format!("{reply:?}"));
        while asks_again(&mut again).is_err() {
            std::thread::yield_now();
        }
    });
}

#[test]
fn one_image_reader_too_many_is_refused_and_the_others_go_on() {
    let page = |raw: &mut Raw, number, offset| {
        raw.ask(
            |out, id| request::image(out, id, ImageRequest { number, offset }),
            |reply| match reply {
                Reply::Image(page) => (page.number, page.total, page.bytes.len() as u64),
                other => panic!("{other:?}"),
            },
        )
    };
    let server = Running::in_memory();
    let mut filler = server.connect();
    // More than one page, so that readers are in the middle of it: an outcome takes a byte or two.
    for _ in 0..300 {
        let (first, _) = filler.begin_as(&BeginOptions::default(), 4_000).unwrap();
        let txs = (0..4_000).map(|index| WritePointer(first.0 + index));
        filler.ask(|out, id| request::pointers(out, Op::Invalidate, id, txs), |_| ()).unwrap();
    }
    let mut readers: Vec<Raw> = (0..4).map(|_| server.connect()).collect();
    let begun: Vec<(u64, u64, u64)> = readers.iter_mut().map(|raw| page(raw, 0, 0).unwrap()).collect();
    assert!(begun.iter().all(|(_, total, bytes)| bytes < total), "{begun:?}");
    let refused = page(&mut server.connect(), 0, 0).unwrap_err();
    assert_eq!((refused.code, refused.closes), (ErrorCode::Overloaded, false), "{refused:?}");
    for (raw, (number, total, first)) in readers.iter_mut().zip(begun) {
        let mut offset = first;
        while offset < total {
            let (same, _, bytes) = page(raw, number, offset).unwrap();
            assert_eq!(same, number);
            offset += bytes;
        }
        // An offset past the end of an image that is not kept any more begins another one.
        assert_ne!(page(raw, number, u64::MAX).unwrap().0, number);
    }
}

#[test]
fn labels_and_names_of_stores_that_are_no_text_are_malformed() {
    beside_a_bystander(Running::connect, |raw| {
        let mut bytes = Vec::new();
        let label = "a label";
        let asked = BeginRequest { options: BeginOptions::default(), count: 1, base: None, label: Some(label) };
        request::begin(&mut bytes, 9, &asked);
        let at = bytes.windows(label.len()).position(|window| window == label.as_bytes()).unwrap();
        bytes[at] = 0xff;
        raw.stream.write_all(&bytes).unwrap();
        let refused = raw.receive(9, |reply| panic!("{reply:?}")).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Malformed);
    });
}
