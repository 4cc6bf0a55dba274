//! The durable half of the pipeline: events leave the ring in order, become a group, become durable, become visible.
//!
//! One owner at a time holds it: the server's thread, or whichever thread of an embedded sequencer is waiting. At any
//! moment
//!
//! ```text
//!  tickets:   … released │ in flight │ appended │ in the ring …
//!                        ▲           ▲          ▲
//!                  released_to  submitted_to  appended_to
//! ```
//!
//! and a reply that claims what ticket `t` claims may leave once `t < released_to`: its group is durable, the published
//! state holds it, and the snapshot that begins from now on start from shows it.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use seriatim_core::event::{Begin, Event, PointerContext};
use seriatim_core::{
    Applied, CommitError, CommitNumber, End, Full, InvalidCause, Kind, Published, Publisher, Sequencer, Snapshot,
    SnapshotId, Status, Ticket, WritePointer,
};
use seriatim_wal::{AppendError, Log, SaveError, Storage, StoreId, SubmitError};

use crate::bounds::Bounds;
use crate::clock::Now;
use crate::failure::Failure;
use crate::fences::Fences;
use crate::plant::Plant;
use crate::recovery::{Options, Ready, apply_event, apply_group, stamp};
use crate::upkeep::Statistics;

/// How far ahead of the clock the window of durable pointers reaches while pointers are asked for: 2 s.
pub const WINDOW_MS: u64 = 2_000;
/// How far ahead it reaches while nobody asks: 30 s, so that an idle sequencer writes four times a minute.
pub const WINDOW_IDLE_MS: u64 = 30_000;
/// A counter further ahead of the clock than this gets no more window than it needs: 60 s.
const COUNTER_AHEAD_MS_MAX: u64 = 60_000;
/// The window of a counter that is too far ahead: 100 ms, which at a million pointers a millisecond is plenty.
const WINDOW_AHEAD_MS: u64 = 100;
/// How long nobody has asked for a pointer before the sequencer counts as idle: 5 s.
const IDLE_AFTER: Duration = Duration::from_secs(5);
/// After this time without news an empty group closes the log, so that what was acknowledged has a successor: 10 ms.
const CLOSE_AFTER: Duration = Duration::from_millis(10);
/// An open group of so many bytes is written though nobody waits for it.
const PATIENT_BYTES: usize = 64 << 10;
/// Snapshots kept as bases of differences.
const RECENT_SNAPSHOTS: usize = 1024;
/// Log bytes between two images.
const IMAGE_EVERY_BYTES: u64 = 256 << 20;

/// The durable half of the pipeline; see the head of this file.
pub(crate) struct Publication<S: Storage, P> {
    core: Arc<Sequencer>,
    publisher: Publisher,
    published: Published,
    log: Log<S>,
    store: StoreId,
    invalid_max: u64,
    /// Events that left the ring and found no room in the open group, in order; nothing overtakes them.
    held: VecDeque<(Option<Ticket>, Event)>,
    context: PointerContext,
    payload: Vec<u8>,
    appended_to: u64,
    submitted_to: u64,
    released_to: u64,
    /// Commits decided up to the end of the open group.
    appended_csn: CommitNumber,
    submitted_csn: CommitNumber,
    recent: VecDeque<Arc<Snapshot>>,
    window_asked: WritePointer,
    /// Somebody waits for an event in the open group. Nobody does for begins, pointers that were given back, and jumps.
    is_awaited: bool,
    /// When the open group was first found with records.
    opened_at: Option<Duration>,
    /// When a pointer was last asked for, and when something last became durable.
    asked_at: Duration,
    durable_at: Duration,
    /// Where the pointers were when they were last lifted.
    ticked_to: WritePointer,
    image_at_bytes: u64,
    no_room: bool,
    said_shortage: bool,
    bounds: Bounds,
    /// The last reset, and below which pointer it dropped everything.
    reset: Option<(Ticket, WritePointer)>,
    pub(crate) fences: Fences,
    pub(crate) statistics: Statistics,
    /// What the planted early publisher has still to see durable.
    early: Vec<Event>,
    plant: PhantomData<P>,
}

