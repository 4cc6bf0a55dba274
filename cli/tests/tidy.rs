//! Rules of the house that a compiler does not check, for all rooms. Those of one room stand in its own tests.

use std::fs;
use std::path::{Path, PathBuf};

/// Each room and the rooms that it reaches, with its tests. Only rooms further up in this list: nothing points back.
const ROOMS: [(&str, &[&str]); 10] = [
    ("core", &[]),
    ("wal", &[]),
    ("wire", &["core"]),
    ("net", &["core", "wal", "wire"]),
    ("client", &["core", "wire"]),
    ("kv", &["core", "net", "client"]),
    ("perf", &["core", "wire", "wal", "net", "client"]),
    ("history", &[]),
    ("sim", &["core", "wal", "wire", "net", "client", "history"]),
    ("cli", &["core", "wire", "net", "client", "kv", "perf", "history"]),
];

/// The only files with unsafe code. A further one is a decision of its own: say here why safe code cannot do it.
const UNSAFE: [&str; 6] = [
    // A snapshot read while it is being replaced.
    "core/src/current.rs",
    // Zeroed memory that is touched when it is used, and prefetching.
    "core/src/memory.rs",
    // Events that pass from thread to thread without a lock.
    "core/src/ring.rs",
    // Sealed segments are mapped, and a mapping is only as constant as its file.
    "wal/src/storage/directory.rs",
    // Requests to the kernel name memory by its address.
    "wal/src/storage/uring.rs",
    // A filter of system calls, to stand for a kernel without io_uring.
    "wal/tests/crash.rs",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a room stands in the house")
}

/// Every Rust file of every room, by its path from the root.
fn sources() -> Vec<(String, String)> {
    let mut folders: Vec<PathBuf> = ROOMS
        .iter()
        .flat_map(|(room, _)| ["src", "tests", "benches"].map(|part| root().join(room).join(part)))
        .collect();
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        // Not every room has every part.
        let Ok(entries) = fs::read_dir(&folder) else { continue };
        for entry in entries {
            let path = entry.expect("the folder can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root()).expect("it is in the house").to_str().expect("names are plain");
                sources.push((name.to_owned(), fs::read_to_string(&path).expect("a source is text")));
            }
        }
    }
    assert!(sources.len() > 150, "only {} sources were found", sources.len());
    sources
}

/// The code of a line, without its comment.
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

/// The rooms that a manifest names as dependencies, whatever the section.
fn reaches(manifest: &str) -> Vec<&str> {
    let names = manifest.lines().filter_map(|line| line.strip_prefix("seriatim-"));
    names.filter_map(|line| line.split(['.', ' ', '=']).next()).collect()
}

#[test]
fn rooms_reach_only_the_rooms_they_may() {
    for (place, (room, may)) in ROOMS.into_iter().enumerate() {
        let further_up = |reached: &&str| ROOMS[..place].iter().any(|(room, _)| room == reached);
        assert!(may.iter().all(further_up), "{room} may reach only rooms that stand further up in ROOMS");
        let manifest = fs::read_to_string(root().join(room).join("Cargo.toml")).expect("a room has a manifest");
        let (mut reached, mut may) = (reaches(&manifest), may.to_vec());
        reached.sort();
        may.sort();
        assert_eq!(reached, may, "{room} reaches other rooms than ROOMS says: move what it needs, or who needs it");
    }
}

#[test]
fn every_member_is_a_room_with_a_rule() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).expect("the house has a manifest");
    let members = manifest.lines().find(|line| line.starts_with("members")).expect("it names its members");
    let members: Vec<&str> = members.split('"').skip(1).step_by(2).collect();
    assert_eq!(members.len(), ROOMS.len(), "a room came or went: give it its place in ROOMS");
    for member in members {
        assert!(ROOMS.iter().any(|(room, _)| *room == member), "{member}: say in ROOMS what it may reach");
    }
}

