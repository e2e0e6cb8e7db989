//! Fully sharded training: parameters, gradients and optimizer states divided over the ranks; PyTorch's `fully_shard` (FSDP2).
//!
//! The model is divided into units, such as its blocks. Between its turns, each rank has `1 / ranks` of a unit's parameters:
//!
//! | when | what happens to a unit |
//! |---|---|
//! | before its forward pass | all-gather of its parameters; that of the next unit starts meanwhile |
//! | after it | they are freed; autograd keeps a note instead of each parameter that it saves for the backward pass |
//! | in the backward pass, when the first such note is read | all-gather again; that of the unit before starts meanwhile |
//! | when all its gradients are there | parameters freed; reduce-scatter of the gradients, while the backward pass goes on |
//! | after the backward pass | each rank has the mean gradient of its own part, which any optimizer steps |
//!
//! On N ranks, with P bytes of parameters and each unit used once, a rank passes P / N to all-gathers twice and P to reduce-scatters in
//! a step, where DDP passes P to all-reduces. A ring moves 3 P (N − 1) / N bytes for it, half as much again as for DDP.
//!
//! The sums are those of DDP, in an order that may differ: the results agree within rounding.
//!
//! Leaves out these parts of FSDP2: GPUs (backward runs on a thread of libtorch's there, and is refused); meshes of two dimensions (HSDP);
//! models that are made on no device and loaded in parts; parameters divided along their first dimension (here, a unit's are divided as one
//! vector, as FSDP1 did); offload to the CPU. The norm over all ranks is clipped by [`clip_grad_norm`](crate::optim::clip_grad_norm). Frozen
//! parameters and buffers are whole on each rank, and buffers are each rank's own: batch normalization over all ranks is
//! [`SyncBatchNorm2d`](crate::nn::SyncBatchNorm2d).

mod passes;
mod unit;

use std::rc::Rc;

use c10d::{Error, ProcessGroup, Result};
use tch::Tensor;
use tch::nn::VarStore;

pub use unit::{FullyShardOptions, MixedPrecision, Piece, ShardBytes};

use crate::ddp::broadcast_states;
use crate::nn;
use crate::optim::named_parameters;
use crate::virtual_ranks::{VirtualRanks, refuse_in_pass};
use passes::Passes;
use unit::{Flat, Unit};

/// A model whose parameters are divided over the ranks of a group, except those of the unit that computes.
///
/// ```no_run
/// # use std::rc::Rc;
/// # use tch::{Tensor, nn::{self, Module, VarStore}};
/// # fn train(vs: &VarStore, first: nn::Linear, second: nn::Linear, group: Rc<c10d::ProcessGroup>, x: Tensor, y: Tensor) -> anyhow::Result<()> {
/// use lockstep::optim::{AdamW, AdamWOptions, Optimizer};
/// use lockstep::parallel::{FullyShard, FullyShardOptions};
///
/// // The variables "first.weight" and "first.bias" are one unit, those of `second` another.
/// let model = FullyShard::new(vs, group, &["first", "second"], &FullyShardOptions::default())?;
/// let mut optimizer = AdamW::new(model.named_parameters(), AdamWOptions::default())?; // this rank's part
/// optimizer.zero_grad();
/// let hidden = model.forward("first", &x, |x| first.forward(x).relu())?;
/// let output = model.forward("second", &hidden, |x| second.forward(x))?;
/// model.backward(&output.cross_entropy_for_logits(&y))?;
/// optimizer.step()?;
/// # Ok(()) }
/// ```
///
/// Outside [`forward`](Self::forward) the model's variables have their shape, but all their elements are one NaN: a use of them
/// shows in the loss. Every rank makes the same calls and uses the same units and parameters in them. Model, passes and optimizer
/// belong to one thread.
///
/// Source: Zhao and others, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel" (2023);
/// `torch/distributed/fsdp/_fully_shard`. ZeRO's stage 3 (Rajbhandari and others, 2019) is the same idea.
#[derive(Debug)]
pub struct FullyShard {
    passes: Rc<Passes>,
    group: Rc<ProcessGroup>,
}

