//! How long a history of a million transactions takes, against the mere parsing of its lines.
//!
//! `cargo bench -p seriatim-history`; another number of transactions may be given after `--`.

#[path = "../tests/common/mod.rs"]
mod common;

use std::hint::black_box;
use std::io::{self, BufReader, BufWriter, Write};
use std::time::Instant;

use common::{FEW, Options, run};
use seriatim_history::{History, Row};

fn main() -> io::Result<()> {
    let number = std::env::args().filter_map(|argument| argument.parse().ok()).next_back();
    let transactions: usize = number.unwrap_or(1_000_000);
    let mut file = BufWriter::new(tempfile::tempfile()?);
    let ran = run(Options { transactions, keys: 100_000, sessions: 64, lost_answers: 1, ..FEW }, 1);
    assert_eq!(ran.wrongly_committed, 0);
    for row in ran.rows {
        serde_json::to_writer(&mut file, &row)?;
        file.write_all(b"\n")?;
    }
    let mut file = file.into_inner()?;
    let bytes = io::Seek::stream_position(&mut file)?;
    println!("{transactions} transactions, {bytes} bytes");
    let mut input = || {
        io::Seek::rewind(&mut file)?;
        file.try_clone().map(|file| BufReader::with_capacity(1 << 20, file))
    };

    for _ in 0..3 {
        let started = Instant::now();
        for row in serde_json::Deserializer::from_reader(input()?).into_iter::<Row>() {
            black_box(row?);
        }
        let parsed = started.elapsed();
        let started = Instant::now();
        let history = History::read(input()?, |_| ()).map_err(io::Error::other)?;
        let read = started.elapsed();
        let started = Instant::now();
        let report = history.judge(5);
        let judged = started.elapsed();
        assert!(!report.failed, "{report}");
        let ratio = (read + judged).as_secs_f64() / parsed.as_secs_f64();
        println!("parse {parsed:.2?}, read {read:.2?}, judge {judged:.2?}; whole against parse {ratio:.2}");
    }
    Ok(())
}
