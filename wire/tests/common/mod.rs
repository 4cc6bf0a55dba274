//! What the tests of this crate share: random numbers by seed, and frames of every kind.
#![allow(dead_code, reason = "each test takes what it needs")]

use seriatim_core::*;
use seriatim_wire::*;

/// Dice with a seed.
pub struct Random(fastrand::Rng);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(fastrand::Rng::with_seed(seed))
    }

    pub fn next(&mut self) -> u64 {
        self.0.u64(..)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.0.u64(..bound)
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}

/// A time in the range that pointers really have.
pub const NOW_MS: u64 = 1_790_000_000_000;

/// The `n`th pointer from [`NOW_MS`] on.
pub fn pointer(n: u64) -> WritePointer {
    WritePointer(NOW_MS * POINTERS_PER_MS + n)
}

pub fn snapshot(number: u64) -> Snapshot {
    Snapshot {
        id: SnapshotId { boot: 77, number },
        read_pointer: pointer(5_000),
        csn: CommitNumber(1_234_567),
        in_progress: [4_000, 4_001, 4_990].map(pointer).into_iter().collect(),
        invalid: std::sync::Arc::new(InvalidSet {
            version: 3,
            pointers: [1, 700, 4_500].map(pointer).into_iter().collect(),
            intervals: vec![(pointer(2_000).0, pointer(3_000).0)],
        }),
    }
}

pub fn change_set(random: &mut Random) -> ChangeSet {
    let mut ids = || (0..[0, 1, 4, 9, 40][random.below(5) as usize]).map(|_| ChangeId(random.next())).collect();
    ChangeSet { writes: ids(), reads: ids(), marks: ids() }
}

/// One request of every kind, each a whole frame.
pub fn requests() -> Vec<Vec<u8>> {
    let mut random = Random::new(1);
    let pointers: Vec<WritePointer> = (0..9).map(pointer).collect();
    let mut frames = Vec::new();
    let mut push = |build: &mut dyn FnMut(&mut Vec<u8>)| {
        let mut out = Vec::new();
        build(&mut out);
        frames.push(out);
    };
    let hello = Hello { store: Some(StoreId(5 << 100)), label: "bank", credentials: b"secret", ..Hello::new(99) };
    push(&mut |out| hello.encode(out, 1));
    push(&mut |out| Hello::new(99).encode(out, 1));
    let options = BeginOptions { kind: Kind::Long, timeout_ms: Some(5), deferred: true, detached: true };
    let base = Some(SnapshotId { boot: u64::MAX, number: 1 << 40 });
    push(&mut |out| request::begin(out, 2, &BeginRequest { options, count: 1024, base, label: Some("etl") }));
    push(&mut |out| {
        request::begin(out, 2, &BeginRequest { options: BeginOptions::default(), count: 1, base: None, label: None })
    });
    push(&mut |out| {
        let sets: Vec<ChangeSet> = (0..20).map(|_| change_set(&mut random)).collect();
        request::commit(out, 3, sets.iter().enumerate().map(|(n, set)| (pointer(n as u64), set)));
    });
    for op in [Op::Abort, Op::Invalidate, Op::Status, Op::Settle, Op::Truncate] {
        push(&mut |out| request::pointers(out, op, 4, pointers.iter().copied()));
    }
    push(&mut |out| request::snapshot(out, 5, base));
    push(&mut |out| request::snapshot(out, 5, None));
    push(&mut |out| request::timestamps(out, 6, 1 << 20));
    push(&mut |out| request::state(out, 7));
    for kind in [ListKind::Open, ListKind::Invalid] {
        push(&mut |out| request::list(out, 8, &ListRequest { kind, after: pointer(4), max: 100 }));
    }
    push(&mut |out| request::reset(out, 9, StoreId(u128::MAX)));
    push(&mut |out| {
        let sets: Vec<ChangeSet> = (0..5).map(|_| change_set(&mut random)).collect();
        let submissions = sets.iter().enumerate().map(|(n, set)| {
            let changes = if n % 2 == 0 { Changes::Given(set) } else { Changes::Checked(set.digest()) };
            (pointer(n as u64), Submission { changes, checkpoints: 100 * n as u32 })
        });
        request::commit(out, 3, submissions);
    });
    push(&mut |out| request::can_commit(out, 11, [(pointer(4), &change_set(&mut Random::new(4)))]));
    push(&mut |out| request::checkpoint(out, 12, [(pointer(4), 1), (pointer(5), u32::MAX)]));
    push(&mut |out| request::truncate_before(out, 13, pointer(7)));
    push(&mut |out| request::fence(out, 14, 30_000));
    push(&mut |out| request::image(out, 15, ImageRequest { number: 9, offset: 1 << 40 }));
    for asked in [
        StoreRequest::Register { name: "orders" },
        StoreRequest::Remove { name: "ß" },
        StoreRequest::CleanBound,
        StoreRequest::Cleaned { name: "orders", bound: pointer(6) },
        StoreRequest::Pruning,
    ] {
        push(&mut |out| request::store(out, 16, asked));
    }
    push(&mut |out| request::ping(out, 10, b"are you there"));
    frames
}

