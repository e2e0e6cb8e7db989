//! The data, pictures in files or drawn digits; a network of convolutions that finds the class of each; the loss.

use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use lockstep::data::{Dataset, Mnist, mnist_or_drawn};
use lockstep::loss::CrossEntropy;
use lockstep::metrics::Evaluation;
use lockstep::models::RunUnit;
use lockstep::optim::AdamWOptions;
use lockstep_vision::folder::Splits;
use lockstep_vision::{ImageFolder, Normalize, Pictures, Pipeline, RandomHorizontalFlip, Resize, Transformed};
use tch::Tensor;
use tch::nn::{ConvConfig, ModuleT, Path, SequentialT, conv2d, linear, seq_t};

pub(crate) const EPOCHS: u64 = 5;
pub(crate) const BATCH_SIZE: &str = "32";
pub(crate) const LR: f64 = 3e-3;

#[derive(clap::Args)]
pub(crate) struct DataArgs {
    /// A folder with `train` and `val`, each with a folder of pictures for each class; or with IDX files of MNIST's names. Without
    /// it, digits are drawn
    #[arg(long)]
    data: Option<PathBuf>,
    /// Width and height to which pictures in folders are scaled
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(8..=4096))]
    side: u32,
}

pub(crate) struct Data {
    pub(crate) train: Arc<dyn Dataset>,
    pub(crate) test: Arc<dyn Dataset>,
    /// 3 of colour pictures, 1 of grey ones.
    channels: i64,
    classes: i64,
}

impl Data {
    pub(crate) fn load(args: &DataArgs, seed: u64) -> Result<Self> {
        let has_idx = |dir: &FilePath| {
            let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
            files.into_iter().any(|file| file.file_name().to_string_lossy().starts_with("train-images"))
        };
        match &args.data {
            Some(dir) if !has_idx(dir) => {
                let Splits { train, validation, .. } = Splits::open(dir)?;
                let classes = train.classes().len() as i64;
                let set = |pictures: ImageFolder, pipeline: Pipeline| {
                    let pipeline = pipeline.then(Resize::square(args.side));
                    Transformed::new(pictures, Normalize::IMAGENET).pipeline(pipeline).seed(seed)
                };
                let flips = Pipeline::new().then(RandomHorizontalFlip { p: 0.5 });
                let (train, test) = (set(train, flips).in_training(), set(validation, Pipeline::new()));
                Ok(Data { train: Arc::new(train), test: Arc::new(test), channels: 3, classes })
            }
            dir => {
                let (train, test): (Mnist, Mnist) = mnist_or_drawn(dir.as_deref(), seed, 1000, 250)?;
                Ok(Data { train: Arc::new(train), test: Arc::new(test), channels: 1, classes: 10 })
            }
        }
    }
}

pub(crate) type Network = SequentialT;
pub(crate) type Rule = AdamWOptions;

/// Pictures of any size, shape `[n, channels, h, w]`, to logits, shape `[n, classes]`.
pub(crate) fn network(vs: &Path<'_>, data: &Data) -> Result<Network> {
    let conv = |name: &str, inputs, outputs| {
        conv2d(vs / name, inputs, outputs, 3, ConvConfig { padding: 1, ..Default::default() })
    };
    Ok(seq_t()
        .add(conv("0", data.channels, 16))
        .add_fn(|x| x.relu().max_pool2d_default(2))
        .add(conv("1", 16, 32))
        .add_fn(|x| x.relu().max_pool2d_default(2))
        .add(conv("2", 32, 64))
        .add_fn(|x| x.relu().adaptive_avg_pool2d([4, 4]).flatten(1, -1))
        .add(linear(vs / "3", 64 * 4 * 4, data.classes, Default::default())))
}

pub(crate) fn optimizer(lr: f64) -> Rule {
    AdamWOptions { lr, ..Default::default() }
}

/// Prefixes of the names of parameters that fully sharded training gathers together: here one, for all.
pub(crate) fn units(_net: &Network) -> Vec<String> {
    vec![String::new()]
}

pub(crate) fn forward(net: &Network, inputs: &Tensor, train: bool, run: &RunUnit<'_>) -> Tensor {
    run("", inputs, &|inputs| net.forward_t(inputs, train))
}

/// How many targets of a batch count.
pub(crate) fn count(targets: &Tensor) -> i64 {
    CrossEntropy::default().count(targets)
}

/// The sum of their losses.
pub(crate) fn loss(outputs: &Tensor, targets: &Tensor) -> c10d::Result<Tensor> {
    CrossEntropy::default().sum(outputs, targets)
}

/// Adds the right answers and the loss of a batch that is held out.
pub(crate) fn score(all: &mut Evaluation, outputs: &Tensor, targets: &Tensor) -> c10d::Result<()> {
    all.score(&CrossEntropy::default(), outputs, targets)
}

/// A last line to print, if there is something to show.
pub(crate) fn show(_net: &Network, _data: &Data) -> Result<Option<String>> {
    Ok(None)
}
