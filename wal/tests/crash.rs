//! Processes that are killed, and what the next one finds.
//!
//! The tests start this very program again as a child with a role; see [`child_of_these_tests`].

mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::{Random, Writer, payload, records, seed, small, stamp};
use seriatim_wal::{DiskOptions, DiskStorage, Engine, Log, Lsn, OpenError, Options, Storage, SyncMode};

const ROLE: &str = "SERIATIM_CHILD_ROLE";
const DIRECTORY: &str = "SERIATIM_CHILD_DIRECTORY";

fn storage(role: &str, directory: &Path) -> Box<dyn Storage> {
    let options = |engine| DiskOptions { engine, sync: SyncMode::Direct };
    Box::new(match role {
        "lossy" | "lossy and early" => DiskStorage::lossy(directory, Duration::from_millis(1)),
        "lossy and stuck" => DiskStorage::lossy(directory, Duration::from_secs(3600)),
        "uring" => DiskStorage::new(directory, options(Engine::Uring)),
        "thread" => DiskStorage::new(directory, options(Engine::Thread)),
        _ => DiskStorage::new(directory, DiskOptions::default()),
    })
}

/// The record that each number stands for.
fn record(number: u64) -> Vec<u8> {
    payload(number, (number * 37 % 3000) as usize)
}

/// Not a test by itself: what a child does.
#[test]
fn child_of_these_tests() {
    let (Ok(role), Ok(directory)) = (std::env::var(ROLE), std::env::var(DIRECTORY)) else { return };
    if role == "io_uring denied" {
        deny_io_uring();
    }
    let (mut log, recovered) = Log::open(storage(&role, Path::new(&directory)), small()).unwrap();
    let mut last = recovered.durable.0;
    drop(recovered);
    say(&log.write_path());
    loop {
        for _ in 0..1 + last % 5 {
            last += 1;
            log.append(1, &record(last)).unwrap();
        }
        let stamp = stamp(1, last);
        while log.submit(&stamp).unwrap().is_none() {
            log.wait().unwrap();
        }
        // The planted fault: a reply that leaves before its sync.
        if role.ends_with("early") || role.ends_with("stuck") {
            say(&last.to_string());
        }
        let group = log.wait().unwrap().unwrap();
        let durable = group.header().last().0;
        say(&durable.to_string());
        if last % 64 < 5 {
            // It may still be about the one before.
            let _ = log.save_image(Lsn(durable), Box::new(move |out| out.write_all(&record(durable))));
        }
    }
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "> {line}").and_then(|()| out.flush()).expect("a parent that listens");
}

struct Running {
    child: Child,
    lines: Box<dyn Iterator<Item = String>>,
}

impl Running {
    fn start(role: &str, directory: &Path) -> Running {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_of_these_tests", "--nocapture"])
            .env(ROLE, role)
            .env(DIRECTORY, directory)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let said = lines.map_while(Result::ok).filter_map(|line| {
            // The first one may share its line with the test runner's.
            line.split_once("> ").map(|(_, said)| said.to_owned())
        });
        Running { child, lines: Box::new(said) }
    }

    fn line(&mut self) -> String {
        self.lines.next().expect("a child that says something")
    }

    /// Kills it after some lines and says the last number that it claimed, however late that came.
    fn kill_after(mut self, lines: u64) -> u64 {
        let mut claimed = 0;
        for _ in 0..lines {
            claimed = self.line().parse().unwrap();
        }
        self.child.kill().unwrap();
        for line in self.lines.by_ref() {
            // A line that the kill cut off is no claim.
            claimed = line.parse().unwrap_or(claimed).max(claimed);
        }
        self.child.wait().unwrap();
        claimed
    }
}

/// Opens what a killed child left, and says how many records are there; all of them must be right.
fn found(role: &str, directory: &Path) -> u64 {
    let (_, recovered) = Writer::open(storage(role, directory), small());
    let covered = recovered.image.as_ref().map_or(0, |image| image.covers.0);
    if let Some(image) = &recovered.image {
        assert_eq!(image.bytes(), record(covered));
    }
    let found = records(&recovered);
    for (number, (_, payload)) in (covered + 1..).zip(&found) {
        assert!(*payload == record(number), "record {number}");
    }
    recovered.durable.0
}

fn killed_again_and_again(role: &str) {
    let seed = seed();
    let mut random = Random(seed);
    let directory = tempfile::tempdir().unwrap();
    for cycle in 0..12 {
        let mut running = Running::start(role, directory.path());
        running.line();
        let claimed = running.kill_after(1 + random.below(60));
        let found = found(role, directory.path());
        assert!(found >= claimed, "seed {seed}, cycle {cycle}: {claimed} claimed, {found} found");
    }
}

#[test]
fn what_was_claimed_survives_kill_by_uring() {
    killed_again_and_again("uring");
}

