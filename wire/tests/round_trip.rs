//! What is written reads back the same, and the examples of `PROTOCOL.md` are what is written.

mod common;

use common::{change_set, frame, listed, outcomes, pointer, snapshot, state, statuses};
use seriatim_core::*;
use seriatim_wire::*;

fn read(bytes: &[u8]) -> Request<'_> {
    Request::decode(&frame(bytes)).unwrap()
}

fn answer(bytes: &[u8]) -> Reply<'_> {
    Reply::decode(&frame(bytes)).unwrap()
}

fn written(build: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    build(&mut out);
    out
}

#[test]
fn hello_and_its_reply_read_back_and_skip_what_a_later_version_adds() {
    let hello = Hello { store: Some(StoreId(1 << 127)), label: "bank", credentials: b"c", ..Hello::new(u64::MAX) };
    let mut bytes = written(|out| hello.encode(out, 1));
    let longer = (bytes.len() as u32 - HEADER_BYTES as u32 + 3).to_le_bytes();
    bytes.extend_from_slice(b"new");
    bytes[..4].copy_from_slice(&longer);
    assert!(matches!(read(&bytes), Request::Hello(read) if read == hello));

    let reply = HelloReply {
        version: 1,
        store: StoreId(3),
        boot: 4,
        server_time_ms: 5,
        limits: HelloLimits { body_bytes: 6, change_ids: 7, block: 8, snapshot_age_ms: 9, grace_ms: 10 },
    };
    let mut bytes = written(|out| reply.encode(out, 1));
    let longer = (bytes.len() as u32 - HEADER_BYTES as u32 + 3).to_le_bytes();
    bytes.extend_from_slice(b"new");
    bytes[..4].copy_from_slice(&longer);
    assert!(matches!(answer(&bytes), Reply::Hello(read) if read == reply));
}

#[test]
fn a_hello_of_another_version_is_read_as_far_as_needed_to_refuse_it() {
    let mut bytes = written(|out| Hello { version_min: 2, version_max: 9, ..Hello::new(5) }.encode(out, 1));
    bytes[HEADER_BYTES + 16] = 0xff; // flags, which may mean anything there
    let Request::Hello(hello) = read(&bytes) else { panic!("not a hello") };
    assert_eq!((hello.session, hello.choose_version()), (5, None));
    assert_eq!(Hello { version_min: 0, version_max: 9, ..hello }.choose_version(), Some(1));
    bytes[HEADER_BYTES] ^= 1;
    let error = Request::decode(&frame(&bytes)).unwrap_err();
    assert_eq!((error, error.code()), (DecodeError::BadMagic(MAGIC ^ 1), ErrorCode::NotHello));
}

#[test]
fn every_combination_of_begin_options_reads_back() {
    for bits in 0..64u32 {
        let has = |bit: u32| bits & (1 << bit) != 0;
        let options = BeginOptions {
            kind: if has(0) { Kind::Long } else { Kind::Short },
            timeout_ms: has(1).then_some(u64::MAX),
            deferred: has(2),
            detached: has(3),
        };
        let request = BeginRequest {
            options,
            count: u32::MAX,
            base: has(4).then_some(SnapshotId { boot: 1, number: u64::MAX }),
            label: has(5).then_some("nightly"),
        };
        let bytes = written(|out| request::begin(out, 1, &request));
        assert!(matches!(read(&bytes), Request::Begin(read) if read == request), "{request:?}");
    }
}

#[test]
fn requests_that_name_transactions_read_back() {
    let mut random = common::Random::new(7);
    let sets: Vec<(WritePointer, ChangeSet)> = (0..50).map(|n| (pointer(n), change_set(&mut random))).collect();
    let bytes = written(|out| request::commit(out, 1, sets.iter().map(|(tx, set)| (*tx, set))));
    let Request::Commit(items) = read(&bytes) else { panic!("not a commit") };
    assert_eq!(items.len(), 50);
    assert!(items.map(|item| (item.tx, item.change_set())).eq(sets));

    let pointers: Vec<WritePointer> = (0..5).map(pointer).collect();
    for op in [Op::Abort, Op::Invalidate, Op::Status, Op::Settle] {
        let bytes = written(|out| request::pointers(out, op, 1, pointers.iter().copied()));
        let (read_op, read) = match read(&bytes) {
            Request::Abort(read) => (Op::Abort, read),
            Request::Invalidate(read) => (Op::Invalidate, read),
            Request::Status(read) => (Op::Status, read),
            Request::Settle(read) => (Op::Settle, read),
            other => panic!("{other:?}"),
        };
        assert_eq!((read_op, read.len()), (op, 5));
        assert!(read.iter().eq(pointers.iter().copied()));
    }
}

