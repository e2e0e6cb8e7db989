//! The small networks that several labs train.

use tch::Tensor;
use tch::nn::{self, ConvConfig, ModuleT, Path};

/// A convolutional network for 28 × 28 digits: two blocks of convolution, ReLU and pooling, then two linear layers.
/// Input `[n, 1, 28, 28]`, output `[n, 10]` logits; 105,866 parameters.
#[derive(Debug)]
pub struct ConvNet {
    conv1: nn::Conv2D,
    conv2: nn::Conv2D,
    fc1: nn::Linear,
    fc2: nn::Linear,
}

impl ConvNet {
    /// Makes the variables under `vs`, with random initial weights.
    pub fn new(vs: &Path<'_>) -> Self {
        let same = ConvConfig { padding: 1, ..Default::default() };
        ConvNet {
            conv1: nn::conv2d(vs / "conv1", 1, 16, 3, same),
            conv2: nn::conv2d(vs / "conv2", 16, 32, 3, same),
            fc1: nn::linear(vs / "fc1", 32 * 7 * 7, 64, Default::default()),
            fc2: nn::linear(vs / "fc2", 64, 10, Default::default()),
        }
    }
}

impl ModuleT for ConvNet {
    fn forward_t(&self, inputs: &Tensor, _train: bool) -> Tensor {
        inputs
            .apply(&self.conv1)
            .relu()
            .max_pool2d_default(2)
            .apply(&self.conv2)
            .relu()
            .max_pool2d_default(2)
            .flat_view()
            .apply(&self.fc1)
            .relu()
            .apply(&self.fc2)
    }
}

/// The tutorials' ToyModel: `[n, 10]` to `[n, 5]` through ten hidden units.
#[derive(Debug)]
pub struct ToyModel {
    net1: nn::Linear,
    net2: nn::Linear,
}

impl ToyModel {
    /// Makes the variables under `vs`, with random initial weights.
    pub fn new(vs: &Path<'_>) -> Self {
        ToyModel {
            net1: nn::linear(vs / "net1", 10, 10, Default::default()),
            net2: nn::linear(vs / "net2", 10, 5, Default::default()),
        }
    }
}

impl ModuleT for ToyModel {
    fn forward_t(&self, inputs: &Tensor, _train: bool) -> Tensor {
        inputs.apply(&self.net1).relu().apply(&self.net2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tch::nn::VarStore;
    use tch::{Device, Kind};

    #[test]
    fn networks_have_the_shapes_and_sizes_that_they_state() {
        let vs = VarStore::new(Device::Cpu);
        let logits =
            ConvNet::new(&vs.root()).forward_t(&Tensor::zeros([3, 1, 28, 28], (Kind::Float, Device::Cpu)), true);
        assert_eq!(logits.size(), [3, 10]);
        assert_eq!(vs.trainable_variables().iter().map(Tensor::numel).sum::<usize>(), 105_866);
        let vs = VarStore::new(Device::Cpu);
        let output = ToyModel::new(&vs.root()).forward_t(&Tensor::zeros([3, 10], (Kind::Float, Device::Cpu)), true);
        assert_eq!(output.size(), [3, 5]);
    }
}
