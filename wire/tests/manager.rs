//! Checks, checkpoints, truncation, fences and images read back as they were written.

mod common;

use common::{change_set, frame, pointer};
use seriatim_core::*;
use seriatim_wire::*;

fn written(build: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    build(&mut out);
    out
}

fn read(bytes: &[u8]) -> Request<'_> {
    Request::decode(&frame(bytes)).unwrap()
}

fn answer(bytes: &[u8]) -> Reply<'_> {
    Reply::decode(&frame(bytes)).unwrap()
}

#[test]
fn submissions_of_every_form_read_back() {
    let mut random = common::Random::new(11);
    for n in 0..200 {
        let (tx, changes) = (pointer(n), change_set(&mut random));
        let checkpoints = [0, 1, 127, 128, u32::MAX][n as usize % 5];
        let given = Submission { checkpoints, ..Submission::from(&changes) };
        let bytes = written(|out| request::commit(out, 1, [(tx, given)]));
        let Request::Commit(mut items) = read(&bytes) else { panic!("not a commit") };
        let item = items.next().unwrap();
        assert_eq!((item.tx, item.checkpoints, item.checked, item.change_set()), (tx, checkpoints, None, changes));

        let digest = u64::MAX - n;
        let checked = Submission { changes: Changes::Checked(digest), checkpoints };
        let bytes = written(|out| request::commit(out, 1, [(tx, checked)]));
        let Request::Commit(mut items) = read(&bytes) else { panic!("not a commit") };
        let item = items.next().unwrap();
        assert_eq!(
            (item.checkpoints, item.checked, item.change_set()),
            (checkpoints, Some(digest), ChangeSet::default())
        );
    }
}

#[test]
fn a_check_brings_its_changes_and_nothing_else() {
    let mut random = common::Random::new(12);
    let sets: Vec<(WritePointer, ChangeSet)> = (0..20).map(|n| (pointer(n), change_set(&mut random))).collect();
    let bytes = written(|out| request::can_commit(out, 1, sets.iter().map(|(tx, set)| (*tx, set))));
    let Request::CanCommit(items) = read(&bytes) else { panic!("not a check") };
    assert!(items.map(|item| (item.tx, item.change_set())).eq(sets.iter().cloned()));
    // The same items of a commit that names a digest, or counts checkpoints, are no check.
    for submission in [
        Submission { changes: Changes::Checked(7), checkpoints: 0 },
        Submission { checkpoints: 1, ..Submission::from(&sets[0].1) },
    ] {
        let commit = written(|out| request::commit(out, 1, [(pointer(1), submission)]));
        let bytes = written(|out| request::with_body(out, Op::CanCommit, 1, &commit[HEADER_BYTES..]));
        Request::decode(&frame(&bytes)).unwrap_err();
    }
}

#[test]
fn questions_of_operators_read_back() {
    let items = [(pointer(1), 1), (pointer(2), u32::MAX)];
    let bytes = written(|out| request::checkpoint(out, 1, items));
    let Request::Checkpoint(read_back) = read(&bytes) else { panic!("not a checkpoint") };
    assert!(read_back.eq(items));
    let bytes = written(|out| request::pointers(out, Op::Truncate, 1, [pointer(3), pointer(4)]));
    let Request::Truncate(pointers) = read(&bytes) else { panic!("not a truncation") };
    assert!(pointers.iter().eq([pointer(3), pointer(4)]));
    let bytes = written(|out| request::truncate_before(out, 1, pointer(5)));
    assert!(matches!(read(&bytes), Request::TruncateBefore { bound } if bound == pointer(5)));
    for timeout in [0, 1, u64::MAX] {
        let bytes = written(|out| request::fence(out, 1, timeout));
        assert!(matches!(read(&bytes), Request::Fence { timeout_ms } if timeout_ms == timeout));
    }
    let image = ImageRequest { number: u64::MAX, offset: 1 << 40 };
    let bytes = written(|out| request::image(out, 1, image));
    assert!(matches!(read(&bytes), Request::Image(read) if read == image));
}

#[test]
fn answers_to_them_read_back() {
    let tx = pointer(9);
    let conflict = CommitError::Conflict {
        tx,
        change_id: 8,
        csn: CommitNumber(7),
        winner: Some(pointer(6)),
        label: Some("nightly – ß".into()),
    };
    let refusals = [
        conflict,
        CommitError::NeedChanges { tx },
        CommitError::CheckpointMismatch { tx, known: 3, named: u32::MAX },
        CommitError::TooManyCheckpoints { tx, max: CHECKPOINTS_MAX },
        CommitError::NotInProgress { tx, ended: Status::Forgotten },
        CommitError::Overloaded(Full::Images),
    ];
    let checks: Vec<Result<(), CommitError>> =
        std::iter::once(Ok(())).chain(refusals.iter().cloned().map(Err)).collect();
    let bytes = written(|out| reply::can_commit(out, 1, checks.iter().cloned()));
    let Reply::CanCommit(read_back) = answer(&bytes) else { panic!("not checks") };
    assert_eq!(read_back.collect::<Vec<_>>(), checks);

    let taken: Vec<Result<WritePointer, CommitError>> =
        std::iter::once(Ok(pointer(5))).chain(refusals.iter().cloned().map(Err)).collect();
    let bytes = written(|out| reply::checkpoint(out, 1, taken.iter().cloned()));
    let Reply::Checkpoint(read_back) = answer(&bytes) else { panic!("not checkpoints") };
    assert_eq!(read_back.collect::<Vec<_>>(), taken);

    let bytes = written(|out| reply::bools(out, Op::Truncate, 1, [true, false]));
    let Reply::Truncate(read_back) = answer(&bytes) else { panic!("not a truncation") };
    assert!(read_back.iter().eq([true, false]));
    for truncated in [Truncated::Done(0), Truncated::Done(u64::MAX), Truncated::InProgress(tx)] {
        let bytes = written(|out| reply::truncate_before(out, 1, truncated));
        assert!(matches!(answer(&bytes), Reply::TruncateBefore(read) if read == truncated), "{truncated:?}");
    }
    for fenced in [Fenced::Passed, Fenced::TimedOut(0), Fenced::TimedOut(u64::MAX)] {
        let bytes = written(|out| reply::fence(out, 1, fenced));
        assert!(matches!(answer(&bytes), Reply::Fence(read) if read == fenced), "{fenced:?}");
    }
    for page in [&b""[..], b"bytes of an image"] {
        let page = ImagePage { number: 3, total: 1 << 33, bytes: page };
        let bytes = written(|out| reply::image(out, 1, page));
        assert!(matches!(answer(&bytes), Reply::Image(read) if read == page));
    }
}