impl<S: Storage, P: Plant> Publication<S, P> {
    pub(crate) fn new(ready: Ready<S>, options: &Options) -> Publication<S, P> {
        let Ready { publisher, published, log, store, snapshot, .. } = ready;
        let csn = published.csn();
        let acknowledged = published.stores().iter().map(|(_, store)| store.bound).max();
        let left_over_ms = if P::window_left_over() { WINDOW_IDLE_MS } else { 0 };
        Publication {
            bounds: Bounds::new(options, acknowledged.unwrap_or_default()),
            core: publisher.sequencer().clone(),
            window_asked: WritePointer::at_ms(published.window_end().ms_since_epoch() + left_over_ms),
            publisher,
            published,
            image_at_bytes: IMAGE_EVERY_BYTES,
            log,
            store,
            invalid_max: options.invalid_max,
            held: VecDeque::new(),
            context: PointerContext::default(),
            payload: Vec::new(),
            appended_to: 0,
            submitted_to: 0,
            released_to: 0,
            appended_csn: csn,
            submitted_csn: csn,
            recent: VecDeque::from([snapshot]),
            is_awaited: false,
            opened_at: None,
            asked_at: Duration::ZERO,
            ticked_to: WritePointer(0),
            durable_at: Duration::ZERO,
            no_room: false,
            said_shortage: false,
            reset: None,
            fences: Fences::default(),
            statistics: Statistics::default(),
            early: Vec::new(),
            plant: PhantomData,
        }
    }

    /// The decided state.
    pub(crate) fn core(&self) -> &Arc<Sequencer> {
        &self.core
    }

    /// The published state.
    pub(crate) fn published(&self) -> &Published {
        &self.published
    }

    /// What the bounds of garbage collection are found from: the published state, the publisher, what is remembered, and
    /// the end of the tickets that are published.
    pub(crate) fn for_bounds(&mut self) -> (&mut Published, &mut Publisher, &mut Bounds, u64) {
        (&mut self.published, &mut self.publisher, &mut self.bounds, self.released_to)
    }

    pub(crate) fn log(&self) -> &Log<S> {
        &self.log
    }

    pub(crate) fn store(&self) -> StoreId {
        self.store
    }

    /// The pointer that is handed out next.
    pub(crate) fn next_pointer(&self) -> WritePointer {
        self.publisher.next_pointer()
    }

    /// The ticket that the next event gets.
    pub(crate) fn next_ticket(&self) -> Ticket {
        self.publisher.next_ticket()
    }

    /// Adds an event of the owner's own.
    pub(crate) fn push(&mut self, event: Event) -> Result<Ticket, Full> {
        self.publisher.push(event)
    }

    /// True if what this ticket claims may be answered.
    pub(crate) fn is_released(&self, ticket: Ticket) -> bool {
        ticket.0 < self.released_to || P::ack_before_sync()
    }

    /// Tickets below this one are released.
    pub(crate) fn released_to(&self) -> u64 {
        self.released_to
    }

    /// A ticket that is released only when everything decided so far is; `None` if that is so already.
    pub(crate) fn last_ticket(&self) -> Option<Ticket> {
        let next = self.publisher.next_ticket().0;
        (next > self.released_to).then(|| Ticket(next - 1))
    }

    /// True while no further segment of the log can be made. What is ready is a reserve, kept for what was decided.
    pub(crate) fn has_no_room(&self) -> bool {
        self.no_room || self.log.shortage().is_some()
    }

    /// Where a transaction stands: decided if it is open, else published. A refusal that is not durable yet is a decision
    /// that a crash may take back: whoever is told of it would roll back what may yet commit. A reset likewise may be taken
    /// back, and what it dropped come again though the published state has not seen it yet.
    pub(crate) fn status(&self, tx: WritePointer) -> Status {
        let durable = || match self.published.status(tx) {
            Status::Forgotten if P::forgotten_outcome() => Status::Aborted,
            status => status,
        };
        match self.core.look(tx) {
            Some(Status::Refused) if durable() != Status::Refused && !P::refusal_seen_early() => Status::Deciding,
            Some(decided) => decided,
            None => match durable() {
                Status::Forgotten if self.reset_is_on_its_way(tx) && !P::reset_seen_early() => Status::Deciding,
                status => status,
            },
        }
    }

