//! Yardsticks do the work that they claim.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use seriatim_perf::yardstick::cold_read::{files_of, make_cold, read};
use seriatim_perf::yardstick::echo::{EchoLoad, EchoServer, FRAME_BYTES_MIN, echo};
use seriatim_perf::yardstick::sync_write::{BLOCK_BYTES, SyncFile, SyncPath};

#[test]
fn every_byte_is_echoed_and_every_operation_goes_all_its_steps() {
    let server = EchoServer::start().expect("starts");
    let time = Duration::from_millis(50);
    let load = EchoLoad { connections: 3, depth: 16, steps: vec![(2.5, 20.0), (45.0, 3.0)], time };
    let echoed = echo(server.address(), &load).expect("echoes");
    assert!(echoed.operations > 0 && echoed.elapsed >= time, "{echoed:?}");
    // One operation of each step was measured for each that went all the way, and some are on their way.
    let answered = echoed.latency_ns.len();
    let in_flight = 3 * 16;
    assert!((2 * echoed.operations..=2 * echoed.operations + in_flight).contains(&answered), "{echoed:?}");
    // Of what was sent, one frame of each operation in flight at most has no answer yet.
    let (sent, received) = (45.0 * echoed.operations as f64, 20.0 * echoed.operations as f64);
    assert!(echoed.sent as f64 >= sent && echoed.received as f64 >= received, "{echoed:?}");
    let frames = echoed.frames + in_flight;
    let most = |each: f64| each * (echoed.operations + in_flight) as f64 + (frames * u64::from(FRAME_BYTES_MIN)) as f64;
    assert!(echoed.sent as f64 <= most(47.5) && echoed.received as f64 <= most(23.0), "{echoed:?}");
}

#[test]
fn at_depth_one_a_round_trip_carries_exactly_its_bytes() {
    let server = EchoServer::start().expect("starts");
    let load = EchoLoad { connections: 1, depth: 1, steps: vec![(48.0, 16.0)], time: Duration::from_millis(20) };
    let echoed = echo(server.address(), &load).expect("echoes");
    assert_eq!((echoed.frames, echoed.latency_ns.len()), (echoed.operations, echoed.operations));
    assert_eq!((echoed.sent, echoed.received), (48 * (echoed.operations + 1), 16 * echoed.operations));
}

#[test]
fn every_write_is_synced_and_is_in_the_file() {
    // Beside the test's own files: a file system in memory may take no direct writes.
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    for path in [SyncPath::Direct, SyncPath::Buffered] {
        let name = directory.path().join(format!("{path:?}"));
        let mut file = SyncFile::create(&name, 8 * BLOCK_BYTES as u64, path).expect("made");
        let made = std::fs::metadata(&name).expect("there");
        assert_eq!((made.len(), made.blocks() * 512 >= made.len()), (8 * BLOCK_BYTES as u64, true), "written ahead");
        let synced = file.write(BLOCK_BYTES + 1, 3).expect("written");
        assert_eq!((synced.writes, synced.bytes, synced.latency_ns.len()), (3, 6 * BLOCK_BYTES as u64, 3));
        let bytes = std::fs::read(&name).expect("readable");
        assert!(bytes[..6 * BLOCK_BYTES].iter().all(|byte| *byte == 0xa5));
        assert!(bytes[6 * BLOCK_BYTES..].iter().all(|byte| *byte == 0), "no write was larger than it says");
    }
}

#[test]
fn every_byte_is_read_and_counts_for_the_checksum() {
    let directory = tempfile::tempdir().expect("a directory");
    let all: Vec<u8> = (0..3_000_001u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for (name, part) in [("a", &all[..1_000_000]), ("b", &all[1_000_000..])] {
        std::fs::write(directory.path().join(name), part).expect("written");
    }
    let files = files_of(directory.path()).expect("listed");
    make_cold(&files).expect("let go of");
    let seen = read(&files, u64::MAX).expect("read");
    assert_eq!((seen.bytes, seen.crc), (all.len() as u64, crc32c::crc32c(&all)));
    let seen = read(&files, 2_000_000).expect("read");
    assert_eq!((seen.bytes, seen.crc), (2_000_000, crc32c::crc32c(&all[..2_000_000])));
}
