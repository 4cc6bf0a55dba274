//! Asks: the Rust client.
