//! Expert parallelism: a layer of many small networks (experts), of which each token passes one. The ranks share the batch and the
//! experts: an all-to-all sends each token to the rank that holds its expert, another one brings the result back.
//!
//! A linear layer, the router, gives each token a probability of each expert; the token goes to the most probable one, and the result is
//! multiplied with the probability, from which the router learns. An expert takes a limited number of tokens of the whole batch, its
//! capacity, in the order of the ranks and of their tokens; for others the layer returns zeros, and in a block the sum around it passes
//! them on. Which ones these are does not depend on the number of ranks if each holds consecutive parts of the same batch.
//!
//! Leaves out more than one expert for a token, experts of which each is divided, and overlap.
//!
//! Source: Fedus, Zoph, Shazeer, "Switch Transformers" (2021), section 2; Lepikhin and others, "GShard" (2020), section 3.2.

use std::rc::Rc;

use c10d::{Error, OwnThread, ProcessGroup, Result, Splits, all_to_all_single};
use tch::nn::Path;
use tch::{Device, Kind, Tensor, no_grad};

use super::tensor::part_of;
use crate::virtual_ranks::refuse_in_pass;

/// A mixture of experts, each two layers with GELU between, of which this rank holds a part.
#[derive(Debug)]
pub struct MixtureOfExperts {
    /// `[experts, features]`
    router: Tensor,
    /// `[experts / p, inner, features]`, and biases `[experts / p, inner]`.
    fc1: (Tensor, Tensor),
    /// `[experts / p, features, inner]`, and biases `[experts / p, features]`.
    fc2: (Tensor, Tensor),
    capacity: f64,
    group: OwnThread<Rc<ProcessGroup>>,
}

/// What a [`MixtureOfExperts`] made of this rank's tokens.
#[derive(Debug)]
pub struct Routed {
    /// `[tokens, features]`
    pub output: Tensor,
    /// The balancing loss of this rank's tokens, a scalar: the number of experts times, summed over them, the share of all tokens that
    /// go to the expert times its mean probability. It is 1 for equal shares. Its mean over the ranks is the loss of the whole batch.
    pub balance: Tensor,
    /// How many of this rank's tokens found no place.
    pub dropped: i64,
}

impl MixtureOfExperts {
    /// Keeps this rank's part of the experts: of `fc1` `[experts, inner, features]` and `fc2` `[experts, features, inner]`, with biases
    /// of zeros, as variables `experts.fc1.weight` and so on; and all of the `router` `[experts, features]`, as the variable `router`. An
    /// expert takes at most `capacity` times the tokens that it would have if all experts had as many.
    ///
    /// Errors: `BadArgument` if the number of experts is not a multiple of the number of ranks.
    pub fn new(
        vs: &Path<'_>,
        [router, fc1, fc2]: [&Tensor; 3],
        capacity: f64,
        group: &Rc<ProcessGroup>,
    ) -> Result<Self> {
        let layer = |name: &str, whole: &Tensor| {
            let weight = (vs / "experts" / name).var_copy("weight", &part_of(group, whole, 0)?);
            let size = weight.size();
            Ok::<_, Error>((weight, (vs / "experts" / name).zeros("bias", &size[..2])))
        };
        Ok(MixtureOfExperts {
            router: vs.var_copy("router", router),
            fc1: layer("fc1", fc1)?,
            fc2: layer("fc2", fc2)?,
            capacity,
            group: OwnThread::new(Rc::clone(group)),
        })
    }

    /// Passes this rank's `tokens` `[tokens, features]` through their experts. All ranks have as many tokens, call it in the same order,
    /// and run backward by [`c10d::backward_over`]; then [`average_gradients`](Self::average_gradients).
    pub fn try_forward(&self, tokens: &Tensor) -> Result<Routed> {
        refuse_in_pass("expert parallelism")?;
        let group = self.group.get()?;
        let probabilities = tokens.linear(&self.router, None::<Tensor>).softmax(-1, None::<Kind>);
        let experts = probabilities.size()[1];
        let (probability, expert) = probabilities.max_dim(1, false);
        let plan = Plan::new(group, &expert, experts, self.capacity)?;

        // ANCHOR: route
        let there = all_to_all_single(group, &tokens.index_select(0, &plan.sent), &plan.splits(group, false))?;
        let here = self.pass(&there, &plan.received);
        let back = all_to_all_single(group, &here, &plan.splits(group, true))?;
        let weighted = back * probability.index_select(0, &plan.sent).unsqueeze(1);
        // ANCHOR_END: route
        let mean = probabilities.mean_dim([0].as_slice(), false, None::<Kind>);
        let balance = (plan.shares.to_kind(mean.kind()) * mean).sum(None::<Kind>) * experts as f64;
        Ok(Routed {
            output: tokens.zeros_like().index_add(0, &plan.sent, &weighted),
            balance,
            dropped: tokens.size()[0] - plan.sent.size()[0],
        })
    }

    /// Returns true if a parameter of this name is an expert's: a part of the name is `experts`.
    pub fn has_parameter(name: &str) -> bool {
        name.split('.').any(|part| part == "experts")
    }

