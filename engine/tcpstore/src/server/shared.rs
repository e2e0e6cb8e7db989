//! The server's options, and the state that connections share: the data, the connected clients, and the refused ones. Not here: sockets and
//! threads.
//!
//! The limit of the store's memory: how much memory connections take ([`ConnectionMemory`]), and which one must close when that is too much.
//! Pure.
//!
//! [`Data`](super::Data) counts the keys in waits, because connections share them; here they are a single number.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::AbortHandle;

use super::data::{ConnectionId, Data};
use crate::wire::{Key, Limits, Operation, user_key};

/// Options of a server. The defaults suit a job of thousands of ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    /// Threads that serve connections, in addition to the one that accepts them. 2. If there are none, because this is 0 or the system
    /// has no room for a thread, the one that accepts serves, too.
    pub worker_threads: usize,
    /// Limits of a single message.
    pub limits: Limits,
    /// Bytes that the store may take in total. 512 MiB. At most half of them are for connections: 16 KiB for each,
    /// requests and replies in progress, and keys in waits (at most a quarter). The rest is for keys and values.
    ///
    /// A request that would make keys and values exceed their part closes its connection. So does one that would give a
    /// single connection more than a quarter for requests, replies and waits. The last quarter of the store is closed
    /// to a connection that wrote more than a quarter of the keys and values that exist: one client that fills the
    /// store is refused while others can still write. A value counts for the connection that wrote it until it is
    /// deleted or overwritten. A client that fills the store through many new connections is not stopped.
    ///
    /// If all connections together would exceed their half, the connection that has been stalled longest in the middle
    /// of a request or a reply is closed; among waits, the largest.
    pub max_bytes: usize,
    /// Maximum number of connections; further ones are closed when they connect. No limit by default, except for the
    /// one that follows from `max_bytes` (16,384). The limit of open files (`ulimit -n`) applies, too: reaching it
    /// delays new connections but does not affect existing ones.
    pub max_connections: Option<usize>,
    /// Time limit for VALIDATE after connecting. 10 s.
    pub handshake_timeout: Duration,
    /// Time limit for a complete request after its first byte. 120 s.
    pub request_timeout: Duration,
    /// A peer that does not read its replies must accept at least one byte within this time. 120 s.
    pub write_timeout: Duration,
    /// If there is no room for a reply, the reply waits, and a peer that has neither sent nor accepted a byte of its
    /// own request or reply for this time is closed. 5 s.
    pub stall_timeout: Duration,
    /// Whether clients may leave the protocol ([`SWITCH`](crate::wire::SWITCH)). Their connections wait until they are taken.
    /// False by default.
    pub hands_over: bool,
    /// After this time without traffic the kernel probes the peer's host, three times at a sixth of the time, and then
    /// closes the connection. 60 s.
    pub keepalive: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            worker_threads: 2,
            limits: Limits::default(),
            max_bytes: 512 << 20,
            max_connections: None,
            handshake_timeout: Duration::from_secs(10),
            request_timeout: Duration::from_secs(120),
            write_timeout: Duration::from_secs(120),
            stall_timeout: Duration::from_secs(5),
            hands_over: false,
            keepalive: Duration::from_secs(60),
        }
    }
}

/// Number of refusals that are remembered.
const REFUSALS: usize = 32;

/// A connected client, for diagnostics.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// When it connected.
    pub since: Instant,
    /// True if it has opened as a TCPStore client does.
    pub validated: bool,
    /// Its last request: the operation's name, its (first) key as a user names it, and when it arrived.
    pub last: Option<(&'static str, String, Instant)>,
    /// The keys that it waits for, as a user names them.
    pub waits_for: Vec<String>,
}

/// A connection that was closed because of its peer.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Its address.
    pub address: SocketAddr,
    /// When it was closed.
    pub when: Instant,
    /// Why: lowercase, without a full stop.
    pub reason: String,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) options: ServerOptions,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) data: Data,
    memory: ConnectionMemory,
    /// Changes when connections release memory.
    room: watch::Sender<()>,
    entries: HashMap<ConnectionId, Entry>,
    refusals: VecDeque<Refusal>,
    next: u64,
    /// For connections that leave the protocol.
    switched: Option<mpsc::UnboundedSender<std::net::TcpStream>>,
    /// The other end of `switched`, until somebody takes it.
    waiting: Option<mpsc::UnboundedReceiver<std::net::TcpStream>>,
}

