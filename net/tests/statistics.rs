//! What a sequencer says of itself. The logger is one for the process, so this is one test.

mod common;

use std::sync::Mutex;
use std::time::Duration;

use common::house::Machine;
use seriatim_core::{BeginOptions, LABELS_MAX};
use seriatim_wire::{BeginRequest, request};

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Listener;

impl log::Log for Listener {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        SAID.lock().unwrap().push(record.args().to_string());
    }
    fn flush(&self) {}
}

fn said(word: &str) -> Vec<String> {
    std::mem::take(&mut *SAID.lock().unwrap()).into_iter().filter(|line| line.contains(word)).collect()
}

#[test]
fn statistics_come_every_ten_seconds_while_anything_happens_and_large_sets_are_warned_of() {
    log::set_logger(&Listener).unwrap();
    log::set_max_level(log::LevelFilter::Info);
    let mut machine = Machine::new();
    (machine.options.limits.change_ids_warn, machine.options.limits.change_ids_max) = (3, 5);
    let mut house = machine.start();
    let client = house.connect(7);
    for _ in 0..35 {
        let (tx, _) = house.begin(client);
        house.commit(client, tx, &["k"]).unwrap();
        house.pass(Duration::from_secs(1));
    }
    let lines = said("statistics: ");
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[1].contains(" 1/s; open 0, invalid 0"), "{lines:?}");
    house.pass(Duration::from_secs(60));
    assert!(said("statistics: ").len() <= 1, "nothing happens");
    for keys in [&["a", "b"][..], &["a", "b", "c"], &["a", "b", "c", "d"]] {
        let (tx, _) = house.begin(client);
        house.commit(client, tx, keys).unwrap();
    }
    let warnings = said("brings");
    assert!(matches!(&warnings[..], [one] if one.contains("brings 3 change ids of 5 allowed")), "{warnings:?}");
    for label in 0..LABELS_MAX {
        house.send(client, |out, id| {
            let label = label.to_string();
            let options = BeginOptions::default();
            request::begin(out, id, &BeginRequest { options, count: 1, base: None, label: Some(&label) });
        });
    }
    house.pass(Duration::from_secs(30));
    let warnings = said("65535 different labels");
    assert_eq!(warnings.len(), 1, "once is enough: {warnings:?}");
}
