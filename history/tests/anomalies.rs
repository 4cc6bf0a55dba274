//! One small history for each anomaly, and beside it the nearest one without.

use seriatim_history::{History, Kind, Report};

fn judge(lines: &str) -> Report {
    History::read(lines.as_bytes(), |_| ()).unwrap_or_else(|error| panic!("{error:?}")).judge(10)
}

/// The history has anomalies of these kinds and no others.
#[track_caller]
fn assert_found(lines: &str, kinds: &[Kind]) -> Report {
    let report = judge(lines);
    let found: Vec<Kind> = report.counts.keys().copied().collect();
    assert_eq!(found, kinds, "{report}");
    assert_eq!(report.failed, !kinds.is_empty());
    let told: std::collections::BTreeSet<Kind> = report.anomalies.iter().map(|anomaly| anomaly.kind).collect();
    assert!(told.iter().eq(kinds), "an anomaly of each kind is kept: {report}");
    report
}

#[track_caller]
fn assert_clean(lines: &str) -> Report {
    assert_found(lines, &[])
}

/// A report's only anomaly names these transactions and keys.
#[track_caller]
fn assert_names(report: &Report, transactions: &[u64], keys: &[&str]) {
    let anomaly = report.anomalies.first().expect("there is one");
    let mut named: Vec<u64> = anomaly.members.iter().filter_map(|member| member.tx).collect();
    named.sort_unstable();
    assert_eq!(
        (named.as_slice(), anomaly.keys.iter().map(String::as_str).collect::<Vec<_>>().as_slice()),
        (transactions, keys)
    );
    for key in keys {
        assert!(anomaly.why.contains(key), "{anomaly}");
    }
}

#[test]
fn lost_update() {
    let report = assert_found(
        r#"{"tx":1,"writes":["k"],"outcome":"committed"}
           {"tx":2,"reads":[{"key":"k","writer":1}],"writes":["k"],"outcome":"committed"}
           {"tx":3,"reads":[{"key":"k","writer":1}],"writes":["k"],"outcome":"committed"}"#,
        &[Kind::LostUpdate],
    );
    assert_names(&report, &[2, 3], &["k"]);
    assert_clean(
        r#"{"tx":1,"writes":["k"],"outcome":"committed"}
           {"tx":2,"reads":[{"key":"k","writer":1}],"writes":["k"],"outcome":"committed"}
           {"tx":3,"reads":[{"key":"k","writer":2}],"writes":["k"],"outcome":"committed"}"#,
    );
    // The second was refused.
    assert_clean(
        r#"{"tx":1,"writes":["k"],"outcome":"committed"}
           {"tx":2,"reads":[{"key":"k","writer":1}],"writes":["k"],"outcome":"committed"}
           {"tx":3,"reads":[{"key":"k","writer":1}],"writes":["k"],"outcome":"refused"}"#,
    );
}

#[test]
fn an_update_of_nothing_is_lost_as_well() {
    assert_found(
        r#"{"tx":2,"reads":[{"key":"k","writer":null}],"writes":["k"],"outcome":"committed"}
           {"tx":3,"reads":[{"key":"k","writer":null}],"writes":["k"],"outcome":"committed"}"#,
        &[Kind::LostUpdate],
    );
}

#[test]
fn first_committer_wins() {
    // Nobody read anything: only the numbers tell that they overlapped.
    let report = assert_found(
        r#"{"tx":2,"snapshot":{"csn":0},"writes":["k"],"outcome":"committed","csn":1}
           {"tx":3,"snapshot":{"csn":0},"writes":["k"],"outcome":"committed","csn":2}"#,
        &[Kind::BothCommitted],
    );
    assert_names(&report, &[2, 3], &["k"]);
    assert_clean(
        r#"{"tx":2,"snapshot":{"csn":0},"writes":["k"],"outcome":"committed","csn":1}
           {"tx":3,"snapshot":{"csn":1},"writes":["k"],"outcome":"committed","csn":2}"#,
    );
    // Both were read from, so both committed, whatever their numbers; and both began on the same snapshot.
    assert_found(
        r#"{"tx":2,"snapshot":{"csn":0},"writes":["k"],"outcome":"unknown"}
           {"tx":3,"snapshot":{"csn":0},"writes":["k"],"outcome":"unknown"}
           {"snapshot":{"csn":1},"reads":[{"key":"k","writer":2}],"outcome":"committed"}
           {"snapshot":{"csn":2},"reads":[{"key":"k","writer":3}],"outcome":"committed"}"#,
        &[Kind::BothCommitted],
    );
}

