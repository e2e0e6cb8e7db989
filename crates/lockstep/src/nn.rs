//! Layers that tch lacks or that differ from PyTorch's, in the style of its `nn`.
//!
//! tch's `forward_t` returns a tensor and no error, but a layer that communicates can fail. Inside [`caught`] a failure silently unwinds
//! to that call, which returns it as an error; elsewhere it is a panic with the error's text. All other panics pass through unchanged.
//!
//! Leaves out the computation of [`SyncBatchNorm2d`], which needs its own autograd function: [`c10d::sync_batch_norm`].

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

use c10d::{Error, OwnThread, ProcessGroup, Result};
use tch::nn::{BatchNormConfig, Init, ModuleT, Path};
use tch::{Kind, Tensor, nn, no_grad};

use crate::virtual_ranks::refuse_in_pass;

/// `torch.nn.BatchNorm2d` for pictures. Input and output `[n, channels, H, W]`; variables are `weight` (ones), `bias` (zeros),
/// `running_mean` and `running_var`.
///
/// Unlike tch's, weights start as in PyTorch, and a training pass over one value per channel is an error, as in Python
/// (`torch/nn/functional.py`, `_verify_batch_size`). libtorch itself accepts it: the variance is divided by n − 1, and the
/// running variance is NaN from then on.
#[derive(Debug)]
pub struct BatchNorm2d {
    norm: nn::BatchNorm,
    /// Its position in the model: `layer4.0.bn1`.
    name: String,
}

impl BatchNorm2d {
    /// Creates the variables under `vs`.
    pub fn new(vs: &Path<'_>, channels: i64) -> Self {
        // tch's default draws the weights between 0 and 1, as PyTorch did before 1.2.
        let config = BatchNormConfig { ws_init: Init::Const(1.0), ..Default::default() };
        let name = vs.components().collect::<Vec<_>>().join(".");
        BatchNorm2d { norm: nn::batch_norm2d(vs, channels, config), name }
    }

    /// [`forward_t`](ModuleT::forward_t), returning its failure as an error.
    ///
    /// Errors: `BadArgument` in a training pass over fewer than two values per channel.
    pub fn try_forward_t(&self, inputs: &Tensor, train: bool) -> Result<Tensor> {
        if train {
            self.check(&inputs.size())?;
        }
        Ok(self.norm.forward_t(inputs, train))
    }

    /// libtorch rejects inputs of other dimensions.
    fn check(&self, size: &[i64]) -> Result<()> {
        let &[n, _, height, width] = size else { return Ok(()) };
        if n * height * width >= 2 {
            return Ok(());
        }
        Err(Error::bad_argument(
            format!("batch normalization {} in training", self.name),
            format!(
                "a batch of {n} with {height} × {width} pixels here has too few values a channel to take a variance of: choose another \
                 batch size, so that the last batch is larger, or larger pictures, or synchronized batch normalization on several ranks"
            ),
        ))
    }
}

impl ModuleT for BatchNorm2d {
    /// # Panics
    /// Panics when [`BatchNorm2d::try_forward_t`] fails; inside
    /// [`DistributedDataParallel::forward`](crate::DistributedDataParallel::forward) the failure is that call's error instead.
    fn forward_t(&self, inputs: &Tensor, train: bool) -> Tensor {
        self.try_forward_t(inputs, train).unwrap_or_else(|error| raise(error))
    }
}

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
    /// Errors: `BadArgument` for inputs of another shape, on a thread other than the one that created the layer, and on all ranks for fewer
    /// than two values per channel over all of them; any failure of a collective.
    pub fn try_forward_t(&self, inputs: &Tensor, train: bool) -> Result<Tensor> {
        let SyncBatchNormOptions { eps, momentum } = self.options;
        if !train {
            let (mean, var) = (Some(&self.running_mean), Some(&self.running_var));
            let (weight, bias) = (Some(&self.weight), Some(&self.bias));
            return Ok(inputs.batch_norm(weight, bias, mean, var, false, momentum, eps, true));
        }
        refuse_in_pass("SyncBatchNorm2d")?;
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
        self.try_forward_t(inputs, train).unwrap_or_else(|error| raise(error))
    }
}

