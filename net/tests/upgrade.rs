//! A directory that an earlier version wrote is opened, goes on, and loses nothing.
//!
//! `golden/store-1` was written by the first version: an image, the log from the beginning, and no clean stop. Zeros at
//! the end of the segment are left out. It holds, in ms 1 800 000 000 000 and as pointers 0 to 7 of it: a commit of `a` and
//! `b`, an open SHORT, an open LONG, an open deferred SHORT, one that was settled, one whose commit of `k` was refused, the
//! commit of `k` that it lost to, and an aborted one; then the image; then, half a second later, a commit of `c` and a LONG
//! that was invalidated.

mod common;

use common::house::Machine;
use seriatim_core::{CommitError, CommitNumber, InvalidCause, Kind, Status, WritePointer};
use seriatim_net::SavedState;
use seriatim_wal::FileName;
use seriatim_wire::Op;

const BEFORE: WritePointer = WritePointer(1_800_000_000_000_000_000);
const SHORT: WritePointer = WritePointer(BEFORE.0 + 1);
const LONG: WritePointer = WritePointer(BEFORE.0 + 2);
const DEFERRED: WritePointer = WritePointer(BEFORE.0 + 3);
const SETTLED: WritePointer = WritePointer(BEFORE.0 + 4);
const REFUSED: WritePointer = WritePointer(BEFORE.0 + 5);
const WINNER: WritePointer = WritePointer(BEFORE.0 + 6);
const ABORTED: WritePointer = WritePointer(BEFORE.0 + 7);
const AFTER: WritePointer = WritePointer(BEFORE.0 + 500_000_000);
const LATE: WritePointer = WritePointer(AFTER.0 + 1);

fn golden(file: FileName) -> Vec<u8> {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/store-1").join(file.to_string());
    std::fs::read(path).unwrap()
}

fn machine(with_image: bool) -> Machine {
    let machine = Machine::new();
    for file in [FileName::Identity, FileName::Segment(1), FileName::Image(15)] {
        if with_image || file != FileName::Image(15) {
            machine.disk.set_file(file, Some(golden(file)));
        }
    }
    machine
}

#[test]
fn a_store_of_the_first_version_goes_on_where_it_was() {
    for with_image in [true, false] {
        let machine = machine(with_image);
        let mut house = machine.start();
        assert_eq!(house.report.image.is_some(), with_image);
        let client = house.connect(9);
        let expected = [
            (BEFORE, Status::Committed(CommitNumber(1))),
            (SHORT, Status::Open),
            (LONG, Status::Open),
            (DEFERRED, Status::Open),
            (SETTLED, Status::Invalid(InvalidCause::Settled)),
            (REFUSED, Status::Refused),
            (WINNER, Status::Committed(CommitNumber(2))),
            (ABORTED, Status::Aborted),
            (AFTER, Status::Committed(CommitNumber(3))),
            (LATE, Status::Invalid(InvalidCause::Asked)),
        ];
        for (tx, status) in expected {
            assert_eq!(house.status_by(client, Op::Status, tx), status, "{tx}");
        }
        let snapshot = house.snapshot(client);
        for (tx, status) in expected {
            let seen = matches!(status, Status::Committed(_) | Status::Aborted);
            assert_eq!(snapshot.is_visible(tx), seen, "{tx}");
        }
        // Kinds and promises are kept, and so is what the conflict index knew.
        match house.commit(client, SHORT, &["k"]) {
            Err(CommitError::Conflict { csn: CommitNumber(2), .. }) => assert!(!with_image),
            Err(CommitError::TooOld { mark: CommitNumber(2), .. }) => assert!(with_image, "an image holds no index"),
            other => panic!("{other:?}"),
        }
        house.commit(client, LONG, &[]).unwrap();
        assert_eq!(house.status_by(client, Op::Abort, DEFERRED), Status::Aborted);
        assert_eq!(house.status_by(client, Op::Abort, LATE), Status::Invalid(InvalidCause::Asked), "a LONG");
        let (next, _) = house.begin(client);
        assert!(next > LATE);
        // What this version writes over it is read again.
        house.pipeline.save_image_now();
        house.settle_down();
        drop(house);
        let mut house = machine.start();
        let client = house.connect(9);
        assert_eq!(house.status_by(client, Op::Status, LONG), Status::Committed(CommitNumber(4)));
        assert_eq!(house.status_by(client, Op::Status, next), Status::Open);
    }
}

#[test]
fn an_image_of_the_first_version_can_be_looked_into() {
    let image = SavedState::read(&golden(FileName::Image(15))).unwrap();
    let published = image.published;
    assert_eq!((image.lsn, published.csn(), published.stopped_cleanly()), (15, CommitNumber(2), false));
    let mut open: Vec<(WritePointer, Kind, bool)> =
        published.open().map(|open| (open.tx, open.kind, open.deferred)).collect();
    open.sort_by_key(|(tx, ..)| *tx);
    let refused = (REFUSED, Kind::Short, false);
    assert_eq!(open, [(SHORT, Kind::Short, false), (LONG, Kind::Long, false), (DEFERRED, Kind::Short, true), refused]);
}
