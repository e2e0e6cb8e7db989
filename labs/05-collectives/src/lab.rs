//! What all lessons share: the group, the numbers that a rank starts with, and a way to show the result.

use std::path::Path;

use anyhow::Result;
use c10d::ProcessGroup;
use lockstep::Rank;
use lockstep::results::Results;
use tch::Tensor;

use crate::pictures::{Held, draw};

/// The state that all lessons share on one rank.
pub(crate) struct Lab<'a> {
    pub(crate) group: &'a ProcessGroup,
    /// The root of broadcast, scatter, reduce and gather.
    pub(crate) root: Rank,
    pub(crate) results: Results,
}

impl<'a> Lab<'a> {
    pub(crate) fn new(group: &'a ProcessGroup, root: Rank) -> Self {
        Lab { group, root, results: Results::new(group.rank()) }
    }

    // ANCHOR: start
    /// What rank r starts with: `n` whole numbers, 10r + 1, 10r + 2, … The tens digit is the rank.
    pub(crate) fn start(&self, n: usize) -> Tensor {
        let first = 10 * self.group.rank().get() as i64 + 1;
        self.tensor(&(first..first + n as i64).collect::<Vec<_>>())
    }
    // ANCHOR_END: start

    /// A tensor with these numbers on the group's device.
    pub(crate) fn tensor(&self, numbers: &[i64]) -> Tensor {
        Tensor::from_slice(numbers).to_device(self.group.device())
    }

    pub(crate) fn world(&self) -> usize {
        self.group.size().get()
    }

    pub(crate) fn is_root(&self) -> bool {
        self.group.rank() == self.root
    }

    /// Draws what the ranks held at each stage and records the last stage as the lesson's result. This is a collective.
    pub(crate) fn show(&mut self, lesson: &str, words: &str, stages: &[(&str, Held)]) -> Result<()> {
        if let Some((_, last)) = stages.last() {
            self.results.note(lesson, last.to_json())?;
        }
        if let Some(picture) = draw(self.group, stages)? {
            println!("{lesson}: {words}\n{picture}\n");
        }
        Ok(())
    }

    /// Prints on rank 0.
    pub(crate) fn say(&self, words: &str) {
        if self.group.rank().is_zero() {
            println!("{words}");
        }
    }

    pub(crate) fn save(&self, folder: Option<&Path>) -> Result<()> {
        folder.map_or(Ok(()), |folder| self.results.save(folder))
    }
}
