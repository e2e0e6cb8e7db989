//! Which connections wait for which keys. Not here: whether a key exists, and how a connection learns that its wait has
//! ended.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::memory::ConnectionId;
use crate::wire::Key;

/// Approximate size of one key in one wait: its entries in the wait's set and in the key's list of waits.
const EACH: usize = 64;
/// Approximate overhead of a key with waits, in addition to the key itself: its table entry and the first node of its
/// tree.
const KEY_OVERHEAD: usize = 320;

/// The waits of all connections, at most one each. A wait counts down: a key that was set counts, even if it is deleted
/// before the others are set (as in libtorch's server). Connections that wait for the same key share its bytes.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    waits: HashMap<ConnectionId, Wait>,
    /// In the order in which the waits began.
    by_key: HashMap<Arc<[u8]>, BTreeMap<u64, ConnectionId>>,
    next_ticket: u64,
    /// See [`Waiters::bytes`].
    bytes: usize,
}

#[derive(Debug)]
struct Wait {
    ticket: u64,
    missing: HashSet<Arc<[u8]>>,
    /// See [`Waiters::bytes_of`].
    bytes: usize,
}

impl Waiters {
    /// Begins a wait for `missing`, which replaces an earlier wait of the connection.
    pub(super) fn begin(&mut self, connection: ConnectionId, missing: impl Iterator<Item = Key>) {
        self.end(connection);
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let mut wait = Wait { ticket, missing: HashSet::new(), bytes: 0 };
        for key in missing {
            let key = self.shared(&key);
            if wait.missing.insert(Arc::clone(&key)) {
                self.bytes += EACH;
                wait.bytes += alone(&key);
                self.by_key.entry(key).or_default().insert(ticket, connection);
            }
        }
        self.waits.insert(connection, wait);
    }

    /// Returns the shared copy of the key and creates it if needed.
    fn shared(&mut self, key: &[u8]) -> Arc<[u8]> {
        if let Some((key, _)) = self.by_key.get_key_value(key) {
            return Arc::clone(key);
        }
        let key: Arc<[u8]> = Arc::from(key);
        self.by_key.insert(Arc::clone(&key), BTreeMap::new());
        self.bytes += key.len() + KEY_OVERHEAD;
        key
    }

    /// Removes a key that no connection waits for any more.
    fn forget(&mut self, key: &[u8]) -> BTreeMap<u64, ConnectionId> {
        let Some(waiting) = self.by_key.remove(key) else { return BTreeMap::new() };
        self.bytes -= key.len() + KEY_OVERHEAD;
        waiting
    }

    /// Approximate size of all waits. Each key counts once, even if several connections wait for it.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of the connection's wait, as if no other connection waited for its keys.
    pub(super) fn bytes_of(&self, connection: ConnectionId) -> usize {
        self.waits.get(&connection).map_or(0, |wait| wait.bytes)
    }

    /// Ends a connection's wait and returns true if there was one.
    pub(super) fn end(&mut self, connection: ConnectionId) -> bool {
        let Some(wait) = self.waits.remove(&connection) else { return false };
        self.bytes -= EACH * wait.missing.len();
        for key in &wait.missing {
            self.leave(key, wait.ticket);
        }
        true
    }

    /// Returns true if the connection waits.
    pub(super) fn waits(&self, connection: ConnectionId) -> bool {
        self.waits.contains_key(&connection)
    }

    /// The keys that the connection waits for.
    pub(super) fn missing(&self, connection: ConnectionId) -> Vec<Key> {
        self.waits.get(&connection).into_iter().flat_map(|wait| &wait.missing).map(|key| key.to_vec()).collect()
    }

    /// A key was set: returns the connections whose wait has ended.
    pub(super) fn key_set(&mut self, key: &[u8]) -> Vec<ConnectionId> {
        let waiting = self.forget(key);
        waiting.into_values().filter(|&connection| self.count_down(connection, key)).collect()
    }

