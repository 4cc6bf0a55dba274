//! `seriatim check bank` on real processes: it passes on the server that ships, fails on each planted one, and leaves
//! nothing behind.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

fn bank(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_seriatim"));
    command.args(["check", "bank", "-o", "json", "--clients", "8"]).args(arguments);
    command
}

/// Runs a check to its end. Answers its exit code and its report.
fn run(arguments: &[&str]) -> (i32, serde_json::Value) {
    let Output { status, stdout, stderr } = bank(arguments).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    println!("{arguments:?}: {status}\n{err}{out}");
    (status.code().unwrap(), serde_json::from_str(&out).unwrap_or_default())
}

fn assert_passes(arguments: &[&str]) -> serde_json::Value {
    let (code, report) = run(arguments);
    assert_eq!(code, 0);
    for zero in ["acknowledged_lost", "snapshot_sum_errors", "reads_taken_back", "duplicate_write_pointers"] {
        assert_eq!(report[zero], 0, "{zero}");
    }
    for positive in ["transfers", "client_kills", "half_way_kills", "audits", "quick_audits"] {
        assert!(report[positive].as_u64() > Some(0), "{positive}");
    }
    assert_eq!(report["failed"], false);
    report
}

fn assert_fails(arguments: &[&str], count: &str) {
    let (code, report) = run(arguments);
    assert_eq!((code, &report["failed"]), (3, &true.into()));
    assert!(report[count].as_u64() > Some(0), "{count}");
}

#[test]
fn it_passes_while_everything_is_killed() {
    for storage in ["disk", "lossy"] {
        let report = assert_passes(&["--secs", "5", "--kill-every", "2", "--storage", storage]);
        assert!(report["restarts"].as_u64() > Some(0));
    }
}

#[test]
fn it_fails_where_updates_get_lost() {
    assert_fails(&["--secs", "2", "--kill-every", "0", "--plant", "lost-update"], "snapshot_sum_errors");
}

#[test]
fn it_fails_where_commits_are_visible_before_they_are_durable() {
    let arguments = ["--secs", "6", "--kill-every", "2", "--storage", "lossy", "--plant", "early-visible"];
    assert_fails(&arguments, "reads_taken_back");
}

#[test]
fn it_fails_where_a_dead_clients_half_becomes_visible() {
    assert_fails(&["--secs", "3", "--kill-every", "0", "--plant", "abort-on-disconnect"], "snapshot_sum_errors");
}

#[test]
fn usage_that_proves_nothing_is_refused() {
    assert_eq!(run(&["--storage", "memory"]).0, 2);
    assert_eq!(run(&["--accounts", "1"]).0, 2);
    let used = tempfile::tempdir().unwrap();
    std::fs::write(used.path().join("something"), "").unwrap();
    assert_eq!(run(&["--dir", used.path().to_str().unwrap()]).0, 1);
}

/// Starts a check that runs for long and waits until money moves.
fn start(directory: &Path) -> Child {
    let directory = directory.join("run");
    let mut command = bank(&["--secs", "600", "--dir", directory.to_str().unwrap()]);
    let mut check = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut progress = BufReader::new(check.stderr.take().unwrap()).lines();
    let moving = |line: &String| line.contains(" transfers") && !line.contains(" 0 transfers");
    progress.find(|line| line.as_ref().is_ok_and(moving)).unwrap().unwrap();
    // Read on, or the check would stand still for want of somebody who listens.
    std::thread::spawn(move || progress.count());
    check
}

/// Waits until no process has `directory` among its arguments; not for ever.
fn wait_until_nothing_is_left(directory: &Path) {
    let directory = directory.to_str().unwrap().as_bytes();
    let uses = |process: std::io::Result<std::fs::DirEntry>| {
        let command_line = std::fs::read(process.unwrap().path().join("cmdline")).unwrap_or_default();
        command_line.windows(directory.len()).any(|part| part == directory)
    };
    let give_up = Instant::now() + Duration::from_secs(20);
    while std::fs::read_dir("/proc").unwrap().any(uses) {
        assert!(Instant::now() < give_up, "a process outlived the check that started it");
        std::thread::yield_now();
    }
}

#[test]
fn an_interrupted_check_ends_all_it_started() {
    let directory = tempfile::tempdir().unwrap();
    let mut check = start(directory.path());
    kill_process(Pid::from_child(&check), Signal::INT).unwrap();
    assert_eq!(check.wait().unwrap().code(), Some(130));
    wait_until_nothing_is_left(directory.path());
}

#[test]
fn a_killed_check_leaves_no_process_behind() {
    let directory = tempfile::tempdir().unwrap();
    let mut check = start(directory.path());
    check.kill().unwrap();
    check.wait().unwrap();
    wait_until_nothing_is_left(directory.path());
}
