//! Batch normalization with the statistics of all ranks' samples.
//!
//! Leaves out the computation, which needs its own autograd function: [`c10d::sync_batch_norm`].

use std::rc::Rc;

use c10d::{OwnThread, ProcessGroup, Result};
use tch::nn::{Init, ModuleT, Path};
use tch::{Kind, Tensor, no_grad};

use super::failure;

/// The options of [`SyncBatchNorm2d`]; names and defaults are PyTorch's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SyncBatchNormOptions {
    /// Added to the variance before taking its square root.
    pub eps: f64,
    /// The weight of the batch in the running statistics.
    pub momentum: f64,
}

impl Default for SyncBatchNormOptions {
    fn default() -> Self {
        SyncBatchNormOptions { eps: 1e-5, momentum: 0.1 }
    }
}

/// `torch.nn.SyncBatchNorm` for pictures: normalizes each channel by mean and variance over the samples of all ranks, so that N
/// ranks compute the same as one rank on the whole batch. Input and output `[n, channels, H, W]`, where `n` may differ from
/// rank to rank and be 0.
///
/// Variables are `weight` (ones), `bias` (zeros), `running_mean` and `running_var`, as in batch normalization, so that weights
/// are interchangeable; the running variance is unbiased, by the count over all ranks. A training pass communicates twice in
/// each layer, once forward and once backward; an evaluation pass never does. The gradients of weight and bias are the rank's
/// own share, like those of all parameters: DDP averages them.
///
/// Python's version supports only GPUs; this one works wherever the group does, including CPUs with Gloo.
#[derive(Debug)]
pub struct SyncBatchNorm2d {
    weight: Tensor,
    bias: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    group: OwnThread<Rc<ProcessGroup>>,
    options: SyncBatchNormOptions,
}

impl SyncBatchNorm2d {
    /// Creates the variables under `vs`. Statistics cover the ranks of `group`, which must all make the same passes.
    pub fn new(vs: &Path<'_>, channels: i64, group: Rc<ProcessGroup>, options: &SyncBatchNormOptions) -> Self {
        SyncBatchNorm2d {
            weight: vs.var("weight", &[channels], Init::Const(1.0)),
            bias: vs.var("bias", &[channels], Init::Const(0.0)),
            running_mean: vs.zeros_no_train("running_mean", &[channels]),
            running_var: vs.ones_no_train("running_var", &[channels]),
            group: OwnThread::new(group),
            options: *options,
        }
    }

    /// [`forward_t`](ModuleT::forward_t), returning its failures as errors.
    ///
    /// # Errors
    /// `BadArgument` for inputs of another shape, on a thread other than the one that created the layer, and on all ranks for
    /// fewer than two values per channel over all of them; any failure of a collective.
    pub fn try_forward_t(&self, inputs: &Tensor, train: bool) -> Result<Tensor> {
        let SyncBatchNormOptions { eps, momentum } = self.options;
        if !train {
            let (mean, var) = (Some(&self.running_mean), Some(&self.running_var));
            let (weight, bias) = (Some(&self.weight), Some(&self.bias));
            return Ok(inputs.batch_norm(weight, bias, mean, var, false, momentum, eps, true));
        }
        let group = self.group.get()?;
        // Under autocast. The statistics are taken in the precision of the weights, as PyTorch does.
        let is_half = matches!(inputs.kind(), Kind::Half | Kind::BFloat16);
        let wide = if is_half { inputs.to_kind(self.weight.kind()) } else { inputs.shallow_clone() };
        let normalized = c10d::sync_batch_norm(group, &wide, &self.weight, &self.bias, eps)?;
        no_grad(|| self.follow(&normalized.mean, &normalized.unbiased_var));
        Ok(normalized.output.to_kind(inputs.kind()))
    }

    /// Moves the running statistics towards the batch's.
    fn follow(&self, mean: &Tensor, var: &Tensor) {
        let momentum = self.options.momentum;
        for (running, batch) in [(&self.running_mean, mean), (&self.running_var, var)] {
            let mut running = running.shallow_clone();
            running *= 1.0 - momentum;
            running += batch * momentum;
        }
    }
}

impl ModuleT for SyncBatchNorm2d {
    /// # Panics
    /// Panics when [`SyncBatchNorm2d::try_forward_t`] fails; inside
    /// [`DistributedDataParallel::forward`](crate::DistributedDataParallel::forward) the failure is that call's error instead.
    fn forward_t(&self, inputs: &Tensor, train: bool) -> Tensor {
        self.try_forward_t(inputs, train).unwrap_or_else(|error| failure::raise(error))
    }
}