#[test]
fn unsafe_stays_behind_its_doors() {
    let words = ["{", "impl", "fn", "trait"].map(|what| ["unsafe", what].join(" "));
    let opens = |text: &str| text.lines().any(|line| words.iter().any(|word| code(line).contains(word.as_str())));
    let mut found: Vec<String> = sources().into_iter().filter(|(_, text)| opens(text)).map(|(name, _)| name).collect();
    found.sort();
    assert_eq!(found, UNSAFE, "unsafe code came or went: name the file in UNSAFE, with the reason");
}

#[test]
fn every_room_forbids_unsafe_or_denies_it() {
    for (room, _) in ROOMS {
        let library = root().join(room).join("src/lib.rs");
        let crate_root = if library.exists() { library } else { root().join(room).join("src/main.rs") };
        let text = fs::read_to_string(crate_root).expect("a room has a root");
        let opens = UNSAFE.iter().any(|file| file.starts_with(&format!("{room}/src/")));
        let lint = if opens { "deny" } else { "forbid" };
        assert!(text.contains(&format!("#![{lint}(unsafe_code)]")), "{room}: its root has to {lint} unsafe_code");
    }
}

#[test]
fn every_file_opens_with_what_it_is() {
    for (name, text) in sources() {
        assert!(text.starts_with("//! "), "{name}: say in the first line what the file is");
    }
}

/// Nobody can keep more than that in mind at once.
#[test]
fn no_file_is_longer_than_800_lines() {
    for (name, text) in sources() {
        let lines = text.lines().count();
        assert!(lines <= 800, "{name}: {lines} lines are two files, or more");
    }
}

#[test]
fn nothing_is_left_for_later() {
    // Put together here, so that this file holds none of them.
    let later = [["todo", "!"], ["unimplemented", "!"], ["dbg", "!"], ["#[ig", "nore"]].map(|parts| parts.concat());
    for (name, text) in sources() {
        for mark in &later {
            assert!(!text.lines().any(|line| code(line).contains(mark.as_str())), "{name}: finish it, or take it out");
        }
    }
}

/// Pages age when files move.
#[test]
fn every_file_that_a_page_names_is_there() {
    let mut named = 0;
    for page in
        ["README.md", "ARCHITECTURE.md", "wire/PROTOCOL.md", "wal/FORMAT.md", "history/FORMAT.md", "docs/tephra.md"]
    {
        let text = fs::read_to_string(root().join(page)).expect("the page is there");
        let is_test = |word: &str| word.contains("::");
        let in_a_room =
            |word: &&str| !is_test(word) && ROOMS.iter().any(|(room, _)| word.starts_with(&format!("{room}/")));
        for name in text.split('`').skip(1).step_by(2).filter(in_a_room) {
            named += 1;
            assert!(root().join(name).exists(), "{page} names {name}, which is not there");
        }
    }
    assert!(named > 20, "only {named} files were found on the pages");
}

/// `docs/tephra.md` says what is promised, and by which tests.
#[test]
fn every_test_that_a_page_names_is_there() {
    let sources = sources();
    let text = fs::read_to_string(root().join("docs/tephra.md")).expect("the page is there");
    let mut named = 0;
    for name in text.split('`').skip(1).step_by(2) {
        let Some((file, test)) = name.split_once("::") else { continue };
        let Some((room, file)) = file.split_once('/').filter(|(room, _)| ROOMS.iter().any(|(name, _)| name == room))
        else {
            continue;
        };
        named += 1;
        // A test, or a case of a macro that makes tests of it.
        let places = [format!("{room}/tests/"), format!("{room}/src/")];
        let is_file = |name: &str| {
            let file_of = |place: &String| name.strip_prefix(place.as_str()).map(|rest| rest.trim_end_matches(".rs"));
            places.iter().filter_map(file_of).any(|rest| rest.split('/').any(|part| part == file))
        };
        let function = format!("fn {test}");
        let holds = |text: &str| {
            text.lines().any(|line| {
                line.trim_start().strip_prefix(function.as_str()).is_some_and(|rest| rest.starts_with(['(', '<']))
            })
        };
        assert!(
            sources.iter().any(|(name, text)| is_file(name) && holds(text)),
            "docs/tephra.md names {name}, which is not there"
        );
    }
    assert!(named > 100, "only {named} tests were found on the page");
}
