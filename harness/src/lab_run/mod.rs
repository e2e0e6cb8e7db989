//! The run of a lab and the evidence that it leaves, for all commands.
//!
//! - [`Plan`]: the parameters of the run.
//! - [`program_beside`]: finds a lab's program ([`lab`]). The [`runner`](crate::runner) runs it.
//! - [`Evidence`]: its files ([`evidence`]); [`Trace`]: its event files in order ([`trace`]).

mod data;
mod evidence;
mod lab;
#[cfg(test)]
pub(crate) mod testing;
mod trace;

pub(crate) use data::Sizes;
pub(crate) use evidence::{Evidence, Results, Tensor, Weights, read_results, read_weights};
pub(crate) use lab::program_beside;
pub(crate) use trace::{Epoch, Eval, Trace};

/// The parameters of a run, with which checks compare the evidence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Processes.
    pub(crate) ranks: usize,
    /// Samples in a batch of one rank.
    pub(crate) batch: usize,
    /// Epochs.
    pub(crate) epochs: u64,
    /// The seed of data, order and initial weights.
    pub(crate) seed: u64,
    /// Samples in the data set.
    pub(crate) sizes: Sizes,
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ranks = if self.ranks == 1 { "rank" } else { "ranks" };
        write!(f, "{} {ranks} × batch {}", self.ranks, self.batch)
    }
}
