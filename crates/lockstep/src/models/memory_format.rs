//! The order of dimensions in memory: channels last.
//!
//! cuDNN's convolutions for half precision work on tensors with the channels last, and oneDNN's on CPUs may. Values, shapes, names and
//! files stay the same.

use tch::nn::VarStore;

/// Puts the channels last in the memory of all variables with four dimensions, and returns how many these are; Python's
/// `model.to(memory_format=torch.channels_last)`. Give it inputs of the same form ([`DataLoader::channels_last`]), or each step converts
/// them.
///
/// Call it before the optimizer and DDP are created: their memory has the parameters' layout.
///
/// # Errors
/// libtorch's.
///
/// [`DataLoader::channels_last`]: crate::loader::DataLoader::channels_last
pub fn channels_last(vs: &VarStore) -> c10d::Result<usize> {
    let mut moved = 0;
    for mut variable in vs.variables().into_values().filter(|variable| variable.dim() == 4) {
        c10d::to_channels_last(&mut variable)?;
        moved += 1;
    }
    Ok(moved)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
    use tch::nn::Module;
    use tch::{Device, Kind, Tensor, nn};

    fn net(vs: &VarStore) -> nn::Sequential {
        let root = vs.root();
        let options = nn::ConvConfig { padding: 1, ..Default::default() };
        nn::seq()
            .add(nn::conv2d(&root / "conv", 3, 8, 3, options))
            .add_fn(Tensor::relu)
            .add_fn(|features| features.adaptive_avg_pool2d([2, 2]).flatten(1, -1))
            .add(nn::linear(&root / "fc", 32, 4, Default::default()))
    }

    #[test]
    fn a_step_with_channels_last_has_the_same_result_and_the_layout_throughout() {
        let steps = |last: bool| {
            tch::manual_seed(4);
            let vs = VarStore::new(Device::Cpu);
            let net = net(&vs);
            let mut pictures = Tensor::randn([5, 3, 8, 8], (Kind::Float, Device::Cpu));
            if last {
                assert_eq!(channels_last(&vs).unwrap(), 1);
                pictures = c10d::channels_last(&pictures).unwrap();
            }
            let options = SgdOptions { lr: 0.1, momentum: 0.9, ..Default::default() };
            let mut optimizer = Sgd::new(named_parameters(&vs), options).unwrap();
            for _ in 0..3 {
                optimizer.zero_grad();
                let targets = Tensor::from_slice(&[0_i64, 1, 2, 3, 0]);
                c10d::backward(&net.forward(&pictures).cross_entropy_for_logits(&targets)).unwrap();
                optimizer.step().unwrap();
            }
            let weight = vs.variables()["conv.weight"].shallow_clone();
            assert_eq!(c10d::is_channels_last(&weight) && c10d::is_channels_last(&weight.grad()), last);
            weight
        };
        let apart = (steps(true) - steps(false)).abs().max().double_value(&[]);
        assert!(apart < 1e-5, "{apart}");
    }
}