pub fn state() -> State {
    State {
        store: StoreId(5 << 100),
        boot: 77,
        uptime_ms: 1,
        server_time_ms: NOW_MS,
        sequencer_time_ms: 2,
        snapshot: 3,
        read_pointer: pointer(1),
        csn: CommitNumber(4),
        next_pointer: pointer(2),
        window_end: pointer(3),
        visibility_bound: pointer(0),
        open: 5,
        invalid: 6,
        excluded: 7,
        outcomes: 8,
        connections: 9,
        durable_lsn: 10,
        durable: true,
        storage: "disk".into(),
        version: "0.1.0".into(),
    }
}

pub fn listed() -> Vec<Listed> {
    let open = Listed {
        tx: pointer(1),
        count: 1,
        status: Status::Open,
        kind: Kind::Short,
        deferred: true,
        detached: false,
        remaining_ms: Some(29_000),
        session: u64::MAX,
        snapshot: CommitNumber(100),
        checkpoints: 300,
        label: Some("nightly".into()),
    };
    let interval = Listed {
        tx: pointer(2),
        count: 2_000_000_000,
        status: Status::Invalid(InvalidCause::Unaccounted),
        kind: Kind::Long,
        deferred: false,
        detached: true,
        remaining_ms: None,
        session: 0,
        snapshot: CommitNumber(0),
        checkpoints: 0,
        label: None,
    };
    vec![open, interval]
}

pub fn statuses() -> Vec<Status> {
    use InvalidCause::*;
    [Status::Open, Status::Deciding, Status::Committed(CommitNumber(1 << 40)), Status::Refused, Status::Aborted]
        .into_iter()
        .chain([Asked, Expired, Disconnected, Settled, LongAborted, Unaccounted].map(Status::Invalid))
        .chain([Status::Forgotten])
        .collect()
}

pub fn outcomes() -> Vec<Result<CommitNumber, CommitError>> {
    let tx = pointer(3);
    let mut outcomes = vec![
        Ok(CommitNumber(7)),
        Err(CommitError::Conflict {
            tx,
            change_id: 5,
            csn: CommitNumber(6),
            winner: Some(pointer(2)),
            label: Some("nightly".into()),
        }),
        Err(CommitError::TooOld { tx, snapshot: CommitNumber(1), mark: CommitNumber(2) }),
        Err(CommitError::Expired { tx }),
        Err(CommitError::ChangeSetTooLarge { len: 9, max: 8 }),
        Err(CommitError::LongWithChanges { tx }),
        Err(CommitError::NeedChanges { tx }),
        Err(CommitError::CheckpointMismatch { tx, known: 1 << 20, named: 1 }),
        Err(CommitError::TooManyCheckpoints { tx, max: 32_767 }),
        Err(CommitError::Overloaded(Full::EventRing)),
    ];
    outcomes.extend(statuses().into_iter().map(|ended| Err(CommitError::NotInProgress { tx, ended })));
    outcomes
}