#[derive(Debug)]
struct Entry {
    address: SocketAddr,
    since: Instant,
    validated: bool,
    last: Option<(Operation, Key, Instant)>,
    wake: Arc<Notify>,
    task: Option<AbortHandle>,
}

impl Shared {
    pub(super) fn new(options: ServerOptions) -> Self {
        let state = State::new(&options);
        Self { options, state: Mutex::new(state) }
    }

    /// Locks the state. If a thread panicked while it held the lock, the state is still valid: every change is a single
    /// step.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn new(options: &ServerOptions) -> Self {
        let (switched, waiting) = options.hands_over.then(mpsc::unbounded_channel).unzip();
        Self {
            data: Data::new(options.limits, options.max_bytes),
            memory: ConnectionMemory::new(options.max_bytes),
            room: watch::Sender::default(),
            entries: HashMap::new(),
            refusals: VecDeque::new(),
            next: ConnectionId::HOST.0 + 1,
            switched,
            waiting,
        }
    }

    /// The connections that leave the protocol, for the first caller only.
    pub(super) fn take_switched(&mut self) -> Option<mpsc::UnboundedReceiver<std::net::TcpStream>> {
        self.waiting.take()
    }

    /// Returns true if connections may leave the protocol.
    pub(super) fn hands_over(&self) -> bool {
        self.switched.is_some()
    }

    /// Hands over a connection that has left the protocol. It closes if nobody takes such connections any more.
    pub(super) fn hand_over(&self, stream: TcpStream) {
        if let (Some(switched), Ok(stream)) = (&self.switched, stream.into_std()) {
            let _ = switched.send(stream);
        }
    }

    /// Adds a connection, unless the maximum is reached or there is no room for it. Returns its id and its wake-up
    /// channel.
    pub(super) fn admit(
        &mut self,
        address: SocketAddr,
        now: Instant,
        max: Option<usize>,
    ) -> Option<(ConnectionId, Arc<Notify>)> {
        if let Some(max) = max.filter(|&max| self.entries.len() >= max) {
            self.refuse(address, now, format!("there are {max} connections already, as many as the server's limit"));
            return None;
        }
        let id = ConnectionId(self.next);
        self.next += 1;
        let wake = Arc::new(Notify::new());
        let entry = Entry { address, since: now, validated: false, last: None, wake: Arc::clone(&wake), task: None };
        self.entries.insert(id, entry);
        self.memory.enter(id, now);
        if let Err(no_room) = self.make_room(id, now) {
            self.dismiss(id);
            self.refuse(address, now, no_room.to_string());
            return None;
        }
        Some((id, wake))
    }

    /// Stores the handle with which the connection's task is aborted if it must close.
    pub(super) fn attach(&mut self, id: ConnectionId, task: AbortHandle) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.task = Some(task);
        }
    }

    /// Removes a connection, its wait and the memory that it held.
    pub(super) fn dismiss(&mut self, id: ConnectionId) {
        self.data.leave(id);
        self.memory.leave(id);
        self.account();
        self.room.send_replace(());
        self.entries.remove(&id);
    }

    /// Bytes that the store takes.
    pub(super) fn bytes(&self) -> usize {
        self.data.bytes() + self.memory.total()
    }

    /// Records that a connection has moved bytes and the current size of its buffers. Closes other connections if that
    /// is too much.
    ///
    /// # Errors
    /// The connection itself must close.
    pub(super) fn settle(&mut self, id: ConnectionId, buffers: usize, now: Instant) -> Result<(), NoRoom> {
        let before = self.memory.of(id);
        self.memory.settle(id, buffers, self.data.wait_bytes_of(id), now)?;
        self.make_room(id, now)?;
        if buffers < before {
            self.room.send_replace(());
        }
        Ok(())
    }

    /// Records that a connection has moved bytes.
    pub(super) fn moved(&mut self, id: ConnectionId, now: Instant) {
        self.memory.moved(id, now);
    }

    /// Returns `None` if there is room for a reply of that size, otherwise a channel that changes when there may be.
    /// Small replies always have room.
    pub(super) fn lacks_room(&self, bytes: impl FnOnce(&Data) -> usize) -> Option<watch::Receiver<()>> {
        let stored = self.data.bytes();
        if !self.memory.is_tight(stored) {
            return None;
        }
        let bytes = bytes(&self.data);
        (bytes > FREE && bytes > self.memory.room(stored)).then(|| self.room.subscribe())
    }

    /// Closes the connection that has been stalled longest, if it has been stalled since `then` or longer; never `id`.
    pub(super) fn close_stalled(&mut self, id: ConnectionId, then: Instant, now: Instant) {
        if let Some(stalled) = self.memory.stalled_since(id, then) {
            self.close(stalled, now);
        }
    }

    fn make_room(&mut self, id: ConnectionId, now: Instant) -> Result<(), NoRoom> {
        self.account();
        while let Some(other) = self.memory.excess(id, self.data.bytes())? {
            self.close(other, now);
        }
        Ok(())
    }

    fn account(&mut self) {
        self.memory.set_waits(self.data.wait_bytes());
        self.data.reserve(self.memory.total());
    }

    fn close(&mut self, id: ConnectionId, now: Instant) {
        let held = self.memory.of(id) + self.data.wait_bytes_of(id);
        if let Some(entry) = self.entries.get(&id) {
            let address = entry.address;
            // A connection without a handle closes at its first turn.
            entry.task.iter().for_each(AbortHandle::abort);
            self.refuse(address, now, format!("it held {held} bytes without going on, and others needed the room"));
        }
        self.dismiss(id);
    }

    /// Remembers why a connection was closed.
    pub(super) fn refuse(&mut self, address: SocketAddr, when: Instant, reason: String) {
        if self.refusals.len() == REFUSALS {
            self.refusals.pop_front();
        }
        self.refusals.push_back(Refusal { address, when, reason });
    }

    /// Wakes connections whose wait has ended.
    pub(super) fn wake(&self, ids: &[ConnectionId]) {
        ids.iter().filter_map(|id| self.entries.get(id)).for_each(|entry| entry.wake.notify_one());
    }

    /// Records the last request of a connection.
    pub(super) fn note(&mut self, id: ConnectionId, validated: bool, last: Option<&(Operation, Key)>, now: Instant) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        entry.validated = validated;
        if let Some((operation, key)) = last {
            let (noted, kept, when) = entry.last.get_or_insert_with(|| (*operation, Key::new(), now));
            kept.clone_from(key);
            (*noted, *when) = (*operation, now);
        }
    }

    pub(super) fn peers(&self) -> Vec<Peer> {
        let mut peers: Vec<Peer> = self.entries.iter().map(|(&id, entry)| self.peer(id, entry)).collect();
        peers.sort_by_key(|peer| peer.since);
        peers
    }

    pub(super) fn refusals(&self) -> Vec<Refusal> {
        self.refusals.iter().cloned().collect()
    }

    pub(super) fn connections(&self) -> usize {
        self.entries.len()
    }

    fn peer(&self, id: ConnectionId, entry: &Entry) -> Peer {
        let mut waits_for: Vec<String> = self.data.waited_for(id).iter().map(|key| user_key(key)).collect();
        waits_for.sort();
        Peer {
            address: entry.address,
            since: entry.since,
            validated: entry.validated,
            last: entry.last.as_ref().map(|(operation, key, when)| (operation.name(), user_key(key), *when)),
            waits_for,
        }
    }
}

