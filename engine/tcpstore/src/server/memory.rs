//! The limit of the store's memory: how many bytes of keys and values each connection wrote ([`Quota`]), how much memory connections
//! take ([`ConnectionMemory`]), and which one must close when that is too much. Pure.
//!
//! [`Data`](super::Data) counts the keys in waits, because connections share them; here they are a single number.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::time::Instant;

/// A connection's id within its server. Ids are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId(pub u64);

impl ConnectionId {
    /// The process that hosts the server and needs no connection.
    pub const HOST: Self = Self(0);
}

/// Why a request is refused. Its connection is closed, because the protocol has no error reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The store would grow beyond its limit.
    #[error("the store would hold more than {max} bytes")]
    Full {
        /// The limit.
        max: usize,
    },
    /// The last quarter of the store is reserved for other connections.
    #[error(
        "keys and values that this connection wrote would take {got} bytes, and the last quarter of {max} is reserved for other connections"
    )]
    Share {
        /// How many of the store's bytes the connection would have written.
        got: usize,
        /// The limit.
        max: usize,
    },
    /// The reply, or a value after APPEND, would exceed its limit.
    #[error("the answer or the grown value would have {got} bytes, more than {max}")]
    ReplyTooLarge {
        /// Its size in bytes.
        got: usize,
        /// The limit.
        max: usize,
    },
    /// ADD to a value that is not a number.
    #[error("add to a value that is not a decimal 64-bit number: {0:?}")]
    NotANumber(String),
}

/// The bytes of keys and values.
#[derive(Debug)]
pub(super) struct Quota {
    max: usize,
    used: usize,
    /// The part of `max` that is reserved for other uses.
    reserved: usize,
    /// The part of `used` that each connection wrote, also after it has closed.
    pub(super) written: HashMap<ConnectionId, usize>,
}

impl Quota {
    pub(super) fn new(max: usize) -> Self {
        Self { max, used: 0, reserved: 0, written: HashMap::new() }
    }

    pub(super) fn used(&self) -> usize {
        self.used
    }

    pub(super) fn reserve(&mut self, bytes: usize) {
        self.reserved = bytes;
    }

    /// Checks that a connection may store `more` bytes in place of `less`. The values of one connection never fill the
    /// store: the last quarter is reserved for others.
    pub(super) fn check(&self, by: ConnectionId, more: usize, less: usize) -> Result<(), Refused> {
        let (max, all) = (self.max, self.used + self.reserved + more - less);
        let own = (self.written.get(&by).copied().unwrap_or_default() + more).saturating_sub(less);
        if more <= less {
            Ok(())
        } else if all > max {
            Err(Refused::Full { max })
        } else if all > max - max / 4 && own > max / 4 && by != ConnectionId::HOST {
            Err(Refused::Share { got: own, max })
        } else {
            Ok(())
        }
    }

    pub(super) fn take(&mut self, by: ConnectionId, bytes: usize) {
        self.used += bytes;
        *self.written.entry(by).or_default() += bytes;
    }

    pub(super) fn give_back(&mut self, by: ConnectionId, bytes: usize) {
        self.used -= bytes;
        if let Entry::Occupied(mut written) = self.written.entry(by) {
            *written.get_mut() -= bytes;
            if *written.get() == 0 {
                written.remove();
            }
        }
    }
}

/// Bytes that every connection counts from its start: its task and tables, and buffers of up to [`FREE`] bytes.
pub(super) const CONNECTION: usize = 16 << 10;
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
pub(super) struct ConnectionMemory {
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
    pub(super) fn is_tight(&self, stored: usize) -> bool {
        self.total() > self.part(stored) / 2
    }

    /// Bytes that all connections may hold together.
    fn part(&self, stored: usize) -> usize {
        (self.max / 2).min(self.max.saturating_sub(stored))
    }

    /// Adds a connection. The limit may be exceeded afterwards: see [`Self::excess`].
    pub(super) fn enter(&mut self, id: ConnectionId, now: Instant) {
        self.by.insert(id, ConnectionUse { buffers: 0, wait: 0, progress: now });
    }

    /// Removes a connection and everything that it held, except for its wait.
    pub(super) fn leave(&mut self, id: ConnectionId) {
        if let Some(gone) = self.by.remove(&id) {
            self.buffers -= gone.buffers;
        }
    }

    /// Sets the bytes of all keys in waits.
    pub(super) fn set_waits(&mut self, bytes: usize) {
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
    pub(super) fn excess(&self, id: ConnectionId, stored: usize) -> Result<Option<ConnectionId>, NoRoom> {
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
    pub(super) fn stalled_since(&self, id: ConnectionId, then: Instant) -> Option<ConnectionId> {
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
