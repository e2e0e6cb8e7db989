//! How much memory connections hold, and whose turn it is to go when that is too much. Pure.
//!
//! The keys that are waited for are counted by [`Data`](super::Data), since connections share them; here they are one number.

use std::collections::HashMap;
use std::time::Instant;

use super::ConnectionId;

/// Bytes that each connection counts from its beginning: its task and tables, and buffers of up to [`FREE`] bytes.
pub(super) const CONNECTION: usize = 16 << 10;
/// Bytes of a buffer, for input or output, that [`CONNECTION`] covers.
pub(super) const FREE: usize = 4 << 10;

/// Why a connection may not hold what it asks for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Overdrawn {
    /// It would have more than its share.
    #[error(
        "its requests, replies and waits under way would take {got} bytes, more than a connection's share of {max}"
    )]
    Share {
        /// What it would have.
        got: usize,
        /// Its share.
        max: usize,
    },
    /// All connections would have more than their half, and no other has stood still.
    #[error("{connections} connections would take {got} bytes for what they hold, more than their part of {max}")]
    Part {
        /// How many there are.
        connections: usize,
        /// What they would have.
        got: usize,
        /// Their part.
        max: usize,
    },
    /// It was closed to make room for others.
    #[error("it was closed to make room for others")]
    Closed,
}

/// What every connection holds, besides keys that it waits for.
#[derive(Debug)]
pub(super) struct Holdings {
    /// Bytes of the whole store.
    max: usize,
    by: HashMap<ConnectionId, Holding>,
    buffers: usize,
    /// Bytes of all keys that are waited for.
    waits: usize,
}

#[derive(Debug)]
struct Holding {
    /// Bytes of its buffers that [`CONNECTION`] does not cover.
    buffers: usize,
    /// Bytes of its wait, as if it were alone.
    wait: usize,
    /// When it last sent or took a byte.
    progress: Instant,
}

impl Holdings {
    /// Nobody holds anything of the store's `max` bytes.
    pub(super) fn new(max: usize) -> Self {
        Self { max, by: HashMap::new(), buffers: 0, waits: 0 }
    }

    /// Bytes of all.
    pub(super) fn total(&self) -> usize {
        self.by.len() * CONNECTION + self.buffers + self.waits
    }

    /// Bytes that are left, when keys and values take `stored`.
    pub(super) fn room(&self, stored: usize) -> usize {
        self.part(stored).saturating_sub(self.total())
    }

    /// Whether little enough is left to look twice.
    pub(super) fn is_tight(&self, stored: usize) -> bool {
        self.total() > self.part(stored) / 2
    }

    /// Bytes that connections may have.
    fn part(&self, stored: usize) -> usize {
        (self.max / 2).min(self.max.saturating_sub(stored))
    }

    /// A connection comes. There may be too much then: see [`Self::excess`].
    pub(super) fn enter(&mut self, id: ConnectionId, now: Instant) {
        self.by.insert(id, Holding { buffers: 0, wait: 0, progress: now });
    }

    /// A connection goes, with all that it held but its wait.
    pub(super) fn leave(&mut self, id: ConnectionId) {
        if let Some(gone) = self.by.remove(&id) {
            self.buffers -= gone.buffers;
        }
    }

    /// Bytes of all keys that are waited for.
    pub(super) fn set_waits(&mut self, bytes: usize) {
        self.waits = bytes;
    }

    /// A connection moved bytes. Sets what its buffers and its wait take now.
    ///
    /// # Errors
    /// It has more than its share, or was closed.
    pub(super) fn settle(
        &mut self,
        id: ConnectionId,
        buffers: usize,
        wait: usize,
        now: Instant,
    ) -> Result<(), Overdrawn> {
        let max = self.max / 4;
        let holding = self.by.get_mut(&id).ok_or(Overdrawn::Closed)?;
        self.buffers = self.buffers - holding.buffers + buffers;
        *holding = Holding { buffers, wait, progress: now };
        let got = CONNECTION + buffers + wait;
        if got > max { Err(Overdrawn::Share { got, max }) } else { Ok(()) }
    }

    /// A connection moved bytes of what it holds.
    pub(super) fn moved(&mut self, id: ConnectionId, now: Instant) {
        if let Some(holding) = self.by.get_mut(&id) {
            holding.progress = now;
        }
    }

    /// Who must go so that `id` can have what it holds; nobody, if there is enough. To be asked again afterwards.
    ///
    /// # Errors
    /// There is too much, and `id` must go itself.
    pub(super) fn excess(&self, id: ConnectionId, stored: usize) -> Result<Option<ConnectionId>, Overdrawn> {
        let refused = |got, max| {
            move |found: Option<_>| found.map(Some).ok_or(Overdrawn::Part { connections: self.by.len(), got, max })
        };
        if self.waits > self.max / 4 {
            let largest = self.by.iter().max_by_key(|(_, holding)| holding.wait).map(|(&largest, _)| largest);
            return refused(self.waits, self.max / 4)(largest.filter(|largest| *largest != id));
        }
        let part = self.part(stored);
        if self.total() > part {
            return refused(self.total(), part)(self.stillest(id).map(|(still, _)| still));
        }
        Ok(None)
    }

