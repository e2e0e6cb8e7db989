//! Tensor parallelism: each rank holds a part of each weight and computes a part of each layer, for the same batch on all ranks.
//!
//! With p ranks, Y = X Wᵀ is divided by the rows of W (by output, "column-wise" in the papers, which write Y = X A): every rank
//! computes some columns of Y. Or by the columns of W (by input, "row-wise"): every rank has some columns of X and computes a
//! summand of Y. Column-wise then row-wise ([`ParallelMlp`]) needs one all-reduce forward, of the sum, and one backward, of the
//! gradient of X.
//!
//! Layers take the weights of the whole layer, equal on all ranks, and keep their part, so that the division changes no numbers.
//! Leaves out ways to draw or load only a part, and overlap of communication and computation.
//!
//! Source: Shoeybi and others, "Megatron-LM" (2019), section 3; Korthikanti and others, "Reducing Activation Recomputation in
//! Large Transformer Models" (2022), section 4.2, for the division by sequence.
//!
//! Some functions make a whole tensor from its parts, or parts from the whole: each is one exchange in the forward pass and another in
//! the backward pass. All ranks of the group call them in the same order, with tensors of the same shape, and run backward by
//! [`c10d::backward_over`]. Source: Megatron-LM, `megatron/core/tensor_parallel/mappings.py`.

use std::rc::Rc;

use c10d::Exchange::{AllGather, AllReduce, Identity, OwnPart, ReduceScatter};
use c10d::{Error, Exchange, OwnThread, ProcessGroup, ReduceOp, Result};
use tch::nn::{Module, Path};
use tch::{Kind, Tensor, no_grad};

use crate::nn;
use crate::virtual_ranks::refuse_in_pass;

type Group = OwnThread<Rc<ProcessGroup>>;

/// A linear layer whose outputs are divided among the ranks: inputs `[…, in]`, outputs `[…, out / p]`.
#[derive(Debug)]
pub struct ColumnParallelLinear {
    /// `[out / p, in]`
    weight: Tensor,
    /// `[out / p]`
    bias: Option<Tensor>,
    group: Group,
    sequence: Option<usize>,
}

impl ColumnParallelLinear {
    /// Keeps this rank's part of the `weight` `[out, in]` and the `bias` `[out]`, if any, of the whole layer, as variables of these names.
    ///
    /// Errors: `BadArgument` if `out` is not a multiple of the number of ranks.
    pub fn new(vs: &Path<'_>, weight: &Tensor, bias: Option<&Tensor>, group: &Rc<ProcessGroup>) -> Result<Self> {
        let weight = vs.var_copy("weight", &part_of(group, weight, 0)?);
        let bias = bias.map(|bias| Ok(vs.var_copy("bias", &part_of(group, bias, 0)?))).transpose()?;
        Ok(ColumnParallelLinear { weight, bias, group: OwnThread::new(Rc::clone(group)), sequence: None })
    }

    /// Takes inputs that are divided among the ranks along `dim` (the sequence), and gathers them first.
    pub fn gathering(self, dim: usize) -> Self {
        Self { sequence: Some(dim), ..self }
    }

    /// This rank's columns of the output.
    pub fn try_forward(&self, inputs: &Tensor) -> Result<Tensor> {
        let group = self.group.get()?;
        let whole = match self.sequence {
            Some(dim) => all_gather(group, inputs, dim)?,
            None => copy_to_ranks(group, inputs)?,
        };
        Ok(whole.linear(&self.weight, self.bias.as_ref()))
    }
}

/// A linear layer whose inputs are divided among the ranks: inputs `[…, in / p]`, outputs `[…, out]`, the sum over all
/// ranks.
#[derive(Debug)]
pub struct RowParallelLinear {
    /// `[out, in / p]`
    weight: Tensor,
    /// `[out]`, on every rank, and added once, after the sum.
    bias: Option<Tensor>,
    group: Group,
    sequence: Option<usize>,
}

impl RowParallelLinear {
    /// Keeps this rank's part of the `weight` `[out, in]` of the whole layer, and the `bias` `[out]`, if any, as variables of these names.
    ///
    /// Errors: `BadArgument` if `in` is not a multiple of the number of ranks.
    pub fn new(vs: &Path<'_>, weight: &Tensor, bias: Option<&Tensor>, group: &Rc<ProcessGroup>) -> Result<Self> {
        let weight = vs.var_copy("weight", &part_of(group, weight, 1)?);
        let bias = bias.map(|bias| vs.var_copy("bias", bias));
        Ok(RowParallelLinear { weight, bias, group: OwnThread::new(Rc::clone(group)), sequence: None })
    }

