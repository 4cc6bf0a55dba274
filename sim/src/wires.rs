//! The network between clients and server: pieces that take their time, and connections that break anywhere.
//!
//! Within one direction of one connection bytes keep their order; between connections they do not, so what an old
//! connection still carries may arrive after what the new one brought.

use crate::probes::Probe;
use crate::queue::Event;
use crate::verdict::Judged;
use crate::world::World;

/// One connection, as the network knows it.
pub(crate) struct Wire {
    pub client: usize,
    /// When the last piece so far arrives, in each direction.
    to_server_us: u64,
    to_client_us: u64,
    /// Bytes that still get through; the connection is broken then.
    left_to_server: usize,
    left_to_client: usize,
    /// The client reads nothing before this time.
    pub reads_from_us: u64,
    /// When the client first heard something.
    pub heard_us: Option<u64>,
    is_cut: bool,
}

impl Wire {
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    pub fn new(client: usize) -> Wire {
        Wire {
            client,
            to_server_us: 0,
            to_client_us: 0,
            left_to_server: usize::MAX,
            left_to_client: usize::MAX,
            reads_from_us: 0,
            heard_us: None,
            is_cut: false,
        }
    }
}

impl World {
    fn net_delay(&mut self) -> u64 {
        let (from, to) = self.knobs.net_us;
        let delay = self.rng.u64(from..=to);
        if self.rng.u8(..) < self.knobs.net_slow { delay * 100 } else { delay }
    }

    /// Cuts bytes into pieces as the network would.
    fn pieces(&mut self, bytes: Vec<u8>) -> Vec<Vec<u8>> {
        if bytes.len() < 2 || !self.once_in(6) {
            return vec![bytes];
        }
        let mut front = bytes;
        let back = front.split_off(self.rng.usize(1..front.len()));
        vec![front, back]
    }

    /// A client has written.
    pub fn send_to_server(&mut self, connection: u64, bytes: Vec<u8>) {
        self.trace.mix_bytes(&bytes);
        for piece in self.pieces(bytes) {
            let at = self.now() + self.net_delay();
            let Some(wire) = self.wires.get_mut(&connection) else { return };
            wire.to_server_us = at.max(wire.to_server_us + 1);
            self.queue.push(wire.to_server_us, Event::ToServer { connection, bytes: piece });
        }
    }

    /// The server has written.
    pub fn send_to_client(&mut self, connection: u64, bytes: Vec<u8>) {
        self.trace.mix_bytes(&bytes);
        for piece in self.pieces(bytes) {
            let at = self.now() + self.net_delay();
            let Some(wire) = self.wires.get_mut(&connection) else { return };
            wire.to_client_us = at.max(wire.to_client_us + 1).max(wire.reads_from_us);
            self.queue.push(wire.to_client_us, Event::ToClient { connection, bytes: piece });
        }
    }

    /// The client's side learns that it is over, after all that is under way to it.
    pub fn show_end_to_client(&mut self, connection: u64, delay_us: u64) {
        let at = self.now() + delay_us;
        let Some(wire) = self.wires.get_mut(&connection) else { return };
        let at = at.max(wire.to_client_us + 1);
        self.queue.push(at, Event::ClientSeesEnd { connection });
    }

    /// The server's side learns that it is over, after all that is under way to it.
    pub fn show_end_to_server(&mut self, connection: u64, delay_us: u64) {
        let at = self.now() + delay_us;
        let Some(wire) = self.wires.get_mut(&connection) else { return };
        let at = at.max(wire.to_server_us + 1);
        self.queue.push(at, Event::ServerSeesEnd { connection });
    }

    /// A connection breaks. Each side learns it in its own time, and bytes under way get through or not.
    pub fn cut(&mut self, connection: u64) {
        let reach = |rng: &mut fastrand::Rng| match rng.u8(..3) {
            0 => usize::MAX,
            1 => 0,
            _ => rng.usize(..200),
        };
        let (to_server, to_client) = (reach(&mut self.rng), reach(&mut self.rng));
        let Some(wire) = self.wires.get_mut(&connection).filter(|wire| !wire.is_cut) else { return };
        wire.is_cut = true;
        (wire.left_to_server, wire.left_to_client) = (to_server, to_client);
        let client = wire.client as u64;
        self.note("cut", &[("connection", connection), ("client", client)]);
        // The server may learn it long after the client has come back.
        let late_us = if self.once_in(4) { self.knobs.limits.grace_ms * 1_500 } else { 2_000 };
        let (server_us, client_us) = (self.rng.u64(..=late_us), self.rng.u64(..=2_000));
        self.show_end_to_server(connection, server_us);
        self.show_end_to_client(connection, client_us);
    }

    pub fn arrive_at_server(&mut self, connection: u64, bytes: &[u8]) -> Judged {
        let Some(wire) = self.wires.get_mut(&connection) else { return Ok(()) };
        let count = bytes.len().min(wire.left_to_server);
        if wire.left_to_server != usize::MAX {
            wire.left_to_server -= count;
        }
        let client = wire.client;
        let is_old = self.clients[client].connection().is_some_and(|newest| newest > connection);
        let Some(server) = self.server.as_mut() else { return Ok(()) };
        if count > 0 && server.pipeline.network().deliver(connection, &bytes[..count]) {
            self.note("to server", &[("connection", connection), ("bytes", count as u64)]);
            self.probes.hit_if(is_old, Probe::OldBytesLate);
            self.wake_server(self.knobs.turn_us);
        }
        Ok(())
    }

    pub fn server_sees_end(&mut self, connection: u64) -> Judged {
        let Some(server) = self.server.as_mut() else { return Ok(()) };
        if server.pipeline.network().end(connection) {
            self.note("server sees end", &[("connection", connection)]);
            self.wake_server(self.knobs.turn_us);
        }
        Ok(())
    }

    pub fn arrive_at_client(&mut self, connection: u64, bytes: Vec<u8>) -> Judged {
        let Some(wire) = self.wires.get_mut(&connection) else { return Ok(()) };
        let count = bytes.len().min(wire.left_to_client);
        if wire.left_to_client != usize::MAX {
            wire.left_to_client -= count;
        }
        wire.heard_us.get_or_insert(self.clock.now_us());
        let client = wire.client;
        if let Some(server) = self.server.as_mut()
            && server.pipeline.network().make_room(connection, bytes.len())
        {
            self.probes.hit(Probe::SlowReader);
            self.wake_server(self.knobs.turn_us);
        }
        if count == 0 || self.clients[client].connection() != Some(connection) {
            return Ok(());
        }
        self.note("to client", &[("connection", connection), ("client", client as u64), ("bytes", count as u64)]);
        self.hear(client, &bytes[..count])
    }
}
