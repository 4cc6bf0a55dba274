//! What can be set about a client.

use std::time::Duration;

use seriatim_wire::{Hello, StoreId};

use crate::backoff::random;

/// How a client connects, waits and comes back.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Time for one attempt to connect and say hello. Default 5 s.
    pub connect_timeout: Duration,
    /// Time for one call in all, with every attempt to connect again that it takes. Default 30 s.
    pub request_timeout: Duration,
    /// Connections that one call may lose or fail to make before it gives up, within its time. Default 16, which with
    /// the pauses between them takes some 5 s if the server refuses at once.
    pub attempts_max: u32,
    /// Calls under way at once; more are answered [`Error::QueueFull`](crate::Error::QueueFull). Default 65 536. As
    /// many ends of dropped transactions may wait besides; further ones are left to the server's deadline.
    pub calls_max: usize,
    /// Names this client to the server over all its connections, and owns its transactions. Default random.
    pub session: u64,
    /// The store to insist on; a server of another one is an error. Default none: the first one's is kept.
    pub store: Option<StoreId>,
    /// Name for people, shown by the server where it lists transactions. 64 bytes count. Default empty.
    pub label: String,
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions {
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(30),
            attempts_max: 16,
            calls_max: 1 << 16,
            session: random(),
            store: None,
            label: String::new(),
        }
    }
}

impl ClientOptions {
    /// The hello of a connection with these options.
    pub(crate) fn hello(&self, store: Option<StoreId>) -> Hello<'_> {
        Hello { store: self.store.or(store), label: &self.label, ..Hello::new(self.session) }
    }
}
