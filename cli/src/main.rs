//! Operates: the one binary `seriatim`.
fn main() {}