    /// Divides the outputs among the ranks along `dim` (the sequence): a reduce-scatter in place of the all-reduce.
    pub fn scattering(self, dim: usize) -> Self {
        Self { sequence: Some(dim), ..self }
    }

    /// The whole output, or this rank's part of the sequence.
    pub fn try_forward(&self, inputs: &Tensor) -> Result<Tensor> {
        let group = self.group.get()?;
        let summand = inputs.linear(&self.weight, None::<Tensor>);
        match (self.sequence, &self.bias) {
            // Each rank adds the bias to its part only, so the bias' gradient is a sum over the ranks.
            (Some(dim), Some(bias)) => Ok(reduce_scatter(group, &summand, dim)? + copy_to_ranks(group, bias)?),
            (Some(dim), None) => reduce_scatter(group, &summand, dim),
            (None, Some(bias)) => Ok(sum_over_ranks(group, &summand)? + bias),
            (None, None) => sum_over_ranks(group, &summand),
        }
    }
}

/// Two layers, column-wise then row-wise, with GELU between: nothing is sent between them. Inputs and outputs `[…, features]`.
#[derive(Debug)]
pub struct ParallelMlp {
    fc1: ColumnParallelLinear,
    fc2: RowParallelLinear,
}

impl ParallelMlp {
    /// A block of these layers.
    pub fn new(fc1: ColumnParallelLinear, fc2: RowParallelLinear) -> Self {
        ParallelMlp { fc1, fc2 }
    }

    /// The block's output.
    pub fn try_forward(&self, inputs: &Tensor) -> Result<Tensor> {
        self.fc2.try_forward(&self.fc1.try_forward(inputs)?.gelu("none"))
    }
}

/// An embedding whose table is divided among the ranks by rows, that is, by vocabulary: indices of any shape `[…]`, the same on
/// all ranks, outputs `[…, features]`.
#[derive(Debug)]
pub struct VocabParallelEmbedding {
    /// `[vocabulary / p, features]`
    weight: Tensor,
    group: Group,
}

impl VocabParallelEmbedding {
    /// Keeps this rank's part of the table `[vocabulary, features]`, as the variable `weight`.
    ///
    /// Errors: `BadArgument` if the vocabulary is not a multiple of the number of ranks: pad it.
    pub fn new(vs: &Path<'_>, weight: &Tensor, group: &Rc<ProcessGroup>) -> Result<Self> {
        let weight = vs.var_copy("weight", &part_of(group, weight, 0)?);
        Ok(VocabParallelEmbedding { weight, group: OwnThread::new(Rc::clone(group)) })
    }

    /// Each row comes from the rank that holds it; the others add zeros. An index outside the vocabulary is not refused: its row is zeros.
    pub fn try_forward(&self, indices: &Tensor) -> Result<Tensor> {
        let group = self.group.get()?;
        let (local, elsewhere) = local_index(group, indices, self.weight.size()[0]);
        let rows = Tensor::embedding(&self.weight, &local, -1, false, false);
        sum_over_ranks(group, &rows.masked_fill(&elsewhere.unsqueeze(-1), 0.0))
    }
}

/// The mean cross-entropy of logits whose vocabulary is divided: `logits` `[n, vocabulary / p]`, `targets` `[n]`, the same on all
/// ranks. Instead of the logits, two all-reduces send n numbers (the maximum) and 2 n (the sum of the exponentials and the
/// target's logit). The backward pass sends nothing. Targets must lie inside the vocabulary; others are not refused.
pub fn vocab_parallel_cross_entropy(group: &ProcessGroup, logits: &Tensor, targets: &Tensor) -> Result<Tensor> {
    let mut largest = no_grad(|| logits.amax([-1].as_slice(), true)).contiguous();
    group.all_reduce(&mut largest, ReduceOp::Max)?;
    let shifted = logits - largest;
    let (local, elsewhere) = local_index(group, targets, logits.size()[1]);
    let target = shifted.gather(1, &local.unsqueeze(1), false).squeeze_dim(1).masked_fill(&elsewhere, 0.0);
    let exp_sum = shifted.exp().sum_dim_intlist([-1].as_slice(), false, None::<Kind>);
    let sums = sum_over_ranks(group, &Tensor::stack(&[exp_sum, target], 0))?;
    Ok((sums.get(0).log() - sums.get(1)).mean(None::<Kind>))
}

