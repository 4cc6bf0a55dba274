//! What came of a run.

use std::collections::BTreeMap;
use std::time::Duration;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::load::Load;
use crate::tally::Tally;

/// What came of a run. Unless it says otherwise, of its measured time: the warm-up and the end are left out.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// Acknowledged commits a second; of a load of begins alone, begins.
    pub tx_per_s: f64,
    /// Acknowledged commits.
    pub commits: u64,
    /// Commits refused because another transaction had written one of the keys.
    pub conflicts: u64,
    /// Transactions that were to begin and no more.
    pub begins: u64,
    /// Transactions that ended otherwise, by kind.
    pub errors: BTreeMap<String, u64>,
    /// From a begin to its pointer; `None` if there was none.
    pub begin_us: Option<Latency>,
    /// From a commit to its acknowledgement; `None` if there was none.
    pub commit_us: Option<Latency>,
    /// Bytes of begin replies without their headers, for each transaction begun. `None` without a server.
    pub bytes_per_begin: Option<f64>,
    /// Bytes that went to the server, and bytes that came back, for each transaction that ended well. `None` without a
    /// server.
    pub sent_bytes_per_tx: Option<f64>,
    /// See `sent_bytes_per_tx`.
    pub received_bytes_per_tx: Option<f64>,
    /// What was acknowledged survives the process and the machine.
    pub durable: bool,
    /// See [`Load::connections`].
    pub connections: u32,
    /// See [`Load::depth`].
    pub depth: u32,
    /// See [`Load::writes`].
    pub writes: u32,
    /// See [`Load::keys`].
    pub keys: u64,
    /// See [`Load::measured`], in seconds.
    pub secs: f64,
    /// See [`Load::warmup`], in seconds.
    pub warmup_secs: f64,
    /// See [`Load::seed`].
    pub seed: u64,
    /// See [`Load::count`].
    pub count: Option<u64>,
    /// How the sequencer was reached.
    pub transport: Transport,
    /// Threads that made the load.
    pub threads: u32,
    /// Seconds that were measured.
    pub measured_secs: f64,
    /// Who was measured.
    pub server: ServerInfo,
    /// Processor time of the threads that made the load, in µs for each acknowledged commit; without a server, they do its
    /// work as well. `None` if this kernel does not say.
    pub client_cpu_us_per_tx: Option<f64>,
    /// Processor time of the server, likewise; `None` if it is on another machine, or in the same process.
    pub server_cpu_us_per_tx: Option<f64>,
    /// The run from the first begin to the last answer.
    pub whole: WholeRun,
    /// False if the run was broken off: the rest is what was measured until then.
    pub complete: bool,
}

/// Latencies in µs, to three digits.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Latency {
    /// Half of them were shorter.
    pub p50: f64,
    /// Of a hundred, one was longer.
    pub p99: f64,
    /// Of a thousand, one was longer.
    pub p999: f64,
    /// The longest.
    pub max: f64,
}

/// How the sequencer was reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// A server over TCP.
    Tcp,
    /// A server over a Unix socket.
    Unix,
    /// A sequencer in the same process.
    Embedded,
}

/// Who was measured.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct ServerInfo {
    /// Its version.
    pub version: String,
    /// Its storage.
    pub storage: String,
    /// True if what it acknowledges survives the process and the machine.
    #[serde(skip)]
    pub durable: bool,
}

/// A whole run: `begun = commits + conflicts + begins + errors`, always.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct WholeRun {
    /// Transactions whose begin was asked for.
    pub begun: u64,
    /// Acknowledged commits.
    pub commits: u64,
    /// Conflicts.
    pub conflicts: u64,
    /// Transactions that were to begin and no more.
    pub begins: u64,
    /// Everything else, what had no answer when the run was broken off included.
    pub errors: u64,
}

/// The measured part of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Measured {
    pub time: Duration,
    pub client_cpu: Option<Duration>,
    pub server_cpu: Option<Duration>,
}

/// How a run was made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Setting {
    pub transport: Transport,
    pub threads: u32,
    pub complete: bool,
}

impl Report {
    pub(crate) fn new(load: &Load, tally: &Tally, measured: Measured, server: ServerInfo, setting: Setting) -> Report {
        let (commits, begins) = (tally.measured.commits, tally.measured.begins);
        let (done, secs) = (commits + begins, measured.time.as_secs_f64());
        let ratio = |value: f64, of: f64| (of > 0.0).then(|| value / of);
        let us_per_tx = |cpu: Duration| ratio(cpu.as_secs_f64() * 1e6, done as f64);
        let has_wire = setting.transport != Transport::Embedded;
        Report {
            tx_per_s: ratio(done as f64, secs).unwrap_or(0.0),
            commits,
            conflicts: tally.measured.conflicts,
            begins,
            errors: tally.measured.errors.iter().map(|(kind, count)| ((*kind).to_owned(), *count)).collect(),
            begin_us: Latency::of(&tally.begin_ns),
            commit_us: Latency::of(&tally.commit_ns),
            bytes_per_begin: ratio(tally.begin_bytes as f64, tally.begins_answered as f64).filter(|_| has_wire),
            sent_bytes_per_tx: ratio(tally.sent_bytes as f64, done as f64).filter(|_| has_wire),
            received_bytes_per_tx: ratio(tally.received_bytes as f64, done as f64).filter(|_| has_wire),
            durable: server.durable,
            connections: load.connections,
            depth: load.depth,
            writes: load.writes,
            keys: load.keys,
            secs: load.measured.as_secs_f64(),
            warmup_secs: load.warmup.as_secs_f64(),
            seed: load.seed,
            count: load.count,
            transport: setting.transport,
            threads: setting.threads,
            measured_secs: secs,
            server,
            client_cpu_us_per_tx: measured.client_cpu.and_then(us_per_tx),
            server_cpu_us_per_tx: measured.server_cpu.and_then(us_per_tx),
            whole: WholeRun {
                begun: tally.begun,
                commits: tally.whole.commits,
                conflicts: tally.whole.conflicts,
                begins: tally.whole.begins,
                errors: tally.whole.errors_len(),
            },
            complete: setting.complete,
        }
    }
}

impl Latency {
    fn of(ns: &Histogram<u64>) -> Option<Latency> {
        let us = |ns: u64| ns as f64 / 1e3;
        let at = |quantile| us(ns.value_at_quantile(quantile));
        (!ns.is_empty()).then(|| Latency { p50: at(0.5), p99: at(0.99), p999: at(0.999), max: us(ns.max()) })
    }
}