    /// True if a reset that is not durable yet may have dropped this transaction. What is visible had ended before.
    fn reset_is_on_its_way(&self, tx: WritePointer) -> bool {
        let is_under_way = |(ticket, floor)| tx < floor && !self.is_released(ticket);
        self.reset.is_some_and(is_under_way) && !self.snapshot().is_visible(tx)
    }

    /// The newest published snapshot.
    pub(crate) fn snapshot(&self) -> &Arc<Snapshot> {
        self.recent.back().expect("there is always a newest snapshot")
    }

    /// A snapshot of this run by its name, if it is recent enough to be the base of a difference.
    pub(crate) fn recent(&self, id: SnapshotId) -> Option<&Arc<Snapshot>> {
        let oldest = self.recent.front()?.id;
        let place = id.number.checked_sub(oldest.number).filter(|_| id.boot == oldest.boot)?;
        self.recent.get(usize::try_from(place).ok()?)
    }

    /// The oldest snapshot that may be the base of a difference.
    pub(crate) fn oldest(&self) -> &Arc<Snapshot> {
        self.recent.front().expect("there is always a newest snapshot")
    }

    /// Reports the rollback of a transaction that is invalid already. `None` if that changes nothing: it is no SHORT, or
    /// not invalid.
    pub(crate) fn abort_invalid(&mut self, tx: WritePointer) -> Option<Result<Ticket, Full>> {
        let details = self.published.invalid_transaction(tx)?;
        (details.kind == Kind::Short).then(|| self.publisher.push(Event::Aborted { tx }))
    }

    /// Drops everything open and invalid. Nobody may decide at the same time.
    pub(crate) fn reset(&mut self) -> Result<(WritePointer, Ticket), Full> {
        // The event first: once the table is cleared there is no way back.
        let floor = self.publisher.next_pointer();
        let ticket = self.publisher.push(Event::Reset { floor })?;
        let cleared = self.publisher.reset();
        assert_eq!(cleared, floor, "somebody took a pointer during a reset");
        self.reset = Some((ticket, floor));
        Ok((floor, ticket))
    }

    /// Somebody is about to ask for pointers: lifts them to the clock and writes the jump down before any event that may
    /// name a pointer beyond it.
    pub(crate) fn tick(&mut self, now: Now) {
        if self.has_no_room() {
            // Nothing new is taken on, and the room that is left is for the ends of what is open.
            return;
        }
        self.asked_at = now.monotonic;
        // What is in the ring names pointers before the jump, and what comes later may name some after it.
        if let Some(tick) = self.publisher.tick(now.wall_ms) {
            self.held.push_back((None, tick));
        }
        self.ticked_to = self.publisher.next_pointer();
    }

    /// As [`Publication::tick`], where pointers are taken without a word: lifts them if any was taken since they were last
    /// lifted. So the clock alone writes nothing, and whoever takes the first one after a while lifts them before.
    pub(crate) fn tick_after_use(&mut self, now: Now) {
        if !self.is_idle() {
            self.tick(now);
        }
    }

    /// True if no pointer was taken since they were last lifted.
    pub(crate) fn is_idle(&self) -> bool {
        self.publisher.next_pointer() == self.ticked_to
    }

    /// A further pointer that was given before, if its transaction is still open.
    pub(crate) fn given_before(&self, tx: WritePointer, number: u32) -> Result<WritePointer, CommitError> {
        match self.published.open_transaction(tx) {
            Some(_) => Ok(self.published.checkpoints(tx)[number as usize - 1]),
            None => Err(CommitError::NotInProgress { tx, ended: self.published.status(tx) }),
        }
    }

