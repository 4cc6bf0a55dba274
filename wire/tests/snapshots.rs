//! Snapshots over the wire: what arrives is what was sent, whichever base it was made from, and it is small.

mod common;

use std::collections::VecDeque;
use std::sync::Arc;

use common::{NOW_MS, Random, pointer};
use seriatim_core::*;
use seriatim_wire::*;

fn encoded(new: &Snapshot, base: Option<&Snapshot>) -> Vec<u8> {
    let mut out = Vec::new();
    encode_snapshot(&mut out, new, base);
    out
}

fn assert_same(read: &Snapshot, sent: &Snapshot, context: &str) {
    assert_eq!((read.id, read.read_pointer, read.csn), (sent.id, sent.read_pointer, sent.csn), "{context}");
    assert_eq!((&read.in_progress, &read.invalid), (&sent.in_progress, &sent.invalid), "{context}");
    assert_eq!(read.digest(), sent.digest(), "{context}");
}

/// Changes a snapshot as a busy sequencer would.
fn step(random: &mut Random, at: &Snapshot) -> Snapshot {
    let mut next = at.clone();
    next.id.number += 1 + random.below(3);
    for _ in 0..random.below(20) {
        let n = random.below(100_000) * [1, 1_000][random.below(2) as usize];
        match random.below(3) {
            0 => {
                next.in_progress.insert(pointer(n));
            }
            1 => next.in_progress.insert_range(pointer(n).0, pointer(n + random.below(600)).0),
            _ => {
                let some: Vec<WritePointer> =
                    next.in_progress.iter().skip(n as usize % 50).step_by(3).take(90).collect();
                for pointer in some {
                    next.in_progress.remove(pointer);
                }
            }
        }
    }
    while next.in_progress.len() > 5_000 {
        let some: Vec<WritePointer> = next.in_progress.iter().step_by(2).collect();
        for pointer in some {
            next.in_progress.remove(pointer);
        }
    }
    next.csn.0 += random.below(100);
    next.read_pointer = pointer(random.below(200_000_000));
    if random.below(4) == 0 {
        let invalid = Arc::make_mut(&mut next.invalid);
        invalid.version += 1;
        invalid.pointers.insert(pointer(random.below(50_000_000)));
        if random.below(3) == 0 {
            let first = invalid.intervals.last().map_or(5, |(_, end)| *end) + random.below(5);
            invalid.intervals.push((first, first + 1 + random.below(1_000_000)));
        }
        if random.below(5) == 0 {
            invalid.intervals.clear();
        }
    }
    next
}

#[test]
fn differences_from_any_base_and_wholes_read_back_as_they_were_sent() {
    for seed in 0..25 {
        let mut random = Random::new(seed);
        let mut recent = vec![Snapshot { id: SnapshotId { boot: 9, number: 1 }, ..Snapshot::default() }];
        for number in 0..100 {
            let next = step(&mut random, recent.last().unwrap());
            recent.push(next);
            let new = recent.last().unwrap();
            let base = &recent[random.below(recent.len() as u64) as usize];
            let context = format!("seed {seed} step {number}");
            let bytes = encoded(new, Some(base));
            assert_same(&decode_snapshot(&bytes, Some(base)).expect(&context), new, &context);
            let bytes = encoded(new, None);
            assert!(SnapshotBytes(&bytes).is_whole());
            assert_same(&decode_snapshot(&bytes, None).expect(&context), new, &context);
            // A reader offers the base that it had named; a whole does not need it.
            assert_same(&decode_snapshot(&bytes, Some(base)).expect(&context), new, &context);
        }
    }
}

#[test]
fn a_base_that_cannot_be_one_gets_a_whole() {
    let new = common::snapshot(10);
    let other_boot = Snapshot { id: SnapshotId { boot: 78, number: 9 }, ..new.clone() };
    let newer = common::snapshot(11);
    let none = Snapshot { id: SnapshotId { boot: 77, number: 0 }, ..Snapshot::default() };
    for base in [&other_boot, &newer, &none] {
        assert!(SnapshotBytes(&encoded(&new, Some(base))).is_whole(), "{:?}", base.id);
    }
}