    /// The one that has stood still since then or longer, in the middle of a request or reply; not `id`.
    pub(super) fn still_since(&self, id: ConnectionId, then: Instant) -> Option<ConnectionId> {
        self.stillest(id).filter(|(_, since)| *since <= then).map(|(still, _)| still)
    }

    fn stillest(&self, id: ConnectionId) -> Option<(ConnectionId, Instant)> {
        let holding = self.by.iter().filter(|&(&other, holding)| other != id && holding.buffers > 0);
        holding.map(|(&other, holding)| (other, holding.progress)).min_by_key(|&(other, since)| (since, other))
    }

    /// Bytes of its buffers.
    pub(super) fn of(&self, id: ConnectionId) -> usize {
        self.by.get(&id).map_or(0, |holding| holding.buffers)
    }
}

/// What counts of a buffer of this capacity.
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

    /// Connections with the bytes of their buffers; each moved a second after the one before.
    fn holding(buffers: &[(ConnectionId, usize)]) -> (Holdings, Instant) {
        let begun = Instant::now();
        let mut holdings = Holdings::new(MAX);
        for (second, &(id, bytes)) in (0..).zip(buffers) {
            let now = begun + Duration::from_secs(second);
            holdings.enter(id, now);
            holdings.settle(id, bytes, 0, now).unwrap();
        }
        (holdings, begun)
    }

    #[test]
    fn one_connection_has_a_quarter_at_most() {
        let (mut holdings, now) = holding(&[(ONE, MAX / 4 - CONNECTION)]);
        let refused = Overdrawn::Share { got: MAX / 4 + 1, max: MAX / 4 };
        assert_eq!(holdings.settle(ONE, MAX / 4 - CONNECTION - 5, 6, now), Err(refused));
    }

    #[test]
    fn the_one_that_stood_still_longest_makes_room() {
        let (mut holdings, begun) = holding(&[(ONE, MAX / 6), (TWO, MAX / 6), (NEW, MAX / 6)]);
        assert_eq!(holdings.excess(NEW, 0), Ok(Some(ONE)));
        holdings.moved(ONE, begun + Duration::from_secs(60));
        assert_eq!(holdings.excess(NEW, 0), Ok(Some(TWO)));
        holdings.leave(TWO);
        assert_eq!(holdings.excess(NEW, 0), Ok(None));
        assert_eq!(holdings.settle(TWO, 0, 0, begun), Err(Overdrawn::Closed));
    }

    #[test]
    fn who_holds_nothing_in_the_middle_is_spared() {
        let (mut holdings, now) = holding(&[(ONE, 0), (TWO, 0)]);
        for id in 100..100 + (MAX / 2 / CONNECTION) as u64 {
            holdings.enter(ConnectionId(id), now);
        }
        let connections = MAX / 2 / CONNECTION + 2;
        let refused = Overdrawn::Part { connections, got: connections * CONNECTION, max: MAX / 2 };
        assert_eq!(holdings.excess(ONE, 0), Err(refused));
    }

    #[test]
    fn keys_and_values_take_room_from_connections() {
        let (holdings, _) = holding(&[(ONE, 0), (TWO, MAX / 8)]);
        assert_eq!(holdings.excess(ONE, MAX * 3 / 4), Ok(None));
        assert_eq!(holdings.excess(ONE, MAX * 7 / 8), Ok(Some(TWO)));
        assert_eq!((holdings.room(0), holdings.room(MAX)), (MAX / 2 - MAX / 8 - 2 * CONNECTION, 0));
        assert!(!holdings.is_tight(0) && holdings.is_tight(MAX * 3 / 4));
    }

    #[test]
    fn the_largest_wait_makes_room_for_smaller_ones() {
        let (mut holdings, now) = holding(&[(ONE, 0), (TWO, 0)]);
        holdings.settle(ONE, 0, MAX / 5, now).unwrap();
        holdings.settle(TWO, 0, MAX / 8, now).unwrap();
        holdings.set_waits(MAX / 5 + MAX / 8);
        assert_eq!(holdings.excess(TWO, 0), Ok(Some(ONE)));
        let refused = Overdrawn::Part { connections: 2, got: MAX / 5 + MAX / 8, max: MAX / 4 };
        assert_eq!(holdings.excess(ONE, 0), Err(refused));
    }

    #[test]
    fn only_those_who_stood_still_long_enough_are_found() {
        let (holdings, begun) = holding(&[(ONE, 1), (TWO, 1)]);
        assert_eq!(holdings.still_since(NEW, begun), Some(ONE));
        assert_eq!(holdings.still_since(ONE, begun), None);
        assert_eq!(holdings.still_since(ONE, begun + Duration::from_secs(1)), Some(TWO));
    }
}