/// Indices into this rank's `rows` of a vocabulary, and true where an index belongs to another rank (whose index here is 0).
fn local_index(group: &ProcessGroup, indices: &Tensor, rows: i64) -> (Tensor, Tensor) {
    let local = indices - rows * group.rank().get() as i64;
    let elsewhere = local.lt(0).logical_or(&local.ge(rows));
    (local.masked_fill(&elsewhere, 0), elsewhere)
}

/// This rank's part of a tensor that all ranks have.
pub(super) fn part_of(group: &ProcessGroup, whole: &Tensor, dim: usize) -> Result<Tensor> {
    let (size, ranks) = (whole.size(), group.size().get() as i64);
    match size.get(dim) {
        Some(length) if length % ranks == 0 => {
            Ok(no_grad(|| whole.chunk(ranks, dim as i64)[group.rank().get()].contiguous()))
        }
        _ => {
            let detail =
                format!("dimension {dim} of a weight of shape {size:?} cannot be divided into {ranks} equal parts");
            Err(Error::bad_argument("divide a layer", detail))
        }
    }
}

/// Makes layers like tch's, whose `forward` returns no error: a failure panics, or becomes the error of an enclosing call
/// that catches it, such as [`DistributedDataParallel::forward`](crate::DistributedDataParallel::forward).
macro_rules! module {
    ($($layer:ty),*) => {$(
        impl Module for $layer {
            /// # Panics
            /// Panics when `try_forward` fails; inside [`DistributedDataParallel::forward`](crate::DistributedDataParallel::forward) the
            /// failure is that call's error instead.
            fn forward(&self, inputs: &Tensor) -> Tensor {
                self.try_forward(inputs).unwrap_or_else(|error| nn::raise(error))
            }
        }
    )*};
}
module!(ColumnParallelLinear, RowParallelLinear, ParallelMlp, VocabParallelEmbedding);

fn exchange(
    group: &ProcessGroup,
    tensor: &Tensor,
    forward: Exchange,
    backward: Exchange,
    dim: usize,
) -> Result<Tensor> {
    refuse_in_pass("tensor parallelism")?;
    c10d::exchange(group, tensor, forward, backward, dim)
}

/// The tensor itself, which all ranks hold and each uses in its own way: the gradient is the sum of all ranks' gradients.
/// Megatron's *f*.
pub fn copy_to_ranks(group: &ProcessGroup, whole: &Tensor) -> Result<Tensor> {
    exchange(group, whole, Identity, AllReduce, 0)
}

/// The sum of all ranks' tensors, which all go on to use in the same way: the gradient needs no exchange. Megatron's *g*.
pub fn sum_over_ranks(group: &ProcessGroup, part: &Tensor) -> Result<Tensor> {
    exchange(group, part, AllReduce, Identity, 0)
}

/// All ranks' parts, one after another along `dim`, which each uses in its own way: the gradient is each rank's part of the sum.
/// Before a column-wise layer in sequence parallelism.
pub fn all_gather(group: &ProcessGroup, part: &Tensor, dim: usize) -> Result<Tensor> {
    exchange(group, part, AllGather, ReduceScatter, dim)
}

/// This rank's part, along `dim`, of the sum of all ranks' tensors; after a row-wise layer in sequence parallelism.
pub fn reduce_scatter(group: &ProcessGroup, whole: &Tensor, dim: usize) -> Result<Tensor> {
    exchange(group, whole, ReduceScatter, AllGather, dim)
}

/// All ranks' parts, one after another along `dim`, which all go on to use in the same way: the gradient is the rank's own part.
pub fn gather_parts(group: &ProcessGroup, part: &Tensor, dim: usize) -> Result<Tensor> {
    exchange(group, part, AllGather, OwnPart, dim)
}

/// This rank's part, along `dim`, of a tensor that all ranks hold: the gradient is put together again.
pub fn own_part(group: &ProcessGroup, whole: &Tensor, dim: usize) -> Result<Tensor> {
    exchange(group, whole, OwnPart, AllGather, dim)
}
