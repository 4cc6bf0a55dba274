//! Transaction contexts from end to end: two participants with stores of their own, over the sequencers that ship.

mod bank;
mod commits;
mod doubts;
mod far;
mod line;
mod rig;
mod shelf;
mod weaknesses;
