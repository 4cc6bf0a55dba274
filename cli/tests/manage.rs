//! Commands for operators against a real server: images, fences, labels, stores, invalid transactions. Exit
//! codes, text and JSON.

use std::io::Write;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use seriatim_client::{Client, ClientOptions};
use seriatim_core::{BeginOptions, ChangeSet, CommitError, Status};

/// A server that is stopped when it goes.
struct Served {
    child: Child,
    address: String,
    _directory: tempfile::TempDir,
}

impl Served {
    fn start(arguments: &[&str]) -> Served {
        let directory = tempfile::tempdir().unwrap();
        let ports = directory.path().join("ports");
        let mut command = Command::new(env!("CARGO_BIN_EXE_seriatim"));
        command.args(["serve", "--listen", "127.0.0.1:0", "-o", "json", "--ports-file"]).arg(&ports);
        command.arg("--data").arg(directory.path().join("data")).args(arguments).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // It says hello once it can be reached.
        let mut hello = String::new();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut hello).unwrap();
        let ports: Value = serde_json::from_slice(&std::fs::read(ports).unwrap()).unwrap();
        let address = ports.as_object().unwrap().values().find_map(Value::as_str).unwrap().to_owned();
        Served { child, address, _directory: directory }
    }

    fn connect(&self) -> Client {
        Client::connect(self.address.as_str(), ClientOptions::default()).unwrap()
    }

    /// Runs a command against it.
    fn ask(&self, arguments: &[&str]) -> (i32, Output) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_seriatim"));
        let output = command.args(arguments).args(["--addr", &self.address]).output().unwrap();
        (output.status.code().unwrap(), output)
    }

    fn json(&self, arguments: &[&str]) -> (i32, Value) {
        let (code, output) = self.ask(&[arguments, &["-o", "json"]].concat());
        (code, serde_json::from_slice(&output.stdout).unwrap())
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn changes(key: &str) -> ChangeSet {
    ChangeSet::of_writes([key.as_bytes()])
}

/// Feeds an image to `image show -`.
fn show(image: &[u8], arguments: &[&str]) -> (i32, Output) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_seriatim"));
    command.args(["image", "show", "-"]).args(arguments);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(image);
    let output = child.wait_with_output().unwrap();
    (output.status.code().unwrap(), output)
}

#[test]
fn an_image_is_dumped_and_shown_and_a_damaged_one_is_refused() {
    let served = Served::start(&[]);
    let client = served.connect();
    let (committed, invalid) =
        (client.begin(BeginOptions::default()).unwrap(), client.begin(BeginOptions::default()).unwrap());
    let pointer = committed.write_pointer();
    committed.commit(&changes("k")).unwrap();
    assert!(client.invalidate(invalid.write_pointer()).unwrap());

    let (code, output) = served.ask(&["image", "dump", "-"]);
    let image = output.stdout;
    assert_eq!(code, 0);
    let (code, output) = show(&image, &["-o", "json"]);
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(code, 0);
    assert_eq!([&shown["commits"], &shown["open"], &shown["invalid"]], [1, 0, 1]);
    assert!(shown["read_pointer"].as_u64().unwrap() >= pointer.0);

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("image");
    let file = file.to_str().unwrap();
    assert_eq!(served.ask(&["image", "dump", file]).0, 0);
    assert_eq!(show(&std::fs::read(file).unwrap(), &[]).0, 0);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing half written is left");
    let long = directory.path().join("i".repeat(255));
    assert_eq!(served.ask(&["image", "dump", long.to_str().unwrap()]).0, 0);
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&long, &link).unwrap();
    assert_eq!(served.ask(&["image", "dump", link.to_str().unwrap()]).0, 0);
    assert!(link.is_symlink(), "it is written where the link points to");
    for device in ["/dev/full", "/dev/null"] {
        assert_eq!(served.ask(&["image", "dump", device]).0, i32::from(device == "/dev/full"));
        assert!(!std::fs::metadata(device).unwrap().is_file(), "a device is written to, not replaced");
    }
    let (code, output) = served.ask(&["image", "dump", "/nowhere/at/all"]);
    assert_eq!((code, String::from_utf8_lossy(&output.stderr).contains("/nowhere/at/all")), (1, true));

    for cut in [0, 7, 64, image.len() - 1] {
        let (code, output) = show(&image[..cut], &[]);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(code, 1, "{error}");
        assert!(error.contains("no image file") || error.contains("damaged"), "{error}");
    }
}

