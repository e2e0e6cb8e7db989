//! The limit of the store's bytes, and how many of them each connection wrote.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use super::{ConnectionId, Refused};

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