    /// Keeps the window of pointers ahead of the clock and ends what has expired. Cheap; called every turn.
    pub(crate) fn keep(&mut self, now: Now) {
        self.keep_window(now);
        let shortage = self.log.shortage().map(|error| std::io::Error::new(error.kind(), error.to_string()));
        if shortage.is_some() != self.said_shortage && !self.no_room {
            self.say_shortage(shortage.as_ref());
        }
        let (core, publisher) = (&self.core, &mut self.publisher);
        let due = if P::expiry_early() { now.sequencer.plus_ms(500) } else { now.sequencer };
        self.published.for_each_due(due, |open| {
            // An end that finds the ring full is tried again a second later; any other answer ends the matter.
            let end = core.invalidate(open.tx, InvalidCause::Expired);
            if P::expiry_during_commit() && matches!(end, End::Ending { .. }) {
                let _ = publisher.push(Event::Invalidated { tx: open.tx, cause: InvalidCause::Expired });
            }
        });
        self.publisher.refuse_long(self.published.invalid().len() >= self.invalid_max);
        self.fences.count(&self.published, self.released_to);
        let newest = self.recent.back().expect("there is always a newest snapshot");
        self.bounds.note(now.monotonic, || newest.settled());
        self.say_statistics(now);
    }

    /// Tells the operator, once, that the disk is full, and once that it no longer is.
    fn say_shortage(&mut self, shortage: Option<&std::io::Error>) {
        match (shortage, self.said_shortage) {
            (Some(error), false) => {
                log::error!("no room for a further segment of the log, refusing until there is: {error}")
            }
            (None, true) => log::warn!("there is room for the log again"),
            _ => return,
        }
        self.said_shortage = shortage.is_some();
    }

    fn keep_window(&mut self, now: Now) {
        if self.has_no_room() {
            return;
        }
        let idle = now.monotonic.saturating_sub(self.asked_at) > IDLE_AFTER;
        let clock = WritePointer::at_ms(now.wall_ms);
        let reach = self.publisher.next_pointer().max(clock);
        let ahead_ms = match (reach.ms_since_epoch() - clock.ms_since_epoch() > COUNTER_AHEAD_MS_MAX, idle) {
            (true, _) => WINDOW_AHEAD_MS,
            (false, true) => WINDOW_IDLE_MS,
            (false, false) => WINDOW_MS,
        };
        let half = WritePointer::at_ms(reach.ms_since_epoch() + ahead_ms / 2);
        if self.window_asked >= half {
            return;
        }
        let end = WritePointer::at_ms(reach.ms_since_epoch() + ahead_ms);
        if self.publisher.push(Event::Window { end }).is_ok() {
            self.window_asked = end;
        }
    }

    /// Moves events from the ring to the open group, in order, as far as it has room.
    pub(crate) fn append(&mut self) -> Result<(), Failure> {
        loop {
            while let Some((ticket, event)) = self.held.front() {
                let mut context = self.context;
                self.payload.clear();
                event.encode(&mut context, &mut self.payload);
                match self.log.append(event.kind() as u8, &self.payload) {
                    Ok(_) => self.no_room = false,
                    Err(AppendError::Full { .. }) => return Ok(()),
                    Err(AppendError::DiskFull(error) | AppendError::NoSegment(error)) => {
                        // The reserve is used up as well: what was decided waits in its order.
                        self.no_room = true;
                        self.say_shortage(Some(&error));
                        return Ok(());
                    }
                    Err(AppendError::Poisoned(poisoned)) => return Err(poisoned.into()),
                    Err(error) => panic!("an event within its limits was not taken: {error}"),
                }
                self.context = context;
                self.appended_to = ticket.map_or(self.appended_to, |ticket| ticket.0 + 1);
                self.appended_csn.0 += u64::from(matches!(event, Event::Commit { .. }));
                self.is_awaited |= !matches!(event, Event::Begin(_) | Event::Finished { .. } | Event::Tick { .. });
                let (_, event) = self.held.pop_front().expect("the front was just looked at");
                if P::early_visible() {
                    self.early.push(event);
                }
            }
            let held = &mut self.held;
            if self.publisher.drain(DRAIN, |ticket, event| hold(held, ticket, event)) == 0 {
                self.pass_over_gaps();
                return Ok(());
            }
        }
    }

    /// The ring is empty: tickets that were taken for nothing (a begin that was refused late) have no event to wait for.
    fn pass_over_gaps(&mut self) {
        self.appended_to = self.publisher.drained_to().0;
        if self.log.open_len() == 0 && !self.log.is_in_flight() {
            self.submitted_to = self.appended_to;
            self.released_to = self.appended_to;
        }
    }

