//! The networks that the labs train, the selection of trained parameters, and their order in memory.
//!
//! | network | input | output |
//! |---|---|---|
//! | [`ToyModel`] | `Float [n, 10]` | `Float [n, 5]` |
//! | [`ConvNet`], [`Mlp`]; [`DigitNet`] is either, chosen by a flag | `Float [n, 1, 28, 28]` | `Float [n, 10]` |
//! | [`ResNet`], 18 or 34 layers deep | `Float [n, 3, H, W]` | `Float [n, classes]` |
//! | [`Gpt`](gpt::Gpt) | `Int64 [n, t]` | `Float [n, t, vocabulary]` |
//!
//! A frozen parameter is one whose `requires_grad` is off: [`named_parameters`] leaves it out, so that neither optimizer nor
//! DDP sees it, and snapshots save it like the others.
//!
//! Channels last: cuDNN's convolutions for half precision work on tensors with the channels last, and oneDNN's on CPUs may. Values,
//! shapes, names and files stay the same.

pub mod gpt;
mod resnet;
mod small;

use tch::Tensor;
use tch::nn::VarStore;

pub use resnet::{Depth, Head, Norm, ResNet, ResNetOptions};
pub use small::{ConvNet, DigitModel, DigitNet, Mlp, ToyModel};

use crate::optim::named_parameters;

/// Runs a unit of a model: gets its name, its inputs and its layers, and returns its outputs.
pub type RunUnit<'a> = dyn Fn(&str, &Tensor, &dyn Fn(&Tensor) -> Tensor) -> Tensor + 'a;

/// Freezes every parameter except those of the modules that `trained` names (`fc`: `fc.weight`, `fc.0.bias` …, not
/// `fc2.weight`), which are unfrozen if necessary. Returns the number of tensors that are trained now: 0 means that no module
/// has such a name.
///
/// Call this before creating the optimizer and DDP, which take the parameters that are trained at that time.
///
/// As in PyTorch, freezing affects only gradients: in a training pass, batch normalization still normalizes with the batch's
/// statistics and updates its running ones, frozen or not, until the whole model is put into evaluation mode.
pub fn freeze_all_but(vs: &VarStore, trained: &[&str]) -> usize {
    let inside = |name: &str| trained.iter().any(|module| is_part_of(name, module));
    let parameters: Vec<usize> = vs.trainable_variables().iter().map(|tensor| tensor.data_ptr() as usize).collect();
    for (name, tensor) in vs.variables() {
        // Buffers are variables too, but have no gradient to switch off.
        if parameters.contains(&(tensor.data_ptr() as usize)) {
            let _shared = tensor.set_requires_grad(inside(&name));
        }
    }
    named_parameters(vs).len()
}

/// The number of trained values: elements of parameters that are not frozen.
pub fn count_trainable(vs: &VarStore) -> usize {
    named_parameters(vs).iter().map(|(_, tensor)| tensor.numel()).sum()
}

fn is_part_of(name: &str, module: &str) -> bool {
    name.strip_prefix(module).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Puts the channels last in the memory of all variables with four dimensions, and returns how many these are; Python's
/// `model.to(memory_format=torch.channels_last)`. Give it inputs of the same form ([`DataLoader::channels_last`]), or each step converts
/// them.
///
/// Call it before the optimizer and DDP are created: their memory has the parameters' layout.
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
    use tch::nn::Module;
    use tch::{Device, Kind, Tensor, nn};

    use super::*;
    use crate::optim::{Optimizer, Sgd, SgdOptions, named_parameters};

    fn store() -> VarStore {
        let vs = VarStore::new(Device::Cpu);
        let root = vs.root();
        nn::batch_norm1d(&root / "norm", 4, Default::default());
        nn::linear(&root / "fc" / "0", 4, 3, Default::default());
        nn::linear(&root / "fc2", 3, 2, Default::default());
        vs
    }

    #[test]
    fn trains_only_the_modules_named() {
        let vs = store();
        assert_eq!(count_trainable(&vs), 4 + 4 + 12 + 3 + 6 + 2);
        assert_eq!(freeze_all_but(&vs, &["fc"]), 2);
        assert_eq!(count_trainable(&vs), 12 + 3);
        assert!(named_parameters(&vs).iter().all(|(name, _)| name.starts_with("fc.0.")));
        assert_eq!(freeze_all_but(&vs, &["fc2", "norm.bias"]), 3);
        assert_eq!(freeze_all_but(&vs, &["head"]), 0);
    }

    #[test]
    fn leaves_buffers_without_gradients() {
        let vs = store();
        freeze_all_but(&vs, &["norm"]);
        assert!(!vs.variables()["norm.running_mean"].requires_grad());
        assert_eq!(count_trainable(&vs), 8);
    }

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
