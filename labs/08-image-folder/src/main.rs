//! Lab 08: transfer learning. Photographs of houses after a storm are sorted by how much damage they took.
//!
//! Runs under `lockstep run` or torchrun, or alone. Against lab 06: a folder of photographs per class, a network that may have been
//! trained before and whose head is new, a learning rate that falls when validation stalls, and the best model in a file of its own.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::Result;
use clap::Parser;
use lockstep::data::vision::{AutoAugment, Normalize, OnBroken, Pipeline, Resize, Transformed};
use lockstep::data::{Dataset, houses_or_drawn};
use lockstep::device::DeviceChoice;
use lockstep::loader::{DataLoader, Position};
use lockstep::loss::CrossEntropy;
use lockstep::metrics::{EvalOptions, Evaluation, evaluate_classes, evaluate_with};
use lockstep::models::{Depth, Head, Norm, ResNet, ResNetOptions, count_trainable, freeze_all_but};
use lockstep::optim::schedule::{ReduceLrOnPlateau, ReduceLrOnPlateauOptions};
use lockstep::optim::{Adam, AdamOptions, Optimizer, named_parameters};
use lockstep::pretrained;
use lockstep::sampler::DistributedSampler;
use lockstep::snapshot::{OnSaveError, Run, SnapshotOptions, Snapshots};
use lockstep::{
    BestModel, DdpOptions, DistributedDataParallel, LaunchEnv, Reporter, checkpoint, exit, init_process_group,
};
use tch::nn::VarStore;

/// Train a classifier of storm damage on a folder of photographs for each class
#[derive(Parser)]
struct Args {
    /// Total epochs to train the model
    #[arg(long, default_value_t = 5)]
    epochs: u64,
    /// Photographs in a batch of one rank
    #[arg(long, default_value = "16")]
    batch_size: NonZeroUsize,
    /// Learning rate to begin with
    #[arg(long, default_value_t = 1e-4)]
    lr: f64,
    /// A folder with Train/ and Validation/, and perhaps Test/, with a folder per class in each; without one, houses are drawn
    #[arg(long)]
    data: Option<PathBuf>,
    /// Houses to draw for training; a quarter as many are drawn for validation
    #[arg(long, default_value = "512")]
    samples: NonZeroUsize,
    /// What to do with a photograph that cannot be read
    #[arg(long, value_enum, default_value_t)]
    on_broken_image: OnBroken,
    /// Width and height that photographs are resized to
    #[arg(long, default_value = "244")]
    image_size: NonZeroU32,
    /// Threads of each rank that read photographs ahead
    #[arg(long, default_value_t = 1)]
    workers: usize,
    /// Weights to begin with, all but the head's: a .safetensors file, or a .pth as torchvision publishes
    #[arg(long)]
    pretrained: Option<PathBuf>,
    /// Train the head alone
    #[arg(long)]
    freeze: bool,
    /// Channels of the network's first stage; pretrained weights have 64
    #[arg(long, default_value_t = 64)]
    width: i64,
    /// Normalize over the batches of all ranks, not each rank over its own
    #[arg(long)]
    sync_batch_norm: bool,
    /// The folder of snapshots: training goes on from the newest good one in it
    #[arg(long, default_value = "snapshots")]
    snapshots: PathBuf,
    /// Save a snapshot after every so many steps of an epoch, too
    #[arg(long)]
    save_every_steps: Option<NonZeroUsize>,
    /// What to do when a snapshot or the best model cannot be saved
    #[arg(long, value_enum, default_value_t)]
    on_save_error: OnSaveError,
    /// The best model's file; best_model.safetensors in the folder of snapshots, if none is named
    #[arg(long)]
    best: Option<PathBuf>,
    /// A folder in which each rank saves its last weights
    #[arg(long)]
    weights: Option<PathBuf>,
    /// Seed of drawn houses, order, augmentation and initial weights
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Where to train
    #[arg(long, value_enum, default_value_t)]
    device: DeviceChoice,
}

fn main() -> ExitCode {
    exit::main(|| {
        let args = Args::parse();
        train(&LaunchEnv::from_env_or_alone()?, &args)
    })
}

// ANCHOR: train
fn train(env: &LaunchEnv, args: &Args) -> Result<()> {
    let device = args.device.pick(env.local_rank, env.local_world_size)?;
    let group = Rc::new(init_process_group(env, device, &Default::default())?);
    let report = Reporter::new(env, device)?;

    // ANCHOR: data
    let size = args.image_size.get();
    let resize = Resize { width: size, height: size };
    let houses = houses_or_drawn(args.data.as_deref(), args.seed, args.samples.get())?;
    let augmented = Pipeline::new().then(AutoAugment::imagenet()).then(resize);
    let train_set = Transformed::new(houses.train, Normalize::IMAGENET).pipeline(augmented).seed(args.seed);
    let train_set = Arc::new(train_set.on_broken(args.on_broken_image));
    let held_out = |set| Arc::new(Transformed::new(set, Normalize::IMAGENET).pipeline(Pipeline::new().then(resize)).on_broken(args.on_broken_image));
    let (validation_set, test_set) = (held_out(houses.validation), houses.test.map(held_out));
    let (samples, data, batch_size) = (train_set.len(), train_set.fingerprint()?, args.batch_size.get());
    // ANCHOR_END: data

    // ANCHOR: model
    tch::manual_seed(args.seed as i64);
    let mut vs = VarStore::new(device);
    let norm = if args.sync_batch_norm { Norm::Sync(Rc::clone(&group)) } else { Norm::Batch };
    let options = ResNetOptions { classes: houses.classes.len() as i64, width: args.width, head: Head::TwoLayers, norm };
    let net = ResNet::new(&vs.root(), Depth::ThirtyFour, &options);
    let all = count_trainable(&vs);
    // ANCHOR_END: model
    Ok(())
}
// ANCHOR_END: train