    /// A value was added to a queue: ends one wait, the oldest that waits for nothing else.
    pub(super) fn queue_pushed(&mut self, key: &[u8]) -> Option<ConnectionId> {
        while let Some((_, connection)) = self.by_key.get_mut(key)?.pop_first() {
            if self.count_down(connection, key) {
                self.tidy(key);
                return Some(connection);
            }
        }
        self.tidy(key);
        None
    }

    /// Removes `key` from a wait and returns true if the wait has ended.
    fn count_down(&mut self, connection: ConnectionId, key: &[u8]) -> bool {
        let Some(wait) = self.waits.get_mut(&connection) else { return false };
        if wait.missing.remove(key) {
            self.bytes -= EACH;
            wait.bytes -= alone(key);
        }
        let over = wait.missing.is_empty();
        if over {
            self.waits.remove(&connection);
        }
        over
    }

    fn leave(&mut self, key: &[u8], ticket: u64) {
        if let Some(waiting) = self.by_key.get_mut(key) {
            waiting.remove(&ticket);
        }
        self.tidy(key);
    }

    fn tidy(&mut self, key: &[u8]) {
        if self.by_key.get(key).is_some_and(BTreeMap::is_empty) {
            self.forget(key);
        }
    }

    /// Returns true if there are no waits and no leftover entries.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.waits.is_empty() && self.by_key.is_empty() && self.bytes == 0
    }
}

/// Bytes of a wait for this key, as if no other connection waited for it.
fn alone(key: &[u8]) -> usize {
    key.len() + KEY_OVERHEAD + EACH
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(names: &[&str]) -> impl Iterator<Item = Key> {
        names.iter().map(|name| name.as_bytes().to_vec()).collect::<Vec<_>>().into_iter()
    }

    #[test]
    fn ends_a_wait_with_its_last_key() {
        let mut waiters = Waiters::default();
        waiters.begin(ConnectionId(1), keys(&["a", "b", "a"]));
        assert_eq!(waiters.key_set(b"a"), []);
        assert_eq!(waiters.missing(ConnectionId(1)), [b"b"]);
        assert_eq!(waiters.key_set(b"b"), [ConnectionId(1)]);
        assert!(waiters.is_empty());
    }

    #[test]
    fn gives_a_queues_value_to_the_connection_that_waited_longest() {
        let mut waiters = Waiters::default();
        waiters.begin(ConnectionId(3), keys(&["q", "other"]));
        waiters.begin(ConnectionId(2), keys(&["q"]));
        waiters.begin(ConnectionId(1), keys(&["q"]));
        assert_eq!(waiters.queue_pushed(b"q"), Some(ConnectionId(2)));
        assert_eq!(waiters.queue_pushed(b"q"), Some(ConnectionId(1)));
        assert_eq!(waiters.queue_pushed(b"q"), None);
        assert_eq!(waiters.key_set(b"other"), [ConnectionId(3)]);
        assert!(waiters.is_empty());
    }

    #[test]
    fn removes_a_wait_that_was_given_up() {
        let mut waiters = Waiters::default();
        waiters.begin(ConnectionId(1), keys(&["a", "b"]));
        assert!(waiters.end(ConnectionId(1)));
        assert!(!waiters.end(ConnectionId(1)));
        assert!(waiters.is_empty());
        assert_eq!(waiters.key_set(b"a"), []);
    }

    #[test]
    fn counts_a_key_once_even_if_several_connections_wait_for_it() {
        let mut waiters = Waiters::default();
        waiters.begin(ConnectionId(1), keys(&["long key", "b"]));
        let one = waiters.bytes();
        waiters.begin(ConnectionId(2), keys(&["long key", "b"]));
        assert_eq!(waiters.bytes(), one + 2 * EACH);
        assert_eq!(waiters.bytes_of(ConnectionId(1)), one);
        assert!(waiters.end(ConnectionId(1)));
        assert_eq!(waiters.bytes(), one, "its keys stay for the other connection");
        waiters.begin(ConnectionId(2), keys(&["b"]));
        assert_eq!(waiters.key_set(b"b"), [ConnectionId(2)]);
        assert!(waiters.is_empty());
    }
}
