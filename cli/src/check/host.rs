//! A store in a process of its own, reached over a Unix socket.
//!
//! The check kills sequencers and clients, never the store: this process owns a fjall store, outlives them all, and
//! gives them [`seriatim_kv::Store`] through [`HostedStore`]. It also remembers which versions were put last, so that an
//! auditor finds the newest rows in one question.
//!
//! ```text
//!  client process ── HostedStore ──┐   length-prefixed frames, one answer to each question
//!  client process ── HostedStore ──┼── Unix socket ── serve: a thread per connection ── FjallStore
//!  auditor        ── HostedStore ──┘
//! ```

mod client;
mod protocol;
mod recent;
mod server;

pub use client::HostedStore;
pub use server::StoreHost;