const SKEW: &str = r#"
    {"tx":1,"writes":["a","b"],"outcome":"committed"}
    {"tx":2,"isolation":"ONE","reads":[{"key":"a","writer":1},{"key":"b","writer":1}],"writes":["a"],"outcome":"committed"}
    {"tx":3,"isolation":"OTHER","reads":[{"key":"a","writer":1},{"key":"b","writer":1}],"writes":["b"],"outcome":"committed"}"#;

#[test]
fn write_skew_is_an_anomaly_if_all_are_serializable() {
    let skew = |one, other| SKEW.replace("ONE", one).replace("OTHER", other);
    let report = assert_found(&skew("serializable", "serializable"), &[Kind::WriteSkew]);
    assert_names(&report, &[2, 3], &["b", "a"]);
    assert_eq!(report.write_skews_allowed, 0);
    for (one, other) in [("snapshot", "snapshot"), ("serializable", "snapshot")] {
        assert_eq!(assert_clean(&skew(one, other)).write_skews_allowed, 1);
    }
    let refused = skew("serializable", "serializable");
    let refused = refused.trim_end().trim_end_matches("\"committed\"}").to_owned() + "\"refused\"}";
    assert_eq!(assert_clean(&refused).write_skews_allowed, 0);
}

#[test]
fn a_ring_of_three_is_write_skew_too() {
    let ring = |isolation: &str| {
        let lines = [("a", "b"), ("b", "c"), ("c", "a")].iter().enumerate().map(|(number, (reads, writes))| {
            format!(
                "{{\"tx\":{},\"isolation\":\"{isolation}\",\"reads\":[{{\"key\":\"{reads}\"}}],\"writes\":[\"{writes}\"],\"outcome\":\"committed\"}}\n",
                number + 1
            )
        });
        lines.collect::<String>()
    };
    assert_found(&ring("serializable"), &[Kind::WriteSkew]);
    assert_clean(&ring("snapshot"));
}

