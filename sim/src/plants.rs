//! The planted bugs, by name. The simulation has to find each of them.
//!
//! One pipeline is compiled for [`Planted`], which answers by the name that its thread has been told.

use std::cell::Cell;

use seriatim_net::Plant;

/// A planted bug.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlantName {
    /// See [`Plant::lost_update`].
    LostUpdate,
    /// See [`Plant::early_visible`].
    EarlyVisible,
    /// See [`Plant::abort_on_disconnect`].
    AbortOnDisconnect,
    /// Two runs of a server have the same boot token, so that a snapshot of one is taken for one of the other.
    SameBoot,
}

/// All of them, with what one says on the command line.
pub const PLANTS: &[(&str, PlantName)] = &[
    ("lost-update", PlantName::LostUpdate),
    ("early-visible", PlantName::EarlyVisible),
    ("abort-on-disconnect", PlantName::AbortOnDisconnect),
    ("same-boot", PlantName::SameBoot),
];

thread_local! {
    static PLANTED: Cell<Option<PlantName>> = const { Cell::new(None) };
}

/// From now on the pipelines of this thread have this bug, or none.
pub(crate) fn plant(name: Option<PlantName>) {
    PLANTED.set(name);
}

pub(crate) fn is_planted(name: PlantName) -> bool {
    PLANTED.get() == Some(name)
}

/// The pipeline's plant.
pub(crate) enum Planted {}

impl Plant for Planted {
    fn lost_update() -> bool {
        is_planted(PlantName::LostUpdate)
    }

    fn early_visible() -> bool {
        is_planted(PlantName::EarlyVisible)
    }

    fn abort_on_disconnect() -> bool {
        is_planted(PlantName::AbortOnDisconnect)
    }
}
