//! Small networks: the smallest that the labs train, those for digits, and the command-line choice between these.

use clap::ValueEnum;
use tch::nn::{ConvConfig, ModuleT, Path};
use tch::{Tensor, nn};

/// The tutorials' ToyModel: `[n, 10]` to `[n, 5]` through ten hidden units.
#[derive(Debug)]
pub struct ToyModel {
    net1: nn::Linear,
    net2: nn::Linear,
}

impl ToyModel {
    /// Creates the variables under `vs`, with random initial weights.
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
    /// Creates the variables under `vs`, with random initial weights.
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

/// Two linear layers for 28 × 28 digits, with dropout between them, which draws random numbers in each step; small and
/// quick. Input `[n, 1, 28, 28]`, output `[n, 10]` logits; 25,450 parameters.
#[derive(Debug)]
pub struct Mlp {
    fc1: nn::Linear,
    fc2: nn::Linear,
}

impl Mlp {
    /// The fraction of hidden units that a training pass drops.
    pub const DROPOUT: f64 = 0.2;

    /// Creates the variables under `vs`, with random initial weights.
    pub fn new(vs: &Path<'_>) -> Self {
        Mlp {
            fc1: nn::linear(vs / "fc1", 28 * 28, 32, Default::default()),
            fc2: nn::linear(vs / "fc2", 32, 10, Default::default()),
        }
    }
}

impl ModuleT for Mlp {
    fn forward_t(&self, inputs: &Tensor, train: bool) -> Tensor {
        inputs.flat_view().apply(&self.fc1).relu().dropout(Self::DROPOUT, train).apply(&self.fc2)
    }
}

/// Which network reads digits, for a command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DigitModel {
    /// The convolutional network.
    #[default]
    Conv,
    /// Two linear layers with dropout: quick, for trying things out.
    Mlp,
}

/// The network of a [`DigitModel`].
#[derive(Debug)]
pub enum DigitNet {
    /// See [`ConvNet`].
    Conv(Box<ConvNet>),
    /// See [`Mlp`].
    Mlp(Mlp),
}

impl DigitModel {
    /// Creates its variables under `vs`, with random initial weights.
    pub fn build(self, vs: &Path<'_>) -> DigitNet {
        match self {
            DigitModel::Conv => DigitNet::Conv(Box::new(ConvNet::new(vs))),
            DigitModel::Mlp => DigitNet::Mlp(Mlp::new(vs)),
        }
    }
}

impl ModuleT for DigitNet {
    fn forward_t(&self, inputs: &Tensor, train: bool) -> Tensor {
        match self {
            DigitNet::Conv(net) => net.forward_t(inputs, train),
            DigitNet::Mlp(net) => net.forward_t(inputs, train),
        }
    }
}

#[cfg(test)]
mod tests {
    use tch::nn::VarStore;
    use tch::{Device, Kind};

    use super::super::count_trainable;
    use super::*;

    #[test]
    fn takes_ten_features_to_five() {
        let vs = VarStore::new(Device::Cpu);
        let output = ToyModel::new(&vs.root()).forward_t(&Tensor::zeros([3, 10], (Kind::Float, Device::Cpu)), true);
        assert_eq!(output.size(), [3, 5]);
    }

    #[test]
    fn networks_have_the_shapes_and_sizes_that_they_state() {
        for (model, parameters) in [(DigitModel::Conv, 105_866), (DigitModel::Mlp, 25_450)] {
            let vs = VarStore::new(Device::Cpu);
            let digits = Tensor::zeros([3, 1, 28, 28], (Kind::Float, Device::Cpu));
            assert_eq!(model.build(&vs.root()).forward_t(&digits, true).size(), [3, 10]);
            assert_eq!(count_trainable(&vs), parameters);
        }
    }
}