#[test]
fn the_other_requests_read_back() {
    let base = Some(SnapshotId { boot: 8, number: 9 });
    assert!(
        matches!(read(&written(|out| request::snapshot(out, 1, base))), Request::Snapshot { base: b } if b == base)
    );
    assert!(matches!(read(&written(|out| request::snapshot(out, 1, None))), Request::Snapshot { base: None }));
    assert!(matches!(read(&written(|out| request::timestamps(out, 1, 500))), Request::Timestamps { count: 500 }));
    assert!(matches!(read(&written(|out| request::state(out, 1))), Request::State));
    let list = ListRequest { kind: ListKind::Invalid, after: pointer(3), max: 7 };
    assert!(matches!(read(&written(|out| request::list(out, 1, &list))), Request::List(read) if read == list));
    let store = StoreId(u128::MAX - 5);
    assert!(
        matches!(read(&written(|out| request::reset(out, 1, store))), Request::Reset { store: read } if read == store)
    );
    assert!(matches!(read(&written(|out| request::ping(out, 1, b"abc"))), Request::Ping(b"abc")));
}

#[test]
fn replies_read_back() {
    let block = Block { first: pointer(9), count: 3 };
    let bytes = written(|out| reply::begin(out, 1, block, &snapshot(4), None));
    let Reply::Begin(Ok((read, encoded))) = answer(&bytes) else { panic!("not a begin") };
    assert_eq!((read, encoded.is_whole(), encoded.is_unchanged()), (block, true, false));
    assert_eq!(read.iter().collect::<Vec<_>>(), [9, 10, 11].map(pointer));
    let mut encoded_before = Vec::new();
    encode_snapshot(&mut encoded_before, &snapshot(4), None);
    assert_eq!(bytes, written(|out| reply::begin_encoded(out, 1, block, &encoded_before)));
    assert_eq!(
        written(|out| reply::snapshot(out, 1, &snapshot(4), None)),
        written(|out| reply::snapshot_encoded(out, 1, &encoded_before))
    );

    let refused = BeginError::Overloaded(Full::Window);
    let bytes = written(|out| reply::begin_refused(out, 1, &refused));
    assert!(matches!(answer(&bytes), Reply::Begin(Err(read)) if read == refused));
    for result in [Ok(block), Err(BeginError::TimeoutNotPositive)] {
        let bytes = written(|out| reply::timestamps(out, 1, &result));
        assert!(matches!(answer(&bytes), Reply::Timestamps(read) if read == result));
    }
    let bytes = written(|out| reply::commit(out, 1, outcomes()));
    assert!(matches!(answer(&bytes), Reply::Commit(read) if read.clone().eq(outcomes())));
    let bytes = written(|out| reply::statuses(out, Op::Settle, 1, statuses()));
    assert!(matches!(answer(&bytes), Reply::Settle(read) if read.clone().eq(statuses())));
    let bytes = written(|out| reply::bools(out, Op::Invalidate, 1, [true, false]));
    assert!(matches!(answer(&bytes), Reply::Invalidate(read) if read.iter().eq([true, false])));
    let bytes = written(|out| reply::state(out, 1, &state()));
    assert!(matches!(answer(&bytes), Reply::State(read) if read == state()));
    let bytes = written(|out| reply::list(out, 1, true, &listed()));
    assert!(matches!(answer(&bytes), Reply::List(read) if read.more && read.clone().eq(listed())));
    let bytes = written(|out| reply::reset(out, 1, pointer(5)));
    assert!(matches!(answer(&bytes), Reply::Reset { floor } if floor == pointer(5)));
    let error = ErrorReply { asked: 5, limit: 4, ..ErrorReply::new(ErrorCode::Other(900), "ü") };
    let bytes = written(|out| reply::error(out, 0, &error));
    assert!(matches!(answer(&bytes), Reply::Error(read) if read == error));
}

#[test]
fn a_state_of_a_newer_or_older_server_reads_with_what_both_know() {
    let mut bytes = written(|out| reply::state(out, 1, &state()));
    let count_at = HEADER_BYTES + 16 + 8 + 1 + 5 + 6;
    assert_eq!(bytes[count_at], 15);
    bytes[count_at] = 16;
    bytes.push(44);
    assert!(matches!(Reply::decode_body(bytes[4], &bytes[HEADER_BYTES..]), Ok(Reply::State(read)) if read == state()));
    bytes.truncate(bytes.len() - 2);
    bytes[count_at] = 14;
    let older = State { durable_lsn: 0, ..state() };
    assert!(matches!(Reply::decode_body(bytes[4], &bytes[HEADER_BYTES..]), Ok(Reply::State(read)) if read == older));
}

