//! Lab 01: a trainer on one device. Every later lab changes a few lines of this one.
//!
//! Follows the tutorial's `single_gpu.py`, with a target that can be learned, a loss whose gradient is not zero, and a
//! last epoch that is saved.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use clap::Parser;
use lockstep::data::{Batch, Dataset, Toy};
use lockstep::device::DeviceChoice;
use lockstep::loader::DataLoader;
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use lockstep::sampler::RandomSampler;
use lockstep::{LocalRank, Reporter, WorldSize, checkpoint, exit, progress};
use tch::nn::{self, Module, VarStore};
use tch::{Device, Reduction};

/// Train a linear model on one device
#[derive(Parser)]
struct Args {
    /// Total epochs to train the model
    #[arg(default_value_t = 10)]
    total_epochs: u64,
    /// Save a checkpoint every this many epochs, and after the last one
    #[arg(default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..))]
    save_every: u64,
    /// Samples in a batch
    #[arg(long, default_value = "32")]
    batch_size: NonZeroUsize,
    /// Learning rate
    #[arg(long, default_value_t = 1e-3)]
    lr: f64,
    /// Seed of data, order and initial weights
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Where to train
    #[arg(long, value_enum, default_value_t)]
    device: DeviceChoice,
    /// Where to save checkpoints
    #[arg(long, default_value = "checkpoint.safetensors", value_parser = checkpoint::parse_path)]
    checkpoint: PathBuf,
}

fn main() -> ExitCode {
    exit::main(|| {
        let args = Args::parse();
        Trainer::new(&args)?.train(&args)
    })
}

// ANCHOR: trainer
struct Trainer {
    device: Device,
    vs: VarStore,
    model: nn::Linear,
    optimizer: Sgd,
    train_data: DataLoader,
    report: Reporter,
}

impl Trainer {
    // ANCHOR: new
    fn new(args: &Args) -> Result<Self> {
        let device = args.device.pick(LocalRank::new(0), WorldSize::ONE)?;
        tch::manual_seed(args.seed as i64);
        let mut vs = VarStore::new(Device::Cpu);
        let model = nn::linear(vs.root(), Toy::FEATURES as i64, 1, Default::default());
        vs.set_device(device);
        let optimizer = Sgd::new(named_parameters(&vs), SgdOptions { lr: args.lr, ..Default::default() })?;
        let data = Arc::new(Toy::new(args.seed, Toy::TUTORIAL_LEN));
        let sampler = RandomSampler::new(data.len()).seed(args.seed);
        let train_data = DataLoader::new(data, sampler, args.batch_size.get())?;
        Ok(Trainer { device, vs, model, optimizer, train_data, report: Reporter::alone(device)? })
    }
    // ANCHOR_END: new

    // ANCHOR: batch
    /// Takes one step on one batch. Returns the mean loss over its samples before the step.
    fn run_batch(&mut self, batch: &Batch) -> Result<f64> {
        self.optimizer.zero_grad();
        let loss = self.model.forward(&batch.inputs).mse_loss(&batch.targets, Reduction::Mean);
        c10d::backward(&loss)?;
        self.optimizer.step()?;
        Ok(loss.double_value(&[]))
    }
    // ANCHOR_END: batch

    // ANCHOR: epoch
    /// Makes one pass over the data. Returns the mean loss over its samples.
    fn run_epoch(&mut self, epoch: u64) -> Result<f64> {
        self.report.epoch(epoch, &self.train_data);
        let (mut sum, mut samples) = (0.0, 0);
        for (step, batch) in self.train_data.epoch(epoch).enumerate() {
            let batch = batch?.to(self.device);
            let loss = self.run_batch(&batch)?;
            self.report.step(epoch, step, loss, batch.len());
            sum += loss * batch.len() as f64;
            samples += batch.len();
        }
        Ok(sum / samples as f64)
    }
    // ANCHOR_END: epoch

    // ANCHOR: train
    fn train(&mut self, args: &Args) -> Result<()> {
        for epoch in 0..args.total_epochs {
            let loss = self.run_epoch(epoch)?;
            self.report.println(format!("Epoch {epoch} | Loss: {loss:.4}"));
            let done = epoch + 1;
            if done % args.save_every == 0 || done == args.total_epochs {
                checkpoint::save(&self.vs, &args.checkpoint)?;
                self.report.println(progress::saved_line(epoch, "checkpoint", &args.checkpoint));
            }
        }
        Ok(())
    }
    // ANCHOR_END: train
}
// ANCHOR_END: trainer
