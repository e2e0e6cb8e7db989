//! Batch normalization with the statistics of the rank's own batch, which rejects a batch too small to have any.

use c10d::{Error, Result};
use tch::Tensor;
use tch::nn::{self, BatchNormConfig, Init, ModuleT, Path};

use super::failure;

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
    /// # Errors
    /// `BadArgument` in a training pass over fewer than two values per channel.
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
        self.try_forward_t(inputs, train).unwrap_or_else(|error| failure::raise(error))
    }
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
}
