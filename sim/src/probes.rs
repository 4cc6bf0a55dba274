//! Rare states that a simulation is worthless without: each is counted, and a long run must have met them all.

use std::fmt;

macro_rules! probes {
    ($($name:ident: $text:literal,)*) => {
        /// A rare state.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Probe {
            $(#[doc = $text] $name,)*
        }

        /// All of them, in order.
        const PROBES: &[(Probe, &str)] = &[$((Probe::$name, $text),)*];
    };
}

probes! {
    TornTailCut: "a torn tail was cut",
    UntoldTailKept: "a write that nobody was told of was whole and was kept",
    CrashInWrite: "a crash between a write and its sync",
    CrashIdle: "a crash with nothing under way",
    RecoveredFromImage: "recovery from an image",
    CleanStart: "a start after a clean stop",
    WriteFailed: "a write failed and ended the server",
    DamageRefused: "a damaged log was refused",
    DiskFull: "a request was refused for a full disk",
    DiskFullPassed: "a full disk passed without a restart",
    FirstGroupRefused: "a start was refused for a full disk",
    SegmentRolled: "the log went on in a further segment",
    SegmentRecycled: "a segment was recycled",
    ClosingGroup: "a closing group was written",
    GroupOverlapped: "a group was filled while another was written",
    WindowOverloaded: "a begin was refused for a used-up window",
    TableFull: "a begin was refused for a full table",
    LongRefused: "a LONG begin was refused for too much that is invalid",
    GroupFull: "a group came near its bound",
    RangeRefused: "a reader of a range was refused for what was written in it",
    RingFull: "a request was refused for a full ring",
    Stalled: "a begin was answered while the disk stalled",
    TooOld: "a commit was refused as too old",
    Conflict: "a commit was refused for a conflict",
    WinnerForgotten: "a conflict could not name its winner",
    RetrySawWinner: "a retry began on a snapshot that holds the winner",
    WholeSnapshot: "a snapshot came whole though its reader had one",
    SnapshotDelta: "a snapshot came as a difference",
    DigestChecked: "a difference passed a digest",
    Expired: "an open transaction expired",
    ExpiredAtCommit: "a commit came after its deadline",
    SurvivorExpired: "a survivor of a restart expired",
    Survived: "an open transaction survived a restart",
    CommittedAfterRestart: "a transaction committed in another run than it began in",
    Unaccounted: "a crash lost track of a pointer that a client had",
    GraceInvalidated: "the grace ended a session: invalid",
    GraceAborted: "the grace ended a session: deferred, aborted",
    BackInGrace: "a client came back within its grace",
    RepeatedCommitted: "a repeated commit was told that it had committed",
    RepeatedRefused: "a repeated commit was told that it had ended otherwise",
    SettledOpen: "a doubt was settled and the transaction became invalid",
    SettledCommitted: "a doubt was settled and the transaction had committed",
    SettledDeciding: "a doubt was settled while the commit was being decided",
    LateCommitRefused: "a commit came late, after its transaction had ended",
    OldBytesLate: "bytes of an old connection arrived after the new one's",
    InvalidCleaned: "an invalid transaction was rolled back cleanly",
    InvalidTruncated: "an invalid transaction was truncated",
    OutcomeForgotten: "an outcome was forgotten",
    LongCommitted: "a LONG transaction committed",
    LongAborted: "a LONG transaction was aborted and became invalid",
    WroteLate: "a deferred transaction wrote after its commit",
    Checkpointed: "a transaction with checkpoints committed",
    Miscounted: "a commit named another number of checkpoints than there are",
    CommittedChecked: "a commit in two steps named its checked set",
    NeedChanges: "a checked set was gone and was brought along",
    SerializableRefused: "a serializable transaction was refused for what it read",
    ClockSlewed: "the wall clock stepped and was slewed",
    ClockBehind: "a start with a clock behind the log",
    ClockAheadRefused: "a start was refused for a clock far ahead",
    SlowReader: "a client did not read and the server had to wait",
    PartialRead: "a request arrived in pieces",
    GarbageCollected: "garbage was collected",
    ImageSaved: "an image was saved",
    LateWrite: "a killed process left a write under way",
    ImagePassedOver: "a damaged image was passed over",
    OnlyImageDamaged: "a start was refused for the damage of its only image",
    Noise: "somebody spoke nonsense",
    TooManyConnections: "a connection was refused for too many",
    FencePassed: "a fence passed",
    FenceTimedOut: "a fence timed out",
    BlockBegun: "several transactions began at once",
    WriteSkew: "two that were not serializable both used up a pair",
    SkewAllowed: "a history that no serial order explains, and that is allowed",
    LabelNamed: "a conflict named its winner's label",
    TimeOver: "a client's time was over before it had written everything",
    WroteAfterDeadline: "a write reached its store after its client's time was over",
    CleanedInvalid: "a store took out versions of what is invalid",
    LeftUncleaned: "a store was cleaned and its client went away without a word",
    StoreAcknowledged: "a store acknowledged what it had cleaned",
    BoundUnknown: "an acknowledgement was refused for what the run before had said",
    StoreUnknown: "an acknowledgement was refused for a store that had been removed",
    Pruned: "cleaned transactions were forgotten",
    UnaccountedNamed: "somebody asked to forget what a crash had left unaccounted, by name",
    PrunedUnaccounted: "what a crash had left unaccounted was cleaned and forgotten",
    TruncatedBefore: "an operator had cleaned transactions forgotten",
    SpareRemoved: "a store was removed, and did not hold others back any more",
    ImageTaken: "an image was taken over the wire",
    Reset: "everything open and invalid was dropped by a reset",
    Night: "more than a day passed at once",
    ServerFrozen: "the server got no processor for a while",
}

/// How often each state was met.
#[derive(Clone, PartialEq, Eq)]
pub struct Probes([u64; PROBES.len()]);

impl Default for Probes {
    fn default() -> Probes {
        Probes([0; PROBES.len()])
    }
}

impl Probes {
    /// The state was met.
    pub fn hit(&mut self, probe: Probe) {
        self.0[probe as usize] += 1;
    }

    /// The state was met, if that is so.
    pub(crate) fn hit_if(&mut self, is_so: bool, probe: Probe) {
        self.0[probe as usize] += u64::from(is_so);
    }

    /// It was met so many times.
    pub(crate) fn add(&mut self, probe: Probe, times: u64) {
        self.0[probe as usize] += times;
    }

    /// How often it was met.
    pub fn count(&self, probe: Probe) -> u64 {
        self.0[probe as usize]
    }

    /// Adds another run's counts.
    pub fn join(&mut self, other: &Probes) {
        self.0.iter_mut().zip(&other.0).for_each(|(ours, theirs)| *ours += theirs);
    }

    /// What was never met.
    pub fn missed(&self) -> Vec<&'static str> {
        PROBES.iter().filter(|(probe, _)| self.count(*probe) == 0).map(|(_, text)| *text).collect()
    }
}

impl fmt::Display for Probes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        PROBES.iter().try_for_each(|(probe, text)| writeln!(f, "{:>12}  {text}", self.count(*probe)))
    }
}
