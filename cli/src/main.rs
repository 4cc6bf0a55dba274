//! Operates: the one binary `seriatim`.

mod check;

fn main() {}
