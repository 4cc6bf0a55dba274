//! Rules of this room that a compiler does not check. Those of all rooms stand in `cli/tests/tidy.rs`.

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

/// No socket, file, clock or thread of its own: one input has one output.
#[test]
fn core_reaches_for_nothing() {
    for (path, text) in sources() {
        for reach in ["std::net", "std::fs", "std::io", "SystemTime", "Instant::now", "thread::spawn"] {
            assert!(!text.contains(reach), "{}: `{reach}` belongs to another room", path.display());
        }
    }
}
