//! Who waits for which keys. Left out: whether a key is there, and how a connection hears that its wait is over.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use super::ConnectionId;
use crate::wire::Key;

/// The waits of all connections, at most one each. A wait counts down: a key that came counts, also if it goes again before
/// the others come (as in libtorch's server).
#[derive(Debug, Default)]
pub(super) struct Waiters {
    waits: HashMap<ConnectionId, Wait>,
    /// In the order in which they began to wait.
    by_key: HashMap<Arc<[u8]>, BTreeMap<u64, ConnectionId>>,
    next_ticket: u64,
}

#[derive(Debug)]
struct Wait {
    ticket: u64,
    missing: HashSet<Arc<[u8]>>,
}

impl Waiters {
    /// Begins a wait for `missing`, in place of the one that the connection may have.
    pub(super) fn begin(&mut self, connection: ConnectionId, missing: impl Iterator<Item = Key>) {
        self.end(connection);
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let missing: HashSet<Arc<[u8]>> = missing.map(Arc::from).collect();
        for key in &missing {
            self.by_key.entry(Arc::clone(key)).or_default().insert(ticket, connection);
        }
        self.waits.insert(connection, Wait { ticket, missing });
    }

    /// Ends a connection's wait; whether it had one.
    pub(super) fn end(&mut self, connection: ConnectionId) -> bool {
        let Some(wait) = self.waits.remove(&connection) else { return false };
        for key in &wait.missing {
            self.leave(key, wait.ticket);
        }
        true
    }

    /// Whether the connection waits.
    pub(super) fn waits(&self, connection: ConnectionId) -> bool {
        self.waits.contains_key(&connection)
    }

    /// What the connection waits for.
    pub(super) fn missing(&self, connection: ConnectionId) -> Vec<Key> {
        self.waits.get(&connection).into_iter().flat_map(|wait| &wait.missing).map(|key| key.to_vec()).collect()
    }

    /// A key came: whose wait is over.
    pub(super) fn came(&mut self, key: &[u8]) -> Vec<ConnectionId> {
        let waiting = self.by_key.remove(key).unwrap_or_default();
        waiting.into_values().filter(|&connection| self.count_down(connection, key)).collect()
    }

    /// One value came into a queue: it ends one wait, the oldest that misses nothing else.
    pub(super) fn came_for_one(&mut self, key: &[u8]) -> Option<ConnectionId> {
        while let Some((_, connection)) = self.by_key.get_mut(key)?.pop_first() {
            if self.count_down(connection, key) {
                self.tidy(key);
                return Some(connection);
            }
        }
        self.tidy(key);
        None
    }

    /// Strikes out `key`; whether that was the last and the wait is over.
    fn count_down(&mut self, connection: ConnectionId, key: &[u8]) -> bool {
        let Some(wait) = self.waits.get_mut(&connection) else { return false };
        wait.missing.remove(key);
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
            self.by_key.remove(key);
        }
    }

    /// Nobody waits and nothing is kept.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.waits.is_empty() && self.by_key.is_empty()
    }
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
        assert_eq!(waiters.came(b"a"), []);
        assert_eq!(waiters.missing(ConnectionId(1)), [b"b"]);
        assert_eq!(waiters.came(b"b"), [ConnectionId(1)]);
        assert!(waiters.is_empty());
    }

    #[test]
    fn gives_a_queues_value_to_the_one_that_waited_longest() {
        let mut waiters = Waiters::default();
        waiters.begin(ConnectionId(3), keys(&["q", "other"]));
        waiters.begin(ConnectionId(2), keys(&["q"]));
        waiters.begin(ConnectionId(1), keys(&["q"]));
        assert_eq!(waiters.came_for_one(b"q"), Some(ConnectionId(2)));
        assert_eq!(waiters.came_for_one(b"q"), Some(ConnectionId(1)));
        assert_eq!(waiters.came_for_one(b"q"), None);
        assert_eq!(waiters.came(b"other"), [ConnectionId(3)]);
        assert!(waiters.is_empty());
    }

    #[test]
    fn forgets_a_wait_that_was_given_up() {
        let mut waiters = Waiters::default();
        waiters.begin(ConnectionId(1), keys(&["a", "b"]));
        assert!(waiters.end(ConnectionId(1)));
        assert!(!waiters.end(ConnectionId(1)));
        assert!(waiters.is_empty());
        assert_eq!(waiters.came(b"a"), []);
    }
}
