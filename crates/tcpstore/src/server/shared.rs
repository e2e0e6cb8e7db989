//! What the connections share: the data, who is connected, and who was turned away. Left out: sockets and threads.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

use super::holdings::{FREE, Holdings, Overdrawn};
use super::{ConnectionId, Data, Options, Session};
use crate::wire::{Key, Operation, user_key};

/// How many connections that were closed for a fault are remembered.
const REFUSALS: usize = 32;

/// Who is connected, for diagnostics.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// When it connected.
    pub since: Instant,
    /// Whether it has opened as a TCPStore client does.
    pub validated: bool,
    /// What it asked last: the operation's name, its (first) key as a user names it, and when.
    pub last: Option<(&'static str, String, Instant)>,
    /// The keys that it waits for, as a user names them.
    pub waits_for: Vec<String>,
}

/// A connection that was closed because of what its peer did.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Its address.
    pub address: SocketAddr,
    /// When.
    pub when: Instant,
    /// Why: lowercase, without full stop.
    pub reason: String,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) options: Options,
    state: Mutex<State>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) data: Data,
    holdings: Holdings,
    /// Changes when connections hold less than before.
    room: watch::Sender<()>,
    entries: HashMap<ConnectionId, Entry>,
    refusals: VecDeque<Refusal>,
    next: u64,
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
    pub(super) fn new(options: Options) -> Self {
        let state = State::new(&options);
        Self { options, state: Mutex::new(state) }
    }

    /// The state. A thread that panicked with it in hand left it whole: every change is made in one step.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn new(options: &Options) -> Self {
        Self {
            data: Data::new(options.limits, options.max_bytes),
            holdings: Holdings::new(options.max_bytes),
            room: watch::Sender::default(),
            entries: HashMap::new(),
            refusals: VecDeque::new(),
            next: ConnectionId::HOST.0 + 1,
        }
    }

    /// Takes a connection in, unless `max` are there or there is no room for it: its name, and how it is woken.
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
        self.holdings.enter(id, now);
        if let Err(overdrawn) = self.make_room(id, now) {
            self.dismiss(id);
            self.refuse(address, now, overdrawn.to_string());
            return None;
        }
        Some((id, wake))
    }

    /// By this handle the connection's task is ended, should it have to make room.
    pub(super) fn attach(&mut self, id: ConnectionId, task: AbortHandle) {
        if let Some(entry) = self.entries.get_mut(&id) {
            entry.task = Some(task);
        }
    }

    /// Forgets a connection, its wait and what it held.
    pub(super) fn dismiss(&mut self, id: ConnectionId) {
        self.data.leave(id);
        self.holdings.leave(id);
        self.account();
        self.room.send_replace(());
        self.entries.remove(&id);
    }

    /// Bytes that the store takes.
    pub(super) fn bytes(&self) -> usize {
        self.data.bytes() + self.holdings.total()
    }

    /// Notes that a connection has moved bytes, and how many it holds now besides its wait. If that is too much, others go.
    ///
    /// # Errors
    /// It must go itself.
    pub(super) fn settle(&mut self, id: ConnectionId, buffers: usize, now: Instant) -> Result<(), Overdrawn> {
        let before = self.holdings.of(id);
        self.holdings.settle(id, buffers, self.data.wait_bytes_of(id), now)?;
        self.make_room(id, now)?;
        if buffers < before {
            self.room.send_replace(());
        }
        Ok(())
    }

    /// Notes that a connection has moved bytes of what it holds.
    pub(super) fn moved(&mut self, id: ConnectionId, now: Instant) {
        self.holdings.moved(id, now);
    }

    /// If there is no room for a reply of that size: what changes when there may be. Small ones always have room.
    pub(super) fn lacks_room(&self, bytes: impl FnOnce(&Data) -> usize) -> Option<watch::Receiver<()>> {
        let stored = self.data.bytes();
        if !self.holdings.is_tight(stored) {
            return None;
        }
        let bytes = bytes(&self.data);
        (bytes > FREE && bytes > self.holdings.room(stored)).then(|| self.room.subscribe())
    }

    /// Closes the connection that has stood still for longest, if that is since `then` or longer; not `id`.
    pub(super) fn close_still(&mut self, id: ConnectionId, then: Instant, now: Instant) {
        if let Some(still) = self.holdings.still_since(id, then) {
            self.close(still, now);
        }
    }

    fn make_room(&mut self, id: ConnectionId, now: Instant) -> Result<(), Overdrawn> {
        self.account();
        while let Some(other) = self.holdings.excess(id, self.data.bytes())? {
            self.close(other, now);
        }
        Ok(())
    }

    fn account(&mut self) {
        self.holdings.set_waits(self.data.wait_bytes());
        self.data.lend(self.holdings.total());
    }

    fn close(&mut self, id: ConnectionId, now: Instant) {
        let held = self.holdings.of(id) + self.data.wait_bytes_of(id);
        if let Some(entry) = self.entries.get(&id) {
            let address = entry.address;
            // Whoever has no handle yet is closed at its first turn.
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

    /// Tells connections that their wait is over.
    pub(super) fn wake(&self, ids: &[ConnectionId]) {
        ids.iter().filter_map(|id| self.entries.get(id)).for_each(|entry| entry.wake.notify_one());
    }

    /// Remembers what a connection did last.
    pub(super) fn note(&mut self, id: ConnectionId, session: &Session, now: Instant) {
        let Some(entry) = self.entries.get_mut(&id) else { return };
        entry.validated = session.validated();
        if let Some((operation, key)) = session.last() {
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