/// Bytes that every connection counts from its start: its task and tables, and buffers of up to [`FREE`] bytes.
const CONNECTION: usize = 16 << 10;
/// Bytes of an input or output buffer that [`CONNECTION`] covers.
pub(super) const FREE: usize = 4 << 10;

/// Why a connection may not hold the memory that it needs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoRoom {
    /// It would hold more than its share.
    #[error(
        "its requests, replies and waits in progress would take {got} bytes, more than a connection's share of {max}"
    )]
    Share {
        /// What it would hold.
        got: usize,
        /// Its share.
        max: usize,
    },
    /// All connections would hold more than their half, and no other connection is stalled.
    #[error("{connections} connections would take {got} bytes for what they hold, more than their part of {max}")]
    Part {
        /// The number of connections.
        connections: usize,
        /// What they would hold.
        got: usize,
        /// The limit for all connections.
        max: usize,
    },
    /// It was closed to make room for others.
    #[error("it was closed to make room for others")]
    Closed,
}

/// The memory of all connections, except for the keys in waits.
#[derive(Debug)]
struct ConnectionMemory {
    /// Size limit of the whole store.
    max: usize,
    by: HashMap<ConnectionId, ConnectionUse>,
    buffers: usize,
    /// Bytes of all keys in waits.
    waits: usize,
}