    /// Starts the write of the open group if none is in flight and somebody waits for it: a commit that comes right after
    /// its begin must not find the begin's own group on its way, and wait for two. Begins are written with whatever is
    /// waited for next, or after a moment. After a quiet moment an empty group follows the last.
    pub(crate) fn submit(&mut self, now: Now) -> Result<(), Failure> {
        let stamp = stamp(self.submitted_csn, self.appended_csn.0 - self.submitted_csn.0, now);
        let submitted = if self.log.open_len() > 0 {
            let opened_at = *self.opened_at.get_or_insert(now.monotonic);
            let is_patient = now.monotonic.saturating_sub(opened_at) < CLOSE_AFTER
                && self.log.open_bytes() < PATIENT_BYTES
                && self.held.is_empty();
            if is_patient && !self.is_awaited {
                return Ok(());
            }
            self.log.submit(&stamp)
        } else if self.closing_due_in(now) == Some(Duration::ZERO) {
            self.log.close_group(&stamp)
        } else {
            return Ok(());
        };
        let submitted = submitted.map_err(|error| match error {
            SubmitError::Poisoned(poisoned) => Failure::from(poisoned),
            error => panic!("a group of the only token was not taken: {error}"),
        })?;
        if submitted.is_some() {
            self.submitted_to = self.appended_to;
            self.submitted_csn = self.appended_csn;
            self.context = PointerContext::default();
            (self.is_awaited, self.opened_at) = (false, None);
            if P::early_visible() {
                self.publish_early()?;
            }
            if P::late_visible() {
                self.swap_snapshot();
            }
        }
        Ok(())
    }

    /// Somebody waits for whatever is in the open group.
    pub(crate) fn hasten(&mut self) {
        self.is_awaited = true;
    }

    /// How long until a group is due that nobody waits for, if one is: the open one, or a closing one.
    pub(crate) fn closing_due_in(&self, now: Now) -> Option<Duration> {
        if self.log.open_len() > 0 && !self.log.is_in_flight() {
            let open_for = self.opened_at.map_or(Duration::ZERO, |at| now.monotonic.saturating_sub(at));
            // One that is overdue found no room when it was last tried, and is not tried without a pause.
            return Some(CLOSE_AFTER.checked_sub(open_for).filter(|left| !left.is_zero()).unwrap_or(CLOSE_AFTER));
        }
        let quiet = now.monotonic.saturating_sub(self.durable_at);
        (self.log.wants_closing() && !self.log.is_in_flight()).then(|| CLOSE_AFTER.saturating_sub(quiet))
    }

    /// True while something that was decided is not durable yet.
    pub(crate) fn is_behind(&self) -> bool {
        self.log.is_in_flight() || self.log.open_len() > 0 || !self.held.is_empty() || self.last_ticket().is_some()
    }

    /// Publishes the group that became durable, if one did: advances the published state, swaps in the next snapshot,
    /// releases what waited. Never blocks.
    pub(crate) fn publish(&mut self, now: Now) -> Result<bool, Failure> {
        self.publish_by(now, |log| log.poll().map(|group| group.is_some()))
    }

    /// As [`Publication::publish`], but waits for the group in flight.
    pub(crate) fn publish_blocking(&mut self, now: Now) -> Result<bool, Failure> {
        self.publish_by(now, |log| log.wait().map(|group| group.is_some()))
    }

    fn publish_by(
        &mut self,
        now: Now,
        durable: impl FnOnce(&mut Log<S>) -> Result<bool, seriatim_wal::Poisoned>,
    ) -> Result<bool, Failure> {
        if !durable(&mut self.log)? {
            return Ok(false);
        }
        let group = self.log.durable_group().expect("a group that became durable stays until the next submit");
        if !P::early_visible() {
            let (publisher, fences) = (&mut self.publisher, &mut self.fences);
            apply_group(&mut self.published, &group, |_, applied| settle_up(publisher, fences, applied))
                .map_err(|(_, error)| Failure::Replay(error))?;
            if !P::late_visible() {
                self.swap_snapshot();
            }
        }
        self.released_to = self.submitted_to;
        self.durable_at = now.monotonic;
        self.save_image();
        Ok(true)
    }