#[test]
fn a_whole_tells_the_invalid_set_even_if_its_version_is_zero() {
    let mut new = common::snapshot(1);
    Arc::make_mut(&mut new.invalid).version = 0;
    assert_same(&decode_snapshot(&encoded(&new, None), None).unwrap(), &new, "version 0");
}

#[test]
fn a_difference_against_the_wrong_base_is_an_error_and_no_snapshot() {
    let (one, two) = (common::snapshot(1), common::snapshot(2));
    let mut three = common::snapshot(3);
    three.in_progress.remove(pointer(4_000));
    let delta = encoded(&three, Some(&one));
    let wrong = |have| Err(DecodeError::WrongBase { new: 3, named: 1, have });
    assert_eq!(decode_snapshot(&delta, Some(&two)).map(|s| s.id), wrong(Some(2)));
    assert_eq!(decode_snapshot(&delta, None).map(|s| s.id), wrong(None));
    let unchanged = encoded(&two, Some(&two));
    assert_eq!(
        SnapshotBytes(&unchanged).decode(Some(&Arc::new(one))).map(|s| s.id),
        Err(DecodeError::WrongBase { new: 2, named: 2, have: Some(1) })
    );
}

#[test]
fn an_unchanged_snapshot_is_the_base_itself() {
    let base = Arc::new(common::snapshot(2));
    let bytes = encoded(&base, Some(&base));
    assert!(SnapshotBytes(&bytes).is_unchanged() && bytes.len() == 2);
    assert!(Arc::ptr_eq(&SnapshotBytes(&bytes).decode(Some(&base)).unwrap(), &base));
}

#[test]
fn a_digest_that_does_not_match_is_an_error() {
    let mut forged = common::snapshot(1);
    forged.in_progress.remove(pointer(4_000));
    // The reader's base has the right number and the wrong content: only a digest can tell.
    let new = common::snapshot(64);
    let delta = encoded(&new, Some(&common::snapshot(1)));
    assert!(decode_snapshot(&delta, Some(&common::snapshot(1))).is_ok());
    let error = decode_snapshot(&delta, Some(&forged)).unwrap_err();
    assert!(matches!(error, DecodeError::DigestMismatch { number: 64, .. }), "{error}");
}

#[test]
fn at_least_every_64th_difference_carries_a_digest() {
    for stride in [1, 3, 64, 65, 1_000] {
        let mut without = 0;
        let mut base = common::snapshot(1);
        for _ in 0..200 {
            let new = common::snapshot(base.id.number + stride);
            let mut forged = base.clone();
            forged.in_progress.insert(pointer(0));
            match decode_snapshot(&encoded(&new, Some(&base)), Some(&forged)) {
                Ok(_) => without += 1,
                Err(DecodeError::DigestMismatch { .. }) => without = 0,
                Err(other) => panic!("{other}"),
            }
            assert!(without < 64, "stride {stride}");
            base = new;
        }
    }
}

/// 100 000 transactions a second, 1 000 open, ended in random order; sixteen connections that begin 64 at a time.
#[test]
fn a_busy_begin_costs_at_most_64_bytes_and_a_quiet_one_at_most_32() {
    const CONNECTIONS: usize = 16;
    const FRAME: u64 = 64;
    let mut random = Random::new(3);
    let mut invalid = InvalidSet { version: 1, ..InvalidSet::default() };
    for _ in 0..100_000 {
        invalid.pointers.insert(WritePointer(pointer(0).0 - random.below(86_400_000 * POINTERS_PER_MS)));
    }
    let mut newest = Snapshot {
        id: SnapshotId { boot: u64::MAX, number: 1_000_000 },
        csn: CommitNumber(1_000_000_000),
        invalid: Arc::new(invalid),
        ..Snapshot::default()
    };
    let mut bases: VecDeque<Snapshot> = VecDeque::new();
    let mut open: Vec<WritePointer> = Vec::new();
    let (mut next, mut clock_us) = (pointer(0), 0u64);
    let (mut bytes, mut begins) = (0usize, 0u64);
    for turn in 0..2_000 {
        clock_us += FRAME * 10; // 100 000 a second
        next = next.max(WritePointer::at_ms(NOW_MS + clock_us / 1_000));
        let base = if bases.len() == CONNECTIONS { bases.pop_front() } else { None };
        let mut reply = Vec::new();
        reply::begin(&mut reply, 1, Block { first: next, count: FRAME }, &newest, base.as_ref());
        if turn >= 100 {
            (bytes, begins) = (bytes + reply.len() - HEADER_BYTES, begins + FRAME);
        }
        bases.push_back(newest.clone());
        for _ in 0..FRAME {
            open.push(next);
            newest.in_progress.insert(next);
            next.0 += 1;
        }
        while open.len() > 1_000 {
            let ended = open.swap_remove(random.below(open.len() as u64) as usize);
            newest.in_progress.remove(ended);
            newest.read_pointer = newest.read_pointer.max(ended);
            newest.csn.0 += 1;
        }
        newest.id.number += 1;
    }
    let busy = bytes as f64 / begins as f64;
    let mut quiet = Vec::new();
    reply::begin(&mut quiet, 1, Block { first: next, count: 1 }, &newest, Some(&newest));
    let quiet = quiet.len() - HEADER_BYTES;
    let whole = encoded(&newest, None).len();
    println!("bytes per begin: busy {busy:.1}, quiet {quiet}; a whole with 100 000 invalid {whole}");
    assert!(busy <= 64.0 && quiet <= 32, "busy {busy:.1}, quiet {quiet}");
    assert!(whole < 8 * 100_000, "a whole of {whole} bytes is no better than a list");
}

