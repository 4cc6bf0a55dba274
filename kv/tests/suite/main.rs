//! One suite of cases over every store.

mod cleaning;
mod endings;
mod isolation;
mod model;
#[cfg(all(feature = "client", feature = "embedded"))]
mod sequencers;
mod stress;
mod support;
