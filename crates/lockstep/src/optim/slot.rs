//! One parameter and the optimizer's state for it.

use tch::{Device, Kind, Tensor};

use super::error::{OptimError, Result};

/// One parameter with its state.
#[derive(Debug)]
pub struct Slot {
    pub(super) name: String,
    pub(super) param: Tensor,
    /// How many updates the parameter has had.
    pub(super) step: u64,
    /// The tensors that the rule's `state_names` names, in that order; empty until the first update.
    pub(super) state: Vec<Tensor>,
    /// `step` in the form of the Adam kernels: a float scalar on the parameter's device, which they increment themselves.
    counter: Option<Tensor>,
}

impl Slot {
    pub(super) fn new(name: String, param: Tensor) -> Self {
        Slot { name, param, step: 0, state: Vec::new(), counter: None }
    }

    /// Creates the state tensors, zero and with the parameter's layout, unless they exist.
    pub(super) fn start(&mut self, names: &[&str]) -> Result<()> {
        if self.state.is_empty() {
            let zeros = names.iter().map(|_| tch::no_grad(|| self.param.f_zeros_like()));
            self.state = zeros.collect::<Result<_, _>>().map_err(OptimError::torch("allocate optimizer state"))?;
        }
        Ok(())
    }

    /// The step count so far, on the parameter's device.
    pub(super) fn counter(&mut self) -> Result<Tensor> {
        if self.counter.is_none() {
            let counter = Tensor::from(self.step as f32).f_to_device(self.param.device());
            self.counter = Some(counter.map_err(OptimError::torch("move a step count to the parameter's device"))?);
        }
        Ok(self.counter.get_or_insert_default().shallow_clone())
    }

    /// The fused kernels traverse memory in order: dtype, device and strides must be the parameter's.
    pub(super) fn check(&self, grad: &Tensor, takes_sparse: bool) -> Result<()> {
        let refused = |why: String| Err(OptimError::Gradient { name: self.name.clone(), why });
        if grad.is_sparse() {
            let why = "its gradient is sparse, which only SGD without momentum and weight decay takes; use that for a group of its \
                       own, or a layer with dense gradients";
            return if takes_sparse { Ok(()) } else { refused(why.to_owned()) };
        }
        let here = layout(&self.param);
        for (what, tensor) in std::iter::once(("gradient", grad)).chain(self.state.iter().map(|t| ("state", t))) {
            let there = layout(tensor);
            if there != here {
                return refused(format!(
                    "its {what} is {there:?} (dtype, device, strides), the parameter {here:?}; move and convert the \
                     model before the optimizer is built"
                ));
            }
        }
        Ok(())
    }
}

/// Dtype, device, and the strides of dimensions larger than 1 (a dimension of size 1 may have any stride, and autograd's do).
fn layout(tensor: &Tensor) -> (Kind, Device, Vec<i64>) {
    let dimensions = tensor.size().into_iter().zip(tensor.stride());
    (tensor.kind(), tensor.device(), dimensions.filter(|(size, _)| *size != 1).map(|(_, stride)| stride).collect())
}
