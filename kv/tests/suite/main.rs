//! One suite of cases over every store.

mod cleaning;
#[cfg(all(feature = "client", feature = "embedded"))]
mod contexts;
mod endings;
mod isolation;
mod model;
#[cfg(all(feature = "client", feature = "embedded"))]
mod sequencers;
#[cfg(all(feature = "client", feature = "embedded"))]
mod skew;
mod stress;
mod support;