#[test]
fn a_fence_tells_who_is_left() {
    let served = Served::start(&["--dev"]);
    let client = served.connect();
    let tx = client.begin(BeginOptions::default()).unwrap();
    let (code, report) = served.json(&["fence", "--wait-secs", "0"]);
    assert_eq!((code, &report["passed"], &report["open"]), (1, &false.into(), &1.into()));
    tx.commit(&changes("k")).unwrap();
    let (code, report) = served.json(&["fence"]);
    assert_eq!((code, &report["passed"]), (0, &true.into()));
}

#[test]
fn labels_are_listed_and_named_and_can_be_kept_out() {
    for (retention, listed, named) in [("committed", true, true), ("active", true, false), ("off", false, false)] {
        let served = Served::start(&["--dev", "--labels", retention]);
        let client = served.connect();
        let winner = client.begin_as(BeginOptions::default(), "billing").unwrap();
        let loser = client.begin(BeginOptions::default()).unwrap();
        let (_, list) = served.json(&["tx", "ls"]);
        let label = &list["transactions"][0]["label"];
        assert_eq!(label.as_str(), listed.then_some("billing"), "{retention}");
        winner.commit(&changes("k")).unwrap();
        match loser.commit(&changes("k")).unwrap_err() {
            seriatim_client::Error::Commit(CommitError::Conflict { label, .. }) => {
                assert_eq!(label.as_deref(), named.then_some("billing"), "{retention}");
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn stores_are_registered_acknowledge_and_are_taken_out() {
    let served = Served::start(&["--write-delay-secs", "0"]);
    let client = served.connect();
    let (code, output) = served.ask(&["store", "ls"]);
    assert_eq!(code, 0);
    assert!(String::from_utf8_lossy(&output.stdout).contains("no store is registered"), "{output:?}");
    for changed in [true, false] {
        let (code, report) = served.json(&["store", "register", "purses"]);
        assert_eq!((code, &report["changed"]), (0, &changed.into()));
    }
    let invalid = client.begin(BeginOptions { timeout_ms: Some(1), ..BeginOptions::default() }).unwrap().leave_open();
    while !matches!(client.status(invalid).unwrap(), Status::Invalid(_)) {
        std::thread::yield_now();
    }
    client.begin(BeginOptions::default()).unwrap().commit(&changes("k")).unwrap();
    let (code, bounds) = served.json(&["store", "clean-bound"]);
    let bound = bounds["clean_bound"].as_u64().unwrap();
    assert!(code == 0 && bound > invalid.0, "{bounds}");
    let (code, blocked) = served.json(&["invalid", "blocked"]);
    assert_eq!((code, &blocked["slowest"], &blocked["invalid"]), (0, &"purses".into(), &1.into()));
    assert_eq!((&blocked["holder"]["what"], &blocked["stores"][0]["bound"]), (&"nothing".into(), &0.into()));
    let (code, output) = served.ask(&["store", "ack", "purses", &(bound + 1).to_string()]);
    assert_eq!(code, 1);
    assert!(String::from_utf8_lossy(&output.stderr).contains("nobody was told"), "{output:?}");
    let (code, report) = served.json(&["store", "ack", "purses", &bound.to_string()]);
    assert_eq!((code, &report["bound"], &report["invalid"]), (0, &bound.into(), &0.into()));
    let (code, output) = served.ask(&["store", "remove", "purses"]);
    assert_eq!(code, 1, "{output:?}");
    let (code, report) = served.json(&["store", "remove", "purses", "--yes"]);
    assert_eq!((code, &report["changed"]), (0, &true.into()));
    assert_eq!(served.json(&["store", "ls"]).1["stores"], Value::Array(Vec::new()));
    assert_eq!(served.ask(&["store", "register", &"x".repeat(65)]).0, 2);
}

#[test]
fn invalid_transactions_are_counted_listed_and_forgotten_when_somebody_says_yes() {
    let served = Served::start(&[]);
    let client = served.connect();
    let open = client.begin_as(BeginOptions::default(), "nightly").unwrap();
    let invalid: Vec<String> = (0..4)
        .map(|_| {
            let tx = client.begin(BeginOptions::default()).unwrap().leave_open();
            assert!(client.invalidate(tx).unwrap());
            tx.to_string()
        })
        .collect();
    let (code, size) = served.json(&["invalid", "size"]);
    assert_eq!((code, &size["invalid"], &size["excluded"]), (0, &4.into(), &4.into()));
    let (_, list) = served.json(&["invalid", "ls", "--max", "3"]);
    assert_eq!((list["transactions"].as_array().unwrap().len(), &list["more"]), (3, &true.into()));
    client.begin(BeginOptions::default()).unwrap().commit(&changes("k")).unwrap();
    let (_, blocked) = served.json(&["invalid", "blocked"]);
    assert_eq!((&blocked["holder"]["what"], &blocked["holder"]["label"]), (&"open".into(), &"nightly".into()));
    let left = || served.json(&["invalid", "size"]).1["invalid"].as_u64().unwrap();

    let (code, report) = served.json(&["invalid", "truncate", &invalid[0]]);
    assert_eq!((code, &report["done"], left()), (1, &false.into(), 4));
    let named = [&invalid[0], &invalid[1]].map(String::as_str);
    let (code, report) = served.json(&[&["invalid", "truncate", "--yes"], &named[..]].concat());
    assert_eq!((code, &report["forgotten"], left()), (0, &2.into(), 2));
    let (code, report) = served.json(&["invalid", "truncate", &invalid[1], &invalid[2], "--yes"]);
    assert_eq!((code, &report["left"][0].to_string(), left()), (1, &invalid[1], 1));

    let before = ["invalid", "truncate", "--before", "now+1h"];
    assert_eq!(served.json(&before).1["forgotten"], 1);
    let said = served.ask(&["invalid", "truncate", "--before", "0"]).1.stdout;
    assert!(String::from_utf8_lossy(&said).contains("from before 1970-01-01T00:00:00Z"), "{said:?}");
    let (code, output) = served.ask(&[&before[..], &["--yes"]].concat());
    assert!(code == 1 && String::from_utf8_lossy(&output.stderr).contains("is open"), "{output:?}");
    open.commit(&changes("j")).unwrap();
    assert_eq!(served.json(&["invalid", "truncate", "--before", "now-7d", "--yes"]).1["forgotten"], 0);
    assert_eq!(served.json(&[&before[..], &["--yes"]].concat()).1["forgotten"], 1);
    assert_eq!(left(), 0);
    for wrong in ["now-1w", "1796079087692000000"] {
        assert_eq!(served.ask(&["invalid", "truncate", "--before", wrong, "--yes"]).0, 2);
    }
    assert_eq!(served.ask(&["invalid", "truncate", "--yes"]).0, 2, "what?");
}

#[test]
fn what_is_asked_wrongly_is_a_usage_error() {
    let served = Served::start(&["--dev"]);
    for wrong in [
        &["invalid"][..],
        &["invalid", "truncate"],
        &["invalid", "truncate", "seven"],
        &["invalid", "truncate", "0"],
        &["invalid", "truncate", "7", "--before", "now"],
        &["invalid", "truncate", "--before", "now 6h"],
        &["invalid", "truncate", "--before", "now/1d"],
        &["store", "register", ""],
        &["store", "ack", "data"],
        &["image", "dump"],
        &["fence", "--wait-secs", "-1"],
    ] {
        let (code, output) = served.ask(wrong);
        assert_eq!((code, output.stdout.len()), (2, 0), "{wrong:?}");
        assert!(!output.stderr.is_empty(), "{wrong:?}");
    }
}
