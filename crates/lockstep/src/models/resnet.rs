//! ResNet-18 and ResNet-34 as in torchvision, for pictures of any size.
//!
//! Source: He et al., "Deep Residual Learning for Image Recognition" (2015), and `torchvision/models/resnet.py` (0.26), with
//! the same names, order of parameters and initial distributions. A variable's name is torchvision's key in a state dict
//! (`layer1.0.conv1.weight`, `bn1.running_mean`), so that its files load by name. One key has no counterpart:
//! `num_batches_tracked`, a counter of torchvision's batch norms that is never read when a momentum is given.
//!
//! Leaves out deeper networks (their blocks are bottlenecks), reading weight files, and freezing ([`super::freeze_all_but`]).

use std::ops::Range;
use std::rc::Rc;

use c10d::ProcessGroup;
use tch::Tensor;
use tch::nn::init::{FanInOut, NonLinearity, NormalOrUniform};
use tch::nn::{self, Conv2D, ConvConfig, Init, Module, ModuleT, Path};

use super::RunUnit;
use crate::nn::{BatchNorm2d, SyncBatchNorm2d};

/// The number of layers, which is part of the network's name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Depth {
    /// ResNet-18: two blocks a stage; 11,689,512 parameters with 1,000 classes.
    #[default]
    Eighteen,
    /// ResNet-34: three, four, six and three blocks; 21,797,672 parameters with 1,000 classes.
    ThirtyFour,
}

impl Depth {
    /// Blocks of each of the four stages.
    fn blocks(self) -> [usize; 4] {
        match self {
            Depth::Eighteen => [2, 2, 2, 2],
            Depth::ThirtyFour => [3, 4, 6, 3],
        }
    }

    /// Blocks of all stages.
    pub fn block_count(self) -> usize {
        self.blocks().iter().sum()
    }
}

/// The layers that turn the pooled features into class scores.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Head {
    /// One linear layer, `fc`, as in torchvision.
    #[default]
    Linear,
    /// Two linear layers with a ReLU between them, `fc.0` and `fc.2`; the first keeps the number of features.
    TwoLayers,
}

/// The samples over which batch normalization computes its statistics.
#[derive(Clone, Debug, Default)]
pub enum Norm {
    /// The rank's own samples: [`BatchNorm2d`].
    #[default]
    Batch,
    /// The samples of all ranks of the group: [`SyncBatchNorm2d`].
    Sync(Rc<ProcessGroup>),
}

/// The options of a [`ResNet`].
#[derive(Clone, Debug)]
pub struct ResNetOptions {
    /// The number of output scores.
    pub classes: i64,
    /// Channels of the first stage; each later one has twice as many. torchvision's are 64; fewer make a quick network
    /// for tests.
    pub width: i64,
    /// The kind of head.
    pub head: Head,
    /// The kind of normalization.
    pub norm: Norm,
}

impl ResNetOptions {
    /// torchvision's network with this many classes.
    pub fn new(classes: i64) -> Self {
        ResNetOptions { classes, width: 64, head: Head::default(), norm: Norm::default() }
    }
}

/// A residual network of basic blocks. Input `[n, 3, H, W]`, output `[n, classes]` logits.
#[derive(Debug)]
pub struct ResNet {
    /// `conv1` and `bn1`.
    stem: Option<(Conv2D, BatchNorm)>,
    /// With the names of their variables' modules.
    blocks: Vec<(String, BasicBlock)>,
    fc: Option<Classifier>,
}

impl ResNet {
    /// The module of the head's variables, which stays trained when the rest is frozen.
    pub const HEAD: &str = "fc";

    /// ResNet-18 under `vs`, with random initial weights.
    pub fn resnet18(vs: &Path<'_>, classes: i64) -> Self {
        Self::new(vs, Depth::Eighteen, &ResNetOptions::new(classes))
    }

    /// ResNet-34 under `vs`, with random initial weights.
    pub fn resnet34(vs: &Path<'_>, classes: i64) -> Self {
        Self::new(vs, Depth::ThirtyFour, &ResNetOptions::new(classes))
    }

