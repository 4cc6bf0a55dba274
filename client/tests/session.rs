//! The session alone: bytes in, bytes out.

use std::sync::Arc;

use seriatim_client::{Answer, AnswerPlace, ProtocolError, Session};
use seriatim_core::*;
use seriatim_wire::*;

const SHORT: BeginOptions = BeginOptions { kind: Kind::Short, timeout_ms: None, deferred: false, detached: false };
const BOOT: u64 = 5;

fn pointer(n: u64) -> WritePointer {
    WritePointer(1_790_000_000_000_000_000 + n)
}

fn snapshot(number: u64, in_progress: &[u64]) -> Snapshot {
    Snapshot {
        id: SnapshotId { boot: BOOT, number },
        read_pointer: pointer(100),
        csn: CommitNumber(number),
        in_progress: in_progress.iter().map(|n| pointer(*n)).collect(),
        ..Snapshot::default()
    }
}

fn hello(limits: HelloLimits) -> HelloReply {
    HelloReply { version: 1, store: StoreId(1), boot: BOOT, server_time_ms: 0, limits }
}

/// A session that has said hello and been answered.
fn session(limits: HelloLimits) -> Session {
    let mut session = Session::new(&Hello::new(9));
    let sent = sent(&mut session);
    assert!(matches!(sent[..], [(1, Op::Hello, _)]));
    let mut out = Vec::new();
    hello(limits).encode(&mut out, 1);
    session.receive(&out);
    assert!(matches!(session.next_answer(), Ok(Some((1, Answer::Hello(_))))));
    session
}

/// Id, op and body of every frame that the session has to send.
fn sent(session: &mut Session) -> Vec<(u64, Op, Vec<u8>)> {
    let mut out = Vec::new();
    session.take_output(&mut out);
    let mut frames = Frames::new(&out, BODY_BYTES_MAX);
    let mut sent = Vec::new();
    while let Some(frame) = frames.next().unwrap() {
        assert!(Request::decode(&frame).is_ok());
        sent.push((frame.id, Op::from_u8(frame.op).unwrap(), frame.body.to_vec()));
    }
    sent
}

fn base_of((id, op, body): &(u64, Op, Vec<u8>)) -> Option<SnapshotId> {
    let frame = Frame { op: *op as u8, flags: 0, id: *id, body };
    match Request::decode(&frame).unwrap() {
        Request::Begin(begin) => begin.base,
        Request::Snapshot { base } => base,
        other => panic!("{other:?}"),
    }
}

fn reply_begin(session: &mut Session, id: u64, count: u64, new: &Snapshot, base: Option<&Snapshot>) {
    let mut out = Vec::new();
    reply::begin(&mut out, id, Block { first: pointer(200), count }, new, base);
    session.receive(&out);
}

fn begun(session: &mut Session) -> Result<Arc<Snapshot>, ProtocolError> {
    match session.next_answer()? {
        Some((_, Answer::Begun(Ok(begun)))) => Ok(begun.snapshot),
        other => panic!("{other:?}"),
    }
}

#[test]
fn calls_join_the_open_frame_of_their_kind_and_never_one_that_was_sent() {
    let mut session = session(HelloLimits::default());
    let long = BeginOptions { kind: Kind::Long, ..SHORT };
    let places = [session.begin(SHORT, 1), session.begin(long, 1), session.begin(SHORT, 3), session.begin(SHORT, 1)];
    let changes = ChangeSet::of_writes([b"k".as_slice()]);
    let commits = [1, 2, 3].map(|n| session.commit(pointer(n), &changes).unwrap());
    let (aborted, settled) = (session.abort(pointer(4)), session.settle(pointer(5)));
    let (one, two) = (session.snapshot(), session.snapshot());
    let stamps = [session.timestamps(5), session.timestamps(1)];
    assert_eq!(places[2], AnswerPlace { request: places[0].request, index: 1 });
    assert_eq!(places[3], AnswerPlace { request: places[0].request, index: 4 });
    assert_ne!(places[1].request, places[0].request);
    assert_eq!(commits.map(|place| place.index), [0, 1, 2]);
    assert_eq!((one, stamps[1]), (two, AnswerPlace { request: stamps[0].request, index: 5 }));
    assert!(session.is_unsent(commits[0].request) && session.is_unsent(aborted.request));
    let frames = sent(&mut session);
    assert_eq!(frames.len(), 7, "{frames:?}");
    assert!(!session.has_output() && !session.is_unsent(commits[0].request) && !session.is_unsent(settled.request));
    // Sent is sent: the next caller opens a frame of its own.
    assert_ne!(session.begin(SHORT, 1).request, places[0].request);
    assert_ne!(session.snapshot().request, one.request);
}