    /// The planted bug: what was only submitted is shown to everybody.
    fn publish_early(&mut self) -> Result<(), Failure> {
        for event in std::mem::take(&mut self.early) {
            let mut payload = Vec::new();
            event.encode(&mut PointerContext::default(), &mut payload);
            let applied =
                apply_event(&mut self.published, event.kind() as u8, &payload, &mut PointerContext::default())
                    .map_err(Failure::Replay)?;
            settle_up(&mut self.publisher, &mut self.fences, applied.1);
        }
        self.swap_snapshot();
        Ok(())
    }

    fn swap_snapshot(&mut self) {
        if !self.published.differs_from(self.snapshot()) {
            return;
        }
        let snapshot = self.published.next_snapshot();
        self.publisher.publish(snapshot.clone());
        if self.recent.len() == RECENT_SNAPSHOTS {
            self.recent.pop_front();
        }
        self.recent.push_back(snapshot);
    }

    /// Has an image written in the background when the log has grown enough since the last.
    fn save_image(&mut self) {
        match self.log.image_saved() {
            Some(Ok(covers)) => log::debug!("saved an image up to record {covers}"),
            Some(Err(error)) => log::warn!("{error}: {}", error.source),
            None => {}
        }
        if P::early_visible() || self.log.stats().written_bytes < self.image_at_bytes {
            return;
        }
        self.start_image();
    }

    /// Has an image of the published state written in the background.
    pub(crate) fn start_image(&mut self) {
        let state = self.published.clone();
        match self.log.save_image(self.log.durable(), Box::new(move |out| out.write_all(&state.save_image()))) {
            Ok(()) => self.image_at_bytes = self.log.stats().written_bytes + IMAGE_EVERY_BYTES,
            Err(SaveError::Busy | SaveError::NotNewer { .. }) => {}
            Err(error) => log::warn!("save an image: {error}"),
        }
    }

    /// Makes everything durable, accounts for every pointer, and leaves the log closed. Blocks for the disk.
    pub(crate) fn stop(&mut self, mut look: impl FnMut() -> Now) -> Result<(), Failure> {
        self.drain_blocking(&mut look)?;
        let next = self.publisher.next_pointer();
        if self.publisher.push(Event::Stop { next }).is_ok() {
            self.drain_blocking(&mut look)?;
        }
        let now = look();
        let stamp = stamp(self.submitted_csn, 0, now);
        if matches!(self.log.close_group(&stamp), Ok(Some(_))) {
            self.publish_blocking(now)?;
        }
        Ok(())
    }

    /// Waits until everything decided is durable, unless there is no room for it.
    fn drain_blocking(&mut self, look: &mut impl FnMut() -> Now) -> Result<(), Failure> {
        loop {
            let now = look();
            self.append()?;
            self.hasten();
            self.submit(now)?;
            let published = self.publish_blocking(now)?;
            let stuck = !published && self.has_no_room();
            if stuck || !self.is_behind() {
                return Ok(());
            }
        }
    }
}

/// Events drained from the ring at once.
const DRAIN: usize = 64;

/// Queues an event for the open group; begins that continue the one before become part of it.
fn hold(held: &mut VecDeque<(Option<Ticket>, Event)>, ticket: Ticket, event: Event) {
    if let (Event::Begin(begin), Some((last, Event::Begin(before)))) = (&event, held.back_mut())
        && continues(before, begin)
    {
        before.count += begin.count;
        *last = Some(ticket);
        return;
    }
    held.push_back((Some(ticket), event));
}

fn continues(before: &Begin, begin: &Begin) -> bool {
    let expected =
        Begin { first: WritePointer(before.first.0 + u64::from(before.count)), count: begin.count, ..*before };
    *begin == expected && before.count.checked_add(begin.count).is_some()
}

/// Does in the decided state what a published event asks for.
fn settle_up(publisher: &mut Publisher, fences: &mut Fences, applied: Applied) {
    match applied {
        Applied::Ended { tx, snapshot } => {
            publisher.forget(tx);
            fences.ended(tx, snapshot);
        }
        Applied::Window(end) => publisher.set_window_end(end),
        // The table was cleared when the reset was decided.
        Applied::Reset(_) => fences.all_ended(),
        Applied::Nothing => {}
    }
}