    /// A network under `vs` (the root, for torchvision's names), with random initial weights.
    ///
    /// # Panics
    /// Panics without classes, or with a width that is not positive.
    pub fn new(vs: &Path<'_>, depth: Depth, options: &ResNetOptions) -> Self {
        Self::part(vs, depth, options, 0..depth.block_count())
    }

    /// Some blocks of a network, as a stage of a pipeline has them: what is before all blocks belongs to the first, the head to the last.
    ///
    /// # Panics
    /// As [`new`](Self::new); for an empty range, and one beyond the last block.
    pub fn part(vs: &Path<'_>, depth: Depth, options: &ResNetOptions, which: Range<usize>) -> Self {
        let ResNetOptions { classes, width, head, ref norm } = *options;
        assert!(classes > 0 && width > 0, "a ResNet of {classes} classes and width {width}: both must be positive");
        let all = depth.block_count();
        assert!(!which.is_empty() && which.end <= all, "the blocks {which:?} of a ResNet of {all}");
        let stem = (which.start == 0).then(|| {
            let conv1 = conv(vs / "conv1", Shape { from: 3, to: width, size: 7, stride: 2 });
            (conv1, BatchNorm::new(vs / "bn1", width, norm))
        });
        let (mut blocks, mut from, mut number) = (Vec::new(), width, 0);
        for (stage, count) in depth.blocks().into_iter().enumerate() {
            let to = width << stage;
            let name = format!("layer{}", stage + 1);
            for block in 0..count {
                let stride = if stage > 0 && block == 0 { 2 } else { 1 };
                if which.contains(&number) {
                    let path = vs / &name / block;
                    let made = BasicBlock::new(path, Shape { from, to, size: 3, stride }, norm);
                    blocks.push((format!("{name}.{block}"), made));
                }
                (from, number) = (to, number + 1);
            }
        }
        let fc = (which.end == all).then(|| Classifier::new(vs / Self::HEAD, from, classes, head));
        ResNet { stem, blocks, fc }
    }

    /// The forward pass in units: `run` is called with each in turn. A unit has the variables that begin with its name; the first, `""`,
    /// those that are in no other.
    pub fn forward_units(&self, inputs: &Tensor, train: bool, run: &RunUnit<'_>) -> Tensor {
        let mut features = match &self.stem {
            Some((conv1, bn1)) => run("", inputs, &|pictures| {
                let stem = bn1.forward_t(&pictures.apply(conv1), train).relu_();
                stem.max_pool2d([3, 3], [2, 2], [1, 1], [1, 1], false)
            }),
            None => inputs.shallow_clone(),
        };
        for (name, block) in &self.blocks {
            features = run(name, &features, &|features| block.forward_t(features, train));
        }
        match &self.fc {
            Some(fc) => {
                run(Self::HEAD, &features, &|features| features.adaptive_avg_pool2d([1, 1]).flatten(1, -1).apply(fc))
            }
            None => features,
        }
    }

    /// The names of the units, in their order.
    pub fn units(&self) -> Vec<&str> {
        let stem = self.stem.is_some().then_some("");
        let blocks = self.blocks.iter().map(|(name, _)| name.as_str());
        stem.into_iter().chain(blocks).chain(self.fc.is_some().then_some(Self::HEAD)).collect()
    }
}

impl ModuleT for ResNet {
    fn forward_t(&self, inputs: &Tensor, train: bool) -> Tensor {
        self.forward_units(inputs, train, &|_, inputs, layers| layers(inputs))
    }
}

/// Two 3 × 3 convolutions, and the input added to their output.
#[derive(Debug)]
struct BasicBlock {
    conv1: Conv2D,
    bn1: BatchNorm,
    conv2: Conv2D,
    bn2: BatchNorm,
    /// Maps the input to the output's shape, if they differ.
    downsample: Option<(Conv2D, BatchNorm)>,
}