#[test]
fn a_frame_that_is_full_is_left_and_another_opened() {
    let mut session = session(HelloLimits { block: 4, body_bytes: 100, ..HelloLimits::default() });
    let begins: Vec<AnswerPlace> = (0..3).map(|_| session.begin(SHORT, 3)).collect();
    assert!(begins.iter().all(|place| place.index == 0));
    let names: Vec<AnswerPlace> = (0..30).map(|n| session.abort(pointer(n))).collect();
    assert_eq!(names.iter().filter(|place| place.index == 0).count(), 3);
    let changes = ChangeSet::of_writes([b"k".as_slice()]);
    for n in 0..9 {
        session.commit(pointer(n), &changes).unwrap();
    }
    for (_, op, body) in sent(&mut session) {
        assert!(body.len() <= 100, "{op:?} of {}", body.len());
    }
    let stamps = [session.timestamps(u64::MAX), session.timestamps(1), session.timestamps(1 << 16)];
    assert_eq!(stamps.map(|place| place.index), [0; 3]);
}

#[test]
fn a_change_set_over_the_limit_is_refused_without_a_frame() {
    let mut session = session(HelloLimits { change_ids: 3, ..HelloLimits::default() });
    let changes = |n: u64| ChangeSet { writes: (0..n).map(ChangeId).collect(), ..ChangeSet::default() };
    let error = session.commit(pointer(1), &changes(4)).unwrap_err();
    assert_eq!(error, CommitError::ChangeSetTooLarge { len: 4, max: 3 });
    assert!(!session.has_output());
    session.commit(pointer(1), &changes(3)).unwrap();
    let mut session =
        self::session(HelloLimits { change_ids: u32::MAX, body_bytes: u32::MAX, ..HelloLimits::default() });
    let error = session.commit(pointer(1), &changes(2 << 20)).unwrap_err();
    let most = u64::from(BODY_BYTES_MAX) / 8 - 4;
    assert_eq!(error, CommitError::ChangeSetTooLarge { len: 2 << 20, max: most }, "whatever the server allows");
    session.commit(pointer(1), &changes(most)).unwrap();
    sent(&mut session);
}

#[test]
fn each_reply_is_read_against_the_base_that_its_own_request_named() {
    let mut session = session(HelloLimits::default());
    let one = snapshot(1, &[7]);
    let first = session.begin(SHORT, 1).request;
    assert_eq!(base_of(&sent(&mut session)[0]), None);
    reply_begin(&mut session, first, 1, &one, None);
    assert_eq!(begun(&mut session).unwrap().id, one.id);
    // Three begins under way, all with the same base; each answer is a difference from that one.
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(session.begin(SHORT, 1).request);
        assert_eq!(base_of(&sent(&mut session)[0]), Some(one.id));
    }
    for (number, id) in [(2, ids[0]), (3, ids[1]), (4, ids[2])] {
        let new = snapshot(number, &[7 + number]);
        reply_begin(&mut session, id, 1, &new, Some(&one));
        let read = begun(&mut session).unwrap();
        assert_eq!((read.id, &read.in_progress), (new.id, &new.in_progress));
    }
    assert_eq!(session.current_snapshot().unwrap().id.number, 4);
    session.begin(SHORT, 1);
    assert_eq!(base_of(&sent(&mut session)[0]).unwrap().number, 4);
}

#[test]
fn an_older_answer_does_not_replace_a_newer_snapshot_and_an_unchanged_one_is_shared() {
    let mut session = session(HelloLimits::default());
    let ids = [session.begin(SHORT, 1).request, session.snapshot().request];
    sent(&mut session);
    reply_begin(&mut session, ids[0], 1, &snapshot(9, &[1]), None);
    let newer = begun(&mut session).unwrap();
    let mut out = Vec::new();
    reply::snapshot(&mut out, ids[1], &snapshot(8, &[1]), None);
    session.receive(&out);
    assert!(matches!(session.next_answer(), Ok(Some((_, Answer::Snapshot(older)))) if older.id.number == 8));
    assert!(Arc::ptr_eq(session.current_snapshot().unwrap(), &newer));
    let id = session.begin(SHORT, 1).request;
    sent(&mut session);
    reply_begin(&mut session, id, 1, &newer, Some(&newer));
    assert!(Arc::ptr_eq(&begun(&mut session).unwrap(), &newer));
}

#[test]
fn a_difference_from_the_wrong_base_is_a_typed_error_and_forgets_what_was_known() {
    let mut session = session(HelloLimits::default());
    let id = session.begin(SHORT, 1).request;
    sent(&mut session);
    reply_begin(&mut session, id, 1, &snapshot(5, &[1]), None);
    begun(&mut session).unwrap();
    let id = session.begin(SHORT, 1).request;
    sent(&mut session);
    reply_begin(&mut session, id, 1, &snapshot(6, &[1, 2]), Some(&snapshot(4, &[])));
    let wrong = DecodeError::WrongBase { new: 6, named: 4, have: Some(5) };
    assert_eq!(begun(&mut session).unwrap_err(), ProtocolError::Decode(wrong));
    assert!(session.current_snapshot().is_none());
}

