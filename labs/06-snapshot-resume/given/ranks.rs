//! Virtual ranks: a training whose steps they share, for task `virtual_ranks`; and the ranks that add up their gradients, for task
//! `tree_sum`. You do not change this file.

use std::cell::Cell;
use std::collections::HashMap;
use std::ops::Range;

use anyhow::{Context, Result, bail};
use c10d::ProcessGroup;
use lockstep::all_gather_object;
use lockstep::data::rng::KeyedRng;
use lockstep_exercise::{numbers, tensor};
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

/// A training on one of its ranks.
#[derive(Clone, Deserialize)]
pub struct Training {
    /// The number of this rank, and how many there are.
    #[serde(skip)]
    pub rank: usize,
    pub ranks: usize,
    /// How many virtual ranks there are: at least as many as ranks.
    pub virtual_ranks: usize,
    /// The samples of a virtual rank in a step.
    pub batch_size: usize,
    pub seed: u64,
    /// The steps in an epoch, in which the virtual ranks take all samples.
    pub steps: usize,
    #[serde(skip)]
    passes: Vec<Pass>,
}

/// What one virtual rank was trained with in a step: its samples, and the random numbers that were drawn.
#[derive(Clone, Serialize)]
pub struct Pass {
    virtual_rank: usize,
    samples: Vec<usize>,
    random: [u64; 2],
}

impl Training {
    /// The order of all samples in an epoch: the same on all ranks.
    pub fn order(&self, epoch: u64) -> Vec<usize> {
        let mut random = KeyedRng::new(&[self.seed, epoch]);
        let mut order: Vec<usize> = (0..self.steps * self.virtual_ranks * self.batch_size).collect();
        (1..order.len()).rev().for_each(|place| order.swap(place, random.below(place + 1)));
        order
    }

    /// Computes the gradient of one virtual rank. Dropout draws from `random`.
    pub fn train(&mut self, virtual_rank: usize, samples: &[usize], random: &mut KeyedRng) {
        // 53 bits, which a number of JSON has in any language.
        let random = [(); 2].map(|()| random.next_u64() >> 11);
        self.passes.push(Pass { virtual_rank, samples: samples.to_vec(), random });
    }

    /// The same training on another rank.
    pub fn on_rank(&self, rank: usize) -> Self {
        Training { rank, ..self.clone() }
    }

    /// The passes since the last call.
    pub fn take(&mut self) -> Vec<Pass> {
        std::mem::take(&mut self.passes)
    }
}

/// Sums of gradients, each with the virtual ranks over which it goes. A gradient is the sum over one.
pub type Sums = HashMap<Range<usize>, Tensor>;

/// The two children of a node of the tree: its halves, the second of which is longer if they are not equal.
pub fn halves(node: &Range<usize>) -> [Range<usize>; 2] {
    let middle = usize::midpoint(node.start, node.end);
    [node.start..middle, middle..node.end]
}

/// A sum as it is sent: its node, whether it is in single precision, and its numbers.
type Sent = (Range<usize>, bool, Vec<f64>);

/// The ranks of a group, and the virtual ranks that they share.
pub struct Ranks<'a> {
    /// How many virtual ranks there are.
    pub virtual_ranks: usize,
    /// Those of this rank.
    pub part: Range<usize>,
    group: &'a ProcessGroup,
    arrivals: Vec<usize>,
    sent: Cell<usize>,
}

impl<'a> Ranks<'a> {
    /// The virtual ranks are shared by all ranks of the group, whose sums arrive in this order.
    pub fn new(group: &'a ProcessGroup, virtual_ranks: usize, arrivals: Vec<usize>) -> Self {
        let (rank, ranks) = (group.rank().get(), group.size().get());
        let part = rank * virtual_ranks / ranks..(rank + 1) * virtual_ranks / ranks;
        Ranks { virtual_ranks, part, group, arrivals, sent: Cell::new(0) }
    }

    /// The nodes of the tree that have children, each after its children. The last one is the root, which covers all virtual ranks.
    pub fn tree(&self) -> Vec<Range<usize>> {
        fn collect(node: Range<usize>, nodes: &mut Vec<Range<usize>>) {
            if node.len() > 1 {
                halves(&node).into_iter().for_each(|half| collect(half, nodes));
                nodes.push(node);
            }
        }
        let mut nodes = Vec::new();
        collect(0..self.virtual_ranks, &mut nodes);
        nodes
    }

    /// Sends sums to all ranks, and returns the sums of all ranks, also of this one, in the order in which they arrive: another one on each rank.
    /// All ranks call this together.
    ///
    /// # Errors
    /// If another rank has ended, and takes no part.
    pub fn exchange(
        &self,
        sums: impl IntoIterator<Item = (Range<usize>, Tensor)>,
    ) -> Result<Vec<(Range<usize>, Tensor)>> {
        let written = |(node, sum): (Range<usize>, Tensor)| -> Result<Sent> {
            Ok((node, sum.kind() == Kind::Float, numbers(&sum)?))
        };
        let own = sums.into_iter().map(written).collect::<Result<Vec<_>>>()?;
        self.sent.set(self.sent.get() + own.len());
        let by_rank = self.gather(Ok(own))?;
        let arrived = self.arrivals.iter().flat_map(|rank| by_rank[*rank].clone());
        Ok(arrived.map(|(node, single, sum)| (node, of_kind(&sum, single))).collect())
    }

    /// Checks that no other rank exchanges sums when the answer has returned here, or failed. Returns its result.
    ///
    /// # Errors
    /// The answer's, or that another rank is still in an exchange.
    pub fn finish(&self, answered: Result<Tensor>) -> Result<Tensor> {
        let how =
            answered.as_ref().map_or_else(|error| format!("has failed ({error:#})"), |_| "has returned".to_owned());
        self.gather(Err(how))?;
        answered
    }

    /// The sums of all ranks, unless all have ended, each in its way.
    fn gather(&self, own: Result<Vec<Sent>, String>) -> Result<Vec<Vec<Sent>>> {
        let by_rank = all_gather_object(self.group, &own).context("the sums cannot be exchanged")?;
        let busy = by_rank.iter().filter(|sums| sums.is_ok()).count();
        let ended = by_rank.iter().enumerate().find_map(|(rank, sums)| Some((rank, sums.as_ref().err()?)));
        if let Some((rank, how)) = ended.filter(|_| busy > 0) {
            bail!(
                "{busy} of {} ranks exchange sums, but rank {rank} {how}: all ranks must call `exchange` equally often, although they have \
                 different numbers of sums",
                by_rank.len()
            );
        }
        Ok(by_rank.into_iter().flatten().collect())
    }

    /// The number of sums that this rank has sent.
    pub fn sent(&self) -> usize {
        self.sent.get()
    }
}

/// Numbers as a tensor, in single or double precision.
pub fn of_kind(numbers: &[f64], single: bool) -> Tensor {
    tensor(numbers).to_kind(if single { Kind::Float } else { Kind::Double })
}