impl BasicBlock {
    fn new(vs: Path<'_>, shape: Shape, norm: &Norm) -> Self {
        let Shape { from, to, stride, .. } = shape;
        let conv1 = conv(&vs / "conv1", shape);
        let bn1 = BatchNorm::new(&vs / "bn1", to, norm);
        let conv2 = conv(&vs / "conv2", Shape { from: to, stride: 1, ..shape });
        let bn2 = BatchNorm::new(&vs / "bn2", to, norm);
        let downsample = (stride != 1 || from != to).then(|| {
            let path = &vs / "downsample";
            (conv(&path / 0, Shape { size: 1, ..shape }), BatchNorm::new(&path / 1, to, norm))
        });
        BasicBlock { conv1, bn1, conv2, bn2, downsample }
    }
}

impl ModuleT for BasicBlock {
    fn forward_t(&self, inputs: &Tensor, train: bool) -> Tensor {
        let hidden = self.bn1.forward_t(&inputs.apply(&self.conv1), train).relu_();
        let mut output = self.bn2.forward_t(&hidden.apply(&self.conv2), train);
        // In place, as in torchvision: neither batch norm nor addition needs its output for backward.
        match &self.downsample {
            Some((conv, bn)) => output += bn.forward_t(&inputs.apply(conv), train),
            None => output += inputs,
        }
        output.relu_()
    }
}

/// Batch normalization over the rank's own samples or over all ranks'.
#[derive(Debug)]
enum BatchNorm {
    Own(BatchNorm2d),
    Sync(SyncBatchNorm2d),
}

impl BatchNorm {
    fn new(vs: Path<'_>, channels: i64, norm: &Norm) -> Self {
        match norm {
            Norm::Batch => BatchNorm::Own(BatchNorm2d::new(&vs, channels)),
            Norm::Sync(group) => {
                BatchNorm::Sync(SyncBatchNorm2d::new(&vs, channels, Rc::clone(group), &Default::default()))
            }
        }
    }
}

impl ModuleT for BatchNorm {
    fn forward_t(&self, inputs: &Tensor, train: bool) -> Tensor {
        match self {
            BatchNorm::Own(norm) => norm.forward_t(inputs, train),
            BatchNorm::Sync(norm) => norm.forward_t(inputs, train),
        }
    }
}

/// The head.
#[derive(Debug)]
enum Classifier {
    Linear(nn::Linear),
    TwoLayers(nn::Linear, nn::Linear),
}

impl Classifier {
    fn new(vs: Path<'_>, features: i64, classes: i64, head: Head) -> Self {
        match head {
            Head::Linear => Classifier::Linear(linear(vs, features, classes)),
            Head::TwoLayers => {
                let first = linear(&vs / 0, features, features);
                Classifier::TwoLayers(first, linear(&vs / 2, features, classes))
            }
        }
    }
}

impl Module for Classifier {
    fn forward(&self, features: &Tensor) -> Tensor {
        match self {
            Classifier::Linear(fc) => features.apply(fc),
            Classifier::TwoLayers(first, second) => features.apply(first).relu_().apply(second),
        }
    }
}

/// A convolution's channels, size of its square kernel, and stride.
#[derive(Clone, Copy)]
struct Shape {
    from: i64,
    to: i64,
    size: i64,
    stride: i64,
}

/// A convolution without bias that only the stride makes smaller, initialized with `kaiming_normal_(mode="fan_out")`.
fn conv(vs: Path<'_>, shape: Shape) -> Conv2D {
    let (dist, fan) = (NormalOrUniform::Normal, FanInOut::FanOut);
    let ws_init = Init::Kaiming { dist, fan, non_linearity: NonLinearity::ReLU };
    let (stride, padding) = (shape.stride, shape.size / 2);
    nn::conv2d(
        vs,
        shape.from,
        shape.to,
        shape.size,
        ConvConfig { stride, padding, bias: false, ws_init, ..Default::default() },
    )
}

