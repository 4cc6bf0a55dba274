//! What an invalid transaction costs in memory and in an image: a million neighbours, and a million that are a millisecond
//! apart.

use std::process::Command;
use std::time::Instant;

use seriatim_core::event::{Begin, Event, IdBytes, PointerContext};
use seriatim_core::*;

const TRANSACTIONS: u64 = 1_000_000;

fn apply(state: &mut Published, event: Event) {
    let mut bytes = Vec::new();
    event.encode(&mut PointerContext::default(), &mut bytes);
    let event: Event<IdBytes> = Event::decode(event.kind() as u8, &bytes, &mut PointerContext::default()).unwrap();
    state.apply(&event).unwrap();
}

/// So many invalid transactions, each so far from the one before; they began in order and expired nearly so.
fn state(distance: u64) -> Published {
    let mut state = Published::new(16);
    let first = 1_790_000_000_000 * POINTERS_PER_MS;
    apply(&mut state, Event::Start { boot: 1, first: WritePointer(first), time: SequencerTime(0) });
    apply(&mut state, Event::Window { end: WritePointer(first + TRANSACTIONS * distance + 1) });
    for group in 0..TRANSACTIONS / 100 {
        let pointers: Vec<u64> = (0..100).map(|n| first + (100 * group + n) * distance).collect();
        for pointer in &pointers {
            let ms = (pointer - first) / POINTERS_PER_MS;
            apply(
                &mut state,
                Event::Begin(Begin {
                    first: WritePointer(*pointer),
                    count: 1,
                    kind: Kind::Short,
                    deferred: false,
                    detached: false,
                    deadline: SequencerTime(30_000 + ms),
                    snapshot: CommitNumber(0),
                    settled: WritePointer(0),
                }),
            );
            if distance > 1 {
                let (old_end, new_start) = (WritePointer(pointer + 1), WritePointer(pointer + distance));
                apply(&mut state, Event::Tick { old_end, new_start });
            }
        }
        // Every seventh first, so that most come late.
        let (early, late): (Vec<_>, Vec<_>) = pointers.iter().enumerate().partition(|(place, _)| place % 7 == 0);
        for (_, pointer) in early.into_iter().chain(late) {
            apply(&mut state, Event::Invalidated { tx: WritePointer(*pointer), cause: InvalidCause::Expired });
        }
    }
    assert_eq!(state.invalid_len(), TRANSACTIONS);
    state
}

/// Memory of this process that is in use, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
}

/// Measures in a process of its own: what an earlier state has freed would be taken again unseen.
const DISTANCE: &str = "SERIATIM_TEST_DISTANCE";

#[test]
fn an_invalid_transaction_costs_few_bytes() {
    if let Ok(distance) = std::env::var(DISTANCE) {
        return measure(distance.parse().unwrap());
    }
    for distance in [1, POINTERS_PER_MS] {
        let mut child = Command::new(std::env::current_exe().unwrap());
        let status = child.arg("--nocapture").env(DISTANCE, distance.to_string()).status().unwrap();
        assert!(status.success(), "{distance} apart: {status}");
    }
}

fn measure(distance: u64) {
    let before = resident();
    let mut state = state(distance);
    let memory = (resident() - before) as f64 / TRANSACTIONS as f64;
    let image = state.save_image();
    let in_image = image.len() as f64 / TRANSACTIONS as f64;
    let snapshot = state.next_snapshot();
    assert_eq!(Published::load_image(&image, 16).unwrap().invalid_len(), TRANSACTIONS);
    let last = snapshot.invalid.last().unwrap();
    // A reader holds the set, so the next change copies a part of it.
    let began = Instant::now();
    apply(&mut state, Event::Truncate { tx: last });
    let copied = began.elapsed();
    let began = Instant::now();
    for n in 0..TRANSACTIONS {
        let pointer = WritePointer(last.0 - (n * 7919 % TRANSACTIONS) * distance);
        assert!(snapshot.invalid.contains(pointer));
    }
    let looked_up = began.elapsed() / TRANSACTIONS as u32;
    println!(
        "{distance} apart: {memory:.1} bytes in memory, {in_image:.1} in the image; {copied:?} for a change, {looked_up:?} to find one"
    );
    assert!(memory < 40.0, "{memory} bytes in memory");
    assert!(in_image < 6.0, "{in_image} bytes in the image");
}
