//! The memory of the ranks by kind, as their events have it.

use std::fmt;

use lockstep_events::memory_line;
use serde::Deserialize;

/// The bytes of a rank, by kind; the fields of [`lockstep_events::Event::Memory`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Held {
    /// Of parameters.
    pub parameters: u64,
    /// Of gradients.
    pub gradients: u64,
    /// Of the optimizer's states.
    pub optimizer: u64,
    /// Of what autograd keeps for the backward pass.
    pub activations: u64,
    /// Of what is there for communication.
    pub buckets: u64,
    /// Passed to the group so far.
    pub sent: u64,
}

impl Held {
    /// The kinds that there are.
    fn kinds(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let kinds = [
            ("parameters", self.parameters),
            ("gradients", self.gradients),
            ("optimizer", self.optimizer),
            ("activations", self.activations),
            ("buckets", self.buckets),
        ];
        kinds.into_iter().filter(|(_, bytes)| *bytes > 0)
    }

    /// All kinds together.
    pub fn total(&self) -> u64 {
        self.kinds().map(|(_, bytes)| bytes).sum()
    }
}

/// `3.0 MiB: parameters 1.0 MiB, optimizer 2.0 MiB; sent 512 B`.
impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&memory_line(&self.kinds().collect::<Vec<_>>(), self.sent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_the_kinds_that_there_are() {
        let held = Held { parameters: 1 << 20, optimizer: 2 << 20, sent: 512, ..Held::default() };
        assert_eq!(held.to_string(), "3.0 MiB: parameters 1.0 MiB, optimizer 2.0 MiB; sent 512 B");
        let held = Held { gradients: 1536, buckets: 5 << 29, ..Held::default() };
        assert_eq!(held.to_string(), "2.5 GiB: gradients 1.5 KiB, buckets 2.5 GiB; sent 0 B");
    }
}
