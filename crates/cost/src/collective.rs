//! The collectives and the exchange of messages that nccl-tests measures, and the bandwidth that each needs of its links.
//!
//! Sizes and factors are those of NVIDIA's nccl-tests (doc/PERFORMANCE.md), so that results can be compared with theirs. A size S is
//! that of the whole operation: of the tensor that is reduced or broadcast, of all that is gathered, scattered or exchanged.

/// An operation of all ranks of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collective {
    /// Sum on all ranks.
    AllReduce,
    /// Sum on all ranks of a bucket of DDP's gradients, where it lies.
    AllReduceBucket,
    /// From one rank to all.
    Broadcast,
    /// Sum on one rank.
    Reduce,
    /// Everyone's part to all.
    AllGather,
    /// Everyone's part to one rank.
    Gather,
    /// A part to each rank from one.
    Scatter,
    /// Sum, of which each rank gets a part.
    ReduceScatter,
    /// A part from each rank to each.
    AllToAll,
    /// A message from each rank to the next, in a ring.
    SendRecv,
    /// Nothing but waiting for all.
    Barrier,
}

impl Collective {
    /// All of them.
    pub const ALL: [Collective; 11] = [
        Collective::AllReduce,
        Collective::AllReduceBucket,
        Collective::Broadcast,
        Collective::Reduce,
        Collective::AllGather,
        Collective::Gather,
        Collective::Scatter,
        Collective::ReduceScatter,
        Collective::AllToAll,
        Collective::SendRecv,
        Collective::Barrier,
    ];

    /// PyTorch's name, where it has one.
    pub fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::AllReduceBucket => "all_reduce_bucket",
            Collective::Broadcast => "broadcast",
            Collective::Reduce => "reduce",
            Collective::AllGather => "all_gather",
            Collective::Gather => "gather",
            Collective::Scatter => "scatter",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::AllToAll => "all_to_all",
            Collective::SendRecv => "send_recv",
            Collective::Barrier => "barrier",
        }
    }

    /// The collective of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|collective| collective.name() == name)
    }

    /// Returns true if the bytes are split into one part for each rank.
    pub fn splits(self) -> bool {
        use Collective::{AllGather, AllToAll, Gather, ReduceScatter, Scatter};
        [AllGather, Gather, Scatter, ReduceScatter, AllToAll].contains(&self)
    }

    /// The size of 4-byte elements that is nearest to `bytes` from above and that it can have on `ranks` ranks.
    pub fn size(self, bytes: u64, ranks: usize) -> u64 {
        let unit = if self.splits() { 4 * ranks as u64 } else { 4 };
        if self == Collective::Barrier { 0 } else { bytes.max(1).div_ceil(unit) * unit }
    }

    /// Bus bandwidth divided by algorithm bandwidth (size divided by time): what a link carries for each byte of the size in the
    /// best algorithm. 0 for a barrier.
    pub fn bus_factor(self, ranks: usize) -> f64 {
        let ranks = ranks as f64;
        match self {
            Collective::AllReduce | Collective::AllReduceBucket => 2.0 * (ranks - 1.0) / ranks,
            Collective::Broadcast | Collective::Reduce | Collective::SendRecv => 1.0,
            Collective::Barrier => 0.0,
            _ => (ranks - 1.0) / ranks,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// nccl-tests, doc/PERFORMANCE.md.
    #[test]
    fn has_the_factors_of_nccl_tests() {
        let factor = |name: &str| Collective::named(name).unwrap().bus_factor(4);
        assert_eq!((factor("all_reduce"), factor("reduce_scatter"), factor("all_gather")), (1.5, 0.75, 0.75));
        assert_eq!((factor("broadcast"), factor("reduce"), factor("all_to_all")), (1.0, 1.0, 0.75));
        assert_eq!((factor("send_recv"), factor("all_reduce_bucket")), (1.0, 1.5));
        assert_eq!(Collective::AllReduce.bus_factor(1), 0.0);
    }

    #[test]
    fn rounds_a_size_up_to_what_all_ranks_can_share() {
        assert_eq!(Collective::AllReduce.size(4, 3), 4);
        assert_eq!([1, 12, 13].map(|bytes| Collective::AllGather.size(bytes, 3)), [12, 12, 24]);
        assert_eq!(Collective::Barrier.size(64, 3), 0);
    }

    #[test]
    fn finds_each_by_its_name() {
        assert!(Collective::ALL.into_iter().all(|collective| Collective::named(collective.name()) == Some(collective)));
        assert_eq!(Collective::named("all"), None);
    }
}