/// One reply of every kind, each a whole frame. Snapshots are differences from number 1 where they are differences.
pub fn replies() -> Vec<Vec<u8>> {
    let hello = HelloReply {
        version: 1,
        store: StoreId(5 << 100),
        boot: 77,
        server_time_ms: NOW_MS,
        limits: HelloLimits { block: 64, ..HelloLimits::default() },
    };
    let block = Block { first: pointer(5_001), count: 64 };
    let (old, mut new) = (snapshot(1), snapshot(70));
    new.in_progress.remove(pointer(4_000));
    new.in_progress.insert_range(pointer(5_001).0, pointer(5_300).0);
    let mut frames = Vec::new();
    let mut push = |build: &mut dyn FnMut(&mut Vec<u8>)| {
        let mut out = Vec::new();
        build(&mut out);
        frames.push(out);
    };
    push(&mut |out| hello.encode(out, 1));
    push(&mut |out| reply::begin(out, 2, block, &new, None));
    push(&mut |out| reply::begin(out, 2, block, &new, Some(&old)));
    push(&mut |out| reply::begin(out, 2, block, &new, Some(&new)));
    push(&mut |out| reply::begin_refused(out, 2, &BeginError::TimeoutTooLong { asked_ms: 1 << 40, max_ms: 9 }));
    push(&mut |out| reply::commit(out, 3, outcomes()));
    for op in [Op::Abort, Op::Status, Op::Settle] {
        push(&mut |out| reply::statuses(out, op, 4, statuses()));
    }
    push(&mut |out| reply::bools(out, Op::Invalidate, 4, [true, false, true]));
    push(&mut |out| reply::snapshot(out, 5, &new, None));
    push(&mut |out| reply::snapshot(out, 5, &new, Some(&old)));
    push(&mut |out| reply::timestamps(out, 6, &Ok(block)));
    push(&mut |out| reply::timestamps(out, 6, &Err(BeginError::BlockSize { asked: 0, max: 5 })));
    push(&mut |out| reply::state(out, 7, &state()));
    push(&mut |out| reply::list(out, 8, true, &listed()));
    push(&mut |out| reply::reset(out, 9, pointer(9)));
    push(&mut |out| reply::can_commit(out, 11, outcomes().into_iter().map(|outcome| outcome.map(|_| ()))));
    push(&mut |out| reply::checkpoint(out, 12, outcomes().into_iter().map(|outcome| outcome.map(|_| pointer(8)))));
    push(&mut |out| reply::bools(out, Op::Truncate, 16, [true, false]));
    for truncated in [Truncated::Done(1 << 40), Truncated::InProgress(pointer(3))] {
        push(&mut |out| reply::truncate_before(out, 13, truncated));
    }
    for fenced in [Fenced::Passed, Fenced::TimedOut(1 << 20)] {
        push(&mut |out| reply::fence(out, 14, fenced));
    }
    push(&mut |out| reply::image(out, 15, ImagePage { number: 9, total: 1 << 30, bytes: b"half of it" }));
    for said in store_replies() {
        push(&mut |out| reply::store(out, 16, &said));
    }
    push(&mut |out| reply::ping(out, 10, b"are you there"));
    let error =
        ErrorReply { asked: 1 << 33, limit: 5, ..ErrorReply::new(ErrorCode::FrameTooLarge, "that is too much") };
    push(&mut |out| error.encode(out, 0));
    frames
}

/// One of each answer to a store.
pub fn store_replies() -> Vec<StoreReply> {
    let bounds = CleanBound { clean: pointer(5), visible: pointer(4) };
    let (bound, greatest) = (pointer(9), pointer(5));
    let stores = ["a", "b"].map(|name| {
        let name = StoreName::new(name).unwrap();
        (name, RegisteredStore { bound: pointer(2), registered_ms: 1 << 40, acknowledged_ms: 0 })
    });
    let (tx, kind, cause) = (pointer(7), Kind::Long, InvalidCause::Unaccounted);
    let holders = [
        CleanHolder::Nothing,
        CleanHolder::Open(Box::new(listed().remove(0))),
        CleanHolder::Deciding(pointer(6)),
        CleanHolder::Writing { tx, kind, cause, remaining_ms: 60_000 },
    ];
    let reports = holders.map(|holder| {
        StoreReply::Pruning(Box::new(PruneReport { bounds, invalid: 3, holder, stores: stores.to_vec() }))
    });
    let mut replies = vec![
        StoreReply::Registered(Ok(true)),
        StoreReply::Registered(Err(StoreRefusal::FULL)),
        StoreReply::Removed(false),
        StoreReply::CleanBound(bounds),
        StoreReply::Cleaned(Ok(())),
        StoreReply::Cleaned(Err(StoreRefusal::Unknown)),
        StoreReply::Cleaned(Err(StoreRefusal::NotHandedOut { bound, greatest })),
    ];
    replies.extend(reports);
    replies
}

/// The one frame in these bytes.
pub fn frame(bytes: &[u8]) -> Frame<'_> {
    let mut frames = Frames::new(bytes, BODY_BYTES_MAX);
    let frame = frames.next().unwrap().unwrap();
    assert_eq!(frames.taken(), bytes.len());
    frame
}
