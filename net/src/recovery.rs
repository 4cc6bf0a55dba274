//! From a data directory to a sequencer that may serve.
//!
//! Image, then groups, in order: events are applied and nothing is decided. Then this run leaves its mark: a
//! [`Event::Start`], which excludes whatever the run before left unaccounted, and the first window of pointers. Only
//! when that group is durable is anybody served.

use std::sync::Arc;
use std::time::Duration;

use seriatim_core::event::{Event, IdBytes, PointerContext};
use seriatim_core::{
    Applied, CommitNumber, History, Limits, OUTCOMES_MAX_DEFAULT, Published, Publisher, Resume, SequencerTime,
    Snapshot, WritePointer, resume_with,
};
use seriatim_wal::{Group, Log, Lsn, Options as LogOptions, Stamp, Storage, StoreId};

use crate::clock::{Clock, Now, START_AHEAD_MS_MAX, STEP_MS_MAX, Times};
use crate::failure::{Failure, ReplayError, StartError};
use crate::plant::Plant;
use crate::publication::WINDOW_MS;

/// How often a long replay says how far it is.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// How a pipeline is set up.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bounds of the decided state.
    pub limits: Limits,
    /// Outcomes kept. Default 2^20.
    pub outcomes_max: usize,
    /// Transactions that may be invalid before LONG begins are refused. Default 10 million.
    pub invalid_max: u64,
    /// Maximum age of a snapshot that somebody reads through without a transaction, in ms. Default 60 s. Versions that
    /// such a reader may need are kept a second longer.
    pub snapshot_age_ms: u32,
    /// How long after its deadline a write of an invalid transaction may still reach a store, in ms. Default 60 s. Before
    /// that it is neither cleaned out of stores nor forgotten.
    pub write_delay_ms: u64,
    /// Settings of the log.
    pub log: LogOptions,
    /// Follow the wall clock at start however far it is ahead of the last durable time.
    pub accept_clock: bool,
    /// Called about once a second while a long log is replayed, with the commits replayed so far. Default: nothing.
    pub on_replay: fn(u64),
}

impl Default for Options {
    fn default() -> Options {
        Options {
            limits: Limits::default(),
            outcomes_max: OUTCOMES_MAX_DEFAULT,
            invalid_max: 10_000_000,
            snapshot_age_ms: 60_000,
            write_delay_ms: 60_000,
            log: LogOptions::default(),
            accept_clock: false,
            on_replay: |_| (),
        }
    }
}

/// What recovery found and made.
pub struct Ready<S: Storage> {
    pub(crate) publisher: Publisher,
    pub(crate) published: Published,
    pub(crate) log: Log<S>,
    pub(crate) times: Option<Times>,
    pub(crate) store: StoreId,
    pub(crate) snapshot: Arc<Snapshot>,
    /// For the operator: what was found.
    pub report: RecoveryReport,
}

/// What was found in a data directory.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RecoveryReport {
    /// The directory was empty: this is a new store.
    pub new_store: bool,
    /// Commit number of the image that recovery started from.
    pub image: Option<u64>,
    /// Commits replayed after it.
    pub commits: u64,
    /// Transactions that were open and still are.
    pub open: u64,
    /// The process before stopped cleanly.
    pub clean: bool,
    /// Things the operator should know: unfinished groups left out, damaged images passed over.
    pub notes: Vec<String>,
}

