//! The laws, in a few words each: what a violation names.

pub(crate) const DURABLE: &str = "a reply claims only what is durable";
pub(crate) const BEGIN: &str = "a begin never waits for the disk";
pub(crate) const POINTERS: &str = "pointers never repeat or go back";
pub(crate) const ABOVE: &str = "a pointer is above its snapshot";
pub(crate) const FIRST: &str = "first committer wins";
pub(crate) const OUTCOME: &str = "one request, one outcome";
pub(crate) const TABLE: &str = "the server believes its own table";
pub(crate) const BOUNDS: &str = "what grows has a bound";
pub(crate) const FAILED: &str = "a failed write ends the server";
pub(crate) const ACKNOWLEDGED: &str = "what was acknowledged is visible";
pub(crate) const ROLLED_BACK: &str = "rolled back is the client's word";
pub(crate) const SNAPSHOT: &str = "a snapshot is exactly the commits up to its number";
pub(crate) const READ: &str = "a read is the newest committed value of its snapshot";
pub(crate) const HISTORY: &str = "what the clients saw is what their isolation allows";
pub(crate) const BOUND: &str = "the visibility bound never passes a reader";
pub(crate) const CLEAN: &str = "nobody writes up to the clean bound any more";
pub(crate) const FORGOTTEN: &str = "what is forgotten stands in no store";
pub(crate) const FENCE: &str = "a fence passes when everything that was open has ended";
pub(crate) const LIVE: &str = "everybody finishes once the faults are over";
pub(crate) const PROTOCOL: &str = "the server speaks the protocol";
pub(crate) const PANIC: &str = "nothing panics";
