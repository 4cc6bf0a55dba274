//! The command that measures bars: which it takes, what it prints, how it ends.

use std::process::{Command, Output};

fn bars(arguments: &[&str]) -> (i32, Output) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_seriatim-perf"));
    let output = command.arg("bars").args(arguments).output().expect("runs");
    (output.status.code().expect("ended by itself"), output)
}

#[test]
fn a_bar_is_measured_and_one_that_is_not_built_says_so() {
    let (code, output) = bars(&["--only", "P7,P13", "--rounds", "1", "--strict", "-o", "json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let [p7, p13] = report["bars"].as_array().expect("bars").as_slice() else { panic!("{report}") };
    assert_eq!((code, &p7["id"], &p7["met"], &p7["rounds"]), (0, &"P7".into(), &true.into(), &1.into()));
    let ratio = p7["ratio"]["median"].as_f64().expect("a ratio");
    assert!(ratio > 0.5 && ratio <= p7["bar"].as_f64().expect("a bar"), "{p7}");
    assert_eq!((&p13["id"], p13["met"].is_null(), p13["ratio"].is_null()), (&"P13".into(), true, true));

    let (code, output) = bars(&["--only", "P13"]);
    assert_eq!((code, String::from_utf8_lossy(&output.stdout).contains("not built")), (0, true));
}

#[test]
fn what_is_asked_wrongly_is_a_usage_error() {
    for wrong in [&["--only", "P14"][..], &["--rounds", "0"], &["--only", "P1,x"], &["--what"]] {
        assert_eq!(bars(wrong).0, 2, "{wrong:?}");
    }
}
