//! Rules of this room that a compiler does not check.

use std::fs;
use std::path::{Path, PathBuf};

fn sources() -> Vec<(PathBuf, String)> {
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
    let mut sources = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the folder is there") {
            let path = entry.expect("the folder can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else {
                let text = fs::read_to_string(&path).expect("a source is text");
                sources.push((path, text));
            }
        }
    }
    assert!(sources.len() > 15, "the sources were not found");
    sources
}

fn name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).expect("sources have names")
}

#[test]
fn atomics_come_through_sync() {
    for (path, text) in sources().iter().filter(|(path, _)| name(path) != "sync.rs") {
        for source in ["std::sync::atomic", "core::sync::atomic", "loom::", "std::thread", "std::hint"] {
            assert!(
                !text.contains(source),
                "{}: take `{source}` from crate::sync, so that models see it",
                path.display()
            );
        }
    }
}

#[test]
fn unsafe_stays_behind_its_doors() {
    const DOORS: [&str; 3] = ["current.rs", "memory.rs", "ring.rs"];
    for (path, text) in sources() {
        let opens = text.lines().any(|line| {
            let code = line.split("//").next().unwrap_or_default();
            ["unsafe {", "unsafe impl", "unsafe fn", "unsafe trait"].iter().any(|word| code.contains(word))
        });
        assert_eq!(opens, DOORS.contains(&name(&path)), "{}: a door was opened or closed", path.display());
    }
}

#[test]
fn every_file_opens_with_what_it_is() {
    for (path, text) in sources() {
        assert!(text.starts_with("//! "), "{}: say in the first line what the file is", path.display());
    }
}

/// No socket, file, clock or thread of its own: one input has one output.
#[test]
fn core_reaches_for_nothing() {
    for (path, text) in sources() {
        for reach in ["std::net", "std::fs", "std::io", "SystemTime", "Instant::now", "thread::spawn"] {
            assert!(!text.contains(reach), "{}: `{reach}` belongs to another room", path.display());
        }
    }
}
