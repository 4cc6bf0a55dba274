//! `seriatim check history`: exit codes, and the histories of real runs from end to end.

use std::io::Write;
use std::process::{Command, Output, Stdio};

fn check(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_seriatim"));
    command.arg("check").args(arguments);
    command
}

/// Answers exit code, standard output and standard error.
fn ended(output: Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    println!("{}\n{err}{out}", output.status);
    (output.status.code().unwrap(), out, err)
}

/// Judges what comes on standard input.
fn judge(lines: &str, arguments: &[&str]) -> (i32, String, String) {
    let mut command = check(&["history", "-"]);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // It may have seen enough before all was written.
    let _ = child.stdin.take().unwrap().write_all(lines.as_bytes());
    ended(child.wait_with_output().unwrap())
}

const GOOD: &str = r#"{"tx":1,"writes":["k"],"outcome":"committed"}
{"tx":2,"reads":[{"key":"k","writer":1}],"writes":["k"],"outcome":"committed"}
"#;

#[test]
fn a_clean_history_ends_with_0_and_a_wrong_one_with_3() {
    let (code, out, _) = judge(GOOD, &[]);
    assert_eq!(code, 0);
    assert!(out.ends_with("passed\n"));

    let lost = format!("{GOOD}{}", GOOD.lines().last().unwrap().replace("\"tx\":2", "\"tx\":3"));
    let (code, out, _) = judge(&lost, &[]);
    assert_eq!(code, 3);
    assert!(out.contains("lost-update: 3 read \"k\", missed that 2 overwrote it") && out.ends_with("FAILED\n"));

    let (code, out, _) = judge(&lost, &["-o", "json", "--examples", "0"]);
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &report["failed"], &report["counts"]["lost-update"]), (3, &true.into(), &1.into()));
    assert_eq!(report["anomalies"].as_array().map(Vec::len), Some(0));
}

#[test]
fn what_is_no_history_ends_with_1_and_names_the_line() {
    let (code, out, err) = judge(&format!("{GOOD}{{\"outcome\":\"lost\"}}\n"), &[]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("line 3") && err.contains("unknown variant `lost`"));
    let (code, _, err) = judge("{\"outcome\":\"aborted\",\"csn\":7}", &[]);
    assert_eq!(code, 1);
    assert!(err.contains("line 1") && err.contains("commit number 7"));
    let (code, out, err) = judge("", &[]);
    assert_eq!((code, out.as_str()), (1, ""));
    assert!(err.contains("nothing to judge"), "{err}");
    assert_eq!(ended(check(&["history", "/nowhere/at/all"]).output().unwrap()).0, 1);
    assert_eq!(ended(check(&["history"]).output().unwrap()).0, 2);
}

/// Runs a bank and judges its history.
fn judge_bank(arguments: &[&str]) -> (i32, serde_json::Value) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("history");
    let file = file.to_str().unwrap();
    ended(check(&["bank", "--clients", "8", "--history", file]).args(arguments).output().unwrap());
    let (code, out, _) = ended(check(&["history", file, "-o", "json"]).output().unwrap());
    (code, serde_json::from_str(&out).unwrap())
}

#[test]
fn a_bank_under_fire_has_a_clean_history() {
    let (code, report) = judge_bank(&["--secs", "5", "--kill-every", "2", "--accounts", "100"]);
    assert_eq!((code, &report["counts"]), (0, &serde_json::json!({})));
    assert_eq!(report["order"], "commit-numbers");
    for positive in ["committed", "on_snapshots", "reads", "writes", "unknown"] {
        assert!(report[positive].as_u64() > Some(0), "{positive}");
    }
}

#[test]
fn the_history_of_a_bank_that_shows_a_dead_clients_half_tells() {
    let (code, report) = judge_bank(&["--secs", "3", "--kill-every", "0", "--plant", "abort-on-disconnect"]);
    assert_eq!(code, 3);
    assert!(report["counts"]["stale-read"].as_u64() > Some(0));
}

#[test]
fn the_history_of_a_bank_that_loses_updates_tells() {
    let (code, report) = judge_bank(&["--secs", "2", "--kill-every", "0", "--plant", "lost-update"]);
    assert_eq!(code, 3);
    for kind in ["both-committed", "lost-update"] {
        assert!(report["counts"][kind].as_u64() > Some(0), "{kind}");
    }
}