#[test]
fn long_fork() {
    let fork = |second_sees: &str| {
        format!(
            r#"{{"tx":1,"writes":["a"],"outcome":"committed"}}
               {{"tx":2,"writes":["b"],"outcome":"committed"}}
               {{"label":"one","reads":[{{"key":"a","writer":1}},{{"key":"b"}}],"outcome":"committed"}}
               {{"label":"other","reads":[{{"key":"a"{second_sees}}},{{"key":"b","writer":2}}],"outcome":"committed"}}"#
        )
    };
    let report = assert_found(&fork(""), &[Kind::LongFork]);
    assert_names(&report, &[1, 2], &report.anomalies[0].keys.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(report.anomalies[0].why.contains("other (row 4) read \"a\" and missed that 1 overwrote it"), "{report}");
    assert_clean(&fork(",\"writer\":1"));
}

#[test]
fn read_skew() {
    let skew = |writer| {
        format!(
            r#"{{"tx":1,"writes":["a","b"],"outcome":"committed"}}
               {{"tx":2,"writes":["a","b"],"outcome":"committed"}}
               {{"reads":[{{"key":"a","writer":1}},{{"key":"b","writer":{writer}}}],"outcome":"committed"}}"#
        )
    };
    let report = assert_found(&skew(2), &[Kind::ReadSkew]);
    assert_names(&report, &[2], &report.anomalies[0].keys.iter().map(String::as_str).collect::<Vec<_>>());
    assert_clean(&skew(1));
}

#[test]
fn stale_read() {
    let read = |writer| {
        format!(
            r#"{{"tx":1,"writes":["k"],"outcome":"committed","csn":1}}
               {{"tx":2,"snapshot":{{"csn":1}},"writes":["k"],"outcome":"committed","csn":2}}
               {{"label":"reader","snapshot":{{"read_pointer":2,"csn":2}},"reads":[{{"key":"k","writer":{writer}}}],"outcome":"aborted"}}"#
        )
    };
    let report = assert_found(&read("1"), &[Kind::StaleRead]);
    assert_names(&report, &[1, 2], &["k"]);
    assert_found(&read("null"), &[Kind::StaleRead]);
    assert_clean(&read("2"));
}

#[test]
fn dirty_read() {
    let read = |csn| {
        format!(
            r#"{{"tx":1,"writes":["k"],"outcome":"committed","csn":1}}
               {{"tx":2,"snapshot":{{"csn":1}},"writes":["k"],"outcome":"committed","csn":2}}
               {{"label":"reader","snapshot":{{"csn":{csn}}},"reads":[{{"key":"k","writer":2}}],"outcome":"committed"}}"#
        )
    };
    let report = assert_found(&read(1), &[Kind::DirtyRead]);
    assert_names(&report, &[2], &["k"]);
    assert_clean(&read(2));
}

#[test]
fn a_version_above_the_read_pointer_is_dirty() {
    let read = |pointer| {
        format!(
            r#"{{"tx":5,"writes":["k"],"outcome":"committed","csn":1}}
               {{"snapshot":{{"read_pointer":{pointer}}},"reads":[{{"key":"k","writer":5}}],"outcome":"committed"}}"#
        )
    };
    assert_found(&read(4), &[Kind::DirtyRead]);
    assert_clean(&read(5));
}

#[test]
fn a_version_read_before_its_commit_was_asked_for_is_dirty() {
    let read = |answered| {
        format!(
            r#"{{"tx":1,"writes":["k"],"outcome":"committed","end":[100,120]}}
               {{"reads":[{{"key":"k","writer":1}}],"outcome":"committed","end":[80,{answered}]}}"#
        )
    };
    assert_found(&read(99), &[Kind::DirtyRead]);
    assert_clean(&read(100));
}

#[test]
fn aborted_read() {
    let read = |outcome| {
        format!(
            r#"{{"tx":1,"writes":["k"],"outcome":"{outcome}"}}
               {{"tx":2,"reads":[{{"key":"k","writer":1}}],"outcome":"committed"}}"#
        )
    };
    for outcome in ["aborted", "invalid", "refused"] {
        assert_names(&assert_found(&read(outcome), &[Kind::AbortedRead]), &[1, 2], &["k"]);
    }
    assert_clean(&read("committed"));
    let report = assert_clean(&read("unknown"));
    assert_eq!((report.unknown, report.unknown_read), (1, 1));
}

#[test]
fn intermediate_read() {
    let read = |seq| {
        format!(
            r#"{{"tx":1,"writes":["k","other","k"],"outcome":"committed"}}
               {{"tx":2,"reads":[{{"key":"k","writer":1,"seq":{seq}}}],"outcome":"committed"}}"#
        )
    };
    assert_names(&assert_found(&read(1), &[Kind::IntermediateRead]), &[1, 2], &["k"]);
    assert_clean(&read(2));
    assert_found(&read(3), &[Kind::UnwrittenRead]);
}

#[test]
fn circular_flow() {
    let read = |writer| {
        format!(
            r#"{{"tx":1,"reads":[{{"key":"b","writer":2}}],"writes":["a"],"outcome":"committed"}}
               {{"tx":2,"reads":[{{"key":"a","writer":{writer}}}],"writes":["b"],"outcome":"committed"}}"#
        )
    };
    assert_names(&assert_found(&read("1"), &[Kind::CircularFlow]), &[1, 2], &["a", "b"]);
    assert_clean(&read("null"));
}

#[test]
fn write_cycle() {
    // Two that write both keys, and a store that tells what was there.
    let told = |a, b| {
        format!(
            r#"{{"tx":1,"writes":["a","b"]{a},"outcome":"committed"}}
               {{"tx":2,"writes":["a","b"],"overwrites":[{{"key":"{b}","writer":1}}],"outcome":"committed"}}"#
        )
    };
    let report = assert_found(&told(r#","overwrites":[{"key":"a","writer":2}]"#, "b"), &[Kind::WriteCycle]);
    assert_eq!(report.anomalies[0].members.len(), 2);
    assert_clean(&told("", "a"));
}

#[test]
fn unwritten_read() {
    let read = |key, writer| {
        format!(
            r#"{{"tx":1,"writes":["k"],"outcome":"committed"}}
               {{"reads":[{{"key":"{key}","writer":{writer}}}],"outcome":"committed"}}"#
        )
    };
    assert_found(&read("k", 2), &[Kind::UnwrittenRead]);
    assert_found(&read("other", 1), &[Kind::UnwrittenRead]);
    assert_clean(&read("k", 1));
}

#[test]
fn own_writes_are_read_back() {
    assert_clean(
        r#"{"tx":1,"writes":["k"],"outcome":"committed","csn":1}
           {"tx":2,"snapshot":{"csn":1},"reads":[{"key":"k","writer":2,"seq":1}],"writes":["k","k"],"outcome":"committed","csn":2}"#,
    );
}

#[test]
fn nothing_is_read_after_a_deletion() {
    let read = |csn, writer| {
        format!(
            r#"{{"tx":1,"writes":["k"],"outcome":"committed","csn":1}}
               {{"tx":2,"snapshot":{{"csn":1}},"deletes":["k"],"outcome":"committed","csn":2}}
               {{"tx":3,"snapshot":{{"csn":2}},"writes":["k"],"outcome":"committed","csn":3}}
               {{"snapshot":{{"csn":{csn}}},"reads":[{{"key":"k","writer":{writer}}}],"outcome":"committed"}}"#
        )
    };
    assert_clean(&read(0, "null"));
    assert_clean(&read(2, "null"));
    assert_clean(&read(2, "2"));
    for csn in [1, 3] {
        assert_eq!(judge(&read(csn, "null")).counts[&Kind::StaleRead], 1);
    }
}

#[test]
fn numbers_are_unique_and_above_those_of_the_snapshot() {
    assert_found(
        r#"{"tx":1,"outcome":"aborted"}
           {"tx":1,"outcome":"aborted"}"#,
        &[Kind::DuplicatePointer],
    );
    assert_found(
        r#"{"tx":1,"writes":["a"],"outcome":"committed","csn":1}
           {"tx":2,"writes":["b"],"outcome":"committed","csn":1}"#,
        &[Kind::DuplicateCsn],
    );
    assert_found(r#"{"tx":1,"snapshot":{"read_pointer":1},"outcome":"aborted"}"#, &[Kind::BadNumbers]);
    assert_found(r#"{"tx":1,"snapshot":{"csn":1},"outcome":"committed","csn":1}"#, &[Kind::BadNumbers]);
    assert_clean(r#"{"tx":2,"snapshot":{"read_pointer":1,"csn":1},"outcome":"committed","csn":2}"#);
}

#[test]
fn versions_come_in_the_order_of_commits() {
    let second = |tx| {
        format!(
            r#"{{"tx":5,"writes":["k"],"outcome":"committed","csn":1}}
               {{"tx":{tx},"snapshot":{{"csn":1}},"writes":["k"],"outcome":"committed","csn":2}}"#
        )
    };
    assert_names(&assert_found(&second(4), &[Kind::PointerOrder]), &[4, 5], &["k"]);
    assert_clean(&second(6));
}

#[test]
fn a_begin_sees_what_was_acknowledged_before() {
    let begin = |sent, csn| {
        format!(
            r#"{{"tx":1,"writes":["k"],"outcome":"committed","csn":1,"end":[100,200]}}
               {{"tx":2,"begin":[{sent},{}],"snapshot":{{"csn":{csn}}},"outcome":"aborted"}}"#,
            sent + 10
        )
    };
    assert_found(&begin(201, 0), &[Kind::StaleSnapshot]);
    assert_clean(&begin(200, 0));
    assert_clean(&begin(201, 1));
    // Asked for at 100, it can be in a snapshot that was answered at 100 but not in one answered before.
    assert_clean(&begin(90, 1));
    assert_found(&begin(89, 1), &[Kind::EarlySnapshot]);
}

#[test]
fn time_does_not_run_backwards() {
    let two = |first: &str, second: &str| {
        format!("{{\"tx\":1,{first},\"outcome\":\"committed\"}}\n{{\"tx\":2,{second},\"outcome\":\"committed\"}}")
    };
    let snapshot = |sent, csn| format!("\"begin\":[{sent},{}],\"snapshot\":{{\"csn\":{csn}}}", sent + 1);
    assert_found(&two(&snapshot(1, 7), &snapshot(3, 6)), &[Kind::SnapshotBack]);
    assert_clean(&two(&snapshot(1, 7), &snapshot(2, 6)));
    assert_found(&two("\"begin\":[5,6]", "\"begin\":[1,2]"), &[Kind::PointerBack]);
    assert_clean(&two("\"begin\":[2,6]", "\"begin\":[1,2]"));
    assert_found(&two("\"csn\":2,\"end\":[1,2]", "\"csn\":1,\"end\":[3,4]"), &[Kind::CommitBack]);
    assert_clean(&two("\"csn\":2,\"end\":[1,null]", "\"csn\":1,\"end\":[3,4]"));
}

#[test]
fn a_session_sees_what_it_did() {
    let later = |session, csn| {
        format!(
            r#"{{"tx":1,"session":1,"snapshot":{{"csn":3}},"writes":["k"],"outcome":"committed","csn":5}}
               {{"session":{session},"snapshot":{{"csn":{csn}}},"outcome":"committed"}}"#
        )
    };
    assert_found(&later(1, 4), &[Kind::StaleSnapshot]);
    assert_found(&later(1, 2), &[Kind::StaleSnapshot, Kind::SnapshotBack]);
    assert_clean(&later(1, 5));
    assert_clean(&later(2, 2));
}

#[test]
fn an_unknown_outcome_that_was_read_is_seen_by_later_snapshots() {
    let reads = |later| {
        format!(
            r#"{{"tx":1,"writes":["k"],"outcome":"committed","csn":1}}
               {{"tx":2,"snapshot":{{"csn":1}},"writes":["k"],"outcome":"unknown"}}
               {{"snapshot":{{"csn":3}},"reads":[{{"key":"k","writer":2}}],"outcome":"committed"}}
               {{"snapshot":{{"csn":{later}}},"reads":[{{"key":"k","writer":1}}],"outcome":"committed"}}"#
        )
    };
    assert_clean(&reads(2));
    assert_eq!(judge(&reads(3)).counts[&Kind::StaleRead], 1);
    // Nobody read it: nothing says that it committed.
    let never = reads(9).replace("\"writer\":2", "\"writer\":1");
    assert_eq!(assert_clean(&never).unknown_read, 0);
}

#[test]
fn examples_are_bounded_and_counts_are_not() {
    let read = "{\"reads\":[{\"key\":\"k\",\"writer\":9}],\"outcome\":\"committed\"}\n";
    let report = History::read(read.repeat(50).as_bytes(), |_| ()).unwrap().judge(3);
    assert_eq!((report.counts[&Kind::UnwrittenRead], report.anomalies.len()), (50, 3));
}

#[test]
fn the_example_of_the_format_is_read_and_clean() {
    let page = include_str!("../FORMAT.md");
    let example = page.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).expect("there is one");
    let report = assert_clean(example);
    assert_eq!((report.transactions, report.committed, report.unknown), (4, 3, 1));
    // Every field stands in the example, or else it would not prove much.
    for field in [
        "tx",
        "session",
        "label",
        "isolation",
        "begin",
        "snapshot",
        "reads",
        "writes",
        "deletes",
        "outcome",
        "csn",
        "end",
    ] {
        assert!(page.contains(&format!("| `{field}` |")), "{field} is explained");
        assert!(example.contains(&format!("\"{field}\":")), "{field} is in the example");
    }
    for kind in Kind::ALL {
        assert!(page.contains(&format!("`{kind}`")), "{kind} is explained");
    }
}