/// Opens the log, replays it, and makes this run's first group durable.
pub(crate) fn recover<S: Storage, P: Plant>(
    mut storage: S,
    options: &Options,
    clock: &impl Clock,
) -> Result<Ready<S>, StartError> {
    options.limits.check()?;
    let boot = storage.random().max(1);
    let mut log_options = options.log.clone();
    log_options.created_ms = clock.wall_ms();
    let (mut log, recovered) = Log::open(storage, log_options)?;

    let mut report = RecoveryReport { new_store: recovered.last_stamp.is_none(), ..RecoveryReport::default() };
    report.notes.extend(recovered.bad_images.iter().map(ToString::to_string));
    report.notes.extend(recovered.cut.iter().map(ToString::to_string));

    let mut published = Published::new(options.outcomes_max);
    if let Some(image) = &recovered.image {
        published = Published::load_image(image.bytes(), options.outcomes_max)
            .map_err(|source| StartError::Image { covers: image.covers.0, source })?;
        report.image = Some(published.csn().0);
    }
    let floor = if P::image_without_floor() { CommitNumber(0) } else { published.csn() };
    let mut history = History::new(&options.limits, floor);
    let commits_before = published.csn().0;
    let mut told_at = clock.monotonic();
    for group in recovered.groups() {
        replay::<P>(&mut published, &mut history, &group)?;
        let now = clock.monotonic();
        if now - told_at >= TELL_EVERY {
            told_at = now;
            (options.on_replay)(published.csn().0 - commits_before);
        }
    }
    report.commits = published.csn().0 - commits_before;
    report.open = published.open_len() as u64;
    report.clean = published.stopped_cleanly();

    let last_ms = recovered.last_stamp.map(|stamp| stamp.commit_time_ms);
    let store = recovered.store;
    drop(recovered);
    let behind_ms = last_ms.map_or(0, |last_ms| last_ms.saturating_sub(clock.wall_ms()));
    if behind_ms > STEP_MS_MAX {
        let seconds = behind_ms / 1_000;
        report.notes.push(format!("the clock is {seconds} s behind the last durable time; pointers wait for it there"));
    }
    let ahead_ms = last_ms.map_or(0, |last_ms| clock.wall_ms().saturating_sub(last_ms));
    if ahead_ms > START_AHEAD_MS_MAX && !options.accept_clock {
        return Err(StartError::ClockAhead { ahead_days: ahead_ms / (24 * 3_600_000) });
    }

    let mut times = Times::start(clock, published.time());
    let now = times.look(clock);
    let first = WritePointer(published.first_free().0.max(WritePointer::at_ms(now.wall_ms).0).max(1));
    let window_end = WritePointer::at_ms(now.wall_ms.max(first.ms_since_epoch()) + WINDOW_MS);
    let mut mark = vec![Event::Start { boot, first, time: now.sequencer }, Event::Window { end: window_end }];
    if P::unaccounted_visible() && !published.stopped_cleanly() {
        mark.insert(0, Event::Stop { next: first });
    }
    first_group(&mut log, &mut published, &mark, now, options.log.segment_bytes)?;

    let snapshot = published.next_snapshot();
    let resume = Resume {
        next: if P::window_reused() { WritePointer::at_ms(now.wall_ms) } else { first },
        window_end,
        csn: published.csn(),
        index_floor: CommitNumber(0),
        snapshot: snapshot.clone(),
        open: published.open().copied().collect(),
    };
    let (_, publisher) = resume_with(options.limits.clone(), resume, history);
    Ok(Ready { publisher, published, log, times: Some(times), store, snapshot, report })
}

/// Makes this run's mark durable, and waits for it.
fn first_group<S: Storage>(
    log: &mut Log<S>,
    published: &mut Published,
    mark: &[Event],
    now: Now,
    needed_bytes: u64,
) -> Result<(), StartError> {
    let mut context = PointerContext::default();
    for event in mark {
        let mut payload = Vec::new();
        event.encode(&mut context, &mut payload);
        log.append(event.kind() as u8, &payload).map_err(|source| StartError::FirstGroup { needed_bytes, source })?;
    }
    let stamp = stamp(published.csn(), 0, now);
    while log.submit(&stamp).map_err(StartError::FirstSubmit)?.is_none() {
        log.wait().map_err(Failure::from)?;
    }
    while log.is_in_flight() {
        if let Some(group) = log.wait().map_err(Failure::from)? {
            apply_group(published, &group, |_, _| {}).map_err(|(_, error)| Failure::Replay(error))?;
        }
    }
    Ok(())
}

/// Applies a durable group to the published state and tells `each` what came of every event.
pub(crate) fn apply_group(
    published: &mut Published,
    group: &Group<'_>,
    mut each: impl FnMut(&Event<IdBytes<'_>>, Applied),
) -> Result<(), (Lsn, ReplayError)> {
    let mut context = PointerContext::default();
    // Its events were decided at this time or before.
    published.set_time(SequencerTime(group.stamp().sequencer_time_ms));
    for record in group.records() {
        let at = |error: ReplayError| (record.lsn, error);
        let (event, applied) = apply_event(published, record.kind, record.payload, &mut context).map_err(at)?;
        each(&event, applied);
    }
    Ok(())
}

/// Reads one record and applies it.
pub(crate) fn apply_event<'r>(
    published: &mut Published,
    kind: u8,
    payload: &'r [u8],
    context: &mut PointerContext,
) -> Result<(Event<IdBytes<'r>>, Applied), ReplayError> {
    let event = Event::decode(kind, payload, context)?;
    let applied = published.apply(&event)?;
    Ok((event, applied))
}

/// Replays a group that an earlier run made durable.
fn replay<P: Plant>(published: &mut Published, history: &mut History, group: &Group<'_>) -> Result<(), StartError> {
    let mut csn = published.csn();
    let applied = apply_group(published, group, |event, _| {
        if let Event::Commit { tx, stored } = event {
            csn.0 += 1;
            if P::history_forgotten() {
                return;
            }
            history.remember(csn, *tx, stored.iter());
        }
    });
    applied.map_err(|(lsn, source)| StartError::Replay { lsn: lsn.0, source })
}

/// What a group says about itself.
pub(crate) fn stamp(csn_before: CommitNumber, commits: u64, now: Now) -> Stamp {
    Stamp {
        token: 0,
        first_csn: csn_before.0 + 1,
        commits: csn_before.0 + commits,
        commit_time_ms: now.wall_ms,
        sequencer_time_ms: now.sequencer.0,
    }
}