/// PyTorch's linear layer, uniform within ±1/√inputs. tch's own creates the bias first, and draws weights √6 times as large.
fn linear(vs: Path<'_>, inputs: i64, outputs: i64) -> nn::Linear {
    let bound = (inputs as f64).sqrt().recip();
    let uniform = Init::Uniform { lo: -bound, up: bound };
    let ws = vs.var("weight", &[outputs, inputs], uniform);
    nn::Linear { ws, bs: Some(vs.var("bias", &[outputs], uniform)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::{count_trainable, freeze_all_but};
    use tch::nn::VarStore;
    use tch::{Device, Kind};

    fn narrow(vs: &VarStore, head: Head) -> ResNet {
        let options = ResNetOptions { width: 4, head, ..ResNetOptions::new(3) };
        ResNet::new(&vs.root(), Depth::Eighteen, &options)
    }

    fn pictures(size: [i64; 2]) -> Tensor {
        Tensor::randn([2, 3, size[0], size[1]], (Kind::Float, Device::Cpu))
    }

    #[test]
    fn have_as_many_parameters_as_torchvisions() {
        let cases = [
            (Depth::Eighteen, ResNetOptions::new(1000), 11_689_512),
            (Depth::ThirtyFour, ResNetOptions::new(1000), 21_797_672),
            (Depth::ThirtyFour, ResNetOptions { head: Head::TwoLayers, ..ResNetOptions::new(3) }, 21_548_867),
        ];
        for (depth, options, parameters) in cases {
            let vs = VarStore::new(Device::Cpu);
            let _net = ResNet::new(&vs.root(), depth, &options);
            assert_eq!(count_trainable(&vs), parameters);
            if options.head == Head::TwoLayers {
                assert_eq!(freeze_all_but(&vs, &[ResNet::HEAD]), 4);
                assert_eq!(count_trainable(&vs), 264_195);
            }
        }
    }

    #[test]
    fn take_pictures_of_any_size() {
        for head in [Head::Linear, Head::TwoLayers] {
            let vs = VarStore::new(Device::Cpu);
            let net = narrow(&vs, head);
            for size in [[32, 32], [33, 70], [1, 1]] {
                assert_eq!(net.forward_t(&pictures(size), false).size(), [2, 3]);
            }
        }
    }

    #[test]
    fn start_from_torchvisions_distributions() {
        let vs = VarStore::new(Device::Cpu);
        let _net = ResNet::resnet18(&vs.root(), 1000);
        let variables = vs.variables();
        for (name, tensor) in &variables {
            let (mean, std) = (tensor.mean(Kind::Double).double_value(&[]), tensor.std(false).double_value(&[]));
            let wanted = match *tensor.size() {
                [to, _, height, width] => (2.0 / (to * height * width) as f64).sqrt(),
                _ if name.starts_with("fc.") => (1.0 / 512f64).sqrt() / 3f64.sqrt(),
                _ => 0.0,
            };
            let ones = wanted == 0.0 && (name.ends_with("weight") || name.ends_with("running_var"));
            let middle = if ones { 1.0 } else { 0.0 };
            assert!((std - wanted).abs() <= 0.08 * wanted, "{name}: deviation {std}, not {wanted}");
            assert!((mean - middle).abs() <= 0.2 * wanted, "{name}: mean {mean}, not {middle}");
        }
    }

    #[test]
    fn frozen_layers_get_no_gradient_but_still_update_running_statistics() {
        let vs = VarStore::new(Device::Cpu);
        let net = narrow(&vs, Head::TwoLayers);
        freeze_all_but(&vs, &[ResNet::HEAD]);
        let variables = vs.variables();
        let before = variables["layer4.1.bn2.running_mean"].copy();
        net.forward_t(&pictures([32, 32]), true).square().sum(Kind::Float).backward();
        assert!(variables["fc.0.weight"].grad().defined() && variables["fc.2.bias"].grad().defined());
        assert!(!variables["layer4.1.conv2.weight"].grad().defined() && !variables["bn1.bias"].grad().defined());
        assert_ne!(variables["layer4.1.bn2.running_mean"], before);
    }
}
