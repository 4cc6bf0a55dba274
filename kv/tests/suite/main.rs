//! One suite of cases over every store.

mod endings;
mod isolation;
mod model;
mod stress;
mod support;
