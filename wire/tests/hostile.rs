//! Bytes from strangers: whatever arrives is read or refused, never a panic, and never costs more than it brought.

mod common;

use common::{Random, frame, replies, requests, snapshot};
use seriatim_wire::*;

/// Reads everything that can be read of a request, as a server would.
fn use_request(frame: &Frame<'_>) -> Result<usize, DecodeError> {
    Ok(match Request::decode(frame)? {
        Request::Commit(items) => {
            let promised = items.len();
            let walked = items.map(|item| item.change_set().len() + 1).collect::<Vec<_>>();
            assert_eq!(walked.len(), promised);
            walked.iter().sum()
        }
        Request::Abort(p) | Request::Invalidate(p) | Request::Status(p) | Request::Settle(p) => p.iter().count(),
        Request::Hello(hello) => hello.label.len() + usize::from(hello.choose_version().is_some()),
        _ => 0,
    })
}

/// Reads everything that can be read of a reply, as a client would.
fn use_reply(frame: &Frame<'_>) -> Result<usize, DecodeError> {
    let base = snapshot(1);
    Ok(match Reply::decode(frame)? {
        Reply::Begin(Ok((block, bytes))) => {
            let snapshot = decode_snapshot(bytes.0, Some(&base))?;
            snapshot.excluded_len() as usize + usize::from(snapshot.is_visible(block.first))
        }
        Reply::Snapshot(bytes) => decode_snapshot(bytes.0, Some(&base))?.in_progress.iter().count(),
        Reply::Commit(outcomes) => {
            let promised = outcomes.len();
            assert_eq!(outcomes.count(), promised);
            promised
        }
        Reply::Abort(statuses) | Reply::Status(statuses) | Reply::Settle(statuses) => {
            let promised = statuses.len();
            assert_eq!(statuses.count(), promised);
            promised
        }
        Reply::List(listing) => {
            let promised = listing.len();
            assert_eq!(listing.count(), promised);
            promised
        }
        Reply::Error(error) => error.message.len(),
        _ => 0,
    })
}

fn use_both(frame: &Frame<'_>) -> (bool, bool) {
    (use_request(frame).is_ok(), use_reply(frame).is_ok())
}

#[test]
fn good_frames_are_read() {
    for bytes in requests() {
        assert!(use_request(&frame(&bytes)).is_ok(), "{bytes:02x?}");
        assert!(use_reply(&frame(&bytes)).is_err(), "a request taken for a reply: {bytes:02x?}");
    }
    for bytes in replies() {
        let read = use_reply(&frame(&bytes));
        let other_base = matches!(read, Err(DecodeError::WrongBase { new: 70, named: 70, have: Some(1) }));
        assert!(read.is_ok() || other_base, "{read:?} {bytes:02x?}");
        assert!(use_request(&frame(&bytes)).is_err(), "a reply taken for a request: {bytes:02x?}");
    }
}

#[test]
fn random_bytes_are_refused_or_read_but_never_a_panic() {
    let ops: Vec<u8> = (0..=20).chain(0x80..=0x94).chain([0xff]).collect();
    let mut read = 0;
    for seed in 0..60_000u64 {
        let mut random = Random::new(seed);
        let len = [0, 1, 3, 8, 17, 40, 120][random.below(7) as usize];
        let body = if random.below(2) == 0 {
            random.bytes(len)
        } else {
            // Small numbers get further than random ones: they are plausible counts, flags and forms.
            random.bytes(len).iter().map(|byte| byte % 5).collect()
        };
        let frame = Frame { op: ops[random.below(ops.len() as u64) as usize], flags: 0, id: seed, body: &body };
        let outcome = std::panic::catch_unwind(|| use_both(&frame));
        let (request, reply) = outcome.unwrap_or_else(|_| panic!("seed {seed}: {frame:?}"));
        read += usize::from(request || reply);
    }
    assert!(read > 5_000, "only {read} frames were read: the test reaches nothing");
}

#[test]
fn good_frames_with_broken_bytes_are_refused_or_read_but_never_a_panic() {
    let frames: Vec<Vec<u8>> = requests().into_iter().chain(replies()).collect();
    for seed in 0..120_000u64 {
        let mut random = Random::new(seed ^ 0x5eed_0000_0000);
        let good = &frames[random.below(frames.len() as u64) as usize];
        let mut bytes = good.clone();
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len() as u64) as usize;
            match random.below(5) {
                0 => bytes[at] ^= 1 << random.below(8),
                1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5) as usize],
                2 => bytes.truncate(at.max(HEADER_BYTES)),
                3 => bytes.insert(at, random.next() as u8),
                _ => {
                    let end = (at + 10).min(bytes.len());
                    bytes[at..end].fill(0xff);
                }
            }
        }
        let body = &bytes[HEADER_BYTES..];
        let frame = Frame { op: bytes[4], flags: 0, id: seed, body };
        let outcome = std::panic::catch_unwind(|| {
            let _ = use_both(&frame);
            // The header may be broken as well; the splitter must come to an end with any.
            let mut buffer = FrameBuffer::new(1 << 16);
            buffer.extend(&bytes);
            while let Ok(Some(frame)) = buffer.next_frame() {
                let _ = use_both(&frame);
            }
        });
        assert!(outcome.is_ok(), "seed {seed}: {bytes:02x?}");
    }
}

#[test]
fn every_cut_of_a_frame_is_refused_or_means_fewer_items() {
    for bytes in requests() {
        let whole = use_request(&frame(&bytes)).unwrap();
        for end in HEADER_BYTES..bytes.len() {
            let cut = Frame { body: &bytes[HEADER_BYTES..end], ..frame(&bytes) };
            if let Ok(items) = use_request(&cut) {
                let ends = [Op::Commit, Op::Abort, Op::Invalidate, Op::Status, Op::Settle, Op::Truncate];
                let others = [Op::CanCommit, Op::Checkpoint, Op::Ping];
                assert!(ends.iter().chain(&others).any(|op| *op as u8 == cut.op) && items <= whole, "{cut:?}");
            }
        }
    }
}

#[test]
fn counts_that_lie_cost_no_memory() {
    // A commit of 2^60 writes, and a snapshot of 2^60 intervals: refused for what they hold, not for what they claim.
    let mut commit = vec![0; 9];
    commit.extend([0xff; 8]);
    commit.push(0x0f);
    assert_eq!(
        Request::decode(&Frame { op: Op::Commit as u8, flags: 0, id: 1, body: &commit }).err(),
        Some(DecodeError::TooShort)
    );
    let mut whole = vec![2];
    whole.extend([1; 8]); // boot
    whole.extend([1, 6, 0, 0, 0, 0, 0]); // number, flags, read pointer, csn, chunks, version, chunks
    whole.extend([0xff; 8]);
    whole.push(0x0f);
    assert_eq!(decode_snapshot(&whole, None).err(), Some(DecodeError::TooShort));
}