#[derive(Debug)]
struct ConnectionUse {
    /// Bytes of its buffers that [`CONNECTION`] does not cover.
    buffers: usize,
    /// Bytes of its wait, as if no other connection waited for the same keys.
    wait: usize,
    /// When it last sent or accepted a byte.
    progress: Instant,
}

impl ConnectionMemory {
    /// No connections yet, and a store of at most `max` bytes.
    pub(super) fn new(max: usize) -> Self {
        Self { max, by: HashMap::new(), buffers: 0, waits: 0 }
    }

    /// Bytes of all connections.
    pub(super) fn total(&self) -> usize {
        self.by.len() * CONNECTION + self.buffers + self.waits
    }

    /// Bytes that are left if keys and values take `stored` bytes.
    pub(super) fn room(&self, stored: usize) -> usize {
        self.part(stored).saturating_sub(self.total())
    }

    /// Returns true if so little is left that every reply must be checked.
    fn is_tight(&self, stored: usize) -> bool {
        self.total() > self.part(stored) / 2
    }

    /// Bytes that all connections may hold together.
    fn part(&self, stored: usize) -> usize {
        (self.max / 2).min(self.max.saturating_sub(stored))
    }

    /// Adds a connection. The limit may be exceeded afterwards: see [`Self::excess`].
    fn enter(&mut self, id: ConnectionId, now: Instant) {
        self.by.insert(id, ConnectionUse { buffers: 0, wait: 0, progress: now });
    }

    /// Removes a connection and everything that it held, except for its wait.
    pub(super) fn leave(&mut self, id: ConnectionId) {
        if let Some(gone) = self.by.remove(&id) {
            self.buffers -= gone.buffers;
        }
    }

    /// Sets the bytes of all keys in waits.
    fn set_waits(&mut self, bytes: usize) {
        self.waits = bytes;
    }

    /// Records that a connection moved bytes, and the current size of its buffers and its wait.
    ///
    /// # Errors
    /// It holds more than its share, or was closed.
    pub(super) fn settle(&mut self, id: ConnectionId, buffers: usize, wait: usize, now: Instant) -> Result<(), NoRoom> {
        let max = self.max / 4;
        let holding = self.by.get_mut(&id).ok_or(NoRoom::Closed)?;
        self.buffers = self.buffers - holding.buffers + buffers;
        *holding = ConnectionUse { buffers, wait, progress: now };
        let got = CONNECTION + buffers + wait;
        if got > max { Err(NoRoom::Share { got, max }) } else { Ok(()) }
    }

    /// Records that a connection moved bytes.
    pub(super) fn moved(&mut self, id: ConnectionId, now: Instant) {
        if let Some(holding) = self.by.get_mut(&id) {
            holding.progress = now;
        }
    }

    /// Returns a connection that must close so that `id` can keep what it holds; `None` if there is enough room. Call
    /// it again after closing.
    ///
    /// # Errors
    /// There is too little room, and `id` itself must close.
    fn excess(&self, id: ConnectionId, stored: usize) -> Result<Option<ConnectionId>, NoRoom> {
        let refused = |got, max| {
            move |found: Option<_>| found.map(Some).ok_or(NoRoom::Part { connections: self.by.len(), got, max })
        };
        if self.waits > self.max / 4 {
            let largest = self.by.iter().max_by_key(|(_, holding)| holding.wait).map(|(&largest, _)| largest);
            return refused(self.waits, self.max / 4)(largest.filter(|largest| *largest != id));
        }
        let part = self.part(stored);
        if self.total() > part {
            return refused(self.total(), part)(self.longest_stalled(id).map(|(stalled, _)| stalled));
        }
        Ok(None)
    }

    /// The connection that has been stalled since `then` or longer in the middle of a request or reply; never `id`.
    fn stalled_since(&self, id: ConnectionId, then: Instant) -> Option<ConnectionId> {
        self.longest_stalled(id).filter(|(_, since)| *since <= then).map(|(stalled, _)| stalled)
    }

    fn longest_stalled(&self, id: ConnectionId) -> Option<(ConnectionId, Instant)> {
        let holding = self.by.iter().filter(|&(&other, holding)| other != id && holding.buffers > 0);
        holding.map(|(&other, holding)| (other, holding.progress)).min_by_key(|&(other, since)| (since, other))
    }

