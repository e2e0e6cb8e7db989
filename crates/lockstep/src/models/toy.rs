//! The smallest network that the labs train.

use tch::Tensor;
use tch::nn::{self, ModuleT, Path};

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

#[cfg(test)]
mod tests {
    use super::*;
    use tch::nn::VarStore;
    use tch::{Device, Kind};

    #[test]
    fn takes_ten_features_to_five() {
        let vs = VarStore::new(Device::Cpu);
        let output = ToyModel::new(&vs.root()).forward_t(&Tensor::zeros([3, 10], (Kind::Float, Device::Cpu)), true);
        assert_eq!(output.size(), [3, 5]);
    }
}