    /// [`average_gradients`](super::average_gradients) for a model with experts. Each rank has other ones, whose gradients are those of all
    /// ranks' losses already, added up: they are divided by the number of ranks.
    pub fn average_gradients(group: &ProcessGroup, params: &[(String, Tensor)]) -> Result<()> {
        let (experts, shared): (Vec<_>, Vec<_>) = params.iter().partition(|(name, _)| Self::has_parameter(name));
        super::average(group, shared.into_iter().map(|(_, param)| param))?;
        let grads = experts.into_iter().map(|(_, param)| param.grad()).filter(Tensor::defined);
        no_grad(|| grads.for_each(|mut grad| grad /= group.size().get() as f64));
        Ok(())
    }

    /// Rows of each rank in its order, and of each of these for the own experts in their order, through the experts.
    fn pass(&self, rows: &Tensor, received: &[Vec<i64>]) -> Tensor {
        let counts: Vec<i64> = received.iter().flatten().copied().collect();
        let parts = rows.split_with_sizes(&counts, 0);
        let own = self.fc1.0.size()[0] as usize;
        // By expert, through it, and back to where the rows were.
        let through = |expert: usize| {
            let of: Vec<&Tensor> = parts.iter().skip(expert).step_by(own).collect();
            let layer = |x: &Tensor, (weight, bias): &(Tensor, Tensor)| {
                x.linear(&weight.get(expert as i64), Some(&bias.get(expert as i64)))
            };
            let outputs = layer(&layer(&Tensor::cat(&of, 0), &self.fc1).gelu("none"), &self.fc2);
            outputs.split_with_sizes(of.iter().map(|part| part.size()[0]).collect::<Vec<_>>(), 0)
        };
        let outputs: Vec<Vec<Tensor>> = (0..own).map(through).collect();
        let by_rank = (0..received.len()).flat_map(|rank| outputs.iter().map(move |of| &of[rank]));
        Tensor::cat(&by_rank.collect::<Vec<_>>(), 0)
    }
}

/// Which tokens go where; every rank derives its own from the numbers of tokens that all ranks have for each expert.
struct Plan {
    /// The own tokens that find a place, by expert, `[sent]`.
    sent: Tensor,
    /// How many go to each expert.
    sends: Vec<i64>,
    /// How many come from each rank for each of the own experts.
    received: Vec<Vec<i64>>,
    /// The share of all tokens that chose the expert, `[experts]`.
    shares: Tensor,
}

impl Plan {
    fn new(group: &ProcessGroup, expert: &Tensor, experts: i64, capacity: f64) -> Result<Self> {
        let (ranks, rank) = (group.size().get(), group.rank().get());
        let own = expert.bincount::<Tensor>(None, experts);
        let mut all = Tensor::zeros([ranks as i64, experts], (Kind::Int64, expert.device()));
        group.all_gather_into_tensor(&mut all, &own.unsqueeze(0))?;
        let total = expert.size()[0] * ranks as i64;
        if total == 0 {
            return Err(Error::bad_argument(
                "divide tokens among experts",
                "there are none: a batch needs a token or more",
            ));
        }
        let limit = (capacity * total as f64 / experts as f64).ceil() as i64;
        // Tokens of lower ranks come first.
        let before = all.cumsum(0, None::<Kind>) - &all;
        let kept = (limit - &before).clamp_min(0).minimum(&all);
        // By expert, in their order; of these, those whose place is within the limit.
        let (_, order) = expert.sort_stable(true, 0, false);
        let place = Tensor::arange(expert.size()[0], (Kind::Int64, expert.device()))
            - (own.cumsum(0, None::<Kind>) - &own).index_select(0, &expert.index_select(0, &order));
        let fits = place.lt_tensor(&kept.get(rank as i64).index_select(0, &expert.index_select(0, &order)));
        let rows = |of: &Tensor| -> Vec<Vec<i64>> { (0..ranks as i64).map(|rank| numbers(&of.get(rank))).collect() };
        let kept = rows(&kept);
        let each = experts as usize / ranks;
        let own_experts = rank * each..(rank + 1) * each;
        Ok(Plan {
            sent: order.masked_select(&fits),
            sends: kept[rank].clone(),
            received: kept.iter().map(|of| of[own_experts.clone()].to_vec()).collect(),
            shares: all.sum_dim_intlist([0].as_slice(), false, Kind::Double) / total,
        })
    }

    /// Of tokens on the way to their experts, or back.
    fn splits(&self, group: &ProcessGroup, back: bool) -> Splits {
        let each = self.sends.len() / group.size().get();
        let to = self.sends.chunks(each).map(|of| of.iter().sum()).collect();
        let from = self.received.iter().map(|of| of.iter().sum()).collect();
        let (input, output) = if back { (from, to) } else { (to, from) };
        Splits::Sizes { input, output }
    }
}

fn numbers(of: &Tensor) -> Vec<i64> {
    let of = of.to_device(Device::Cpu);
    (0..of.size()[0]).map(|at| of.int64_value(&[at])).collect()
}