    /// Bytes of the connection's buffers.
    pub(super) fn of(&self, id: ConnectionId) -> usize {
        self.by.get(&id).map_or(0, |holding| holding.buffers)
    }
}

/// The part of a buffer of this capacity that counts.
pub(super) fn counted(capacity: usize) -> usize {
    capacity.saturating_sub(FREE)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MAX: usize = 1 << 20;
    const ONE: ConnectionId = ConnectionId(1);
    const TWO: ConnectionId = ConnectionId(2);
    const NEW: ConnectionId = ConnectionId(9);

    /// Connections with the given buffers; each moved bytes one second after the previous one.
    fn holding(buffers: &[(ConnectionId, usize)]) -> (ConnectionMemory, Instant) {
        let begun = Instant::now();
        let mut memory = ConnectionMemory::new(MAX);
        for (second, &(id, bytes)) in (0..).zip(buffers) {
            let now = begun + Duration::from_secs(second);
            memory.enter(id, now);
            memory.settle(id, bytes, 0, now).unwrap();
        }
        (memory, begun)
    }

    #[test]
    fn one_connection_holds_at_most_a_quarter() {
        let (mut memory, now) = holding(&[(ONE, MAX / 4 - CONNECTION)]);
        let refused = NoRoom::Share { got: MAX / 4 + 1, max: MAX / 4 };
        assert_eq!(memory.settle(ONE, MAX / 4 - CONNECTION - 5, 6, now), Err(refused));
    }

    #[test]
    fn the_connection_that_stalled_longest_is_closed() {
        let (mut memory, begun) = holding(&[(ONE, MAX / 6), (TWO, MAX / 6), (NEW, MAX / 6)]);
        assert_eq!(memory.excess(NEW, 0), Ok(Some(ONE)));
        memory.moved(ONE, begun + Duration::from_secs(60));
        assert_eq!(memory.excess(NEW, 0), Ok(Some(TWO)));
        memory.leave(TWO);
        assert_eq!(memory.excess(NEW, 0), Ok(None));
        assert_eq!(memory.settle(TWO, 0, 0, begun), Err(NoRoom::Closed));
    }

    #[test]
    fn a_connection_without_a_request_in_progress_is_kept() {
        let (mut memory, now) = holding(&[(ONE, 0), (TWO, 0)]);
        for id in 100..100 + (MAX / 2 / CONNECTION) as u64 {
            memory.enter(ConnectionId(id), now);
        }
        let connections = MAX / 2 / CONNECTION + 2;
        let refused = NoRoom::Part { connections, got: connections * CONNECTION, max: MAX / 2 };
        assert_eq!(memory.excess(ONE, 0), Err(refused));
    }

    #[test]
    fn keys_and_values_take_room_from_connections() {
        let (memory, _) = holding(&[(ONE, 0), (TWO, MAX / 8)]);
        assert_eq!(memory.excess(ONE, MAX * 3 / 4), Ok(None));
        assert_eq!(memory.excess(ONE, MAX * 7 / 8), Ok(Some(TWO)));
        assert_eq!((memory.room(0), memory.room(MAX)), (MAX / 2 - MAX / 8 - 2 * CONNECTION, 0));
        assert!(!memory.is_tight(0) && memory.is_tight(MAX * 3 / 4));
    }

    #[test]
    fn the_largest_wait_is_closed_in_favour_of_smaller_ones() {
        let (mut memory, now) = holding(&[(ONE, 0), (TWO, 0)]);
        memory.settle(ONE, 0, MAX / 5, now).unwrap();
        memory.settle(TWO, 0, MAX / 8, now).unwrap();
        memory.set_waits(MAX / 5 + MAX / 8);
        assert_eq!(memory.excess(TWO, 0), Ok(Some(ONE)));
        let refused = NoRoom::Part { connections: 2, got: MAX / 5 + MAX / 8, max: MAX / 4 };
        assert_eq!(memory.excess(ONE, 0), Err(refused));
    }

    #[test]
    fn finds_only_connections_that_stalled_long_enough() {
        let (memory, begun) = holding(&[(ONE, 1), (TWO, 1)]);
        assert_eq!(memory.stalled_since(NEW, begun), Some(ONE));
        assert_eq!(memory.stalled_since(ONE, begun), None);
        assert_eq!(memory.stalled_since(ONE, begun + Duration::from_secs(1)), Some(TWO));
    }
}