thread_local! {
    /// True if a caller on this thread's stack catches failures.
    static CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `body`, a forward pass whose layers may fail with [`raise`].
pub fn caught<T>(body: impl FnOnce() -> T) -> Result<T> {
    let before = CATCHING.replace(true);
    // After a failed forward pass, only the model may be in an inconsistent state, and nothing uses it.
    let outcome = catch_unwind(AssertUnwindSafe(|| keeping_grad_mode(body)));
    CATCHING.set(before);
    outcome.map_err(|panic| *panic.downcast::<Error>().unwrap_or_else(|panic| resume_unwind(panic)))
}

/// Runs `body` and then restores this thread's gradient mode, even if `body` unwinds, which `tch::no_grad` does not do.
fn keeping_grad_mode<T>(body: impl FnOnce() -> T) -> T {
    let recording = c10d::grad_enabled();
    // The guard turns recording off, and restores the previous mode when it is dropped.
    let _mode = tch::no_grad_guard();
    if recording { tch::with_grad(body) } else { body() }
}

/// Ends a layer's forward pass with `error`, which [`caught`] returns; for layers whose `forward` has no error of its own.
///
/// # Panics
/// Panics with the error's text where nobody catches it.
#[track_caller]
pub fn raise(error: Error) -> ! {
    if CATCHING.get() {
        // Not a panic, so that the hook that prints panics and records them for a launcher does not run.
        resume_unwind(Box::new(error))
    }
    panic!("{error}")
}

#[cfg(test)]
mod tests {
    use tch::nn::VarStore;
    use tch::{Device, Kind};

    use super::*;

    #[test]
    fn refuses_a_batch_without_a_variance_in_training_and_names_the_layer() {
        let vs = VarStore::new(Device::Cpu);
        let norm = BatchNorm2d::new(&(vs.root() / "layer4" / 0 / "bn1"), 3);
        let of = |size: [i64; 4]| Tensor::zeros(size, (Kind::Float, Device::Cpu));
        for size in [[1, 3, 1, 1], [0, 3, 2, 2]] {
            let message = norm.try_forward_t(&of(size), true).unwrap_err().to_string();
            assert!(
                message.starts_with("batch normalization layer4.0.bn1 in training was given a bad argument"),
                "{message}"
            );
            assert!(message.contains(&format!("a batch of {} with {1} × {1} pixels", size[0], size[2])), "{message}");
            assert_eq!(norm.try_forward_t(&of(size), false).unwrap().size(), size);
        }
        for size in [[2, 3, 1, 1], [1, 3, 1, 2]] {
            assert_eq!(norm.try_forward_t(&of(size), true).unwrap().size(), size);
        }
        let running = vs.variables().remove("layer4.0.bn1.running_var").unwrap();
        assert!(running.isfinite().all().int64_value(&[]) == 1, "{running:?}");
    }

    fn failure() -> Error {
        c10d::bucket_assignment(&[], &[]).unwrap_err()
    }

    #[test]
    fn a_failure_is_an_error_where_it_is_caught() {
        assert_eq!(caught(|| 3).unwrap(), 3);
        let error = caught(|| raise(failure())).unwrap_err();
        assert_eq!(error.to_string(), failure().to_string());
    }

    #[test]
    fn an_uncaught_failure_is_a_panic_with_its_text() {
        let _caught_before = caught(|| ());
        let panic = catch_unwind(|| raise(failure())).unwrap_err();
        assert_eq!(*panic.downcast::<String>().unwrap(), failure().to_string());
    }

    #[test]
    fn gradients_are_recorded_again_after_a_failure_inside_no_grad() {
        for outer in [true, false] {
            let _mode = tch::no_grad_guard();
            let run = || {
                caught(|| tch::no_grad(|| raise(failure()))).unwrap_err();
                assert_eq!(c10d::grad_enabled(), outer);
                caught(|| assert_eq!(c10d::grad_enabled(), outer)).unwrap();
            };
            if outer { tch::with_grad(run) } else { run() }
        }
    }

    #[test]
    fn other_panics_pass_through() {
        let panic = catch_unwind(|| caught(|| panic!("a bug"))).unwrap_err();
        assert_eq!(*panic.downcast::<&str>().unwrap(), "a bug");
    }
}