#[test]
fn what_was_claimed_survives_kill_by_thread() {
    killed_again_and_again("thread");
}

#[test]
fn what_was_claimed_survives_kill_on_lossy_storage() {
    killed_again_and_again("lossy");
}

#[test]
fn lossy_storage_finds_a_claim_before_its_sync() {
    let directory = tempfile::tempdir().unwrap();
    let mut running = Running::start("lossy and stuck", directory.path());
    running.line();
    let claimed = running.kill_after(1);
    assert!(claimed > 0);
    assert_eq!(found("lossy and stuck", directory.path()), 0, "nothing reached the file");

    // With an ordinary delay the planted fault is found within a few kills: each claim is 1 ms early.
    let mut kills = 0;
    loop {
        let directory = tempfile::tempdir().unwrap();
        let mut running = Running::start("lossy and early", directory.path());
        running.line();
        let claimed = running.kill_after(3);
        if found("lossy and early", directory.path()) < claimed {
            break;
        }
        kills += 1;
        assert!(kills < 200, "the fault was not found");
    }
}

#[test]
fn lossy_storage_forgets_when_it_is_dropped() {
    let directory = tempfile::tempdir().unwrap();
    let (mut writer, _) = Writer::open(storage("lossy", directory.path()), small());
    writer.append(1, b"synced").unwrap();
    writer.flush();
    let durable = writer.taken.clone();
    drop(writer);
    let stuck = Box::new(DiskStorage::lossy(directory.path(), Duration::from_secs(3600)));
    let mut writer = Writer::reopen(stuck, small(), &durable);
    writer.append(1, b"never synced").unwrap();
    let stamp = writer.stamp();
    writer.log.submit(&stamp).unwrap().unwrap();
    assert_eq!(writer.log.poll().unwrap().map(|group| *group.header()), None);
    drop(writer);
    drop(Writer::reopen(storage("lossy", directory.path()), small(), &durable));
}

#[test]
fn another_process_is_refused_while_one_has_the_directory() {
    let directory = tempfile::tempdir().unwrap();
    let mut running = Running::start("uring", directory.path());
    running.line();
    let refused = Log::open(storage("uring", directory.path()), small()).err().unwrap();
    let OpenError::Locked { directory: named } = &refused else { panic!("{refused}") };
    assert_eq!(*named, directory.path().display().to_string());
    let claimed = running.kill_after(1);
    assert!(found("uring", directory.path()) >= claimed);
}

#[test]
fn a_log_dropped_in_flight_writes_its_own_bytes() {
    for engine in [Engine::Uring, Engine::Thread] {
        for sync in [SyncMode::Direct, SyncMode::Buffered] {
            let directory = tempfile::tempdir().unwrap();
            let open = || Box::new(DiskStorage::new(directory.path(), DiskOptions { engine, sync }));
            let options = Options { segment_bytes: 4 << 20, segments_ahead: 1, ..Options::default() };
            let mut taken: Vec<(u8, Vec<u8>)> = Vec::new();
            for round in 0..10 {
                let mut writer = Writer::reopen(open(), options.clone(), &taken);
                // One that fits the registered part of a buffer, and one that does not.
                writer.append(1, &payload(round, if round % 2 == 0 { 100_000 } else { 2_000_000 })).unwrap();
                let stamp = writer.stamp();
                while writer.log.submit(&stamp).unwrap().is_none() {
                    writer.settle();
                }
                taken.clone_from(&writer.taken);
                drop(writer);
                // Memory that is freed now is handed out again at once.
                let garbage: Vec<Vec<u8>> = (0..8).map(|_| vec![0xee; 2_200_000]).collect();
                assert!(std::hint::black_box(garbage).len() == 8);
            }
            drop(Writer::reopen(open(), options, &taken));
        }
    }
}

#[test]
fn a_thread_takes_over_where_io_uring_is_denied() {
    let directory = tempfile::tempdir().unwrap();
    let mut running = Running::start("io_uring denied", directory.path());
    let write_path = running.line();
    assert!(write_path.starts_with("a log thread, since io_uring is denied (Operation not permitted"), "{write_path}");
    let claimed = running.kill_after(20);
    assert!(found("", directory.path()) >= claimed);
}

/// From here on this thread's `io_uring_setup` answers `EPERM`, as it does in many containers.
fn deny_io_uring() {
    let statement = |code: u32, jump_true: u8, jump_false: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt: jump_true,
        jf: jump_false,
        k,
    };
    let mut program = [
        // The number of the call is the first word.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_io_uring_setup as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: both calls only read their arguments, and `filter` points to a program that lives until they return.
    let answers = unsafe {
        [
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
            libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter),
        ]
    };
    assert_eq!(answers, [0, 0], "{}", std::io::Error::last_os_error());
}