impl FullyShard {
    /// Copies rank 0's variables to all ranks, and keeps this rank's part of the parameters. `units` are prefixes of names: a
    /// parameter belongs to the longest that fits, and `""` fits all. Units may be nested: the body of one may call another.
    ///
    /// Build it from the model in its final dtype, and the optimizer from [`named_parameters`](Self::named_parameters).
    ///
    /// Errors: `BadArgument` for a parameter without a unit, a unit without parameters, one with several dtypes or devices, and a device
    /// that is not the CPU; `Mismatch` when the ranks' parameters differ.
    pub fn new(vs: &VarStore, group: Rc<ProcessGroup>, units: &[&str], options: &FullyShardOptions) -> Result<Self> {
        let params = named_parameters(vs);
        let tensors: Vec<Tensor> = params.iter().map(|(_, tensor)| tensor.shallow_clone()).collect();
        c10d::verify_params(&group, &tensors)?;
        let divided = divide(params, units)?;
        broadcast_states(vs, &group)?;
        let made = units.iter().zip(divided).map(|(name, params)| {
            let flat = Flat::new(name, params, &group)?;
            Unit::new((*name).to_owned(), flat, Rc::clone(&group), &options.mixed_precision)
        });
        let passes = Passes::new(made.collect::<Result<_>>()?, options)?;
        Ok(FullyShard { passes, group })
    }

    /// Runs `body`, the forward pass of a unit, with its parameters. `inputs` that are floats are first converted to the dtype of
    /// computing, if that is another.
    ///
    /// The unit may be used again in the same pass. `body` must compute inside whatever it needs from the unit's parameters.
    ///
    /// Errors: `BadArgument` for an unknown unit, and in the pass of a virtual rank; any failure of the all-gather, or of a layer that communicates.
    pub fn forward(&self, unit: &str, inputs: &Tensor, body: impl FnOnce(&Tensor) -> Tensor) -> Result<Tensor> {
        refuse_in_pass("full sharding")?;
        let at = self.passes.find(unit)?;
        self.passes.forward(at, inputs, |inputs| nn::caught(|| body(inputs)))
    }

    /// As [`forward`](Self::forward), but of the unit's activations only `inputs` are kept: the backward pass gathers the parameters
    /// and runs `body` a second time, with the same random numbers. This is [`c10d::checkpoint`] for a unit; inside `body`,
    /// `c10d::checkpoint` itself computes with NaN in the backward pass, since the parameters are not there.
    ///
    /// The parameters are freed after the forward pass, whatever `reshard_after_forward` is. As many bytes are sent as by
    /// [`forward`](Self::forward); a unit that is used more than once in a pass has its gradients reduced after each use.
    pub fn forward_checkpointed(
        &self,
        unit: &str,
        inputs: &Tensor,
        body: impl Fn(&Tensor) -> Tensor + 'static,
    ) -> Result<Tensor> {
        refuse_in_pass("full sharding")?;
        let at = self.passes.find(unit)?;
        self.passes.forward_checkpointed(at, inputs, move |inputs| nn::caught(|| body(inputs)))
    }

    /// Runs backward from a loss. When it returns, each rank has the mean gradient of its part of the parameters, added to what
    /// was there; inside [`no_sync`](Self::no_sync), gradients stay whole on each rank and add up.
    pub fn backward(&self, loss: &Tensor) -> Result<()> {
        self.passes.backward(loss)
    }

    /// Runs `body` without reduce-scatters; the next pass outside reduces the sum. It costs the memory of whole gradients;
    /// FSDP2's `set_requires_gradient_sync(False)`.
    pub fn no_sync<T>(&self, body: impl FnOnce() -> T) -> T {
        self.passes.without_sync(body)
    }