#[test]
fn a_digest_that_does_not_match_is_a_typed_error() {
    let mut session = session(HelloLimits::default());
    let id = session.begin(SHORT, 1).request;
    sent(&mut session);
    reply_begin(&mut session, id, 1, &snapshot(5, &[1]), None);
    begun(&mut session).unwrap();
    let id = session.begin(SHORT, 1).request;
    sent(&mut session);
    // The server's idea of number 5 is another one.
    reply_begin(&mut session, id, 1, &snapshot(64, &[1, 3, 2_000]), Some(&snapshot(5, &[1, 2_000])));
    let error = begun(&mut session).unwrap_err();
    assert!(matches!(error, ProtocolError::Decode(DecodeError::DigestMismatch { number: 64, .. })), "{error}");
    assert!(session.current_snapshot().is_none());
}

#[test]
fn a_snapshot_of_another_run_is_no_base() {
    let mut session = Session::new(&Hello::new(9));
    session.set_current_snapshot(Some(Arc::new(snapshot(3, &[]))));
    sent(&mut session);
    let mut out = Vec::new();
    HelloReply { boot: BOOT + 1, ..hello(HelloLimits::default()) }.encode(&mut out, 1);
    session.receive(&out);
    session.next_answer().unwrap();
    session.begin(SHORT, 1);
    assert_eq!(base_of(&sent(&mut session)[0]), None);
}

#[test]
fn a_reply_in_parts_is_joined_and_anything_between_them_is_an_error() {
    let parts = |session: &mut Session, ids: [u64; 3]| {
        let mut whole = Vec::new();
        reply::ping(&mut whole, 0, b"abcdef");
        for (part, id) in ids.into_iter().enumerate() {
            let mut frame = whole[..HEADER_BYTES].to_vec();
            frame[..4].copy_from_slice(&2u32.to_le_bytes());
            frame[5] = if part < 2 { FLAG_MORE } else { 0 };
            frame[8..16].copy_from_slice(&id.to_le_bytes());
            frame.extend_from_slice(&whole[HEADER_BYTES + 2 * part..HEADER_BYTES + 2 * part + 2]);
            // Byte by byte, so that every place to stop is met.
            for byte in frame {
                session.receive(&[byte]);
                assert!(part == 2 || !session.has_answer());
            }
        }
    };
    let mut session = session(HelloLimits::default());
    for _ in 0..2 {
        let id = session.ping(b"").request;
        parts(&mut session, [id; 3]);
        assert!(matches!(session.next_answer(), Ok(Some((got, Answer::Pong(b"abcdef")))) if got == id));
    }
    let (one, two) = (session.ping(b"").request, session.ping(b"").request);
    parts(&mut session, [one, one, two]);
    assert_eq!(session.next_answer().unwrap_err(), ProtocolError::BrokenParts { id: one });
}

#[test]
fn replies_that_fit_no_request_are_typed_errors() {
    let check = |put: &dyn Fn(&mut Vec<u8>, u64), expected: &dyn Fn(u64) -> ProtocolError| {
        let mut session = session(HelloLimits::default());
        let id = session.begin(SHORT, 2).request;
        sent(&mut session);
        let mut out = Vec::new();
        put(&mut out, id);
        session.receive(&out);
        assert_eq!(session.next_answer().unwrap_err(), expected(id));
    };
    let block = Block { first: pointer(200), count: 3 };
    check(&|out, id| reply::ping(out, id + 9, b""), &|id| ProtocolError::UnknownRequest { id: id + 9, op: 0x8d });
    check(&|out, id| reply::ping(out, id, b""), &|id| ProtocolError::WrongReply { id, asked: Op::Begin, op: 0x8d });
    check(&|out, id| reply::begin(out, id, block, &snapshot(1, &[]), None), &|id| ProtocolError::WrongCount {
        id,
        asked: 2,
        got: 3,
    });
    let below = Block { first: pointer(100), count: 2 };
    check(&|out, id| reply::begin(out, id, below, &snapshot(1, &[]), None), &|_| ProtocolError::PointerBelowSnapshot {
        pointer: pointer(100),
        read_pointer: pointer(100),
    });
    check(&|out, _| out.extend([0; HEADER_BYTES]), &|_| DecodeError::UnknownOp(0).into());
}

#[test]
fn an_error_answers_its_request_and_one_without_a_request_is_about_the_connection() {
    let mut session = session(HelloLimits::default());
    let id = session.state().request;
    let mut out = Vec::new();
    reply::error(&mut out, id, &ErrorReply::new(ErrorCode::UnknownOp, "what is that"));
    reply::error(&mut out, 0, &ErrorReply::new(ErrorCode::ShuttingDown, "bye"));
    session.receive(&out);
    assert!(matches!(session.next_answer(), Ok(Some((got, Answer::Error(error)))) if got == id && !error.closes));
    assert!(matches!(session.next_answer(), Ok(Some((0, Answer::Error(error)))) if error.closes));
    assert_eq!(session.in_flight(), 0);
}