#[test]
fn a_whole_too_long_for_one_frame_arrives_in_parts() {
    let mut random = Random::new(11);
    let mut invalid = InvalidSet { version: 1, ..InvalidSet::default() };
    let mut at = pointer(0).0;
    for _ in 0..600_000 {
        at += 256 + random.below(512);
        let mut words = [0; 4];
        // One bit in each byte: as long as any chunk can be, and quick to count.
        words.fill_with(|| 0x0101_0101_0101_0101 << random.below(8));
        invalid.pointers.put_chunk(at >> 8, words);
    }
    let new = Snapshot { id: SnapshotId { boot: 1, number: 1 }, invalid: Arc::new(invalid), ..Snapshot::default() };
    let mut out = Vec::new();
    reply::snapshot(&mut out, 5, &new, None);
    let mut frames = Frames::new(&out, BODY_BYTES_MAX);
    let (mut body, mut parts, mut more) = (Vec::new(), 0, true);
    while let Some(frame) = frames.next().unwrap() {
        assert!(more, "a part after the last");
        more = frame.flags & FLAG_MORE != 0;
        body.extend_from_slice(frame.body);
        parts += 1;
    }
    assert_eq!((parts, more, frames.taken()), (2, false, out.len()));
    let Ok(Reply::Snapshot(bytes)) = Reply::decode_body(Op::Snapshot as u8 | Op::REPLY, &body) else {
        panic!("no snapshot")
    };
    assert_same(&decode_snapshot(bytes.0, None).unwrap(), &new, "in parts");
}

/// What a new reader is sent of a million invalid transactions: neighbours, and such that are a millisecond apart.
#[test]
fn an_invalid_transaction_takes_few_bytes_on_the_wire() {
    const TRANSACTIONS: u64 = 1_000_000;
    for (distance, hundredths_max) in [(1, 14), (POINTERS_PER_MS, 301)] {
        let first = 1_790_000_000_000 * POINTERS_PER_MS;
        let pointers: PointerSet = (0..TRANSACTIONS).map(|n| WritePointer(first + n * distance)).collect();
        let invalid = Arc::new(InvalidSet { version: 1, pointers, intervals: Vec::new() });
        let read_pointer = WritePointer(first + TRANSACTIONS * distance);
        let whole = Snapshot { id: SnapshotId { boot: 1, number: 1 }, read_pointer, invalid, ..Snapshot::default() };
        let mut bytes = Vec::new();
        encode_snapshot(&mut bytes, &whole, None);
        let hundredths = bytes.len() as u64 * 100 / TRANSACTIONS;
        println!("{distance} apart: {hundredths} hundredths of a byte");
        assert!(hundredths <= hundredths_max, "{distance} apart: {hundredths} hundredths of a byte");
        let read = decode_snapshot(&bytes, None).unwrap();
        assert_eq!((read.invalid.len(), read.digest()), (TRANSACTIONS, whole.digest()));
    }
}