    /// Runs `body` with the parameters of all units at once, as for an evaluation by the whole model or for saving it; FSDP1's
    /// `summon_full_params`. What `body` changes is lost, and gradients are not recorded.
    pub fn summon_full_params<T>(&self, body: impl FnOnce() -> T) -> Result<T> {
        let units = self.passes.units();
        units.iter().try_for_each(|unit| unit.expose().map(drop))?;
        let result = tch::no_grad(body);
        units.iter().try_for_each(|unit| unit.conceal().and_then(|()| unit.reshard()))?;
        Ok(result)
    }

    /// Frees the parameters of all units, also those that were gathered ahead. Needed after a forward pass that no backward pass
    /// follows, before the next step of the optimizer: otherwise the next forward pass would not see that step.
    ///
    /// Errors: an all-gather that was on the way failed.
    pub fn reshard(&self) -> Result<()> {
        self.passes.units().iter().try_for_each(Unit::reshard)
    }

    /// For an optimizer: this rank's part of each parameter, with its name, unit by unit. A part is one-dimensional, and empty
    /// where this rank has nothing of the parameter.
    pub fn named_parameters(&self) -> Vec<(String, Tensor)> {
        let pieces = self.passes.units().iter().flat_map(|unit| unit.flat().params());
        pieces.map(|param| (param.piece().name.clone(), param.part())).collect()
    }

    /// Which elements of each parameter this rank has, in the order of [`named_parameters`](Self::named_parameters).
    pub fn pieces(&self) -> Vec<Piece> {
        self.passes.units().iter().flat_map(|unit| unit.flat().params()).map(|param| param.piece().clone()).collect()
    }

    /// The memory of this rank's parts now, and of what is whole for a while.
    pub fn bytes(&self) -> ShardBytes {
        self.passes.bytes()
    }

    /// The group over which the model is divided.
    pub fn group(&self) -> &ProcessGroup {
        &self.group
    }

    /// This rank itself: a fully sharded model has no other virtual ranks.
    pub fn virtual_ranks(&self) -> VirtualRanks {
        VirtualRanks::of_ranks(&self.group)
    }
}

/// The parameters of each unit.
fn divide(params: Vec<(String, Tensor)>, units: &[&str]) -> Result<Vec<Vec<(String, Tensor)>>> {
    let refused = |why: String| Err(Error::bad_argument("fully_shard", why));
    let mut divided: Vec<Vec<_>> = units.iter().map(|_| Vec::new()).collect();
    for (name, tensor) in params {
        let fits = |unit: &str| unit.is_empty() || name.strip_prefix(unit).is_some_and(|rest| rest.starts_with('.'));
        let fitting = units.iter().enumerate().filter(|(_, unit)| fits(unit));
        match fitting.max_by_key(|(_, unit)| unit.len()) {
            Some((at, _)) => divided[at].push((name, tensor)),
            None => {
                return refused(format!(
                    "the parameter {name} is not in any unit; the unit \"\" takes all that no other unit has"
                ));
            }
        }
    }
    match divided.iter().position(Vec::is_empty) {
        Some(empty) => {
            refused(format!("the unit {:?} has no parameters, or another unit of that name has them", units[empty]))
        }
        None => Ok(divided),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(divided: &[Vec<(String, Tensor)>]) -> Vec<Vec<&str>> {
        divided.iter().map(|params| params.iter().map(|(name, _)| name.as_str()).collect()).collect()
    }

    #[test]
    fn a_parameter_belongs_to_the_longest_name_that_fits() {
        let params = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), Tensor::from(0.0))).collect();
        let all = ["block.1.w", "block.10.w", "block.1.norm.w", "head"];
        let divided = divide(params(&all), &["", "block.1", "block.1.norm"]).unwrap();
        assert_eq!(names(&divided), [vec!["block.10.w", "head"], vec!["block.1.w"], vec!["block.1.norm.w"]]);
        let error = divide(params(&all), &["block.1", "block.10"]).unwrap_err().to_string();
        assert!(error.contains("the parameter head is not in any unit"), "{error}");
        for twice in [&["", "tail"][..], &["", "block.1", "block.1"]] {
            let error = divide(params(&all), twice).unwrap_err().to_string();
            assert!(error.contains("has no parameters"), "{error}");
        }
    }
}