#[test]
fn the_examples_in_the_protocol_page_are_what_is_written() {
    let short = BeginOptions::default();
    let base = Some(SnapshotId { boot: 77, number: 41 });
    let tx = WritePointer(1_790_000_000_000_000_001);
    let changes = ChangeSet::of_writes([b"a".as_slice(), b""]);
    let quiet = snapshot(41);
    let mut next = snapshot(42);
    next.csn = CommitNumber(next.csn.0 + 1);
    next.in_progress.remove(pointer(4_000));
    next.in_progress.remove(pointer(4_990));
    let block = Block { first: tx, count: 1 };
    let hello_reply = HelloReply {
        version: 1,
        store: StoreId(0xabcd),
        boot: 77,
        server_time_ms: 1_790_000_000_000,
        limits: HelloLimits::default(),
    };
    let conflict =
        CommitError::Conflict { tx, change_id: 0xe6c6_32b6_1e96_4e1f, csn: CommitNumber(9), winner: None, label: None };
    let error = ErrorReply { asked: 14, ..ErrorReply::new(ErrorCode::UnknownOp, "op 14 is not known") };
    let stored = |id, said: &StoreReply| written(|out| reply::store(out, id, said));
    let bounds = CleanBound { clean: tx, visible: WritePointer(tx.0 - 1) };
    let cleaned = StoreRequest::Cleaned { name: "purses", bound: tx };
    let refusal = StoreRefusal::NotHandedOut { bound: tx, greatest: WritePointer(tx.0 - 1) };
    let (kind, cause) = (Kind::Short, InvalidCause::Expired);
    let holder = CleanHolder::Writing { tx, kind, cause, remaining_ms: 60_000 };
    let store = RegisteredStore { bound: WritePointer(5), registered_ms: 1_790_000_000_000, acknowledged_ms: 0 };
    let stores = vec![(StoreName::new("purses").unwrap(), store)];
    let report = PruneReport { bounds, invalid: 1, holder, stores };
    let examples = [
        ("hello", written(|out| Hello { label: "bank", ..Hello::new(0x0123_4567_89ab_cdef) }.encode(out, 1))),
        ("hello reply", written(|out| hello_reply.encode(out, 1))),
        ("begin", written(|out| request::begin(out, 2, &BeginRequest { options: short, count: 1, base, label: None }))),
        ("begin reply, unchanged", written(|out| reply::begin(out, 2, block, &quiet, Some(&quiet)))),
        ("begin reply, difference", written(|out| reply::begin(out, 2, block, &next, Some(&quiet)))),
        ("commit of a and the empty key", written(|out| request::commit(out, 3, [(tx, &changes)]))),
        ("commit reply, committed", written(|out| reply::commit(out, 3, [Ok(CommitNumber(1_234_568))]))),
        ("commit reply, conflict", written(|out| reply::commit(out, 3, [Err(conflict)]))),
        ("abort", written(|out| request::pointers(out, Op::Abort, 4, [tx]))),
        ("abort reply, aborted", written(|out| reply::statuses(out, Op::Abort, 4, [Status::Aborted]))),
        ("error", written(|out| reply::error(out, 5, &error))),
        ("truncate", written(|out| request::pointers(out, Op::Truncate, 6, [tx]))),
        ("truncate reply, forgotten", written(|out| reply::bools(out, Op::Truncate, 6, [true]))),
        ("truncate before", written(|out| request::truncate_before(out, 7, tx))),
        ("truncate before reply, 3", written(|out| reply::truncate_before(out, 7, Truncated::Done(3)))),
        ("register store", written(|out| request::store(out, 8, StoreRequest::Register { name: "purses" }))),
        ("register store reply, new", stored(8, &StoreReply::Registered(Ok(true)))),
        ("remove store", written(|out| request::store(out, 9, StoreRequest::Remove { name: "purses" }))),
        ("remove store reply, was there", stored(9, &StoreReply::Removed(true))),
        ("clean bound", written(|out| request::store(out, 10, StoreRequest::CleanBound))),
        ("clean bound reply", stored(10, &StoreReply::CleanBound(bounds))),
        ("store cleaned", written(|out| request::store(out, 11, cleaned))),
        ("store cleaned reply, refused", stored(11, &StoreReply::Cleaned(Err(refusal)))),
        ("pruning", written(|out| request::store(out, 12, StoreRequest::Pruning))),
        ("pruning reply", stored(12, &StoreReply::Pruning(Box::new(report)))),
    ];
    let page = include_str!("../PROTOCOL.md");
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let lines = examples.map(|(name, bytes)| {
        let line = format!("{name}: {} {}", hex(&bytes[..HEADER_BYTES]), hex(&bytes[HEADER_BYTES..]));
        line.trim_end().to_owned()
    });
    let missing: Vec<&String> = lines.iter().filter(|line| !page.lines().any(|there| there == *line)).collect();
    assert!(missing.is_empty(), "PROTOCOL.md lacks\n{}", missing.iter().map(|l| format!("{l}\n")).collect::<String>());
}

#[test]
fn what_stores_hear_reads_back_as_it_was_written() {
    for said in common::store_replies() {
        let bytes = written(|out| reply::store(out, 1, &said));
        let Reply::Store(read) = Reply::decode(&frame(&bytes)).unwrap() else { panic!("{said:?} is of another kind") };
        assert_eq!(read, said);
    }
    let long = "x".repeat(65);
    for name in ["", &long] {
        let bytes = written(|out| request::store(out, 1, StoreRequest::Register { name }));
        let refused = DecodeError::OutOfRange { what: "length of a store's name", value: name.len() as u64 };
        assert_eq!(Request::decode(&frame(&bytes)).err(), Some(refused));
    }
}
