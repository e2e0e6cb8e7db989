//! What a model returns: one tensor or several.

use tch::Tensor;

/// What a forward pass returns, and backward starts from: a tensor, or several in a tuple, a list or an option.
pub trait Outputs {
    /// All of its tensors.
    fn tensors(&self) -> Vec<Tensor>;
}

impl Outputs for Tensor {
    fn tensors(&self) -> Vec<Tensor> {
        vec![self.shallow_clone()]
    }
}

impl<A: Outputs, B: Outputs> Outputs for (A, B) {
    fn tensors(&self) -> Vec<Tensor> {
        [self.0.tensors(), self.1.tensors()].into_iter().flatten().collect()
    }
}

impl<A: Outputs, B: Outputs, C: Outputs> Outputs for (A, B, C) {
    fn tensors(&self) -> Vec<Tensor> {
        [self.0.tensors(), self.1.tensors(), self.2.tensors()].into_iter().flatten().collect()
    }
}

impl<O: Outputs> Outputs for Vec<O> {
    fn tensors(&self) -> Vec<Tensor> {
        self.iter().flat_map(Outputs::tensors).collect()
    }
}

impl<O: Outputs> Outputs for Option<O> {
    fn tensors(&self) -> Vec<Tensor> {
        self.iter().flat_map(Outputs::tensors).collect()
    }
}
